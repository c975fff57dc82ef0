"""Connections and running turns of each tenant, counted over all nodes on a Redis or Valkey server.

    counters = RedisCounters("redis://localhost:6379/0")
    app = ResponsesWebSocketMiddleware(app, counters=counters, tenant_key=KEY, limits=Limits(max_tenant_connections=100))

A place is a lease: its node renews it, so that those of a node that was killed are free again after ``lease_s`` seconds. For servers
on asyncio. Give all nodes the same ``tenant_key``, as for a shared store.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, islice
from typing import Final, Literal

from ws_responses.adapters._redis_client import Client, Script, Server, tenant_stem
from ws_responses.counters import Counted, Place
from ws_responses.errors import ConfigurationError, StoreError

__all__ = ["RedisCounters"]

logger = logging.getLogger("ws_responses.counters")

_AT_ONCE: Final = 500
"""Places that one script renews: the server does nothing else meanwhile."""

_RENEWALS: Final = 3
"""Renewals within one lease: two may fail."""

_NOW: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
"""

_TAKE: Final = Script(
    _NOW
    + """
-- KEYS: the places, a sorted set by the time at which each ends. ARGV: life (ms), limit, name of the new place, names that are given
-- back. Returns 1 if it was taken, 0 if there are as many as there may be.
for at = 4, #ARGV do redis.call('ZREM', KEYS[1], ARGV[at]) end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return 1
"""
)

_RENEW: Final = Script(
    _NOW
    + """
-- KEYS: the places. ARGV: life (ms), names. Those that were forgotten meanwhile come back: their connections are still there.
for at = 2, #ARGV do redis.call('ZADD', KEYS[1], now + ARGV[1], ARGV[at]) end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
"""
)


class RedisCounters:
    """Counts on a Redis (6.2 or newer) or Valkey server, or a cluster of them. Each answer costs one round trip.

    While the server does not answer, ``fail="open"`` lets in what each node's own count allows; such a place is counted with the next
    renewal that arrives. ``fail="closed"`` refuses it with 503.

    Args:
        server: A URL, or a client of ``redis.asyncio`` (``Redis`` or ``RedisCluster``, without ``decode_responses``) that stays
            the caller's to close.
        prefix: Begins all keys.
        lease_s: How long a place stays taken whose node has gone without a word.
        timeout_s: Bound of one operation: upgrades and turns wait for it. Nothing is tried twice.
        fail: See above.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        server: str | Client,
        *,
        prefix: str = "ws_responses",
        lease_s: float = 60.0,
        timeout_s: float = 0.25,
        fail: Literal["open", "closed"] = "open",
    ) -> None:
        if fail not in {"open", "closed"}:
            raise ConfigurationError(f"fail must be 'open' or 'closed', not {fail!r}")
        if lease_s <= 4 * timeout_s:
            raise ConfigurationError(
                "lease_s must be more than four times timeout_s, so that it can be renewed in time"
            )
        self._server = Server(server, prefix, timeout_s)
        self._prefix = prefix
        self._lease_s = lease_s
        self._fails_open = fail == "open"
        self._node = secrets.token_hex(8)
        self._names = count()
        self._held: dict[bytes, dict[bytes, None]] = {}
        self._leaving: dict[bytes, dict[bytes, None]] = {}
        self._renewing: asyncio.Task[None] | None = None

    async def take(self, what: Counted, tenant: str, limit: int) -> Place | None:
        """Take a place, if fewer than ``limit`` are taken; None if there is none.

        Raises:
            StoreError: The server failed, and ``fail`` is "closed".
        """
        place = _RedisPlace(self, self._key(what, tenant), f"{self._node}:{next(self._names)}".encode())
        taken = counted = True
        try:
            taken = await self._server.operations.run(self._ask(place, limit))
        except StoreError as error:
            if not self._fails_open:
                place.give_back()
                raise
            logger.warning("places cannot be counted: %s", error)
            counted = False
        except BaseException:
            place.give_back()  # the server may have it, or be given it in a moment
            raise
        if not taken:
            return None
        place.counted = counted
        self._hold(place)
        return place

    async def aclose(self) -> None:
        """Stop renewing, wait for what is on its way, and close the connections unless they are the caller's."""
        if self._renewing is not None:
            self._renewing.cancel()
            with suppress(asyncio.CancelledError):
                await self._renewing
            self._renewing = None
        await self._server.aclose()

    # -- one place ---------------------------------------------------------------------------------------------------

    def _key(self, what: Counted, tenant: str) -> bytes:
        return tenant_stem(self._prefix, tenant) + b"n:" + what.encode()

    async def _ask(self, place: "_RedisPlace", limit: int) -> bool:
        """Take a place; what is being given back there goes first, so that the next one is not refused for its sake."""
        leaving = list(islice(self._leaving.get(place.key, ()), _AT_ONCE))
        taken = await _TAKE.run(
            self._server.client, [place.key], round(self._lease_s * 1000), limit, place.name, *leaving
        )
        if taken and place.is_given_back:  # its caller has gone meanwhile
            await self._server.client.execute_command("ZREM", place.key, place.name)
        return bool(taken)

    def _hold(self, place: "_RedisPlace") -> None:
        self._held.setdefault(place.key, {})[place.name] = None
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    def leave(self, key: bytes, name: bytes) -> None:
        """Give a place back (for ``_RedisPlace``)."""
        held = self._held.get(key)
        if held is not None:
            held.pop(name, None)
            if not held:
                del self._held[key]
        self._leaving.setdefault(key, {})[name] = None
        self._server.operations.start(self._remove(key, name))

    async def _remove(self, key: bytes, name: bytes) -> None:
        # If the server cannot be asked, the lease ends by itself.
        try:
            await self._server.client.execute_command("ZREM", key, name)
        finally:
            leaving = self._leaving[key]
            del leaving[name]
            if not leaving:
                del self._leaving[key]

    # -- renewal -----------------------------------------------------------------------------------------------------

    async def _renew(self) -> None:
        """Renew all places of this node, as long as there are any."""
        while self._held:
            await asyncio.sleep(self._lease_s / _RENEWALS)
            try:
                for key in list(self._held):
                    for names in self._chunks(key):
                        await self._server.operations.run(self._renew_some(key, names))
            except StoreError as error:
                logger.warning("places cannot be renewed: %s", error)

    def _chunks(self, key: bytes) -> Iterator[list[bytes]]:
        names = iter(list(self._held.get(key, ())))
        while some := list(islice(names, _AT_ONCE)):
            yield some

    async def _renew_some(self, key: bytes, names: list[bytes]) -> None:
        held = self._held.get(key, {})
        still = [name for name in names if name in held]  # what was given back meanwhile must not come back
        if not still:
            return
        await _RENEW.run(self._server.client, [key], round(self._lease_s * 1000), *still)
        held = self._held.get(key, {})
        gone = [name for name in still if name not in held]
        if gone:
            await self._server.client.execute_command("ZREM", key, *gone)


class _RedisPlace:
    """A place on the server."""

    __slots__ = ("_counters", "counted", "key", "name")

    def __init__(self, counters: RedisCounters, key: bytes, name: bytes) -> None:
        self._counters: RedisCounters | None = counters
        self.key = key
        self.name = name
        self.counted = True

    @property
    def is_given_back(self) -> bool:
        return self._counters is None

    def give_back(self) -> None:
        counters, self._counters = self._counters, None
        if counters is not None:
            counters.leave(self.key, self.name)
