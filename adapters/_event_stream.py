"""One answer of an inference service: its events as bytes, and its end."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, cast

from msgspec import Struct

from ws_responses.backend_errors import nonsense, service_error, stream_error, timed_out
from ws_responses.errors import StreamTruncated, WireError
from ws_responses.extras import Extra
from ws_responses.upstreams.answers import decode_answer
from ws_responses.upstreams.sse import SSEDecoder, usual_events

with Extra("http"):
    import aiohttp

MIB: Final = 1024 * 1024


class HttpLimits(Struct, frozen=True, kw_only=True):
    """Bounds of one backend.

    Attributes:
        connect_s: Time for a connection, the wait for a free one included.
        first_event_s: Time from the request to the first sign of life of its body; None for no limit. Reading a long prompt
            takes its time.
        event_s: Time between two signs of life, comments included; None for no limit.
        trailing_s: Time for what follows the end of sampling: the usage, and then the end of the body.
        keepalive_s: Time that an idle connection is kept: tools take a while between two turns.
        max_connections: Connections, and so generations, at the same time.
        max_event_bytes: Largest event. With its first one vLLM repeats the ids of the prompt: 7 bytes a token.
        max_answer_bytes: Largest answer that is no event stream, errors included; of a larger error only the status is told.
    """

    connect_s: float = 10.0
    first_event_s: float | None = 300.0
    event_s: float | None = 300.0
    trailing_s: float = 2.0
    keepalive_s: float = 75.0
    max_connections: int = 1000
    max_event_bytes: int = 32 * MIB
    max_answer_bytes: int = 4 * MIB


class RefusedError(Exception):
    """The service answered with another status than 200.

    Attributes:
        status: Of the answer.
        headers: Of the answer.
        body: Of the answer, as far as it is within bounds.
    """

    def __init__(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
        super().__init__(f"status {status}")
        self.status = status
        self.headers = headers
        self.body = body

    def wire_error(self) -> WireError:
        """Return what the client is told."""
        return service_error(self.status, self.headers, self.body)


class EventStream:
    """The body of one answer.

    One timer looks now and then at how long somebody has waited; nothing is set per event.

    Args:
        response: Its head has come.
        limits: See there.
        asked: When the request was sent, in the time of the event loop.
        trail: Reads a body to its end in the background.

    Attributes:
        status: Of the answer.
        headers: Of the answer.
    """

    __slots__ = (
        "_begun",
        "_content",
        "_decoder",
        "_given_back",
        "_late",
        "_limit",
        "_limits",
        "_loop",
        "_response",
        "_timer",
        "_trail",
        "_waiting",
        "headers",
        "status",
    )

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        limits: HttpLimits,
        asked: float,
        trail: Callable[[aiohttp.ClientResponse], None],
    ) -> None:
        self.status = response.status
        self.headers = response.raw_headers
        self._response = response
        self._content = response.content
        self._limits = limits
        self._trail = trail
        self._decoder = SSEDecoder(max_event_bytes=limits.max_event_bytes)
        self._loop = asyncio.get_running_loop()
        self._waiting = asked
        self._limit = limits.first_event_s
        self._begun = False
        self._late = False
        self._given_back = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def refused(self) -> bool:
        """Whether the answer is none of a request that succeeded."""
        return self.status != 200

    async def check(self) -> None:
        """Look at the head of the answer.

        Raises:
            RefusedError: It is no success.
            WireError: It is no event stream.
        """
        if self.refused:
            raise RefusedError(self.status, self.headers, await self.whole())
        if self._response.content_type == "application/json":
            raise _error_in(await self.whole())

    async def read(self) -> list[bytes]:
        """Return the data of the next events, at least one; nothing at the end of the body.

        Raises:
            WireError: The body was cut off, an event is too large, or nothing came in time.
        """
        while data := await self._read():
            events = usual_events(data) if not self._decoder.pending else None
            if events is None or len(data) > self._limits.max_event_bytes:
                events = self._decoder.feed(data)
            if events:
                return events
        return self._decoder.end()

    async def whole(self) -> bytes:
        """Return the rest of a body that is no event stream; nothing if it is too large, or was cut off.

        Raises:
            WireError: Nothing came in time.
        """
        body = bytearray()
        with suppress(StreamTruncated):
            while data := await self._read():
                body += data
                if len(body) > self._limits.max_answer_bytes:
                    return b""
            return bytes(body)
        return b""

    def hurry(self) -> None:
        """Wait for what follows no longer than for the end of a body."""
        self._limit = self._limits.trailing_s
        self._begun = True
        self._stop_timer()

    def give_back(self) -> None:
        """Let the connection be used again, when the end of the body has come; nothing more is read here."""
        self._given_back = True
        self._stop_timer()
        if not self._content.at_eof():
            self._trail(self._response)

    def close(self) -> None:
        """Close the connection at once, unless the body was read to its end or was given back."""
        self._stop_timer()
        if not self._given_back:
            self._response.close()

    async def _read(self) -> bytes:
        if self._begun:
            self._waiting = self._loop.time()
        if self._timer is None and self._limit is not None:
            self._timer = self._loop.call_at(self._waiting + self._limit, self._look)
        try:
            data = await self._content.readany()
        except (aiohttp.ClientError, OSError) as error:
            if self._late:
                raise timed_out("event", self._limit or 0.0) from error
            raise StreamTruncated from error
        self._waiting = 0.0
        if not self._begun:
            self._begun = True
            self._stop_timer()
            self._limit = self._limits.event_s
        return data

    def _look(self) -> None:
        """Give up the answer if somebody has waited too long; a consumer that takes its time is none of the service's."""
        self._timer = None
        limit = cast("float", self._limit)
        now = self._loop.time()
        due = (self._waiting or now) + limit
        if now < due:
            self._timer = self._loop.call_at(due, self._look)
        else:
            self._late = True
            self._response.close()  # wakes the reader

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def _error_in(answer: bytes) -> WireError:
    content = decode_answer(answer)
    if isinstance(content, dict) and ("error" in content or "message" in content):
        return stream_error(cast("dict[str, Any]", content))
    return nonsense("It is JSON, where a stream of events was expected.")
