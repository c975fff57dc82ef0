"""Requests to Cerebras by the official SDK: a client per event loop, and connections that are used again or given up at once.

For asyncio only, because aiohttp is.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import cache
from typing import Final
from weakref import WeakKeyDictionary

from msgspec import Struct

from ws_responses.adapters._cerebras_errors import LOST, broken_off, not_opened, refused
from ws_responses.adapters._cerebras_request import Body
from ws_responses.backend_errors import nonsense
from ws_responses.errors import WireError, excerpt
from ws_responses.extras import Extra

with Extra("cerebras"):
    import httpx
    from cerebras.cloud.sdk import APIError, APIStatusError, AsyncCerebras, AsyncStream, DefaultAioHttpClient

CHAT: Final = "/v1/chat/completions"
COMPLETIONS: Final = "/v1/completions"
WARMING: Final = "/v1/tcp_warming"

END_S: Final = 1.0
"""Time for the end of a body after its last event. A connection can be used again only when its body was read to the end; the
end may come late, but is not worth more than a new connection."""

LATE_S: Final = 0.05
"""Of that, what a generation itself waits for, so that one right after it finds the connection free."""

CONNECT_S: Final = 1.0
"""Time for the request by which a warm-up opens a connection (the SDK's own)."""


class ClientOptions(Struct, frozen=True, kw_only=True):
    """How clients are made.

    Attributes:
        api_key: None for the environment's.
        base_url: None for the environment's, or the public service.
        timeout_s: Longest silence.
        connect_timeout_s: Time for a new connection.
        keepalive_s: Time that an idle connection is kept.
        max_connections: Most connections.
    """

    api_key: str | None
    base_url: str | None
    timeout_s: float
    connect_timeout_s: float
    keepalive_s: float
    max_connections: int

    def make(self) -> AsyncCerebras:
        """Return a client, for the event loop that runs."""
        timeout = httpx.Timeout(self.timeout_s, connect=self.connect_timeout_s)
        limits = httpx.Limits(max_connections=self.max_connections, keepalive_expiry=self.keepalive_s)
        return AsyncCerebras(
            api_key=self.api_key,
            base_url=self.base_url,
            timeout=timeout,
            max_retries=0,
            http_client=DefaultAioHttpClient(timeout=timeout, limits=limits, verify=shared_tls()),
            warm_tcp_connection=False,  # it would block the loop, and warm up nothing that is used
        )


@cache
def shared_tls() -> ssl.SSLContext:
    """Return what all clients verify the service by. It takes 20 ms to make: not in a turn."""
    return httpx.create_ssl_context()


class Service:
    """Cerebras.

    Args:
        make: Makes a client, at the first use in an event loop.
        given: The user's own client, used in all of them and not closed; None for none.
    """

    def __init__(self, make: Callable[[], AsyncCerebras], given: AsyncCerebras | None) -> None:
        self._make = make
        self._given = given
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncCerebras] = WeakKeyDictionary()
        self._ending: dict[asyncio.Task[None], Call] = {}

    async def call(self, path: str, body: Body) -> "Call":
        """Send a request whose answer is an event stream.

        Raises:
            WireError: The answer is none, or does not come.
        """
        client = self._client()
        try:
            stream = await client.post(
                path,
                cast_to=object,
                content=body,
                options={"headers": body.headers(), "max_retries": 0},
                stream=True,
                stream_cls=AsyncStream[object],
            )
        except APIStatusError as error:
            raise refused(error.response, tokens=path == COMPLETIONS) from None
        except LOST as error:
            raise not_opened(error, _silence_s(client)) from error
        content_type = stream.response.headers.get("content-type", "")
        if "text/event-stream" not in content_type:
            await stream.close()
            raise nonsense(f"It is {excerpt(content_type)!r}, where an event stream was expected.")
        return Call(stream, _silence_s(client))

    async def connect(self) -> None:
        """Open a connection for the turn that follows a warm-up, as the SDK does it for a client that it throws away."""
        with suppress(APIError, *LOST):
            await self._client().get(WARMING, cast_to=str, options={"timeout": CONNECT_S, "max_retries": 0})

    def give_back(self, call: "Call") -> asyncio.Task[None]:
        """Read the rest of an answer, of which nothing more is wanted, so that its connection can be used again."""
        task = asyncio.ensure_future(call.read_to_the_end())
        self._ending[task] = call
        task.add_done_callback(self._ending.pop)
        return task

    async def aclose(self) -> None:
        """Close the client of the running event loop; a later use makes another."""
        loop = asyncio.get_running_loop()
        ending = {task: call for task, call in self._ending.items() if task.get_loop() is loop}
        for task, call in ending.items():
            task.cancel()
            await call.close()  # the task may not have begun
        await asyncio.gather(*ending, return_exceptions=True)
        client = self._clients.pop(loop, None)
        if client is not None:
            await client.close()

    def _client(self) -> AsyncCerebras:
        if self._given is not None:
            return self._given
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = self._make()
        return client


class Call:
    """An answer that has begun.

    Args:
        stream: As the SDK gives it; only its bytes are read.
        silence_s: Longest silence; None for any.

    Attributes:
        response: Its head.
        chunks: The bytes of its body, as they come.
    """

    __slots__ = ("_silence_s", "_stream", "chunks", "response")

    def __init__(self, stream: AsyncStream[object], silence_s: float | None) -> None:
        self._stream = stream
        self._silence_s = silence_s
        self.response = response = stream.response
        # Some proxies compress whatever they are told.
        plain = response.headers.get("content-encoding", "identity") == "identity"
        self.chunks: AsyncIterator[bytes] = response.aiter_raw() if plain else response.aiter_bytes()

    def lost(self, error: Exception) -> WireError:
        """Return the wire error for an answer whose connection failed."""
        return broken_off(error, self._silence_s)

    async def read_to_the_end(self) -> None:
        """Read what is left, for a while, and close it."""
        with suppress(*LOST):
            async with self._stream, asyncio.timeout(END_S):
                async for _ in self.chunks:
                    pass

    async def close(self) -> None:
        """Close the connection at once, unless the body was read to its end: the service sees it, and stops."""
        with suppress(*LOST):
            await self._stream.close()


def _silence_s(client: AsyncCerebras) -> float | None:
    return client.timeout.read if isinstance(client.timeout, httpx.Timeout) else client.timeout
