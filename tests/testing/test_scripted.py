"""The scripted app, called in memory."""

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.testing.http import Call, post
from ws_responses._types import Message
from ws_responses.testing import MemorySocket, ScriptedApp, ScriptedModel, steps
from ws_responses.testing.steps import Step

TEXT_EVENTS = [
    "created",
    "in_progress",
    "output_item.added",
    "content_part.added",
    "output_text.delta",
    "output_text.done",
    "content_part.done",
    "output_item.done",
    "completed",
]


def scripted(*turn: Step, **options: Any) -> ScriptedApp:
    app = ScriptedApp(**options)
    app.script(turn)
    return app


async def play(*turn: Step, **options: Any) -> Call:
    return await post(scripted(*turn, **options))


@asynccontextmanager
async def running(app: ScriptedApp) -> AsyncIterator[tuple[Call, Callable[[], None]]]:
    """A call in the background, with what cancels it; leaves when it has ended."""
    call = Call(app, {"model": "m", "input": "hi", "stream": True})
    scope = anyio.CancelScope()

    async def run() -> None:
        with scope:
            await call.run()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        yield call, scope.cancel


async def test_without_a_script_the_model_answers() -> None:
    app = ScriptedApp(ScriptedModel(text="hello", deltas=1))
    call = await post(app, {"input": "hi"}, auth="x")
    assert call.status == 200
    assert call.headers[b"content-type"].startswith(b"text/event-stream")
    assert call.types == TEXT_EVENTS
    assert call.raw.startswith(b'event: response.created\ndata: {"type":"response.created","sequence_number":0,')
    assert call.ended
    (request,) = app.requests
    assert (request.method, request.path, request.header(b"authorization")) == ("POST", "/v1/responses", b"x")
    assert request.body == json.loads(request.raw) == {"model": "m", "input": "hi", "stream": True}
    assert request.input == [{"type": "message", "role": "user", "content": "hi"}]
    assert request.events == call.events
    assert (request.outcome, app.finished, app.running) == ("finished", 1, 0)


async def test_without_stream_the_answer_is_json() -> None:
    call = await post(ScriptedApp(ScriptedModel(text="hello")), {"stream": False})
    assert call.headers[b"content-type"] == b"application/json"
    assert call.json()["output"][0]["content"][0]["text"] == "hello"
    assert call.json()["status"] == "completed"


