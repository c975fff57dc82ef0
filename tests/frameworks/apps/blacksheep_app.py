"""BlackSheep; the key is judged by its own authentication and authorization, or by a function in `middlewares`."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from typing import Any

from blacksheep import Application, Request, Response, Router, StreamedContent, json
from blacksheep.server.authorization import auth
from blacksheep.server.compression import use_gzip_compression
from blacksheep.server.sse import ServerSentEventsResponse, TextServerSentEvent
from guardpost import AuthenticationHandler, Identity

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp

Next = Callable[[Request], Awaitable[Response]]


async def create_response(request: Request) -> Response:
    body: dict[str, Any] = await request.json()
    answer = source.answer(body)
    if isinstance(answer, Whole):
        response = json(answer.body, answer.status)
        for name, value in answer.headers.items():
            response.add_header(name.encode(), value.encode())
        return response
    # It wants a function, and accepts those of asynchronous generators only.
    stream: Any = source.plain_chunks if isinstance(answer, Iterator) else source.chunks
    return Response(200, content=StreamedContent(source.EVENT_STREAM.encode(), partial(stream, body)))


@auth()
async def guarded(request: Request) -> Response:
    return await create_response(request)


async def helped(request: Request) -> Response:
    return ServerSentEventsResponse(partial(texts, await request.json()))


async def texts(body: dict[str, Any]) -> AsyncIterator[TextServerSentEvent]:
    async for event in source.events(body):
        yield TextServerSentEvent(source.as_json(event), event["type"])


def is_right(request: Request) -> bool:
    given = request.get_first_header(b"authorization")
    return source.is_right(given.decode() if given else None)


class ReadKey(AuthenticationHandler):
    def authenticate(self, context: Request) -> Identity | None:
        if not is_right(context):
            return None
        context.user = Identity({"sub": "them"}, "key")
        return context.user


async def check_key(request: Request, handler: Next) -> Response:
    if not is_right(request):
        return json({"error": "The key is wrong."}, 401)
    return await handler(request)


def build(layer: source.Layer) -> ASGIApp:
    api = Application(router=Router())
    api.use_authentication().add(ReadKey())
    api.use_authorization()
    api.router.add_post(source.PATH, create_response)
    api.router.add_post(source.GUARDED, guarded)
    api.router.add_post(source.HELPED, helped)
    if layer == "key":
        api.middlewares.append(check_key)
    elif layer == "gzip":
        use_gzip_compression(api)
    return api
