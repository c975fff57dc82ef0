"""Whatever a wrapped app does wrong: one closing event, nothing left running, and the socket goes on."""

import asyncio
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest

from tests.upstreams.wire import Event, assert_legal, compact
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Receive, Scope, Send
from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.limits import MIB, Limits
from ws_responses.testing import FakeClock, MemorySocket, ResponseBuilder, ScriptedApp, counting_ids, numbered, steps
from ws_responses.testing.clock import settle
from ws_responses.testing.steps import Step

KEY = [(b"authorization", b"Bearer k")]
LIMITS = Limits(
    first_event_timeout_s=30, event_timeout_s=20, trailing_timeout_s=5, disconnect_grace_s=1, max_event_bytes=MIB
)
NOTICED = 25
"""Events bear no time stamp: silence after one is noticed up to a quarter of its limit late."""

NOT_FOUND = (400, "previous_response_not_found")


async def cancelled_task() -> None:
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


def sse(*events: Any) -> bytes:
    return b"".join(b"data: " + (event if isinstance(event, bytes) else compact(event)) + b"\n\n" for event in events)


ERROR = {"type": "error", "error": {"message": "Slow down.", "code": "rate_limit_exceeded"}}
OPENAI_ERROR = {"error": {"message": "m", "type": "invalid_request_error", "param": "p", "code": "c"}}


@dataclass(frozen=True)
class Fault:
    """What an app does in one turn, and what the client is told of it.

    Attributes:
        steps: Of the app.
        status: Of the error frame; None for a `response.failed`.
        code: Of either.
        after_s: Time that must pass until it is noticed.
        only: The backend on which it can happen.
    """

    name: str
    steps: Sequence[Step]
    status: int | None
    code: str
    after_s: float = 0
    only: str | None = None

    def __str__(self) -> str:
        return self.name


BOOM = RuntimeError("secret <f at 0x7f00> in secret.py")
GROUP = ExceptionGroup("secret", [BOOM, ValueError("secret")])
TRACEBACK = b"Traceback (most recent call last):\n  File secret.py"

