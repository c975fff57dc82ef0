"""What a session asks of the shell: one small object for each thing to do, carried out in order."""

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

from ws_responses.errors import WireError
from ws_responses.protocol.rollout import Appended
from ws_responses.protocol.turns import Turn
from ws_responses.protocol.withheld import withheld


class Send(Struct, frozen=True):
    """Write this frame: the answer to a create or to what is none, or (``notice``) something that nobody asked for."""

    frame: bytes
    notice: bool = False

    __repr__ = withheld


class StartTurn(Struct, frozen=True):
    """Run this turn; call ``turn_ended`` when it is over."""

    turn: Turn


class TurnQueued(Struct, frozen=True):
    """This turn waits; if it forks another lane's response, keep that alive for it."""

    turn: Turn


class AbortTurn(Struct, frozen=True):
    """Stop this running turn, and call ``turn_ended`` before the next input.

    ``error`` is what the client is told, None if nobody listens any more.
    """

    turn: Turn
    error: WireError | None


class DropTurn(Struct, frozen=True):
    """This turn will never start: release what is kept for it."""

    turn: Turn


class KeepAlive(Struct, frozen=True):
    """Send this turn's lane a sign of life."""

    turn: Turn


class TellSteer(Struct, frozen=True):
    """Write an event about a steer, or an injection, among those of this turn's response, with its next number: behind all that was written.

    The turn may just have ended: then it comes right after the closing event.
    """

    turn: Turn
    kind: str
    members: dict[str, Any]


class EndEarly(Struct, frozen=True):
    """Let the response of this turn end at the next border of its output: it is steered."""

    turn: Turn


class ResumeTurn(Struct, frozen=True):
    """Let a blocked rollout go on: by what was appended, or (None) to its end, with its calls open."""

    turn: Turn
    appended: Appended | None


class Close(Struct, frozen=True):
    """Close the socket."""

    code: int
    reason: str


Action = Send | StartTurn | TurnQueued | AbortTurn | DropTurn | KeepAlive | TellSteer | EndEarly | ResumeTurn | Close
Actions = Sequence[Action]
NOTHING: Final[Actions] = ()
