"""A WebSocket client that does what a test says, and nothing by itself but read while it writes and answer pings.

It is `websockets` without I/O over a socket: a test says when bytes are written and read, which bytes, and how the
connection ends.
"""

import json
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

from websockets.client import ClientProtocol
from websockets.extensions.permessage_deflate import ClientPerMessageDeflateFactory, PerMessageDeflate
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

PATIENCE_S: Final = 15.0
"""What anything that must happen gets on a busy machine."""

NO_CLOSE: Final = 1006
"""RFC 6455, 7.1.5: there was no close frame."""

_TERMINAL: Final = frozenset({"response.completed", "response.failed", "response.incomplete", "error"})


class Ended(Exception):
    """The connection is over.

    Attributes:
        code: Close code received; 1006 if there was no close frame, 1005 if it had none.
        reason: Close reason received.
    """

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code
        self.reason = reason


class Client:
    """One connection, from its handshake on; a context manager that hangs up at its end.

    Args:
        port: The server's.
        path: Of the socket.
        key: Bearer token.
        headers: Further request headers.
        deflate: Offer permessage-deflate.
        pongs: Answer pings.
        early: A text sent in one segment with the end of the handshake, before the server's answer is known.

    Attributes:
        response: The answer to the upgrade.
        pings: Number of pings received.
        protocol: The WebSocket, without I/O.
    """

    def __init__(
        self,
        port: int,
        path: str = "/v1/responses",
        *,
        key: str | None = None,
        headers: Iterable[tuple[str, str]] = (),
        deflate: bool = False,
        pongs: bool = True,
        early: str | None = None,
    ) -> None:
        self.pings = 0
        self._of_engine = path.startswith("/engine")
        self._pongs = pongs
        self._unsent = bytearray()
        self._texts: deque[str] = deque()
        self._partial = b""
        self._response: Response | None = None
        self._over = False
        extensions = [ClientPerMessageDeflateFactory()] if deflate else None
        self.protocol = ClientProtocol(parse_uri(f"ws://127.0.0.1:{port}{path}"), extensions=extensions, max_size=None)
        request = self.protocol.connect()
        for name, value in (*headers, *([("Authorization", f"Bearer {key}")] if key else [])):
            request.headers[name] = value
        self.protocol.send_request(request)
        self.sock = socket.create_connection(("127.0.0.1", port))
        self.sock.setblocking(False)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.response = self._shake_hands(early)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.sock.close()

    def _shake_hands(self, early: str | None) -> Response:
        head = b"".join(self.protocol.data_to_send())
        if early is not None:
            self.send_raw(head[:-20])
            head = head[-20:] + masked(Opcode.TEXT, early.encode())
        self.send_raw(head)
        self._run(lambda: self._response is not None)
        assert self._response is not None, "the server ended the connection without an answer"
        return self._response

    # -- writing -------------------------------------------------------------------------------------------------------

    def create(self, **members: Any) -> None:
        """Send a `response.create`; what `metadata` tells a wrapped app, `user` tells the engine's backend."""
        if self._of_engine and "metadata" in members:
            members["user"] = json.dumps(members.pop("metadata"))
        self.send(create(**members))

    def send(self, text: str) -> None:
        """Send a text frame."""
        self.protocol.send_text(text.encode())
        self._flush()

    def send_binary(self, data: bytes) -> None:
        """Send a binary frame."""
        self.protocol.send_binary(data)
        self._flush()

    def send_raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._unsent += data
        self._run(lambda: not self._unsent or self.closed)

    def _flush(self) -> None:
        self.send_raw(b"".join(self.protocol.data_to_send()))

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the server has closed the connection."""
        return self._over or self.protocol.close_rcvd is not None

    def receive(self, within: float = PATIENCE_S) -> dict[str, Any]:
        """Return the next event.

        Raises:
            Ended: There is none, and there will be none.
        """
        self._run(lambda: bool(self._texts) or self.closed, within)
        if not self._texts:
            raise self._end()
        event: dict[str, Any] = json.loads(self._texts.popleft())
        return event

    def collect(self) -> list[dict[str, Any]]:
        """Return the events up to the closing one of a turn."""
        events = [self.receive()]
        while events[-1]["type"] not in _TERMINAL:
            events.append(self.receive())
        return events

    def turn(self, **members: Any) -> list[dict[str, Any]]:
        """Send a `response.create` and return its events."""
        self.create(**members)
        return self.collect()

    def error(self) -> dict[str, Any]:
        """Return the next error; events before it are dropped."""
        while (event := self.receive())["type"] != "error":
            pass
        return event

    def until_text(self) -> None:
        """Read until the turn has said something."""
        while self.receive()["type"] != "response.output_text.delta":
            pass

    def until_pings(self, count: int, within: float = PATIENCE_S) -> None:
        """Read until so many pings have come; events on the way can still be received."""
        self._run(lambda: self.pings >= count, within)
        assert self.pings >= count, f"the connection ended after {self.pings} pings: {self._end()}"

    def until_closed(self, within: float = PATIENCE_S) -> Ended:
        """Read until the server closes; events on the way can still be received."""
        self._run(lambda: self.closed, within)
        return self._end()

    # -- ending --------------------------------------------------------------------------------------------------------

    def close(self, code: int = 1000, reason: str = "") -> Ended:
        """Close as clients do: wait for the server's side of it, and for it to end the TCP connection."""
        self.protocol.send_close(code, reason)
        self._flush()
        self._run(lambda: False)
        self.sock.close()
        return self._end()

    def abort(self) -> None:
        """Reset the TCP connection, as a crash does."""
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()

    def hang_up(self) -> None:
        """End the TCP connection without a close frame."""
        self.sock.close()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _run(self, done: Callable[[], bool], within: float = PATIENCE_S) -> None:
        """Read and write until something is so, or the connection is over."""
        until = time.monotonic() + within
        poll = select.poll()
        while not (done() or self._over):
            poll.register(self.sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            ready = poll.poll(max(0.0, until - time.monotonic()) * 1000)
            if not ready:
                raise TimeoutError(f"not within {within} s")
            if ready[0][1] & select.POLLOUT:
                self._write()
            if ready[0][1] & ~select.POLLOUT:
                self._read()

    def _write(self) -> None:
        try:
            del self._unsent[: self.sock.send(self._unsent)]
        except ConnectionError:
            self._unsent.clear()  # what the server has sent before can still be read

    def _read(self) -> None:
        try:
            data = self.sock.recv(1 << 18)
        except ConnectionError:
            data = b""
        if data:
            self.protocol.receive_data(data)
        else:
            self._over = True
            self.protocol.receive_eof()
        for event in self.protocol.events_received():
            self._take(event)
        if self._pongs:
            self._unsent += b"".join(self.protocol.data_to_send())

    def _take(self, event: Any) -> None:
        if isinstance(event, Response):
            self._response = event
        elif event.opcode is Opcode.PING:
            self.pings += 1
        elif event.opcode in {Opcode.TEXT, Opcode.CONT}:
            self._partial += bytes(event.data)
            if event.fin:
                self._texts.append(self._partial.decode())
                self._partial = b""

    def _end(self) -> Ended:
        received = self.protocol.close_rcvd
        return Ended(NO_CLOSE, "") if received is None else Ended(int(received.code), received.reason)


def create(**members: Any) -> str:
    """Return a `response.create` frame."""
    return json.dumps({"type": "response.create", "model": "m", "input": "hi", **members})


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    """Return a client's frame."""
    return Frame(opcode, data, fin).serialize(mask=True)


def compressed(data: bytes) -> bytes:
    """Return a client's text frame, compressed in a window that every server here agrees to."""
    return Frame(Opcode.TEXT, data).serialize(mask=True, extensions=[PerMessageDeflate(False, False, 12, 12)])


def unmasked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    """Return a frame as no client may send it."""
    return Frame(opcode, data, fin).serialize(mask=False)


def response_of(events: Sequence[Mapping[str, Any]]) -> Any:
    """Return the response object of the closing event."""
    return events[-1]["response"]
