"""Calls of an app by a server, on a loop that the test drives by itself: for state machines."""

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from typing import Any

from tests.shell import KEY
from ws_responses._types import ASGIApp, Message


class Wire:
    """One call of the app by a server: a socket, or a POST."""

    def __init__(
        self,
        app: ASGIApp,
        loop: asyncio.AbstractEventLoop,
        body: dict[str, Any] | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (KEY,),
    ) -> None:
        self.frames: list[dict[str, Any]] = []
        self.gone = False
        self._inbox: deque[Message] = deque()
        self._arrived = asyncio.Event()
        scope: dict[str, Any] = {
            "type": "websocket" if body is None else "http",
            "path": "/v1/responses",
            "raw_path": b"/v1/responses",
            "root_path": "",
            "query_string": b"",
            "headers": [*headers, (b"host", b"test")],
            "scheme": "ws",
            "http_version": "1.1",
            "subprotocols": [],
            "extensions": {},
        }
        if body is None:
            self._put({"type": "websocket.connect"})
        else:
            scope["method"] = "POST"
            self._put({"type": "http.request", "body": json.dumps(body).encode(), "more_body": False})
        self.is_socket = body is None
        self.call = loop.create_task(_call(app, scope, self))

    def send(self, frame: dict[str, Any]) -> None:
        if not self.gone:
            self._put({"type": "websocket.receive", "text": json.dumps(frame)})

    def leave(self) -> None:
        if not self.gone:
            self.gone = True
            self._put({"type": "websocket.disconnect", "code": 1006} if self.is_socket else {"type": "http.disconnect"})

    def _put(self, message: Message) -> None:
        self._inbox.append(message)
        self._arrived.set()

    async def receive(self) -> Message:
        while not self._inbox:
            self._arrived.clear()
            await self._arrived.wait()
        return self._inbox.popleft()

    async def reply(self, message: Message) -> None:
        if self.gone:
            raise BrokenPipeError
        if message["type"] == "websocket.send":
            self.frames.append(json.loads(message["text"]))
        elif message["type"] == "websocket.close":
            self.leave()


async def _call(app: ASGIApp, scope: dict[str, Any], wire: Wire) -> None:
    await app(scope, wire.receive, wire.reply)
