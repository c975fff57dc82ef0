"""Lanes of one client through the whole middleware, beside a naive model: forks, failures, steers, cancels, warm-ups, disconnects."""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.wires import Wire
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.testing import FakeClock, ScriptedApp, settle, steps

LANES = [None, "a", "b"]
ANSWERS = ["hangs", "hangs", "hangs", "fine", "fine", "breaks", "fails", "refuses", "orphan"]
"""What becomes of a create, by its model: the app answers at once, or waits after a first item (and fails then); it fails, or
refuses; or the input answers a call that nobody made, so that the app is never asked."""

MAX_STEERS = 3
NOT_FOUND = "error previous_response_not_found"


@dataclass
class Response:
    """What the model knows of one response, or of a create that never becomes one.

    Attributes:
        items: The conversation with it, as an app is given it.
        alive: It can be continued.
    """

    lane: str | None
    said: list[str]
    answer: str
    parent: str | None
    warm_up: bool = False
    pinned: "Response | None" = None
    parent_found: "Response | None" = None
    items: list[str] = field(default_factory=list)
    id: str = ""
    steers: list[str] = field(default_factory=list)
    alive: bool = False


def said_in(body: Mapping[str, Any]) -> list[str]:
    """An inner body's conversation, one word for each item."""
    given = body["input"]
    items = [{"role": "user", "content": given}] if isinstance(given, str) else given
    return [_word(item) for item in items]


def _word(item: Mapping[str, Any]) -> str:
    content = item.get("content")
    if isinstance(content, str):
        return content
    return str(content[0]["text"]) if item.get("role") == "assistant" and content else str(item["type"])


class LanesMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.gates: dict[str, anyio.Event] = {}
        self.texts = 0
        self.known: dict[str, Response] = {}
        self.asked: list[list[str]] = []
        self.running: dict[str | None, Response] = {}
        self.queues: dict[str | None, list[Response]] = {lane: [] for lane in LANES}
        self.latest: dict[str | None, tuple[str, bool]] = {}
        self.expected: dict[str | None, list[str]] = {lane: [] for lane in LANES}
        self.beginning: dict[str | None, list[Response]] = {lane: [] for lane in LANES}

    @initialize(max_running=st.sampled_from([16, 16, 2, 1]))
    def open(self, max_running: int) -> None:
        self.max_running = max_running
        self.app = ScriptedApp(listen=True)
        self.app.script(self.script)
        self.middleware = ResponsesWebSocketMiddleware(
            self.app,
            steering="interrupt",
            accept_cancel=True,
            probe=False,
            clock=FakeClock(),
            limits=Limits(max_running_turns=max_running, max_pending_steers=MAX_STEERS, max_queued_creates=1000),
        )
        self.connect()

    def script(self, body: dict[str, Any]) -> Sequence[steps.Step]:
        text = said_in(body)[-1]
        match body["model"]:
            case "hangs":
                return [*self.first_half(text), steps.text(f"re {text}")]
            case "breaks":
                return [*self.first_half(text), steps.fail()]
            case "fails":
                return [steps.created(), steps.fail()]
            case "refuses":
                return [steps.status(429)]
            case _:
                return [steps.text(f"re {text}")]

    def first_half(self, text: str) -> list[steps.Step]:
        self.gates[text] = anyio.Event()
        return [steps.created(), steps.reasoning("hm"), steps.wait_for(self.gates[text])]

    def connect(self) -> None:
        self.wire = Wire(self.middleware, self.loop)
        self.read = 0
        self.run(asyncio.sleep(0))

    def run(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(work)
        self.loop.run_until_complete(settle())

    def send(self, frame: dict[str, Any]) -> None:
        self.wire.send(frame)
        self.run(asyncio.sleep(0))

    def new_text(self) -> str:
        self.texts += 1
        return f"text {self.texts}"

    # -- the model ---------------------------------------------------------------------------------------------------

    def resolved(self, response_id: str | None) -> Response | None:
        response = self.known.get(response_id or "")
        return response if response is not None and response.alive else None

    def start_waiting(self) -> None:
        """Start what can start, the oldest first: its number is in its text."""
        while len(self.running) < self.max_running:
            ready = [queue[0] for lane, queue in self.queues.items() if queue and lane not in self.running]
            if not ready:
                return
            response = min(ready, key=lambda each: int(each.said[0].split()[1]))
            self.queues[response.lane].pop(0)
            self.start(response)

    def start(self, response: Response) -> None:
        """Follow a turn as far as it goes without anybody's help."""
        lane = response.lane
        parent = response.pinned or self.resolved(response.parent)
        if response.parent is not None and parent is None:
            self.tell(lane, NOT_FOUND)
            return
        response.parent_found = parent
        response.items = [*(parent.items if parent is not None else []), *response.said]
        if response.answer == "orphan":
            self.fail(response, "error tool_call_not_found")
            return
        if response.warm_up:
            self.begin(response)
            self.complete(response, [])
            return
        self.asked.append(list(response.items))
        if response.answer == "refuses":
            self.fail(response, "error rate_limit_exceeded")
            return
        self.begin(response)
        if response.answer == "fails":
            self.fail(response, "failed")
        elif response.answer == "fine":
            self.complete(response, [f"re {response.said[-1]}"])
        else:
            self.running[lane] = response

    def tell(self, lane: str | None, what: str) -> None:
        self.expected[lane].append(what)

    def begin(self, response: Response) -> None:
        self.tell(response.lane, "created")
        self.beginning[response.lane].append(response)

    def complete(self, response: Response, output: list[str]) -> None:
        self.tell(response.lane, "completed")
        response.items += output
        response.alive = True
        self.over(response, completed=True)

    def fail(self, response: Response, how: str) -> None:
        """A turn that ran and failed evicts its parent, if that is of the same lane."""
        self.tell(response.lane, how)
        parent = response.parent_found
        if parent is not None and parent.lane == response.lane:
            parent.alive = False
        self.give_back(response)
        if how == "failed":
            self.over(response, completed=False)

    def give_back(self, response: Response) -> None:
        for _ in response.steers:
            self.tell(response.lane, "steer.failed response_not_active")
        response.steers = []

    def over(self, response: Response, *, completed: bool) -> None:
        response_id = response.id or id(response)
        self.latest[response.lane] = str(response_id), completed

    # -- what a client does ------------------------------------------------------------------------------------------

    @rule(
        data=st.data(),
        lane=st.sampled_from(LANES),
        answers=st.lists(st.sampled_from(ANSWERS), min_size=1, max_size=4),
        warm_up=st.sampled_from([False] * 5 + [True]),
    )
    def create(self, data: st.DataObject, lane: str | None, answers: list[str], warm_up: bool) -> None:
        """Ask several times, each from any response, or from none."""
        for answer in answers:
            self.ask(lane, answer, data.draw(st.sampled_from(self.parents())), warm_up=warm_up)

    def ask(self, lane: str | None, answer: str, parent: str | None, *, warm_up: bool = False) -> None:
        response = Response(lane, [self.new_text()], answer, parent, warm_up=warm_up)
        given: Any = response.said[0]
        if answer == "orphan":
            given = [{"type": "function_call_output", "call_id": "call_x", "output": "1"}]
        frame: dict[str, Any] = {"type": "response.create", "model": answer, "input": given, "store": False}
        frame |= {} if parent is None else {"previous_response_id": parent}
        frame |= {} if lane is None else {"stream_id": lane}
        frame |= {"generate": False} if warm_up else {}
        source = self.resolved(parent)
        if source is not None and source.lane != lane:
            response.pinned = source
        if lane in self.running or self.queues[lane] or len(self.running) >= self.max_running:
            self.queues[lane].append(response)
        else:
            self.start(response)
            self.start_waiting()
        self.send(frame)
        self.look()

    @precondition(lambda self: self.forks())
    @rule(data=st.data(), how=st.sampled_from(["orphan", "fails", "refuses"]))
    def fork_that_waits(self, data: st.DataObject, how: str) -> None:
        """Single rules take this way too rarely: the parent's own lane evicts it while a fork of it waits elsewhere."""
        parent, busy = data.draw(st.sampled_from(self.forks()))
        self.ask(busy, "fine", parent.id)
        self.ask(parent.lane, how, parent.id)

    def forks(self) -> list[tuple[Response, str | None]]:
        """What can be forked at once, each with a lane that is busy."""
        idle = [each for each in self.known.values() if each.alive and each.lane not in self.running]
        return [(each, lane) for each in idle[-3:] for lane in self.running]

    def parents(self) -> list[str | None]:
        """What a create may name: mostly what can be continued, or will be."""
        good = [
            each.id for each in (*self.known.values(), *self.running.values()) if each.alive or each.id in self.busy
        ]
        return [None, *good[-4:] * 4, *good, *list(self.known)[-6:], "resp_unknown"]

    @property
    def busy(self) -> set[str]:
        return {each.id for each in self.running.values()}

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def go_on(self, data: st.DataObject) -> None:
        """Let an answer that waits end."""
        lanes = sorted(self.running, key=lambda lane: -len(self.running[lane].steers))
        lane = lanes[0] if data.draw(st.booleans()) else data.draw(st.sampled_from(lanes))
        response = self.running.pop(lane)
        self.gates[response.said[-1]].set()
        if response.answer == "breaks":
            self.fail(response, "failed")
        elif not response.steers:
            self.complete(response, ["reasoning", f"re {response.said[-1]}"])
        else:
            self.tell(lane, "incomplete steered")
            response.items.append("reasoning")
            response.alive = True
            self.over(response, completed=False)
            self.start(Response(lane, response.steers, response.answer, response.id))
        self.start_waiting()
        self.run(asyncio.sleep(0))
        self.look()

    @precondition(lambda self: self.known and (self.running or self.texts % 8 == 0))
    @rule(data=st.data(), running=st.sampled_from([True, True, True, False]))
    def steer(self, data: st.DataObject, running: bool) -> None:
        targets = [each.id for each in self.running.values()] if running and self.running else list(self.known)
        target = data.draw(st.sampled_from(targets))
        text = self.new_text()
        steered = next((each for each in self.running.values() if each.id == target), None)
        latest = next(((lane, done) for lane, (each, done) in self.latest.items() if each == target), None)
        if steered is not None and sum(len(each.steers) for each in self.running.values()) >= MAX_STEERS:
            self.tell(steered.lane, "steer.failed too_many_pending_steers")
        elif steered is not None:
            steered.steers.append(text)
            self.tell(steered.lane, "steer.accepted")
        elif latest is None:
            self.tell(None, "steer.failed response_not_found")
        else:
            code = "response_already_completed" if latest[1] else "response_not_active"
            self.tell(latest[0], f"steer.failed {code}")
        self.send({"type": "response.steer", "previous_response_id": target, "input": text})
        self.look()

    @precondition(lambda self: self.running or self.texts % 8 == 0)
    @rule(data=st.data(), lane=st.sampled_from(LANES), by_id=st.booleans())
    def cancel(self, data: st.DataObject, lane: str | None, by_id: bool) -> None:
        """Stop a response, or a lane with all that waits on it."""
        frame: dict[str, Any] = {"type": "response.cancel"}
        waiting: list[Response] = []
        if by_id and self.running:
            lane = data.draw(st.sampled_from(list(self.running)))
            frame["response_id"] = self.running[lane].id
        else:
            frame |= {} if lane is None else {"stream_id": lane}
            waiting, self.queues[lane] = self.queues[lane], []
            if not waiting and lane not in self.running:
                self.tell(lane, "error response_not_active")
        response = self.running.pop(lane, None)
        if response is not None:
            self.tell(lane, "incomplete cancelled")
            self.give_back(response)
            self.over(response, completed=False)
        for _ in waiting:
            self.tell(lane, "error response_cancelled")
        self.start_waiting()
        self.send(frame)
        self.look()

    @rule(really=st.sampled_from([False] * 15 + [True]))
    def leave(self, really: bool) -> None:
        """Close the socket, and come again: nothing of what was not stored can be continued, and nothing runs on."""
        if not really:
            return
        self.wire.leave()
        self.run(asyncio.sleep(0))
        assert self.app.running == 0
        for response in self.known.values():
            response.alive = False
        self.running, self.latest = {}, {}
        self.queues = {lane: [] for lane in LANES}
        self.connect()

    # -- what is seen ------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Compare what was told on each lane, and learn the ids of what has begun."""
        told: dict[str | None, list[str]] = {lane: [] for lane in LANES}
        for frame in self.wire.frames[self.read :]:
            lane, kind = frame.get("stream_id"), frame["type"].removeprefix("response.")
            if kind == "created":
                self.name(lane, frame["response"])
            if kind in ("created", "completed", "failed", "steer.accepted"):
                told[lane].append(kind)
            elif kind == "incomplete":
                told[lane].append(f"{kind} {self.reason(frame['response'])}")
            elif kind in ("error", "steer.failed"):
                told[lane].append(f"{kind} {frame['error']['code']}")
        self.read = len(self.wire.frames)
        assert told == self.expected
        assert not any(self.beginning.values())
        self.expected = {lane: [] for lane in LANES}

    def name(self, lane: str | None, told: Mapping[str, Any]) -> None:
        response = self.beginning[lane].pop(0)
        assert told.get("previous_response_id") == response.parent
        assert told["id"] not in self.known
        latest = self.latest.get(lane)
        if latest is not None and latest[0] == str(id(response)):
            self.latest[lane] = told["id"], latest[1]
        response.id = told["id"]
        self.known[response.id] = response

    @staticmethod
    def reason(response: Mapping[str, Any]) -> str:
        return "cancelled" if response["status"] == "cancelled" else str(response["incomplete_details"]["reason"])

    @invariant()
    def the_app_was_asked_what_the_model_says(self) -> None:
        if hasattr(self, "app"):
            assert [said_in(request.body) for request in self.app.requests] == self.asked

    @invariant()
    def nothing_runs_but_what_hangs(self) -> None:
        if hasattr(self, "app"):
            assert self.app.running == len(self.running) == self.middleware.running_turns

    def teardown(self) -> None:
        try:
            if hasattr(self, "wire"):
                self.wire.leave()
                self.run(asyncio.sleep(0))
                assert self.app.running == 0
                assert self.wire.call.done()
        finally:
            self.loop.close()


TestLanes = LanesMachine.TestCase
TestLanes.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
