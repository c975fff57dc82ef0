"""The app's event stream, through the whole middleware: how bridges to SSE have misread, leaked or lost it."""

import gzip
import json
import tracemalloc
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import anyio
import pytest
from starlette.middleware.gzip import GZipMiddleware

from tests.known_faults.talk import (
    NOT_FOUND,
    Event,
    answer,
    create,
    endings,
    failure,
    follow,
    id_of,
    kinds,
    response,
    sse,
)
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.instrumentation import Fact
from ws_responses.limits import MIB
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, steps


def cut(body: bytes, places: Iterable[int]) -> list[bytes]:
    return [body[a:b] for a, b in pairwise([0, *places, len(body)])]


async def play(*chunks: bytes, **options: Any) -> list[Event]:
    """Return the events of a turn whose app sends these chunks, after which another turn must go well."""
    app = ScriptedApp()
    app.script([steps.raw_sse(*chunks)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, **options)) as ws:
        events = await ws.turn(create())
        assert response(await ws.turn(create()))["status"] == "completed"
    return events


# -- reading the stream --------------------------------------------------------------------------------------------------


@pytest.mark.fault("B120")
async def test_cr_and_lf_in_different_chunks_are_one_line_end() -> None:
    """Read as two, they would end an event in its middle: here after each of its data lines."""
    events = answer()
    body = b"".join(sse(event, end="\r\n", indent=1) for event in events)
    places = [index + 1 for index, byte in enumerate(body) if byte == ord("\r")]

    assert await play(*cut(body, places)) == events


@pytest.mark.fault("B121")
@pytest.mark.parametrize("text", ["é", "😀", "a\u0301é😀b"])
async def test_characters_cut_by_chunks_arrive_whole(text: str) -> None:
    """A decoder per chunk puts U+FFFD on both sides of the cut."""
    events = answer(text)
    body = b"".join(map(sse, events))
    places = [index for index in range(1, len(body)) if body[index] & 0xC0 == 0x80]
    assert len(places) > 0

    app = ScriptedApp()
    app.script(
        *([steps.raw_sse(body[:place], body[place:])] for place in places),
        [steps.raw_sse(*(bytes([byte]) for byte in body))],
    )
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        for _ in range(len(places) + 1):
            got = await ws.turn(create(store=False))
            assert [event.get("delta") for event in got] == [event.get("delta") for event in events]
            assert response(got)["output"] == events[-1]["response"]["output"]


@pytest.mark.fault("B122")
async def test_only_cr_and_lf_end_a_line() -> None:
    """``splitlines()`` breaks at each of these, which may stand raw inside JSON."""
    text = "a\x85b\u2028c\u2029d"
    events = answer(text)
    body = b"".join(map(sse, events))
    assert text.encode() in body

    assert await play(body) == events


@pytest.mark.fault("B123")
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_json_over_several_data_lines_is_one_event(end: str) -> None:
    """With the last line only, every pretty-printed event would be a stray brace."""
    events = answer("two\nlines")
    body = [sse(event, end=end, indent=2) for event in events]
    assert body[0].count(b"data:") > 5

    assert await play(*body) == events


# -- the end of the stream -----------------------------------------------------------------------------------------------


@pytest.mark.fault("B125")
@pytest.mark.parametrize("done", [b"data: [DONE]\n\n", b"data:[DONE]\r\n\r\n", b"event: done\ndata: [DONE] \n\n"])
async def test_a_done_marker_is_not_forwarded(done: bytes) -> None:
    """It is no JSON; on a socket, every client would fail at it."""
    events = answer()

    assert await play(*map(sse, events[:3]), done, *map(sse, events[3:]), done) == events


@pytest.mark.fault("B125")
async def test_a_done_marker_is_no_end_of_a_response() -> None:
    """Taken as the terminal, a cut response would pass for a whole one."""
    events = answer(deltas=3)
    got = await play(*map(sse, events[:5]), b"data: [DONE]\n\n")

    assert got[:-1] == events[:5]
    assert got[-1]["type"] == "response.failed"
    assert got[-1]["response"]["error"]["code"] == "upstream_stream_truncated"


