"""A Responses API in Litestar.

    uvicorn examples.litestar_app:app

The last line adds WebSocket mode on the same path. It wraps the app from outside: Litestar's own `middleware=[...]` never sees
a socket for which there is no route.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Annotated, Any

from litestar import Litestar, Response, post
from litestar.params import Body
from litestar.response import Stream

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out


@post("/v1/responses", status_code=200)
async def create_response(data: Annotated[dict[str, Any], Body()]) -> Response[Any]:
    events = model.events(data)
    if data.get("stream"):
        return Stream(server_sent(events), media_type="text/event-stream")
    *_, last = events
    return Response(last["response"])


async def server_sent(events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    for event in events:
        yield f"data: {json.dumps(event)}\n\n"


api = Litestar([create_response], request_max_body_size=64 * 1024 * 1024)  # whole conversations come
app = ResponsesWebSocketMiddleware(api)