async def test_model_refusal_is_json() -> None:
    call = await post(ScriptedApp(), {"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]})
    assert (call.status, call.json()["error"]["param"]) == (400, "input")


async def test_turns_are_taken_in_order_then_a_function_then_the_model() -> None:
    app = ScriptedApp()
    app.script([steps.response_id("resp_a")], [steps.response_id("resp_b"), steps.text("b")])
    app.script(lambda body: [steps.status(418)] if body["input"] == "tea" else None)
    first, second = await post(app), await post(app)
    assert first.events[0]["response"]["id"] == "resp_a"
    assert second.events[0]["response"]["id"] == second.events[-1]["response"]["id"] == "resp_b"
    assert (await post(app, {"input": "tea"})).status == 418
    assert (await post(app)).status == 200


async def test_output_steps() -> None:
    call = await play(
        steps.reasoning("hm", deltas=2, encrypted_content="e"),
        steps.text("abc", deltas=3, phase="commentary"),
        steps.tool_call("f", {"a": 1}, call_id="c1"),
        steps.tool_call("g", "input", kind="custom", deltas=2),
        steps.tool_call("", {"commands": ["ls"]}, call_id="c3", kind="shell"),
        steps.item({"type": "web_search_call", "id": "ws_1", "status": "completed"}),
        steps.event({"type": "codex.rate_limits"}),
    )
    events = call.events
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in done] == [
        "reasoning",
        "message",
        "function_call",
        "custom_tool_call",
        "shell_call",
        "web_search_call",
    ]
    assert done[2] | {"call_id": "c1", "name": "f", "arguments": '{"a": 1}'} == done[2]
    assert done[4]["action"] == {"commands": ["ls"]}
    assert events[-1]["response"]["output"] == done


@pytest.mark.parametrize(
    ("turn", "types"),
    [
        ([steps.fail("rate_limit_exceeded", "slow")], ["created", "in_progress", "failed"]),
        ([steps.incomplete("content_filter")], ["created", "in_progress", "incomplete"]),
        ([steps.created()], ["created", "in_progress", "completed"]),
        ([steps.complete(), steps.text("late")], ["created", "in_progress", "completed", *TEXT_EVENTS[2:-1]]),
        ([steps.event({"type": "error", "message": "x"}), steps.done_marker()], ["error"]),
        ([steps.text("a", finish=False), steps.fail()], [*TEXT_EVENTS[:5], "failed"]),
        ([steps.text("a"), steps.drop_event("response.created")], TEXT_EVENTS[1:]),
        ([steps.truncate(after=5)], TEXT_EVENTS[:5]),
        ([steps.truncate(after=0)], []),
        ([steps.created(), steps.model_answer()], ["created", "in_progress", *TEXT_EVENTS]),
    ],
)
async def test_events_of(turn: Sequence[Step], types: list[str]) -> None:
    call = await play(*turn, model=ScriptedModel(deltas=1))
    assert call.types == types
    assert [event["sequence_number"] for event in call.events] == list(range(len(types)))


async def test_ends_have_their_details() -> None:
    failed = (await play(steps.fail("rate_limit_exceeded", "slow"))).events[-1]["response"]
    assert (failed["status"], failed["error"]) == ("failed", {"code": "rate_limit_exceeded", "message": "slow"})
    cut = (await play(steps.text("a", finish=False), steps.incomplete("content_filter"))).events[-1]["response"]
    assert (cut["incomplete_details"], cut["output"][0]["status"]) == ({"reason": "content_filter"}, "incomplete")


async def test_fields_can_be_dropped_and_set() -> None:
    call = await play(
        steps.text("a"),
        steps.drop_field("item_id"),
        steps.drop_field("sequence_number", event="response.output_text.delta"),
        steps.drop_field("response.usage"),
        steps.set_field("response.output", [], event="response.completed"),
        steps.set_field("stream_id", "x"),
    )
    events = call.events
    assert not any("item_id" in event for event in events)
    assert [event["type"] for event in events if "sequence_number" not in event] == ["response.output_text.delta"]
    assert all("usage" not in event.get("response", {}) for event in events)
    assert events[-1]["response"]["output"] == []
    assert all(event["stream_id"] == "x" for event in events)


async def test_raise_before_and_after_start() -> None:
    for turn, messages in (
        ([steps.raise_error(KeyError("x"), after="before")], 0),
        ([steps.raise_error(KeyError("x"))], 1),
        ([steps.created(), steps.raise_error(KeyError("x"))], 3),
    ):
        app = scripted(*turn)
        call = Call(app, {"stream": True})
        with pytest.raises(KeyError):
            await call.run()
        assert len(call.messages) == messages
        assert (app.raised, app.requests[0].outcome) == (1, "raised")


async def test_an_oserror_of_the_script_is_no_disconnect() -> None:
    app = scripted(steps.raise_error(OSError("disk")))
    with pytest.raises(OSError, match="disk"):
        await post(app)
    assert (app.raised, app.disconnected) == (1, 0)


async def test_status() -> None:
    call = await play(steps.status(429, headers=[(b"retry-after", b"1")]))
    assert (call.status, call.headers[b"retry-after"]) == (429, b"1")
    assert call.json()["error"]["type"] == "invalid_request_error"
    call = await play(steps.status(502, b"<html>", content_type="text/html"))
    assert (call.raw, call.headers[b"content-type"]) == (b"<html>", b"text/html")
    call = await play(steps.status(200, {"id": "resp_1"}))
    assert call.json() == {"id": "resp_1"}


async def test_json_only() -> None:
    call = await play(steps.text("a"), steps.json_only(), steps.headers([(b"x", b"y")]))
    assert call.json()["output"][0]["content"][0]["text"] == "a"
    assert call.headers[b"x"] == b"y"
    assert call.headers[b"content-type"] == b"application/json"


async def test_raw_sse_stands_alone() -> None:
    call = await play(steps.raw_sse(b"data: {", b"}\r"), steps.content_type("text/plain"))
    assert call.chunks == [b"data: {", b"}\r", b""]
    assert call.headers[b"content-type"] == b"text/plain"


async def test_response_start_sets_status_and_headers() -> None:
    call = await play(steps.response_start(201, [(b"x", b"y")], "text/x"), steps.text("a"))
    assert (call.status, call.headers[b"x"], call.headers[b"content-type"]) == (201, b"y", b"text/x")
    assert call.types == TEXT_EVENTS


async def test_form_of_the_stream() -> None:
    plain = await play(steps.text("é", deltas=1), steps.response_id("resp_1"))
    assert "é".encode() in plain.raw
    crlf = await play(steps.text("é"), steps.line_ending("\r\n"))
    assert b"\r\n\r\n" in crlf.raw
    assert b"\n\n" not in crlf.raw
    pretty = await play(steps.text("é"), steps.sse_format(event_field=False, pretty=True, line_ending="\r"))
    assert b"event:" not in pretty.raw
    assert pretty.raw.startswith(b'data: {\rdata:  "type"')
    done = await play(steps.text("a"), steps.done_marker(), steps.comment())
    assert done.raw.endswith(b"}\n\ndata: [DONE]\n\n")
    assert b": ping\n\n" in done.raw
    lone = await play(steps.text("\ud800"))
    assert b"\\ud800" in lone.raw


async def test_chunks() -> None:
    cut = await play(steps.text("é"), steps.chunk_bytes(7))
    assert max(map(len, cut.chunks)) == 7
    assert cut.types == TEXT_EVENTS
    whole = await play(steps.text("é"), steps.coalesce())
    assert len(whole.chunks) == 1
    assert whole.types == TEXT_EVENTS
    assert whole.ended


async def test_body_without_its_last_message() -> None:
    assert not (await play(steps.truncate(after=3, finish_body=False))).ended


async def test_waiting_steps_are_led_by_events() -> None:
    go, reached = anyio.Event(), anyio.Event()
    called: list[int] = []

    async def note() -> None:
        called.append(1)

    app = scripted(steps.created(), steps.signal(reached), steps.wait_for(go), steps.call(note), steps.text("a"))
    async with running(app) as (call, _):
        await reached.wait()
        await app.wait_requests(1)
        await app.wait_events(2)
        await anyio.wait_all_tasks_blocked()
        assert (call.types, called, app.running) == (TEXT_EVENTS[:2], [], 1)
        go.set()
        await app.wait_idle()
    assert (call.types, called, app.running, app.max_running) == (TEXT_EVENTS, [1], 0, 1)


async def test_stall_before_anything_is_sent() -> None:
    app = scripted(steps.stall())
    async with running(app) as (call, cancel):
        await app.wait_requests(1)
        await anyio.wait_all_tasks_blocked()
        assert call.messages == []
        cancel()
    assert (app.cancelled, app.running, app.requests[0].outcome) == (1, 0, "cancelled")


async def test_listening_app_stops_at_the_disconnect() -> None:
    app = scripted(steps.created(), steps.stall(), listen=True)
    async with running(app) as (call, _):
        await app.wait_events(2)
        call.gone.set()
        await app.wait_idle()
    assert (app.disconnected, app.cancelled, app.requests[0].outcome) == (1, 0, "disconnected")


async def test_listening_app_finishes_and_raises_as_others_do() -> None:
    assert (await play(steps.text("a"), listen=True)).types == TEXT_EVENTS
    with pytest.raises(KeyError):
        await play(steps.raise_error(KeyError("x")), listen=True)
    app = scripted(steps.stall(), listen=True)
    async with running(app) as (_, cancel):
        await app.wait_requests(1)
        cancel()
    assert app.cancelled == 1


async def test_listening_app_has_finished_when_the_disconnect_comes_with_its_last_message() -> None:
    # As servers and the middleware do it: else every turn of such an app would look like one that was cut off.
    app = scripted(steps.call(anyio.wait_all_tasks_blocked), steps.text("a"), listen=True)
    call = Call(app, {"model": "m", "input": "hi", "stream": True})

    class Messages(list[Message]):
        def append(self, message: Message) -> None:
            super().append(message)
            if message["type"] == "http.response.body" and not message.get("more_body"):
                call.gone.set()

    call.messages = Messages()
    await call.run()
    assert (app.finished, app.disconnected, app.requests[0].outcome) == (1, 0, "finished")


async def test_other_app_notices_only_when_it_sends() -> None:
    go = anyio.Event()
    app = scripted(steps.created(), steps.wait_for(go), steps.text("a"))

    async def leave() -> None:
        async with running(app) as (call, _):
            await app.wait_events(2)
            call.gone.set()
            await anyio.wait_all_tasks_blocked()
            assert app.running == 1
            go.set()

    with pytest.raises(ExceptionGroup) as caught:
        await leave()
    assert caught.group_contains(BrokenPipeError, match="gone")
    assert (app.disconnected, app.raised) == (1, 0)


async def test_await_disconnect_stays_until_it_comes() -> None:
    app = scripted(steps.text("a"), await_disconnect=True)
    async with running(app) as (call, _):
        await app.wait_events(len(TEXT_EVENTS))
        await anyio.wait_all_tasks_blocked()
        assert (call.ended, app.running) == (True, 1)
        call.gone.set()
    assert (app.finished, app.running) == (1, 0)


async def test_shielded_wait_ignores_cancellation() -> None:
    go = anyio.Event()
    app = scripted(steps.wait_for(go, shield=True))
    async with running(app) as (_, cancel):
        await app.wait_requests(1)
        cancel()
        await anyio.wait_all_tasks_blocked()
        assert app.running == 1
        go.set()
    assert (app.finished, app.cancelled) == (1, 0)


async def test_shielded_wait_does_not_outlive_a_failed_test() -> None:
    """On asyncio the end of the event loop waits for each task, which this one would never let end."""
    app = scripted(steps.wait_for(anyio.Event(), shield=True, at_most_s=0))
    with pytest.RaisesGroup(pytest.RaisesExc(AssertionError, match="has waited"), flatten_subgroups=True):
        async with running(app):
            await app.wait_idle()


async def test_client_that_leaves_before_the_end_of_the_body() -> None:
    app = ScriptedApp()

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pytest.fail("sent something")

    await app({"type": "http", "method": "POST", "path": "/", "headers": []}, receive, send)
    assert (app.disconnected, app.requests) == (1, [])


async def test_auth_guards_every_method() -> None:
    app = ScriptedApp(auth="key")
    assert [(await post(app, method=method)).status for method in ("POST", "GET", "DELETE")] == [401] * 3
    assert (await post(app, auth="Bearer bad")).json()["error"]["code"] == "invalid_api_key"
    assert (await post(app, auth="Bearer key")).status == 200


async def test_other_methods_and_bad_bodies() -> None:
    app = ScriptedApp()
    assert (await post(app, method="GET")).status == 405
    assert (await post(app, method="GET", path="/v1/other")).status == 404
    assert (await post(app, method="DELETE", path="/v1/responses/resp_1")).status == 404
    assert len(app.others) == 3
    assert (await Call(app, b"{").run()).status == 400
    assert (await Call(app, []).run()).status == 400


async def test_stateful_app_joins_the_history() -> None:
    app = ScriptedApp(stateful=True)
    tools = [{"type": "function", "name": "bash"}]
    first = (await post(app, {"tools": tools})).events[-1]["response"]
    output = {"type": "function_call_output", "call_id": first["output"][0]["call_id"], "output": "42"}
    body = {"previous_response_id": first["id"], "input": [output], "tools": tools}
    second = (await post(app, body)).events[-1]["response"]
    assert second["output"][0]["content"][0]["text"] == "This answers 3 input items, 1 of them tool outputs."
    assert second["previous_response_id"] == first["id"]
    wrong = await post(app, {**body, "input": [{**output, "call_id": "other"}]})
    assert wrong.status == 400

    path = f"/v1/responses/{first['id']}"
    assert (await post(app, method="GET", path=path)).json() == first
    assert (await post(app, method="DELETE", path=path)).json()["deleted"] is True
    lost = await post(app, body)
    assert (lost.status, lost.json()["error"]["code"]) == (400, "previous_response_not_found")


async def test_stateful_app_keeps_neither_unstored_nor_failed_responses() -> None:
    app = ScriptedApp(stateful=True)
    app.script([steps.fail()])
    await post(app)
    await post(app, {"store": False})
    assert app.stored == {}


async def test_compaction() -> None:
    call = await post(ScriptedApp(), path="/v1/responses/compact")
    assert call.json()["object"] == "response.compaction"
    assert (await Call(ScriptedApp(), {"input": "hi"}, path="/compact").run()).status == 400


async def test_websocket_is_refused_and_lifespan_served() -> None:
    app = ScriptedApp()
    async with MemorySocket(app) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 403
    assert app.websockets == [ws.scope]
    incoming: list[Message] = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]
    sent: list[Message] = []

    async def receive() -> Message:
        return incoming.pop(0)

    async def send(message: Message) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, send)
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_waits_are_bounded() -> None:
    app = ScriptedApp(timeout=0.01)
    with pytest.raises(AssertionError, match="only 0 of 1 requests"):
        await app.wait_requests(1)


def test_steps_say_what_they_are() -> None:
    assert repr(steps.text("hello")) == "<text 'hello'>"
    assert repr(steps.stall()) == "<stall>"
