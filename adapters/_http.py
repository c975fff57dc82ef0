"""How adapters speak to an inference service by HTTP: a pool of connections, event streams as bytes, limits.

For asyncio only, because aiohttp is.

A connection serves the next generation only when its body was read to the very end, which may come after the last event; and
it is closed at once when nobody wants the rest.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Final
from weakref import WeakKeyDictionary

from ws_responses.adapters._event_stream import EventStream, HttpLimits, RefusedError
from ws_responses.backend_errors import nonsense, timed_out, unreachable
from ws_responses.errors import ConfigurationError
from ws_responses.extras import Extra

with Extra("http"):
    import aiohttp
    from aiohttp.abc import AbstractStreamWriter

MAX_TRAILING_BYTES: Final = 64 * 1024
"""Read behind the last event before the connection is given up instead."""


class HttpService:
    """Requests to one service. Opens its connection pool at the first request, one per event loop.

    Args:
        base_url: With the path that all requests share, for example ``http://localhost:8000/v1``.
        headers: Sent with every request, credentials included; never logged.
        limits: See there.

    Raises:
        ConfigurationError: The URL is none of HTTP.
    """

    def __init__(self, base_url: str, *, headers: Mapping[str, str], limits: HttpLimits) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ConfigurationError("base_url must begin with http:// or https://")
        self._base_url = base_url.rstrip("/")
        self._headers = {**headers, "Accept-Encoding": "identity"}
        self.limits = limits
        self._sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, aiohttp.ClientSession] = WeakKeyDictionary()
        self._trailing: set[asyncio.Task[None]] = set()

    async def stream(self, path: str, body: Sequence[bytes]) -> EventStream:
        """Send a request whose answer is an event stream.

        Args:
            path: Below the base URL.
            body: JSON, in pieces: they are written one by one, not copied together.

        Raises:
            RefusedError: The service answered otherwise.
            WireError: It cannot be reached, is silent, or answered nonsense.
        """
        stream = await self._post(path, body)
        try:
            await stream.check()
        except BaseException:
            stream.close()
            raise
        return stream

    async def ask(self, path: str, body: Sequence[bytes]) -> bytes:
        """Send a request whose answer is JSON; return that.

        Raises:
            RefusedError: The service answered otherwise.
            WireError: It cannot be reached, is silent, or its answer is too large.
        """
        stream = await self._post(path, body)
        try:
            answer = await stream.whole()
        finally:
            stream.close()
        if stream.refused:
            raise RefusedError(stream.status, stream.headers, answer)
        if not answer:
            raise nonsense("It is empty, cut off or too large.")
        return answer

    async def aclose(self) -> None:
        """Close the connections of this event loop; the next request would open new ones."""
        loop = asyncio.get_running_loop()
        trailing = [task for task in self._trailing if task.get_loop() is loop]
        for task in trailing:
            task.cancel()
        await asyncio.gather(*trailing, return_exceptions=True)
        session = self._sessions.pop(loop, None)
        if session is not None:
            await session.close()

    async def _post(self, path: str, body: Sequence[bytes]) -> EventStream:
        loop = asyncio.get_running_loop()
        asked = loop.time()
        first = self.limits.first_event_s
        try:
            async with asyncio.timeout(first):
                response = await self._send(self._session(loop), path, body)
        except aiohttp.ServerTimeoutError as error:
            raise unreachable() from error
        except TimeoutError as error:
            raise timed_out("answer", first or 0.0) from error
        except (aiohttp.ClientConnectionError, OSError) as error:
            raise unreachable() from error
        except aiohttp.ClientError as error:
            raise nonsense("It is no HTTP.") from error
        return EventStream(response, self.limits, asked, self._read_to_the_end)

    async def _send(self, session: aiohttp.ClientSession, path: str, body: Sequence[bytes]) -> aiohttp.ClientResponse:
        url = f"{self._base_url}{path}"
        while True:
            way = _Way()
            try:
                return await session.post(
                    url, data=_Pieces(body), headers=self._headers, allow_redirects=False, trace_request_ctx=way
                )
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                # A server may close an idle connection just when it is to be used again (llama.cpp does after each stream).
                # Nothing of an answer came, and the next try has one connection less to choose from.
                if not way.reused:
                    raise

    def _read_to_the_end(self, response: aiohttp.ClientResponse) -> None:
        task = asyncio.ensure_future(_read_to_the_end(response, self.limits.trailing_s))
        self._trailing.add(task)

        def over(task: asyncio.Task[None]) -> None:
            self._trailing.discard(task)
            response.close()  # not in the task: one that is cancelled early never begins

        task.add_done_callback(over)

    def _session(self, loop: asyncio.AbstractEventLoop) -> aiohttp.ClientSession:
        session = self._sessions.get(loop)
        if session is None:
            limits = self.limits
            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_note_reuse)
            session = self._sessions[loop] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=limits.max_connections, keepalive_timeout=limits.keepalive_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(connect=limits.connect_s),
                trace_configs=[trace],
            )
        return session


class _Way:
    """How a request went out.

    Attributes:
        reused: By a connection that had served another one.
    """

    __slots__ = ("reused",)

    def __init__(self) -> None:
        self.reused = False


async def _note_reuse(
    _session: aiohttp.ClientSession, context: SimpleNamespace, _params: aiohttp.TraceConnectionReuseconnParams
) -> None:
    context.trace_request_ctx.reused = True


async def _read_to_the_end(response: aiohttp.ClientResponse, seconds: float) -> None:
    left = MAX_TRAILING_BYTES
    with suppress(aiohttp.ClientError, OSError):  # its connection is lost: all that it costs is a new one
        async with asyncio.timeout(seconds):
            while left > 0 and (data := await response.content.readany()):
                left -= len(data)


class _Pieces(aiohttp.Payload):
    """A body of JSON in pieces, written one by one: aiohttp warns of bytes above 1 MiB, and they were to be copied together."""

    _autoclose = True

    def __init__(self, pieces: Sequence[bytes]) -> None:
        super().__init__(pieces, content_type="application/json")
        self._pieces = pieces
        self._size = sum(map(len, pieces))

    def decode(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        return b"".join(self._pieces).decode(encoding, errors)

    async def write(self, writer: AbstractStreamWriter) -> None:
        for piece in self._pieces:
            await writer.write(piece)
