"""One connection: what its session wants is carried out, and its turns find here what they need."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyio.abc import TaskGroup

from ws_responses._types import Send
from ws_responses.charges import Charges
from ws_responses.errors import Forbidden, Unavailable, WireError
from ws_responses.flag import Flag
from ws_responses.forks import pin_fork, unpin_fork
from ws_responses.handshake import Handshake
from ws_responses.instrumentation import FrameRefused
from ws_responses.outbox import Outbox
from ws_responses.protocol.actions import (
    AbortTurn,
    Action,
    Close,
    DropTurn,
    EndEarly,
    KeepAlive,
    ResumeTurn,
    StartTurn,
    TellSteer,
    TurnQueued,
)
from ws_responses.protocol.actions import Send as SendFrame
from ws_responses.protocol.events import encode_error
from ws_responses.protocol.phases import TurnPhase
from ws_responses.protocol.turns import Turn
from ws_responses.rollout import RolloutRun
from ws_responses.runs import Runs
from ws_responses.session_options import new_session, rolls, steering_of
from ws_responses.settlement import Settling
from ws_responses.state.cache import ConnectionCache
from ws_responses.state.node import ResponseNode
from ws_responses.store_access import StoreAccess
from ws_responses.time_limits import look_every_s, next_look
from ws_responses.turn import TurnRun
from ws_responses.upstreams.base import Principal, Upstream
from ws_responses.upstreams.bodies import History
from ws_responses.watchdog import Watchdog
from ws_responses.writer import Writer

if TYPE_CHECKING:
    from ws_responses.registry import Registry


class Connection:
    """Everything of one accepted socket.

    Args:
        registry: What the connections of a middleware share.
        handshake: The upgrade request.
        tenant: Who owns its chains.
        anonymous: The tenant is this connection; nothing of it resolves elsewhere.
        principal: As ``authorize`` said at the upgrade.
        upstream: What answers its turns.
        history: What a wrapped app is given of a conversation.
        in_whole: The peer is shown no more of a turn than its end.
    """

    __slots__ = (
        "_busy_until",
        "_look_every_s",
        "_outbox",
        "_over",
        "_store",
        "_tasks",
        "_watchdog",
        "anonymous",
        "cache",
        "charges",
        "clock",
        "handshake",
        "history",
        "id",
        "in_whole",
        "limits",
        "opened_at",
        "principal",
        "registry",
        "reporter",
        "runs",
        "session",
        "settings",
        "settling",
        "steering",
        "stores",
        "tenant",
        "turns",
        "upstream",
        "writer",
    )

    def __init__(
        self,
        registry: "Registry",
        handshake: Handshake,
        send: Send,
        *,
        tenant: str,
        anonymous: bool,
        principal: Principal | None,
        upstream: Upstream,
        history: History,
        in_whole: bool = False,
    ) -> None:
        settings = registry.settings
        self.id = registry.ids.new("conn")
        self.registry = registry
        self.settings = settings
        self.limits = settings.limits
        self.clock = settings.clock
        self.reporter = registry.reporter
        self.handshake = handshake
        self.tenant = tenant
        self.anonymous = anonymous
        self.principal = principal
        self.upstream = upstream
        self.history: History = history
        self.in_whole = in_whole
        self.stores = registry.chains.store is not None and not anonymous
        self.cache = ConnectionCache(registry.ledger)
        self.charges = Charges(registry.ledger, tenant, self.cache, self.limits)
        self.opened_at = self.clock.now()
        self.session = new_session(settings, handshake, upstream, registry.ids, self.opened_at)
        self.steering = steering_of(settings, handshake, upstream)
        self.writer = Writer(send, self.clock.now)
        self.turns: dict[Turn, TurnRun] = {}
        self._outbox: Outbox | None = None
        self._store: StoreAccess | None = None
        self._over = Flag()
        self._watchdog = Watchdog(self.clock, self._look)
        self.runs = Runs(self.clock, self.limits, self.writer, self._watchdog, self._over)
        self._busy_until = 0.0
        self._look_every_s = look_every_s(self.session, self.limits)
        self.settling: Settling | None = None
        self._tasks: TaskGroup

    # -- life --------------------------------------------------------------------------------------------------------

    def open(self, tasks: TaskGroup) -> None:
        """Let tasks of it be started: the watchdog, and those of turns."""
        self._tasks = tasks
        self.runs.open(tasks)
        if self.registry.settler is not None:
            self.settling = Settling(self.registry.settler, self.runs.spawn)
        self._watchdog.start(tasks)
        if self.registry.seats.draining:
            self.retire()

    def release(self) -> None:
        """Let the tasks end that wait for its end: the traceback of a cancelled task would lead back to here."""
        self._over.set()
        if self._outbox is not None:
            self._outbox.close_written.set()

    def stop(self) -> None:
        """Let nothing of it run any more."""
        self._watchdog.stop()
        self.runs.cancel()

    def _look(self, now: float) -> float:
        """Look at all time limits of the connection; return when to look again."""
        self.perform(self.session.tick(now, self.writer.blocked_since))
        self.runs.end_trailing(now)
        return next_look(self.session, self.runs, self.writer, self.limits, now, busy_until=self._busy_until)

    # -- actions -----------------------------------------------------------------------------------------------------

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out what the session wants; never waits, so that the reader never does."""
        for action in actions:
            if type(action) is StartTurn:
                self._start(action.turn)
            elif type(action) is SendFrame:
                self._answer(action)
            elif type(action) is TurnQueued:
                pin_fork(self.cache, action.turn)
            elif type(action) is DropTurn:
                unpin_fork(self.cache, action.turn)
            elif type(action) is Close:
                self.outbox.close(action)
            elif type(action) is AbortTurn:
                self._abort_turn(action.turn, action.error)
            elif type(action) in (KeepAlive, TellSteer, EndEarly, ResumeTurn):
                self._tell_run(action)

    def _tell_run(self, action: Action) -> None:
        assert isinstance(action, KeepAlive | TellSteer | EndEarly | ResumeTurn)
        run = self.turns.get(action.turn)
        if run is None:
            return
        if type(action) is KeepAlive:
            self._tasks.start_soon(run.keep_alive)
        elif type(action) is TellSteer:
            run.tell(action)
        elif type(action) is ResumeTurn:
            assert isinstance(run, RolloutRun)
            run.resume(action.appended)
            self._watch_runs()
        else:
            run.end_early()

    def _start(self, turn: Turn) -> None:
        if turn.phase is TurnPhase.ENDED:
            return  # a hook was told that another turn is over, and closed the connection
        if turn.pin is None:
            pin_fork(self.cache, turn)
        unpin_fork(self.cache, turn, keep=True)
        as_rollout = turn.injects or (rolls(self.settings, self.handshake) and not turn.create.warm_up)
        run = RolloutRun(self, turn) if as_rollout else TurnRun(self, turn)
        self.turns[turn] = run
        self.runs.start(run)
        self._watch_runs()

    def _watch_runs(self) -> None:
        self._busy_until = self.clock.now() + self._look_every_s
        self._watchdog.look_by(self._busy_until)

    def look_soon(self) -> None:
        """Look at the time limits anew: a rollout waits for its client (for ``RolloutRun``)."""
        self._watchdog.look_by(self.session.next_deadline())

    def _abort_turn(self, turn: Turn, error: WireError | None) -> None:
        run = self.turns.get(turn)
        if run is not None and run.comes_too_late(error):
            run.alive()  # the upstream is not silent: it has answered
        elif run is not None:
            self.runs.abort(run, error)
        elif turn.phase is not TurnPhase.ENDED:
            # It was to start by an action that comes after this one.
            self.perform(self.session.turn_ended(turn, self.clock.now()))
            if error is not None and not turn.automatic:
                self.outbox.put(encode_error(error, stream_id=turn.lane.name))

    def turn_over(self, turn: Turn) -> None:
        """Note that a turn has ended although its call may still run (for ``TurnRun``)."""
        self.turns.pop(turn, None)

    # -- our own frames ----------------------------------------------------------------------------------------------

    @property
    def outbox(self) -> Outbox:
        """Frames of ours; made with the first of them, since most connections never have one."""
        if self._outbox is None:
            self._outbox = Outbox(self.writer, self._tasks, self.clock, self.limits, self._watchdog, self._over)
        return self._outbox

    @property
    def close_sent(self) -> int | None:
        """Code of its close frame, once that is on its way."""
        return None if self._outbox is None else self._outbox.close_sent

    def _answer(self, action: SendFrame) -> None:
        """Queue an answer to what the client sent: only so many may wait for it to read them."""
        if not action.notice:
            self.reporter.report(FrameRefused(connection_id=self.id, code=_code_of(action.frame)))
        if self.outbox.has_room(action.frame):
            self.outbox.put(action.frame)
            return
        self.writer.cut_off()
        self.perform(self.session.close(1008, "client does not read"))

    # -- what turns ask for ------------------------------------------------------------------------------------------

    @property
    def store(self) -> StoreAccess | None:
        """The store; None if nothing of this connection is stored."""
        if self._store is None and self.stores:
            self._store = StoreAccess(
                self.registry.chains,
                self.cache,
                self.charges,
                self.runs,
                self._tasks,
                self.reporter,
                tenant=self.tenant,
                durable=self.settings.durable,
            )
        return self._store

    async def resolve(self, response_id: str, lane: str | None) -> ResponseNode | None:
        """Return the node of an id: from this connection, else from the store; None if there is none."""
        node = self.cache.get(response_id)
        if node is not None or self.store is None:
            return node
        return await self.store.resolve(response_id, lane)

    def take_back(self, node: ResponseNode) -> None:
        """Forget a node whose client is told of a failure; the store, which may have it already, by a task of its own."""
        self.cache.fail(node.id)
        if self.store is not None:
            self.store.take_back(node)

    async def stored(self) -> None:
        """Return when what is to be stored has been written."""
        if self._store is not None:
            await self._store.written()

    def is_live(self, response_id: str) -> bool:
        """Whether an id names another response here, finished or in the making."""
        return response_id in self.cache or any(run.stream.response_id == response_id for run in self.turns.values())

    # -- the operator ------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Take no more turns; close when the running ones are over (``drain``)."""
        error = Unavailable("This server is shutting down. Connect again.", headers={"retry-after": "1"})
        self.perform(
            self.session.retire(
                self.clock.now(),
                error=error,
                close_code=1012,
                reason="service restart",
                grace_s=self.limits.age_grace_s,
            )
        )
        self._watchdog.look_by(self.clock.now())

    def disconnect(self, reason: str) -> None:
        """Close at once; running turns are told."""
        self.perform(self.session.close(1008, reason, error=Forbidden("The connection was ended by the operator.")))


def _code_of(frame: bytes) -> str:
    _, _, rest = frame.partition(b'"code":"')
    return rest.partition(b'"')[0].decode()
