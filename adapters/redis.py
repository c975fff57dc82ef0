"""A response store on a Redis or Valkey server: chains that outlive process and host, shared by all workers.

    app = ResponsesWebSocketMiddleware(app, store=RedisStore("redis://localhost:6379/0"), tenant_key=KEY)

For servers on asyncio. Give all workers the same ``tenant_key``: with a random one each of them takes the same client for another
tenant. A write costs the turn's own items and two round trips, whatever the length of the chain; a load takes two, and one more for
each fork on the way. ``_redis_scripts`` describes the keys; all of a tenant's are in one slot of a cluster.
"""

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeVar

from anyio import to_thread
from cachetools import LRUCache

from ws_responses.adapters._redis_broadcast import RedisBroadcast
from ws_responses.adapters._redis_client import Client, Server, tenant_stem
from ws_responses.adapters._redis_scripts import APPEND, DELETE, REFRESH
from ws_responses.errors import ConfigurationError, RecordUnreadable, StoreError
from ws_responses.state.encoding import RecordCodec
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey

__all__ = ["RedisBroadcast", "RedisStore"]

T = TypeVar("T")

_TRIES: Final = 5
"""How often an operation begins anew because another one has changed what it had looked at."""

_AT_ONCE: Final = 500
"""Pointers that are extended by one script: the server does nothing else meanwhile."""

_THREAD_BYTES: Final = 64 * 1024
"""Records above this size are encoded in a thread."""

_DIGITS: Final = 7
"""A position has fewer: a million records in one branch are more than a chain can be."""

_ORIGINS: Final = 4096
"""Branches whose origins are remembered."""


