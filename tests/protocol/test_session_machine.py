"""The session beside a naive model: whatever peer, upstream, clock and operator do, in any order."""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.protocol.reference import (
    Appending,
    Cancelling,
    Create,
    Ignored,
    Injecting,
    Refusal,
    Steering,
    judge_append,
    read_frame,
)
from ws_responses.errors import (
    Forbidden,
    LocalProtocolError,
    ResponseCancelled,
    Unavailable,
    UpstreamTimeout,
    WireError,
)
from ws_responses.limits import Limits
from ws_responses.protocol import pending_injections, pending_steers
from ws_responses.protocol.actions import (
    AbortTurn,
    Action,
    Actions,
    Close,
    DropTurn,
    EndEarly,
    KeepAlive,
    ResumeTurn,
    Send,
    StartTurn,
    TellSteer,
    TurnQueued,
)
from ws_responses.protocol.calls import CallState, OpenCall
from ws_responses.protocol.frames import decode_members
from ws_responses.protocol.phases import SessionPhase, TurnPhase
from ws_responses.protocol.session import Session
from ws_responses.protocol.steering import Ending
from ws_responses.protocol.turns import Turn
from ws_responses.testing.strategies import client_frames

LANES = ["a", "b", "c", "d", None]
RARELY = st.sampled_from([False] * 30 + [True])
"""Most runs should be long before they end."""
LOOKS = 1.25
"""How late a limit on silence may fire, as a multiple of it."""


STUB = {"type": "function_call_output", "call_id": "c", "name": "f"}
ENDINGS = [
    Ending("completed", continuable=True),
    Ending("completed", continuable=True, required=[STUB]),
    Ending("completed", continuable=True, required=[STUB]),
    Ending("incomplete", continuable=True),
    Ending("completed"),
    Ending(message="It broke."),
]


@dataclass
class Submitted:
    """What the model knows of one accepted steer: where it is, and in the end what has become of it."""

    id: str
    target: str
    input: Any
    size: int
    state: str = "queued"
    """queued (on its running target), held (for the client), carried (by a turn), committed, returned or lost."""


@dataclass
class Known:
    """What the model knows of one turn."""

    turn: Turn
    lane: str | None
    size: int
    parent: str | None = None
    warm_up: bool = False
    given: Any = None
    response: str | None = None
    injects: bool = False
    open_calls: list[str] | None = None
    injected: list[tuple[list[str], int]] = field(default_factory=list)
    steers: list[Submitted] = field(default_factory=list)
    carried: list[Submitted] = field(default_factory=list)
    state: str = "waiting"
    nth: int = 0
    alive_at: float = 0.0
    kept_at: float = 0.0
    heard: bool = False
    excused: bool = False
    blocked_at: float | None = None
    blocks: int = 0
    calls: list[str] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)


def size_of(data: str | bytes) -> int:
    """Bytes of a steer's input as it was sent."""
    return len(bytes(decode_members(data)["input"]))


def as_input(given: Any) -> Any:
    """The items that an input stands for; the machine gives one."""
    if isinstance(given, str):
        return {"type": "message", "role": "user", "content": given}
    (item,) = given
    return item


def is_open(machine: "SessionMachine") -> bool:
    return machine.phase in ("open", "retiring")


