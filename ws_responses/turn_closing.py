"""How a turn ends: by its upstream, by an error, or from outside; and what follows, in a strict order."""

from typing import TYPE_CHECKING, NamedTuple

from ws_responses.errors import (
    PreviousResponseNotFound,
    ResponseCancelled,
    ResponseNotStored,
    UpstreamError,
    UpstreamTimeout,
    WireError,
    meaning_of,
)
from ws_responses.protocol import events
from ws_responses.protocol.actions import Actions
from ws_responses.protocol.phases import TurnPhase
from ws_responses.protocol.steering import NO_RESPONSE, Ending, required_input
from ws_responses.protocol.turns import Turn
from ws_responses.protocol.withheld import withheld
from ws_responses.settlement import TurnRecord
from ws_responses.state.node import ResponseNode
from ws_responses.turn_facts import TurnFacts
from ws_responses.turn_frames import TurnFrames
from ws_responses.turn_node import is_blocked
from ws_responses.turn_preparation import TurnPreparation
from ws_responses.upstreams.answers import failure_code, says_not_found
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.reading import without_output
from ws_responses.upstreams.repair import TurnStream
from ws_responses.upstreams.turn_end import TurnEnd

if TYPE_CHECKING:
    from ws_responses.connection import Connection


class _Close(NamedTuple):
    """How a turn ends."""

    frame: bytes | None
    outcome: str
    code: str | None
    usage: bytes | None

    def __repr__(self) -> str:
        return withheld(self)


class ClosingTurn:
    """A turn as far as its end goes: there is one, whoever brings it about, and it is told once.

    Args:
        connection: Whose turn it is.
        turn: Its protocol state.
        info: What its upstream may know of it.
        stream: Its events.
        frames: What is written of it.

    Attributes:
        ended: The closing event is written or on its way.
    """

    def __init__(
        self, connection: "Connection", turn: Turn, info: CurrentTurn, stream: TurnStream, frames: TurnFrames
    ) -> None:
        self.turn = turn
        self.info = info
        self.stream = stream
        self.ended = False
        self._connection = connection
        self._frames = frames
        self._prepared = TurnPreparation(connection, turn)
        self._facts = TurnFacts(connection)
        self._settled = connection.settling is None
        self._closing: _Close | None = None
        self._storing: TurnEnd | None = None
        self._takes_back = False
        self._ending = NO_RESPONSE

    @property
    def is_private(self) -> bool:
        """See ``CurrentTurn``."""
        return self.info.is_private

    @property
    def _is_over(self) -> bool:
        """Whether its end is decided, or about to be."""
        return self.ended or self._closing is not None or self._storing is not None

    # -- by an error, or from outside --------------------------------------------------------------------------------

    async def fail(self, error: WireError) -> None:
        """End the turn by an error: one closing event, and the parent evicted if the turn had run on its lane."""
        if self._is_over:
            return
        self._tell_router(error)
        if error.ran:
            self._prepared.origin.evict(self.info.lane)
        error = self._by_its_name(error)
        self._ending = Ending(message=error.message)
        await self._end(self._failure(error), "error" if not self.stream.created else "failed", error.code)

    def _by_its_name(self, error: WireError) -> WireError:
        """Return the error; where the app has lost what it was to go on from, the one by which clients know what to do."""
        parent_id, forwarded = self.turn.create.previous_response_id, self.info.forwarded
        if parent_id is None or forwarded is None or not says_not_found(error, forwarded):
            return error
        return PreviousResponseNotFound(parent_id)

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

    def _cut_off(self, error: WireError | None) -> _Close:
        """Return how the turn ends that is ended from outside."""
        usage = None if self._storing is None else self._storing.usage
        if error is None:
            return _Close(None, "gone", None, usage)
        if isinstance(error, UpstreamError):
            self._tell_router(error)
        frame = self._failure(error)
        self._ending = Ending(message=error.message)
        if error.ran:
            self._prepared.origin.evict(self.info.lane)
        self._takes_back = self._storing is not None
        return _Close(frame, "aborted", error.code, usage)

    def _tell_router(self, error: WireError | None) -> None:
        if self._facts.ran:
            self._prepared.tell_router(self.info, error)

    # -- by its upstream ---------------------------------------------------------------------------------------------

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
        store = self._connection.store
        return store is None or await store.store(node)

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

    # -- what follows ------------------------------------------------------------------------------------------------

    async def _end(self, frame: bytes | None, outcome: str, code: str | None, usage: bytes | None = None) -> None:
        if self.ended:
            return
        connection = self._connection
        if connection.settling is not None and connection.settling.before_terminal:
            # Before the lane is free: what its next turn writes must come after this. And nothing else of its upstream may: an
            # app can have more than one task.
            self._settled, self._closing = True, _Close(frame, outcome, code, usage)
            await connection.settling.settle(self._turn_record(outcome, code, usage))
            if self.turn.phase is TurnPhase.ENDED:
                return  # aborted meanwhile
        write = self._frames.write
        actions = self._settle(outcome, code, usage)
        await self._frames.close(write, frame, actions)
        self._written()

    def _written(self) -> None:
        """Be told that the closing event is written, unless it was brought about from outside."""

    def _settle(self, outcome: str, code: str | None, usage: bytes | None = None) -> Actions:
        connection = self._connection
        self.ended = True
        self._frames.seal()
        now = connection.clock.now()
        self._prepared.give_back()  # before the lane is free: its next turn takes a place
        actions = connection.session.turn_ended(self.turn, now, self._ending)
        connection.turn_over(self.turn)
        if not (self._settled or self._prepared.admission.held_up) and connection.settling is not None:
            self._settled = True
            connection.settling.submit(self._turn_record(outcome, code, usage))
        self._facts.finished(self.info, self.stream, outcome=outcome, code=code, usage=usage, now=now)
        return actions

    def _turn_record(self, outcome: str, code: str | None, usage: bytes | None) -> TurnRecord:
        return self._facts.record(
            self.info, self.stream, self._prepared.safety, outcome=outcome, code=code, usage=usage
        )
