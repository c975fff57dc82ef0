import asyncio
import contextvars
import gzip
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.shell import ours
from tests.upstreams.wire import compact
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.errors import EventTooLarge, StreamTruncated, UpstreamError, WireError
from ws_responses.limits import Limits
from ws_responses.protocol.creates import parse_create
from ws_responses.protocol.events import TERMINAL
from ws_responses.protocol.frames import decode_members
from ws_responses.testing import MemorySocket, ResponseBuilder, counting_ids, numbered
from ws_responses.testing.clock import settle
from ws_responses.upstreams.app_call import AppCall
from ws_responses.upstreams.asgi import AsgiUpstream
from ws_responses.upstreams.base import SCOPE_STATE_KEY, CurrentTurn, current_turn
from ws_responses.upstreams.bodies import Bodies
from ws_responses.upstreams.scope import InnerScope

START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [(b"Content-Type", b"text/event-stream; charset=utf-8")],
}
SECONDS = 5.0
SCOPE = {"type": "websocket", "path": "/v1/responses", "headers": [], "asgi": {"version": "3.0"}}


def start(status: int = 200, **headers: str | None) -> Message:
    given = {name: value for name, value in headers.items() if value is not None}
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in given.items()]
    return {"type": "http.response.start", "status": status, "headers": pairs}


