"""Frames, sizes, encodings, errors: what went wrong elsewhere does not go wrong here."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import msgspec
import pytest
from openai.types.responses import ResponseErrorEvent

from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.limits import MIB
from ws_responses.protocol.closing import legal_close
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, steps
from ws_responses.testing.steps import Step

HI: dict[str, Any] = {"model": "m", "input": "hi"}
CREATE: dict[str, Any] = {"type": "response.create", **HI}


async def ask(ws: MemorySocket, frame: str | bytes | dict[str, Any]) -> dict[str, Any]:
    """Send one frame and return the event that closes its turn."""
    if isinstance(frame, bytes):
        await ws.send_bytes(frame)
    else:
        await ws.send_text(frame if isinstance(frame, str) else json.dumps(frame))
    return (await ws.collect())[-1]


def text_of(event: dict[str, Any]) -> str:
    """The text of a completed response."""
    assert event["type"] == "response.completed", event
    return str(event["response"]["output"][-1]["content"][0]["text"])


# -- sizes -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B025", "B070")
async def test_a_frame_that_is_too_big_ends_in_a_closing_handshake() -> None:
    """The connection breaks off without a close frame, and running turns never hear why."""
    app = ScriptedApp()
    app.script([steps.text("begun", finish=False), steps.stall()], [steps.stall()])
    clock = FakeClock()
    limits = Limits(max_frame_bytes=1000)

    async with MemorySocket(ResponsesWebSocketMiddleware(app, limits=limits, clock=clock)) as ws:
        await ws.send_json(CREATE)
        await app.wait_events(3)
        await ws.send_json(CREATE | {"stream_id": "silent"})
        await app.wait_requests(2)
        await ws.send_text(json.dumps(CREATE | {"input": "x" * 1000}))
        begun = (await ws.collect(None))[-1]
        silent = (await ws.collect("silent"))[-1]
        assert await ws.wait_closed() == 1009
        await clock.advance(1)

    assert begun["type"] == "response.failed"
    assert begun["response"]["error"]["code"] == "websocket_message_too_big"
    assert (silent["type"], silent["error"]["code"]) == ("error", "websocket_message_too_big")
    assert app.running == 0


@pytest.mark.fault("B026", "B032")
async def test_frames_of_usual_agent_turns_pass_by_default() -> None:
    """A limit of 1 MiB, which agent turns exceed; the default is 16 MiB of what the frame holds when it is inflated."""
    app = ScriptedApp()
    frame = CREATE | {"input": ""}
    room = 16 * MIB - len(json.dumps(frame))

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.send_text(json.dumps(frame | {"input": "x" * room}))
        assert (await ws.collect())[-1]["type"] == "response.completed"
        assert len(app.requests[0].body["input"]) == room
        await ws.send_text(json.dumps(frame | {"input": "x" * (room + 1)}))
        assert await ws.wait_closed() == 1009


@pytest.mark.fault("B027")
async def test_a_message_too_big_for_the_app_is_an_error_of_that_turn() -> None:
    """The app's 413 breaks the connection, and every lane with it."""
    app = ScriptedApp()
    go_on = anyio.Event()
    too_big = {"error": {"message": "Body too large.", "type": "invalid_request_error", "code": "body_too_large"}}
    app.script([steps.created(), steps.wait_for(go_on), steps.text("still here")], [steps.status(413, too_big)])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.send_json(CREATE | {"stream_id": "a"})
        await app.wait_requests(1)
        (error,) = await ws.turn(HI | {"stream_id": "b"})
        go_on.set()
        other = (await ws.collect("a"))[-1]

        assert text_of(await ask(ws, CREATE | {"stream_id": "b"}))
    assert (error["status"], error["error"]["code"], error["error"]["message"]) == (
        413,
        "body_too_large",
        "Body too large.",
    )
    assert text_of(other) == "still here"