FAULTS = [
    # raises
    Fault("raises before the start", [steps.raise_error(BOOM, after="before")], 500, "server_error"),
    Fault("raises a group before the start", [steps.raise_error(GROUP, after="before")], 500, "server_error"),
    Fault("raises after the start", [steps.response_start(), steps.raise_error(BOOM)], 500, "server_error"),
    Fault("raises an OSError", [steps.raise_error(OSError("secret"), after="before")], 500, "server_error"),
    Fault("raises after created", [steps.created(), steps.raise_error(BOOM)], None, "server_error"),
    Fault("raises a group after created", [steps.created(), steps.raise_error(GROUP)], None, "server_error"),
    Fault("raises amid its text", [steps.text("Hel", finish=False), steps.raise_error(BOOM)], None, "server_error"),
    Fault("is cancelled by itself", [steps.call(cancelled_task)], 500, "server_error", only="asyncio"),
    # ends too early
    Fault("ends without an event", [steps.truncate(0)], 502, "upstream_stream_truncated"),
    Fault("ends without an event or a last chunk", [steps.truncate(0, finish_body=False)], 502, "upstream_stream_truncated"),
    Fault("ends after created", [steps.truncate(1)], None, "upstream_stream_truncated"),
    Fault("ends before the terminal event", [steps.truncate(5), steps.text("abc", deltas=3)], None, "upstream_stream_truncated"),
    Fault("ends so, without a last chunk", [steps.truncate(5, finish_body=False)], None, "upstream_stream_truncated"),
    Fault("ends so, by [DONE]", [steps.truncate(5), steps.done_marker()], None, "upstream_stream_truncated"),
    # sends garbage
    Fault("sends no JSON", [steps.raw_sse(sse(b"{oops"))], 502, "upstream_error"),
    Fault("sends a JSON list", [steps.raw_sse(sse(b"[]"))], 502, "upstream_error"),
    Fault("sends an event without a type", [steps.raw_sse(sse({"a": 1}))], 502, "upstream_error"),
    Fault("sends two events in one", [steps.raw_sse(sse({"type": "a\n\ndata: {}"}))], 502, "upstream_error"),
    Fault("sends an item that is none", [steps.created(), steps.event({"type": "response.output_item.done", "item": 5})],
          None, "upstream_error"),
    Fault("answers in HTML", [steps.status(200, b"<html>secret", content_type="text/html")], 502, "upstream_error"),
    Fault("answers with another object", [steps.status(200, {"choices": []})], 502, "upstream_error"),
    Fault("answers with nothing", [steps.status(200, b"")], 502, "upstream_error"),
    Fault("answers in the background", [steps.status(200, {"id": "r", "status": "queued", "output": []})], 502, "upstream_error"),
    Fault("compresses", [steps.headers([(b"content-encoding", b"gzip")]), steps.text("x")], 502, "upstream_error"),
    # too much
    Fault("sends an event that is too large", [steps.created(), steps.event({"type": "slug:x", "x": "x" * 2 * MIB})],
          None, "upstream_event_too_large"),
    Fault("sends a first event that is too large", [steps.raw_sse(sse({"type": "slug:x", "x": "x" * 2 * MIB}))],
          502, "upstream_event_too_large"),
    Fault("sends a line without end", [steps.raw_sse(*[b"x" * 65536] * 40)], 502, "upstream_event_too_large"),
    # answers with an error
    Fault("answers 400", [steps.status(400, OPENAI_ERROR)], 400, "c"),
    Fault("answers 401", [steps.status(401)], 401, "invalid_api_key"),
    Fault("answers 404 in HTML", [steps.status(404, b"<html>secret", content_type="text/html")], 404, "not_found"),
    Fault("answers 422", [steps.status(422, {"detail": [{"loc": ["body", "x"], "msg": "Bad"}]})], 422, "invalid_request"),
    Fault("answers 429", [steps.status(429)], 429, "rate_limit_exceeded"),
    Fault("answers 500 with a traceback", [steps.status(500, TRACEBACK, content_type="text/plain")], 500, "server_error"),
    Fault("redirects", [steps.status(307, b"", [(b"location", b"/secret")])], 502, "upstream_error"),
    Fault("answers 204", [steps.status(204, b"")], 502, "upstream_error"),
    # reports a failure
    Fault("sends an error event first", [steps.event(ERROR)], 429, "rate_limit_exceeded"),
    Fault("sends an error event later", [steps.created(), steps.event(ERROR)], None, "rate_limit_exceeded"),
    Fault("sends an error and failed", [steps.created(), steps.event(ERROR), steps.fail("x")], None, "rate_limit_exceeded"),
    Fault("sends an error and [DONE]", [steps.event(ERROR), steps.done_marker()], 429, "rate_limit_exceeded"),
    Fault("sends failed", [steps.text("x"), steps.fail("rate_limit_exceeded")], None, "rate_limit_exceeded"),
    Fault("answers with failed", [steps.status(200, {"id": "r", "status": "failed", "output": [], "error": {"code": "c"}})],
          None, "c"),
    # is silent
    Fault("hangs before the start", [steps.stall()], 504, "upstream_timeout", 30),
    Fault("hangs after the start", [steps.response_start(), steps.stall()], 504, "upstream_timeout", 30),
    Fault("hangs after created", [steps.created(), steps.stall()], None, "upstream_timeout", NOTICED),
    Fault("hangs amid its text", [steps.text("Hel", finish=False), steps.stall()], None, "upstream_timeout", NOTICED),
]  # fmt: skip


