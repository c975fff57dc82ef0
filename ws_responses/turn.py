"""One turn: its way from the first step to its end, and the place where its upstream's events go."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from ws_responses.errors import StreamTruncated, WireError
from ws_responses.protocol.actions import TellSteer
from ws_responses.protocol.phases import TurnPhase
from ws_responses.protocol.turns import Turn
from ws_responses.spawn import Cancel, nothing_to_cancel
from ws_responses.turn_closing import ClosingTurn
from ws_responses.turn_faults import told
from ws_responses.turn_frames import TurnFrames
from ws_responses.turn_node import may_be_stored
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.complete import response_members
from ws_responses.upstreams.reading import is_closing
from ws_responses.upstreams.repair import TurnStream
from ws_responses.warm_up import warm_up_events

if TYPE_CHECKING:
    from ws_responses.connection import Connection


async def _discard(_: bytes) -> None:
    """Stand in for the writer when the turn is over."""


async def _discard_text(_: str) -> None:
    """Stand in for the writer when the turn is over."""


class TurnRun(ClosingTurn):
    """A running turn: its steps, and the place where its upstream's events go (the ``Emit`` contract).

    Attributes:
        cancel: Asks its task to end; set when it is started.
        on_abort: See ``Emit``.
        in_background: See ``Emit``.
    """

    _stream_type: ClassVar[type[TurnStream]] = TurnStream

    def __init__(self, connection: "Connection", turn: Turn) -> None:
        create, settings = turn.create, connection.settings
        stream = self._stream_type(
            connection.registry.ids.new("resp"),
            stream_id=create.lane,
            previous_response_id=create.previous_response_id,
            model=create.model,
            is_live=connection.is_live,
            complete=response_members(create) if settings.complete_response else None,
            strict=settings.profile == "open-responses",
            in_whole=connection.in_whole,
            max_output_bytes=connection.limits.max_request_bytes,
        )
        info = CurrentTurn(turn.id, create, connection.tenant, connection.principal)
        info.response_id = stream.response_id
        info.profile = settings.profile
        super().__init__(connection, turn, info, stream, TurnFrames(connection, turn, stream, self._event))
        self.cancel: Cancel = nothing_to_cancel
        self.on_abort: Callable[[], None] | None = None
        self.in_background = False
        self.skip = self._frames.skip
        """Takes an event that is not written."""
        self.event = stream.relay(turn, connection.writer.write_text, self._frames.relay)
        """Takes one event of the upstream (the ``Emit`` contract)."""
        self.delta = stream.trusting(turn, connection.writer.write_text, self.event)
        """Takes one event that lacks nothing (the ``Emit`` contract)."""

    # -- the steps ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the turn to its end, whatever happens."""
        try:
            await told(self._steps, self)
        finally:
            self._connection.runs.over(self)
            # These lead back to here: the history would wait for the garbage collector.
            self.event = _discard
            self.delta = _discard_text
            self._frames.let_go()
            self.cancel = nothing_to_cancel
            self.info.usage_so_far = None
            self._prepared.safety = None

    async def _steps(self) -> None:
        connection = self._connection
        await self._prepared.run(self.info, self._has_ended)
        if self._has_ended():
            return  # aborted meanwhile
        self._facts.begun(self.info)
        self.info.may_store = connection.stores and may_be_stored(self.info, self._prepared.parent)
        if self.turn.create.warm_up:
            await self._warm_up()
            return
        await self._answer()
        if not self._has_ended():
            raise StreamTruncated

    def _has_ended(self) -> bool:
        return self.ended

    async def _answer(self) -> None:
        """Let the upstream answer, behind the gate if its output is judged."""
        connection, safety = self._connection, self._prepared.safety
        self._facts.ran = True
        if safety is None:
            await connection.upstream.run(self.info, self)
            return
        await safety.run(partial(connection.upstream.run, self.info), self, stop=partial(connection.runs.stop, self))

    async def _warm_up(self) -> None:
        """Answer a turn that generates nothing."""
        prepare = getattr(self._connection.upstream, "warm_up", None)
        if prepare is not None:
            self._facts.ran = True
            await prepare(self.info)
        self.turn.heard += 1
        for event in warm_up_events(self.info, self.stream.response_id):
            await self._event(event)

    # -- events of the upstream --------------------------------------------------------------------------------------

    def alive(self) -> None:
        """Note a sign of life."""
        self.turn.heard += 1

    async def _event(self, payload: bytes) -> None:
        if self._is_over:
            await self.skip(payload)
            return
        if self._is_cut_here() and not is_closing(payload):
            await self._cut()
            return
        try:
            frames = self.stream.feed(payload)
        except WireError as error:
            await self.fail(error)
            return
        self._frames.numbered = True
        self._facts.event_came()
        if self.turn.phase is TurnPhase.RUNNING and self.stream.created:
            self._connection.perform(self._connection.session.turn_event(self.turn, self.stream.response_id))
            if not self.info.warm_up:
                self._connection.charges.proven = True
        end = self.stream.end
        if not frames and end is None:
            await self.skip(payload)
        for frame in frames:
            await self._frames.write(frame)
            if self.turn.phase is TurnPhase.ENDED:
                return  # aborted meanwhile
        if end is not None:
            await self._finish(end)
            return
        self._frames.tell_rest()

    def _is_cut_here(self) -> bool:
        """Whether the answer of a wrapped app ends before its next item, because it is steered."""
        return self.info.steered and self._connection.steering == "interrupt" and self.stream.may_be_cut

    async def _cut(self) -> None:
        """End the response here, and the app's call with it."""
        await self._finish(self.stream.cut())
        self._connection.runs.stop(self)

    def _written(self) -> None:
        self._connection.runs.trail(self)

    # -- from outside ------------------------------------------------------------------------------------------------

    def tell(self, action: TellSteer) -> None:
        """Write an event about a steer among those of the response."""
        self._frames.tell(action)

    def end_early(self) -> None:
        """Let the response end at the next border of its output."""
        self.info.steered = True

    def mute(self) -> None:
        """Let the turn run on with nobody to listen (``on_disconnect`` seconds), so that its usage becomes known."""
        self._frames.mute()

    async def keep_alive(self) -> None:
        """Send a sign of life."""
        if not self.ended:
            await self._frames.keep_alive()
