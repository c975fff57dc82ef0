"""The lanes of a connection: what runs on them, and what waits."""

from collections.abc import Callable, Iterable

from ws_responses.errors import LocalProtocolError, QueueFull, StreamLimitReached, WireError
from ws_responses.limits import Limits
from ws_responses.protocol import steering
from ws_responses.protocol.actions import NOTHING, Action, Actions, DropTurn, Send, StartTurn, TurnQueued
from ws_responses.protocol.creates import ResponseCreate
from ws_responses.protocol.events import encode_error
from ws_responses.protocol.phases import TurnInput
from ws_responses.protocol.turns import Lane, Turn


class Lanes:
    """The turns of a connection: first in, first out in a lane, concurrent across lanes.

    Args:
        limits: The bounds.
        turn_ids: Makes ids of turns.

    Attributes:
        by_name: The lanes that a create was admitted to, by ``stream_id``; None stands for the default lane.
        running: The turns that run, in the order of their start.
        queued_creates: Number of those that wait.
        queued_bytes: Bytes of their frames.
        started: Number of turns that were started so far.
    """

    __slots__ = ("_limits", "_orders", "_turn_ids", "by_name", "queued_bytes", "queued_creates", "running", "started")

    def __init__(self, limits: Limits, turn_ids: Callable[[], str]) -> None:
        self.by_name: dict[str | None, Lane] = {}
        self.running: list[Turn] = []
        self.queued_creates = 0
        self.queued_bytes = 0
        self.started = 0
        self._limits = limits
        self._turn_ids = turn_ids
        self._orders = 0

    def find(self, response_id: str) -> tuple[Turn | None, Lane | None]:
        """Return the running turn of a response, and its lane; the lane alone if it is the latest response there."""
        turn = next((turn for turn in self.running if turn.response_id == response_id), None)
        if turn is not None:
            return turn, turn.lane
        return None, next((lane for lane in self.by_name.values() if lane.latest == response_id), None)

    # -- coming ------------------------------------------------------------------------------------------------------

    def accept(self, create: ResponseCreate, now: float, *, injects: bool) -> Actions:
        """Start the turn of a create, or let it wait.

        Args:
            create: The frame.
            now: Present time.
            injects: See :class:`Turn`.

        Raises:
            QueueFull: Too much waits already.
            StreamLimitReached: Its lane would be one too many.
        """
        lane = self._lane(create.lane)
        if lane.running is None and not lane.queue and len(self.running) < self._limits.max_running_turns:
            return (self._start(self._admit(create, lane, injects=injects), now),)
        self._check_room(create)
        turn = self._admit(create, lane, injects=injects)
        lane.queue.append(turn)
        self.queued_creates += 1
        self.queued_bytes += create.size
        return (TurnQueued(turn),)

    def succeed(self, turn: Turn, create: ResponseCreate, now: float) -> tuple[Turn, StartTurn]:
        """Start the successor of a turn that is over: at once, before all that waits on its lane."""
        successor = Turn(self._turn_ids(), create, turn.lane, turn.order, automatic=True)
        return successor, self._start(successor, now)

    def start_waiting(self, now: float) -> Actions:
        """Start what may run now, the oldest first."""
        started: list[Action] = []
        while len(self.running) < self._limits.max_running_turns:
            waiting = [lane for lane in self.by_name.values() if lane.queue and lane.running is None]
            if not waiting:
                break
            lane = min(waiting, key=lambda lane: lane.queue[0].order)
            started.append(self._start(self._unqueue(lane), now))
        return started

    def _lane(self, name: str | None) -> Lane:
        """Return the lane of a name; a new one is not taken into the books before its create is admitted."""
        lane = self.by_name.get(name)
        if lane is not None:
            return lane
        if name is not None and len(self.by_name.keys() - {None}) >= self._limits.max_lanes:
            raise StreamLimitReached(self._limits.max_lanes)
        return Lane(name)

    def _check_room(self, create: ResponseCreate) -> None:
        if self.queued_creates >= self._limits.max_queued_creates:
            raise QueueFull(f"{self.queued_creates} requests wait on this connection already; that is its limit.")
        most = self._limits.max_queued_bytes
        if self.queued_bytes + create.size > most:
            raise QueueFull(f"The requests waiting on this connection would exceed {most} bytes.")

    def _admit(self, create: ResponseCreate, lane: Lane, *, injects: bool) -> Turn:
        self.by_name[lane.name] = lane
        turn = Turn(self._turn_ids(), create, lane, self._orders)
        turn.injects = injects
        self._orders += 1
        return turn

    def _start(self, turn: Turn, now: float) -> StartTurn:
        lane, create = turn.lane, turn.create
        if lane.held and create.previous_response_id == lane.held[0].target and not create.warm_up:
            turn.carried, lane.held = lane.held, ()
            turn.create = steering.with_steers(create, turn.carried)
        turn.move(TurnInput.START)
        lane.running = turn
        turn.heard_at = turn.kept_alive_at = now
        self.running.append(turn)
        self.started += 1
        return StartTurn(turn)

    # -- going -------------------------------------------------------------------------------------------------------

    def end(self, turn: Turn) -> None:
        """Free the lane of a turn that is over."""
        lane = turn.lane
        if lane.running is not turn:
            raise LocalProtocolError(f"turn {turn.id} does not run on its lane")
        turn.move(TurnInput.END)
        lane.running = None
        self.running.remove(turn)

    def drop_queued(self, error: WireError | None = None, lanes: Iterable[Lane] | None = None) -> Actions:
        """Drop what waits.

        Args:
            error: What each of them is told; None for nothing.
            lanes: Where; None for everywhere.
        """
        dropped: list[Turn] = []
        for lane in self.by_name.values() if lanes is None else lanes:
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

    def refuse_queued(self, error: WireError) -> Actions:
        """Drop what waits: it is told so at once where nothing runs on its lane, and else when that is over."""
        actions: list[Action] = []
        for action in self.drop_queued():
            actions.append(action)
            if type(action) is DropTurn:
                actions += self.refuse(action.turn.lane.name, error)
        return actions

    def refuse(self, name: str | None, error: WireError) -> Actions:
        """Tell of a create that it will not run: behind the turn that runs on its lane, whose end it would be taken for.

        Only so many wait for that.
        """
        lane = self.by_name.get(name)
        if lane is None or lane.running is None or lane.refused >= self._limits.max_queued_creates:
            return (Send(encode_error(error, stream_id=name)),)
        lane.refused += 1
        return NOTHING

    def tell_refused(self, lane: Lane, error: WireError) -> Actions:
        """Tell those of a lane that wait for that."""
        refused, lane.refused = lane.refused, 0
        return [Send(encode_error(error, stream_id=lane.name))] * refused

    def _unqueue(self, lane: Lane) -> Turn:
        turn = lane.queue.pop(0)
        self.queued_creates -= 1
        self.queued_bytes -= turn.create.size
        return turn
