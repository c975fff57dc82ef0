"""The state of one connection, without I/O: frames and facts in, actions out.

The session never looks at a clock, draws no random number but from its id factory, and never raises for a bad peer: what
the peer does wrong becomes an error frame. The legal moves are the two tables below and nothing else; an absent entry is
a bug of the caller and raises :class:`~ws_responses.errors.LocalProtocolError`.

A shell calls one input at a time and carries out the returned actions in order, before the next input:

* ``frame_received``: a client frame arrived.
* ``turn_event`` / ``turn_ended``: the response of a running turn begins, or the turn is over.
* ``turn_blocked``: the response of a rollout waits for tool outputs.
* ``tick``: time passed; ``next_deadline`` says when the next one is wanted.
* ``retire``: no new turns from now on (age, drain).
* ``peer_gone``: the socket is closed.
"""

import enum
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec import Raw, Struct
from msgspec.structs import replace

from ws_responses.errors import (
    ConnectionLimitReached,
    FrameTooLarge,
    LanesNotServed,
    LocalProtocolError,
    MalformedFrame,
    NothingToCancel,
    QueueFull,
    ResponseCancelled,
    StreamLimitReached,
    UpstreamTimeout,
    WireError,
)
from ws_responses.limits import Limits
from ws_responses.protocol import cancelling, events, injecting, steering
from ws_responses.protocol.calls import CallState
from ws_responses.protocol.events import ResponseCreate, encode_error
from ws_responses.protocol.injecting import Injection, InjectRefused
from ws_responses.protocol.rollout import APPEND, Appended, Blocked, read_append
from ws_responses.protocol.steering import Ending, Steer, SteerRefused
from ws_responses.protocol.withheld import withheld


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


class Lane:
    """One ``stream_id``, or the default lane (``name`` None): its running turn and those waiting behind it.

    Attributes:
        held: Accepted steers of the latest response, which waits for input that only the client has.
        latest: Id of the latest response that has ended; None if there is none.
        completed: It has ended as it should.
    """

    __slots__ = ("completed", "held", "latest", "name", "queue", "running")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.running: Turn | None = None
        self.queue: list[Turn] = []
        self.held: Sequence[Steer] = ()
        self.latest: str | None = None
        self.completed = False


class Turn:
    """One accepted create, to its end.

    Attributes:
        id: Our own id of the turn, unique in the process.
        create: The frame.
        lane: Where it runs.
        phase: See :class:`TurnPhase`.
        heard: Number of signs of life of the upstream; the shell counts it up, also for comments.
        pin: For the shell: what keeps a fork's parent alive while the turn waits.
        automatic: It continues a steered response by itself: no frame of the client has asked for it.
        response_id: Id of its response, from ``response.created`` on.
        inherited: The body of its create, for a successor; the shell keeps it, None if the response cannot be steered.
        carried: Steers that its input begins with: committed by its ``response.created``.
        steers: Accepted steers of its response, in order.
        blocked: What a rollout waits for; None while it does not wait.
        blocks: How often it has.
        injects: Its response takes injections: it is a rollout, and waits without a word.
        injections: Those that wait in it, in order.
    """

    __slots__ = (
        "automatic",
        "blocked",
        "blocks",
        "carried",
        "create",
        "heard",
        "heard_at",
        "id",
        "inherited",
        "injections",
        "injects",
        "kept_alive_at",
        "lane",
        "order",
        "phase",
        "pin",
        "response_id",
        "seen",
        "steers",
    )

    def __init__(
        self,
        id: str,  # noqa: A002 - the word
        create: ResponseCreate,
        lane: Lane,
        order: int,
        *,
        automatic: bool = False,
    ) -> None:
        self.id = id
        self.create = create
        self.lane = lane
        self.order = order
        self.phase = TurnPhase.QUEUED
        self.pin: Any = None
        self.automatic = automatic
        self.response_id: str | None = None
        self.inherited: dict[str, Raw] | None = None
        self.carried: Sequence[Steer] = ()
        self.steers: tuple[Steer, ...] = ()
        self.blocked: Blocked | None = None
        self.blocks = 0
        self.injects = False
        self.injections: tuple[Injection, ...] = ()
        self.heard = 0
        self.seen = 0
        self.heard_at = 0.0
        self.kept_alive_at = 0.0

    def move(self, stimulus: TurnInput) -> None:
        """Change the phase by the table."""
        try:
            self.phase = TURN_TABLE[self.phase][stimulus]
        except KeyError:
            raise LocalProtocolError(f"turn {self.id}: {stimulus.name} is illegal when {self.phase.name}") from None


