"""One record of each turn, whatever clients, apps, hooks, time and operators do, in any order, through the whole middleware."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, ClassVar

import anyio
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.shell import Facts
from tests.sinks import FATES, meet
from tests.wires import Wire
from ws_responses import Limits, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.engine.generation import Retry
from ws_responses.errors import UpstreamError
from ws_responses.instrumentation import ConnectionClosed, TurnFinished
from ws_responses.quota import QuotaExceeded, QuotaRequest
from ws_responses.safety import Safety, TermClassifier
from ws_responses.settlement import OUTCOMES, Settlement, TurnRecord
from ws_responses.testing import FakeClock, ScriptedApp, settle, steps

BAD = "bad word"
ATTEMPTS = 3
ANSWERS = ["fine", "fine", "fine", "fine", "hangs", "hangs", "blocked", "fails", "refuses", "raises", "breaks"]
"""What a turn's model does, by its name."""

RARELY = st.sampled_from([False] * 7 + [True])


class ByName:
    """A backend that does what the model's name says."""

    accepts = Accepts(kinds=frozenset({"chat"}))

    def __init__(self, wait: Callable[[], Awaitable[object]]) -> None:
        self.wait = wait
        self.calls = 0

    async def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        del prompt
        self.calls += 1
        if params.model in ("refuses", "raises"):
            raise UpstreamError("no", status=429) if params.model == "refuses" else RuntimeError
        yield Delta(text=f"{BAD}. " if params.model == "blocked" else "Some words. ", usage=Usage(input_tokens=3))
        if params.model == "hangs":
            await self.wait()
        if params.model in ("fails", "breaks"):
            raise UpstreamError("cut")
        yield Delta(text="And more.", finish="stop", usage=Usage(input_tokens=3, output_tokens=2))

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        del prompt, params
        return None

    async def aclose(self) -> None:
        """Nothing is open."""


def scripted(wait: Callable[[], Awaitable[object]]) -> ScriptedApp:
    """The same as a wrapped app."""

    def script(body: dict[str, Any]) -> Sequence[steps.Step]:
        match body["model"]:
            case "blocked":
                return [steps.text(f"Some {BAD} here.", deltas=3)]
            case "hangs":
                return [steps.text("Some words. "), steps.call(wait), steps.text("And more.")]
            case "fails":
                return [steps.text("Some words. "), steps.fail()]
            case "refuses":
                return [steps.status(429)]
            case "raises":
                return [steps.text("Some words. "), steps.raise_error(RuntimeError())]
            case "breaks":
                return [steps.text("Some words. "), steps.truncate(4)]
            case _:
                return [steps.text("Fine.")]

    app = ScriptedApp(listen=True)
    app.script(script)
    return app


