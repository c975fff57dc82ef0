"""ASGI and the Python runtime: contexts, generators, tasks and backends, with real frameworks."""

import ast
import asyncio
import contextlib
import gc
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
import trio
from fastapi import FastAPI
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Mount, Route
from websockets.sync.client import connect
from websockets.sync.connection import Connection

import ws_responses
from tests.known_faults.talk import KEY, Event, answer, create, endings, follow, response, said, sse
from ws_responses import Limits, ResponsesWebSocketMiddleware, current_turn
from ws_responses._types import Receive, Scope, Send
from ws_responses.instrumentation import ConnectionClosed, ConnectionOpened, Fact, TurnFinished, TurnStarted
from ws_responses.testing import TERMINAL_TYPES, MemorySocket, ScriptedApp, steps

Stream = Callable[[dict[str, Any]], AsyncIterator[bytes]]


def starlette_app(stream: Stream, **options: Any) -> Starlette:
    """Return an app that answers each POST with this stream."""

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(stream(await request.json()), media_type="text/event-stream", **options)

    return Starlette(routes=[Route("/v1/responses", endpoint, methods=["POST"])])


@contextlib.contextmanager
def no_errors(caplog: pytest.LogCaptureFixture) -> Any:
    """Fail if anything is logged as an error meanwhile, by the event loop, the garbage collector's hooks or us."""
    yield
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []


async def eventually(holds: Callable[[], bool]) -> None:
    """Let the other tasks run until something holds."""
    with anyio.fail_after(5):
        while not holds():
            await anyio.lowlevel.checkpoint()


# -- contexts ------------------------------------------------------------------------------------------------------------

upgrade: ContextVar[str] = ContextVar("upgrade", default="unset")
request_id: ContextVar[str] = ContextVar("request_id", default="unset")


@pytest.mark.fault("B135")
@pytest.mark.parametrize("layered", [False, True], ids=["bare", "BaseHTTPMiddleware"])
async def test_each_turn_has_its_own_copy_of_the_context_of_the_upgrade(layered: bool) -> None:
    """What an endpoint sets must reach its stream, and neither the next turn nor the outer layers."""
    seen: list[tuple[str, str, str, str]] = []
    after: list[str] = []
    app = FastAPI()

    @app.post("/v1/responses")
    async def endpoint(body: dict[str, Any]) -> StreamingResponse:
        before = request_id.get()
        request_id.set(body["input"])

        async def stream() -> AsyncIterator[bytes]:
            await anyio.lowlevel.checkpoint()
            seen.append((body["input"], upgrade.get(), before, request_id.get()))
            for event in answer(response_id=f"resp_{body['input']}"):
                yield sse(event)
                request_id.set(f"{request_id.get()}+")

        return StreamingResponse(stream(), media_type="text/event-stream")

    if layered:

        async def layer(request: Request, call_next: RequestResponseEndpoint) -> Response:
            return await call_next(request)

        app.add_middleware(BaseHTTPMiddleware, dispatch=layer)
    middleware = ResponsesWebSocketMiddleware(app)

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        upgrade.set("socket")
        await middleware(scope, receive, send)
        after.append(request_id.get())

    async with MemorySocket(outer) as ws:
        for text in ("one", "two"):
            assert response(await ws.turn(create(input=text)))["status"] == "completed"
        for lane in ("three", "four"):
            await ws.send_json({"type": "response.create", **create(input=lane, stream_id=lane)})
        for lane in ("three", "four"):
            assert response(await ws.collect(lane))["status"] == "completed"

    assert sorted(seen) == [(text, "socket", "unset", text) for text in ("four", "one", "three", "two")]
    assert after == ["unset"]


