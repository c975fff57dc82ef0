"""The connections of a proxy to its upstream: one pool for each event loop, opened when it is first needed."""

import asyncio
from ssl import SSLContext
from typing import Any

from ws_responses.extras import Extra

with Extra("http"):
    import aiohttp


class Connections:
    """Pools of connections.

    Args:
        timeout: For all requests.
        keepalive_s: How long an idle connection is kept, 0 for not at all.
        ssl: As aiohttp takes it.
    """

    __slots__ = ("_keepalive_s", "_sessions", "_ssl", "_timeout")

    def __init__(self, timeout: aiohttp.ClientTimeout, *, keepalive_s: float, ssl: SSLContext | bool) -> None:
        self._timeout = timeout
        self._keepalive_s = keepalive_s
        self._ssl = ssl
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}

    def session(self) -> aiohttp.ClientSession:
        """Return the pool of the running event loop.

        Raises:
            RuntimeError: It is none of asyncio.
        """
        loop = running_loop()
        session = self._sessions.get(loop)
        if session is None:
            for other in [each for each in self._sessions if each.is_closed()]:
                del self._sessions[other]
            session = self._sessions[loop] = self._open()
        return session

    async def aclose(self) -> None:
        """Close the pool of the running event loop."""
        session = self._sessions.pop(running_loop(), None)
        if session is not None:
            await session.close()

    def _open(self) -> aiohttp.ClientSession:
        # aiohttp takes a time, or the word that there is none; not both.
        kept: dict[str, Any] = {"keepalive_timeout": self._keepalive_s} if self._keepalive_s else {"force_close": True}
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=self._ssl, **kept),
            timeout=self._timeout,
            cookie_jar=aiohttp.DummyCookieJar(),  # else one client's cookies would go with another's requests
            auto_decompress=False,
            trust_env=False,
        )


def running_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop.

    Raises:
        RuntimeError: It is none of asyncio.
    """
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise RuntimeError(
            "ProxyApp runs on asyncio only, because aiohttp does; serve it by an asyncio server"
        ) from None