@pytest.mark.fault("B028")
async def test_a_rebuilt_request_has_a_limit_and_an_error_of_its_own() -> None:
    """Each delta is small, but the request rebuilt from all of them overwhelms the app.

    The app was not called, so that nothing ran: the parent stays, also where it is not stored, and can be compacted.
    """
    app = ScriptedApp()
    limit = 4000
    middleware = ResponsesWebSocketMiddleware(app, limits=Limits(max_request_bytes=limit))
    key = [(b"authorization", b"Bearer k")]
    parent: str | None = None
    last: dict[str, Any] = {}
    frame = {"model": "m", "input": "x" * 300, "store": False}

    async with MemorySocket(middleware, headers=key) as ws:
        for _ in range(100):
            last = (await ws.turn(frame | {"previous_response_id": parent}))[-1]
            if last["type"] != "response.completed":
                break
            parent = last["response"]["id"]
        asked = len(app.requests)
        assert asked > 3
        assert (last["type"], last["status"]) == ("error", 413)
        assert (last["error"]["code"], last["error"]["param"]) == ("request_too_large", "input")
        base = [{"type": "compaction", "encrypted_content": "c"}, {"role": "user", "content": "go on"}]
        compacted = (await ws.turn({"model": "m", "input": base, "previous_response_id": parent, "store": False}))[-1]

    assert compacted["type"] == "response.completed"
    assert app.requests[asked].body["input"] == base
    assert max(len(request.raw) for request in app.requests) <= limit


# -- what is no frame --------------------------------------------------------------------------------------------------


@pytest.mark.fault("B033")
async def test_binary_frames_are_read_or_refused_but_kill_nothing() -> None:
    """One binary frame kills the reader, and the handler waits for ever."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        assert text_of(await ask(ws, json.dumps(CREATE | {"input": "é"}).encode()))
        assert text_of(await ask(ws, json.dumps(CREATE | {"input": "é"}, ensure_ascii=False).encode()))
        for bad in (b"\xff\xfe", b"", b"\x00", b'{"type":"response.create","input":"\xff"}'):
            error = await ask(ws, bad)
            assert (error["type"], error["status"], error["error"]["code"]) == ("error", 400, "invalid_json")
        assert text_of(await ask(ws, CREATE))

    assert [request.body["input"] for request in app.requests] == ["é", "é", "hi"]


DEEP = "[" * 100_000 + "]" * 100_000  # the decoder gives up at 1000 levels on Python 3.11, at 10,000 on 3.13


@pytest.mark.fault("B035")
@pytest.mark.parametrize(
    "frame",
    [
        "",
        "   ",
        "\ufeff" + json.dumps(CREATE),
        "null",
        "7",
        '"response.create"',
        "[]",
        f"[{json.dumps(CREATE)}]",
        DEEP,
        '{"type":"response.create","model":"m","input":' + DEEP + "}",
        '{"type":"response.create","model":"m","input":"hi","metadata":{"a":' + DEEP + "}}",
        '{"type":"response.create","model":"m","input":NaN}',
        '{"type":"response.create","model":"m","input":"hi","temperature":NaN}',
        '{"type":"response.create","model":"m","input":"hi","temperature":Infinity}',
        '{"type":"response.create","model":"m","input":"hi","temperature":-Infinity}',
        '{"type":"response.create","model":"m","input":"hi","temperature":1e999}',
        '{"type":"response.create","model":"m","input":[{"role":"user","content":"hi","x":NaN}]}',
        '{"type":"response.create","model":"m","input":"\\ud800"}',
        '{"type":"response.create","model":"m","input":"hi"',
        '{"type":"response.create","model":"m","input":"hi"}{}',
    ],
    ids=range(20),
)
async def test_odd_json_is_a_400_and_the_socket_lives(frame: str) -> None:
    """Odd JSON raises in the handler, or reaches the app as something that is no JSON."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        error = await ask(ws, frame)
        assert (error["type"], error["status"]) == ("error", 400)
        assert error["error"]["code"] in {"invalid_json", "invalid_request"}
        assert text_of(await ask(ws, CREATE))

    assert len(app.requests) == 1


@pytest.mark.fault("B035")
async def test_the_last_of_duplicate_keys_wins_here_and_in_the_app() -> None:
    """Of two members of one name the check reads the first and the app the second."""
    app = ScriptedApp()
    call = '{"type":"function_call","call_id":"c1","name":"f","arguments":"{}"}'

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        assert text_of(
            await ask(ws, '{"type":"x","type":"response.create","model":"a","model":"b","input":"no","input":"hi"}')
        )
        refused = await ask(
            ws,
            '{"type":"response.create","model":"m","input":['
            + call
            + ',{"type":"function_call_output","call_id":"c1","call_id":"c2","output":"x"}]}',
        )
        served = await ask(
            ws,
            '{"type":"response.create","model":"m","input":['
            + call
            + ',{"type":"function_call_output","call_id":"c2","call_id":"c1","output":"x"}]}',
        )

    assert refused["error"]["code"] == "tool_call_not_found"
    assert text_of(served)
    assert (app.requests[0].body["model"], app.requests[0].body["input"]) == ("b", "hi")
    assert app.requests[1].body["input"][1]["call_id"] == "c1"