@dataclass
class Scene:
    """A middleware around a scripted app, under a clock that the test moves."""

    app: ScriptedApp = field(default_factory=ScriptedApp)
    clock: FakeClock = field(default_factory=FakeClock)
    facts: list[Fact] = field(default_factory=list)
    limits: Limits = LIMITS
    outer: Callable[[ScriptedApp], ASGIApp] = lambda app: app

    def __post_init__(self) -> None:
        self.middleware = ResponsesWebSocketMiddleware(
            self.outer(self.app), limits=self.limits, clock=self.clock, hooks=[self.facts.append], probe=False
        )

    def connect(self, **options: Any) -> MemorySocket:
        return MemorySocket(self.middleware, headers=KEY, **options)

    async def fault(self, ws: MemorySocket, fault: Fault, **members: Any) -> list[Event]:
        """Take a turn in which the app does wrong; return what the client gets."""
        self.app.script(fault.steps)
        count = len(self.app.requests)
        await ws.send_json({"type": "response.create", "model": "m", "input": "hi", **members})
        if fault.after_s:
            await self.app.wait_requests(count + 1)
            await self.clock.advance(fault.after_s)
        return await ws.collect()

    async def assert_quiet(self, ws: MemorySocket) -> None:
        """Fail unless nothing runs any more, once those who were told to stop have had their time."""
        assert self.middleware.running_turns == 0
        await self.clock.advance(LIMITS.trailing_timeout_s + LIMITS.disconnect_grace_s)
        await self.app.wait_idle()
        assert self.app.running == 0
        assert ws.unread == 0, "exactly one closing event"

    def ends(self) -> list[TurnFinished]:
        return [fact for fact in self.facts if isinstance(fact, TurnFinished)]


async def good(ws: MemorySocket, **members: Any) -> str:
    events = await ws.turn({"model": "m", "input": "hi", "tool_choice": "none", **members})
    assert_legal(events, stream_id=members.get("stream_id"), previous_response_id=members.get("previous_response_id"))
    assert events[-1]["type"] == "response.completed"
    return str(events[-1]["response"]["id"])


async def refusal(ws: MemorySocket, **members: Any) -> tuple[int, str]:
    (frame,) = await ws.turn({"model": "m", "input": "hi", **members})
    return frame["status"], frame["error"]["code"]


def applies(fault: Fault, backend: tuple[str, Any]) -> bool:
    return fault.only in (None, backend[0])


each_fault = pytest.mark.parametrize("fault", FAULTS, ids=str)


class TestEachFault:
    @each_fault
    @pytest.mark.parametrize("listen", [False, True])
    async def test_is_closed_once_and_leaves_nothing(
        self, fault: Fault, listen: bool, anyio_backend: tuple[str, Any]
    ) -> None:
        if not applies(fault, anyio_backend):
            return
        scene = Scene(ScriptedApp(listen=listen))
        async with scene.connect() as ws:
            events = await scene.fault(ws, fault, stream_id="lane")
            if fault.status is not None:
                (frame,) = events
                assert (frame["type"], frame["stream_id"], frame["sequence_number"]) == ("error", "lane", 0)
                assert (frame["status"], frame["error"]["code"]) == (fault.status, fault.code)
            else:
                assert_legal(events, stream_id="lane")
                assert events[-1]["type"] == "response.failed"
                assert events[-1]["response"]["error"]["code"] == fault.code
            assert "secret" not in json.dumps(events)
            await scene.assert_quiet(ws)
            await good(ws, stream_id="lane")
            await good(ws)
        assert [end.code for end in scene.ends()][1:] == [None, None]
        assert scene.ends()[0].outcome in {"error", "failed", "aborted"}

    @each_fault
    async def test_evicts_the_parent_on_its_lane(self, fault: Fault, anyio_backend: tuple[str, Any]) -> None:
        # Guide, state: a continuation that ran and failed takes its parent with it; what came before stays.
        if not applies(fault, anyio_backend):
            return
        scene = Scene()
        async with scene.connect() as ws:
            grandparent = await good(ws, store=False)
            parent = await good(ws, store=False, previous_response_id=grandparent)
            await scene.fault(ws, fault, store=False, previous_response_id=parent)
            count = len(scene.app.requests)
            assert await refusal(ws, store=False, previous_response_id=parent) == NOT_FOUND
            assert len(scene.app.requests) == count
            await good(ws, store=False, previous_response_id=grandparent)
            await scene.assert_quiet(ws)

    @each_fault
    async def test_of_a_fork_leaves_the_other_lanes_parent(self, fault: Fault, anyio_backend: tuple[str, Any]) -> None:
        # B080: lane b must not be able to take away what lane a goes on from.
        if not applies(fault, anyio_backend):
            return
        scene = Scene()
        async with scene.connect() as ws:
            parent = await good(ws, store=False)
            await scene.fault(ws, fault, store=False, previous_response_id=parent, stream_id="fork")
            await good(ws, store=False, previous_response_id=parent)
            await scene.assert_quiet(ws)


