"""FastAPI; the key is judged by a dependency of the route, or by a function of `@app.middleware("http")`."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.sse import EventSourceResponse, ServerSentEvent
from starlette.middleware.gzip import GZipMiddleware

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp

Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def check_bearer(bearer: Bearer) -> None:
    if bearer is None or bearer.credentials != source.KEY:
        raise HTTPException(401, "The key is wrong.", headers={"WWW-Authenticate": "Bearer"})


async def create_response(body: dict[str, Any]) -> Response:
    answer = source.answer(body)
    if isinstance(answer, Whole):
        return JSONResponse(answer.body, answer.status, answer.headers)
    return StreamingResponse(answer, media_type=source.EVENT_STREAM)


async def helped(body: dict[str, Any]) -> AsyncIterator[ServerSentEvent]:
    async for event in source.events(body):
        yield ServerSentEvent(data=event, event=event["type"])


async def check_key(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    if not source.is_right(request.headers.get("authorization")):
        return JSONResponse({"detail": "The key is wrong."}, 401)
    return await call_next(request)


def build(layer: source.Layer) -> ASGIApp:
    api = FastAPI()
    api.post(source.PATH)(create_response)
    api.post(source.GUARDED, dependencies=[Depends(check_bearer)])(create_response)
    api.post(source.HELPED, response_class=EventSourceResponse)(helped)
    if layer == "key":
        api.middleware("http")(check_key)
    elif layer == "gzip":
        api.add_middleware(GZipMiddleware)
    return api
