"""A Responses API in Sanic, under an ASGI server: Sanic's own server does not speak ASGI.

    uvicorn examples.sanic_app:app

The last line adds WebSocket mode on the same path.
"""

import json

from sanic import HTTPResponse, Request, Sanic
from sanic.response import json as as_json

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out
api = Sanic("responses")


async def create_response(request: Request) -> HTTPResponse | None:
    events = model.events(request.json)
    if not request.json.get("stream"):
        *_, last = events
        return as_json(last["response"])
    response = await request.respond(content_type="text/event-stream")
    for event in events:
        await response.send(f"data: {json.dumps(event)}\n\n")
    await response.eof()
    return None


api.add_route(create_response, "/v1/responses", methods=["POST"])
app = ResponsesWebSocketMiddleware(api)