class TestEviction:
    async def test_a_stored_parent_comes_back_from_the_store(self) -> None:
        # B092: eviction costs the fast path only.
        scene = Scene()
        async with scene.connect() as ws:
            parent = await good(ws)
            await scene.fault(ws, FAULTS[0], previous_response_id=parent)
            await good(ws, previous_response_id=parent)

    async def test_incomplete_evicts_nothing_and_can_be_continued(self) -> None:
        scene = Scene()
        scene.app.script([steps.text("A")], [steps.text("B"), steps.incomplete()])
        async with scene.connect() as ws:
            parent = await good(ws, store=False)
            events = await ws.turn({"model": "m", "input": "hi", "store": False, "previous_response_id": parent})
            assert events[-1]["type"] == "response.incomplete"
            await good(ws, store=False, previous_response_id=parent)
            await good(ws, store=False, previous_response_id=events[-1]["response"]["id"])

    async def test_what_never_ran_evicts_nothing(self) -> None:
        # B093: refused for its syntax, its lane, or a full queue.
        scene = Scene(limits=Limits(max_queued_creates=0))
        async with scene.connect() as ws:
            parent = await good(ws, store=False)
            assert (await refusal(ws, previous_response_id=parent, background=True))[0] == 400
            assert (await refusal(ws, previous_response_id=parent, stream_id="a b"))[1] == "invalid_stream_id"
            go = anyio.Event()
            scene.app.script([steps.wait_for(go), steps.text("x")])
            await ws.send_json({"type": "response.create", "model": "m", "store": False})
            await ws.send_json(
                {"type": "response.create", "model": "m", "store": False, "previous_response_id": parent}
            )
            full = await ws.receive_json()
            assert (full["status"], full["error"]["code"]) == (429, "websocket_queue_full")
            go.set()
            assert (await ws.collect())[-1]["type"] == "response.completed"
            await good(ws, store=False, previous_response_id=parent)

    async def test_a_failed_response_cannot_be_continued(self) -> None:
        # B127: half an answer must not become history.
        scene = Scene()
        async with scene.connect() as ws:
            events = await scene.fault(ws, Fault("", [steps.truncate(6), steps.text("abc", deltas=3)], None, ""))
            assert await refusal(ws, previous_response_id=events[-1]["response"]["id"]) == NOT_FOUND


