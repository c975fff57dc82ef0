"""The apps that the benchmarks serve. None of them computes anything: their answers are ready, and so are their messages.

The model's name tells them what to answer: ``deltas-20000`` is a message in 20,000 pieces, ``short-1`` a turn of one event.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterable
from functools import lru_cache
from typing import Any, Final

from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.bench import streams

HOOK_S: Final = 0.5
"""What a hook of settlement takes for each turn."""

_MODEL = re.compile(r'"model":"([a-z]+-\d+)"')
_SSE_HEADERS = [(b"content-type", b"text/event-stream")]


def _model_of(body: str) -> str:
    found = _MODEL.search(body)
    if found is None:
        raise ValueError("a benchmark's request names a model such as 'deltas-20000'")
    return found[1]


_short_turns = {events: streams.ShortTurn(events) for events in (1, 2)}


@lru_cache(8)
def _frames(model: str) -> list[Message]:
    kind, _, number = model.partition("-")
    if kind == "deltas":
        events = [event for _, event in streams.encoded(int(number))]
    else:
        events = _short_turns[int(number)].events()
    return [{"type": "websocket.send", "text": event.decode()} for event in events]


@lru_cache(8)
def _long_answer(deltas: int) -> list[Message]:
    return [_body_message(streams.sse(kind, event)) for kind, event in streams.encoded(deltas)]


def _answer(model: str) -> Iterable[Message]:
    kind, _, number = model.partition("-")
    if kind == "deltas":
        return _long_answer(int(number))
    return map(_body_message, _short_turns[int(number)].chunks())


def _body_message(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def bare_sender(scope: Scope, receive: Receive, send: Send) -> None:
    """Send ready frames upon each frame: the least that a WebSocket server in Python can do, and the floor of P1 and P8."""
    if scope["type"] != "websocket":
        await _not_found(scope, receive, send)
        return
    await receive()
    await send({"type": "websocket.accept"})
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        for frame in _frames(_model_of(message["text"])):
            await send(frame)


async def plain_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a POST by ready chunks, one event per body message: the cheapest app that one can wrap."""
    if scope["type"] != "http" or scope["method"] != "POST":
        await _not_found(scope, receive, send)
        return
    body = await _body(receive)
    await send({"type": "http.response.start", "status": 200, "headers": _SSE_HEADERS})
    for chunk in _answer(_model_of(body)):
        await send(chunk)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _body(receive: Receive) -> str:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts).decode()


