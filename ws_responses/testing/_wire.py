"""One connection of a loopback service: HTTP/1.1 by hand, so that every byte and every end is the test's."""

import asyncio
from typing import Final, Protocol

from ws_responses.testing.exchange import CUT, HOLD, HttpAnswer, ServiceRequest

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest request body: what 10 million token ids take as JSON."""

_DRAIN_EVERY: Final = 64
"""Pieces written before back-pressure is looked at."""

_ROUNDS_TO_READ: Final = 4
"""Rounds of the event loop in which a client of the same loop has read what was written: poll, read, wake, run."""


class Host(Protocol):
    """What a connection asks and tells its service."""

    releases: int

    def opened(self, wire: "Wire") -> int:
        """Take note of a connection; return its number."""
        ...

    def closed(self, wire: "Wire") -> None:
        """Take note of a connection's end."""

    def begin(self, request: ServiceRequest) -> HttpAnswer:
        """Take a request; return its answer."""
        ...

    def end(self, *, hung_up: bool) -> None:
        """Take note of an answer's end."""

    async def held(self, wire: "Wire", releases: int) -> None:
        """Return after so many releases, or when the client has gone."""


class Wire(asyncio.StreamReaderProtocol):
    """One connection."""

    def __init__(self, service: Host) -> None:
        self._in = asyncio.StreamReader(limit=MAX_BODY_BYTES)
        super().__init__(self._in, self._connected)
        self._service = service
        self._number = service.opened(self)
        self._serving: asyncio.Task[None] | None = None
        self._out: asyncio.StreamWriter | None = None
        self._wanted = 0
        self.gone = False

    def drop(self) -> "asyncio.Task[None] | None":
        """Break the connection off; return the task that then ends."""
        if self._out is not None:
            self._out.transport.abort()
        return self._serving

    def eof_received(self) -> bool:
        self._leave()
        return bool(super().eof_received())

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._leave()
        self._service.closed(self)

    def _leave(self) -> None:
        self.gone = True
        self._service.closed(self)  # also wakes the answers that hold

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._out = writer
        self._serving = asyncio.ensure_future(self._serve(reader, writer))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await self._read(reader)) is not None:
                if not await self._answer(self._service.begin(request), writer):
                    return
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client has gone; `gone` says so
        finally:
            writer.close()

    async def _read(self, reader: asyncio.StreamReader) -> ServiceRequest | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, path, _ = first.split(" ")
        fields = (line.partition(":") for line in lines if line)
        headers = {name.strip().lower(): value.strip() for name, _, value in fields}
        if "chunked" in headers.get("transfer-encoding", ""):
            body = await _chunked_body(reader)
        else:
            body = await reader.readexactly(int(headers.get("content-length", "0")))
        return ServiceRequest(method=method, path=path, headers=headers, body=body, connection=self._number)

    async def _answer(self, answer: HttpAnswer, writer: asyncio.StreamWriter) -> bool:
        """Write an answer; tell whether the connection goes on."""
        ended = False
        self._wanted = self._service.releases
        try:
            if answer.held:
                await self._hold()
            if not self.gone and not answer.dropped:
                writer.write(_head(answer))
                ended = await self._write_body(answer, writer)
        finally:
            self._service.end(hung_up=self.gone and not ended)
        return ended and not self.gone

    async def _hold(self) -> None:
        self._wanted += 1
        await self._service.held(self, self._wanted)

    async def _write_body(self, answer: HttpAnswer, writer: asyncio.StreamWriter) -> bool:
        start = asyncio.get_running_loop().time()
        for number, piece in enumerate(answer.body):
            if self.gone:
                return False
            if piece is HOLD:
                await writer.drain()
                await self._hold()
            elif piece is CUT:
                # What was written arrives; an abort could take it back.
                await writer.drain()
                return False
            elif piece:
                writer.write(piece if answer.whole else b"%x\r\n%s\r\n" % (len(piece), piece))
                await self._pace(answer, start, number, writer)
        if not answer.whole:
            writer.write(b"0\r\n\r\n")
        await writer.drain()
        return not self.gone

    @staticmethod
    async def _pace(answer: HttpAnswer, start: float, number: int, writer: asyncio.StreamWriter) -> None:
        if answer.rate:
            await asyncio.sleep(max(0.0, start + (number + 1) / answer.rate - asyncio.get_running_loop().time()))
        elif answer.apart:
            for _ in range(_ROUNDS_TO_READ):
                await asyncio.sleep(0)
        elif number % _DRAIN_EVERY == 0:
            await writer.drain()
            await asyncio.sleep(0)  # the client may read what there is


async def _chunked_body(reader: asyncio.StreamReader) -> bytes:
    body = bytearray()
    while size := int((await reader.readline()).split(b";")[0], 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    await reader.readline()
    return bytes(body)


def _head(answer: HttpAnswer) -> bytes:
    length = sum(len(piece) for piece in answer.body if isinstance(piece, bytes))
    framing = ("content-length", str(length)) if answer.whole else ("transfer-encoding", "chunked")
    headers = (("content-type", answer.content_type), framing, *answer.headers)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    return f"HTTP/1.1 {answer.status} Answer\r\n{lines}\r\n".encode("latin-1")