@pytest.mark.fault("B135")
async def test_a_queued_turn_does_not_inherit_the_context_of_the_turn_that_it_waited_for() -> None:
    """It is started by the end of another turn, in that turn's task."""
    seen: list[str] = []

    async def stream(body: dict[str, Any]) -> AsyncIterator[bytes]:
        seen.append(request_id.get())
        request_id.set("leaked")
        for event in answer():
            yield sse(event)

    async with MemorySocket(ResponsesWebSocketMiddleware(starlette_app(stream))) as ws:
        for _ in range(3):
            await ws.send_json({"type": "response.create", **create()})
        for _ in range(3):
            await ws.collect()

    assert seen == ["unset"] * 3


@pytest.mark.fault("B135")
async def test_a_stream_can_ask_for_its_own_turn() -> None:
    """``current_turn()`` is a context variable itself; lanes must not see each other's."""
    seen: list[tuple[str | None, str | None]] = []

    async def stream(body: dict[str, Any]) -> AsyncIterator[bytes]:
        for event in answer(response_id=f"resp_{body['input']}"):
            yield sse(event)
            await anyio.lowlevel.checkpoint()
        seen.append((body["input"], current_turn().lane))

    async with MemorySocket(ResponsesWebSocketMiddleware(starlette_app(stream))) as ws:
        for lane in ("a", "b"):
            await ws.send_json({"type": "response.create", **create(input=lane, stream_id=lane)})
        for lane in ("a", "b"):
            await ws.collect(lane)

    assert sorted(seen) == [("a", "a"), ("b", "b")]


# -- generators ----------------------------------------------------------------------------------------------------------


class Watched:
    """A generator like those of real apps: a context variable that is put back, a cancel scope, a cleanup that waits."""

    def __init__(self, before_stall: int) -> None:
        self.events = answer(deltas=4)
        self.before_stall = before_stall
        self.stalled = anyio.Event()
        self.ended: list[str] = []

    async def stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        token = request_id.set("mine")
        try:
            with anyio.CancelScope():
                for event in self.events[: self.before_stall]:
                    yield sse(event)
                self.stalled.set()
                await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                for _ in range(3):
                    await anyio.lowlevel.checkpoint()
            request_id.reset(token)
            self.ended.append("cleaned")


LEAVING: dict[str, Callable[[MemorySocket], Awaitable[None]]] = {
    "close": lambda ws: ws.close(),
    "abort": lambda ws: ws.abort(),
}


@pytest.mark.fault("B136", "B137")
@pytest.mark.parametrize("leave", LEAVING)
@pytest.mark.parametrize("before_stall", [0, 2, 6])
async def test_a_generator_is_ended_in_the_task_that_runs_it(
    leave: str, before_stall: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Closed from elsewhere, its scope and its variable cannot be put back, or it is "already running"."""
    watched = Watched(before_stall)
    with no_errors(caplog):
        async with MemorySocket(ResponsesWebSocketMiddleware(starlette_app(watched.stream))) as ws:
            await ws.send_json({"type": "response.create", **create()})
            await watched.stalled.wait()
            await LEAVING[leave](ws)
            await ws.wait_returned()
            assert watched.ended == ["cleaned"]


@pytest.mark.fault("B136")
@pytest.mark.parametrize("leave", [*LEAVING, "give up"])
async def test_a_generator_whose_client_does_not_read_is_ended_in_its_task_too(
    leave: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The app waits in ``send`` then, outside of its generator: cancelled there, nobody would close that in its task."""
    watched = Watched(7)
    with no_errors(caplog):
        limits = Limits(send_timeout_s=0.02) if leave == "give up" else Limits()
        middleware = ResponsesWebSocketMiddleware(starlette_app(watched.stream), limits=limits)
        async with MemorySocket(middleware, max_unread=2) as ws:
            await ws.send_json({"type": "response.create", **create()})
            await ws.wait_blocked()
            if leave == "give up":
                assert await ws.wait_closed() == 1008
                await eventually(lambda: watched.ended == ["cleaned"])
            else:
                await LEAVING[leave](ws)
                await ws.wait_returned()
            assert watched.ended == ["cleaned"]


@pytest.mark.fault("B137")
@pytest.mark.parametrize("limit", ["first_event_timeout_s", "event_timeout_s"])
async def test_a_generator_that_is_late_is_ended_in_the_middle_of_its_next(
    limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """``aclose()`` of a running generator is a RuntimeError; its task is cancelled and awaited instead."""
    watched = Watched(0 if limit == "first_event_timeout_s" else 4)
    limits = Limits(**{limit: 0.02}, disconnect_grace_s=0)  # type: ignore[arg-type] # times only
    with no_errors(caplog):
        async with MemorySocket(ResponsesWebSocketMiddleware(starlette_app(watched.stream), limits=limits)) as ws:
            late = await ws.turn(create())
            await eventually(lambda: watched.ended == ["cleaned"])

    error = late[-1]["error"] if late[-1]["type"] == "error" else late[-1]["response"]["error"]
    assert error["code"] == "upstream_timeout"


@pytest.mark.fault("B137")
async def test_a_plain_app_that_never_listens_is_cancelled_and_awaited(caplog: pytest.LogCaptureFixture) -> None:
    """Some frameworks never ask for ``http.disconnect``; what they clean up must still have happened at the end."""
    ended: list[str] = []
    running = anyio.Event()

    async def generate() -> AsyncGenerator[bytes]:
        try:
            for event in answer()[:4]:
                yield sse(event)
            running.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
            ended.append("cleaned")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        async with contextlib.aclosing(generate()) as chunks:
            async for chunk in chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})

    limits = Limits(disconnect_grace_s=0)
    with no_errors(caplog):
        async with MemorySocket(ResponsesWebSocketMiddleware(app, probe=False, limits=limits)) as ws:
            await ws.send_json({"type": "response.create", **create()})
            await running.wait()
            await ws.abort()
            await ws.wait_returned()
            assert ended == ["cleaned"]


