"""Starlette; its own middleware is `BaseHTTPMiddleware`."""

from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp


async def create_response(request: Request) -> Response:
    answer = source.answer(await request.json())
    if isinstance(answer, Whole):
        return JSONResponse(answer.body, answer.status, answer.headers)
    return StreamingResponse(answer, media_type=source.EVENT_STREAM)


async def guarded(request: Request) -> Response:
    if not source.is_right(request.headers.get("authorization")):
        return JSONResponse({"error": "The key is wrong."}, 401)
    return await create_response(request)


async def helped(request: Request) -> Response:
    body = await request.json()
    chunks = ({"event": each["type"], "data": source.as_json(each)} async for each in source.events(body))
    return EventSourceResponse(chunks)


class CheckKey(BaseHTTPMiddleware):
    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        if not source.is_right(request.headers.get("authorization")):
            return JSONResponse({"error": "The key is wrong."}, 401)
        return await call_next(request)


LAYERS = {"none": [], "key": [Middleware(CheckKey)], "gzip": [Middleware(GZipMiddleware)]}


def build(layer: source.Layer) -> ASGIApp:
    return Starlette(
        routes=[
            Route(source.PATH, create_response, methods=["POST"]),
            Route(source.GUARDED, guarded, methods=["POST"]),
            Route(source.HELPED, helped, methods=["POST"]),
        ],
        middleware=LAYERS[layer],
    )
