"""A Responses API in plain ASGI, without any framework.

    uvicorn examples.asgi_app:app

The last line adds WebSocket mode on the same path.
"""

import json

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import Receive, Scope, Send
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out


async def api(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])  # servers take it that there is no lifespan
    if (scope["method"], scope["path"]) != ("POST", "/v1/responses"):
        await send({"type": "http.response.start", "status": 404})
        await send({"type": "http.response.body"})
        return
    body = b""
    while (message := await receive()).get("more_body"):
        body += message["body"]
    events = model.events(json.loads(body + message["body"]))
    headers = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    for event in events:
        body = b"data: %b\n\n" % json.dumps(event).encode()
        await send({"type": "http.response.body", "body": body, "more_body": True})
    await send({"type": "http.response.body"})


app = ResponsesWebSocketMiddleware(api)
