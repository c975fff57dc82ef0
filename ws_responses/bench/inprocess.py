"""The middleware without a server: a hand-written client, and an app that answers each turn by a tool call.

What is measured in process is free of the noise of sockets, and memory can be counted to the byte.
"""

import asyncio
from time import thread_time
from typing import Any, Literal, Protocol, Self

import msgspec
from msgspec import Raw, Struct

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.bench import streams
from ws_responses.bench.loop import ARGUMENTS, SHELL, ToolOutputs
from ws_responses.bench.results import Unexpected
from ws_responses.protocol.events import encode

_DEADLINE_S = 60.0
_CLOSING = ('"response.completed"', '"response.done"')


class Asked(Protocol):
    """What a turn comes to in the end: an app, or a backend.

    Attributes:
        entered_at: When it was called last, by the thread's CPU clock.
    """

    entered_at: float


class ToolApp:
    """A Responses app that asks for a tool in each turn; reads its request's body and does not look at it.

    Attributes:
        entered_at: When it was called last, by the thread's CPU clock.
        turns: How often it was called.
    """

    def __init__(self) -> None:
        self.entered_at = 0.0
        self.turns = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        self.entered_at = thread_time()
        await receive()
        if scope["method"] != "POST":
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for chunk in self._answer():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _answer(self) -> list[bytes]:
        self.turns += 1
        response_id = f"resp_{self.turns:032x}"
        item = {
            "type": "function_call",
            "id": f"fc_{self.turns:032x}",
            "call_id": f"call_{self.turns:024x}",
            "name": SHELL["name"],
            "arguments": ARGUMENTS,
            "status": "completed",
        }
        begun = {**item, "arguments": "", "status": "in_progress"}
        events: tuple[dict[str, Any], ...] = (
            {"type": "response.created", "response": streams.response(response_id, "in_progress", [])},
            {"type": "response.output_item.added", "output_index": 0, "item": begun},
            {"type": "response.output_item.done", "output_index": 0, "item": item},
            {
                "type": "response.completed",
                "response": streams.response(response_id, "completed", [item], streams.usage(40)),
            },
        )
        return [
            streams.sse(event["type"], encode({**event, "sequence_number": number}))
            for number, event in enumerate(events)
        ]


class ToolCalled(Struct):
    """What a client needs of a response: its id, and its items as they came."""

    id: str
    output: list[Raw]


class _Closing(Struct):
    response: ToolCalled


class _Item(Struct):
    call_id: str = ""


decode_closing = msgspec.json.Decoder(_Closing).decode
decode_item = msgspec.json.Decoder(_Item).decode


class Peer:
    """One connection, by the least that is an ASGI WebSocket client; an async context manager.

    Args:
        app: Has WebSocket mode.

    Attributes:
        received_at: When the last frame was handed over, by the thread's CPU clock.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._given: asyncio.Queue[Message] = asyncio.Queue()
        self._over: asyncio.Future[str]
        self._accepted = asyncio.Event()
        self._task: asyncio.Future[None]
        self.received_at = 0.0

    async def __aenter__(self) -> Self:
        """Connect."""
        scope: Scope = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": "/v1/responses",
            "raw_path": b"/v1/responses",
            "root_path": "",
            "query_string": b"",
            "headers": [(b"host", b"127.0.0.1"), (b"authorization", b"Bearer sk-bench")],
            "client": ("127.0.0.1", 50000),
            "server": ("127.0.0.1", 8000),
            "subprotocols": [],
            "state": {},
            "extensions": {},
        }
        self._given.put_nowait({"type": "websocket.connect"})
        self._task = asyncio.ensure_future(self._app(scope, self._receive, self._send))
        await asyncio.wait_for(self._accepted.wait(), _DEADLINE_S)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect, and wait for the end."""
        self._given.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await self._task

    async def exchange(self, frame: bytes) -> str:
        """Send a frame and return the closing event of its turn.

        Raises:
            Unexpected: The turn failed.
        """
        self._over = asyncio.get_running_loop().create_future()
        self._given.put_nowait({"type": "websocket.receive", "text": frame.decode()})
        return await asyncio.wait_for(self._over, _DEADLINE_S)

    async def _receive(self) -> Message:
        message = await self._given.get()
        self.received_at = thread_time()
        return message

    async def _send(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            self._accepted.set()
        elif message["type"] != "websocket.send":
            self._over.set_exception(Unexpected(repr(message)))
        elif any(kind in message["text"][:96] for kind in _CLOSING):
            self._over.set_result(message["text"])
        elif '"type":"error"' in message["text"][:96] or '"response.failed"' in message["text"][:96]:
            self._over.set_exception(Unexpected(message["text"][:400]))


class Conversation(Peer):
    """A conversation of tool calls on one connection.

    Args:
        app: Has WebSocket mode.
        asked: What it asks.
        store: As the frames say.

    Attributes:
        item_bytes: Sum of all items that went in and out, as they are on the wire.
        parent_id: What the next turn continues.
        call_id: What the next turn answers.
    """

    def __init__(self, app: ASGIApp, asked: Asked, *, store: bool) -> None:
        super().__init__(app)
        self.item_bytes = 0
        self.parent_id: str | None = None
        self.call_id = ""
        self._asked = asked
        self._store = store
        self._outputs = ToolOutputs()
        self._response = ToolCalled("", [])

    @classmethod
    def with_app(cls, history: Literal["replay", "forward", "turn"], *, store: bool) -> Self:
        """Return a conversation with a wrapped app.

        Args:
            history: Mode of the middleware.
            store: As the frames say.
        """
        app = ToolApp()
        return cls(ResponsesWebSocketMiddleware(app, history=history), app, store=store)

    @property
    def content_bytes(self) -> int:
        """Bytes that whoever keeps the conversation must keep."""
        return self.item_bytes

    async def turn(self, output_bytes: int) -> float:
        """Run one turn that gives the output of the last tool call; return the CPU time from frame to app, in seconds.

        Args:
            output_bytes: Size of that output.

        Raises:
            Unexpected: The turn failed.
        """
        item = encode(self._item(output_bytes))
        frame = b'{"type":"response.create","model":"bench","store":%s%s,"input":[%s]}' % (
            b"true" if self._store else b"false",
            b"" if self.parent_id is None else b',"previous_response_id":"%s"' % self.parent_id.encode(),
            item,
        )
        self._response = decode_closing(await self.exchange(frame)).response
        self.item_bytes += len(item) + sum(len(bytes(one)) for one in self._response.output)
        return self._asked.entered_at - self.received_at

    async def grow(self, turns: int, output_bytes: int) -> None:
        """Run some turns, each continuing the one before."""
        for _ in range(turns):
            await self.turn(output_bytes)
            self.parent_id = self._response.id
            self.call_id = decode_item(self._response.output[-1]).call_id

    def _item(self, size: int) -> dict[str, object]:
        text = self._outputs.next(size)
        if self.parent_id is None:
            return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
        return {"type": "function_call_output", "call_id": self.call_id, "output": text}