@pytest.mark.fault("B060", "B142")
def test_time_limits_hold_in_an_event_loop_that_anyio_has_not_started() -> None:
    """Servers start their own; a timer's callback has no task there, and whatever it starts by anyio would fail."""
    app = ScriptedApp()
    app.script([steps.stall()], [steps.text("Hello"), steps.complete(), steps.stall()])
    limits = Limits(first_event_timeout_s=0.02, trailing_timeout_s=0.02, idle_timeout_s=0.1, disconnect_grace_s=0)

    async def talk() -> None:
        async with MemorySocket(ResponsesWebSocketMiddleware(app, limits=limits)) as ws:
            late = await ws.turn(create())
            assert late[0]["error"]["code"] == "upstream_timeout"
            assert response(await ws.turn(create()))["status"] == "completed"
            await app.wait_idle()
            assert await ws.wait_closed() == 1001

    asyncio.run(talk())


# -- apps that never wait ------------------------------------------------------------------------------------------------

DELTA = sse({**answer()[4], "sequence_number": None})
HEAD = b"".join(map(sse, answer()[:4]))
TAIL = sse(answer()[-1])
MANY = 1_000_000

NEVER_WAITING: dict[str, tuple[bytes, bytes]] = {
    "deltas": (HEAD, DELTA),
    "usual deltas": (HEAD, sse({name: value for name, value in answer()[4].items() if name != "sequence_number"})),
    "comments": (HEAD, b": ping\n\n"),
    "comments at once": (b"", b": ping\n\n"),
    "empty chunks": (HEAD, b""),
    "parts of an event": (HEAD, b"data: x\n"),
    "held events": (
        HEAD,
        sse({"type": "response.function_call_arguments.delta", "item_id": "fc_1", "output_index": 7, "delta": "x"}),
    ),
    "unknown events": (HEAD, sse({"type": "made.up"})),
    "repeated beginnings": (HEAD, sse(answer()[0])),
    "after the end": (HEAD + TAIL, DELTA),
    "comments after the end": (HEAD + TAIL, b": ping\n\n"),
    "nothing after the end": (HEAD + TAIL, b""),
}
assert DELTA.count(b"delta") >= 2


