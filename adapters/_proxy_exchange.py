"""Both bodies of one forwarded request: what comes from the client, and what goes to it."""

from collections.abc import AsyncGenerator
from typing import Final

import anyio
import msgspec

from ws_responses._types import Message, Receive, Send
from ws_responses.errors import InvalidRequest, WireError

_SLICE_BYTES: Final = 1 << 16
"""A large body is written in slices: each may wait, so that the event loop is free in between."""
_BODY: Final = "http.response.body"


class ClientGone(Exception):
    """The client of a request has left; nobody is to be told."""


class Upload:
    """The body of a request, read from the client as the upstream takes it.

    Args:
        receive: The client's messages.
        declared: Its ``Content-Length``, None if there is none.
        max_bytes: Its bound.

    Attributes:
        failure: Why it was cut off, if it is to be told.
        gone: The client has left.
        headers: Those that go with it.
    """

    __slots__ = ("_declared", "_first", "_max_bytes", "_read", "_receive", "_whole", "failure", "gone", "headers")

    def __init__(self, receive: Receive, declared: int | None, max_bytes: int) -> None:
        self._receive = receive
        self._declared = declared
        self._max_bytes = max_bytes
        self._first = b""
        self._whole = False
        self._read = anyio.Event()
        self.failure: WireError | None = None
        self.gone = False
        self.headers: list[tuple[str, str]] = []

    async def begin(self) -> None:
        """Wait for its first part: most bodies have no other.

        Raises:
            ClientGone: The client has left.
            InvalidRequest: It is too large.
        """
        if self._declared is not None and self._declared > self._max_bytes:
            raise self._too_large()
        self._first, more = await self._next()
        if len(self._first) > self._max_bytes:
            raise self._too_large()
        if not more:
            self._whole = True
            self._read.set()
        elif self._declared is not None:
            self.headers.append(("content-length", str(self._declared)))

    def payload(self) -> bytes | AsyncGenerator[bytes] | None:
        """Return it as aiohttp takes it, None if there is none."""
        if self._whole and len(self._first) <= _SLICE_BYTES:
            return self._first or None
        if self._whole:
            self.headers.append(("content-length", str(len(self._first))))
        return self._parts()

    async def watch(self, scope: anyio.CancelScope) -> None:
        """Once it is read, cancel ``scope`` when the client leaves."""
        await self._read.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.gone = True
        scope.cancel()

    async def _parts(self) -> AsyncGenerator[bytes]:
        part, self._first = self._first, b""
        more, size = not self._whole, 0
        while True:
            size += len(part)
            if size > self._max_bytes:
                self.failure = self._too_large()
                raise self.failure
            for begin in range(0, len(part), _SLICE_BYTES):
                yield part[begin : begin + _SLICE_BYTES]
            if not more:
                break
            part, more = await self._next()
        self._read.set()

    async def _next(self) -> tuple[bytes, bool]:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            self.gone = True
            raise ClientGone
        return bytes(message.get("body") or b""), bool(message.get("more_body", False))

    def _too_large(self) -> WireError:
        return InvalidRequest(
            f"The body of the request has more than {self._max_bytes} bytes.", status=413, code="request_too_large"
        )


class Answer:
    """What is sent to the client.

    Args:
        send: Takes the messages.

    Attributes:
        started: Status and headers are sent.
    """

    __slots__ = ("_send", "started")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False

    async def start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        """Send status and headers."""
        self.started = True
        await self._put({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, body: bytes) -> None:
        """Send a part of the body."""
        await self._put({"type": _BODY, "body": body, "more_body": True})

    async def end(self) -> None:
        """Send the end of the body."""
        await self._put({"type": _BODY, "body": b"", "more_body": False})

    async def fail(self, error: WireError) -> None:
        """Answer by an error."""
        told = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
        body = msgspec.json.encode({"error": told})
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in error.headers.items()]
        headers += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await self.start(error.status, headers)
        await self._put({"type": _BODY, "body": body, "more_body": False})

    async def _put(self, message: Message) -> None:
        try:
            await self._send(message)
        except OSError as error:  # servers raise it when the client has left (ASGI, "send after disconnect")
            raise ClientGone from error
