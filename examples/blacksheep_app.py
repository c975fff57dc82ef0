"""A Responses API in BlackSheep.

    uvicorn examples.blacksheep_app:app

The last line adds WebSocket mode on the same path.
"""

import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any

from blacksheep import Application, Request, Response, StreamedContent
from blacksheep import json as as_json

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out
api = Application()


@api.router.post("/v1/responses")
async def create_response(request: Request) -> Response:
    body = await request.json()
    events = model.events(body)
    if body.get("stream"):
        return Response(200, content=StreamedContent(b"text/event-stream", partial(server_sent, events)))
    *_, last = events
    return as_json(last["response"])


async def server_sent(events: Iterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    for event in events:
        yield b"data: %b\n\n" % json.dumps(event).encode()


app = ResponsesWebSocketMiddleware(api)