class NeverWaiting:
    """An app whose loop waits for nothing but ``send``."""

    def __init__(self, begin: bytes, piece: bytes) -> None:
        self.begin = begin
        self.piece = piece
        self.sent = 0
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            return
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        self.running += 1
        try:
            await send({"type": "http.response.body", "body": self.begin, "more_body": True})
            while self.sent < MANY:
                self.sent += 1
                await send({"type": "http.response.body", "body": self.piece, "more_body": True})
        finally:
            self.running -= 1


@pytest.mark.fault("B138")
@pytest.mark.parametrize("what", NEVER_WAITING)
async def test_an_app_that_never_waits_can_be_stopped_and_starves_nobody(what: str) -> None:
    """Whatever it sends, and also when nobody wants it any more: our ``send`` lets others run now and then."""
    app = NeverWaiting(*NEVER_WAITING[what])
    other = ScriptedApp()
    # Small enough to end the turns whose pieces are kept.
    limits = Limits(disconnect_grace_s=0, trailing_timeout_s=3600, max_event_bytes=65536, max_request_bytes=65536)
    middleware = ResponsesWebSocketMiddleware(app, limits=limits, probe=False)
    async with (
        MemorySocket(middleware, max_unread=None) as ws,
        MemorySocket(ResponsesWebSocketMiddleware(other)) as healthy,
    ):
        await ws.send_json({"type": "response.create", **create()})
        await eventually(lambda: app.sent > 0)
        assert response(await healthy.turn(create()))["status"] == "completed"
        await ws.abort()
        await ws.wait_returned()

    assert app.running == 0
    assert app.sent < MANY / 10


@pytest.mark.fault("B138")
async def test_an_app_that_takes_no_notice_of_the_errors_of_its_sends_is_stopped_too() -> None:
    """It is told by an OSError that its client has gone, swallows that, and never waits: only our ``send`` can end it."""
    tries = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal tries
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        while tries < MANY:
            tries += 1
            with contextlib.suppress(OSError):
                await send({"type": "http.response.body", "body": DELTA, "more_body": True})

    middleware = ResponsesWebSocketMiddleware(app, limits=Limits(disconnect_grace_s=0), probe=False)
    async with (
        MemorySocket(middleware, max_unread=None) as ws,
        MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp())) as healthy,
    ):
        await ws.send_json({"type": "response.create", **create()})
        await eventually(lambda: tries > 0)
        await ws.abort()
        assert response(await healthy.turn(create()))["status"] == "completed"
        await ws.wait_returned()

    assert tries < MANY / 10


@pytest.mark.fault("B138")
async def test_an_app_that_runs_on_for_its_usage_starves_nobody_either() -> None:
    """With ``on_disconnect`` seconds its events go nowhere after the client has left, so no write waits."""
    app = NeverWaiting(HEAD, DELTA)
    middleware = ResponsesWebSocketMiddleware(app, limits=Limits(disconnect_grace_s=0), probe=False, on_disconnect=0.05)
    async with (
        MemorySocket(middleware, max_unread=None) as ws,
        MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp())) as healthy,
    ):
        await ws.send_json({"type": "response.create", **create()})
        await eventually(lambda: app.sent > 0)
        await ws.abort()
        before = app.sent
        assert response(await healthy.turn(create()))["status"] == "completed"
        await ws.wait_returned()

    assert before < app.sent < MANY
    assert app.running == 0


@pytest.mark.fault("B138")
async def test_a_json_answer_in_a_million_pieces_starves_nobody() -> None:
    """Nothing of it is sent on, so no write of ours ever waits."""
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while sent < MANY:
            sent += 1
            await send({"type": "http.response.body", "body": b"" if sent > 1 else b"{", "more_body": True})

    limits = Limits(disconnect_grace_s=0)
    async with MemorySocket(ResponsesWebSocketMiddleware(app, probe=False, limits=limits)) as ws:
        await ws.send_json({"type": "response.create", **create()})
        await eventually(lambda: sent > 0)
        await ws.abort()
        await ws.wait_returned()

    assert sent < MANY / 10


