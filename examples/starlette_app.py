"""A Responses API in Starlette, which answers by JSON or by an event stream.

    uvicorn examples.starlette_app:app

The last line adds WebSocket mode on the same path.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out


async def create_response(request: Request) -> Response:
    body = await request.json()
    events = model.events(body)
    if body.get("stream"):
        return StreamingResponse(server_sent(events), media_type="text/event-stream")
    *_, last = events
    return JSONResponse(last["response"])


async def server_sent(events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    for event in events:
        yield f"data: {json.dumps(event)}\n\n"


api = Starlette(routes=[Route("/v1/responses", create_response, methods=["POST"])])
app = ResponsesWebSocketMiddleware(api)