class RoomsMachine(RuleBasedStateMachine):
    """Clients make turns on lanes and leave, the hook does what it likes with each attempt, time passes, the process drains."""

    kind: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = FakeClock()
        self.gate = anyio.Event()
        self.facts = Facts()
        self.fates: list[str] = []
        self.allowed = True
        self.draining: asyncio.Task[bool] | None = None
        self.attempts: dict[str, int] = {}
        self.taken: list[TurnRecord] = []
        self.reported: list[TurnRecord] = []
        self.wrong: list[str] = []
        self.wires: list[Wire] = []
        self.ids: list[str] = []

    @initialize(
        before_terminal=st.booleans(),
        on_disconnect=st.sampled_from(["cancel", 4.0]),
        mode=st.sampled_from(["before", "beside"]),
        max_pending=st.sampled_from([2, 100]),
    )
    def open(self, before_terminal: bool, on_disconnect: Any, mode: Any, max_pending: int) -> None:
        self.before_terminal = before_terminal
        options: dict[str, Any] = {
            "clock": self.clock,
            "hooks": [self.facts],
            "limits": Limits(event_timeout_s=20.0, age_grace_s=6.0, max_queued_creates=3, max_running_turns=2),
            "on_disconnect": on_disconnect,
            "quota": self.quota,
            "safety": Safety(TermClassifier([BAD]), mode=mode, window_chars=4),
            "settlement": Settlement(
                self.sink,
                attempts=ATTEMPTS,
                attempt_timeout_s=2.0,
                backoff_s=1.0,
                drain_timeout_s=3.0,
                max_pending=max_pending,
                before_terminal=before_terminal,
                on_undelivered=lambda record, _: self.reported.append(record),
            ),
        }
        self.app, self.backend = scripted(self.wait), ByName(self.wait)
        self.served: ASGIApp
        if self.kind == "app":
            self.middleware = ResponsesWebSocketMiddleware(self.app, steering="interrupt", **options)
            self.served = self.middleware
        else:
            served = ResponsesApp(
                ResponsesEngine(self.backend, retry=Retry(attempts=1), clock=self.clock), authorize="open", **options
            )
            self.middleware, self.served = served.middleware, served

    def do(self, work: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(work)
        self.loop.run_until_complete(settle())
        for wire in self.wires:
            for frame in wire.frames:
                if frame["type"] == "response.completed" and frame["response"]["id"] not in self.ids:
                    self.ids.append(frame["response"]["id"])

    async def sink(self, record: TurnRecord) -> None:
        self.attempts[record.turn_id] = self.attempts.get(record.turn_id, 0) + 1
        if record in self.reported:
            self.wrong.append(f"{record.turn_id} was tried after it was reported")
        await meet(self.fates.pop(0) if self.fates else "takes", partial(self.taken.append, record))

    async def wait(self) -> None:
        await self.gate.wait()

    def quota(self, request: QuotaRequest) -> None:
        del request
        if not self.allowed:
            raise QuotaExceeded

    # -- what happens --------------------------------------------------------------------------------------------------

    def a_socket(self, data: st.DataObject) -> Wire:
        """Return an open socket, now and then a new one."""
        sockets = [wire for wire in self.wires if wire.is_socket and not wire.gone]
        if not sockets or (len(sockets) < 3 and data.draw(RARELY)):
            sockets = [Wire(self.served, self.loop)]
            self.wires += sockets
            self.do(asyncio.sleep(0))
        return data.draw(st.sampled_from(sockets))

    def a_body(self, data: st.DataObject) -> dict[str, Any]:
        parent = data.draw(st.sampled_from([None, *self.ids[-3:] * 2, "resp_unknown"]))
        body = {"model": data.draw(st.sampled_from(ANSWERS)), "input": BAD if data.draw(RARELY) else "hi"}
        return body if parent is None else {**body, "previous_response_id": parent}

    @rule(data=st.data(), count=st.integers(1, 4))
    def create(self, data: st.DataObject, count: int) -> None:
        for _ in range(count):
            frame: dict[str, Any] = {"type": "response.create", **self.a_body(data)}
            lane = data.draw(st.sampled_from([None, None, "a", "b"]))
            if lane is not None:
                frame["stream_id"] = lane
            if data.draw(RARELY):
                frame["generate"] = False
            wire = self.a_socket(data)
            for _ in range(data.draw(st.sampled_from([1, 1, 1, 3]))):
                wire.send(frame)
            self.do(asyncio.sleep(0))

    @rule(data=st.data())
    def steer(self, data: st.DataObject) -> None:
        wire = self.a_socket(data)
        wire.send({"type": "response.create", "model": "hangs", "input": "hi"})
        self.do(asyncio.sleep(0))
        begun = [frame["response"]["id"] for frame in wire.frames if frame["type"] == "response.created"]
        if begun:
            text = BAD if data.draw(RARELY) else "And briefly."
            wire.send({"type": "response.steer", "previous_response_id": begun[-1], "input": text})
            self.do(asyncio.sleep(0))

    @rule(data=st.data(), stream=st.booleans())
    def post(self, data: st.DataObject, stream: bool) -> None:
        self.wires.append(Wire(self.served, self.loop, {**self.a_body(data), "stream": stream}))
        self.do(asyncio.sleep(0))

    @rule(fates=st.lists(st.sampled_from(FATES), min_size=1, max_size=6))
    def decide(self, fates: list[str]) -> None:
        self.fates += fates

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 5.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.do(self.clock.advance(seconds))

    @rule(for_good=st.booleans())
    def let_go(self, for_good: bool) -> None:
        self.gate.set()
        self.do(asyncio.sleep(0))
        if not for_good:
            self.gate = anyio.Event()

    @precondition(lambda self: self.wires)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        data.draw(st.sampled_from(self.wires)).leave()
        self.do(asyncio.sleep(0))

    @rule(what=st.sampled_from(["refuses", "allows", "allows", "disconnects", *["does nothing"] * 4, "drains"]))
    def operator(self, what: str) -> None:
        if what in ("refuses", "allows"):
            self.allowed = what == "allows"
        elif what == "disconnects":
            self.do(self.end_all())
        elif what == "drains" and self.draining is None:
            self.draining = self.loop.create_task(self.middleware.drain())
            self.do(asyncio.sleep(0))

    async def end_all(self) -> None:
        for connection in list(self.middleware.registry.connections)[:1]:
            self.middleware.disconnect(connection.tenant)

    # -- what must hold ------------------------------------------------------------------------------------------------

    @invariant()
    def no_call_has_raised(self) -> None:
        for wire in self.wires:
            if wire.call.done():
                wire.call.result()

    @invariant()
    def a_record_has_one_end(self) -> None:
        assert self.wrong == []
        reported = [record.turn_id for record in self.reported]
        assert len(reported) == len(set(reported)), "reported twice"
        for record in self.taken:
            assert self.attempts[record.turn_id] <= ATTEMPTS

    @invariant()
    def who_has_gone_leaves_nothing_unsettled(self) -> None:
        """A record that outlives its connection would be lost with the process, and nobody would wait for it."""
        if all(wire.call.done() for wire in self.wires) and hasattr(self, "middleware"):
            assert self.middleware.unsettled == 0

    @invariant()
    def no_turn_waits_for_the_books(self) -> None:
        """But for that which it was asked to wait for."""
        if hasattr(self, "before_terminal") and not self.before_terminal and self.kind == "app":
            assert self.middleware.running_turns <= self.app.running

    def teardown(self) -> None:
        if not hasattr(self, "middleware"):
            self.loop.close()
            return
        for wire in self.wires:
            wire.leave()
        self.do(self.clock.advance(200.0))
        assert all(wire.call.done() for wire in self.wires), "somebody waits for ever"
        self.no_call_has_raised()
        self.a_record_has_one_end()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.check_the_books()

    def check_the_books(self) -> None:
        records = {record.turn_id: record for record in (*self.reported, *self.taken)}
        for record in (*self.reported, *self.taken):
            assert records[record.turn_id] == record, "the same key with another content"
            assert record.outcome in OUTCOMES
        started = sum(fact.turns for fact in self.facts.of(ConnectionClosed))
        assert len(records) == started, "each turn that was started is in the books, once"
        assert set(records) == {fact.turn_id for fact in self.facts.of(TurnFinished)}
        assert self.middleware.unsettled == 0
        ran = [record for record in records.values() if record.ran and record.outcome != "warm_up"]
        calls = len(self.app.requests) if self.kind == "app" else self.backend.calls
        assert len(ran) == calls, "what may have cost something is told so"
        taken = [record.turn_id for record in self.taken]
        assert all(self.attempts[turn_id] > 1 for turn_id in taken if taken.count(turn_id) > 1)
        self.check_the_order(records, taken)
        self.check_what_clients_saw(records)

    def check_the_order(self, records: dict[str, TurnRecord], taken: list[str]) -> None:
        by_response = {record.response_id: turn_id for turn_id, record in records.items() if record.response_id}
        for turn_id, record in records.items():
            parent = by_response.get(record.parent_id or "")
            if parent in taken and turn_id in taken:
                assert taken.index(parent) < taken.index(turn_id)

    def check_what_clients_saw(self, records: dict[str, TurnRecord]) -> None:
        by_response = {record.response_id: record for record in records.values()}
        for wire in self.wires:
            for frame in wire.frames:
                kind = frame["type"].removeprefix("response.")
                if kind in ("completed", "incomplete", "failed"):
                    record = by_response[frame["response"]["id"]]
                    expected = {
                        "completed": ("completed", "warm_up"),
                        "incomplete": ("incomplete", "blocked"),
                        "failed": ("failed", "aborted", "drained", "blocked"),
                    }
                    assert record.outcome in expected[kind]


class AppMachine(RoomsMachine):
    kind = "app"


class EngineMachine(RoomsMachine):
    kind = "engine"


TestApp = AppMachine.TestCase
TestApp.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestEngine = EngineMachine.TestCase
TestEngine.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
pytestmark = pytest.mark.timeout(240)