@pytest.mark.fault("B036")
@pytest.mark.parametrize(
    "frame",
    [
        {"type": "response.creat"},
        {},
        {"type": 7},
        {"type": None},
        {"type": ["response.create"]},
        {"type": ""},
        {"type": "response.create "},
        {"type": "session.update"},
    ],
    ids=str,
)
async def test_no_frame_is_swallowed_in_silence(frame: dict[str, Any]) -> None:
    """A frame with an unknown type gets no answer, and the client waits for ever."""
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp())) as ws:
        error = await ask(ws, HI | frame)
        assert (error["type"], error["status"], error["error"]["param"]) == ("error", 400, "type")
        assert text_of(await ask(ws, CREATE))


@pytest.mark.fault("B037")
async def test_the_acknowledgement_of_codex_is_taken_in_silence() -> None:
    """``response.processed`` is answered by an error, upon which Codex ends the session."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([], [steps.created(), steps.wait_for(go_on), steps.text("two")])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        first = await ask(ws, CREATE)
        processed = {"type": "response.processed", "response_id": first["response"]["id"]}
        await ws.send_json(processed)
        await ws.send_json(CREATE | {"previous_response_id": first["response"]["id"]})
        await app.wait_requests(2)
        await ws.send_json(processed | {"stream_id": "never used"})
        go_on.set()
        events = await ws.collect()
        assert await ws.settle() == 0

    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert text_of(events[-1]) == "two"


@pytest.mark.fault("B038")
async def test_legacy_shapes_are_refused_by_default() -> None:
    """A wrapped request, or ``response.append``, is taken for something else."""
    app = ScriptedApp()
    wrapped = {"type": "response.create", "response": HI}

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        error = await ask(ws, wrapped)
        append = await ask(ws, {"type": "response.append", "input": []})
        both = await ask(ws, wrapped | HI)
        assert text_of(await ask(ws, CREATE))

    assert (error["status"], error["error"]["param"]) == (400, "response")
    assert (append["status"], append["error"]["code"]) == (400, "unknown_event_type")
    assert (both["status"], both["error"]["code"]) == (400, "invalid_request")
    assert len(app.requests) == 1


@pytest.mark.fault("B038")
async def test_a_wrapped_request_is_served_where_that_is_wanted() -> None:
    """The switch for old clients does not unwrap, or lets a frame of both shapes choose what it means."""
    app = ScriptedApp()
    wrapped = {"type": "response.create", "response": HI}

    async with MemorySocket(ResponsesWebSocketMiddleware(app, accept_wrapped=True)) as ws:
        assert text_of(await ask(ws, wrapped | {"stream_id": "a"}))
        both = await ask(ws, wrapped | HI)
        append = await ask(ws, {"type": "response.append", "input": []})

    assert app.requests[0].body == HI | {"stream": True}
    assert (both["status"], both["error"]["code"]) == (400, "invalid_request")
    assert append["error"]["code"] == "unknown_event_type"


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B040")
@pytest.mark.parametrize("stage", ["http", "event"])
async def test_an_error_has_a_code_that_is_a_string(stage: str) -> None:
    """``code: null`` slips past the client's retry rule."""
    app = ScriptedApp()
    error = {"type": "server_error", "message": "x", "code": None}
    app.script(
        [steps.status(500, {"error": error})] if stage == "http" else [steps.event({"type": "error", "error": error})]
    )

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        told = await ask(ws, CREATE)

    assert (told["status"], told["error"]["code"], told["error"]["message"]) == (500, "server_error", "x")