def body(chunk: Any = b"", *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": chunk, "more_body": more}


def events_of(text: str = "Hello", *, deltas: int = 2) -> list[bytes]:
    builder = ResponseBuilder({"model": "m"}, response_id="resp_1", id_factory=counting_ids(), created_at=1)
    events = numbered([*builder.start(), *builder.message(text, deltas=deltas), *builder.complete()])
    return [compact(event) for event in events]


def sse(payload: bytes) -> bytes:
    return b"data: " + payload + b"\n\n"


EVENTS = events_of()
STREAM = b"".join(map(sse, EVENTS))
RESPONSE = json.dumps(json.loads(EVENTS[-1])["response"]).encode()


class Sink:
    """Where the events of a turn go in these tests; ``gate`` holds them up."""

    def __init__(self) -> None:
        self.events: list[bytes] = []
        self.failed: list[WireError] = []
        self.lives = 0
        self.ended = False
        self.on_abort: Callable[[], None] | None = None
        self.in_background = False
        self.gate = anyio.Event()
        self.gate.set()
        self.came = anyio.Event()

    def event(self, payload: bytes) -> Awaitable[None]:
        return self._event(payload)

    def delta(self, event: str) -> Awaitable[None]:
        return self._event(event.encode())

    async def _event(self, payload: bytes) -> None:
        if self.ended:
            return
        self.events.append(payload)
        self.came.set()
        await self.gate.wait()
        self.ended = json.loads(payload).get("type") in TERMINAL if payload.startswith(b"{") else False

    def alive(self) -> None:
        self.lives += 1

    async def fail(self, error: WireError) -> None:
        self.failed.append(error)
        self.ended = True

    def abort(self) -> None:
        assert self.on_abort is not None
        self.on_abort()


def new_turn() -> CurrentTurn:
    frame = b'{"type":"response.create","model":"m","input":"hi"}'
    return CurrentTurn("turn_1", parse_create(decode_members(frame), None, len(frame)), "tenant", None)


async def run(app: ASGIApp, sink: Sink | None = None, *, limits: Limits | None = None) -> Sink:
    """Run one turn and note how it failed, as the turn does."""
    sink = Sink() if sink is None else sink
    limits = limits or Limits()
    upstream = AsgiUpstream(app, lambda: InnerScope(SCOPE), Bodies(), limits)
    with anyio.fail_after(SECONDS):
        try:
            await upstream.run(new_turn(), sink)
        except WireError as error:
            await sink.fail(error)
    return sink


def sends(*messages: Message) -> ASGIApp:
    """Return an app that sends these messages."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for message in messages:
            await send(message)

    return app


def failure(sink: Sink) -> WireError:
    (error,) = sink.failed
    return error


# -- frameworks ------------------------------------------------------------------------------------------------------

Chunks = Callable[[], AsyncIterator[bytes]]


def plain(chunks: Chunks) -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send(START)
        async for chunk in chunks():
            await send(body(chunk))
        await send(body(more=False))

    return app


class Passing(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


def _starlette(chunks: Chunks, *middleware: Middleware) -> ASGIApp:
    async def endpoint(request: Request) -> Response:
        await request.json()
        return StreamingResponse(chunks(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/responses", endpoint, methods=["POST"])], middleware=middleware)


def starlette(chunks: Chunks) -> ASGIApp:
    return _starlette(chunks)


def starlette_in_layers(chunks: Chunks) -> ASGIApp:
    return _starlette(chunks, Middleware(Passing), Middleware(GZipMiddleware))


def fastapi(chunks: Chunks) -> ASGIApp:
    app = FastAPI()

    @app.post("/v1/responses")
    async def endpoint(request: Request) -> StreamingResponse:
        await request.json()
        return StreamingResponse(chunks(), media_type="text/event-stream")

    return app


FRAMEWORKS = [plain, starlette, starlette_in_layers, fastapi]
each_framework = pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda make: make.__name__)
each_starlette = pytest.mark.parametrize("framework", FRAMEWORKS[1:], ids=lambda make: make.__name__)


class TestStreaming:
    @each_framework
    async def test_is_incremental(self, framework: Callable[[Chunks], ASGIApp]) -> None:
        # httpx.ASGITransport collects the body first: the client would see nothing until the end.
        sink = Sink()

        async def chunks() -> AsyncIterator[bytes]:
            for event in EVENTS:
                yield sse(event)
                await sink.came.wait()  # for ever, unless the event has arrived
                sink.came = anyio.Event()

        await run(framework(chunks), sink)
        assert sink.events == EVENTS
        assert not sink.failed

    @each_framework
    async def test_runs_ahead_by_one_chunk_at_most(self, framework: Callable[[Chunks], ASGIApp]) -> None:
        # A client that reads slowly must hold the model, not fill our memory.
        sink = Sink()
        sink.gate = anyio.Event()
        made = 0

        async def chunks() -> AsyncIterator[bytes]:
            nonlocal made
            for event in EVENTS:
                made += 1
                yield sse(event)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, framework(chunks), sink)
            await sink.came.wait()
            await settle()
            assert made - len(sink.events) <= 1
            assert len(sink.events) == 1
            sink.gate.set()
        assert sink.events == EVENTS

    @pytest.mark.parametrize("size", [1, 2, 7, 1000])
    @pytest.mark.parametrize("label", ["text/event-stream", "text/plain", "application/json", None])
    @pytest.mark.parametrize("bom", [b"", b"\xef\xbb\xbf"])
    async def test_chunks_may_be_cut_anywhere_under_any_label(self, size: int, label: str | None, bom: bytes) -> None:
        # B131: by how it begins, even if the first chunk is a single letter.
        whole = bom + b": hi\n\n" + STREAM
        pieces = [body(whole[at : at + size]) for at in range(0, len(whole), size)]
        sink = await run(sends(start(content_type=label), *pieces, body(more=False)))
        assert sink.events == EVENTS
        assert not sink.failed

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    async def test_any_kind_of_bytes_will_do(self, kind: Callable[[bytes], Any]) -> None:
        sink = await run(sends(START, *(body(kind(sse(event))) for event in EVENTS), body(kind(b""), more=False)))
        assert sink.events == EVENTS

    async def test_body_and_more_body_may_be_missing(self) -> None:
        # ASGI: the defaults are b"" and False.
        empty: Message = {"type": "http.response.body", "more_body": True}
        last: Message = {"type": "http.response.body", "body": STREAM}
        sink = await run(sends(START, empty, body(sse(EVENTS[0])), empty, last))
        assert sink.events == [EVENTS[0], *EVENTS]
        sink = await run(sends(START, body(STREAM), {"type": "http.response.body"}))
        assert sink.events == EVENTS

    async def test_other_messages_are_ignored(self) -> None:
        others: list[Message] = [
            {"type": "http.response.trailers", "headers": [], "more_trailers": False},
            {"type": "http.response.debug", "info": {}},
            {"type": "http.response.push", "path": "/", "headers": []},
            {"type": "made.up"},
        ]
        sink = await run(sends(others[2], START, *others, body(STREAM, more=False), others[0]))
        assert sink.events == EVENTS
        assert not sink.failed

    async def test_comments_are_signs_of_life_and_no_events(self) -> None:
        # sse-starlette and FastAPI ping every 15 s while the model thinks.
        sink = await run(sends(START, body(b": ping\n\n"), body(b": ping\n\n"), body(STREAM, more=False)))
        assert sink.events == EVENTS
        assert sink.lives >= 3

    @pytest.mark.parametrize("ending", [b"", b"\n", b"\n\n"])
    async def test_the_last_blank_line_may_be_missing(self, ending: bytes) -> None:
        sink = await run(sends(START, body(STREAM.rstrip(b"\n") + ending, more=False)))
        assert sink.events == EVENTS

    async def test_the_app_gets_its_request(self) -> None:
        got: list[Message] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            got.append(await receive())
            assert scope["state"][SCOPE_STATE_KEY] is current_turn()
            assert scope["type"] == "http"
            length = dict(scope["headers"])[b"content-length"]
            assert length == str(len(got[0]["body"])).encode()
            await sends(START, body(STREAM, more=False))(scope, receive, send)

        await run(app)
        assert got == [
            {"type": "http.request", "body": b'{"model":"m","input":"hi","stream":true}', "more_body": False}
        ]


class TestReceive:
    async def test_gives_disconnect_at_once_after_the_last_chunk(self) -> None:
        # Litestar's stream call does not return before it sees one: a task would pile up per turn.
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await sends(START, body(STREAM, more=False))(scope, receive, send)
            assert await receive() == {"type": "http.disconnect"}
            assert await receive() == {"type": "http.disconnect"}

        assert (await run(app)).events == EVENTS

    async def test_wakes_who_waits_when_the_last_chunk_comes(self) -> None:
        heard: list[Message] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()

            async def listen() -> None:
                heard.append(await receive())

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(listen)
                tasks.start_soon(listen)
                await settle()
                assert not heard
                await sends(START, body(STREAM, more=False))(scope, receive, send)

        await run(app)
        assert heard == [{"type": "http.disconnect"}] * 2

    async def test_may_be_cancelled_and_called_twice_at_once(self) -> None:
        # Starlette polls `is_disconnected()` by cancelling; BaseHTTPMiddleware races two.
        call = AppCall(b"{}", Sink(), Limits())
        messages: list[Message] = []
        async with anyio.create_task_group() as tasks:

            async def listen() -> None:
                messages.append(await call.receive())

            for _ in range(3):
                tasks.start_soon(listen)
            await settle()
            assert [message["type"] for message in messages] == ["http.request"]
            with anyio.CancelScope() as scope:
                scope.cancel()
                await call.receive()
            assert scope.cancelled_caught
            call.abort()
        assert [message["type"] for message in messages] == ["http.request", "http.disconnect", "http.disconnect"]

    async def test_starlette_can_poll(self) -> None:
        answers: list[bool] = []
        sink = Sink()

        async def endpoint(request: Request) -> Response:
            await request.body()
            answers.append(await request.is_disconnected())
            sink.abort()
            answers.append(await request.is_disconnected())
            return JSONResponse({})

        await run(Starlette(routes=[Route("/v1/responses", endpoint, methods=["POST"])]), sink)
        assert answers == [False, True]


class TestAbort:
    @each_starlette
    async def test_an_idle_generator_ends_by_the_disconnect_alone(self, framework: Callable[[Chunks], ASGIApp]) -> None:
        # With ASGI spec 2.4 Starlette would notice nothing while the model is silent.
        sink = Sink()
        ended = anyio.Event()

        async def chunks() -> AsyncIterator[bytes]:
            try:
                yield sse(EVENTS[0])
                await anyio.sleep_forever()
            finally:
                ended.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, framework(chunks), sink)
            await sink.came.wait()
            await settle()
            sink.abort()
            with anyio.fail_after(SECONDS):
                await ended.wait()
        assert sink.events == [EVENTS[0]]
        assert not sink.failed

    @pytest.mark.parametrize("waits", [True, False])
    async def test_send_raises_an_os_error_after_it_where_the_app_never_waits(self, waits: bool) -> None:
        # ASGI 2.3: it does nothing. But nobody could end an app that lets nobody run.
        sink = Sink()
        raised: list[OSError] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await send(body(sse(EVENTS[0])))
            sink.abort()
            try:
                for _ in range(1000):
                    await send(body(sse(EVENTS[1])))
                    if waits:
                        await checkpoint()
            except OSError as error:
                raised.append(error)
                with pytest.raises(OSError, match="gone"):
                    await send(body(sse(EVENTS[1])))
                raise

        await run(app, sink)
        assert len(raised) == (0 if waits else 1)
        assert sink.events == [EVENTS[0]]
        assert not sink.failed

    async def test_an_app_that_never_listens_is_cancelled_by_its_owner(self) -> None:
        sink = Sink()
        outcome: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await send(START)
            await send(body(sse(EVENTS[0])))
            try:
                await anyio.sleep_forever()
            except anyio.get_cancelled_exc_class():
                outcome.append("cancelled")
                raise

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, app, sink)
            await sink.came.wait()
            sink.abort()
            await settle()
            assert not outcome
            tasks.cancel_scope.cancel()
        assert outcome == ["cancelled"]
        assert not sink.failed

    @each_starlette
    async def test_a_generator_ends_in_its_own_task_and_context(self, framework: Callable[[Chunks], ASGIApp]) -> None:
        # B136: closed by another task, a scope or a token of its context would raise in its `finally`.
        sink = Sink()
        var: contextvars.ContextVar[int] = contextvars.ContextVar("var", default=0)
        cleaned: list[bool] = []

        async def chunks() -> AsyncIterator[bytes]:
            token = var.set(1)
            try:
                with anyio.CancelScope():
                    yield sse(EVENTS[0])
                    await anyio.sleep_forever()
            finally:
                var.reset(token)
                cleaned.append(True)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, framework(chunks), sink)
            await sink.came.wait()
            await settle()
            sink.abort()
        assert cleaned == [True]

    @pytest.mark.parametrize("raises", [OSError("x"), RuntimeError("x"), ExceptionGroup("g", [RuntimeError("x")])])
    async def test_what_the_app_raises_then_is_expected(
        self, raises: Exception, caplog: pytest.LogCaptureFixture
    ) -> None:
        # Starlette's ClientDisconnect, Litestar's complaint: no error in the log for each client that leaves.
        sink = Sink()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            sink.abort()
            raise raises

        with caplog.at_level(logging.INFO, "ws_responses"):
            await run(app, sink)
        assert not ours(caplog)
        assert not sink.failed


class TestExceptions:
    @pytest.mark.parametrize(
        "error", [RuntimeError("secret <f at 0x7f00>"), ExceptionGroup("secret", [ValueError("secret")])]
    )
    @pytest.mark.parametrize("after", [0, 1, 2])
    async def test_become_one_error_that_tells_nothing(
        self, error: Exception, after: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        # B021: the text is for the log; the client gets an id by which it can be found there.
        messages = [START, body(sse(EVENTS[0]))]

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            for message in messages[:after]:
                await send(message)
            raise error

        sink = await run(app)
        assert (failure(sink).status, failure(sink).code) == (500, "server_error")
        assert "secret" not in failure(sink).message
        assert "turn_1" in failure(sink).message
        (record,) = ours(caplog)
        assert "turn_1" in record.getMessage()
        assert record.exc_info is not None
        assert record.exc_info[1] is error

    async def test_after_the_end_they_concern_the_log_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await sends(START, body(STREAM, more=False))(scope, receive, send)
            raise RuntimeError("late")

        sink = await run(app)
        assert sink.events == EVENTS
        assert not sink.failed
        assert [record.levelname for record in ours(caplog)] == ["ERROR"]

    @pytest.mark.parametrize("framework", [plain, starlette, fastapi], ids=lambda make: make.__name__)
    async def test_of_a_framework(self, framework: Callable[[Chunks], ASGIApp]) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield sse(EVENTS[0])
            raise RuntimeError("secret")

        sink = await run(framework(chunks))
        assert sink.events == [EVENTS[0]]
        assert (failure(sink).status, failure(sink).code) == (500, "server_error")

    async def test_behind_a_layer_that_ends_the_body_first(self) -> None:
        # BaseHTTPMiddleware sends the last chunk and raises only then: all we see is that the stream has no end.
        async def chunks() -> AsyncIterator[bytes]:
            yield sse(EVENTS[0])
            raise RuntimeError("secret")

        sink = await run(starlette_in_layers(chunks))
        assert sink.events == [EVENTS[0]]
        assert isinstance(failure(sink), StreamTruncated)

    @pytest.mark.parametrize("anyio_backend", ["asyncio"])
    async def test_a_cancellation_of_its_own_is_a_failure_of_the_app(self) -> None:
        # asyncio: `await task` of a task that somebody cancelled. Taken for ours, the client would wait for ever.
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            task = asyncio.ensure_future(asyncio.Event().wait())
            task.cancel()
            await task

        sink = await run(app)
        assert (failure(sink).status, failure(sink).code) == (500, "server_error")

    async def test_our_cancellation_goes_through(self) -> None:
        sink = Sink()
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(run, sends(START, body(sse(EVENTS[0]))), sink)
                scope.cancel()
        assert not sink.failed


class TestEarlyReturn:
    async def test_without_an_answer(self) -> None:
        sink = await run(sends())
        assert (failure(sink).status, failure(sink).code) == (502, "upstream_error")

    @pytest.mark.parametrize(
        "messages",
        [
            [START],
            [START, body(sse(EVENTS[0]))],
            [START, body(sse(EVENTS[0])), body(more=False)],
            [START, body(sse(EVENTS[0]) + b"data: [DONE]\n\n", more=False)],
            [START, body(more=False)],
            [START, body(b"data: [DONE]\n\n", more=False)],
            [start(content_type="application/json"), body(b"{")],
        ],
    )
    async def test_without_an_end(self, messages: list[Message]) -> None:
        # B125, B127: never passed off as success.
        sink = await run(sends(*messages))
        assert isinstance(failure(sink), StreamTruncated)

    async def test_background_work_goes_on_after_the_end(self) -> None:
        # Starlette runs its background tasks in the same call; they are the app's own affair.
        done: list[str] = []
        sink = Sink()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await sends(START, body(STREAM, more=False))(scope, receive, send)
            assert sink.in_background
            done.append("work")

        await run(app, sink)
        assert done == ["work"]
        assert not sink.failed


class TestGarbage:
    @pytest.mark.parametrize(
        "messages",
        [
            [body(STREAM, more=False)],
            [START, START],
            [START, body("text")],
            [START, body(5)],
            [START, body(None)],
            [{"type": "http.response.start"}],
            [{"type": "http.response.start", "status": "200"}, body(b"x", more=False)],
            [{"type": "http.response.start", "status": 200, "headers": [("content-type", "x")]}],
            [{"type": "http.response.start", "status": 200, "headers": 5}],
            [{}],
            [None],
        ],
    )
    async def test_messages_that_break_asgi_are_the_apps_exception(self, messages: list[Any]) -> None:
        # Raised where the app can see it, as a server does; the client gets the plain server error.
        sink = await run(sends(*messages))
        assert (failure(sink).status, failure(sink).code) == (500, "server_error")

    @pytest.mark.parametrize(
        ("messages", "status", "code"),
        [
            ([start(204), body(more=False)], 502, "upstream_error"),
            ([start(302, location="/x"), body(more=False)], 502, "upstream_error"),
            ([start(200), body(more=False)], 502, "upstream_error"),
            ([start(200, content_type="text/html"), body(b"<html>", more=False)], 502, "upstream_error"),
            ([start(500), body(more=False)], 500, "server_error"),
            ([start(429, retry_after="7"), body(b'{"error":{"message":"m"}}', more=False)], 429, "rate_limit_exceeded"),
            ([start(418), body(b'{"err'), body(b'or":{"message":"m","code":"teapot"}}', more=False)], 418, "teapot"),
            ([start(404, content_type="text/event-stream"), body(b"data: {}\n\n", more=False)], 404, "not_found"),
        ],
    )
    async def test_statuses(self, messages: list[Message], status: int, code: str) -> None:
        sink = await run(sends(*messages))
        assert (failure(sink).status, failure(sink).code) == (status, code)
        assert sink.events == []

    async def test_a_compressed_answer_is_refused_at_once(self) -> None:
        # Gathered to its end, a stream that never ends would never fail.
        head = start(content_type="text/event-stream", content_encoding="gzip")
        sink = await run(sends(head, body(gzip.compress(STREAM))))
        assert (failure(sink).status, failure(sink).code) == (502, "upstream_error")
        assert "compressed" in failure(sink).message

    async def test_a_compressed_error_keeps_its_status(self) -> None:
        head = start(429, content_encoding="gzip", retry_after="7")
        sink = await run(sends(head, body(gzip.compress(b'{"error":{"message":"m"}}'), more=False)))
        assert (failure(sink).status, failure(sink).headers) == (429, {"retry-after": "7"})

    async def test_identity_is_no_compression(self) -> None:
        head = start(content_type="text/event-stream", content_encoding="identity")
        assert (await run(sends(head, body(STREAM, more=False)))).events == EVENTS

    async def test_gzip_of_the_app_does_not_compress(self) -> None:
        # We ask for identity, whatever the client's handshake allowed.
        async def chunks() -> AsyncIterator[bytes]:
            yield STREAM * 20

        scope = SCOPE | {"headers": [(b"accept-encoding", b"gzip")]}
        sink = Sink()
        app = starlette_in_layers(chunks)
        await AsgiUpstream(app, lambda: InnerScope(scope), Bodies(), Limits()).run(new_turn(), sink)
        assert sink.events == EVENTS

    @pytest.mark.parametrize("label", ["application/json", "text/event-stream", "text/plain", None])
    @pytest.mark.parametrize("size", [1, 10, 10_000])
    async def test_json_in_any_number_of_chunks_under_any_label(self, label: str | None, size: int) -> None:
        pieces = [body(RESPONSE[at : at + size]) for at in range(0, len(RESPONSE), size)]
        sink = await run(sends(start(content_type=label), *pieces, body(more=False)))
        assert not sink.failed
        assert json.loads(sink.events[-1])["response"]["output"] == json.loads(RESPONSE)["output"]

    @pytest.mark.parametrize(("beyond", "fits"), [(-1, True), (0, True), (1, False)])
    @pytest.mark.parametrize("pieces", [1, 3])
    async def test_the_bound_of_json_is_exact(self, beyond: int, fits: bool, pieces: int) -> None:
        limit = len(RESPONSE) + 100
        answer = RESPONSE + b" " * (100 + beyond)
        size = -(-len(answer) // pieces)
        chunks = [body(answer[at : at + size]) for at in range(0, len(answer), size)]
        sink = await run(sends(start(), *chunks, body(more=False)), limits=Limits(max_answer_bytes=limit))
        if fits:
            assert not sink.failed
        else:
            assert (failure(sink).status, failure(sink).code) == (502, "upstream_error")

    async def test_an_endless_error_keeps_its_status(self) -> None:
        sink = await run(sends(start(429), body(b"x" * 2000)), limits=Limits(max_answer_bytes=1000))
        assert (failure(sink).status, failure(sink).code) == (429, "rate_limit_exceeded")


async def endless(send: Send, chunk: bytes) -> int:
    """Send a chunk again and again, without ever waiting for anything else; return how often."""
    sent = 0
    try:
        for _ in range(100_000):
            await send(body(chunk))
            sent += 1
    except OSError:
        pass
    return sent


class TestTooMuch:
    @pytest.mark.parametrize("chunk", [b"x" * 1000, b"data: " + b"x" * 994, b"data: " + b"x" * 993 + b"\n"])
    async def test_an_event_without_end_is_cut_off(self, chunk: bytes) -> None:
        # B132: bounded, one error, and the app is told to stop instead of being listened to for ever.
        sent = 0

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal sent
            await send(START)
            sent = await endless(send, chunk)
            assert await receive() == {
                "type": "http.request",
                "body": b'{"model":"m","input":"hi","stream":true}',
                "more_body": False,
            }
            assert await receive() == {"type": "http.disconnect"}

        sink = await run(app, limits=Limits(max_event_bytes=10_000))
        assert isinstance(failure(sink), EventTooLarge)
        assert sent <= 12
        assert sink.events == []

    async def test_an_event_of_50_mib_in_one_chunk(self) -> None:
        big = b'data: {"type":"a","x":"' + b"x" * (50 << 20) + b'"}\n\n'
        sink = await run(sends(START, body(sse(EVENTS[0])), body(big), body(STREAM, more=False)))
        assert isinstance(failure(sink), EventTooLarge)
        assert sink.events == [EVENTS[0]]

    @pytest.mark.parametrize("size", [999, 1000, 1001])
    @pytest.mark.parametrize("first", [True, False])
    async def test_the_bound_of_an_event_is_exact(self, size: int, first: bool) -> None:
        event = b'{"type":"a","x":"' + b"x" * 2000
        event = event[: size - 2 - len(b"data: ")] + b'"}'
        chunks = [] if first else [body(sse(b'{"type":"b"}'))]
        end = body(sse(b'{"type":"response.completed"}'), more=False)
        sink = await run(sends(START, *chunks, body(sse(event)), end), limits=Limits(max_event_bytes=1000))
        if size <= 1000:
            assert not sink.failed
            assert event in sink.events
        else:
            assert isinstance(failure(sink), EventTooLarge)

    @pytest.mark.parametrize("chunk", [b": ping\n\n", b"\n", b"", b"data"])
    async def test_an_app_that_never_waits_starves_nobody(self, chunk: bytes) -> None:
        # B138: whoever would stop it has to run. (With events it is the writer that lets others run.)
        sink = Sink()
        sent = -1

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal sent
            await send(START)
            await send(body(sse(EVENTS[0])))
            sent = await endless(send, chunk)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run, app, sink)
            await sink.came.wait()
            sink.abort()
        assert 0 <= sent < 1000


class TestContext:
    async def test_each_turn_has_its_own_copy_of_the_upgrades(self) -> None:
        # B135: what an outer layer has set at the upgrade is there; what one turn sets is not found by the next.
        outer: contextvars.ContextVar[str] = contextvars.ContextVar("outer", default="none")
        inner: contextvars.ContextVar[str] = contextvars.ContextVar("inner", default="none")
        seen: list[tuple[str, str, str]] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            before = (outer.get(), inner.get())
            inner.set("leaked")
            outer.set("changed")
            await send(START)
            seen.append((*before, inner.get()))
            await send(body(STREAM, more=False))

        middleware = ResponsesWebSocketMiddleware(app, probe=False)

        async def layer(scope: Scope, receive: Receive, send: Send) -> None:
            outer.set("upgrade")
            await middleware(scope, receive, send)
            assert (outer.get(), inner.get()) == ("upgrade", "none")

        async with MemorySocket(layer) as ws:
            for frame in ({}, {}, {"stream_id": "lane"}):
                await ws.turn({"model": "m", **frame})
            await ws.send_json({"type": "response.create", "model": "m"})
            await ws.send_json({"type": "response.create", "model": "m"})  # started by the one before it
            await ws.collect()
            await ws.collect()
        assert seen == [("upgrade", "none", "leaked")] * 5

    async def test_what_an_endpoint_sets_is_there_in_its_generator(self) -> None:
        # FastAPI runs both in one call: request ids and database sessions must go from one to the other.
        var: contextvars.ContextVar[str] = contextvars.ContextVar("var", default="none")
        seen: list[str] = []

        async def endpoint(request: Request) -> Response:
            var.set((await request.json())["model"])

            async def chunks() -> AsyncIterator[bytes]:
                seen.append(var.get())
                yield STREAM

            return StreamingResponse(chunks(), media_type="text/event-stream")

        starlette_app = Starlette(routes=[Route("/v1/responses", endpoint, methods=["POST"])])
        async with MemorySocket(ResponsesWebSocketMiddleware(starlette_app, probe=False)) as ws:
            await ws.turn({"model": "a"})
            await ws.turn({"model": "b"})
        assert seen == ["a", "b"]


def test_errors_of_the_app_are_errors_of_the_upstream() -> None:
    # What ran and failed evicts its parent: the classes must say that it ran.
    assert UpstreamError.ran
    assert EventTooLarge.ran
    assert StreamTruncated.ran
