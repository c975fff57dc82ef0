"""A loopback HTTP/1.1 service that answers byte for byte as a test says; the far end of backend adapters (asyncio).

    async with LoopbackService() as service:
        service.script(HttpAnswer(body=[first_event, CUT]))
        ...  # a client calls service.url
        assert service.connections == 1

Every piece of a body is one chunk of the chunked encoding: borders stand where the test puts them.
"""

import asyncio
import enum
import gzip
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import msgspec

from ws_responses.testing._signal import Signal

__all__ = ["CUT", "HOLD", "HttpAnswer", "LoopbackService", "Piece", "ServiceRequest", "Step", "recut"]

MAX_HEAD_BYTES: Final = 64 * 1024
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Largest request body: what 10 million token ids take as JSON."""

_DRAIN_EVERY: Final = 64
"""Pieces written before back-pressure is looked at."""

_ROUNDS_TO_READ: Final = 4
"""Rounds of the event loop in which a client of the same loop has read what was written: poll, read, wake, run."""


class Step(enum.Enum):
    """What a body may do between its pieces."""

    HOLD = "hold"
    CUT = "cut"


HOLD: Final = Step.HOLD
"""Wait for ``release()``, or for the client to hang up. Each one wants a release of its own, since the request came."""
CUT: Final = Step.CUT
"""Break the connection off, without the end of the body."""

Piece = bytes | Step


class ServiceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that came.

    Attributes:
        method: As it came.
        path: With its query.
        headers: Names in lower case.
        body: As it came, encoded or not.
        connection: Which connection of the service it came by, from 1 on.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    def decoded(self) -> Any:
        """Return the body decoded, from JSON or MessagePack, and unpacked first if it is gzipped."""
        body = gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body
        if "msgpack" in self.headers.get("content-type", ""):
            return msgspec.msgpack.decode(body)
        return msgspec.json.decode(body)


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer.

    Attributes:
        status: Its HTTP status.
        headers: Beside those that frame the body.
        content_type: Of the body.
        body: Pieces and steps, in order.
        held: Hold before the first byte.
        dropped: Break the connection off without a byte.
        rate: Pieces per second; 0 for no pace.
        apart: Give the client (of the same event loop) time to read each piece by itself.
        whole: Frame the body by its length instead of chunks; for bodies without steps.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "text/event-stream; charset=utf-8"
    body: Sequence[Piece] = ()
    held: bool = False
    dropped: bool = False
    rate: float = 0.0
    apart: bool = False
    whole: bool = False

    @classmethod
    def json(cls, value: Any, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Self:
        """Return an answer that is JSON."""
        body = (msgspec.json.encode(value),)
        return cls(status=status, headers=headers, content_type="application/json", body=body, whole=True)


def recut(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """Return the same body cut into pieces of ``size`` bytes; steps keep their place."""
    cut: list[Piece] = []
    run = bytearray()
    for piece in [*pieces, None]:
        if isinstance(piece, bytes):
            run += piece
            continue
        cut += [bytes(run[at : at + size]) for at in range(0, len(run), size)]
        run.clear()
        if piece is not None:
            cut.append(piece)
    return cut


class LoopbackService:
    """Listens on a free port of 127.0.0.1 and answers as it is told; use it with ``async with``.

    Args:
        respond: Answers what no script answers; without it that is a 404.

    Attributes:
        url: ``http://127.0.0.1:port``.
        requests: All requests so far.
        connections: Number of connections so far.
        open: Number of connections now.
        releases: Number of releases so far.
        running: Number of requests that are being answered now.
        hung_up: Number of requests whose client left before its answer had ended.
    """

    def __init__(self, respond: Callable[[ServiceRequest], HttpAnswer] | None = None) -> None:
        self._respond = respond
        self._script: deque[HttpAnswer] = deque()
        self._server: asyncio.Server | None = None
        self._wires: set[_Wire] = set()
        self._signal = Signal()
        self.releases = 0
        self.url = ""
        self.requests: list[ServiceRequest] = []
        self.connections = 0
        self.running = 0
        self.hung_up = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Wire(self), "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    @property
    def open(self) -> int:
        """Number of connections now."""
        return len(self._wires)

    def script(self, *answers: HttpAnswer) -> None:
        """Answer the next requests so, in order."""
        self._script.extend(answers)

    def release(self) -> None:
        """Let all answers that have begun go on over one hold."""
        self.releases += 1
        self._signal.notify()

    def stop_listening(self) -> None:
        """Refuse who connects from now on, and drop who is connected."""
        if self._server is not None:
            self._server.close()
        for wire in list(self._wires):
            wire.drop()

    async def shut(self) -> None:
        """Listen no more and drop all connections; who connects then is refused."""
        if self._server is None:
            return
        self._server.close()
        tasks = [task for wire in list(self._wires) if (task := wire.drop()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def wait_until(self, predicate: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return as soon as ``predicate()`` holds; it is asked whenever something happened here.

        Raises:
            AssertionError: It does not within ``seconds``.
        """
        await self._signal.expect(predicate, seconds, self._complaint)

    def _complaint(self) -> str:
        return (
            f"not so, with {self.connections} connections ({self.open} open), {len(self.requests)} requests "
            f"({self.running} running, {self.hung_up} hung up)"
        )

    # -- for its connections -----------------------------------------------------------------------------------------

    def opened(self, wire: "_Wire") -> int:
        """Take note of a connection; return its number."""
        self._wires.add(wire)
        self.connections += 1
        self._signal.notify()
        return self.connections

    def closed(self, wire: "_Wire") -> None:
        """Take note of a connection's end."""
        self._wires.discard(wire)
        self._signal.notify()

    def begin(self, request: ServiceRequest) -> HttpAnswer:
        """Take a request; return its answer."""
        self.requests.append(request)
        self.running += 1
        self._signal.notify()
        if self._script:
            return self._script.popleft()
        if self._respond is not None:
            return self._respond(request)
        return HttpAnswer.json({"error": {"message": "Nothing is scripted."}}, status=404)

    def end(self, *, hung_up: bool) -> None:
        """Take note of an answer's end."""
        self.running -= 1
        self.hung_up += hung_up
        self._signal.notify()

    async def held(self, wire: "_Wire", releases: int) -> None:
        """Return after so many releases, or when the client has gone."""
        await self._signal.wait_until(lambda: self.releases >= releases or wire.gone)


class _Wire(asyncio.StreamReaderProtocol):
    """One connection."""

    def __init__(self, service: LoopbackService) -> None:
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
