"""A small in-memory HTTP client for the tests of the scripted app."""

import json
from collections.abc import Mapping
from typing import Any

import anyio

from ws_responses._types import ASGIApp, Message


class Call:
    """One HTTP request; `send` of the app raises `OSError` once `gone` is set."""

    def __init__(
        self, app: ASGIApp, body: Any = None, *, method: str = "POST", path: str = "/v1/responses", auth: str = ""
    ) -> None:
        self._app = app
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "headers": [(b"Authorization", auth.encode())] if auth else [],
        }
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._incoming: list[Message] = [
            {"type": "http.request", "body": data[:3], "more_body": True},
            {"type": "http.request", "body": data[3:]},
        ]
        self.messages: list[Message] = []
        self.gone = anyio.Event()

    async def run(self) -> "Call":
        await self._app(self._scope, self._receive, self._send)
        return self

    async def _receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop(0)
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if self.gone.is_set():
            raise BrokenPipeError("gone")
        self.messages.append(message)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        return dict(self.messages[0]["headers"])

    @property
    def chunks(self) -> list[bytes]:
        return [message["body"] for message in self.messages[1:]]

    @property
    def raw(self) -> bytes:
        return b"".join(self.chunks)

    @property
    def ended(self) -> bool:
        return self.messages[-1].get("more_body") in {None, False}

    def json(self) -> Any:
        return json.loads(self.raw)

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events; for streams with one `data:` line per event and LF."""
        lines = [line.removeprefix(b"data: ") for line in self.raw.split(b"\n") if line.startswith(b"data: ")]
        return [json.loads(line) for line in lines if line != b"[DONE]"]

    @property
    def types(self) -> list[str]:
        return [event["type"].removeprefix("response.") for event in self.events]


async def post(app: ASGIApp, body: Mapping[str, Any] | None = None, **options: Any) -> Call:
    return await Call(app, {"model": "m", "input": "hi", "stream": True} | dict(body or {}), **options).run()