@pytest.mark.fault("B138")
# Starlette leaves a generator that ends outside of itself to the garbage collector, and on trio that is a warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_framework_generator_that_never_waits_stops_when_its_client_leaves() -> None:
    """Uncancellable, it would run to its end for nobody, and hold the loop all the while."""
    produced = 0

    async def stream(_: dict[str, Any]) -> AsyncIterator[bytes]:
        nonlocal produced
        yield HEAD
        while produced < MANY:
            produced += 1
            yield DELTA

    middleware = ResponsesWebSocketMiddleware(starlette_app(stream))
    async with MemorySocket(middleware, max_unread=None) as ws:
        await ws.send_json({"type": "response.create", **create()})
        await eventually(lambda: produced > 10)
        await ws.abort()
        await ws.wait_returned()

    assert produced < MANY / 10


# -- tasks ---------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B140")
async def test_background_work_of_the_app_is_neither_collected_nor_cut_off() -> None:
    """A task that nobody refers to may vanish; one that is cancelled with its client loses what it was to save."""
    begun, go = anyio.Event(), anyio.Event()
    saved: list[str] = []

    async def save() -> None:
        begun.set()
        await go.wait()
        saved.append("usage")

    async def stream(_: dict[str, Any]) -> AsyncIterator[bytes]:
        for event in answer():
            yield sse(event)

    app = starlette_app(stream, background=BackgroundTask(save))
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        first = await ws.turn(create())
        await begun.wait()
        gc.collect()
        assert response(await ws.turn(follow(first)))["status"] == "completed"
        await ws.abort()
        await ws.settle()
        gc.collect()
        assert not ws.returned
        go.set()
        await ws.wait_returned()

    assert saved == ["usage", "usage"]


@pytest.mark.fault("B140")
async def test_nothing_of_a_connection_runs_on_after_its_call() -> None:
    """Tasks that outlive the ASGI call are nobody's: no server waits for them at its shutdown."""
    app = ScriptedApp()
    app.script(
        [], [steps.created(), steps.stall()], [steps.stall()], [steps.text("a"), steps.complete(), steps.stall()]
    )
    middleware = ResponsesWebSocketMiddleware(app, limits=Limits(disconnect_grace_s=0))
    async with anyio.create_task_group() as tasks:
        ws = MemorySocket(middleware, headers=KEY)
        async with ws:
            await ws.turn(create())
            for lane in ("a", "b", "c"):
                await ws.send_json({"type": "response.create", **create(stream_id=lane)})
            await ws.send_json({"type": "response.create", **create(stream_id="a")})
            await app.wait_requests(4)
            await ws.send_text("garbage")
            await ws.abort()
            await ws.wait_returned()
            assert app.running == 0
            assert middleware.connections == middleware.running_turns == 0
        # A task that was started beside the connection's own group would be seen here.
        assert [task.name for task in anyio.get_running_tasks() if "ws_responses" in (task.name or "")] == []
        tasks.cancel_scope.cancel()


# -- what is told ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B141")
async def test_there_is_one_fact_for_each_end_of_a_turn_and_none_for_an_event() -> None:
    """One span for the socket shows nothing, one for each message far too much; content belongs into none."""
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script(lambda _: [steps.text("secret answer " * 10, deltas=50)])
    middleware = ResponsesWebSocketMiddleware(app, hooks=[facts.append])
    headers = [(b"authorization", b"Bearer secret-key")]
    async with MemorySocket(middleware, headers=headers) as ws:
        last: list[Event] = []
        for _ in range(3):
            given = {"input": [said("secret question")], "instructions": "secret", "metadata": {"a": "secret"}}
            last = await ws.turn(follow(last, **given) if last else create(**given))

    assert [type(fact) for fact in facts] == [
        ConnectionOpened,
        *(TurnStarted, TurnFinished) * 3,
        ConnectionClosed,
    ]
    assert len({fact.connection_id for fact in facts if not isinstance(fact, TurnFinished) or fact.turn_id}) == 1  # type: ignore[union-attr]
    assert [fact.events for fact in endings(facts)] == [len(last)] * 3
    assert len(last) > 50
    assert "secret" not in repr(facts)


