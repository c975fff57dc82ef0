"""The oddities of seven apps that others have written, as they were recorded: each must work unchanged."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.upstreams.wire import Event, assert_legal
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import MemorySocket, ResponseBuilder, ScriptedApp, counting_ids, numbered, steps
from ws_responses.testing.steps import Step

Style = Callable[[Event], bytes]
CALL_ID = "call_1"


def moved_to_end(event: Mapping[str, Any], *names: str) -> Event:
    first = {name: value for name, value in event.items() if name not in names}
    return first | {name: event[name] for name in names if name in event}


def azure(event: Event) -> bytes:
    """Spaces in the JSON, `sequence_number` last."""
    return f"event: {event['type']}\ndata: {json.dumps(moved_to_end(event, 'sequence_number'))}\n\n".encode()


def fastresponses(event: Event) -> bytes:
    """Obfuscation in its deltas."""
    more = {"obfuscation": "Zx81"} if event["type"].endswith(".delta") else {}
    return f"event: {event['type']}\ndata: {json.dumps(event | more, separators=(',', ':'))}\n\n".encode()


def fastapi_openai_compat(event: Event) -> bytes:
    """No `sequence_number`, no usage."""
    bare = {name: value for name, value in event.items() if name != "sequence_number"}
    if "response" in bare:
        bare["response"] = {name: value for name, value in bare["response"].items() if name != "usage"}
    return f"event: {event['type']}\ndata: {json.dumps(bare)}\n\n".encode()


def graphserve(event: Event) -> bytes:
    """`id:` lines, `type` not the first member."""
    return f"id: {event['sequence_number']}\nevent: {event['type']}\ndata: {json.dumps(moved_to_end(event, 'type'))}\n\n".encode()


def open_responses_server(event: Event) -> bytes:
    """No `event:` lines, no `output_item` events, no `sequence_number`."""
    if event["type"].startswith("response.output_item."):
        return b""
    bare = {name: value for name, value in event.items() if name != "sequence_number"}
    return f"data: {json.dumps(bare)}\n\n".encode()


def litellm(event: Event) -> bytes:
    """Ids of 441 characters."""
    if "response" in event:
        event["response"]["id"] = "resp_" + "x" * 436
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def ogx(event: Event) -> bytes:
    """No `event:` lines, `type` near the end, an extra `response_id`."""
    return (
        f"data: {json.dumps(moved_to_end(event | {'response_id': 'resp_1'}, 'type', 'sequence_number'))}\n\n".encode()
    )


APPS = [azure, fastresponses, fastapi_openai_compat, graphserve, open_responses_server, litellm, ogx]
UNTOUCHED = [azure, fastresponses, graphserve, litellm, ogx]


def name_of(app: Any) -> str:
    return str(app.__name__)


each_app = pytest.mark.parametrize("app", APPS, ids=name_of)


def events_of(body: Mapping[str, Any]) -> list[Event]:
    """Return a reasoning item and a call, then, once that is answered, a text."""
    builder = ResponseBuilder(body, id_factory=counting_ids(), created_at=1)
    answered = any(item["type"] == "function_call_output" for item in body["input"])
    parts = (
        builder.message("It is done.", deltas=3)
        if answered
        else [*builder.reasoning("Hm.", deltas=2), *builder.tool_call("f", {"a": 1}, call_id=CALL_ID, deltas=2)]
    )
    return list(numbered([*builder.start(), *parts, *builder.complete()]))


def scripted(style: Style, *after: bytes, beat: bytes = b"") -> tuple[ScriptedApp, list[bytes]]:
    """Return an app of this style, and the chunks that it has sent; a beat goes before each of them."""
    app = ScriptedApp()
    sent: list[bytes] = []

    def script(body: dict[str, Any]) -> list[Step]:
        chunks = [style(event) for event in events_of(body)]
        sent.extend(chunks)
        return [steps.raw_sse(*(part for chunk in chunks if chunk for part in (beat, chunk) if part), *after)]

    app.script(script)
    return app, sent


async def two_turns(app: ScriptedApp) -> tuple[MemorySocket, list[Event], list[Event]]:
    async with MemorySocket(ResponsesWebSocketMiddleware(app, probe=False)) as ws:
        user = {"type": "message", "role": "user", "content": "Do it."}
        first = await ws.turn({"model": "m", "input": [user]})
        assert first[-1]["type"] == "response.completed", first[-1]
        output = {"type": "function_call_output", "call_id": CALL_ID, "output": "done"}
        parent = first[-1]["response"]["id"]
        second = await ws.turn({"model": "m", "input": [output], "previous_response_id": parent})
        assert second[-1]["type"] == "response.completed", second[-1]
    return ws, first, second


@each_app
async def test_a_tool_round_trip_works(app: Style) -> None:
    # An agent loop is what they are for: the call must be known, and all must be there in the next request.
    host, _ = scripted(app)
    _, first, second = await two_turns(host)
    assert_legal(first)
    assert_legal(second, previous_response_id=first[-1]["response"]["id"])
    kinds = [item["type"] for item in host.requests[1].input]
    assert kinds == ["message", "reasoning", "function_call", "function_call_output"]
    assert second[-1]["response"]["output"][0]["content"][0]["text"] == "It is done."


@pytest.mark.parametrize("app", UNTOUCHED, ids=name_of)
async def test_what_lacks_nothing_passes_to_the_byte(app: Style) -> None:
    host, sent = scripted(app)
    ws, first, _ = await two_turns(host)
    expected = [chunk.split(b"data: ", 1)[1].removesuffix(b"\n\n").decode() for chunk in sent[: len(first)]]
    assert ws.frames[: len(first)] == expected


@pytest.mark.parametrize("marker", [b"data: [DONE]\n\n", b"data:[DONE]", b": ping\n\ndata: [DONE]\n\n"])
async def test_done_markers_end_nothing_and_go_nowhere(marker: bytes) -> None:
    host, _ = scripted(fastresponses, marker)
    ws, _, _ = await two_turns(host)
    assert not any("[DONE]" in str(frame) for frame in ws.frames)


@pytest.mark.parametrize(
    "beat", [b"data: \n\n", b"data:\n\n", b"data\r\n\r\n", b"event: heartbeat\ndata: \n\n", b": a\ndata: \n\n"]
)
async def test_heartbeats_without_data_end_nothing_and_go_nowhere(beat: bytes) -> None:
    """Before the events and among them: each would else be an event that cannot be read, and end the turn."""
    host, _ = scripted(fastresponses, beat, beat=beat)
    plain, _ = scripted(fastresponses)
    ws, _, _ = await two_turns(host)
    expected, _, _ = await two_turns(plain)
    assert [json.loads(frame)["type"] for frame in ws.frames] == [
        json.loads(frame)["type"] for frame in expected.frames
    ]


async def test_text_of_open_responses_server_streams() -> None:
    # Without output_item events the deltas must neither wait nor be lost.
    host, _ = scripted(open_responses_server)
    _, first, second = await two_turns(host)
    kinds = [frame["type"].removeprefix("response.") for frame in second]
    assert kinds == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.delta", "output_text.done", "content_part.done", "output_item.done", "completed",
    ]  # fmt: skip
    assert "function_call_arguments.delta" in [frame["type"].removeprefix("response.") for frame in first]


async def test_usage_that_nobody_gave_stays_unknown() -> None:
    host, _ = scripted(fastapi_openai_compat)
    _, first, _ = await two_turns(host)
    assert first[-1]["response"].get("usage") is None


async def refused(step: Step) -> Event:
    host = ScriptedApp()
    host.script([step])
    async with MemorySocket(ResponsesWebSocketMiddleware(host, probe=False)) as ws:
        (frame,) = await ws.turn({"model": "m", "input": "x"})
    return frame


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "Malformed identifier", "type": "invalid_request_error", "code": None}}, "Malformed identifier"),
        (422, {"detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required"}]}, "model: Field required"),
        (500, b"Internal Server Error", "Internal Server Error"),
        (500, {"error": {"message": "boom", "type": "None", "param": "None", "code": "500"}}, "boom"),
    ],
)  # fmt: skip
async def test_their_four_shapes_of_an_error(status: int, body: Any, message: str) -> None:
    frame = await refused(steps.status(status, body))
    assert (frame["status"], frame["error"]["message"], frame["error"]["param"] in (None, "model")) == (
        status,
        message,
        True,
    )
    assert frame["error"]["code"] in {"invalid_request", "server_error"}


async def test_an_error_of_ogx_comes_with_status_200() -> None:
    error = {"error": {"code": "404", "message": "Model 'x' not found."}, "type": "error"}
    frame = await refused(steps.raw_sse(f"data: {json.dumps(error)}\n\n".encode()))
    assert (frame["status"], frame["error"]["code"], frame["error"]["message"]) == (
        404,
        "not_found",
        "Model 'x' not found.",
    )


async def test_a_failure_of_fastresponses_is_told_once() -> None:
    # It sends `error` and `response.failed`; the second would close the next turn.
    host = ScriptedApp()
    failure = {"type": "error", "error": {"message": "boom", "code": "server_error"}}
    host.script([steps.created(), steps.event(failure), steps.fail("server_error", "boom")], [steps.text("ok")])
    async with MemorySocket(ResponsesWebSocketMiddleware(host, probe=False)) as ws:
        first = await ws.turn({"model": "m", "input": "x"})
        assert_legal(first)
        assert first[-1]["response"]["error"] == {"code": "server_error", "message": "boom"}
        second = await ws.turn({"model": "m", "input": "x"})
        assert_legal(second)
        assert second[-1]["type"] == "response.completed"