class TestErrors:
    async def test_details_are_in_the_log_and_an_id_leads_to_them(self, caplog: pytest.LogCaptureFixture) -> None:
        # B021
        scene = Scene()
        async with scene.connect() as ws:
            (frame,) = await scene.fault(ws, FAULTS[0])
        (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
        turn_id = scene.ends()[0].turn_id
        assert turn_id in frame["error"]["message"]
        assert turn_id in record.getMessage()
        assert record.exc_info is not None
        assert record.exc_info[1] is BOOM

    async def test_retry_after_is_in_both_places(self) -> None:
        scene = Scene()
        scene.app.script([steps.status(429, headers=[(b"Retry-After", b"7")])])
        async with scene.connect() as ws:
            (frame,) = await ws.turn({"model": "m"})
        assert frame["headers"] == frame["error"]["headers"] == {"retry-after": "7"}

    async def test_the_inner_error_object_is_kept(self) -> None:
        scene = Scene()
        scene.app.script([steps.status(400, OPENAI_ERROR)])
        async with scene.connect() as ws:
            (frame,) = await ws.turn({"model": "m"})
        assert frame["error"] == OPENAI_ERROR["error"]

    async def test_nothing_is_tried_again(self) -> None:
        # B083: the tool call was sent; a second attempt would make it twice.
        scene = Scene()
        scene.app.script([steps.tool_call("f", call_id="c1"), steps.raise_error(BOOM)])
        async with scene.connect() as ws:
            events = await ws.turn({"model": "m", "input": "hi"})
            assert_legal(events)
            assert [item["call_id"] for item in events[-1]["response"]["output"]] == ["c1"]
            await scene.assert_quiet(ws)
        assert len(scene.app.requests) == 1

    async def test_twenty_of_each_leave_no_gauge_up(self) -> None:
        # B020: after 8 turns that ended badly, the account of that gateway was dead.
        scene = Scene(limits=Limits(max_running_turns=2))
        async with scene.connect() as ws:
            for fault in (FAULTS[0], FAULTS[4], FAULTS[10]):
                for _ in range(20):
                    await scene.fault(ws, fault)
            await scene.assert_quiet(ws)
            await good(ws)
        assert scene.middleware.connections == 0
        assert scene.middleware.history_bytes > 0


class TestSilence:
    async def test_comments_and_events_are_life(self) -> None:
        scene = Scene()
        go = [anyio.Event() for _ in range(3)]
        script: list[Step] = [steps.created()]
        for event in go:
            script += [steps.wait_for(event), steps.comment()]
        scene.app.script([*script, steps.text("x")])
        async with scene.connect() as ws:
            await ws.send_json({"type": "response.create", "model": "m"})
            for event in go:
                await scene.clock.advance(15)
                event.set()
                await settle()
            assert (await ws.collect())[-1]["type"] == "response.completed"

    @pytest.mark.parametrize(("seconds", "ends"), [(29.9, False), (30, True)])
    async def test_of_the_first_event_is_bounded(self, seconds: float, ends: bool) -> None:
        scene = Scene(ScriptedApp(listen=True))
        scene.app.script([steps.stall()])
        async with scene.connect() as ws:
            await ws.send_json({"type": "response.create", "model": "m"})
            await scene.app.wait_requests(1)
            await scene.clock.advance(seconds)
            assert ws.unread == ends

    async def test_a_client_that_reads_slowly_is_not_the_apps_silence(self) -> None:
        # B072: the two have time limits of their own.
        scene = Scene(limits=Limits(event_timeout_s=20, send_timeout_s=60))
        scene.app.script([steps.text("x" * 40, deltas=40)])
        async with scene.connect(max_unread=3) as ws:
            await ws.send_json({"type": "response.create", "model": "m"})
            await ws.wait_blocked()
            await scene.clock.advance(50)
            assert (await ws.collect())[-1]["type"] == "response.completed"


class TestStubbornApps:
    async def test_one_that_ignores_its_cancellation_delays_nobody(self) -> None:
        # The turn ends at once; the next one on the lane runs beside what is left of the first.
        scene = Scene()
        free = anyio.Event()
        scene.app.script([steps.created(), steps.wait_for(free, shield=True)], [steps.text("next")])
        async with scene.connect() as ws:
            await ws.send_json({"type": "response.create", "model": "m"})
            await scene.app.wait_events(2)
            await scene.clock.advance(NOTICED)
            events = await ws.collect()
            assert events[-1]["response"]["error"]["code"] == "upstream_timeout"
            assert scene.middleware.running_turns == 0
            await scene.clock.advance(LIMITS.disconnect_grace_s)
            await good(ws)
            assert scene.app.running == 1
            free.set()
            await scene.app.wait_idle()
            assert ws.unread == 0

    async def test_one_that_goes_on_sending_is_not_heard(self) -> None:
        # B086: nothing of the old turn after its end.
        scene = Scene()
        go = anyio.Event()
        scene.app.script([steps.created(), steps.wait_for(go, shield=True), steps.text("late")], [steps.text("next")])
        async with scene.connect() as ws:
            await ws.send_json({"type": "response.create", "model": "m"})
            await scene.app.wait_events(2)
            await scene.clock.advance(NOTICED)
            await ws.collect()
            go.set()
            await scene.app.wait_idle()
            assert await ws.settle() == 0
            await good(ws)
            assert await ws.settle() == 0
        assert scene.app.running == 0

    @pytest.mark.parametrize("listen", [False, True])
    async def test_one_that_keeps_its_body_open_frees_the_lane_at_once(self, listen: bool) -> None:
        # B128: the terminal event ends the turn; the rest of the body has a bound of its own.
        scene = Scene(ScriptedApp(listen=listen))
        scene.app.script([steps.text("x"), steps.complete(), steps.stall()], [steps.text("next")])
        async with scene.connect() as ws:
            await good(ws)
            await good(ws)
            await settle()
            assert scene.app.running == 1
            await scene.clock.advance(LIMITS.trailing_timeout_s - 0.1)
            assert scene.app.running == 1
            await scene.clock.advance(0.1 + LIMITS.disconnect_grace_s)
            await scene.app.wait_idle()
            assert ws.unread == 0
        assert (scene.app.disconnected, scene.app.cancelled) == ((1, 0) if listen else (0, 1))

    async def test_events_after_the_terminal_one_go_nowhere(self) -> None:
        scene = Scene()
        more = steps.event({"type": "response.output_text.delta", "delta": "late"})
        scene.app.script([steps.text("x"), steps.complete(), more, steps.complete()], [steps.text("next")])
        async with scene.connect() as ws:
            await good(ws)
            await scene.assert_quiet(ws)
            await good(ws)

    @pytest.mark.parametrize("after", ["created", "terminal", "error"])
    async def test_one_that_never_waits_is_stopped_with_its_client(self, after: str) -> None:
        # B138: without a pause for others nobody would even notice that the client has gone.
        scene = Scene()
        builder = ResponseBuilder({"model": "m"}, id_factory=counting_ids())
        events = [*builder.start(), *builder.message("x")]
        head = sse(*numbered([*events[:5], *(builder.complete() if after == "terminal" else ())]))
        ahead = {"created": head, "terminal": head, "error": sse(ERROR)}[after]
        sent = 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal sent
            await send(
                {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
            )
            await send({"type": "http.response.body", "body": ahead, "more_body": True})
            while sent < 1_000_000:
                delta = sse({**events[4], "sequence_number": 100 + sent})
                await send({"type": "http.response.body", "body": delta, "more_body": True})
                sent += 1

        middleware = ResponsesWebSocketMiddleware(app, probe=False, clock=scene.clock)
        async with MemorySocket(middleware, max_unread=None) as ws:
            await ws.send_json({"type": "response.create", "model": "m"})
            await ws.receive_json()
            await ws.abort()
            await ws.wait_returned()
        assert sent < 100_000

    async def test_one_that_works_on_in_the_background_is_left_alone(self) -> None:
        # Starlette's background tasks run in the same call, after the last chunk.
        scene = Scene()
        free = anyio.Event()
        done: list[str] = []

        def outer(app: ScriptedApp) -> ASGIApp:
            async def with_background(scope: Scope, receive: Receive, send: Send) -> None:
                await app(scope, receive, send)
                await free.wait()
                done.append("work")

            return with_background

        scene = Scene(outer=outer)
        async with scene.connect() as ws:
            await good(ws)
            await scene.clock.advance(60)
            await good(ws)
            assert not done
            free.set()
        assert done == ["work", "work"]


class TestLargeEvents:
    async def test_50_mib_under_the_default_limits(self) -> None:
        # B132
        big = sse({"type": "response.image_generation_call.partial_image", "partial_image_b64": "x" * 50 * MIB})
        scene = Scene(limits=Limits())
        scene.app.script([steps.raw_sse(sse({"type": "response.created", "response": {"id": "r"}}), big)])
        async with scene.connect() as ws:
            events = await ws.turn({"model": "m"})
            assert_legal(events)
            assert events[-1]["response"]["error"]["code"] == "upstream_event_too_large"
            await scene.assert_quiet(ws)
            await good(ws)
