"""Clients that cost little: a WebSocket by picows, and one kept-alive HTTP connection on a bare asyncio protocol.

Both count what they get, so that a benchmark of a server that answers wrongly fails instead of looking fast.
"""

import asyncio
import fcntl
import socket
import sys
import termios
from time import perf_counter
from typing import Self

import picows

from ws_responses.bench.results import Unexpected
from ws_responses.protocol.events import encode

_DEADLINE_S = 60.0
_QUIET_S = 0.03
_RECEIVE_BYTES = 1 << 22
_FAILURES = (b'"type":"error"', b'"response.failed"')


def create_frame(model: str) -> bytes:
    """Return a small ``response.create``."""
    return encode({"type": "response.create", "model": model, "store": False, "input": "Write a novel."})


def http_body(model: str) -> bytes:
    """Return the same request for HTTP."""
    return encode({"model": model, "stream": True, "store": False, "input": "Write a novel."})


class _Listener(picows.WSListener):
    """Counts frames up to the terminal event of the turn."""

    def __init__(self) -> None:
        super().__init__()
        self.frames = 0
        self.first_at = 0.0
        self.last = b""
        self.over: asyncio.Future[None] | None = None

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type != picows.WSMsgType.TEXT or self.over is None:
            if frame.msg_type == picows.WSMsgType.CLOSE:
                transport.disconnect()
            return
        self.frames += 1
        if self.frames == 1:
            self.first_at = perf_counter()
        payload = frame.get_payload_as_bytes()
        head = payload[:96]
        if b"delta" in head:
            return
        if b'"response.completed"' in head:
            self.last = payload
            self._end(None)
        elif any(mark in head for mark in _FAILURES):
            self._end(Unexpected(payload[:400].decode(errors="replace")))

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:  # noqa: ARG002 - picows' signature
        self._end(Unexpected("the server closed the socket"))

    def _end(self, error: Exception | None) -> None:
        over, self.over = self.over, None
        if over is None or over.done():
            return
        if error is None:
            over.set_result(None)
        else:
            over.set_exception(error)


def _unread_bytes(connection: socket.socket) -> int:
    """Return how much the kernel holds for a connection (``FIONREAD``: Linux, macOS)."""
    answer = fcntl.ioctl(connection.fileno(), termios.FIONREAD, bytes(4))
    return int.from_bytes(answer, sys.byteorder)


class Socket:
    """One WebSocket connection, one turn at a time.

    Attributes:
        first_s: Seconds from the last turn's frame to its first event.
    """

    def __init__(self, transport: picows.WSTransport, listener: _Listener) -> None:
        self._transport = transport
        self._listener = listener
        self.first_s = 0.0

    @classmethod
    async def connect(cls, url: str, key: str = "sk-bench") -> Self:
        """Open a connection.

        Args:
            url: Where to.
            key: Bearer token.
        """
        try:
            return await cls._connect(url, key)
        except picows.WSError as error:
            raise Unexpected(f"no connection: {error}") from error

    @classmethod
    async def _connect(cls, url: str, key: str) -> Self:
        transport, listener = await picows.ws_connect(  # pyright: ignore[reportUnknownMemberType] - untyped **kwargs
            _Listener,
            url,
            extra_headers={"authorization": f"Bearer {key}"},
            max_frame_size=1 << 26,
            websocket_handshake_timeout=_DEADLINE_S,
        )
        assert isinstance(listener, _Listener)
        return cls(transport, listener)

    async def turn(self, payload: bytes, frames: int | None = None, *, late: bool = False) -> bytes:
        """Send one frame, wait for the terminal event and return it.

        Args:
            payload: The create.
            frames: How many frames the answer must have; None for any number.
            late: Read nothing until the server has written all, so that none of its writes wakes this process up.

        Raises:
            Unexpected: The answer is another one.
        """
        listener = self._listener
        listener.frames = 0
        listener.over = over = asyncio.get_running_loop().create_future()
        begin = perf_counter()
        self._transport.send(picows.WSMsgType.TEXT, payload)
        if late:
            await self._let_it_write()
        await asyncio.wait_for(over, _DEADLINE_S)
        self.first_s = listener.first_at - begin
        if frames not in (None, listener.frames):
            raise Unexpected(f"{listener.frames} frames came, not {frames}")
        return listener.last

    async def _let_it_write(self) -> None:
        """Leave what comes in the kernel, until no more comes; a buffer that is full has the server wait, as for any client."""
        transport = self._transport.underlying_transport
        connection: socket.socket = transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        transport.pause_reading()
        waiting, before = 0, -1
        while not waiting or waiting != before:
            await asyncio.sleep(_QUIET_S)
            before, waiting = waiting, _unread_bytes(connection)
        transport.resume_reading()

    async def close(self) -> None:
        """Close the connection."""
        self._transport.send_close(picows.WSCloseCode.OK)
        await self._transport.wait_disconnected()


class _HttpProtocol(asyncio.Protocol):
    """Gathers one answer in chunked coding at a time."""

    def __init__(self) -> None:
        self.answer = bytearray()
        self.first_at = 0.0
        self.over: asyncio.Future[None] | None = None

    def data_received(self, data: bytes) -> None:
        if not self.first_at and b"\ndata: " in data:
            self.first_at = perf_counter()
        self.answer += data
        # An event ends with a line end of its own, so only the empty last chunk looks like this.
        if self.answer.endswith(b"\r\n0\r\n\r\n") and self.over is not None and not self.over.done():
            self.over.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.over is not None and not self.over.done():
            self.over.set_exception(exc or Unexpected("the server closed the connection"))


class HttpConnection:
    """One kept-alive HTTP/1.1 connection, one POST with a streamed answer at a time.

    Attributes:
        first_s: Seconds from the last request to its first event.
    """

    def __init__(self, transport: asyncio.Transport, protocol: _HttpProtocol) -> None:
        self._transport = transport
        self._protocol = protocol
        self.first_s = 0.0

    @classmethod
    async def connect(cls, address: tuple[str, int]) -> Self:
        """Open a connection."""
        transport, protocol = await asyncio.get_running_loop().create_connection(_HttpProtocol, *address)
        return cls(transport, protocol)

    async def turn(self, payload: bytes, events: int | None = None) -> bytes:
        """POST a body, wait for the end of the answer and return it.

        Args:
            payload: The body.
            events: How many events the answer must have; None for any number.

        Raises:
            Unexpected: The answer is another one.
        """
        protocol = self._protocol
        protocol.answer = bytearray()
        protocol.first_at = 0.0
        protocol.over = asyncio.get_running_loop().create_future()
        begin = perf_counter()
        self._transport.write(_REQUEST % len(payload) + payload)
        await asyncio.wait_for(protocol.over, _DEADLINE_S)
        self.first_s = protocol.first_at - begin
        answer = bytes(protocol.answer)
        if not answer.startswith(b"HTTP/1.1 200 ") or events not in (None, answer.count(b"\ndata: ")):
            raise Unexpected(answer[:400].decode(errors="replace"))
        return answer

    def close(self) -> None:
        """Close the connection."""
        self._transport.close()


_REQUEST = (
    b"POST /v1/responses HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer sk-bench\r\naccept: text/event-stream\r\n"
    b"content-type: application/json\r\ncontent-length: %d\r\n\r\n"
)
