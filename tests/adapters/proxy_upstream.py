"""A server on a real port that does to the byte what a test says, and a client of an ASGI app that is no server."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from ws_responses._types import ASGIApp, Message

PATIENCE_S = 10.0

Handler = Callable[["Arrival"], Awaitable[None]]
Header = tuple[bytes, bytes]


class Arrival:
    """A request that has reached the server, up to its headers."""

    def __init__(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
        self.headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        self.reader = reader
        self.writer = writer
        self.connection = number
        self.ended = asyncio.Event()

    def header(self, name: str) -> str | None:
        """The value of a header, None if it is not there exactly once."""
        values = [value for key, value in self.headers if key == name]
        return values[0] if len(values) == 1 else None

    async def body(self) -> bytes:
        """Read the body to its end."""
        if self.header("transfer-encoding") == "chunked":
            parts = []
            while part := await self.chunk():
                parts.append(part)
            return b"".join(parts)
        return await self.reader.readexactly(int(self.header("content-length") or 0))

    async def chunk(self) -> bytes:
        """Read one chunk of a chunked body."""
        size = int(await self.reader.readline(), 16)
        return (await self.reader.readexactly(size + 2))[:-2]

    async def write(self, *parts: bytes) -> None:
        """Send bytes."""
        self.writer.write(b"".join(parts))
        await self.writer.drain()

    async def answer(self, body: bytes = b"{}", *headers: bytes, status: bytes = b"200 OK") -> None:
        """Send a whole answer."""
        lines = [b"HTTP/1.1 " + status, b"content-length: %d" % len(body), *headers]
        await self.write(b"\r\n".join([*lines, b"", b""]), body)

    async def stall(self) -> None:
        """Say nothing until the peer has closed the connection."""
        while await self.reader.read(1 << 16):
            pass

    async def gone(self) -> None:
        """Wait, in a test, until the peer has closed the connection."""
        with anyio.fail_after(PATIENCE_S):
            await self.ended.wait()


class WireServer:
    """What has arrived at a server of `serving`."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.connections = 0
        self.port = 0
        self.handler: Handler = Arrival.answer
        self.failure: BaseException | None = None
        self._changed = asyncio.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def wait_arrivals(self, count: int = 1) -> Arrival:
        """Wait until so many requests have arrived; return the last of them."""
        with anyio.fail_after(PATIENCE_S):
            async with self._changed:
                await self._changed.wait_for(lambda: len(self.arrivals) >= count)
        return self.arrivals[count - 1]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        number = self.connections
        own: list[Arrival] = []
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                arrival = Arrival(head, reader, writer, number)
                async with self._changed:
                    self.arrivals.append(arrival)
                    own.append(arrival)
                    self._changed.notify_all()
                await self.handler(arrival)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:  # noqa: BLE001 - raised by `serving`, in the test
            self.failure = error
        finally:
            for arrival in own:
                arrival.ended.set()
            writer.close()


@asynccontextmanager
async def serving(handler: Handler = Arrival.answer) -> AsyncIterator[WireServer]:
    """Run a server whose requests are answered by `handler`."""
    wire = WireServer()
    wire.handler = handler
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    try:
        yield wire
    finally:
        server.close()
        for arrival in wire.arrivals:
            arrival.writer.close()
    if wire.failure is not None:
        raise wire.failure


class Call:
    """A request to an ASGI app, whose client the test plays.

    Args:
        body: The body, or its parts: None among them waits until the test calls `go_on`.
        wait: Take no part of the answer before the test calls `go_on`.
    """

    def __init__(
        self,
        app: ASGIApp,
        method: str = "POST",
        path: str = "/v1/responses",
        body: bytes | Sequence[bytes | None] = b"",
        headers: Sequence[Header] = (),
        *,
        wait: bool = False,
        **scope: Any,
    ) -> None:
        self._app = app
        path, _, query = path.partition("?")
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "headers": list(headers),
            "client": ("192.0.2.7", 1234),
            "scheme": "http",
            **scope,
        }
        self._parts = [body] if isinstance(body, bytes) else list(body)
        self._go_on = asyncio.Event()
        self._take = asyncio.Event()
        if not wait:
            self._take.set()
        self._gone = asyncio.Event()
        self._over = asyncio.Event()
        self._sent = asyncio.Condition()
        self.messages: list[Message] = []

    async def run(self) -> "Call":
        """Let the app answer."""
        with anyio.fail_after(PATIENCE_S):
            await self._app(self._scope, self._receive, self._send)
        self._over.set()
        return self

    def go_on(self) -> None:
        """Send what was waited with, and take the answer."""
        self._go_on.set()
        self._take.set()

    def leave(self) -> None:
        """The client closes its connection."""
        self._gone.set()

    async def wait_messages(self, count: int) -> None:
        """Wait until the app has sent so many messages."""
        with anyio.fail_after(PATIENCE_S):
            async with self._sent:
                await self._sent.wait_for(lambda: len(self.messages) >= count)

    async def _receive(self) -> Message:
        if self._parts and self._parts[0] is None:
            waits = [asyncio.ensure_future(event.wait()) for event in (self._go_on, self._gone)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for each in waits:
                each.cancel()
            if self._go_on.is_set():
                self._parts.pop(0)
        if self._parts and not self._gone.is_set():
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        await self._take.wait()
        if self._gone.is_set():
            raise BrokenPipeError("the client has left")
        async with self._sent:
            self.messages.append(message)
            self._sent.notify_all()

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])

    @property
    def headers(self) -> list[Header]:
        return list(self.messages[0]["headers"])

    def header(self, name: bytes) -> bytes | None:
        return dict(self.headers).get(name)

    @property
    def body(self) -> bytes:
        return b"".join(message["body"] for message in self.messages[1:])

    @property
    def complete(self) -> bool:
        return len(self.messages) > 1 and not self.messages[-1]["more_body"]

    @property
    def code(self) -> str:
        """The code of the error that it is answered by."""
        assert self.complete
        return str(json.loads(self.body)["error"]["code"])