CLIENT_FAULTS: dict[str, str | bytes | dict[str, Any]] = {
    "no JSON": "{",
    "no UTF-8": b"\xff",
    "no object": "[]",
    "unknown type": {"type": "x"},
    "no lane": CREATE | {"stream_id": ""},
    "wrong type of a member": CREATE | {"model": 7},
    "background": CREATE | {"background": True},
    "unknown parent": CREATE | {"previous_response_id": "resp_missing"},
    "parent and conversation": CREATE | {"previous_response_id": "r", "conversation": "c"},
    "unknown call": CREATE | {"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]},
    "call without its answer": CREATE
    | {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}]},
    "no item": CREATE | {"input": [7]},
}
APP_FAULTS: dict[str, Sequence[Step]] = {
    "400": [steps.status(400)],
    "401": [steps.status(401)],
    "404 without a body": [steps.status(404, b"")],
    "422 of FastAPI": [steps.status(422, {"detail": [{"loc": ["body", "model"], "msg": "missing", "type": "x"}]})],
    "429": [steps.status(429, headers=[(b"retry-after", b"7")])],
    "500": [steps.status(500)],
    "502 with markup": [steps.status(502, b"<html><body>Bad gateway</body></html>", content_type="text/html")],
    "302": [steps.status(302, b"", headers=[(b"location", b"/login")])],
    "204": [steps.status(204, b"")],
    "no JSON": [steps.status(200, b"hello", content_type="text/plain")],
    "no response object": [steps.status(200, b"{}")],
    "null": [steps.status(200, b"null")],
    "error object with 200": [steps.status(200, {"error": {"message": "x", "code": None}})],
    "raises": [steps.raise_error(ValueError("x"), "before")],
    "empty stream": [steps.raw_sse(b"")],
    "done at once": [steps.raw_sse(b"data: [DONE]\n\n")],
    "event that is no JSON": [steps.raw_sse(b"data: hello\n\n")],
    "flat error event": [steps.event({"type": "error", "code": None, "message": "x", "param": None})],
    "error event with status 200": [steps.event({"type": "error", "status": 200, "error": {"message": "x"}})],
    "error event without anything": [steps.event({"type": "error"})],
    "error event with odd members": [steps.event({"type": "error", "status": "x", "error": {"code": 7, "message": 7}})],
}


def assert_envelope(error: dict[str, Any]) -> None:
    """One shape for all errors: nested, with a status that is one of HTTP's errors, and texts where texts belong."""
    assert error["type"] == "error", error
    assert set(error) <= {"type", "status", "sequence_number", "stream_id", "error", "headers"}, error
    assert type(error["status"]) is int, error
    assert 400 <= error["status"] <= 599, error
    assert error["sequence_number"] == 0, error
    body = error["error"]
    assert isinstance(body["code"], str), error
    assert body["code"], error
    assert isinstance(body["type"], str), error
    assert isinstance(body["message"], str), error
    assert body["message"], error
    assert body["param"] is None or isinstance(body["param"], str), error


@pytest.mark.fault("B041", "B048")
@pytest.mark.parametrize("fault", CLIENT_FAULTS)
async def test_what_a_client_does_wrong_is_told_in_one_envelope(fault: str) -> None:
    """Errors come flat or nested, with a status or without, and clients miss what they do not expect."""
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp())) as ws:
        error = await ask(ws, CLIENT_FAULTS[fault])

    assert_envelope(error)
    assert error["status"] == 400
    assert error["error"]["type"] == "invalid_request_error"


@pytest.mark.fault("B041", "B048")
@pytest.mark.parametrize("fault", APP_FAULTS)
async def test_what_an_app_does_wrong_is_told_in_one_envelope(fault: str) -> None:
    """An error without ``status``, or with 2xx, is no error for Codex; markup and nulls break others."""
    app = ScriptedApp()
    app.script(APP_FAULTS[fault])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        error = await ask(ws, CREATE)
        assert text_of(await ask(ws, CREATE))

    assert_envelope(error)
    assert "<" not in error["error"]["message"]
    if fault[:3].isdigit() and fault[0] in "45":
        assert error["status"] == int(fault[:3])
    else:
        assert error["status"] >= 500


@pytest.mark.fault("B041")
async def test_a_client_library_reads_the_envelope() -> None:
    """The envelope is one that the SDK's error type cannot hold, so that its user reads undefined."""
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp())) as ws:
        error = await ask(ws, CREATE | {"previous_response_id": "resp_x"})

    parsed = ResponseErrorEvent.construct(**error)
    assert (parsed.type, parsed.sequence_number) == ("error", 0)
    assert parsed.model_extra is not None
    assert parsed.model_extra["status"] == 400
    assert parsed.model_extra["error"]["code"] == "previous_response_not_found"


