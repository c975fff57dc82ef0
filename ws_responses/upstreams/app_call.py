"""One call of the wrapped app: the two functions that it is given, and what its answer means.

An abort goes as :mod:`asgi` frameworks need it: ``http.disconnect`` first, so that they close their generators; then, after a
grace, cancellation, for those that never listen.
"""

from collections.abc import Awaitable, Iterable
from typing import Any, Final, cast

import anyio
from anyio.lowlevel import checkpoint

from ws_responses._types import Message
from ws_responses.errors import StreamTruncated, UpstreamError, WireError
from ws_responses.limits import Limits
from ws_responses.protocol.events import encode
from ws_responses.spawn import next_round
from ws_responses.upstreams.answer_head import AnswerHead
from ws_responses.upstreams.answers import error_from_answer
from ws_responses.upstreams.base import Emit
from ws_responses.upstreams.sse import SSEDecoder, single_event
from ws_responses.upstreams.whole import as_events, whole_response

_BODY: Final = "http.response.body"
_LF: Final = 0x0A
_CR: Final = 0x0D
_DISCONNECT: Final = {"type": "http.disconnect"}
_SSE_STARTS: Final = (b"data:", b"event:", b"id:", b"retry:", b":")
_BEFORE_STREAM: Final = b"\xef\xbb\xbf\r\n "
"""What may come before the first line: a byte order mark, empty lines."""

_YIELD_EVERY: Final = 64
"""Messages after which an app that never waits lets others run, as many as the writer's frames."""


class ClientGoneError(OSError):
    """Raised from ``send`` into an app that goes on and on, although its client has gone.

    Usually ``send`` does nothing then (ASGI, version 2.3). An exception in it, be it a cancellation, leaves the app's generator
    to the garbage collector, which closes it in a task of its own, with a warning on trio. An app that is ended where it waits
    next, in the generator, closes it itself; only one that never waits cannot be ended so.
    """