async def _not_found(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what is no turn: the lifespan, and the GET by which the middleware asks at the handshake."""
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            await send({"type": f"{message['type']}.complete"})
            if message["type"] == "lifespan.shutdown":
                return
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def fastapi_app() -> ASGIApp:
    """Return a FastAPI app that streams the same chunks from an async generator."""
    import fastapi
    from fastapi.responses import StreamingResponse
    from pydantic import BaseModel

    class CreateResponse(BaseModel):
        model: str
        input: Any = None
        stream: bool = False
        store: bool = True

    api = fastapi.FastAPI()

    @api.post("/v1/responses")
    async def create_response(create: CreateResponse) -> StreamingResponse:
        async def answer() -> AsyncIterator[bytes]:
            for message in _answer(create.model):
                yield message["body"]

        return StreamingResponse(answer(), media_type="text/event-stream")

    return api


def wrapped(app: ASGIApp) -> ASGIApp:
    """Return an app with WebSocket mode, as drop-in; only the number of sockets is not bounded."""
    return ResponsesWebSocketMiddleware(app, limits=Limits(max_connections=None, max_tenant_connections=None))


def settled(app: ASGIApp, *, first: bool) -> ASGIApp:
    """Return an app with WebSocket mode whose turns are settled by a slow hook.

    Args:
        app: Answers.
        first: The end of each turn waits for it.
    """
    from ws_responses.settlement import Settlement, TurnRecord

    async def bill(_: TurnRecord) -> None:
        await asyncio.sleep(HOOK_S)

    # What a chain leaves behind at the end of its connection is of no interest here, and would take minutes.
    return ResponsesWebSocketMiddleware(app, settlement=Settlement(bill, before_terminal=first, drain_timeout_s=0.1))


def engine_app() -> ASGIApp:
    """Return the engine with a backend that says what the apps say, in as many pieces; its deltas are ready."""
    from ws_responses import ResponsesApp, ResponsesEngine
    from ws_responses.testing.backends import Asked, Said, ScriptedBackend

    def respond(asked: Asked) -> Said:
        return Said(text=streams.DELTA_TEXT * int(asked.params.model.partition("-")[2]))

    backend = ScriptedBackend(respond=respond, piece=len(streams.DELTA_TEXT), remembers=0, keeps=0)
    limits = Limits(max_connections=None, max_tenant_connections=None)
    return ResponsesApp(ResponsesEngine(backend), authorize="open", limits=limits)


def redis_app(url: str) -> ASGIApp:
    """Return the wrapped app with all that can be shared on Redis: store, counters and settlement, each turn waiting for them.

    Args:
        url: Where that is.
    """
    from ws_responses.adapters.redis import RedisStore
    from ws_responses.adapters.redis_counters import RedisCounters
    from ws_responses.adapters.redis_settlement import RedisSettlement
    from ws_responses.settlement import Settlement

    return ResponsesWebSocketMiddleware(
        plain_app,
        store=RedisStore(url, timeout_s=20.0),  # on a machine that is busy a second is soon over
        durable=True,
        tenant_key=b"of the benchmark",
        counters=RedisCounters(url, timeout_s=10.0),
        settlement=Settlement(RedisSettlement(url, timeout_s=10.0), before_terminal=True),
        limits=Limits(store_timeout_s=30.0),
    )


def cerebras_app(url: str, *, tokens: bool, single: bool) -> ASGIApp:
    """Return the engine with Cerebras.

    Args:
        url: Where that is.
        tokens: Give it token ids, and take ids from it; else chat messages.
        single: Hand on each chunk by itself.
    """
    from ws_responses import ResponsesApp, ResponsesEngine
    from ws_responses.adapters.cerebras import GATHER_S, CerebrasBackend
    from ws_responses.rendering.chat import ChatRenderer
    from ws_responses.rendering.harmony import HarmonyRenderer

    backend = CerebrasBackend(api_key="csk-bench", base_url=url, gather_s=0.0 if single else GATHER_S)
    engine = ResponsesEngine(backend, renderer=HarmonyRenderer() if tokens else ChatRenderer())
    return ResponsesApp(engine, authorize="open")


def relay_of(url: str) -> ASGIApp:
    """Return what does the least for a stream to a socket: read what there is, and send each event as it is.

    Args:
        url: Of the service.
    """

    async def relay(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await _not_found(scope, receive, send)
            return
        await receive()
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            async for event in _events_of(url):
                await send({"type": "websocket.send", "text": event.decode()})
            await send({"type": "websocket.send", "text": '{"type":"response.completed"}'})

    return relay


async def _events_of(url: str) -> AsyncIterator[bytes]:
    """Yield the events of one answer; each is a chunk of the body."""
    reader, writer = await asyncio.open_connection(*url.removeprefix("http://").split(":"))
    writer.write(b"POST /v1/completions HTTP/1.1\r\ncontent-length: 0\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    while (chunk := await reader.readuntil(b"\r\n")) != b"0\r\n":
        yield (await reader.readexactly(int(chunk, 16) + 2))[6:-4]
    writer.close()


def target(name: str) -> ASGIApp:
    """Return the app that a benchmark's server process is to serve."""
    if name == "bare":
        return bare_sender
    if name == "redis":
        return redis_app(os.environ["WS_BENCH_REDIS"])
    if name == "plain":
        return wrapped(plain_app)
    if name.startswith("settled"):
        return settled(plain_app, first=name == "settled-first")
    if name == "fastapi":
        return wrapped(fastapi_app())
    if name == "engine":
        return engine_app()
    if name.startswith("agents"):
        from ws_responses.bench.engine import agents_app

        ms = name.removeprefix("agents").removeprefix("-")
        return agents_app(classifier_ms=float(ms) if ms else None)
    kind, _, url = name.partition("@")
    if url:
        if kind == "relay":
            return relay_of(url)
        return cerebras_app(url, tokens=kind.endswith("tokens"), single=kind.startswith("single"))
    raise ValueError(f"no such app: {name}")