ERROR: Event = {"type": "error", "code": "rate_limit_exceeded", "message": "Slow down.", "param": None}


@pytest.mark.fault("B126")
async def test_a_done_marker_after_an_error_does_not_hide_it() -> None:
    """The error is the terminal event; a marker that won would end the turn without a word."""
    got = await play(sse(ERROR), b"data: [DONE]\n\n")

    assert failure(got) == (429, "rate_limit_exceeded", None)
    assert got[0]["error"]["message"] == "Slow down."


@pytest.mark.fault("B126")
async def test_an_error_in_the_middle_of_a_response_is_its_one_closing_event() -> None:
    """An ``error`` and a ``response.failed`` would end two turns of a client that waits for one."""
    events = answer()
    failed = {"type": "response.failed", "response": {**events[-1]["response"], "status": "failed", "output": []}}
    got = await play(*map(sse, events[:4]), sse(ERROR), sse(failed), b"data: [DONE]\n\n")

    assert got[:-1] == events[:4]
    assert got[-1]["type"] == "response.failed"
    assert got[-1]["response"]["id"] == "resp_a"
    assert got[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}


@pytest.mark.fault("B127")
@pytest.mark.parametrize("last", ["\n\n", "\n", ""], ids=["whole", "no blank line", "no line end"])
async def test_a_stream_without_a_terminal_event_is_a_failure(last: str) -> None:
    """Passed off as success, a half answer becomes part of the conversation, and is billed as a whole one."""
    events = answer(deltas=3)[:7]
    assert [event["type"] for event in events[-3:]] == ["response.output_text.delta"] * 3
    body = b"".join(map(sse, events)).rstrip(b"\n") + last.encode()
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script([], [steps.raw_sse(body)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        parent = await ws.turn(create(store=False))
        got = await ws.turn(follow(parent, store=False))
        half = await ws.turn(create(previous_response_id="resp_a", store=False))
        gone = await ws.turn(follow(parent, store=False))

    assert got[:-1] == [_with_parent(event, id_of(parent)) for event in events]
    failed = got[-1]["response"]
    assert (got[-1]["type"], failed["id"], failed["status"]) == ("response.failed", "resp_a", "failed")
    assert failed["error"]["code"] == "upstream_stream_truncated"
    assert got[-1]["sequence_number"] == 7
    assert failure(half) == failure(gone) == NOT_FOUND
    ending = endings(facts)[1]
    assert (ending.outcome, ending.code, ending.response_id) == ("failed", "upstream_stream_truncated", "resp_a")
    assert ending.usage is None
    assert ending.events == 8


def _with_parent(event: Event, parent_id: str) -> Event:
    if "response" not in event:
        return event
    return {**event, "response": {**event["response"], "previous_response_id": parent_id}}


@pytest.mark.fault("B127")
async def test_an_app_that_returns_without_ending_its_body_is_a_failure_too() -> None:
    """A crash after the headers looks like this; the client would wait for ever."""
    app = ScriptedApp()
    app.script([steps.text("Hello"), steps.truncate(4, finish_body=False)], [steps.truncate(0)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        cut_off = await ws.turn(create())
        empty = await ws.turn(create())

    assert cut_off[-1]["type"] == "response.failed"
    assert cut_off[-1]["response"]["id"] == cut_off[0]["response"]["id"]
    assert failure(empty) == (502, "upstream_stream_truncated", None)


@pytest.mark.fault("B128")
@pytest.mark.parametrize("listens", [True, False])
async def test_a_body_that_stays_open_does_not_block_the_lane(listens: bool) -> None:
    """The turn ends at its terminal event; the rest of the body gets a little time and is closed."""
    clock = FakeClock()
    limits = Limits(trailing_timeout_s=5, disconnect_grace_s=0.25)
    app = ScriptedApp(listen=listens)
    app.script([steps.text("Hello"), steps.complete(), steps.stall()])
    middleware = ResponsesWebSocketMiddleware(app, clock=clock, limits=limits, probe=False)
    async with MemorySocket(middleware) as ws:
        first = await ws.turn(create())
        second = await ws.turn(follow(first))
        await clock.advance(4.9)
        assert app.running == 1
        await clock.advance(0.5)
        assert app.running == 0
        third = await ws.turn(follow(second))

    assert app.requests[0].outcome == ("disconnected" if listens else "cancelled")
    assert response(third)["status"] == "completed"


@pytest.mark.fault("B128")
async def test_what_follows_the_terminal_event_is_dropped() -> None:
    """Late events would be read as the beginning of the next turn."""
    events = answer()

    assert await play(*map(sse, [*events, *answer("Again", response_id="resp_b"), ERROR])) == events


# -- answers that are no stream ------------------------------------------------------------------------------------------

PAGE = b"<html><head><title>502 Bad Gateway</title></head><body>nginx/1.2 at 10.0.0.7</body></html>"
OWN_ERROR = {"type": "quota", "code": "no_credit", "message": "Pay.", "param": "model", "plan_type": "pro"}


@pytest.mark.fault("B130")
@pytest.mark.parametrize(
    ("answered", "expected", "kept"),
    [
        (steps.status(402, {"error": OWN_ERROR}), (402, "no_credit", "model"), "Pay."),
        (steps.status(404, {"detail": "Not Found"}), (404, "not_found", None), "Not Found"),
        (
            steps.status(422, {"detail": [{"loc": ["body", "input", 0, "role"], "msg": "Field required"}]}),
            (422, "invalid_request", "input[0].role"),
            "Field required",
        ),
        (steps.status(400, {"message": "No."}), (400, "invalid_request", None), "No."),
        (steps.status(400, b"plain words", content_type="text/plain"), (400, "invalid_request", None), "plain words"),
        (steps.status(429), (429, "rate_limit_exceeded", None), "429"),
        (steps.status(500, b""), (500, "server_error", None), "500"),
        (steps.status(502, PAGE, content_type="text/html"), (502, "server_error", None), "502"),
        (steps.status(503, PAGE, content_type="text/html"), (503, "server_is_overloaded", None), "503"),
        (steps.status(500, b"\xff\xfe\x00"), (500, "server_error", None), "500"),
        (steps.status(301, b"", [(b"location", b"http://10.0.0.7/")]), (502, "upstream_error", None), "301"),
        (steps.status(204, b""), (502, "upstream_error", None), "204"),
        (steps.status(200, b""), (502, "upstream_error", None), "200"),
        (steps.status(200, PAGE, content_type="text/html"), (502, "upstream_error", None), ""),
        (steps.status(200, {"ok": True}), (502, "upstream_error", None), ""),
        (steps.status(200, {"error": OWN_ERROR}), (500, "no_credit", "model"), "Pay."),
    ],
    ids=[
        "openai", "detail", "pydantic", "message", "text", "429", "empty", "html", "html 503", "bytes", "redirect",
        "no content", "empty 200", "html 200", "other json", "error 200",
    ],
)  # fmt: skip
async def test_an_http_error_becomes_one_error_frame(
    answered: steps.Step, expected: tuple[int, str, str | None], kept: str
) -> None:
    """Clients decide by status and code; markup and addresses of inner hosts are nobody's business."""
    app = ScriptedApp()
    app.script([answered])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        got = await ws.turn(create())
        after = await ws.turn(create())

    assert failure(got) == expected
    assert kept in got[0]["error"]["message"]
    for leaked in ("<", "nginx", "10.0.0.7"):
        assert leaked not in json.dumps(got)
    assert response(after)["status"] == "completed"


@pytest.mark.fault("B130")
async def test_an_error_keeps_its_own_members_and_the_time_to_wait() -> None:
    """Clients look for retry-after in different places: on top, and inside the error."""
    app = ScriptedApp()
    headers = [(b"Retry-After", b"7"), (b"x-ratelimit-remaining-tokens", b"0"), (b"set-cookie", b"secret=1")]
    app.script([steps.status(429, {"error": OWN_ERROR}, headers)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        (got,) = await ws.turn(create())

    useful = {"retry-after": "7", "x-ratelimit-remaining-tokens": "0"}
    assert got["headers"] == got["error"]["headers"] == useful
    assert got["error"] == {**OWN_ERROR, "headers": useful}
    assert got["sequence_number"] == 0


@pytest.mark.fault("B131")
async def test_an_app_behind_gzip_is_asked_for_the_identity() -> None:
    """The handshake's own accept-encoding would make the app compress its events."""
    app = ScriptedApp()
    zipped: ASGIApp = GZipMiddleware(app, minimum_size=1)
    headers = [(b"accept-encoding", b"gzip, deflate, br")]
    async with MemorySocket(ResponsesWebSocketMiddleware(zipped), headers=headers) as ws:
        got = await ws.turn(create())

    assert app.requests[0].header(b"accept-encoding") == b"identity"
    assert response(got)["status"] == "completed"


@pytest.mark.fault("B131")
@pytest.mark.parametrize("label", ["text/event-stream", "application/json"])
async def test_an_app_that_compresses_all_the_same_is_refused_clearly(label: str) -> None:
    """Taken as text, it would be garbage inside an error message."""
    body = gzip.compress(b"".join(map(sse, answer())))
    app = ScriptedApp()
    app.script(
        [steps.response_start(headers=[(b"Content-Encoding", b"gzip")], content_type=label), steps.raw_sse(body)]
    )
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        got = await ws.turn(create())

    assert failure(got) == (502, "upstream_error", None)
    assert "compressed" in got[0]["error"]["message"]


@pytest.mark.fault("B131")
@pytest.mark.parametrize("label", ["application/json", "text/plain; charset=utf-8", "", "application/octet-stream"])
@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf", b"\n\n", b": hello\n\n", b"retry: 10\n\n", b"id: 1\n"])
async def test_a_stream_under_another_label_is_known_by_how_it_begins(label: str, begin: bytes) -> None:
    """By the label alone, it would be gathered to its end and then refused as bad JSON."""
    events = answer()
    app = ScriptedApp()
    app.script([steps.response_start(content_type=label), steps.raw_sse(begin + sse(events[0]), *map(sse, events[1:]))])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        assert await ws.turn(create()) == events


@pytest.mark.fault("B131")
async def test_json_under_the_label_of_a_stream_is_known_by_how_it_begins_too() -> None:
    """Read as a stream, it would be one line that nobody asked for, and the answer would be lost."""
    whole = answer()[-1]["response"]
    got = await play(json.dumps(whole).encode())

    assert kinds(got)[0] == "response.created"
    assert response(got) == whole
    assert [event["item"] for event in got if event["type"] == "response.output_item.done"] == whole["output"]


# -- sizes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B132")
@pytest.mark.parametrize("what", ["event", "line", "comment", "lines"])
async def test_an_endless_event_is_bounded(what: str) -> None:
    """Fifty megabytes must cost no more than the limit, and the turn must end by an error."""
    begin, piece = {
        "event": (b'data: {"type":"response.output_text.delta","delta":"', b"x" * 65536),
        "line": (b"", b"x" * 65536),
        "comment": (b": ", b"x" * 65536),
        "lines": (b"", b"data: x\n" * 8192),
    }[what]
    app = ScriptedApp()
    app.script([steps.raw_sse(sse(answer()[0]), begin, *[piece] * 800)])
    limits = Limits(max_event_bytes=MIB // 8)
    async with MemorySocket(ResponsesWebSocketMiddleware(app, limits=limits)) as ws:
        tracemalloc.start(1)
        try:
            got = await ws.turn(create())
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        after = await ws.turn(create())

    assert got[-1]["type"] == "response.failed"
    assert got[-1]["response"]["error"]["code"] == "upstream_event_too_large"
    assert peak < MIB
    assert response(after)["status"] == "completed"


@pytest.mark.fault("B132")
@pytest.mark.parametrize("extra", [-1, 0, 1])
async def test_an_event_may_have_as_many_bytes_as_the_limit_says(extra: int) -> None:
    """In one chunk and in two: the way past the decoder has the same bound."""
    events = answer("x" * 3000)
    delta = b"data: " + json.dumps(events[4]).encode()
    assert events[4]["type"] == "response.output_text.delta"
    limits = Limits(max_event_bytes=len(delta) - extra)
    whole = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events[:4]]
    whole.append(delta + b"\n\n")
    for chunks in (whole, [*whole[:4], delta[:100], delta[100:] + b"\n\n"]):
        got = await play(*chunks, limits=limits)
        assert got[-1]["response"]["error"]["code"] == (
            "upstream_event_too_large" if extra > 0 else "upstream_stream_truncated"
        )


@pytest.mark.fault("B132")
async def test_an_endless_json_answer_is_bounded() -> None:
    """An answer that is no stream is gathered, so it needs a bound of its own."""
    app = ScriptedApp()
    app.script([steps.response_start(content_type="application/json"), steps.raw_sse(b'{"a":"', *[b"x" * 65536] * 64)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, limits=Limits(max_answer_bytes=MIB))) as ws:
        got = await ws.turn(create())
        assert response(await ws.turn(create()))["status"] == "completed"

    assert failure(got) == (502, "upstream_error", None)


# -- what is missing -----------------------------------------------------------------------------------------------------


@pytest.mark.fault("B133")
async def test_a_terminal_event_without_id_and_usage_is_completed_by_rule() -> None:
    """The id is the one announced; usage that nobody knows is not invented."""
    events = answer()
    bare = {"type": "response.completed", "response": {"status": "completed"}}
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script([steps.raw_sse(*map(sse, [*events[:-1], bare]))])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        got = await ws.turn(create(store=False))
        after = await ws.turn(follow(got, store=False))

    assert id_of(got) == "resp_a"
    assert response(got).get("usage") is None
    assert response(got)["output"] == events[-1]["response"]["output"]
    assert got[-1]["sequence_number"] == events[-1]["sequence_number"]
    assert response(after)["status"] == "completed"
    assert endings(facts)[0].usage is None


@pytest.mark.fault("B133")
async def test_a_response_keeps_the_id_that_it_was_announced_by() -> None:
    """A client that continues by the first id and one that takes the last must find the same response."""
    events = answer()
    changed = {**events[-1], "response": {**events[-1]["response"], "id": "resp_other"}}
    app = ScriptedApp()
    app.script([steps.raw_sse(*map(sse, [*events[:-1], changed]))])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        got = await ws.turn(create(store=False))
        after = await ws.turn(follow(got, store=False))

    assert {event["response"]["id"] for event in got if "response" in event} == {"resp_a"}
    assert response(after)["status"] == "completed"


@pytest.mark.fault("B133")
@pytest.mark.parametrize("missing", ["created", "id"])
async def test_a_response_that_is_not_announced_gets_its_announcement(missing: str) -> None:
    """Clients make the response at ``response.created``; without it, all that follows belongs to nothing."""
    events = answer()
    if missing == "created":
        sent: Sequence[Event] = events[2:]
    else:
        sent = [_without_id(event) for event in events]
    got = await play(*map(sse, sent))

    assert got[0]["type"] == "response.created"
    assert kinds(got)[-1] == "response.completed"
    (announced,) = {event["response"]["id"] for event in got if "response" in event}
    assert announced.startswith("resp_")
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert [event.get("delta") for event in got if "delta" in event] == ["Hello"]


def _without_id(event: Event) -> Event:
    if "response" not in event:
        return event
    return {**event, "response": {name: value for name, value in event["response"].items() if name != "id"}}


@pytest.mark.fault("B133")
@pytest.mark.parametrize("kind", ["completed", "incomplete", "failed"])
@pytest.mark.parametrize("given", [None, 7, "text", []], ids=["null", "number", "text", "array"])
async def test_a_terminal_event_without_a_response_still_ends_the_turn(kind: str, given: Any) -> None:
    """A KeyError here would leave the client waiting for ever."""
    events = answer()
    terminal = {"type": f"response.{kind}", "response": given}
    got = await play(*map(sse, [*events[:-1], terminal]))

    assert got[:-1] == events[:-1]
    last = got[-1]
    assert (last["type"], last["response"]["id"], last["response"]["status"]) == (f"response.{kind}", "resp_a", kind)
    if kind == "failed":
        assert isinstance(last["response"]["error"]["code"], str)
    else:
        assert last["response"]["output"] == events[-1]["response"]["output"]


@pytest.mark.fault("B133")
@pytest.mark.parametrize(
    "garbage",
    [b"data: {\n\n", b"data: 7\n\n", b"data: {}\n\n", b'data: {"type":7}\n\n', b"data: \xff\xfe\n\n", b"data: []\n\n"],
)
@pytest.mark.parametrize("begun", [True, False], ids=["in a response", "at once"])
async def test_garbage_instead_of_an_event_fails_the_turn_and_nothing_else(garbage: bytes, begun: bool) -> None:
    """One bad event must not end the socket, and never reach the client as it is."""
    events = answer()
    got = await play(*(map(sse, events[:5]) if begun else ()), garbage, *map(sse, events[5:]))

    if begun:
        assert got[:-1] == events[:5]
        assert got[-1]["type"] == "response.failed"
        assert got[-1]["response"]["error"]["code"] == "upstream_error"
    else:
        assert failure(got) == (502, "upstream_error", None)


@pytest.mark.fault("B098")
@pytest.mark.parametrize("form", ["json", "stream"])
async def test_an_app_that_listens_is_not_stopped_while_its_last_chunk_is_on_its_way(form: str) -> None:
    """Told that it is over when it has handed over the chunk, it would cancel the rest of a slow client's answer."""
    app = ScriptedApp(listen=True)
    app.script([steps.text("Hello", deltas=5), steps.json_only() if form == "json" else steps.coalesce()])
    async with MemorySocket(ResponsesWebSocketMiddleware(app), max_unread=1) as ws:
        await ws.send_json({"type": "response.create", **create()})
        await ws.wait_blocked()
        await ws.settle()
        assert response(await ws.collect())["status"] == "completed"


@pytest.mark.fault("B133")
@pytest.mark.parametrize("bad", ["item", "output"])
async def test_an_event_that_cannot_be_sent_leaves_nothing_half_announced(bad: str) -> None:
    """A failure must not end a response that the client has never heard of."""
    event: Event = {"type": "response.output_item.done", "output_index": 0}
    if bad == "output":
        event = {"type": "response.completed", "response": {"id": "resp_a", "output": [7]}}

    assert failure(await play(sse(event))) == (502, "upstream_error", None)


@pytest.mark.fault("B128")
async def test_the_app_is_not_cut_off_while_it_still_ends_in_time() -> None:
    """Work after the terminal event (saving, logging) is usual; only an app that stays is closed."""
    go, saved = anyio.Event(), anyio.Event()
    app = ScriptedApp()
    app.script([steps.text("Hello"), steps.complete(), steps.wait_for(go), steps.signal(saved)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.turn(create())
        go.set()
        await app.wait_idle()

    assert saved.is_set()
    assert app.requests[0].outcome == "finished"
