"""What hooks are told."""

from collections.abc import Callable

from msgspec import Struct


class ConnectionOpened(Struct, frozen=True, kw_only=True):
    """A socket was accepted, or a request taken that is answered as one.

    Attributes:
        transport: ``websocket``; ``http`` for a POST that the engine answers, as a connection of one turn.
    """

    connection_id: str
    path: str
    transport: str


class ConnectionDenied(Struct, frozen=True, kw_only=True):
    """An upgrade was refused.

    Attributes:
        status: HTTP status of the refusal.
        code: Our error code.
    """

    path: str
    status: int
    code: str


class ConnectionClosed(Struct, frozen=True, kw_only=True):
    """A socket has ended, or a request that is answered as one.

    Attributes:
        transport: As it was opened.
        code: The close code that we saw or sent; servers differ in what they report.
        by_client: The client ended it.
        duration_s: Its age.
        turns: Turns started on it.
    """

    connection_id: str
    transport: str
    code: int
    by_client: bool
    duration_s: float
    turns: int


class FrameRefused(Struct, frozen=True, kw_only=True):
    """A frame was answered by an error and became no turn."""

    connection_id: str
    code: str


class TurnStarted(Struct, frozen=True, kw_only=True):
    """A turn began to run."""

    connection_id: str
    turn_id: str
    lane: str | None
    model: str | None
    continues: bool
    warm_up: bool


class RenderCounts(Struct, frozen=True, kw_only=True):
    """What a turn's rendering took; in tokens, or in messages where the backend takes those.

    Attributes:
        hit: The parent's rendering was continued; else all was rendered anew.
        total: Of the prompt, without the beginning of the answer.
        rendered: Rendered for this turn.
        rewound: Dropped of the parent's, and in part rendered again.
    """

    hit: bool
    total: int
    rendered: int
    rewound: int


class TurnFinished(Struct, frozen=True, kw_only=True):
    """A turn is over.

    Attributes:
        response_id: Null if there was none.
        outcome: ``completed``, ``incomplete``, ``failed``, ``error``, ``aborted`` or ``gone``.
        code: Error code, if there was an error.
        usage: Raw JSON of the usage; None if unknown.
        events: Events of the response.
        first_event_s: From the start to the first event; None if there was none.
        duration_s: From the start to the end.
        repaired_surrogates: Events in which a lone surrogate was replaced.
        rendering: None if the turn was not rendered.
        route: Name of the route that served it; None if it never got that far, or the app chose by itself.
        route_reused: Whether the turn before on its chain had the same one; None if there was none.
    """

    connection_id: str
    turn_id: str
    response_id: str | None
    lane: str | None
    model: str | None
    warm_up: bool
    outcome: str
    code: str | None
    usage: bytes | None
    events: int
    first_event_s: float | None
    duration_s: float
    repaired_surrogates: int
    rendering: RenderCounts | None = None
    route: str | None = None
    route_reused: bool | None = None


class NodeDropped(Struct, frozen=True, kw_only=True):
    """A response could not be kept in the budgets: its id is unresolvable."""

    connection_id: str
    response_id: str
    size: int


class StoreFailed(Struct, frozen=True, kw_only=True):
    """The response store raised or was late; or the shared counters.

    Attributes:
        operation: ``append``, ``load`` or ``delete``; ``count`` for the counters.
        error: Name of the error's class, ``late``, or why nothing was tried; ``not counted`` where counters let pass what they
            cannot count.
    """

    operation: str
    error: str


Fact = (
    ConnectionOpened
    | ConnectionDenied
    | ConnectionClosed
    | FrameRefused
    | TurnStarted
    | TurnFinished
    | NodeDropped
    | StoreFailed
)

Hook = Callable[[Fact], None]
"""Is called with every fact, in the connection's task: be quick, do not block. What it raises is logged once and dropped."""
