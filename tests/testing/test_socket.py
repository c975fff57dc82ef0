"""The in-memory socket against small apps of its own."""

import json
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.testing import OMIT, ClientGone, MemorySocket, ProtocolViolation, SocketClosed

Body = Callable[[Receive, Send], Awaitable[None]]


def app_of(*sends: Message, accept: bool = True, then: Body | None = None) -> ASGIApp:
    """An app that sends these messages, then runs `then` or waits for the disconnect."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        if accept:
            await send({"type": "websocket.accept"})
        for message in sends:
            await send(message)
        await (then or until_disconnect)(receive, send)

    return app


async def until_disconnect(receive: Receive, send: Send) -> None:
    while (await receive())["type"] != "websocket.disconnect":
        pass


async def nothing(receive: Receive, send: Send) -> None:
    pass


def frame(event: dict[str, Any]) -> Message:
    return {"type": "websocket.send", "text": json.dumps(event)}


def close(code: int = 1000, reason: str = "") -> Message:
    return {"type": "websocket.close", "code": code, "reason": reason}


async def echo(receive: Receive, send: Send) -> None:
    while (message := await receive())["type"] == "websocket.receive":
        message["type"] = "websocket.send"
        await send(message)


async def test_frames_go_both_ways() -> None:
    async with MemorySocket(app_of(then=echo)) as ws:
        await ws.send_json({"a": 1})
        await ws.send_text("{}")
        await ws.send_bytes(b"\xff")
        assert await ws.receive_json() == {"a": 1}
        assert await ws.receive() == "{}"
        assert await ws.receive() == b"\xff"
        assert ws.sent == ws.frames == ['{"a": 1}', "{}", b"\xff"]


async def test_both_keys_as_hypercorn_sends_them() -> None:
    seen: list[Message] = []

    async def app(receive: Receive, send: Send) -> None:
        seen.append(await receive())

    async with MemorySocket(app_of(then=app), both_keys=True) as ws:
        await ws.send_text("x")
        await ws.wait_returned()
    assert seen == [{"type": "websocket.receive", "text": "x", "bytes": None}]


async def test_turn_collects_to_the_terminal_event() -> None:
    async def app(receive: Receive, send: Send) -> None:
        assert json.loads((await receive())["text"]) == {"type": "response.create", "model": "m"}
        for kind in ("response.created", "response.completed", "codex.rate_limits"):
            await send(frame({"type": kind}))
        await until_disconnect(receive, send)

    async with MemorySocket(app_of(then=app)) as ws:
        events = await ws.turn({"model": "m"})
        assert [event["type"] for event in events] == ["response.created", "response.completed"]
        assert await ws.receive_json() == {"type": "codex.rate_limits"}


async def test_lanes_are_collected_apart_by_tasks_at_once() -> None:
    events = [
        frame({"type": kind, "stream_id": lane} if lane else {"type": kind})
        for kind in ("response.created", "response.completed")
        for lane in ("a", "b", None)
    ]
    got: dict[str | None, list[dict[str, Any]]] = {}

    async with MemorySocket(app_of(*events)) as ws:

        async def collect(lane: str | None) -> None:
            got[lane] = await ws.collect(lane)

        async with anyio.create_task_group() as tasks:
            for lane in ("b", None, "a"):
                tasks.start_soon(collect, lane)
    assert {lane: [event.get("stream_id") for event in events] for lane, events in got.items()} == {
        "a": ["a", "a"],
        "b": ["b", "b"],
        None: [None, None],
    }


async def test_send_waits_while_too_many_frames_are_unread() -> None:
    progress: list[int] = []

    async def app(receive: Receive, send: Send) -> None:
        for number in range(5):
            await send(frame({"n": number}))
            progress.append(number)
        await until_disconnect(receive, send)

    async with MemorySocket(app_of(then=app), max_unread=2) as ws:
        await ws.wait_blocked()
        assert (progress, ws.unread) == ([0, 1], 3)
        assert await ws.receive_json() == {"n": 0}
        await ws.wait_blocked()
        await ws.settle()
        assert (progress, ws.unread) == ([0, 1, 2], 3)
        assert [(await ws.receive_json())["n"] for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("swallow", [False, True])
async def test_after_the_client_has_gone(swallow: bool) -> None:
    outcomes: list[str] = []

    async def app(receive: Receive, send: Send) -> None:
        for message in (frame({}), frame({}), close()):
            try:
                await send(message)
            except ClientGone:
                outcomes.append("raised")
            else:
                outcomes.append("silent")
        assert await receive() == {"type": "websocket.disconnect", "code": 1006, "reason": ""}
        assert await receive() == {"type": "websocket.disconnect", "code": 1006, "reason": ""}

    async with MemorySocket(app_of(then=app), max_unread=0, swallow_after_gone=swallow) as ws:
        await ws.wait_blocked()
        await ws.abort()
        await ws.wait_returned()
        assert len(ws.frames) == 1
    assert outcomes == ["silent" if swallow else "raised"] * 3


async def test_close_tells_code_and_reason_after_the_frames_before_it() -> None:
    seen: list[Message] = []

    async def app(receive: Receive, send: Send) -> None:
        seen.extend([await receive(), await receive()])

    async with MemorySocket(app_of(then=app)) as ws:
        await ws.send_text("last")
        await ws.close(4001, "bye")
        await ws.wait_returned()
    assert seen == [
        {"type": "websocket.receive", "text": "last"},
        {"type": "websocket.disconnect", "code": 4001, "reason": "bye"},
    ]


async def test_frames_before_the_close_of_the_app_stay_readable() -> None:
    async with MemorySocket(app_of(frame({"n": 1}), close(1008, "no"))) as ws:
        assert await ws.wait_closed() == 1008
        assert await ws.receive_json() == {"n": 1}
        with pytest.raises(SocketClosed) as caught:
            await ws.receive_json()
        assert (caught.value.code, caught.value.reason) == (1008, "no") == (ws.close_code, ws.close_reason)
        with pytest.raises(SocketClosed):
            await ws.send_text("late")


async def test_an_app_that_just_returns_ends_the_socket_with_1006() -> None:
    async with MemorySocket(app_of(frame({}), frame({}), then=nothing)) as ws:
        assert await ws.read_to_close() == ["{}", "{}"]
        assert await ws.wait_closed() == 1006


async def test_denial_response() -> None:
    app = app_of(
        {"type": "websocket.http.response.start", "status": 401, "headers": [(b"Content-Type", b"application/json")]},
        {"type": "websocket.http.response.body", "body": b'{"a"', "more_body": True},
        {"type": "websocket.http.response.body", "body": b":1}"},
        accept=False,
    )
    async with MemorySocket(app) as ws:
        assert not ws.accepted
        assert ws.denial is not None
        assert (ws.denial.status, ws.denial.json()) == (401, {"a": 1})
        assert ws.denial.header(b"content-type") == b"application/json"


async def test_close_before_accept_is_a_403() -> None:
    async with MemorySocket(app_of(close(), accept=False)) as ws:
        assert ws.denial is not None
        assert (ws.denial.status, ws.close_code) == (403, None)


def text(value: Any = "x", **more: Any) -> Message:
    return {"type": "websocket.send", "text": value, **more}


START = {"type": "websocket.http.response.start", "status": 403, "headers": []}
END = {"type": "websocket.http.response.body", "body": b""}
ACCEPT = {"type": "websocket.accept"}

ILLEGAL: dict[str, tuple[list[Message], str]] = {
    "send before accept": ([text()], "before websocket.accept"),
    "accept twice": ([ACCEPT, ACCEPT], "accept sent twice"),
    "subprotocol not offered": ([{**ACCEPT, "subprotocol": "other"}], "not offered"),
    "subprotocol as a header": ([{**ACCEPT, "headers": [(b"Sec-WebSocket-Protocol", b"a")]}], "sec-websocket"),
    "header as text": ([{**ACCEPT, "headers": [("a", "b")]}], "must be bytes"),
    "send after close": ([ACCEPT, close(), text()], "after websocket.close"),
    "close twice": ([ACCEPT, close(), close()], "close sent twice"),
    "text and bytes": ([ACCEPT, text(bytes=b"x")], "exactly one"),
    "neither": ([ACCEPT, text(None)], "exactly one"),
    "text that is bytes": ([ACCEPT, text(b"x")], "with a bytes"),
    "reserved code": ([ACCEPT, close(1006)], "1006 may not be sent"),
    "code too low": ([ACCEPT, close(999)], "999 may not be sent"),
    "long reason": ([ACCEPT, close(1000, "é" * 62)], "longer than 123"),
    "two denials": ([START, END, START], "refused"),
    "denial after accept": ([ACCEPT, START], "after accept"),
    "accept after denial": ([START, ACCEPT], "refused"),
    "close after denial": ([START, END, close()], "after a denial"),
    "denial body twice": ([START, END, END], "after its end"),
    "denial body first": ([END], "before its start"),
    "unknown": ([{"type": "http.response.start"}], "unknown message"),
}


@pytest.mark.parametrize("swallowed", [False, True])
@pytest.mark.parametrize("case", ILLEGAL)
async def test_illegal_message_fails_the_test_even_if_the_app_swallows_it(case: str, swallowed: bool) -> None:
    messages, words = ILLEGAL[case]
    raised: list[ProtocolViolation] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            try:
                await send(dict(message))
            except ProtocolViolation as exc:
                raised.append(exc)
                if not swallowed:
                    raise
        await until_disconnect(receive, send)

    with pytest.raises(ProtocolViolation, match=words):
        async with MemorySocket(app, subprotocols=["a", "b"], wait_handshake=False) as ws:
            await ws.settle()
    assert len(raised) == 1


async def test_reason_of_123_bytes_and_offered_subprotocol_are_legal() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({**ACCEPT, "subprotocol": "b", "headers": [(b"x", b"y")]})
        await send(close(3000, "x" + "é" * 61))

    async with MemorySocket(app, subprotocols=["a", "b"]) as ws:
        assert (ws.subprotocol, ws.accept_headers) == ("b", [(b"x", b"y")])
        assert await ws.wait_closed() == 3000


async def test_denial_without_the_extension_is_illegal() -> None:
    with pytest.raises(ProtocolViolation, match="extension"):
        async with MemorySocket(app_of(START, END, accept=False), extensions={}):
            pass


async def test_second_send_while_one_waits_is_illegal() -> None:
    async def app(receive: Receive, send: Send) -> None:
        async def send_one() -> None:
            await send(frame({}))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(send_one)
            tasks.start_soon(send_one)

    with pytest.raises(ExceptionGroup) as caught:
        async with MemorySocket(app_of(then=app), max_unread=0) as ws:
            await ws.wait_returned()
    assert caught.group_contains(ProtocolViolation, match="another send is waiting")


async def test_error_of_the_app_is_raised_at_the_end() -> None:
    async def app(receive: Receive, send: Send) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        async with MemorySocket(app_of(then=app)) as ws:
            assert await ws.wait_closed() == 1006


async def test_error_of_the_app_before_accept_is_raised_at_once() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        async with MemorySocket(app):
            pytest.fail("entered")


async def test_app_that_returns_without_an_answer() -> None:
    with pytest.raises(AssertionError, match="without accepting or refusing"):
        async with MemorySocket(app_of(accept=False, then=nothing)):
            pytest.fail("entered")


async def test_failure_of_the_test_wins_and_names_that_of_the_app() -> None:
    async def app(receive: Receive, send: Send) -> None:
        await until_disconnect(receive, send)
        raise RuntimeError("boom")

    with pytest.raises(KeyError) as caught:
        async with MemorySocket(app_of(then=app)):
            raise KeyError("mine")
    assert caught.value.__notes__ == ["the app also failed: RuntimeError('boom')"]


async def test_time_limits() -> None:
    async def app(receive: Receive, send: Send) -> None:
        await anyio.sleep_forever()

    async def use(ws: MemorySocket) -> None:
        with pytest.raises(AssertionError, match="no frame came"):
            await ws.receive_json()
        with pytest.raises(AssertionError, match="did not close"):
            await ws.wait_closed()

    with pytest.raises(AssertionError, match="did not return within"):
        async with MemorySocket(app_of(then=app), timeout=0.02) as ws:
            await use(ws)
    with pytest.raises(AssertionError, match="neither accepted nor refused"):
        async with MemorySocket(app_of(accept=False, then=app), timeout=0.02):
            pytest.fail("entered")


async def test_block_can_be_cancelled_from_outside() -> None:
    cancelled: list[bool] = []

    async def app(receive: Receive, send: Send) -> None:
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.append(True)

    with anyio.CancelScope() as scope:
        async with MemorySocket(app_of(then=app)) as ws:
            await ws.settle()
            scope.cancel()
            await anyio.sleep_forever()
    assert scope.cancelled_caught
    assert cancelled == [True]


async def test_receive_gauges() -> None:
    impatient = anyio.CancelScope()

    async def app(receive: Receive, send: Send) -> None:
        with impatient:
            await receive()
        await until_disconnect(receive, send)

    async with MemorySocket(app_of(then=app)) as ws:
        await ws.wait_received()
        impatient.cancel()
        await ws.settle()
        await ws.send_text("x")
        assert ws.not_taken == 1
        await ws.wait_received()
        assert (ws.receiving, ws.not_taken, ws.cancelled_receives) == (True, 0, 1)


async def test_client_may_leave_during_the_handshake() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert (await receive())["type"] == "websocket.connect"
        assert (await receive())["type"] == "websocket.disconnect"

    async with MemorySocket(app, wait_handshake=False) as ws:
        await ws.abort()
        await ws.handshake()


def test_scope() -> None:
    scope = MemorySocket(
        app_of(),
        "/v1/é?a=1",
        [(b"host", b"me"), (b"x", b"y")],
        state={"k": 1},
        scope_overrides={"asgi": OMIT, "nothing": OMIT, "http_version": "2"},
    ).scope
    assert (scope["path"], scope["raw_path"], scope["query_string"]) == ("/v1/é", b"/v1/%C3%A9", b"a=1")
    assert [value for name, value in scope["headers"] if name == b"host"] == [b"me"]
    assert scope["headers"][-1] == (b"x", b"y")
    assert scope["state"] == {"k": 1}
    assert scope["extensions"] == {"websocket.http.response": {}}
    assert "asgi" not in scope
    assert scope["http_version"] == "2"


def test_package_imports_neither_pytest_nor_hypothesis() -> None:
    import subprocess

    probe = "import sys, ws_responses.testing; print({'pytest', 'hypothesis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"
