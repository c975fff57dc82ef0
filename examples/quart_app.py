"""A Responses API in Quart.

    uvicorn examples.quart_app:app

The last line adds WebSocket mode on the same path.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from quart import Quart, Response, request

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out
api = Quart(__name__)
api.config["MAX_CONTENT_LENGTH"] = 64 * 1024 * 1024  # whole conversations come


@api.post("/v1/responses")
async def create_response() -> Response | dict[str, Any]:
    body = await request.get_json()
    events = model.events(body)
    if body.get("stream"):
        response = Response(server_sent(events), content_type="text/event-stream")
        response.timeout = None  # else Quart ends the stream after 60 s
        return response
    *_, last = events
    return dict(last["response"])


async def server_sent(events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    for event in events:
        yield f"data: {json.dumps(event)}\n\n"


app = ResponsesWebSocketMiddleware(api)