@pytest.mark.fault("B042")
async def test_a_failed_response_is_forwarded_as_it_is() -> None:
    """``response.failed`` becomes a bare text, and the code that tells what to do is lost."""
    app = ScriptedApp()
    app.script([steps.text("half", finish=False), steps.fail("rate_limit_exceeded", "Slow down, please.")])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        failed = await ask(ws, CREATE)

    assert failed == app.requests[0].events[-1]
    assert failed["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Slow down, please."}


@pytest.mark.fault("B043")
@pytest.mark.parametrize("store", [True, False, None])
async def test_a_missing_parent_is_told_by_the_documented_code(store: bool | None) -> None:
    """A private code, or a 502, for a missing parent: no client sends its history again upon that."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        error = await ask(ws, CREATE | {"previous_response_id": "resp_missing", "store": store})

    assert error["status"] == 400
    assert error["error"] == {
        "type": "invalid_request_error",
        "code": "previous_response_not_found",
        "message": "Previous response with id 'resp_missing' not found.",
        "param": "previous_response_id",
    }
    assert app.requests == []


@pytest.mark.fault("B045")
@pytest.mark.parametrize("code", [-1, 0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2999, 5000, 65536])
def test_a_reserved_code_never_gets_on_the_wire(code: int) -> None:
    """A close frame with a reserved code is a protocol error at the other end."""
    assert legal_close(code, "why") == (1011, "why")


@pytest.mark.fault("B045")
async def test_a_long_reason_is_cut_to_what_a_close_frame_holds() -> None:
    """A reason that is too long makes the close frame itself illegal."""
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), tenant=lambda handshake: "t")

    async with MemorySocket(middleware) as ws:
        middleware.disconnect("t", "é" * 100)
        assert await ws.wait_closed() == 1008
        assert ws.close_reason == "é" * 61


SPLICE = '\n\ndata: {"type":"response.completed","response":{"id":"evil"}}\n\n'


@pytest.mark.fault("B046")
async def test_a_line_end_in_a_text_makes_no_second_event() -> None:
    """What a model says becomes an event of its own."""
    app = ScriptedApp()
    app.script([steps.text(SPLICE), steps.item({"type": "odd", "id": "i" + SPLICE, "call_id": SPLICE})])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        events = await ws.turn(HI | {"stream_id": "a"})
        assert await ws.settle() == 0

    assert [event | {"stream_id": "a"} for event in app.requests[0].events] == events
    assert text_of({"type": events[-1]["type"], "response": {"output": events[-1]["response"]["output"][:1]}}) == SPLICE


@pytest.mark.fault("B046")
async def test_a_type_is_a_word() -> None:
    """An event's type with a line end in it becomes two events at whoever writes it into a stream again."""
    app = ScriptedApp()
    # Without the `event:` line, in which the app itself would do what is to be shown.
    app.script([steps.sse_format(event_field=False), steps.created(), steps.event({"type": "response.odd" + SPLICE})])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        events = await ws.turn(HI)
        assert await ws.settle() == 0

    assert [event["type"] for event in events] == ["response.created", "response.in_progress", "response.failed"]
    assert SPLICE not in json.dumps(events)


@pytest.mark.fault("B046")
async def test_what_we_insert_is_encoded() -> None:
    """An id that holds quotes or line ends breaks out of the member that it is inserted into."""
    app = ScriptedApp()
    odd = 'resp_"},"type":"response.completed' + SPLICE
    app.script(
        [steps.response_id(odd), steps.text("one")],
        [steps.drop_field("response.previous_response_id"), steps.drop_field("item_id"), steps.text("two")],
    )

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        first = await ws.turn(HI)
        second = await ws.turn(HI | {"previous_response_id": first[-1]["response"]["id"], "stream_id": "b"})
        assert await ws.settle() == 0

    assert first[-1]["response"]["id"] == odd
    assert {event["response"]["previous_response_id"] for event in second if "response" in event} == {odd}
    assert [event["type"] for event in second] == [event["type"] for event in app.requests[1].events]
    assert msgspec.json.decode(msgspec.json.encode(second)) == second
