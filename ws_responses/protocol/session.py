"""The state of one connection, without I/O: frames and facts in, actions out.

The session never looks at a clock, draws no random number but from its id factory, and never raises for a bad peer: what
the peer does wrong becomes an error frame. The legal moves are the tables of :mod:`ws_responses.protocol.phases` and nothing
else; an absent entry is a bug of the caller and raises :class:`~ws_responses.errors.LocalProtocolError`.

A shell calls one input at a time and carries out the returned actions in order, before the next input:

* ``frame_received``: a client frame arrived.
* ``turn_event`` / ``turn_ended``: the response of a running turn begins, or the turn is over.
* ``turn_blocked``: the response of a rollout waits for tool outputs.
* ``tick``: time passed; ``next_deadline`` says when the next one is wanted.
* ``retire``: no new turns from now on (age, drain).
* ``peer_gone``: the socket is closed.
"""

from collections.abc import Callable, Sequence
from math import inf

from msgspec import Raw

from ws_responses.errors import (
    ConnectionLimitReached,
    FrameTooLarge,
    LanesNotServed,
    MalformedFrame,
    WireError,
)
from ws_responses.limits import Limits
from ws_responses.protocol import (
    cancelling,
    events,
    frames,
    injecting,
    patience,
    pending_injections,
    pending_steers,
    steering,
)
from ws_responses.protocol.actions import NOTHING, AbortTurn, Action, Actions, Close, ResumeTurn, Send
from ws_responses.protocol.calls import CallState
from ws_responses.protocol.closing import Retirement
from ws_responses.protocol.creates import ResponseCreate, parse_create
from ws_responses.protocol.events import encode_error
from ws_responses.protocol.lanes import Lanes
from ws_responses.protocol.life import Life
from ws_responses.protocol.phases import SessionInput, SessionPhase, TurnInput
from ws_responses.protocol.rollout import APPEND, Blocked, RolloutNotFound, read_append
from ws_responses.protocol.steering import Ending
from ws_responses.protocol.turns import Turn


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
        "_age_notice",
        "_appends",
        "_injects",
        "_keepalive_s",
        "_serves_lanes",
        "_steer_ids",
        "_ticked_at",
        "lanes",
        "life",
        "limits",
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
        self.life = Life(limits, now)
        self.lanes = Lanes(limits, turn_ids)
        self._steer_ids = steer_ids or turn_ids
        self._accept_wrapped = accept_wrapped
        self._accept_cancel = accept_cancel
        self._keepalive_s = keepalive_s
        self._age_notice = age_notice
        self._serves_lanes = lanes
        self._appends = appends
        self._injects = injects
        self._ticked_at = now

    @property
    def phase(self) -> SessionPhase:
        """Where the connection is in its life."""
        return self.life.phase

    @property
    def running(self) -> Sequence[Turn]:
        """The turns that run."""
        return self.lanes.running

    @property
    def turns_started(self) -> int:
        """Number of turns that were started so far."""
        return self.lanes.started

    @property
    def look_every_s(self) -> float:
        """How often the upstream's silence is to be looked at while a turn runs."""
        return patience.look_every_s(self.limits, self._keepalive_s)

    # -- frames ------------------------------------------------------------------------------------------------------

    def frame_received(self, data: str | bytes, now: float) -> Actions:
        """Take one client frame, text or binary."""
        if self.life.is_over:
            return NOTHING
        self.life.active_at = now
        most = self.limits.max_frame_bytes
        lane_name = None
        try:
            # A character has at least one byte, so what is too long as it is need not be encoded first.
            encoded = data if len(data) > most else frames.utf8(data)
            if len(encoded) > most:
                return self._close(1009, f"frame above {most} bytes", FrameTooLarge(most))
            members = frames.decode_members(encoded)
            kind = frames.event_type(members)
            if kind == events.PROCESSED:
                return NOTHING
            if self._serves_lanes and kind in (steering.STEER, injecting.INJECT):
                return self._take_submission(kind, members, now)
            lane_name = self._lane_of(members)
            if kind == cancelling.CANCEL and self._accept_cancel:
                return cancelling.cancel(self.lanes, members, lane_name)
            if kind == APPEND and self._appends:
                return self._take_append(members, lane_name, now)
            if kind != events.CREATE:
                raise events.not_an_event(kind)
            if "response" in members:
                members = self._unwrap(members)
                lane_name = self._lane_of(members)
            return self._accept(parse_create(members, lane_name, len(encoded)), now)
        except WireError as error:
            return (Send(encode_error(error, stream_id=lane_name)),)

    def _lane_of(self, members: dict[str, Raw]) -> str | None:
        if not self._serves_lanes and "stream_id" in members:
            raise LanesNotServed
        return frames.lane_of(members)

    def _unwrap(self, members: dict[str, Raw]) -> dict[str, Raw]:
        if not self._accept_wrapped:
            raise MalformedFrame(
                "The frame must be flat: put the fields of the request beside 'type', not inside 'response'.",
                param="response",
                code="invalid_request",
            )
        return frames.unwrapped(members)

    def _accept(self, create: ResponseCreate, now: float) -> Actions:
        if self.life.retirement is not None:
            # Not raised: an exception that is raised again keeps the frames of all earlier times, and their data.
            return self.lanes.refuse(create.lane, self.life.retirement.error)
        injects = self._injects and not create.warm_up and injecting.enables_agents(create.body)
        return self.lanes.accept(create, now, injects=injects)

    def _take_submission(self, kind: str, members: dict[str, Raw], now: float) -> Actions:
        if kind == injecting.INJECT:
            return pending_injections.take(self.lanes, members, self.limits, now)
        retiring = self.life.retirement is not None
        return pending_steers.take(self.lanes, members, self.limits, self._steer_ids, retiring=retiring)

    def _take_append(self, members: dict[str, Raw], lane_name: str | None, now: float) -> Actions:
        lane = self.lanes.by_name.get(lane_name)
        if lane is None or lane.running is None:
            raise RolloutNotFound
        turn = lane.running
        if turn.injects:
            # It would go on without what has been injected and waits for the rest.
            raise RolloutNotFound(injects=True)
        appended = read_append(members, turn.blocked)
        turn.resume(now)
        return (ResumeTurn(turn, appended),)

    # -- turns -------------------------------------------------------------------------------------------------------

    def turn_event(self, turn: Turn, response_id: str | None = None) -> Actions:
        """Note that the first event of ``turn`` goes to the client (not needed again for those that follow).

        Args:
            turn: The turn.
            response_id: Id of its response.
        """
        turn.move(TurnInput.EVENT)
        turn.response_id = response_id
        return pending_steers.begun(turn)

    def turn_ended(self, turn: Turn, now: float, ending: Ending = steering.NO_RESPONSE) -> Actions:
        """Free the lane of a turn that is over; its closing event was or will be written by the caller.

        Args:
            turn: The turn.
            now: Present time.
            ending: How its response has ended.
        """
        self.lanes.end(turn)
        self.life.active_at = now
        if turn.response_id is not None:
            turn.lane.latest, turn.lane.completed = turn.response_id, ending.status == "completed"
        told = self._settle_submissions(turn, ending, now)
        retirement = self.life.retirement
        if self.life.phase is SessionPhase.RETIRING and retirement is not None:
            told = (*told, *self.lanes.tell_refused(turn.lane, retirement.error))
            return (*told, *self._finish()) if not self.running else told
        if not self.lanes.queued_creates:
            return told
        return (*told, *self.lanes.start_waiting(now)) if told else self.lanes.start_waiting(now)

    def _settle_submissions(self, turn: Turn, ending: Ending, now: float) -> Actions:
        """Say what becomes of the steers and injections of a turn that is over."""
        if self.life.is_over:
            turn.carried = turn.steers = turn.injections = ()  # lost with the socket
            return NOTHING
        told = NOTHING
        if turn.steers or turn.carried:
            retired = None if self.life.retirement is None else self.life.retirement.error
            told = pending_steers.settle(self.lanes, turn, ending, now, retired=retired)
        return (*told, *pending_injections.give_back(turn)) if turn.injections else told

    def may_block(self, turn: Turn) -> bool:
        """Whether a rollout may wait for tool outputs (once more): not on a connection that is to end."""
        return self.life.is_open and turn.blocks < self.limits.max_rollout_appends

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
        return pending_injections.look_again(turn, self.lanes, self.limits, now) if turn.injections else NOTHING

    # -- the end ------------------------------------------------------------------------------------------------------

    def peer_gone(self) -> Actions:
        """The socket is closed: stop all turns; nobody is told anything."""
        if self.life.phase is SessionPhase.CLOSED:
            return NOTHING
        self.life.move(SessionInput.GONE)
        return (*self.lanes.drop_queued(), *(AbortTurn(turn, None) for turn in self.running))

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
        if not self.life.is_open:
            return NOTHING
        self.life.retire(Retirement(error, notice, close_code, reason, now + grace_s))
        refused = self.lanes.refuse_queued(error)
        if self.running:
            return (*refused, *self._let_go(now))
        return (*refused, *self._finish())

    def close(self, code: int, reason: str, *, error: WireError | None = None) -> Actions:
        """Close at once; running and queued turns are told ``error`` first, if there is one."""
        if self.life.is_over:
            return NOTHING
        return self._close(code, reason, error)

    def _let_go(self, now: float) -> Actions:
        """Let rollouts that wait for their client end as they are."""
        blocked = [turn for turn in self.running if turn.blocked is not None]
        for turn in blocked:
            turn.resume(now)
        return [ResumeTurn(turn, None) for turn in blocked]

    def _finish(self) -> Actions:
        retirement = self.life.retirement
        assert retirement is not None
        close = self._close(retirement.close_code, retirement.reason)
        if retirement.notice:
            return (Send(encode_error(retirement.error), notice=True), *close)
        return close

    def _close(self, code: int, reason: str, error: WireError | None = None) -> Actions:
        self.life.move(SessionInput.CLOSE)
        # The queue first: else the end of a running turn would start the next one. Its turns are told after those that run.
        dropped = self.lanes.drop_queued(error)
        return (
            *(AbortTurn(turn, error) for turn in self.running),
            *self._refused(error),
            *dropped,
            Close(code, reason),
        )

    def _refused(self, error: WireError | None) -> Actions:
        """Tell those who wait for the end of a turn that is aborted; nobody, where the client does not read."""
        retirement = self.life.retirement
        if error is None or retirement is None:
            return NOTHING
        told = [self.lanes.tell_refused(lane, retirement.error) for lane in self.lanes.by_name.values()]
        return [action for each in told for action in each]

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self, now: float, blocked_since: float | None = None) -> Actions:
        """Look at all time limits.

        Args:
            now: Present time.
            blocked_since: Since when a write waits for the client, None if none does. The upstream's own time limits
                stand still meanwhile: it is not its fault.
        """
        if self.life.is_over:
            return NOTHING
        limits = self.limits
        self._ticked_at = now
        if blocked_since is not None:
            if limits.send_timeout_s is not None and now >= blocked_since + limits.send_timeout_s:
                return self._close(1008, "client does not read")
            for turn in self.running:
                turn.heard_at = now
        actions: list[Action] = []
        if self.life.is_too_old(now):
            actions += self._retire_for_age(now)
        retirement = self.life.retirement
        if retirement is not None and self.running and now >= retirement.deadline:
            actions += [AbortTurn(turn, retirement.error) for turn in self.running]
            return actions
        for turn in self.running:
            actions += patience.watch(turn, limits, self._keepalive_s, now)
        if not self.running and self.life.is_idle(now):
            actions += self._close(1001, "idle")
        return actions

    def _retire_for_age(self, now: float) -> Actions:
        limits = self.limits
        assert limits.max_connection_age_s is not None
        notice = self._age_notice or bool(self.running)
        error = ConnectionLimitReached(limits.max_connection_age_s)
        return self.retire(
            now, error=error, close_code=1001, reason=error.message, grace_s=limits.age_grace_s, notice=notice
        )

    def next_deadline(self) -> float:
        """When the next ``tick`` is wanted (``inf``: never)."""
        if self.life.is_over:
            return inf
        deadline = self.life.deadline(busy=bool(self.running))
        if not self.running:
            return deadline
        for turn in self.running:
            deadline = min(deadline, patience.deadline(turn, self.limits, self._keepalive_s))
        return min(deadline, self._ticked_at + self.look_every_s)
