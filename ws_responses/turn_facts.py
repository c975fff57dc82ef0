"""What is told of a turn: to the hooks when it begins and ends, and to settlement."""

from typing import TYPE_CHECKING

from ws_responses.instrumentation import RenderCounts, TurnFinished, TurnStarted
from ws_responses.settlement import TurnRecord
from ws_responses.turn_record import turn_record
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.repair import TurnStream

if TYPE_CHECKING:
    from ws_responses.connection import Connection
    from ws_responses.rendering.cache import Rendering
    from ws_responses.safety import SafetyTurn


class TurnFacts:
    """Tells of one turn, which begins now.

    Args:
        connection: Whose turn it is.

    Attributes:
        response_id: Id of the response as the upstream ended it; None until then.
        ran: The upstream was called.
    """

    __slots__ = ("_connection", "_first_event_at", "_started_at", "ran", "response_id")

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._started_at = connection.clock.now()
        self._first_event_at: float | None = None
        self.response_id: str | None = None
        self.ran = False

    def event_came(self) -> None:
        """Note an event of the upstream."""
        if self._first_event_at is None:
            self._first_event_at = self._connection.clock.now()

    def begun(self, info: CurrentTurn) -> None:
        """Tell the hooks that the turn may run."""
        self._connection.reporter.report(
            TurnStarted(
                connection_id=self._connection.id,
                turn_id=info.id,
                lane=info.lane,
                model=info.model,
                continues=info.parent is not None,
                warm_up=info.warm_up,
            )
        )

    def finished(
        self, info: CurrentTurn, stream: TurnStream, *, outcome: str, code: str | None, usage: bytes | None, now: float
    ) -> None:
        """Tell the hooks how the turn has ended.

        Args:
            info: The turn.
            stream: Its events.
            outcome: How.
            code: Error code, if it ended by an error.
            usage: Raw JSON of the usage.
            now: When.
        """
        self._connection.reporter.report(
            TurnFinished(
                connection_id=self._connection.id,
                turn_id=info.id,
                response_id=self._told_id(stream),
                lane=info.lane,
                model=info.model,
                warm_up=info.warm_up,
                outcome=outcome,
                code=code,
                usage=usage,
                events=stream.events,
                first_event_s=self._first_event_s,
                duration_s=now - self._started_at,
                repaired_surrogates=stream.repaired_surrogates,
                rendering=_counts(info.rendering),
                route=None if info.route is None else info.route.name,
                route_reused=info.route_reused,
            )
        )

    def record(
        self,
        info: CurrentTurn,
        stream: TurnStream,
        safety: "SafetyTurn | None",
        *,
        outcome: str,
        code: str | None,
        usage: bytes | None,
    ) -> TurnRecord:
        """Return the record that settlement is given.

        Args:
            info: The turn.
            stream: Its events.
            safety: What judges it; None if nothing does.
            outcome: How it ends.
            code: Error code, if it ends by an error.
            usage: Raw JSON of the usage; None takes what the upstream has told so far.
        """
        connection = self._connection
        return turn_record(
            info,
            safety,
            outcome=outcome,
            code=code,
            usage=usage,
            response_id=self._told_id(stream),
            ran=self.ran,
            draining=connection.registry.seats.draining,
            first_event_s=self._first_event_s,
            duration_s=connection.clock.now() - self._started_at,
            events=stream.events,
            transport="http" if connection.handshake.scope["type"] == "http" else "socket",
        )

    @property
    def _first_event_s(self) -> float | None:
        return None if self._first_event_at is None else self._first_event_at - self._started_at

    def _told_id(self, stream: TurnStream) -> str | None:
        """Id of the response as the client was told it; None if it was told none."""
        return self.response_id or (stream.response_id if stream.created else None)


def _counts(rendering: "Rendering | None") -> RenderCounts | None:
    if rendering is None:
        return None
    return RenderCounts(
        hit=rendering.hit, total=rendering.state.end, rendered=rendering.rendered, rewound=rendering.rewound
    )