# -- backends --------------------------------------------------------------------------------------------------------------

PACKAGE = Path(ws_responses.__file__).parent
PROGRAMS = {"bench", "testing", "demo.py", "__main__.py", "adapters", "serve", "chat", "conformance"}
"""What runs by itself, or says to which backend it is bound."""
BOTH = {"spawn.py", "clock.py", "cancellation.py", "loop.py"}
"""What has a way of its own for each."""


@pytest.mark.fault("B142")
def test_the_middleware_imports_nothing_that_is_bound_to_asyncio() -> None:
    """A primitive of asyncio fails on trio only where it is met, which may be deep in an abort."""
    bound = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in PROGRAMS | BOTH
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        if any(name.split(".")[0] in {"asyncio", "uvloop", "trio"} for name in _imported(node))
    ]

    assert bound == []


def _imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]


@pytest.mark.servers
@pytest.mark.fault("B142")
@pytest.mark.parametrize("anyio_backend", ["trio"])
async def test_a_server_on_trio_serves_turns_lanes_and_a_client_that_leaves() -> None:
    """In memory, everything runs on trio; here a real server, a real client, and no asyncio anywhere."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app)
    config = Config()
    config.bind = ["127.0.0.1:0"]
    config.accesslog = config.errorlog = None
    stop = trio.Event()

    def talk(url: str) -> None:
        with connect(url) as socket:
            first = _turn(socket, create())
            assert response(_turn(socket, follow(first)))["status"] == "completed"
            app.script([steps.created(), steps.stall()])
            socket.send(json.dumps({"type": "response.create", **create(stream_id="a")}))
            assert json.loads(socket.recv())["stream_id"] == "a"

    async with trio.open_nursery() as nursery:
        serving = partial(serve, cast("Any", middleware), config, shutdown_trigger=stop.wait)
        binds = await nursery.start(serving)
        await trio.to_thread.run_sync(talk, binds[0].replace("http://", "ws://") + "/v1/responses")
        await app.wait_idle()
        await eventually(lambda: middleware.connections == 0)
        stop.set()

    assert app.requests[2].outcome in {"disconnected", "cancelled"}


def _turn(socket: Connection, body: Event) -> list[Event]:
    socket.send(json.dumps({"type": "response.create", **body}))
    events: list[Event] = []
    while not events or events[-1]["type"] not in TERMINAL_TYPES:
        events.append(json.loads(socket.recv()))
    return events


# -- mounts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B143")
async def test_mounted_in_another_app_it_works_without_a_lifespan_and_drains_when_told() -> None:
    """A sub-app gets no lifespan; whatever waited for one would never be ready, or never end."""
    inner = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(inner)
    outer = Starlette(routes=[Mount("/api", app=middleware)])
    drained: list[bool] = []
    async with MemorySocket(outer, "/api/v1/responses", headers=KEY) as ws, anyio.create_task_group() as tasks:
        assert response(await ws.turn(create()))["status"] == "completed"

        async def drain() -> None:
            drained.append(await middleware.drain(5))

        tasks.start_soon(drain)
        assert await ws.wait_closed() == 1012
        async with MemorySocket(outer, "/api/v1/responses", headers=KEY) as late:
            assert late.denial is not None
            assert late.denial.status == 503

    assert inner.lifespan == []
    assert inner.requests[0].path == "/api/v1/responses"
    assert drained == [True]


@pytest.mark.fault("B143")
async def test_its_app_still_gets_the_lifespan_where_there_is_one() -> None:
    """Answered in the app's place, the app's own start-up would never run."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app)
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[str] = []

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    await middleware({"type": "lifespan"}, receive, send)

    assert app.lifespan == ["lifespan.startup", "lifespan.shutdown"]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
