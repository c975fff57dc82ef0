"""Commands to a Redis or Valkey server: each operation bounded in time, and never given up half-way."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine, Sequence
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar, cast

from ws_responses.errors import ConfigurationError, StoreError
from ws_responses.extras import Extra

with Extra("redis"):
    from redis.asyncio import BlockingConnectionPool, Redis
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
    from redis.exceptions import NoScriptError, RedisClusterException, RedisError

__all__ = ["Client", "Operations", "Script", "Server", "connect", "tenant_stem"]

T = TypeVar("T")

MAX_CONNECTIONS: Final = 32
"""Of a client that is made from a URL: an operation takes less than a millisecond, so these serve tens of thousands a second."""


class Client(Protocol):
    """What is needed of ``redis.asyncio.Redis`` or ``redis.asyncio.RedisCluster``."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send a command and return the answer."""

    async def aclose(self) -> None:
        """Close all connections."""

    def get_encoder(self) -> Any:
        """Return what turns answers into bytes or strings."""


def connect(url: str, timeout_s: float) -> Client:
    """Return a client for a URL (``redis://``, ``rediss://``, ``unix://``) that tries nothing twice and connects when needed.

    Args:
        url: Where the server is.
        timeout_s: Bound of each wait: for a connection, and for an answer.

    Raises:
        ConfigurationError: It is no such URL.
    """
    from_url = cast("Callable[..., BlockingConnectionPool]", BlockingConnectionPool.from_url)  # pyright: ignore[reportUnknownMemberType] - redis leaves its options open
    try:
        pool = from_url(
            url,
            max_connections=MAX_CONNECTIONS,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # Not repeated: a URL may hold a password.
        raise ConfigurationError("this is no URL of a Redis server: redis://host:port/0") from None
    client: Client = Redis.from_pool(pool)  # closes it with itself
    return client


class Script:
    """A Lua script; sent whole only when the server does not know it."""

    __slots__ = ("_sha", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._sha = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Client, keys: Sequence[bytes], *arguments: bytes | int) -> Any:
        """Return what the script returns; all of its keys must be in one slot."""
        try:
            return await client.execute_command("EVALSHA", self._sha, len(keys), *keys, *arguments)
        except NoScriptError:
            # Nothing was done. The server was restarted, or has never seen it.
            return await client.execute_command("EVAL", self._text, len(keys), *keys, *arguments)


class Operations:
    """Runs operations to their end, in bounded time.

    A caller that is cancelled goes on at once; its operation ends by itself. An operation that stops between a command and its
    answer would leave the answer to whoever uses the connection next: that is how other projects gave one user's data to
    another. (redis-py closes such a connection; records name their tenant besides.)

    Args:
        timeout_s: Bound of one operation.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._running: set[asyncio.Task[Any]] = set()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what ``work`` returns.

        Raises:
            StoreError: The server failed or did not answer in time, or there is a name without a form in UTF-8.
            ConfigurationError: The event loop is not asyncio's.
        """
        try:
            task = asyncio.get_running_loop().create_task(self._bounded(work))
        except RuntimeError:
            work.close()
            raise ConfigurationError("Redis is for servers on asyncio") from None
        self._running.add(task)
        task.add_done_callback(self._ended)
        try:
            return await asyncio.shield(task)
        except (RedisError, RedisClusterException, OSError, UnicodeEncodeError) as error:
            # Only the kind: the text may hold an address, and part of a command.
            raise StoreError(f"the server of the store failed: {type(error).__name__}") from error

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # nobody may wait for it any more: asyncio would log what it holds

    async def _bounded(self, work: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(self._timeout_s):
            return await work

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run ``work`` in a task of its own; what becomes of it nobody is told. Does nothing without an event loop of asyncio."""
        try:
            task = asyncio.get_running_loop().create_task(self._bounded(work))
        except RuntimeError:
            work.close()
            return
        self._running.add(task)
        task.add_done_callback(self._ended)

    async def wait(self) -> None:
        """Return when no operation runs any more."""
        while self._running:
            await asyncio.wait(self._running)


class Server:
    """A server, or a cluster, as the adapters use it.

    Args:
        server: A URL, or a client that stays the caller's to close.
        prefix: Begins all keys.
        timeout_s: Bound of one operation.

    Attributes:
        client: The client.
        operations: Runs what is done with it.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(self, server: str | Client, prefix: str, timeout_s: float) -> None:
        if timeout_s <= 0:
            raise ConfigurationError("timeout_s must be positive")
        if "{" in prefix:
            raise ConfigurationError("prefix must not hold '{', which would decide about the slot of all keys")
        self.client = connect(server, timeout_s) if isinstance(server, str) else server
        self.operations = Operations(timeout_s)
        self._owns_client = isinstance(server, str)
        if self.client.get_encoder().decode_responses:
            raise ConfigurationError("a client with decode_responses cannot read bytes")

    async def aclose(self) -> None:
        """Wait for what is on its way, and close the connections unless they are the caller's."""
        await self.operations.wait()
        if self._owns_client:
            await self.client.aclose()


def tenant_stem(prefix: str, tenant: str) -> bytes:
    """Return how all keys of a tenant begin: it does not tell the tenant's own name, and puts them into one slot of a cluster."""
    digest = blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    return f"{prefix}:{{{digest}}}:".encode()