class RedisStore:
    """Keeps responses on a Redis (6.2 or newer) or Valkey server, or a cluster of them.

    The server acknowledges a write when it is in its memory: what survives its end is what its own persistence is set to.

    Args:
        server: A URL, or a client of ``redis.asyncio`` (``Redis`` or ``RedisCluster``, without ``decode_responses``) that stays
            the caller's to close.
        prefix: Begins all keys.
        codec: Turns records into bytes; give one with a key to have them encrypted.
        timeout_s: Bound of one operation; shorter than ``Limits.store_timeout_s``. Nothing is tried twice.
        fail: What becomes of a turn whose parent cannot be read because the server does not answer: "miss" answers that
            there is none, "closed" refuses the turn with 503 ``store_unavailable``.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        server: str | Client,
        *,
        prefix: str = "ws_responses",
        codec: RecordCodec | None = None,
        timeout_s: float = 1.0,
        fail: Literal["miss", "closed"] = "miss",
    ) -> None:
        if fail not in {"miss", "closed"}:
            raise ConfigurationError(f"fail must be 'miss' or 'closed', not {fail!r}")
        self.fails_closed = fail == "closed"
        self._server = Server(server, prefix, timeout_s)
        self._client = self._server.client
        self._operations = self._server.operations
        self._prefix = prefix
        self._codec = codec or RecordCodec()
        self._origins: LRUCache[bytes, tuple[bytes, ...]] = LRUCache(_ORIGINS)

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        """Add a record below its parent; returns when the server has it.

        Raises:
            StoreError: The parent is not here, the record must not be stored, or the server failed.
        """
        if parent is not None and parent.tenant != key.tenant:
            raise StoreError("the parent of this response is another tenant's")
        content = await _run(partial(self._codec.encode, key.tenant, record), len(record.items))
        ttl_ms = max(1, round(ttl_s * 1000))
        await self._operations.run(self._append(key, content, parent, ttl_ms, base=record.base))

    async def load(self, key: StoreKey) -> Sequence[Record]:
        """Return the records from the newest base to the key's own; empty if there is none.

        Raises:
            StoreError: The server failed.
            RecordUnreadable: What it has is damaged, or sealed with another key.
        """
        contents = await self._operations.run(self._load(key))
        return await _run(partial(self._codec.decode_chain, key, contents), sum(map(len, contents)))

    async def delete(self, key: StoreKey) -> None:
        """Hide an id; its record goes at once if nothing was ever forked off it, or below it.

        Raises:
            StoreError: The server failed.
        """
        await self._operations.run(self._delete(key))

    async def aclose(self) -> None:
        """Wait for what is on its way, and close the connections unless they are the caller's."""
        await self._server.aclose()

    # -- operations --------------------------------------------------------------------------------------------------

    async def _append(self, key: StoreKey, content: bytes, parent: StoreKey | None, ttl_ms: int, *, base: bool) -> None:
        keys = _Keys(self._prefix, key.tenant)
        own_key = keys.pointer(key.response_id)
        for _ in range(_TRIES):
            own, above = await self._pointers(keys, key.response_id, None if parent is None else parent.response_id)
            if parent is not None and above is None and not base:
                raise StoreError("the parent of this response is not stored")
            names = [own_key, keys.branch(new := secrets.token_hex(8).encode())]
            if own is not None:
                names.append(keys.branch(_branch_of(own)))
            path: tuple[bytes, ...] = ()
            if parent is not None and above is not None and not base:
                path = (_branch_of(above), *await self._origins_of(keys, _branch_of(above)))
                names += [keys.pointer(parent.response_id), *map(keys.branch, path)]
            status: bytes
            due: list[int]
            status, *due = await APPEND.run(
                self._client,
                names,
                key.response_id.encode(),
                content,
                ttl_ms,
                new,
                own or b"",
                (above or b"") if path else b"",
                b",".join(path),
            )
            if status == b"gone":
                raise StoreError("the parent of this response is not stored")
            if status == b"ok":
                for place in due:
                    await self._refresh(keys, names[place - 1], ttl_ms)
                return
        raise StoreError("too many changes at the same time")

    async def _pointers(self, keys: "_Keys", own: str, parent: str | None) -> tuple[bytes | None, bytes | None]:
        if parent is None:
            return await self._client.execute_command("GET", keys.pointer(own)), None
        return tuple(await self._client.execute_command("MGET", keys.pointer(own), keys.pointer(parent)))

    async def _origins_of(self, keys: "_Keys", branch: bytes) -> tuple[bytes, ...]:
        """Return the names of the branches that one forks; they never change."""
        name = keys.branch(branch)
        known = self._origins.get(name)
        if known is None:
            known = tuple(filter(None, (await self._client.execute_command("HGET", name, "a") or b"").split(b",")))
            self._origins[name] = known
        return known

    async def _refresh(self, keys: "_Keys", branch: bytes, ttl_ms: int) -> None:
        """Let all pointers of a branch live for twice the time that it has been given."""
        life_ms = 2 * ttl_ms
        begun = int(await REFRESH.run(self._client, [branch], life_ms))
        count = int(await self._client.execute_command("HGET", branch, "n") or 0)
        for start in range(0, count, _AT_ONCE):
            places = range(start, min(start + _AT_ONCE, count))
            ids = await self._client.execute_command("HMGET", branch, *(f"i{place}" for place in places))
            pointers = [keys.pointer_of(each) for each in ids if each is not None]
            await REFRESH.run(self._client, [branch, *pointers], life_ms)
        await REFRESH.run(self._client, [branch], life_ms, begun + life_ms, count)

    async def _load(self, key: StoreKey) -> list[bytes]:
        keys = _Keys(self._prefix, key.tenant)
        pointer = await self._client.execute_command("GET", keys.pointer(key.response_id))
        contents: list[bytes] = []
        left = 2 * self._codec.max_bytes  # a seal may make them larger
        while pointer is not None:
            branch, places = _branch_of(pointer), range(_position_of(pointer) + 1)
            pointer, *found = await self._client.execute_command("HMGET", keys.branch(branch), "o", *places)
            if all(each is None for each in found):
                return []  # expired or evicted
            if None in found:
                raise RecordUnreadable("a branch has lost some of its records")
            left -= sum(map(len, found))
            if left < 0:
                raise RecordUnreadable("a chain above the limit")
            contents[:0] = found
        return contents

    async def _delete(self, key: StoreKey) -> None:
        keys = _Keys(self._prefix, key.tenant)
        name = keys.pointer(key.response_id)
        for _ in range(_TRIES):
            pointer = await self._client.execute_command("GET", name)
            if pointer is None:
                return
            status = await DELETE.run(self._client, [name, keys.branch(_branch_of(pointer))], pointer)
            if status == b"ok":
                return
        raise StoreError("too many changes at the same time")


class _Keys:
    """Names of a tenant's keys, which do not tell the tenant's own name."""

    __slots__ = ("_stem",)

    def __init__(self, prefix: str, tenant: str) -> None:
        self._stem = tenant_stem(prefix, tenant)

    def pointer(self, response_id: str) -> bytes:
        return self.pointer_of(response_id.encode())

    def pointer_of(self, response_id: bytes) -> bytes:
        return self._stem + b"i:" + response_id

    def branch(self, name: bytes) -> bytes:
        return self._stem + b"b:" + name


def _branch_of(pointer: bytes) -> bytes:
    return pointer.partition(b":")[0]


def _position_of(pointer: bytes) -> int:
    position = pointer.partition(b":")[2]
    if not (position.isdigit() and len(position) < _DIGITS):
        raise RecordUnreadable("a pointer is damaged")
    return int(position)


async def _run(work: Callable[[], T], size: int) -> T:
    # Pure: a thread whose caller is gone may end its work unheard.
    return work() if size <= _THREAD_BYTES else await to_thread.run_sync(work, abandon_on_cancel=True)
