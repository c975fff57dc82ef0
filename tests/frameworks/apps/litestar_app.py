"""Litestar; the key is judged by a guard of the route, or by its `AbstractAuthenticationMiddleware`."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from litestar import Litestar, Response, post
from litestar.config.compression import CompressionConfig
from litestar.connection import ASGIConnection
from litestar.exceptions import NotAuthorizedException
from litestar.handlers import BaseRouteHandler
from litestar.middleware import AbstractAuthenticationMiddleware, AuthenticationResult
from litestar.params import Body
from litestar.response import ServerSentEvent, ServerSentEventMessage, Stream

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp

JSON = Annotated[dict[str, Any], Body()]
Connection = ASGIConnection[Any, Any, Any, Any]


def serve(body: dict[str, Any]) -> Response[Any]:
    answer = source.answer(body)
    if isinstance(answer, Whole):
        return Response(answer.body, status_code=answer.status, headers=answer.headers)
    return Stream(answer, media_type=source.EVENT_STREAM)


def check_bearer(connection: Connection, _: BaseRouteHandler) -> None:
    if not source.is_right(connection.headers.get("authorization")):
        raise NotAuthorizedException("The key is wrong.")


@post(source.PATH, status_code=200)
async def create_response(data: JSON) -> Response[Any]:
    return serve(data)


@post(source.GUARDED, status_code=200, guards=[check_bearer])
async def guarded(data: JSON) -> Response[Any]:
    return serve(data)


@post(source.HELPED, status_code=200)
async def helped(data: JSON) -> ServerSentEvent:
    return ServerSentEvent(messages(data))


async def messages(body: dict[str, Any]) -> AsyncIterator[ServerSentEventMessage]:
    async for event in source.events(body):
        yield ServerSentEventMessage(data=source.as_json(event), event=event["type"])


class CheckKey(AbstractAuthenticationMiddleware):
    async def authenticate_request(self, connection: Connection) -> AuthenticationResult:
        if not source.is_right(connection.headers.get("authorization")):
            raise NotAuthorizedException("The key is wrong.")
        return AuthenticationResult(user="them", auth=None)


def build(layer: source.Layer) -> ASGIApp:
    return Litestar(
        [create_response, guarded, helped],
        middleware=[CheckKey] if layer == "key" else [],
        compression_config=CompressionConfig(backend="gzip") if layer == "gzip" else None,
        openapi_config=None,
    )
