"""A Responses API in Falcon.

    uvicorn examples.falcon_app:app

The last line adds WebSocket mode on the same path. It wraps the app from outside: Falcon's `add_middleware` is for hooks.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from falcon.asgi import App, Request, Response

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out


class Responses:
    async def on_post(self, request: Request, response: Response) -> None:
        body = await request.get_media()
        events = model.events(body)
        if body.get("stream"):
            response.content_type = "text/event-stream"
            response.stream = server_sent(events)
        else:
            *_, last = events
            response.media = last["response"]


async def server_sent(events: Iterator[dict[str, Any]]) -> AsyncIterator[bytes]:
    for event in events:
        yield b"data: %b\n\n" % json.dumps(event).encode()


api = App()
api.add_route("/v1/responses", Responses())
app = ResponsesWebSocketMiddleware(api)
