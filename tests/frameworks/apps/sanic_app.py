"""Sanic under an ASGI server; the key is judged by a decorator of the handler, or by a request middleware."""

from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

from sanic import Request, Sanic  # pyright: ignore[reportMissingImports]
from sanic.response import HTTPResponse, json  # pyright: ignore[reportMissingImports]

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp

Handler = Callable[[Request], Awaitable[HTTPResponse | None]]

numbers = count()


async def create_response(request: Request) -> HTTPResponse | None:
    answer = source.answer(request.json)
    if isinstance(answer, Whole):
        return json(answer.body, answer.status, answer.headers)
    response = await request.respond(content_type=source.EVENT_STREAM)
    async for chunk in source.asynchronous(answer):
        await response.send(chunk)
    await response.eof()
    return None


def refusal(request: Request) -> HTTPResponse | None:
    if source.is_right(request.headers.get("authorization")):
        return None
    return json({"error": "The key is wrong."}, 401)


def check_bearer(handler: Handler) -> Handler:
    async def guarded(request: Request) -> HTTPResponse | None:
        return refusal(request) or await handler(request)

    return guarded


def build(layer: source.Layer) -> ASGIApp:
    api: Any = Sanic(f"app-{next(numbers)}")
    api.config.TOUCHUP = False  # it rewrites the code of Sanic itself, once per process: there are several apps here
    api.add_route(create_response, source.PATH, methods=["POST"], name="create")
    api.add_route(check_bearer(create_response), source.GUARDED, methods=["POST"], name="guarded")
    api.add_route(create_response, source.WHOLE_PATH, methods=["POST"], name="whole")
    if layer == "key":
        api.register_middleware(refusal, "request")
    app: ASGIApp = api  # it has no compression, and its headers are none that Starlette's could take
    return app
