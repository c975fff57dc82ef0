"""A Responses API in FastAPI. Its handler knows nothing of sockets; the last line adds WebSocket mode on the same path.

    uvicorn examples.fastapi_app:app

Any key is accepted, unless DEMO_API_KEY names the right one.
"""

import json
import os
import secrets
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing.model import ModelError, ScriptedModel

api = FastAPI()
model = ScriptedModel()  # your model goes here: a request body in, Responses events out

Bearer = Annotated[HTTPAuthorizationCredentials | None, Depends(HTTPBearer(auto_error=False))]


def check_key(bearer: Bearer) -> None:
    right = os.environ.get("DEMO_API_KEY")
    given = bearer.credentials if bearer else ""
    if right and not secrets.compare_digest(given.encode(), right.encode()):
        raise HTTPException(401, "The API key is not valid.", headers={"WWW-Authenticate": "Bearer"})


@api.post("/v1/responses", dependencies=[Depends(check_key)])
async def create_response(body: dict[str, Any]) -> Response:
    events = model.events(body)  # no state is kept: the whole conversation is in body["input"]
    if body.get("stream"):
        return StreamingResponse(server_sent(events), media_type="text/event-stream")
    *_, last = events
    return JSONResponse(last["response"])


async def server_sent(events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    for event in events:
        yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n"


@api.exception_handler(ModelError)
async def refuse(_request: Request, error: ModelError) -> Response:
    return JSONResponse(error.body, error.status)


app = ResponsesWebSocketMiddleware(api)
