"""One turn, step by step, from its create to its closing event."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from ws_responses.errors import (
    ResponseCancelled,
    ResponseNotStored,
    StreamTruncated,
    UpstreamError,
    UpstreamTimeout,
    WireError,
    meaning_of,
)
from ws_responses.protocol import events
from ws_responses.protocol.actions import Actions, TellSteer
from ws_responses.protocol.phases import TurnPhase
from ws_responses.protocol.steering import NO_RESPONSE, Ending, required_input
from ws_responses.protocol.turns import Turn
from ws_responses.protocol.withheld import withheld
from ws_responses.settlement import TurnRecord
from ws_responses.spawn import Cancel
from ws_responses.state.node import ResponseNode
from ws_responses.turn_facts import TurnFacts
from ws_responses.turn_faults import told
from ws_responses.turn_frames import TurnFrames
from ws_responses.turn_node import is_blocked, may_be_stored
from ws_responses.turn_preparation import TurnPreparation
from ws_responses.upstreams.answers import failure_code
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.complete import response_members
from ws_responses.upstreams.reading import is_closing, without_output
from ws_responses.upstreams.repair import TurnStream
from ws_responses.upstreams.turn_end import TurnEnd
from ws_responses.warm_up import warm_up_events

if TYPE_CHECKING:
    from ws_responses.connection import Connection


def _nothing_to_cancel() -> None:
    """Stand in for the task's ``cancel`` before it is started."""


async def _discard(_: bytes) -> None:
    """Stand in for the writer when the turn is over."""


async def _discard_text(_: str) -> None:
    """Stand in for the writer when the turn is over."""


class _End(NamedTuple):
    """How a turn ends."""

    frame: bytes | None
    outcome: str
    code: str | None
    usage: bytes | None

    def __repr__(self) -> str:
        return withheld(self)


