"""Falcon; the key is judged by a hook of the responder, or by a middleware object."""

from collections.abc import AsyncIterator
from typing import Any

import falcon
from falcon.asgi import App, Request, Response, SSEvent
from starlette.middleware.gzip import GZipMiddleware

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp


class CreateResponse:
    async def on_post(self, request: Request, response: Response) -> None:
        answer = source.answer(await request.get_media())
        if isinstance(answer, Whole):
            response.media, response.status = answer.body, answer.status
            response.set_headers(answer.headers)
        else:
            response.content_type = source.EVENT_STREAM
            response.stream = source.asynchronous(answer)


async def check_bearer(request: Request, response: Response, resource: object, params: dict[str, Any]) -> None:
    if not source.is_right(request.get_header("authorization")):
        raise falcon.HTTPUnauthorized(description="The key is wrong.")


class Guarded(CreateResponse):
    @falcon.before(check_bearer)
    async def on_post(self, request: Request, response: Response) -> None:
        await super().on_post(request, response)


class Helped:
    async def on_post(self, request: Request, response: Response) -> None:
        response.sse = messages(await request.get_media())


async def messages(body: dict[str, Any]) -> AsyncIterator[SSEvent]:
    async for event in source.events(body):
        yield SSEvent(text=source.as_json(event), event=event["type"])


class CheckKey:
    async def process_request(self, req: Request, resp: Response) -> None:
        await check_bearer(req, resp, None, {})


def build(layer: source.Layer) -> ASGIApp:
    api: Any = App(middleware=[CheckKey()]) if layer == "key" else App()
    api.add_route(source.PATH, CreateResponse())
    api.add_route(source.GUARDED, Guarded())
    api.add_route(source.WHOLE_PATH, CreateResponse())
    api.add_route(source.HELPED, Helped())
    return GZipMiddleware(api) if layer == "gzip" else api  # it has none of its own
