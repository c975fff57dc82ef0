"""One third-party app, wrapped in one line per history mode, a chat completions server for those that need one, and a way to look inside.

    HOST_APP=fastresponses INNER_PATH=/v1/responses uvicorn tests.host_apps.harness:app

The header `x-app` names the history mode; what is below `/strict` and `/complete` is wrapped for strict clients.
"""

import importlib
import json
import os
import socket
import threading
import uuid
from collections.abc import AsyncIterator
from typing import Any, Final

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.host_apps import script
from tests.host_apps.matrix import STRICT
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses._types import Receive, Scope, Send

PATH: Final = "/v1/responses"
COMPLETION: Final = {"id": "chatcmpl-1", "created": 1, "model": "fake"}
USAGE: Final = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


async def complete(request: Request) -> Response:
    """Answer as a chat completions server does."""
    body = await request.json()
    model, kinds = body["model"], [message["role"] for message in body["messages"]]
    try:
        script.begin(model)
    except RuntimeError as error:
        return JSONResponse({"error": {"message": str(error)}}, 500)
    if script.wants_call(model, kinds, tools=bool(body.get("tools"))):
        return StreamingResponse(call(), media_type="text/event-stream")
    if not body.get("stream"):
        said = "".join([piece async for piece in script.pieces(model, len(kinds))])
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return JSONResponse({**COMPLETION, "object": "chat.completion", "choices": [choice], "usage": USAGE})
    return StreamingResponse(text(model, len(kinds)), media_type="text/event-stream")


async def call() -> AsyncIterator[str]:
    function = {"name": script.TOOL_NAME, "arguments": script.ARGUMENTS}
    yield chunk(
        {"tool_calls": [{"index": 0, "id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}]}
    )
    yield chunk({}, "tool_calls")
    yield "data: [DONE]\n\n"


async def text(model: str, items: int) -> AsyncIterator[str]:
    async for piece in script.pieces(model, items):
        yield chunk({"content": piece})
    yield chunk({}, "stop")
    yield "data: [DONE]\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
    choice = {"index": 0, "delta": {"role": "assistant", **delta}, "finish_reason": finish}
    return f"data: {json.dumps({**COMPLETION, 'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"


async def models(request: Request) -> Response:
    """Name no models: who asks has been told."""
    return JSONResponse({"object": "list", "data": []})


def serve_chat() -> str:
    """Start the chat completions server, on a port of its own: OGX asks it before it serves. Return its URL."""
    routes = [Route("/v1/chat/completions", complete, methods=["POST"]), Route("/v1/models", models)]
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning", lifespan="off"))
    threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True).start()
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


class Harness:
    """The app, wrapped."""

    def __init__(self, name: str) -> None:
        url = serve_chat()
        os.environ |= {"CHAT_URL": f"{url}/v1", "OPENAI_BASE_URL_INTERNAL": url, "OPENAI_API_KEY": "none"}
        module = importlib.import_module(f"tests.host_apps.apps.{name}_app")
        inner = os.environ["INNER_PATH"]
        limits = Limits(close_timeout_s=0.5)
        self._modes = {
            mode: ResponsesWebSocketMiddleware(module.api, path=PATH, inner_path=inner, history=mode, limits=limits)
            for mode in ("replay", "forward")
        }
        self._strict = {
            place: ResponsesWebSocketMiddleware(module.api, path=PATH, inner_path=inner, limits=limits, **options)
            for place, options in STRICT.items()
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Route by path and header."""
        if scope["type"] == "lifespan":
            await self._modes["replay"](scope, receive, send)
        elif scope["path"].startswith("/control/"):
            answer = JSONResponse(getattr(self, scope["path"].rpartition("/")[2])())
            await answer(scope, receive, send)
        elif place := next((place for place in STRICT if scope["path"].startswith(place + "/")), None):
            path = scope["path"].removeprefix(place)
            await self._strict[place]({**scope, "path": path, "raw_path": path.encode()}, receive, send)
        else:
            await self._modes[dict(scope["headers"]).get(b"x-app", b"replay").decode()](scope, receive, send)

    def gauges(self) -> dict[str, int]:
        """What is open and running."""
        return {
            "connections": sum(each.connections for each in self._all),
            "turns": sum(each.running_turns for each in self._all),
            "handlers": script.counts["open"],
        }

    @property
    def _all(self) -> list[ResponsesWebSocketMiddleware]:
        return [*self._modes.values(), *self._strict.values()]

    def calls(self) -> dict[str, int]:
        """Return how often a handler was called."""
        return {"calls": script.counts["calls"]}


app = Harness(os.environ["HOST_APP"])