# --- actions --------------------------------------------------------------------------------------------------------


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


class Retirement(Struct, frozen=True):
    """Why a connection takes no more turns, and how it ends.

    Attributes:
        error: What further creates are told.
        notice: Send ``error`` once more right before the close.
        close_code: WebSocket close code.
        reason: Close reason.
        deadline: When turns that still run are aborted.
    """

    error: WireError
    notice: bool
    close_code: int
    reason: str
    deadline: float


class Session:
    """Protocol state of one connection.

    Args:
        limits: The bounds.
        now: Present time, in seconds of a monotonic clock.
        turn_ids: Makes ids of turns.
        accept_wrapped: Take ``{"type": "response.create", "response": {...}}`` as well.
        accept_cancel: Take ``response.cancel``.
        keepalive_s: Silence of a running turn after which ``KeepAlive`` is wanted; None for never.
        age_notice: Tell an idle client of the age limit by an error frame before the close.
        lanes: Serve lanes; without them a ``stream_id`` is refused, turns run one at a time, and nothing is steered.
        steer_ids: Makes ids of steers.
        appends: Take ``response.append``: responses are rollouts.
        injects: Let responses with several agents take ``response.inject``.
    """

    __slots__ = (
        "_accept_cancel",
        "_accept_wrapped",
        "_active_at",
        "_age_notice",
        "_appends",
        "_injects",
        "_keepalive_s",
        "_opened_at",
        "_orders",
        "_retirement",
        "_serves_lanes",
        "_steer_ids",
        "_ticked_at",
        "_turn_ids",
        "inject_bytes",
        "lanes",
        "limits",
        "phase",
        "queued_bytes",
        "queued_creates",
        "running",
        "steer_bytes",
        "steers",
        "turns_started",
    )

    def __init__(
        self,
        limits: Limits,
        *,
        now: float,
        turn_ids: Callable[[], str],
        accept_wrapped: bool = False,
        accept_cancel: bool = False,
        keepalive_s: float | None = None,
        age_notice: bool = True,
        lanes: bool = True,
        steer_ids: Callable[[], str] | None = None,
        appends: bool = False,
        injects: bool = False,
    ) -> None:
        self.limits = limits
        self.phase = SessionPhase.OPEN
        self.lanes: dict[str | None, Lane] = {None: Lane(None)}
        self.running: list[Turn] = []
        self.queued_creates = 0
        self.queued_bytes = 0
        self.turns_started = 0
        self.steers = 0
        self.steer_bytes = 0
        self.inject_bytes = 0
        self._turn_ids = turn_ids
        self._steer_ids = steer_ids or turn_ids
        self._accept_wrapped = accept_wrapped
        self._accept_cancel = accept_cancel
        self._keepalive_s = keepalive_s
        self._age_notice = age_notice
        self._serves_lanes = lanes
        self._appends = appends
        self._injects = injects
        self._opened_at = now
        self._active_at = now
        self._ticked_at = now
        self._orders = 0
        self._retirement: Retirement | None = None

    @property
    def look_every_s(self) -> float:
        """How often the upstream's silence is to be looked at while a turn runs.

        Events bear no time stamp (that would cost a clock reading each): a look sees that some came since the last one. Four
        looks in a span keep the error below a quarter of it.
        """
        spans = (self.limits.first_event_timeout_s, self.limits.event_timeout_s, self._keepalive_s)
        return min((span / 4 for span in spans if span is not None), default=float("inf"))

    # -- inputs ------------------------------------------------------------------------------------------------------

    def frame_received(self, data: str | bytes, now: float) -> Actions:
        """Take one client frame, text or binary."""
        if self.phase in (SessionPhase.CLOSING, SessionPhase.CLOSED):
            return NOTHING
        self._active_at = now
        lane_name = None
        try:
            # A character has at least one byte, so what is too long as it is need not be encoded first.
            encoded = data if len(data) > self.limits.max_frame_bytes else _utf8(data)
            size = len(encoded)
            if size > self.limits.max_frame_bytes:
                error = FrameTooLarge(self.limits.max_frame_bytes)
                return self._close(1009, f"frame above {self.limits.max_frame_bytes} bytes", error)
            members = events.decode_members(encoded)
            kind = events.event_type(members)
            if kind == events.PROCESSED:
                return NOTHING
            if kind == steering.STEER and self._serves_lanes:
                return self._take_steer(members)
            if kind == injecting.INJECT and self._serves_lanes:
                return self._take_injection(members, now)
            lane_name = self._lane_of(members)
            if kind == cancelling.CANCEL and self._accept_cancel:
                return self._cancel(cancelling.cancelled_id(members), lane_name, named="stream_id" in members)
            if kind == APPEND and self._appends:
                return self._take_append(members, lane_name, now)
            if kind != events.CREATE:
                raise events.not_an_event(kind)
            if "response" in members:
                members = self._unwrap(members)
                lane_name = self._lane_of(members)
            create = events.parse_create(members, lane_name, size)
            return self._accept(create, now)
        except WireError as error:
            return (Send(encode_error(error, stream_id=lane_name)),)

    def turn_event(self, turn: Turn, response_id: str | None = None) -> Actions:
        """Note that the first event of ``turn`` goes to the client (not needed again for those that follow).

        Args:
            turn: The turn.
            response_id: Id of its response.
        """
        turn.move(TurnInput.EVENT)
        turn.response_id = response_id
        if turn.carried:
            self._release(turn.carried)
            turn.carried = ()
        lane = turn.lane
        if not lane.held or turn.create.warm_up:
            return NOTHING
        held, lane.held = lane.held, ()
        message = "The response is no longer accepting steering input: its lane went on without it."
        return self._give_back(turn, held, SteerRefused("response_not_active", message))

    def turn_ended(self, turn: Turn, now: float, ending: Ending = steering.NO_RESPONSE) -> Actions:
        """Free the lane of a turn that is over; its closing event was or will be written by the caller.

        Args:
            turn: The turn.
            now: Present time.
            ending: How its response has ended.
        """
        lane = turn.lane
        if lane.running is not turn:
            raise LocalProtocolError(f"turn {turn.id} does not run on its lane")
        turn.move(TurnInput.END)
        lane.running = None
        self.running.remove(turn)
        self._active_at = now
        if turn.response_id is not None:
            lane.latest, lane.completed = turn.response_id, ending.status == "completed"
        told = self._settle_steers(turn, ending, now) if turn.steers or turn.carried else NOTHING
        if turn.injections:
            told = (*told, *self._return_injections(turn))
        if self.phase is SessionPhase.RETIRING:
            return (*told, *self._finish()) if not self.running else told
        if not self.queued_creates:
            return told
        return (*told, *self._start_waiting(now)) if told else self._start_waiting(now)

    def may_block(self, turn: Turn) -> bool:
        """Whether a rollout may wait for tool outputs (once more): not on a connection that is to end."""
        return self.phase is SessionPhase.OPEN and turn.blocks < self.limits.max_rollout_appends

    def turn_blocked(self, turn: Turn, calls: CallState, now: float, *, checked: bool = True) -> Actions:
        """Let a rollout wait for tool outputs; its ``response.done`` was or will be written by the caller.

        What was injected before goes into it at once.

        Args:
            turn: Its turn, for which :meth:`may_block` holds.
            calls: The calls that are open.
            now: Present time.
            checked: See :class:`~ws_responses.protocol.rollout.Blocked`.
        """
        turn.move(TurnInput.BLOCK)
        turn.blocks += 1
        turn.blocked = Blocked(calls, checked, now)
        return self._look_at_injections(turn, now) if turn.injections else NOTHING

    def peer_gone(self) -> Actions:
        """The socket is closed: stop all turns; nobody is told anything."""
        if self.phase is SessionPhase.CLOSED:
            return NOTHING
        self._move(SessionInput.GONE)
        return (*self._drop_queued(), *(AbortTurn(turn, None) for turn in self.running))

    def retire(
        self,
        now: float,
        *,
        error: WireError,
        close_code: int,
        reason: str,
        grace_s: float,
        notice: bool = False,
    ) -> Actions:
        """Take no more turns; close when the running ones have ended or ``grace_s`` has passed."""
        if self.phase is not SessionPhase.OPEN:
            return NOTHING
        self._move(SessionInput.RETIRE)
        self._retirement = Retirement(error, notice, close_code, reason, now + grace_s)
        refused = self._drop_queued(error)
        if self.running:
            return (*refused, *(self._resume(turn, None, now) for turn in self.running if turn.blocked is not None))
        return (*refused, *self._finish())

    def close(self, code: int, reason: str, *, error: WireError | None = None) -> Actions:
        """Close at once; running and queued turns are told ``error`` first, if there is one."""
        if self.phase in (SessionPhase.CLOSING, SessionPhase.CLOSED):
            return NOTHING
        return self._close(code, reason, error)

    def tick(self, now: float, blocked_since: float | None = None) -> Actions:
        """Look at all time limits.

        Args:
            now: Present time.
            blocked_since: Since when a write waits for the client, None if none does. The upstream's own time limits
                stand still meanwhile: it is not its fault.
        """
        if self.phase in (SessionPhase.CLOSING, SessionPhase.CLOSED):
            return NOTHING
        limits = self.limits
        self._ticked_at = now
        if blocked_since is not None:
            if limits.send_timeout_s is not None and now >= blocked_since + limits.send_timeout_s:
                return self._close(1008, "client does not read")
            for turn in self.running:
                turn.heard_at = now
        actions: list[Action] = []
        age = limits.max_connection_age_s
        if self._retirement is None and age is not None and now >= self._opened_at + age:
            notice = self._age_notice or bool(self.running)
            error = ConnectionLimitReached(age)
            actions += self.retire(
                now, error=error, close_code=1001, reason=error.message, grace_s=limits.age_grace_s, notice=notice
            )
        if self._retirement is not None and self.running and now >= self._retirement.deadline:
            actions += [AbortTurn(turn, self._retirement.error) for turn in self.running]
            return actions
        for turn in self.running:
            actions += self._watch(turn, now)
        idle = limits.idle_timeout_s
        if idle is not None and not self.running and self.phase is SessionPhase.OPEN and now >= self._active_at + idle:
            actions += self._close(1001, "idle")
        return actions

    def next_deadline(self) -> float:
        """When the next ``tick`` is wanted (``inf``: never)."""
        limits = self.limits
        deadline = float("inf")
        if self.phase in (SessionPhase.CLOSING, SessionPhase.CLOSED):
            return deadline
        if self._retirement is not None:
            deadline = self._retirement.deadline
        elif limits.max_connection_age_s is not None:
            deadline = self._opened_at + limits.max_connection_age_s
        if not self.running:
            if limits.idle_timeout_s is not None:
                deadline = min(deadline, self._active_at + limits.idle_timeout_s)
            return deadline
        for turn in self.running:
            if turn.blocked is not None:
                patience = limits.blocked_timeout_s
                deadline = deadline if patience is None else min(deadline, turn.blocked.since + patience)
                continue
            for base, span in (
                (turn.heard_at, self._patience(turn)),
                (max(turn.heard_at, turn.kept_alive_at), self._keepalive_s),
            ):
                if span is not None:
                    deadline = min(deadline, base + span)
        return min(deadline, self._ticked_at + self.look_every_s)

    # -- parts -------------------------------------------------------------------------------------------------------

    def _lane_of(self, members: dict[str, Any]) -> str | None:
        if not self._serves_lanes and "stream_id" in members:
            raise LanesNotServed
        return events.lane_of(members)

    def _unwrap(self, members: dict[str, Any]) -> dict[str, Any]:
        if not self._accept_wrapped:
            raise MalformedFrame(
                "The frame must be flat: put the fields of the request beside 'type', not inside 'response'.",
                param="response",
                code="invalid_request",
            )
        envelope = members.keys() - {"type", "response", "stream_id", "generate"}
        if envelope:
            raise MalformedFrame(
                "The frame is both flat and wrapped: send its fields beside 'type' or inside 'response', not both.",
                param=min(envelope),
                code="invalid_request",
            )
        try:
            inner = events.decode_members(bytes(members["response"]))
        except MalformedFrame:
            raise MalformedFrame(
                "The field 'response' must be an object.", param="response", code="invalid_request"
            ) from None
        return {**inner, **{name: members[name] for name in ("type", "stream_id", "generate") if name in members}}

    def _accept(self, create: ResponseCreate, now: float) -> Actions:
        if self._retirement is not None:
            # Not raised: an exception that is raised again keeps the frames of all earlier times, and their data.
            return (Send(encode_error(self._retirement.error, stream_id=create.lane)),)
        lane = self._lane(create.lane)
        limits = self.limits
        if lane.running is None and not lane.queue and len(self.running) < limits.max_running_turns:
            return (self._start(self._admit(create, lane), now),)
        if self.queued_creates >= limits.max_queued_creates:
            raise QueueFull(f"{self.queued_creates} requests wait on this connection already; that is its limit.")
        if self.queued_bytes + create.size > limits.max_queued_bytes:
            raise QueueFull(f"The requests waiting on this connection would exceed {limits.max_queued_bytes} bytes.")
        turn = self._admit(create, lane)
        lane.queue.append(turn)
        self.queued_creates += 1
        self.queued_bytes += create.size
        return (TurnQueued(turn),)

    def _lane(self, name: str | None) -> Lane:
        """Return the lane of a name; a new one is not taken into the books before its create is admitted."""
        lane = self.lanes.get(name)
        if lane is not None:
            return lane
        if len(self.lanes) - 1 >= self.limits.max_lanes:
            raise StreamLimitReached(self.limits.max_lanes)
        return Lane(name)

    def _admit(self, create: ResponseCreate, lane: Lane) -> Turn:
        self.lanes[lane.name] = lane
        turn = Turn(self._turn_ids(), create, lane, self._orders)
        turn.injects = self._injects and not create.warm_up and injecting.enables_agents(create.body)
        self._orders += 1
        return turn

    def _start(self, turn: Turn, now: float) -> StartTurn:
        lane, create = turn.lane, turn.create
        if lane.held and create.previous_response_id == lane.held[0].target and not create.warm_up:
            turn.carried, lane.held = lane.held, ()
            turn.create = steering.with_steers(create, turn.carried)
        turn.move(TurnInput.START)
        turn.lane.running = turn
        turn.heard_at = turn.kept_alive_at = now
        self.running.append(turn)
        self.turns_started += 1
        return StartTurn(turn)

    def _start_waiting(self, now: float) -> Actions:
        started: list[Action] = []
        while len(self.running) < self.limits.max_running_turns:
            waiting = [lane for lane in self.lanes.values() if lane.queue and lane.running is None]
            if not waiting:
                break
            lane = min(waiting, key=lambda lane: lane.queue[0].order)
            started.append(self._start(self._unqueue(lane), now))
        return started

    def _unqueue(self, lane: Lane) -> Turn:
        turn = lane.queue.pop(0)
        self.queued_creates -= 1
        self.queued_bytes -= turn.create.size
        return turn

    def _drop_queued(self, error: WireError | None = None, lanes: Iterable[Lane] | None = None) -> Actions:
        dropped: list[Turn] = []
        for lane in self.lanes.values() if lanes is None else lanes:
            while lane.queue:
                turn = self._unqueue(lane)
                turn.move(TurnInput.END)
                dropped.append(turn)
        actions: list[Action] = []
        for turn in sorted(dropped, key=lambda turn: turn.order):
            actions.append(DropTurn(turn))
            if error is not None:
                actions.append(Send(encode_error(error, stream_id=turn.lane.name)))
        return actions

    # -- cancelling --------------------------------------------------------------------------------------------------

    def _cancel(self, response_id: str | None, lane_name: str | None, *, named: bool) -> Actions:
        """Stop a response, or all that runs and waits on a lane; each is told by its own closing event.

        Raises:
            NothingToCancel: There is nothing of that.
        """
        if response_id is not None:
            turn, lane = self._find(response_id)
            if lane is None or (named and lane.name != lane_name):
                raise NothingToCancel(
                    "The response is not available on this WebSocket connection.", param="response_id"
                )
            if turn is None:
                code = "response_already_completed" if lane.completed else "response_not_active"
                raise NothingToCancel("The response is over.", param="response_id", code=code, status=409)
            return (AbortTurn(turn, ResponseCancelled()),)
        lane = self.lanes.get(lane_name)
        if lane is None or (lane.running is None and not lane.queue):
            raise NothingToCancel("Nothing runs or waits on this lane.", code="response_not_active", status=409)
        # The queue first: the end of the running turn would start the next one.
        running, dropped = lane.running, self._drop_queued(ResponseCancelled(), (lane,))
        return dropped if running is None else (AbortTurn(running, ResponseCancelled()), *dropped)

    # -- rollouts ----------------------------------------------------------------------------------------------------

    def _take_append(self, members: dict[str, Raw], lane_name: str | None, now: float) -> Actions:
        lane = self.lanes.get(lane_name)
        turn = None if lane is None else lane.running
        appended = read_append(members, turn)
        assert turn is not None
        return (self._resume(turn, appended, now),)

    def _resume(self, turn: Turn, appended: Appended | None, now: float) -> ResumeTurn:
        turn.move(TurnInput.RESUME)
        turn.blocked = None
        turn.heard_at = turn.kept_alive_at = now
        return ResumeTurn(turn, appended)

    def _watch_blocked(self, turn: Turn, blocked: Blocked, now: float) -> Actions:
        patience = self.limits.blocked_timeout_s
        if patience is None or now < blocked.since + patience:
            return NOTHING
        return (self._resume(turn, None, now),)

    # -- injections --------------------------------------------------------------------------------------------------

    def _take_injection(self, members: dict[str, Raw], now: float) -> Actions:
        injection = injecting.read_injection(members)
        turn, lane = self._find(injection.target)
        try:
            self._inject(turn, lane, injection)
        except InjectRefused as error:
            name = None if lane is None else lane.name
            if len(injection.given) > self.limits.max_pending_steer_bytes:
                # Not given back: who floods us would be flooded.
                return (Send(encode_error(error, stream_id=name)),)
            return (Send(injecting.refusal(error, injection, stream_id=name)),)
        assert turn is not None
        return self._commit_injections(turn, now)

    def _inject(self, turn: Turn | None, lane: Lane | None, injection: Injection) -> None:
        """Let a submission wait in the response that it is for.

        Raises:
            InjectRefused: It cannot.
        """
        limits = self.limits
        if turn is None:
            code: injecting.InjectCode = "response_not_found" if lane is None else "response_already_completed"
            raise InjectRefused(code, "No response of that id is active on this WebSocket connection.")
        if not turn.injects:
            raise InjectRefused("response_not_found", "The response of that id takes no input while it is active.")
        waiting, size = len(turn.injections), self.inject_bytes + len(injection.given)
        if waiting >= limits.max_queued_creates or size > limits.max_queued_bytes:
            raise InjectRefused("websocket_queue_full", "Too much input waits for responses of this connection.")
        items = injecting.items_of(injection)
        if turn.blocked is not None:
            turn.blocked = replace(turn.blocked, calls=injecting.answered(turn.blocked.calls, items))
        turn.injections += (injection,)
        self.inject_bytes = size

    def _look_at_injections(self, turn: Turn, now: float) -> Actions:
        """Judge what came before the response waited for it, now that its calls are known."""
        early, turn.injections = turn.injections, ()
        told: list[Action] = []
        for injection in early:
            self.inject_bytes -= len(injection.given)
            try:
                self._inject(turn, turn.lane, injection)
            except InjectRefused as error:
                told.append(TellSteer(turn, injecting.FAILED, injecting.returned(error, injection)))
        return (*told, *self._commit_injections(turn, now))

    def _commit_injections(self, turn: Turn, now: float) -> Actions:
        """Let a response go on that has all it waits for: all of that is committed at once, or none of it."""
        blocked, injections = turn.blocked, turn.injections
        if blocked is None or not injections or any(call.required for call in blocked.calls.open):
            return NOTHING
        self._release_injections(turn)
        told = [TellSteer(turn, injecting.CREATED, injecting.taken(injection)) for injection in injections]
        items = b",".join(injection.given[1:-1] for injection in injections)
        return (*told, self._resume(turn, Appended(items, blocked.calls), now))

    def _return_injections(self, turn: Turn) -> Actions:
        """Give back what waited in a response that is over."""
        injections = turn.injections
        self._release_injections(turn)
        if self.phase in (SessionPhase.CLOSING, SessionPhase.CLOSED):
            return NOTHING
        error = InjectRefused("response_already_completed", "The response ended before it could take the input.")
        return [TellSteer(turn, injecting.FAILED, injecting.returned(error, injection)) for injection in injections]

    def _release_injections(self, turn: Turn) -> None:
        self.inject_bytes -= sum(len(injection.given) for injection in turn.injections)
        turn.injections = ()

    # -- steering ----------------------------------------------------------------------------------------------------

    def _find(self, response_id: str) -> tuple[Turn | None, Lane | None]:
        """Return the running turn of a response, and its lane; the lane alone if it is the latest response there."""
        turn = next((turn for turn in self.running if turn.response_id == response_id), None)
        if turn is not None:
            return turn, turn.lane
        return None, next((lane for lane in self.lanes.values() if lane.latest == response_id), None)

    def _take_steer(self, members: dict[str, Raw]) -> Actions:
        target, given = steering.target_of(members)
        limits = self.limits
        if len(given) > limits.max_pending_steer_bytes:
            # Not given back: who floods us would be flooded.
            raise MalformedFrame(
                f"The field 'input' must have at most {limits.max_pending_steer_bytes} bytes.",
                param="input",
                code="request_too_large",
                status=413,
            )
        turn, lane = self._find(target)
        try:
            items = steering.read_items(members)
            steered = self._steered(turn, lane, len(given))
        except SteerRefused as error:
            return (Send(steering.refusal(error, target, given, stream_id=None if lane is None else lane.name)),)
        steer = Steer(self._steer_ids(), target, given, items)
        steered.steers += (steer,)
        self.steers += 1
        self.steer_bytes += len(given)
        return (TellSteer(steered, steering.ACCEPTED, steering.about(steer)), EndEarly(steered))

    def _steered(self, turn: Turn | None, lane: Lane | None, size: int) -> Turn:
        """Return the turn that a submission of so many bytes may steer.

        Raises:
            SteerRefused: None.
        """
        limits = self.limits
        if lane is None:
            raise SteerRefused(
                "response_not_found", "The target response is not available on this WebSocket connection."
            )
        if turn is None and lane.completed:
            message = "The response already completed and is no longer accepting steering input."
            raise SteerRefused("response_already_completed", message)
        if turn is None or self._retirement is not None:
            raise SteerRefused("response_not_active", "The response is no longer accepting steering input.")
        if turn.inherited is None:
            raise SteerRefused("steering_not_supported", "This response does not support steering.")
        if self.steers >= limits.max_pending_steers or self.steer_bytes + size > limits.max_pending_steer_bytes:
            raise SteerRefused("too_many_pending_steers", "Too much steering input is pending on this connection.")
        return turn

    def _settle_steers(self, turn: Turn, ending: Ending, now: float) -> Actions:
        """Decide about the steers of a turn that is over: its successor starts, they wait for the client, or go back."""
        carried, steers = turn.carried, turn.steers
        turn.carried = turn.steers = ()
        if self.phase in (SessionPhase.CLOSING, SessionPhase.CLOSED):
            self._release((*carried, *steers))  # lost with the socket
            return NOTHING
        uncommitted = f"The successor response could not be created. {ending.message}".rstrip()
        told = self._give_back(turn, carried, SteerRefused("successor_creation_failed", uncommitted))
        if not steers:
            return told
        if ending.status == "failed":
            inactive = SteerRefused("response_not_active", "The response is no longer accepting steering input.")
            return (*told, *self._give_back(turn, steers, inactive))
        if self._retirement is not None:
            uncommitted = f"The successor response could not be created. {self._retirement.error.message}"
        if self._retirement is not None or not ending.continuable:
            error = SteerRefused("successor_creation_failed", uncommitted)
            return (*told, *self._give_back(turn, steers, error))
        if ending.required:
            turn.lane.held = steers
            pending = [TellSteer(turn, steering.PENDING, steering.waiting(steer, ending.required)) for steer in steers]
            return (*told, *pending)
        return (*told, self._succeed(turn, steers, now))

    def _succeed(self, turn: Turn, steers: Sequence[Steer], now: float) -> StartTurn:
        """Start the successor of a steered response: at once, before all that waits on its lane."""
        assert turn.inherited is not None
        assert turn.response_id is not None
        create = steering.successor(turn.create, turn.inherited, steers, turn.response_id)
        successor = Turn(self._turn_ids(), create, turn.lane, turn.order, automatic=True)
        successor.carried = steers
        return self._start(successor, now)

    def _give_back(self, turn: Turn, steers: Sequence[Steer], error: SteerRefused) -> Actions:
        self._release(steers)
        return [
            TellSteer(turn, steering.FAILED, steering.returned(error, steer.target, steer.given, steer.id))
            for steer in steers
        ]

    def _release(self, steers: Sequence[Steer]) -> None:
        self.steers -= len(steers)
        self.steer_bytes -= sum(len(steer.given) for steer in steers)

    def _patience(self, turn: Turn) -> float | None:
        limits = self.limits
        return limits.event_timeout_s if turn.heard else limits.first_event_timeout_s

    def _watch(self, turn: Turn, now: float) -> Iterable[Action]:
        if turn.blocked is not None:
            return self._watch_blocked(turn, turn.blocked, now)
        if turn.heard != turn.seen:
            turn.seen = turn.heard
            turn.heard_at = now
            return ()
        patience = self._patience(turn)
        if patience is not None and now >= turn.heard_at + patience:
            what = "sent no event" if turn.heard else "did not answer"
            return (AbortTurn(turn, UpstreamTimeout(f"The upstream {what} for {patience:g} s.")),)
        quiet_since = max(turn.heard_at, turn.kept_alive_at)
        if self._keepalive_s is not None and now >= quiet_since + self._keepalive_s:
            turn.kept_alive_at = now
            return (KeepAlive(turn),)
        return ()

    def _finish(self) -> Actions:
        retirement = self._retirement
        assert retirement is not None
        close = self._close(retirement.close_code, retirement.reason)
        if retirement.notice:
            return (Send(encode_error(retirement.error), notice=True), *close)
        return close

    def _close(self, code: int, reason: str, error: WireError | None = None) -> Actions:
        self._move(SessionInput.CLOSE)
        dropped = self._drop_queued(error)
        return (*dropped, *(AbortTurn(turn, error) for turn in self.running), Close(code, reason))

    def _move(self, stimulus: SessionInput) -> None:
        try:
            self.phase = SESSION_TABLE[self.phase][stimulus]
        except KeyError:
            raise LocalProtocolError(f"{stimulus.name} is illegal when {self.phase.name}") from None


def _utf8(data: str | bytes) -> str | bytes:
    """Return a frame in the form that the views of it will keep alive: one byte for each byte on the wire.

    A text with other characters takes up to four bytes for each of them in memory, and its encoded form beside it.
    """
    if data.isascii():
        return data
    try:
        if isinstance(data, str):
            return data.encode()
        data.decode()
    except UnicodeError:
        raise MalformedFrame("The frame is not valid UTF-8.") from None
    return data


CLOSE_REASON_BYTES: Final = 123
"""RFC 6455, 5.5: a control frame has at most 125 bytes, two of which are the code."""


def legal_close(code: int, reason: str) -> tuple[int, str]:
    """Return a code and a reason that may be put on the wire.

    Reserved codes (RFC 6455, 7.4) become 1011; the reason is cut at a code point, below the frame's limit.
    """
    if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        code = 1011
    cut = reason.encode("utf-8", "replace")[:CLOSE_REASON_BYTES]
    return code, cut.decode("utf-8", "ignore")
