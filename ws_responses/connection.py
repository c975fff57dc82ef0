"""One socket: its reader, its watchdog, its turns, and their end."""

import contextvars
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import anyio
from anyio.abc import TaskGroup

from ws_responses._types import Message, Receive, Send
from ws_responses.errors import Forbidden, Refused, Unauthorized, Unavailable, WireError
from ws_responses.flag import Flag
from ws_responses.handshake import Handshake
from ws_responses.instrumentation import ConnectionClosed, ConnectionOpened, FrameRefused
from ws_responses.outbox import Outbox
from ws_responses.protocol import injecting
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
from ws_responses.protocol.creates import ResponseCreate
from ws_responses.protocol.events import encode_error
from ws_responses.protocol.phases import TurnPhase
from ws_responses.protocol.session import Session
from ws_responses.protocol.turns import Turn
from ws_responses.rollout import RolloutRun, Step
from ws_responses.settings import Steering
from ws_responses.settlement import Settling
from ws_responses.spawn import Spawner
from ws_responses.state.budget import Budget
from ws_responses.state.cache import ConnectionCache
from ws_responses.state.interning import Interner
from ws_responses.state.node import ResponseNode
from ws_responses.storing import StoreQueue
from ws_responses.turn import TurnRun
from ws_responses.turn_record import Transport
from ws_responses.upstreams.base import Principal, Upstream
from ws_responses.upstreams.bodies import History
from ws_responses.watchdog import Watchdog
from ws_responses.writer import Writer

if TYPE_CHECKING:
    from ws_responses.registry import Registry

logger = logging.getLogger("ws_responses.connection")