class SessionMachine(RuleBasedStateMachine):
    @initialize(
        lanes=st.sampled_from([4, 4, 4, 3, 2, 0]),
        running=st.sampled_from([2, 2, 3, 1]),
        queued=st.sampled_from([9, 9, 9, 9, 3, 0]),
        queued_bytes=st.sampled_from([100_000, 100_000, 100_000, 400, 0]),
        first=st.sampled_from([None, 20.0, 3.3]),
        between=st.sampled_from([None, 8.0, 0.7]),
        send=st.sampled_from([None, 60.0, 6.0]),
        age=st.sampled_from([None, 100.1, 30.0]),
        grace=st.sampled_from([10.0, 3.0, 0.0]),
        idle=st.sampled_from([None, None, 41.3]),
        keepalive=st.sampled_from([None, 5.0]),
        notice=st.booleans(),
        opened_at=st.sampled_from([0.0, 1e6 + 0.1, -5.5]),
        cancels=st.sampled_from([True, True, False]),
        mode=st.sampled_from(["injects", "injects", "appends", "appends", "neither"]),
        blocks=st.sampled_from([9, 9, 2, 1]),
        patience=st.sampled_from([None, 30.0, 2.5]),
    )
    def open(
        self,
        lanes: int,
        running: int,
        queued: int,
        queued_bytes: int,
        first: float | None,
        between: float | None,
        send: float | None,
        age: float | None,
        grace: float,
        idle: float | None,
        keepalive: float | None,
        notice: bool,
        opened_at: float,
        cancels: bool,
        mode: str,
        blocks: int,
        patience: float | None,
    ) -> None:
        self.limits = Limits(
            max_lanes=lanes,
            max_running_turns=running,
            max_queued_creates=queued,
            max_queued_bytes=queued_bytes,
            max_frame_bytes=1 << 16,
            first_event_timeout_s=first,
            event_timeout_s=between,
            send_timeout_s=send,
            max_connection_age_s=age,
            age_grace_s=grace,
            idle_timeout_s=idle,
            max_pending_steers=3,
            max_pending_steer_bytes=60,
            max_rollout_appends=blocks if mode == "appends" else 512,
            blocked_timeout_s=patience if mode == "appends" else None,
        )
        self.steers: list[Submitted] = []
        self.held: dict[str | None, list[Submitted]] = {}
        self.latest: dict[str | None, tuple[str, bool]] = {}
        self.responses = 0
        self.keepalive = keepalive
        self.cancels = cancels
        self.injects = injects = mode == "injects"
        self.appends = appends = mode == "appends"
        self.age_notice = notice
        self.now = self.opened_at = self.active_at = opened_at
        self.blocked_since: float | None = None
        self.turns: list[Known] = []
        self.names: set[str | None] = set()
        self.phase = "open"
        self.retired_at: float | None = None
        self.retired_code = 0
        self.retired_error = ""
        self.refused: dict[str | None, int] = {}
        self.noticed = False
        self.closed: list[int] = []
        self.ids = 0
        self.wakes_at = float("inf")
        self.unasked = False
        self.session = Session(
            self.limits,
            now=self.now,
            turn_ids=self.new_id,
            keepalive_s=keepalive,
            age_notice=notice,
            accept_cancel=cancels,
            injects=injects,
            appends=appends,
            steer_ids=lambda: f"steer_{len(self.steers)}",
        )

    def new_id(self) -> str:
        self.ids += 1
        return f"turn_{self.ids}"

    # -- the model ---------------------------------------------------------------------------------------------------

    def of(self, *states: str) -> list[Known]:
        return [known for known in self.turns if known.state in states]

    @property
    def running(self) -> list[Known]:
        return sorted(self.of("running"), key=lambda known: known.nth)

    @property
    def waiting(self) -> list[Known]:
        return self.of("waiting")

    def startable(self) -> list[Known]:
        """The waiting turns that must start now, each the oldest whose lane is free."""
        started: list[Known] = []
        busy = {known.lane for known in self.running}
        for known in self.waiting:
            if len(busy) < self.limits.max_running_turns and known.lane not in busy:
                started.append(known)
                busy.add(known.lane)
        return started

    def expect_create(self, lane: str | None, size: int) -> str:
        if self.phase == "retiring":
            return self.retired_error
        if lane is not None and lane not in self.names and len(self.names) >= self.limits.max_lanes:
            return "websocket_stream_limit_reached"
        if lane not in {k.lane for k in self.running + self.waiting} and (
            len(self.running) < self.limits.max_running_turns
        ):
            return "start"
        waiting = self.waiting
        if len(waiting) >= self.limits.max_queued_creates:
            return "websocket_queue_full"
        if sum(known.size for known in waiting) + size > self.limits.max_queued_bytes:
            return "websocket_queue_full"
        return "queue"

    def books(self) -> Any:
        session = self.session
        lanes = {name: (lane.running, list(lane.queue)) for name, lane in session.lanes.by_name.items()}
        books = (
            lanes,
            list(session.running),
            session.lanes.queued_creates,
            session.lanes.queued_bytes,
            session.phase,
            self.ids,
        )
        own = [(turn.steers, turn.injections, turn.blocked, turn.blocks, turn.phase) for turn in session.running]
        return *books, pending_steers.pending(session.lanes), own

    # -- carrying out actions, as the shell does ---------------------------------------------------------------------

    def carry_out(self, actions: Actions) -> list[Action]:
        done: list[Action] = []
        for action in actions:
            done.append(action)
            assert not isinstance(action, StartTurn | TurnQueued), "only a create or an end starts something"
            assert not isinstance(action, TellSteer | EndEarly), "only a steer, an end or a beginning is told of steers"
            if isinstance(action, AbortTurn):
                known = self.known(action.turn)
                assert known.state == "running"
                self.check_abort(known, action.error)
                done += self.end_turn(known, "aborted")
            elif isinstance(action, DropTurn):
                known = self.known(action.turn)
                assert known.state == "waiting"
                known.state = "dropped"
                known.ends.append("dropped")
            elif isinstance(action, ResumeTurn):
                known = self.known(action.turn)
                assert action.appended is None, "only an injection brings something"
                if known.blocked_at is not None:
                    patience = self.limits.blocked_timeout_s
                    is_late = patience is not None and self.now >= known.blocked_at + patience
                    assert self.retired_at is not None or is_late, "let go too early"
                    self.resume_rollout(known)
                    continue
                assert known.open_calls is not None
                self.resume(known)
            elif isinstance(action, KeepAlive):
                known = self.known(action.turn)
                assert known.state == "running"
                assert known.open_calls is None
                assert known.blocked_at is None, "its client is not waiting"
                assert self.keepalive is not None
                assert self.now >= known.alive_at + self.keepalive
                known.kept_at = self.now
            elif isinstance(action, Close):
                self.phase = "closing"
                self.closed.append(action.code)
        return done

    def known(self, turn: Turn) -> Known:
        (known,) = (each for each in self.turns if each.turn is turn)
        return known

    def check_abort(self, known: Known, error: WireError | None) -> None:
        if isinstance(error, ResponseCancelled):
            assert self.cancels
        elif isinstance(error, UpstreamTimeout):
            patience = self.patience(known)
            assert patience is not None
            assert known.blocked_at is None, "the upstream has nothing to say"
            assert self.blocked_since is None
            assert self.now >= known.alive_at + patience, "aborted too early"
        elif error is not None and self.retired_at is not None and error.code == self.retired_error:
            assert self.now >= self.retired_at + self.limits.age_grace_s, "no grace"

    def patience(self, known: Known) -> float | None:
        return self.limits.event_timeout_s if known.heard else self.limits.first_event_timeout_s

    def end_turn(self, known: Known, how: str, ending: Ending | None = None) -> list[Action]:
        actions = self.session.turn_ended(known.turn, self.now, *([] if ending is None else [ending]))
        known.state = "ended"
        known.ends.append(how)
        self.active_at = self.now
        actions = list(actions)
        self.expect_told(known, actions, ending or Ending())
        successor = actions.pop(0) if self.phase == "open" and known.steers else None
        injected, known.injected, known.open_calls = known.injected, [], None
        for _ in injected if self.phase in ("open", "retiring") else ():
            told = actions.pop(0)
            assert isinstance(told, TellSteer)
            assert (told.turn, told.kind) == (known.turn, "response.inject.failed")
            assert told.members["error"]["code"] == "response_already_completed"
        if known.response is not None:
            self.latest[known.lane] = known.response, ending is not None and ending.status == "completed"
        if self.phase == "open":
            if successor is not None:
                self.succeed(known, successor)
            expected = self.startable()
            assert actions == [StartTurn(each.turn) for each in expected]
            for each in expected:
                self.start(each)
            return []
        assert not known.steers
        if self.phase == "retiring":
            self.expect_refused(known.lane, actions)
            if not self.running:
                return self.expect_finish(actions)
        assert not actions
        return []

    def start(self, known: Known) -> None:
        known.state = "running"
        known.alive_at = known.kept_at = self.now
        known.nth = sum(each.nth > 0 for each in self.turns) + 1
        held = self.held.get(known.lane, [])
        own = [] if known.given is None else [known.given]
        if held and not known.warm_up and held[0].target == known.parent:
            known.carried = self.held.pop(known.lane)
        for steer in known.carried:
            steer.state = "carried"
        if known.carried:
            assert not known.warm_up
            assert self.input_of(known.turn) == [
                *map(as_input, [steer.input for steer in known.carried]),
                *map(as_input, own),
            ]

    @staticmethod
    def input_of(turn: Turn) -> list[Any]:
        return [json.loads(bytes(item)) for item in turn.create.items()]

    # -- steers, as the model has them -------------------------------------------------------------------------------

    def expect_told(self, known: Known, actions: list[Action], ending: Ending) -> None:
        """Take from the actions what is to be told of the steers of a turn that is over."""
        carried, known.carried = known.carried, []
        if self.phase in ("closing", "closed"):
            for steer in (*carried, *known.steers):
                steer.state = "lost"
            known.steers = []
            return
        self.expect_returned(known, actions, carried, "successor_creation_failed")
        if ending.status == "failed":
            code = "response_not_active"
        elif self.phase == "retiring" or not ending.continuable:
            code = "successor_creation_failed"
        elif ending.required:
            for steer in known.steers:
                told = actions.pop(0)
                assert isinstance(told, TellSteer)
                assert (told.turn, told.kind) == (known.turn, "response.steer.pending")
                assert told.members == {
                    "steer": {"id": steer.id, "previous_response_id": known.response},
                    "reason": "waiting_for_required_input",
                    "required_input": [STUB],
                }
                steer.state = "held"
            if known.steers:
                assert not self.held.get(known.lane)
                self.held[known.lane] = known.steers
            known.steers = []
            return
        else:
            return
        self.expect_returned(known, actions, known.steers, code)
        known.steers = []

    def expect_returned(self, known: Known, actions: list[Action], steers: list[Submitted], code: str) -> None:
        for steer in steers:
            told = actions.pop(0)
            assert isinstance(told, TellSteer)
            assert (told.turn, told.kind) == (known.turn, "response.steer.failed")
            members = json.loads(msgspec.json.encode(told.members))
            assert members["error"]["code"] == code
            assert members["steer"] == {
                "id": steer.id,
                "previous_response_id": steer.target,
                "input": steer.input,
            }
            steer.state = "returned"

    def succeed(self, known: Known, started: Action) -> None:
        """A steered response that has ended is followed by another on its lane, before all that waits there."""
        assert isinstance(started, StartTurn)
        turn = started.turn
        assert turn.automatic
        assert turn.create.body == known.turn.inherited
        assert turn.create.previous_response_id == known.response
        successor = Known(turn, known.lane, turn.create.size, parent=known.response, carried=known.steers)
        known.steers = []
        self.turns.append(successor)
        self.start(successor)

    def open_steers(self) -> list[Submitted]:
        return [steer for steer in self.steers if steer.state in ("queued", "held", "carried")]

    def expect_steer(self, meant: Steering, size: int) -> tuple[str, Known | None, str | None]:
        """Return what becomes of a steer, its target, and the lane that is named."""
        target = next((known for known in self.running if known.response == meant.target), None)
        lanes = [lane for lane, (response, _) in self.latest.items() if response == meant.target]
        lane = target.lane if target is not None else lanes[0] if lanes else None
        if not meant.good:
            return "invalid_input", None, lane
        if target is None and not lanes:
            return "response_not_found", None, None
        if target is None and self.latest[lane][1]:
            return "response_already_completed", None, lane
        if target is None or self.phase == "retiring":
            return "response_not_active", None, lane
        if target.turn.inherited is None:
            return "steering_not_supported", None, lane
        pending = self.open_steers()
        if len(pending) >= 3 or sum(steer.size for steer in pending) + size > 60:
            return "too_many_pending_steers", None, lane
        return "accepted", target, lane

    @precondition(is_open)
    @rule(data=st.data(), good=st.sampled_from([True] * 6 + [False]), text=st.sampled_from(["x", "y" * 25, "z" * 80]))
    def steer(self, data: st.DataObject, good: bool, text: str) -> None:
        """Aim at what runs, at what has run, or at nothing."""
        known = [each.response for each in self.running if each.response is not None]
        targets = [*known, *known, *known, *[response for response, _ in self.latest.values()], "resp_0"]
        target = data.draw(st.sampled_from(targets))
        given = data.draw(st.sampled_from([text, [{"role": "user", "content": text}]]))
        frame = {"type": "response.steer", "previous_response_id": target, "input": given}
        self.frame(json.dumps(frame if good else {**frame, "stream_id": "a"}, separators=(",", ":")))

    @precondition(is_open)
    @rule(
        data=st.data(),
        lane=st.sampled_from(["a", "b", None]),
        begins=st.sampled_from([True] * 5 + [False]),
        texts=st.lists(st.sampled_from(["x", "yy", "z" * 25]), max_size=2),
        ends=st.booleans(),
    )
    def steered_turn(self, data: st.DataObject, lane: str | None, begins: bool, texts: list[str], ends: bool) -> None:
        """The usual way of a steered turn, which single rules take too rarely."""
        if lane not in {known.lane for known in self.running}:
            self.create([lane], "", data.draw(st.sampled_from([True, True, False])), warm_up=False, agents=False)
        running = [known for known in self.running if known.lane == lane]
        if not running:
            return
        (known,) = running
        if known.response is None and begins:
            self.begin(known, steerable=True)
        for text in texts if known.response is not None else ():
            frame = {"type": "response.steer", "previous_response_id": known.response, "input": text}
            self.frame(json.dumps(frame))
        if ends and known.state == "running":
            self.end_turn(known, "ended", None if known.response is None else data.draw(st.sampled_from(ENDINGS)))

    def take_steer(self, meant: Steering, size: int, actions: Actions) -> bool:
        """Check the answer to a steer; return whether it was accepted."""
        outcome, known, lane = self.expect_steer(meant, size)
        if known is None:
            (refused,) = actions
            assert isinstance(refused, Send)
            told = json.loads(refused.frame)
            assert (told["error"]["code"], told.get("stream_id")) == (outcome, lane)
            assert told["steer"] == {"previous_response_id": meant.target, "input": meant.input}
            return False
        accepted, early = actions
        assert isinstance(accepted, TellSteer)
        assert (accepted.turn, accepted.kind) == (known.turn, "response.steer.accepted")
        assert early == EndEarly(known.turn)
        submitted = Submitted(f"steer_{len(self.steers)}", meant.target, meant.input, size)
        assert accepted.members == {"steer": {"id": submitted.id, "previous_response_id": meant.target}}
        self.steers.append(submitted)
        known.steers.append(submitted)
        return True

    # -- injections, as the model has them ---------------------------------------------------------------------------

    @precondition(lambda self: self.injects and is_open(self))
    @rule(
        data=st.data(),
        lane=st.sampled_from(["a", "b", None]),
        early=st.lists(st.sampled_from([["c1"], ["c2"], ["cx"]]), max_size=2),
        late=st.lists(st.sampled_from([["c1"], ["c2"], ["c1", "c2"], ["cx"]]), max_size=3),
        ends=st.booleans(),
    )
    def injected_turn(
        self, data: st.DataObject, lane: str | None, early: list[list[str]], late: list[list[str]], ends: bool
    ) -> None:
        """The usual way of a turn that takes injections, which single rules take too rarely."""
        if lane not in {known.lane for known in self.running}:
            self.create([lane], "", continues=False, warm_up=False, agents=True)
        takers = [known for known in self.running if known.lane == lane and known.injects]
        if not takers:
            return
        (known,) = takers
        if known.response is None:
            self.begin(known, steerable=False)
        for calls in early:
            self.inject_into(known, calls)
        if known.open_calls is None:
            self.block_by(known, data.draw(st.sampled_from([["c1"], ["c1", "c2"]])))
        for calls in late:
            self.inject_into(known, calls)
        if ends and known.state == "running":
            self.end_turn(known, "ended", data.draw(st.sampled_from(ENDINGS)))

    def inject_into(self, known: Known, calls: list[str]) -> None:
        items = [{"type": "function_call_output", "call_id": call, "output": "x"} for call in calls]
        self.frame(json.dumps({"type": "response.inject", "response_id": known.response, "input": items}))

    @precondition(lambda self: self.injects and self.running)
    @rule(data=st.data(), calls=st.sampled_from([["c1"], ["c1", "c2"], ["c1", "c2"]]))
    def block(self, data: st.DataObject, calls: list[str]) -> None:
        """A response that takes injections has made calls and waits; what came before goes into it, or back."""
        ready = [known for known in self.running if known.injects and known.response and known.open_calls is None]
        if not ready:
            return
        self.block_by(data.draw(st.sampled_from(ready)), calls)

    def block_by(self, known: Known, calls: list[str]) -> None:
        if not self.session.may_block(known.turn):
            assert self.phase == "retiring"
            return
        state = CallState(tuple(OpenCall("function_call", call, required=True) for call in calls))
        early, known.injected, known.open_calls = known.injected, [], list(calls)
        actions = list(self.session.turn_blocked(known.turn, state, self.now))
        for given, size in early:
            if not self.expect_answers(known, given, size):
                told = actions.pop(0)
                assert isinstance(told, TellSteer)
                assert (told.turn, told.kind) == (known.turn, "response.inject.failed")
                assert told.members["error"]["code"] == "tool_call_not_found"
        self.expect_committed(known, actions)

    def expect_answers(self, known: Known, given: list[str], size: int) -> bool:
        """Take outputs for a response that waits; all of a submission or nothing of it."""
        assert known.open_calls is not None
        if len(set(given)) != len(given) or not set(given) <= set(known.open_calls):
            return False
        known.open_calls = [call for call in known.open_calls if call not in given]
        known.injected.append((given, size))
        return True

    def expect_committed(self, known: Known, actions: list[Action]) -> None:
        """When all has come, each submission is told so in its order, and the response goes on with all of it."""
        if known.open_calls or known.open_calls is None or not known.injected:
            assert not actions
            return
        *told, resumed = actions
        for action in told:
            assert isinstance(action, TellSteer)
            assert (action.turn, action.kind) == (known.turn, "response.inject.created")
            assert action.members == {"response_id": known.response}
        assert len(told) == len(known.injected)
        assert isinstance(resumed, ResumeTurn)
        assert resumed.turn is known.turn
        assert resumed.appended is not None
        items = json.loads(b"[" + resumed.appended.items + b"]")
        assert [item["call_id"] for item in items] == [call for given, _ in known.injected for call in given]
        known.injected = []
        self.resume(known)

    def resume(self, known: Known) -> None:
        known.open_calls = None
        known.alive_at = known.kept_at = self.now
        known.excused = True

    @precondition(lambda self: is_open(self) and (self.injects or self.running))
    @rule(
        data=st.data(),
        calls=st.sampled_from([["c1"], ["c2"], ["c1", "c2"], ["c1", "c1"], ["cx"], []]),
        waiting=st.sampled_from([True, True, True, False]),
    )
    def inject(self, data: st.DataObject, calls: list[str], waiting: bool) -> None:
        """Aim at what takes injections, at what runs, at what has run, or at nothing."""
        known = [each for each in self.running if each.response is not None]
        takers = [each.response for each in known if each.injects]
        targets = takers if waiting and takers else [each.response for each in known]
        targets = [*targets, *targets, *[response for response, _ in self.latest.values()], "resp_0"]
        target = data.draw(st.sampled_from(targets))
        items = [{"type": "function_call_output", "call_id": call, "output": "x"} for call in calls]
        self.frame(json.dumps({"type": "response.inject", "response_id": target, "input": items}))

    def take_injection(self, meant: Injecting, data: str | bytes, actions: Actions) -> bool:
        """Check the answer to an injection; return whether it was taken."""
        target = next((known for known in self.running if known.response == meant.target), None)
        lanes = [lane for lane, (response, _) in self.latest.items() if response == meant.target]
        size = size_of(data)
        pending = [size for known in self.running for _, size in known.injected]
        given = [str(item["call_id"]) for item in meant.input] if meant.good else []
        if target is None:
            code = "response_already_completed" if lanes else "response_not_found"
        elif not target.injects:
            code = "response_not_found"
        elif (
            len(target.injected) >= self.limits.max_queued_creates or sum(pending) + size > self.limits.max_queued_bytes
        ):
            code = "websocket_queue_full"
        elif not meant.good:
            code = "invalid_input"
        elif target.open_calls is None:
            target.injected.append((given, size))
            assert not actions
            return True
        elif self.expect_answers(target, given, size):
            self.expect_committed(target, list(actions))
            return True
        else:
            code = "tool_call_not_found"
        (refused,) = actions
        assert isinstance(refused, Send)
        told = json.loads(refused.frame)
        lane = target.lane if target is not None else lanes[0] if lanes else None
        assert (told["error"]["code"], told.get("stream_id")) == (code, lane)
        if size <= self.limits.max_pending_steer_bytes:
            assert (told["type"], told["response_id"]) == ("response.inject.failed", meant.target)
            assert told["input"] == meant.input
        else:
            assert told["type"] == "error"
        return False

    # -- cancels, as the model has them ------------------------------------------------------------------------------

    @precondition(is_open)
    @rule(data=st.data(), lane=st.sampled_from(LANES), by=st.sampled_from(["id", "id", "lane", "both"]))
    def cancel(self, data: st.DataObject, lane: str | None, by: str) -> None:
        """Aim at what runs, at what waits, at what has run, or at nothing."""
        known = [each.response for each in self.running if each.response is not None]
        targets = [*known, *known, *[response for response, _ in self.latest.values()], "resp_0"]
        frame = {"type": "response.cancel"}
        if by != "lane":
            frame["response_id"] = data.draw(st.sampled_from(targets))
        if by != "id" and lane is not None:
            frame["stream_id"] = lane
        self.frame(json.dumps(frame))

    def expect_cancel(self, meant: Cancelling) -> str | None:
        """Return the code of the refusal of a cancel, None if it stops something."""
        if meant.response_id is None:
            busy = any(known.lane == meant.lane for known in self.running + self.waiting)
            return None if busy else "response_not_active"
        running = [known.lane for known in self.running if known.response == meant.response_id]
        ended = [lane for lane, (response, _) in self.latest.items() if response == meant.response_id]
        lanes = running or ended
        if not lanes or (meant.named and lanes[0] != meant.lane):
            return "response_not_found"
        if running:
            return None
        return "response_already_completed" if self.latest[lanes[0]][1] else "response_not_active"

    def take_cancel(self, meant: Cancelling, actions: Actions) -> None:
        """What runs is aborted, and told so; what waits on a cancelled lane never starts; nothing else is touched."""
        if meant.response_id is not None:
            running = [known for known in self.running if known.response == meant.response_id]
            waiting: list[Known] = []
        else:
            running = [known for known in self.running if known.lane == meant.lane]
            waiting = [known for known in self.waiting if known.lane == meant.lane]
        for known in waiting:
            known.state = "dropped"
            known.ends.append("cancelled")
        aborts, dropped = list(actions[: len(running)]), actions[len(running) :]
        assert [action.turn for action in aborts if isinstance(action, AbortTurn)] == [known.turn for known in running]
        for known, drop, send in zip(waiting, dropped[::2], dropped[1::2], strict=True):
            assert drop == DropTurn(known.turn)
            assert isinstance(send, Send)
            told = json.loads(send.frame)
            assert (told["error"]["code"], told.get("stream_id")) == ("response_cancelled", known.lane)
        for abort in aborts:
            assert isinstance(abort, AbortTurn)
            assert isinstance(abort.error, ResponseCancelled)
        self.carry_out(aborts)

    # -- rollouts, as the model has them -----------------------------------------------------------------------------

    def resume_rollout(self, known: Known) -> None:
        known.blocked_at = None
        known.alive_at = known.kept_at = self.now
        assert known.turn.phase is TurnPhase.STREAMING

    @precondition(lambda self: self.appends and self.running)
    @rule(
        lane=st.sampled_from(["a", "b", None]),
        calls=st.lists(st.sampled_from(["c1", "c2", "c3"]), min_size=1, max_size=2, unique=True),
        begins=st.booleans(),
    )
    def block_rollout(self, lane: str | None, calls: list[str], begins: bool) -> None:
        """A step ends by calls: the rollout waits, unless it must not."""
        running = [known for known in self.running if known.lane == lane and known.blocked_at is None]
        if not running:
            return
        (known,) = running
        if known.response is None and begins:
            self.begin(known, steerable=False)
        may = self.phase == "open" and known.blocks < self.limits.max_rollout_appends
        assert self.session.may_block(known.turn) == may
        if not may or known.response is None:
            return
        state = CallState(tuple(OpenCall("function_call", name, required=True) for name in calls))
        self.session.turn_blocked(known.turn, state, self.now)
        assert known.turn.phase is TurnPhase.BLOCKED
        known.blocked_at, known.calls = self.now, calls
        known.blocks += 1

    @precondition(lambda self: self.appends and is_open(self))
    @rule(
        lane=st.sampled_from(["a", "b", None]),
        rounds=st.lists(st.sampled_from([True, True, True, False]), max_size=4),
        waits=st.booleans(),
    )
    def rollout(self, lane: str | None, rounds: list[bool], waits: bool) -> None:
        """The usual way of a rollout, which single rules take too rarely."""
        if lane not in {known.lane for known in self.running}:
            self.create([lane], "", continues=False, warm_up=False, agents=False)
        for complete in rounds:
            self.block_rollout(lane, ["c1", "c2"], begins=True)
            self.append(lane, ["c2"], None, fitting=complete)
            self.append(lane, ["c1"], None, fitting=True)
        if waits:
            self.block_rollout(lane, ["c3"], begins=True)

    @precondition(is_open)
    @rule(
        lane=st.sampled_from(["a", "b", None]),
        names=st.lists(st.sampled_from(["c1", "c2", "c3"]), max_size=2),
        wrong=st.sampled_from([None, None, None, None, "compaction", "words", "member"]),
        fitting=st.booleans(),
    )
    def append(self, lane: str | None, names: list[str], wrong: str | None, fitting: bool) -> None:
        """Bring outputs to a lane, that fit or not."""
        waits = [known.calls for known in self.running if known.lane == lane and known.blocked_at is not None]
        if waits and fitting:
            names = waits[0]
        items: list[Any] = [{"type": "function_call_output", "call_id": name, "output": "x"} for name in names]
        if wrong == "words":
            items.append({"role": "user", "content": "x"})
        if wrong == "compaction":
            items.append({"type": "compaction", "encrypted_content": "x"})
        frame: dict[str, Any] = {"type": "response.append", "input": items}
        if wrong == "member":
            frame["previous_response_id"] = "resp_1"
        if lane is not None:
            frame["stream_id"] = lane
        self.frame(json.dumps(frame))

    def take_append(self, meant: Appending, actions: Actions) -> str | None:
        """Return the code of the refusal of an append, None if it resumes the rollout of its lane."""
        running = [known for known in self.running if known.lane == meant.lane]
        if not running:
            return "rollout_not_found"
        (known,) = running
        if known.blocked_at is None:
            return "rollout_not_blocked"
        code = judge_append(meant, known.calls)
        if code is not None:
            return code
        (resumed,) = actions
        assert isinstance(resumed, ResumeTurn)
        assert resumed.turn is known.turn
        assert resumed.appended is not None
        assert json.loads(b"[" + resumed.appended.items + b"]") == meant.input
        self.resume_rollout(known)
        return None

    def expect_finish(self, actions: Actions) -> list[Action]:
        done = self.carry_out(actions)
        assert isinstance(done[-1], Close)
        assert done[-1].code == self.retired_code
        notices = [json.loads(action.frame) for action in done[:-1] if isinstance(action, Send)]
        assert len(done) == len(notices) + 1
        assert [notice["error"]["code"] for notice in notices] == ([self.retired_error] if self.noticed else [])
        assert all("stream_id" not in notice for notice in notices)
        return done

    def expect_retired(self, actions: Actions, code: str, close_code: int, *, notice: bool) -> None:
        """All that wait are refused in their order, each on its lane, behind what runs there; then, if nothing runs, the end."""
        waiting = self.waiting
        self.phase, self.retired_at, self.retired_error, self.retired_code = "retiring", self.now, code, close_code
        self.noticed = notice
        rest = list(actions)
        for known in waiting:
            drop = rest.pop(0)
            assert drop == DropTurn(known.turn)
            self.carry_out([drop])
            if not self.waits_to_be_refused(known.lane):
                self.check_refusal(rest.pop(0), known.lane)
        if self.running:
            assert not [action for action in rest if isinstance(action, Close)]
            self.carry_out(rest)
            assert not [known for known in self.running if known.blocked_at is not None], "a drain waits for tools"
        else:
            self.expect_finish(rest)

    def waits_to_be_refused(self, lane: str | None) -> bool:
        """Note a create that is refused: whether it is told so when what runs on its lane is over, or at once."""
        if lane not in {known.lane for known in self.running}:
            return False
        if self.refused.get(lane, 0) >= self.limits.max_queued_creates:
            return False
        self.refused[lane] = self.refused.get(lane, 0) + 1
        return True

    def expect_refused(self, lane: str | None, actions: list[Action]) -> None:
        for _ in range(self.refused.pop(lane, 0)):
            self.check_refusal(actions.pop(0), lane)

    def check_refusal(self, action: Action, lane: str | None) -> None:
        assert isinstance(action, Send)
        frame = json.loads(action.frame)
        assert (frame["error"]["code"], frame.get("stream_id")) == (self.retired_error, lane)

    # -- the peer ----------------------------------------------------------------------------------------------------

    @precondition(is_open)
    @rule(
        lanes=st.lists(st.sampled_from(LANES), min_size=1, max_size=5),
        filler=st.sampled_from(["", "x" * 60, "é" * 60]),
        continues=st.sampled_from([True, True, False]),
        warm_up=st.sampled_from([False] * 6 + [True]),
        agents=st.booleans(),
    )
    def create(self, lanes: list[str | None], filler: str, continues: bool, warm_up: bool, agents: bool) -> None:
        for lane in lanes:
            frame: dict[str, Any] = {"type": "response.create", "model": "m", "input": filler}
            if continues and lane in self.latest:
                frame["previous_response_id"] = self.latest[lane][0]
            if warm_up:
                frame["generate"] = False
            if agents:
                frame["multi_agent"] = {"enabled": True}
            if lane is not None:
                frame["stream_id"] = lane
            self.frame(json.dumps(frame, ensure_ascii=False))

    @rule(frame=client_frames(), binary=st.booleans())
    def any_frame(self, frame: str, binary: bool) -> None:
        self.frame(frame.encode() if binary else frame)

    def frame(self, data: str | bytes) -> None:
        before = self.books()
        actions = self.session.frame_received(data, self.now)
        if self.phase in ("closing", "closed"):
            assert not actions
            assert self.books() == before
            return
        self.active_at = self.now
        meant = read_frame(data, cancels=self.cancels, appends=self.appends)
        if isinstance(meant, Appending):
            code = self.take_append(meant, actions)
            if code is None:
                return
            meant = Refusal(code, None, meant.lane)
        if isinstance(meant, Cancelling):
            code = self.expect_cancel(meant)
            if code is None:
                self.take_cancel(meant, actions)
                return
            meant = Refusal(code, None, meant.lane)
        if isinstance(meant, Steering):
            size = size_of(data)
            if size > 60:
                meant = Refusal("request_too_large", "input")
            elif self.take_steer(meant, size, actions):
                return
            else:
                assert self.books() == before
                return
        if isinstance(meant, Injecting):
            if not self.take_injection(meant, data, actions):
                assert self.books() == before
            return
        if isinstance(meant, Create):
            size = len(data if isinstance(data, bytes) else data.encode())
            outcome = self.expect_create(meant.lane, size)
            if outcome in ("start", "queue"):
                (action,) = actions
                assert isinstance(action, StartTurn if outcome == "start" else TurnQueued)
                given = meant.input
                known = Known(action.turn, meant.lane, size, meant.previous_response_id, meant.warm_up, given)
                known.injects = (
                    self.injects and not meant.warm_up and meant.body.get("multi_agent") == {"enabled": True}
                )
                self.turns.append(known)
                self.names |= {meant.lane} - {None}
                if outcome == "start":
                    self.start(known)
                return
            if self.phase == "retiring" and self.waits_to_be_refused(meant.lane):
                assert not actions, "it would be taken for the end of the turn that runs"
                return
            meant = Refusal(outcome, None, meant.lane)
        assert self.books() == before, "a frame that is no turn changes nothing"
        if isinstance(meant, Ignored):
            assert not actions
        else:
            (action,) = actions
            assert isinstance(action, Send)
            told = json.loads(action.frame)
            assert told.get("stream_id") == meant.stream_id
            assert told["status"] >= 400
            assert told["error"]["code"] == meant.code or {told["error"]["code"], meant.code} == {
                "invalid_json",
                "invalid_request",
            }

    @rule(really=RARELY)
    def too_large(self, really: bool) -> None:
        if not really:
            return
        running, waiting, phase = self.running, self.waiting, self.phase
        actions = self.session.frame_received(" " * ((1 << 16) + 1), self.now)
        if phase in ("closing", "closed"):
            assert not actions
            return
        self.phase = "closing"
        done = self.carry_out(actions)
        assert isinstance(done[-1], Close)
        assert done[-1].code == 1009
        assert {action.turn for action in done if isinstance(action, AbortTurn)} == {known.turn for known in running}
        assert all(action.error is not None for action in done if isinstance(action, AbortTurn))
        assert len([action for action in done if isinstance(action, Send)]) == len(waiting) + sum(self.refused.values())

    @precondition(lambda self: self.phase != "closed")
    @rule(really=RARELY)
    def leave(self, really: bool) -> None:
        if not really:
            return
        running = self.running
        self.blocked_since = None
        self.phase = "closed"  # before the ends: nothing may start
        done = self.carry_out(self.session.peer_gone())
        assert [action.turn for action in done if isinstance(action, AbortTurn)] == [known.turn for known in running]
        assert all(action.error is None for action in done if isinstance(action, AbortTurn))
        assert not [action for action in done if isinstance(action, Send | Close)], "nobody listens"
        assert self.session.peer_gone() == ()

    @precondition(is_open)
    @rule()
    def stop_reading(self) -> None:
        if self.blocked_since is None:
            self.blocked_since = self.now

    @precondition(lambda self: self.blocked_since is not None)
    @rule()
    def read_on(self) -> None:
        self.blocked_since = None
        for known in self.running:
            known.excused = True  # its time stood still; it starts anew at the latest look

    # -- the upstream ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.running)
    @rule(data=st.data(), event=st.booleans())
    def hear(self, data: st.DataObject, event: bool) -> None:
        known = data.draw(st.sampled_from(self.running))
        if known.open_calls is not None or known.blocked_at is not None:
            return
        known.turn.heard += 1
        known.heard, known.alive_at, known.excused = True, self.now, False
        self.unasked = True  # an event costs no look at the clock
        if event and known.response is None:
            self.begin(known, steerable=data.draw(st.sampled_from([True, True, True, False])))

    def begin(self, known: Known, *, steerable: bool) -> None:
        """The response is announced: what its input began with is committed, and what its lane held goes back."""
        self.responses += 1
        known.response = f"resp_{self.responses}"
        if steerable and not known.warm_up and not known.injects:
            known.turn.inherited = {"n": msgspec.Raw(b"%d" % self.responses)}
        actions = list(self.session.turn_event(known.turn, known.response))
        assert known.turn.phase is TurnPhase.STREAMING
        for steer in known.carried:
            steer.state = "committed"
        known.carried = []
        if not known.warm_up:
            self.expect_returned(known, actions, self.held.pop(known.lane, []), "response_not_active")
        assert not actions

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.running))
        ending = None if known.response is None else data.draw(st.sampled_from(ENDINGS))
        self.end_turn(known, "ended", ending)

    @precondition(lambda self: self.of("ended", "dropped", "waiting"))
    @rule(data=st.data())
    def misuse(self, data: st.DataObject) -> None:
        known = data.draw(st.sampled_from(self.of("ended", "dropped", "waiting")))
        before = (self.books(), known.turn.phase)
        with pytest.raises(LocalProtocolError):
            self.session.turn_ended(known.turn, self.now)
        if known.state != "waiting":
            with pytest.raises(LocalProtocolError):
                self.session.turn_event(known.turn)
        assert before == (self.books(), known.turn.phase)

    # -- the clock ---------------------------------------------------------------------------------------------------

    @rule(seconds=st.one_of(st.floats(0, 3), st.floats(0, 3), st.floats(0, 60)))
    def wait(self, seconds: float) -> None:
        """Let time pass, with a tick whenever one is wanted; while a write is blocked, also four in its limit."""
        until = self.now + seconds
        for _ in range(10_000):
            at = max(self.now, self.wakes_at)
            if self.blocked_since is not None and self.limits.send_timeout_s is not None:
                at = min(at, self.now + self.limits.send_timeout_s / 4)
            if at > until:
                break
            self.now = at
            self.tick()
            self.wakes_at = self.session.next_deadline()
            assert self.wakes_at > self.now, "the watchdog would spin"
        else:
            pytest.fail("ticks without end")
        self.now = until
        self.check_overdue()

    @precondition(is_open)
    @rule()
    def to_next_deadline(self) -> None:
        """Each deadline is one at which something may happen; enough of them see every limit fire."""
        at = self.session.next_deadline()
        if at != float("inf"):
            self.now = max(self.now, at)
            self.tick()

    @precondition(is_open)
    @rule()
    def early_tick(self) -> None:
        self.tick()

    def tick(self) -> None:
        if self.blocked_since is not None:
            for known in self.running:
                known.excused = True
        age_is_due = self.limits.max_connection_age_s is not None and (
            self.now >= self.opened_at + self.limits.max_connection_age_s
        )
        actions = self.session.tick(self.now, self.blocked_since)
        if self.phase in ("closing", "closed"):
            assert not actions
        elif self.is_stuck():
            self.phase = "closing"
            done = self.carry_out(actions)
            assert isinstance(done[-1], Close)
            assert done[-1].code == 1008
            assert all(action.error is None for action in done if isinstance(action, AbortTurn))
        elif self.phase == "open" and age_is_due:
            self.expect_retired(
                actions,
                "websocket_connection_limit_reached",
                1001,
                notice=self.age_notice or bool(self.running),
            )
        else:
            was_idle = self.is_idle()
            done = self.carry_out(actions)
            if self.phase == "closing" and self.retired_at is None:
                assert was_idle
                assert self.closed == [1001]
            if was_idle:
                assert self.phase == "closing"
            assert not [action for action in done if isinstance(action, Send)] or self.phase == "closing"
        if self.phase == "retiring" and self.retired_at is not None:
            assert self.now < self.retired_at + self.limits.age_grace_s, "the grace is over"

    def is_stuck(self, patience: float = 1.0) -> bool:
        limit = self.limits.send_timeout_s
        since = self.blocked_since
        return limit is not None and since is not None and self.now >= since + limit * patience

    def is_idle(self) -> bool:
        limit = self.limits.idle_timeout_s
        return limit is not None and self.phase == "open" and not self.running and self.now >= self.active_at + limit

    def check_overdue(self) -> None:
        """No limit is missed: the model knows only when the last sign of life really was."""
        if self.phase not in ("open", "retiring"):
            return
        if self.limits.max_connection_age_s is not None and self.phase == "open":
            assert self.now < self.opened_at + self.limits.max_connection_age_s
        assert not self.is_idle()
        assert not self.is_stuck(LOOKS)
        if self.blocked_since is None:
            for known in self.running:
                if known.open_calls is not None:
                    continue  # it waits for its client
                if known.blocked_at is not None:
                    limit = self.limits.blocked_timeout_s
                    assert limit is None or self.now < known.blocked_at + limit, "it waits for too long"
                    continue
                patience = self.patience(known)
                if patience is not None and not known.excused:
                    assert self.now < known.alive_at + patience * LOOKS + 1e-6, "silence was not noticed"
                if self.keepalive is not None and not known.excused:
                    quiet_since = max(known.alive_at, known.kept_at)
                    assert self.now < quiet_since + self.keepalive * LOOKS + 1e-6, "no sign of life"

    # -- the operator ------------------------------------------------------------------------------------------------

    @rule(really=st.sampled_from([False] * 6 + [True]))
    def drain(self, really: bool) -> None:
        if not really:
            return
        error = Unavailable("down")
        was = self.phase
        actions = self.session.retire(
            self.now, error=error, close_code=1012, reason="restart", grace_s=self.limits.age_grace_s
        )
        if was == "open":
            self.expect_retired(actions, "server_is_overloaded", 1012, notice=False)
        else:
            assert not actions

    @rule(really=RARELY, told=st.booleans())
    def close(self, really: bool, told: bool) -> None:
        if not really:
            return
        was, running, waiting = self.phase, self.running, self.waiting
        error = Forbidden("bye") if told else None
        actions = self.session.close(1008, "policy", error=error)
        if was in ("closing", "closed"):
            assert not actions
            return
        self.phase = "closing"
        done = self.carry_out(actions)
        assert isinstance(done[-1], Close)
        assert done[-1].code == 1008
        assert [(a.turn, a.error) for a in done if isinstance(a, AbortTurn)] == [(k.turn, error) for k in running]
        sent = [json.loads(action.frame).get("stream_id") for action in done if isinstance(action, Send)]
        refused = [lane for lane, number in self.refused.items() for _ in range(number)]
        assert sorted(sent, key=str) == (
            sorted([*refused, *(known.lane for known in waiting)], key=str) if told else []
        )

    @invariant()
    def the_watchdog_asks_again(self) -> None:
        if not self.unasked:
            self.wakes_at = self.session.next_deadline()
        self.unasked = False

    # -- what always holds -------------------------------------------------------------------------------------------

    @invariant()
    def the_books_are_the_models(self) -> None:
        session = self.session
        assert session.phase is SessionPhase[self.phase.upper()]
        assert set(session.running) == {known.turn for known in self.running}
        assert session.lanes.queued_creates == len(self.waiting) <= self.limits.max_queued_creates
        assert session.lanes.queued_bytes == sum(known.size for known in self.waiting) <= self.limits.max_queued_bytes
        assert len(self.running) <= self.limits.max_running_turns
        assert set(session.lanes.by_name) - {None} == self.names
        assert len(self.names) <= self.limits.max_lanes
        for lane in session.lanes.by_name.values():
            on_lane = [known for known in self.running if known.lane == lane.name]
            assert [known.turn for known in on_lane] == ([] if lane.running is None else [lane.running])
            assert [known.blocked_at is not None or known.open_calls is not None for known in on_lane] == [
                turn.phase is TurnPhase.BLOCKED for turn in ([] if lane.running is None else [lane.running])
            ]
            assert list(lane.queue) == [known.turn for known in self.waiting if known.lane == lane.name]
        assert session.turns_started == len(
            [known for known in self.turns if known.state not in ("waiting", "dropped")]
        )
        open_steers = self.open_steers()
        assert pending_injections.pending_bytes(session.running) == sum(
            size for known in self.running for _, size in known.injected
        )
        given = [len(steer.given) for steer in pending_steers.pending(session.lanes)]
        assert len(given) == len(open_steers) <= self.limits.max_pending_steers
        assert sum(given) == sum(steer.size for steer in open_steers) <= self.limits.max_pending_steer_bytes
        assert len(self.closed) <= 1
        if self.phase == "open":
            assert not self.startable()
        if self.phase in ("closing", "closed"):
            assert session.next_deadline() == float("inf")

    @invariant()
    def each_create_ends_once(self) -> None:
        for known in self.turns:
            assert len(known.ends) == (0 if known.state in ("waiting", "running") else 1)
            assert (known.turn.phase is TurnPhase.ENDED) == bool(known.ends)

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        if self.phase != "closed":
            self.leave(really=True)
        assert all(len(known.ends) == 1 for known in self.turns)
        assert not self.session.running
        assert {steer.state for steer in self.steers} <= {"held", "committed", "returned", "lost"}


TestSession = SessionMachine.TestCase
TestSession.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
