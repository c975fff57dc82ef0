"""What a connection and a turn may become: two tables, and nothing else is legal.

An absent entry is a bug of the caller and raises :class:`~ws_responses.errors.LocalProtocolError`.
"""

import enum
from typing import Final


class SessionPhase(enum.Enum):
    """Life of a connection."""

    OPEN = "open"
    RETIRING = "retiring"
    """No new turns; running ones end, then the socket is closed."""
    CLOSING = "closing"
    """Our close is on its way."""
    CLOSED = "closed"


class SessionInput(enum.Enum):
    """What moves a connection on."""

    RETIRE = "retire"
    CLOSE = "close"
    GONE = "gone"


class TurnPhase(enum.Enum):
    """Life of a turn."""

    QUEUED = "queued"
    """Waits for its lane or for a running turn to end."""
    RUNNING = "running"
    """Handed to the upstream; nothing was sent yet: a failure is an ``error`` frame."""
    STREAMING = "streaming"
    """``response.created`` was sent: a failure is a ``response.failed``."""
    BLOCKED = "blocked"
    """The response of a rollout waits for tool outputs; it was told so by ``response.done``."""
    ENDED = "ended"


class TurnInput(enum.Enum):
    """What moves a turn on."""

    START = "start"
    EVENT = "event"
    BLOCK = "block"
    RESUME = "resume"
    END = "end"


SESSION_TABLE: Final[dict[SessionPhase, dict[SessionInput, SessionPhase]]] = {
    SessionPhase.OPEN: {
        SessionInput.RETIRE: SessionPhase.RETIRING,
        SessionInput.CLOSE: SessionPhase.CLOSING,
        SessionInput.GONE: SessionPhase.CLOSED,
    },
    SessionPhase.RETIRING: {
        SessionInput.CLOSE: SessionPhase.CLOSING,
        SessionInput.GONE: SessionPhase.CLOSED,
    },
    SessionPhase.CLOSING: {SessionInput.GONE: SessionPhase.CLOSED},
    SessionPhase.CLOSED: {},
}

TURN_TABLE: Final[dict[TurnPhase, dict[TurnInput, TurnPhase]]] = {
    TurnPhase.QUEUED: {TurnInput.START: TurnPhase.RUNNING, TurnInput.END: TurnPhase.ENDED},
    TurnPhase.RUNNING: {TurnInput.EVENT: TurnPhase.STREAMING, TurnInput.END: TurnPhase.ENDED},
    TurnPhase.STREAMING: {
        TurnInput.EVENT: TurnPhase.STREAMING,
        TurnInput.BLOCK: TurnPhase.BLOCKED,
        TurnInput.END: TurnPhase.ENDED,
    },
    TurnPhase.BLOCKED: {TurnInput.RESUME: TurnPhase.STREAMING, TurnInput.END: TurnPhase.ENDED},
    TurnPhase.ENDED: {},
}