_NO_STATUS = 1005
"""RFC 6455, 7.1.5: no close code was received."""


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
        "_budget",
        "_busy_until",
        "_by_turn",
        "_charged",
        "_idle",
        "_interner",
        "_look_every_s",
        "_opened_at",
        "_outbox",
        "_over",
        "_receive",
        "_rolls",
        "_runs",
        "_spawner",
        "_storing",
        "_tasks",
        "_trailing",
        "_warm_up_bytes",
        "_watchdog",
        "account",
        "anonymous",
        "cache",
        "clock",
        "handshake",
        "history",
        "id",
        "in_whole",
        "limits",
        "principal",
        "proven",
        "registry",
        "reporter",
        "session",
        "settings",
        "settling",
        "steering",
        "stores",
        "tenant",
        "upstream",
        "writer",
    )

    def __init__(
        self,
        registry: "Registry",
        handshake: Handshake,
        receive: Receive,
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
        self.account = registry.ledger.account(tenant)
        self.cache = ConnectionCache(registry.ledger)
        self.proven = False
        self._budget = Budget(self.limits.max_connection_bytes)
        self._interner: Interner | None = None
        self._opened_at = self.clock.now()
        self._rolls = settings.prototype and handshake.scope["type"] == "websocket"
        self.session = Session(
            self.limits,
            now=self._opened_at,
            turn_ids=registry.ids.new_turn,
            accept_wrapped=settings.accept_wrapped,
            accept_cancel=settings.accept_cancel,
            keepalive_s=settings.keepalive_s,
            age_notice=settings.age_notice,
            lanes=settings.profile == "openai",
            steer_ids=registry.ids.new_steer,
            appends=self._rolls,
            injects=self._takes_injections(upstream),
        )
        self.steering = self._steering_of(upstream)
        self.writer = Writer(send, self.clock.now)
        self._receive = receive
        self._runs: dict[TurnRun | Step, None] = {}  # an empty dict takes a quarter of an empty set
        self._by_turn: dict[Turn, TurnRun] = {}
        self._trailing: dict[TurnRun | Step, float] = {}
        self._outbox: Outbox | None = None
        self._storing: StoreQueue | None = None
        self._warm_up_bytes = 0
        self._charged: dict[bool, tuple[Budget, ...]] = {}
        self._over = Flag()
        self._watchdog = Watchdog(self.clock, self._look)
        self._busy_until = 0.0
        send_s = self.limits.send_timeout_s
        self._look_every_s = min(
            self.limits.trailing_timeout_s, self.session.look_every_s, float("inf") if send_s is None else send_s / 4
        )
        self._idle: anyio.Event | None = None
        self.settling: Settling | None = None
        self._tasks: TaskGroup
        self._spawner: Spawner

    def _steering_of(self, upstream: Upstream) -> Steering | None:
        """Return how its responses are steered; None if they are not."""
        if self.settings.profile != "openai" or self.handshake.scope["type"] == "http":
            return None
        return "native" if getattr(upstream, "steers", False) else self.settings.steering

    def _takes_injections(self, upstream: Upstream) -> bool:
        """Whether its responses can take tool outputs while they run: the client asks for it, and the upstream can wait."""
        if self.settings.profile != "openai" or self.handshake.scope["type"] == "http":
            return False
        return getattr(upstream, "injects", False) and injecting.is_served(
            self.handshake.headers.get("openai-beta", "")
        )

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve the socket to its end; nothing of it runs on when this returns."""
        self.registry.add(self)
        self.account.caches.add(self.cache)
        self.reporter.report(
            ConnectionOpened(
                connection_id=self.id, path=self.handshake.path, transport=str(self.handshake.scope["type"])
            )
        )
        code = 1006
        try:
            async with anyio.create_task_group() as self._tasks:
                self._spawner = Spawner(self._tasks, contextvars.copy_context())
                if self.registry.settler is not None:
                    self.settling = Settling(self.registry.settler, self._spawner.spawn)
                self._watchdog.start(self._tasks)
                if self.registry.seats.draining:
                    self.retire()
                try:
                    code = await self._read()
                finally:
                    try:
                        with anyio.CancelScope(shield=True):
                            await self._wind_up()
                    finally:
                        # Also if the server does not wait for all that, but cancels once more.
                        self._watchdog.stop()
                        for run in self._runs:
                            run.cancel()
                    self._tasks.cancel_scope.cancel()
        finally:
            self._forget()
            self.reporter.report(
                ConnectionClosed(
                    connection_id=self.id,
                    transport=str(self.handshake.scope["type"]),
                    code=self._close_sent() or code,
                    by_client=self._close_sent() is None,
                    duration_s=self.clock.now() - self._opened_at,
                    turns=self.session.turns_started,
                )
            )

    async def _read(self) -> int:
        """Hand every frame to the session at once; always wait in ``receive``, also during turns (asgi fact 1)."""
        receive = self._receive
        while True:
            # No variable here may hold the message: it would stay in memory until the next one comes.
            code = self._take(await receive())
            if code is not None:
                return code

    def _take(self, message: Message) -> int | None:
        """Hand on one message of the server; return the close code if it is the last."""
        kind = message["type"]
        if kind == "websocket.receive":
            text = message.get("text")
            data = text if text is not None else message.get("bytes")
            if data is not None:
                self.perform(self.session.frame_received(data, self.clock.now()))
        elif kind == "websocket.disconnect":
            return int(message.get("code") or _NO_STATUS)
        return None

    def _look(self, now: float) -> float:
        """Look at all time limits of the connection; return when to look again."""
        self.perform(self.session.tick(now, self.writer.blocked_since))
        self._end_trailing(now)
        return self._next_look(now)

    def _next_look(self, now: float) -> float:
        limits = self.limits
        at = min((self.session.next_deadline(), *self._trailing.values()))
        if self.session.running or self._trailing:
            at = min(at, now + limits.trailing_timeout_s)
        if limits.send_timeout_s is not None:
            if self.session.running or self._trailing:
                at = min(at, now + limits.send_timeout_s / 4)
            if self.writer.blocked_since is not None:
                at = min(at, self.writer.blocked_since + limits.send_timeout_s)
        if self._busy_until > now:
            # A chain of short turns would otherwise wake the watchdog for each of them, to find that it is over.
            at = min(at, self._busy_until)
        return max(at, now)

    async def _wind_up(self) -> None:
        """End all turns: disconnect, grace, cancellation, bounded waits."""
        limits = self.limits
        drain_s = self.settings.on_disconnect_s
        actions = self.session.peer_gone()
        self.writer.finish()
        await self.writer.let_go()
        if drain_s and self._close_sent() is None:
            for run in self._runs:
                run.mute()
            await self._wait_for_runs(drain_s)
        self.perform([action for action in actions if not isinstance(action, AbortTurn)])
        for run in list(self._runs):
            self._tell_gone(run)
        if any(not run.in_background for run in self._runs):
            await self._wait_for_runs(limits.disconnect_grace_s, background=False)
        for run in self._runs:
            if not run.in_background:
                run.cancel()
        await self._wait_for_runs(limits.abort_timeout_s, background=False)
        await self._wait_for_runs(limits.background_timeout_s)
        if self._storing is not None:
            self._storing.give_up()
        for run in self._runs:
            run.cancel()
        await self._wait_for_runs(limits.abort_timeout_s)
        if self.settling is not None:
            await self.settling.drain()
        # The helpers end by themselves: the traceback of a cancelled task would lead back to here.
        self._over.set()
        if self._outbox is not None:
            self._outbox.close_written.set()
        if self._runs:
            logger.error("connection %s: %d app calls ignore cancellation", self.id, len(self._runs))

    async def _wait_for_runs(self, seconds: float, *, background: bool = True) -> None:
        """Wait until no call runs (or only background work does), but not for longer than ``seconds``."""
        with self.clock.move_on_after(seconds):
            while (background and self._is_storing()) or any(background or not run.in_background for run in self._runs):
                self._idle = anyio.Event()
                await self._idle.wait()
        self._idle = None

    def _forget(self) -> None:
        """Give the memory back at once: what is not stored is gone."""
        registry = self.registry
        ids = self.cache.ids()
        self.cache.clear()
        if self._interner is not None:
            self._interner.clear()
        self.account.caches.discard(self.cache)
        self._by_turn.clear()
        registry.remove(self)
        if self.settings.on_close is not None and ids:
            try:
                self.settings.on_close(ids)
            except Exception:
                logger.exception("on_close raised")

    # -- actions -----------------------------------------------------------------------------------------------------

    def perform(self, actions: Sequence[Action]) -> None:
        """Carry out what the session wants; never waits, so that the reader never does."""
        for action in actions:
            if type(action) is StartTurn:
                self._start(action.turn)
            elif type(action) is SendFrame:
                self._answer(action)
            elif type(action) is TurnQueued:
                self._pin_fork(action.turn)
            elif type(action) is DropTurn:
                self._unpin_fork(action.turn)
            elif type(action) is Close:
                self._close(action)
            elif type(action) is AbortTurn:
                self._abort_turn(action.turn, action.error)
            elif type(action) in (KeepAlive, TellSteer, EndEarly, ResumeTurn):
                self._tell_run(action)

    def _tell_run(self, action: Action) -> None:
        assert isinstance(action, KeepAlive | TellSteer | EndEarly | ResumeTurn)
        run = self._by_turn.get(action.turn)
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
            self._pin_fork(turn)
        self._unpin_fork(turn, keep=True)
        rolls = turn.injects or (self._rolls and not turn.create.warm_up)
        run = RolloutRun(self, turn) if rolls else TurnRun(self, turn)
        self._runs[run] = None
        self._by_turn[turn] = run
        # Each turn gets its own copy of the upgrade's context, whoever starts it: nothing leaks from turn to turn.
        run.cancel = self._spawner.spawn(run.run)
        self._watch_runs()

    def _watch_runs(self) -> None:
        self._busy_until = self.clock.now() + self._look_every_s
        self._watchdog.look_by(self._busy_until)

    def run_step(self, step: Step) -> None:
        """Start the call of one step of a rollout (for ``RolloutRun``)."""
        self._runs[step] = None
        step.cancel = self._spawner.spawn(step.run)

    def look_soon(self) -> None:
        """Look at the time limits anew: a rollout waits for its client (for ``RolloutRun``)."""
        self._watchdog.look_by(self.session.next_deadline())

    def _abort_turn(self, turn: Turn, error: WireError | None) -> None:
        run = self._by_turn.get(turn)
        if run is not None:
            self._abort(run, error)
        elif turn.phase is not TurnPhase.ENDED:
            # It was to start by an action that comes after this one.
            self.perform(self.session.turn_ended(turn, self.clock.now()))
            if error is not None and not turn.automatic:
                self.post(encode_error(error, stream_id=turn.lane.name))

    def _abort(self, run: TurnRun | Step, error: WireError | None) -> None:
        run.abort(error)
        # An event of the turn may still wait to be written. An app that stops takes it along, and the closing event would
        # come after a gap. Without one there is nothing to wait for.
        self._tasks.start_soon(self._stop, run, None if error is None else self.writer.mark())

    def stop(self, run: TurnRun | Step) -> None:
        """Ask the upstream of a turn (or a step) that is over to end, at once."""
        if run in self._runs:
            self._abort(run, None)

    def _tell_gone(self, run: TurnRun | Step) -> None:
        run.abort(None)
        if run.on_abort is not None and not run.in_background:
            run.on_abort()

    async def _stop(self, run: TurnRun | Step, mark: anyio.Event | None) -> None:
        if mark is not None:
            await self.writer.reach(mark)
        await self.writer.let_go()
        self._tell_gone(run)
        await self.clock.wait(self.limits.disconnect_grace_s, self._over.event)
        if run in self._runs and not run.in_background:
            run.cancel()

    def turn_over(self, run: TurnRun) -> None:
        """Note that a turn has ended although its call may still run (for ``TurnRun``)."""
        self._by_turn.pop(run.turn, None)

    def trail(self, run: TurnRun | Step) -> None:
        """Note that the closing event of a turn is written: its app is to come to an end (for ``TurnRun``)."""
        until = self.clock.now() + self.limits.trailing_timeout_s
        self._trailing[run] = until
        self._watchdog.look_by(until)

    def _end_trailing(self, now: float) -> None:
        for run, until in list(self._trailing.items()):
            if now >= until:
                del self._trailing[run]
                if run.in_background:
                    continue
                logger.debug("turn %s: the app keeps its body open after the terminal event", run.turn.id)
                self._abort(run, None)

    def run_over(self, run: TurnRun | Step) -> None:
        """Note that a turn's task ends (for ``TurnRun``)."""
        run.abort(None)
        run.on_abort = None  # it points back at the run: the history would wait for the garbage collector
        self._runs.pop(run, None)
        self._trailing.pop(run, None)
        self._look_whether_idle()

    def _look_whether_idle(self) -> None:
        if self._idle is not None:
            self._idle.set()

    # -- our own frames ----------------------------------------------------------------------------------------------

    @property
    def outbox(self) -> Outbox:
        """Frames of ours; made with the first of them, since most connections never have one."""
        if self._outbox is None:
            self._outbox = Outbox(self.writer, self._tasks)
        return self._outbox

    def _close_sent(self) -> int | None:
        return None if self._outbox is None else self._outbox.close_sent

    def post(self, frame: bytes | Close) -> None:
        """Queue a frame of ours, to be written by a task of its own."""
        self.outbox.put(frame)
        self._look_at_writes()

    def post_first(self, frame: bytes) -> None:
        """Write a frame of ours before all that is written from now on: the next turn of the lane starts at once."""
        self._tasks.start_soon(self.writer.write_at, self.writer.place(), frame)
        self._look_at_writes()

    def _look_at_writes(self) -> None:
        if self.limits.send_timeout_s is not None:
            self._watchdog.look_by(self.clock.now() + self.limits.send_timeout_s)

    def _answer(self, action: SendFrame) -> None:
        """Queue an answer to what the client sent: only so many may wait for it to read them."""
        if not action.notice:
            self.reporter.report(FrameRefused(connection_id=self.id, code=_code_of(action.frame)))
        if self.outbox.size + len(action.frame) > self.limits.max_outgoing_bytes:
            self.writer.cut_off()
            self.perform(self.session.close(1008, "client does not read"))
            return
        self.post(action.frame)

    def _close(self, close: Close) -> None:
        blocked_since, patience = self.writer.blocked_since, self.limits.send_timeout_s
        if blocked_since is not None and patience is not None and self.clock.now() >= blocked_since + patience:
            self.writer.cut_off()
        self.post(close)
        self._tasks.start_soon(self._give_up_on_close)

    async def _give_up_on_close(self) -> None:
        """End the ASGI call if the close cannot be written, or the peer does not answer it; the server does the rest."""
        patience = self.limits.close_timeout_s
        await self.clock.wait(patience, self.outbox.close_written.event)
        self.writer.cut_off()
        await self.clock.wait(patience, self._over.event)
        self._tasks.cancel_scope.cancel()

    # -- what turns ask for ------------------------------------------------------------------------------------------

    async def authorize(self, model: str | None) -> Principal | None:
        """Ask the operator again.

        Raises:
            Refused: Not (or no longer) allowed.
        """
        principal = await self.registry.admission.authorize(self.handshake, model)
        if principal is not None and principal.tenant is not None and principal.tenant != self.tenant:
            raise Unauthorized("The credential of this connection now belongs to somebody else.")
        return principal

    async def resolve(self, response_id: str, lane: str | None) -> ResponseNode | None:
        """Return the node of an id: from this connection, else from the store; None if there is none."""
        node = self.cache.get(response_id)
        if node is not None or not self.stores:
            return node
        return await self.registry.chains.resolve(
            response_id, tenant=self.tenant, lane=lane, cache=self.cache, charge=partial(self.reserve, stored=False)
        )

    async def store_node(self, node: ResponseNode) -> bool:
        """Write a node to the store, if it is to be stored.

        The store of this process is written before this returns. Any other one is written by a task of its own, in the
        order of the turns, so that no turn waits for it; unless the operator wants it (``durable``).

        Returns:
            Whether the turn may be told to have succeeded.
        """
        if not (self.stores and node.record.store):
            return True
        chains = self.registry.chains
        if chains.is_local:
            await chains.append(node)
            return True
        if self.settings.durable:
            return await chains.append(node)
        if self._storing is None:
            self._storing = StoreQueue(chains, self.reporter, self._tasks, self._look_whether_idle)
        self._storing.put(node)
        return True

    async def stored(self) -> None:
        """Return when what is to be stored has been written."""
        if self._storing is not None:
            await self._storing.wait()

    def _is_storing(self) -> bool:
        return self._storing is not None and self._storing.busy

    def reserve(self, size: int, *, stored: bool) -> tuple[Budget, ...] | None:
        """Charge a new record; what is stored is the tenant's, the rest this connection's as well."""
        own = None if stored else self._budget
        charged = self.registry.ledger.reserve(size, own, self.cache, self.account)
        # All records of a connection share two tuples.
        return None if charged is None else self._charged.setdefault(stored, charged)

    def app_keeps(self, create: ResponseCreate, *, own_id: bool) -> bool:
        """Whether the app itself produced and stored a response, so that its id can be forwarded."""
        settings = self.settings
        return self.history == "forward" and own_id and create.stored and settings.app_store == "keep"

    @property
    def transport(self) -> Transport:
        """How its turns come: by a socket, or as the one turn of an HTTP request."""
        return "http" if self.handshake.scope["type"] == "http" else "socket"

    @property
    def interner(self) -> Interner:
        """What comes with every turn and is kept once; made with the first turn, since an idle connection needs none."""
        if self._interner is None:
            self._interner = Interner(
                partial(self.registry.ledger.reserve, own=self._budget, cache=self.cache, tenant=self.account)
            )
        return self._interner

    def is_live(self, response_id: str) -> bool:
        """Whether an id names another response here, finished or in the making."""
        return response_id in self.cache or any(run.stream.response_id == response_id for run in self._by_turn.values())

    def new_response_id(self) -> str:
        """Return an id of ours."""
        return self.registry.ids.new("resp")

    def count_warm_up(self, size: int) -> None:
        """Bound what an unproven client may make us keep.

        Raises:
            Refused: Too much, before the app has accepted anything of this connection.
        """
        if self.proven:
            return
        if self._warm_up_bytes + size > self.limits.max_warmup_bytes:
            raise Refused(
                f"Warm-ups may hold {self.limits.max_warmup_bytes} bytes before the first generated response of a "
                "connection.",
                status=413,
                code="warm_up_too_large",
                param="input",
            )
        self._warm_up_bytes += size

    # -- forks -------------------------------------------------------------------------------------------------------

    def _pin_fork(self, turn: Turn) -> None:
        """Keep the parent of a waiting fork: another lane's completed node survives that lane's eviction."""
        parent_id = turn.create.previous_response_id
        node = self.cache.get(parent_id) if parent_id is not None else None
        if node is not None and node.lane != turn.create.lane:
            turn.pin = node
            self.cache.pin(node.id)

    def _unpin_fork(self, turn: Turn, *, keep: bool = False) -> None:
        if turn.pin is not None:
            self.cache.unpin(turn.pin.id)
            if not keep:
                turn.pin = None

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