class AppCall:
    """One turn's call of the wrapped app.

    Attributes:
        complete: The app has sent its last body message; what it does now is its own background work.
        gone: The call was aborted.
    """

    __slots__ = (
        "_body",
        "_buffer",
        "_decoder",
        "_dropped",
        "_emit",
        "_event",
        "_head",
        "_hot",
        "_limits",
        "_max_event_bytes",
        "_over",
        "_prefix",
        "_released",
        "_streaming",
        "_taken",
        "complete",
        "gone",
        "started",
    )

    def __init__(self, body: bytes, emit: Emit, limits: Limits) -> None:
        self._body: bytes | None = body
        self._emit = emit
        self._event = emit.event
        self._limits = limits
        self._max_event_bytes = limits.max_event_bytes
        self._over: anyio.Event | None = None
        self._released = False
        self._head: AnswerHead
        self._buffer = bytearray()
        self._decoder: SSEDecoder | None = None
        self._hot = False
        self._streaming = False
        self._prefix = b"data: "
        self._taken = 0
        self._dropped = 0
        self.started = False
        self.complete = False
        self.gone = False

    # -- the app's side ----------------------------------------------------------------------------------------------

    async def receive(self) -> Message:
        """Give the body once, then wait for the end; safe to cancel and to call twice at the same time."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._released:
            if self._over is None:
                self._over = anyio.Event()
            await self._over.wait()
        return dict(_DISCONNECT)

    def send(self, message: Message) -> Awaitable[None]:
        """Take one message of the app. Not a coroutine: the usual message costs no more than the server's own ``send``."""
        if self._hot and message["type"] == _BODY and message.get("more_body"):
            body = message.get("body")
            prefix = self._prefix
            if type(body) is bytes and len(body) <= self._max_event_bytes:
                # Most events begin with the same lines as the one before: what follows those is the data.
                if body[: len(prefix)] == prefix and body[-2:] == b"\n\n":
                    payload = body[len(prefix) : -2]
                    if payload and _LF not in payload and _CR not in payload:
                        return self._event(payload)
                single = single_event(body)
                if single:
                    self._learn(body, single)
                    return self._event(single)
        return self._take(message)

    def _learn(self, body: bytes, payload: bytes) -> None:
        if _CR not in body:
            self._prefix = body[: -2 - len(payload)]

    def abort(self) -> None:
        """Tell the app that its client has gone."""
        self.gone = True
        self._hot = False
        self.release()

    def release(self) -> None:
        """Let ``receive`` tell that it is over; not while the last chunk is on its way, or an app that listens stops."""
        self._released = True
        if self._over is not None:
            self._over.set()

    # -- single messages ---------------------------------------------------------------------------------------------

    async def _take(self, message: Message) -> None:
        self._taken += 1
        if self.gone:
            await self._drop()
            return
        if not self._taken % _YIELD_EVERY:
            await checkpoint()  # an app that never waits must not starve the others, nor those who would stop it
        kind = message["type"]
        if kind == "http.response.start":
            self._start(message)
        elif kind == _BODY:
            if not self.started:
                raise RuntimeError("http.response.body was sent before http.response.start")
            more = bool(message.get("more_body", False))
            try:
                await self._take_body(_as_bytes(message.get("body", b"")), more=more)
            except WireError as error:
                # The app has done nothing that it could answer for here; only the client is told.
                await self._emit.fail(error)
                if more:
                    self.abort()  # nobody listens to the rest, and nobody else ends this call
                    self._dropped = _YIELD_EVERY
            finally:
                if not more:
                    self.release()

    async def _drop(self) -> None:
        """Take what nobody listens to; raise if the app lets nobody else run meanwhile, who could end it."""
        if not self._dropped:
            next_round(self._let_drop)
        self._dropped += 1
        if self._dropped > _YIELD_EVERY:
            if not self._dropped % _YIELD_EVERY:
                await checkpoint()  # one that takes no notice of errors can be ended only here
            raise ClientGoneError("the client of this turn has gone")

    def _let_drop(self) -> None:
        self._dropped = 0

    def _start(self, message: Message) -> None:
        if self.started:
            raise RuntimeError("http.response.start was sent twice")
        self._head = AnswerHead(message)
        self.started = True
        if self._head.is_stream:
            self._streaming = self._hot = True

    async def _take_body(self, body: bytes, *, more: bool) -> None:
        self._hot = False
        if not more:
            self.complete = self._emit.in_background = True
        if self._emit.ended:
            return
        self._emit.alive()
        if self._streaming and self._decoder is None and body.startswith(b"{"):
            self._streaming = False  # JSON under a wrong label
        if not self._streaming:
            body = self._gather(body)
        if self._streaming:
            await self._feed(body, more=more)
        elif not more:
            await self._answer(body)

    async def _feed(self, body: bytes, *, more: bool) -> None:
        decoder = self._decoder
        if decoder is None:
            decoder = self._decoder = SSEDecoder(max_event_bytes=self._limits.max_event_bytes)
        await self._give(decoder.feed(body))
        if not more:
            await self._give(decoder.end())
            if not self._emit.ended:
                raise StreamTruncated
        # Whole events may go past the decoder while it holds no part of one.
        self._hot = more and not decoder.pending and not self.gone

    async def _give(self, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            if payload:  # an event whose data is empty is a heartbeat
                await self._event(payload)

    def _gather(self, body: bytes) -> bytes:
        """Return all of the answer so far; it may turn out to be an event stream under a wrong label."""
        head = self._head
        if head.succeeded and head.encoding is not None:
            raise UpstreamError("The app compressed its answer, although 'identity' was asked for.")
        self._buffer += body
        if head.succeeded and bytes(self._buffer[:16]).lstrip(_BEFORE_STREAM).startswith(_SSE_STARTS):
            self._streaming = True
        elif len(self._buffer) > self._limits.max_answer_bytes:
            self._buffer.clear()
            if not head.succeeded:
                raise error_from_answer(head.status, head.headers, b"")
            raise UpstreamError(f"The app's answer exceeds {self._limits.max_answer_bytes} bytes.")
        return bytes(self._buffer) if self._streaming or self.complete else b""

    async def _answer(self, answer: bytes) -> None:
        """Take an answer that is no event stream."""
        self._buffer.clear()
        head = self._head
        if not head.succeeded or not answer:
            raise error_from_answer(head.status, head.headers, answer if head.encoding is None else b"")
        for event in as_events(whole_response(answer)):
            await self._event(encode(event))


def _as_bytes(body: Any) -> bytes:
    if isinstance(body, bytes):
        return body
    if not isinstance(body, bytearray | memoryview):
        raise TypeError(f"the body of a message must be bytes, not {type(body).__name__}")
    return bytes(cast("bytearray", body))
