"""Serves one turn on asyncio, and prints which modules were loaded meanwhile: ``python -I first_turn.py ROOT nothing|everything|engine``.

It stands alone: tools for tests would load what the middleware has to load by itself.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Callable
from typing import Any

sys.path.insert(0, sys.argv[1])

from ws_responses import ResponsesWebSocketMiddleware  # found by the line above

SCOPE = {
    "type": "websocket",
    "path": "/v1/responses",
    "headers": [(b"host", b"localhost")],
    "query_string": b"",
    "root_path": "",
    "scheme": "ws",
    "asgi": {"version": "3.0"},
    "subprotocols": [],
}
CREATE = {"type": "response.create", "model": "m", "input": "Hello", "store": True}


async def app(scope: Any, receive: Any, send: Any) -> None:
    """Starts up, and answers each call by one stream."""
    if scope["type"] == "lifespan":
        await receive()
        await send({"type": "lifespan.startup.complete"})
        return
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": []}
    for kind, status in (("created", "in_progress"), ("completed", "completed")):
        response: dict[str, Any] = {"id": "resp_1", "object": "response", "model": "m", "status": status, "output": []}
        if kind == "completed":
            response["output"] = [item | {"content": [{"type": "output_text", "text": "Hi", "annotations": []}]}]
        event = json.dumps({"type": f"response.{kind}", "response": response}, separators=(",", ":"))
        await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def nothing() -> Any:
    """The app, wrapped."""
    return ResponsesWebSocketMiddleware(app)


def everything() -> Any:
    """The app, wrapped with all that has parts of its own."""
    from ws_responses import Principal, Safety, Settlement, TermClassifier
    from ws_responses.rendering.chat import ChatRenderer
    from ws_responses.routing import SingleRouter

    return ResponsesWebSocketMiddleware(
        app,
        renderer=ChatRenderer(),
        router=SingleRouter(_Backend(), ChatRenderer(), models=["m"]),
        safety=Safety(TermClassifier(["a term"]), mode="beside"),
        settlement=Settlement(_book),
        quota=lambda request: None,
        authorize=lambda handshake, model: Principal(id="me"),
        hooks=[lambda fact: None],
        prepare=lambda body, turn: None,
        complete_response=True,
        steering="interrupt",
        prototype=True,
    )


def engine() -> Any:
    """An engine with its routes."""
    from ws_responses import ResponsesApp, ResponsesEngine
    from ws_responses.rendering.chat import ChatRenderer

    return ResponsesApp(ResponsesEngine(_Backend(), renderer=ChatRenderer(), models=["m"]), authorize=_let_in)


class _Backend:
    @property
    def accepts(self) -> Any:
        from ws_responses.backends import Accepts

        return Accepts(kinds=frozenset({"chat"}))

    async def generate(self, prompt: object, params: object) -> AsyncGenerator[Any]:
        from ws_responses.backends import Delta

        yield Delta(text="Hi")
        yield Delta(finish="stop")

    async def prefill(self, prompt: object, params: object) -> None:
        """Nothing to prepare."""

    async def aclose(self) -> None:
        """Nothing to close."""


async def _book(record: object) -> None:
    """Take a record."""


def _let_in(handshake: object, model: str | None) -> Any:
    from ws_responses import Principal

    return Principal(id="me")


async def serve(make: Callable[[], Any]) -> None:
    """As a server does: the lifespan first, then a socket with one turn."""
    serving = make()
    inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    frames: list[str] = []

    async def send(message: dict[str, Any]) -> None:
        frames.append(message.get("text") or "")
        if message["type"] == "lifespan.startup.complete":
            started.set()
        if '"type":"response.done"' in frames[-1] or '"type":"response.completed"' in frames[-1]:
            await inbox.put({"type": "websocket.disconnect", "code": 1000})

    started = asyncio.Event()
    lifespan: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    await lifespan.put({"type": "lifespan.startup"})
    life = asyncio.create_task(serving({"type": "lifespan", "asgi": {"version": "3.0"}}, lifespan.get, send))
    await started.wait()

    known = set(sys.modules)
    await inbox.put({"type": "websocket.connect"})
    await inbox.put({"type": "websocket.receive", "text": json.dumps(CREATE)})
    await serving(SCOPE, inbox.get, send)
    loaded = sorted(set(sys.modules) - known)

    await lifespan.put({"type": "lifespan.shutdown"})
    await life
    print(json.dumps({"loaded": loaded, "frames": [frame for frame in frames if frame]}))


asyncio.run(serve({"nothing": nothing, "everything": everything, "engine": engine}[sys.argv[2]]))