class TurnRun:
    """A running turn: its steps, and the place where its upstream's events go (the ``Emit`` contract).

    Attributes:
        turn: Its protocol state.
        cancel: Asks its task to end; set when it is started.
        ended: The closing event is written or on its way.
        on_abort: See ``Emit``.
        in_background: See ``Emit``.
    """

    _stream_type: ClassVar[type[TurnStream]] = TurnStream

    def __init__(self, connection: "Connection", turn: Turn) -> None:
        create = turn.create
        self.turn = turn
        self.cancel: Cancel = _nothing_to_cancel
        self.ended = False
        self.on_abort: Callable[[], None] | None = None
        self.in_background = False
        self.info = CurrentTurn(turn.id, create, connection.tenant, connection.principal)
        self._connection = connection
        self._prepared = TurnPreparation(connection, turn)
        self._facts = TurnFacts(connection)
        self._settled = connection.settling is None
        self._closing: _End | None = None
        self._storing: TurnEnd | None = None
        self._takes_back = False
        self._ending = NO_RESPONSE
        self.stream = self._stream_type(
            connection.registry.ids.new("resp"),
            stream_id=create.lane,
            previous_response_id=create.previous_response_id,
            model=create.model,
            is_live=connection.is_live,
            complete=response_members(create) if connection.settings.complete_response else None,
            strict=connection.settings.profile == "open-responses",
            in_whole=connection.in_whole,
            max_output_bytes=connection.limits.max_request_bytes,
        )
        self.info.response_id = self.stream.response_id
        self.info.profile = connection.settings.profile
        self._frames = TurnFrames(connection, turn, self.stream, self._event)
        self.skip = self._frames.skip
        """Takes an event that is not written."""
        self.event = self.stream.relay(turn, connection.writer.write_text, self._frames.relay)
        """Takes one event of the upstream (the ``Emit`` contract)."""
        self.delta = self.stream.trusting(turn, connection.writer.write_text, self.event)
        """Takes one event that lacks nothing (the ``Emit`` contract)."""

    @property
    def is_private(self) -> bool:
        """See ``CurrentTurn``."""
        return self.info.is_private

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
            self.cancel = _nothing_to_cancel
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

    def _tell_router(self, error: WireError | None) -> None:
        if self._facts.ran:
            self._prepared.tell_router(self.info, error)

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

    # -- steering ----------------------------------------------------------------------------------------------------

    def tell(self, action: TellSteer) -> None:
        """Write an event about a steer among those of the response."""
        self._frames.tell(action)

    def end_early(self) -> None:
        """Let the response end at the next border of its output."""
        self.info.steered = True

    async def fail(self, error: WireError) -> None:
        """End the turn by an error: one closing event, and the parent evicted if the turn had run on its lane."""
        if self._is_over:
            return
        self._tell_router(error)
        if error.ran:
            self._prepared.origin.evict(self.info.lane)
        self._ending = Ending(message=error.message)
        await self._end(self._failure(error), "error" if not self.stream.created else "failed", error.code)

    def _failure(self, error: WireError) -> bytes | None:
        """Return the closing frame; None for a response that nobody knows of: what it was to begin with is given back."""
        return None if self.turn.automatic and not self.stream.created else self.stream.fail(error)

    def abort(self, error: WireError | None) -> None:
        """End the turn from outside, at once; does nothing if it has ended.

        Args:
            error: What the client is told; None if nobody listens. An error of the upstream evicts the parent.
        """
        if self.ended:
            return
        end = self._closing
        if end is None:
            end = self._cut_off(error)
        actions = self._settle(end.outcome, end.code, end.usage)
        # One that was over but for its record has ended as that says, and so its client is told.
        self._frames.post_last(None if error is None else end.frame, actions)

    def comes_too_late(self, error: WireError | None) -> bool:
        """Whether an error that ends this turn alone finds it over: its end is decided, and is being stored or settled.

        What was told instead would not be true of what the store, or the books, have by then. Both have time limits of their
        own, so that the client does not wait for ever.
        """
        decided = self._closing is not None or self._storing is not None
        return decided and not self.ended and isinstance(error, ResponseCancelled | UpstreamTimeout)

    def _cut_off(self, error: WireError | None) -> "_End":
        """Return how the turn ends that is ended from outside."""
        usage = None if self._storing is None else self._storing.usage
        if error is None:
            return _End(None, "gone", None, usage)
        if isinstance(error, UpstreamError):
            self._tell_router(error)
        frame = self._failure(error)
        self._ending = Ending(message=error.message)
        if error.ran:
            self._prepared.origin.evict(self.info.lane)
        self._takes_back = self._storing is not None
        return _End(frame, "aborted", error.code, usage)

    def mute(self) -> None:
        """Let the turn run on with nobody to listen (``on_disconnect`` seconds), so that its usage becomes known."""
        self._frames.mute()

    async def keep_alive(self) -> None:
        """Send a sign of life."""
        if not self.ended:
            await self._frames.keep_alive()

    # -- the end -----------------------------------------------------------------------------------------------------

    async def _finish(self, end: TurnEnd) -> None:
        """Collect, commit, store, free the lane, write: in this order, so that a fast client finds its parent."""
        code = None
        if end.kind == events.FAILED:
            self._prepared.origin.evict(self.info.lane)
            code = failure_code(end.frame)
            self._tell_router(WireError("The response failed.", code=code, status=meaning_of(code)[0]))
        elif self._may_go_on(end):
            self._tell_router(None)
            node = self._commit(end)
            if not await self._store(node, end):
                await self._not_stored(end, node)
                return
            self._ending = Ending(
                status=end.status,
                continuable=node is not None,
                required=() if node is None else required_input(node.record.calls, end.items),
            )
        self._facts.response_id = end.response_id
        await self._end(end.frame, end.status, code, end.usage)

    async def _store(self, node: ResponseNode | None, end: TurnEnd) -> bool:
        """Hand the node to the store; return whether the client may be told of a success."""
        if node is None:
            return not (self._connection.settings.durable and self.info.may_store)
        self._storing = end  # nothing else of the upstream may end the turn meanwhile
        try:
            return await self._store_nodes(node)
        finally:
            self._storing = None
            if self._takes_back:
                self._connection.take_back(node)

    async def _store_nodes(self, node: ResponseNode) -> bool:
        return await self._connection.store_node(node)

    async def _not_stored(self, end: TurnEnd, node: ResponseNode | None) -> None:
        """End a turn by a failure, because its response must be stored and is not."""
        if self.ended:
            return  # aborted meanwhile
        error = ResponseNotStored()
        if node is not None:
            self._connection.take_back(node)  # what was late, or lost its answer, may be in the store all the same
        self._prepared.origin.evict(self.info.lane)
        self._ending = Ending(message=error.message)
        self._facts.response_id = end.response_id
        await self._end(self._failure(error), "failed", error.code, end.usage)

    @property
    def _is_over(self) -> bool:
        """Whether its end is decided, or about to be."""
        return self.ended or self._closing is not None or self._storing is not None

    async def _end(self, frame: bytes | None, outcome: str, code: str | None, usage: bytes | None = None) -> None:
        if self.ended:
            return
        connection = self._connection
        if connection.settling is not None and connection.settling.before_terminal:
            # Before the lane is free: what its next turn writes must come after this. And nothing else of its upstream may: an
            # app can have more than one task.
            self._settled, self._closing = True, _End(frame, outcome, code, usage)
            await connection.settling.settle(self._turn_record(outcome, code, usage))
            if self.turn.phase is TurnPhase.ENDED:
                return  # aborted meanwhile
        write = self._frames.write
        actions = self._settle(outcome, code, usage)
        await self._frames.close(write, frame, actions)
        connection.runs.trail(self)

    def _settle(self, outcome: str, code: str | None, usage: bytes | None = None) -> Actions:
        connection = self._connection
        self.ended = True
        self._frames.seal()
        now = connection.clock.now()
        self._prepared.give_back()  # before the lane is free: its next turn takes a place
        actions = connection.session.turn_ended(self.turn, now, self._ending)
        connection.turn_over(self)
        if not (self._settled or self._prepared.admission.held_up) and connection.settling is not None:
            self._settled = True
            connection.settling.submit(self._turn_record(outcome, code, usage))
        self._facts.finished(self.info, self.stream, outcome=outcome, code=code, usage=usage, now=now)
        return actions

    def _turn_record(self, outcome: str, code: str | None, usage: bytes | None) -> TurnRecord:
        return self._facts.record(
            self.info, self.stream, self._prepared.safety, outcome=outcome, code=code, usage=usage
        )

    def _may_go_on(self, end: TurnEnd) -> bool:
        """Whether the response can be continued; of one that was blocked there is only what was sent."""
        connection = self._connection
        if not is_blocked(self._prepared.safety):
            return True
        self.info.forget_answer(without_output(end.frame))
        assert connection.settings.safety is not None
        if not connection.settings.safety.continue_blocked:
            connection.registry.block(connection.tenant, end.response_id)
        return connection.settings.safety.continue_blocked

    def _commit(self, end: TurnEnd) -> ResponseNode | None:
        """Make the node of this turn resolvable; None if the budgets have no room for it."""
        node = self._prepared.make_node(self.info, end)
        if node is not None:
            self._connection.cache.add(node)
        return node
