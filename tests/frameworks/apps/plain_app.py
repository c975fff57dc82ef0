"""No framework: one function."""

import json

from starlette.middleware.gzip import GZipMiddleware

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp, Receive, Scope, Send


async def api(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])  # servers take it for "no lifespan"
    path = scope["path"].removeprefix(scope.get("root_path", ""))
    if scope["method"] != "POST" or path not in {source.PATH, source.GUARDED}:
        await whole(send, Whole({"error": "There is no such page."}, 404))
    elif path == source.GUARDED and not is_right(scope):
        await whole(send, Whole({"error": "The key is wrong."}, 401))
    else:
        await create_response(receive, send)


async def create_response(receive: Receive, send: Send) -> None:
    body = b""
    more = True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    answer = source.answer(json.loads(body))
    if isinstance(answer, Whole):
        await whole(send, answer)
        return
    await start(send, 200, {"content-type": source.EVENT_STREAM})
    async for chunk in source.asynchronous(answer):
        await send({"type": "http.response.body", "body": chunk, "more_body": True})
    await send({"type": "http.response.body"})


async def whole(send: Send, answer: Whole) -> None:
    await start(send, answer.status, {"content-type": "application/json"} | answer.headers)
    await send({"type": "http.response.body", "body": json.dumps(answer.body).encode()})


async def start(send: Send, status: int, headers: dict[str, str]) -> None:
    pairs = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})


def is_right(scope: Scope) -> bool:
    return source.is_right(dict(scope["headers"]).get(b"authorization", b"").decode())


async def layer_of_key(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http" and not is_right(scope):
        await whole(send, Whole({"error": "The key is wrong."}, 401))
    else:
        await api(scope, receive, send)


def build(layer: source.Layer) -> ASGIApp:
    layers: dict[source.Layer, ASGIApp] = {"none": api, "key": layer_of_key, "gzip": GZipMiddleware(api)}
    return layers[layer]
