"""A settlement sink on a stream of a Redis or Valkey server: each turn once, in order along a chain, read by whoever bills.

    sink = RedisSettlement("redis://localhost:6379/0")
    app = ResponsesWebSocketMiddleware(app, settlement=Settlement(sink, before_terminal=True))

A record is safe when the call returns if the server keeps what it acknowledges (``appendonly yes``, ``appendfsync always``) and evicts
nothing (``maxmemory-policy noeviction``). Readers take it by :meth:`RedisSettlement.records`, or by a consumer group of the stream: the
entry's fields are ``turn`` (the idempotency key) and ``record`` (the record as JSON). For servers on asyncio.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final

import msgspec
from msgspec import Struct

from ws_responses.adapters._redis_client import Client, Script, Server
from ws_responses.errors import ConfigurationError
from ws_responses.settlement import TurnRecord

__all__ = ["RedisSettlement", "StreamedTurn"]

_ADD: Final = Script("""
-- KEYS: the stream, the mark of the turn. ARGV: the turn's id, its record, life of the mark (ms), most entries ('' for no bound).
-- Returns the entry's id, also of one that was there already. The stream is written first: it fails where there is no memory,
-- before anything is changed.
local known = redis.call('GET', KEYS[2])
if known then return known end
local entry
if ARGV[4] == '' then
    entry = redis.call('XADD', KEYS[1], '*', 'turn', ARGV[1], 'record', ARGV[2])
else
    entry = redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[4], '*', 'turn', ARGV[1], 'record', ARGV[2])
end
redis.call('SET', KEYS[2], entry, 'PX', ARGV[3])
return entry
""")

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TurnRecord).decode


class StreamedTurn(Struct, frozen=True):
    """A record in a stream.

    Attributes:
        position: Its entry's id; rises with each record of a shard.
        record: The record.
    """

    position: str
    record: TurnRecord


class RedisSettlement:
    """Writes records to streams on a Redis (6.2 or newer) or Valkey server, or a cluster of them.

    Args:
        server: A URL, or a client of ``redis.asyncio`` (``Redis`` or ``RedisCluster``, without ``decode_responses``) that stays
            the caller's to close.
        prefix: Begins all keys.
        shards: Number of streams; a tenant's records are all in one. More than one lets a cluster share the work. Once there are
            records it must not be changed.
        max_length: About how many records a stream holds at most; beyond it the oldest are dropped, read or not. None for no bound:
            then :meth:`forget` what was read.
        remember_s: How long a turn is known, so that it is not written again: longer than all attempts of the ``Settlement``
            take (two minutes, unless its options say otherwise).
        timeout_s: Bound of one operation. It is not tried again here: the ``Settlement`` does that.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        server: str | Client,
        *,
        prefix: str = "ws_responses",
        shards: int = 1,
        max_length: int | None = None,
        remember_s: float = 600.0,
        timeout_s: float = 1.0,
    ) -> None:
        if shards < 1 or remember_s <= 0 or (max_length is not None and max_length < 1):
            raise ConfigurationError("shards, max_length and remember_s must be positive")
        self._server = Server(server, prefix, timeout_s)
        self._prefix = prefix
        self._shards = shards
        self._max_length: int | bytes = b"" if max_length is None else max_length
        self._remember_ms = round(remember_s * 1000)

    async def __call__(self, record: TurnRecord) -> None:
        """Write a record (the settlement hook); returns when the server has it. A turn that is there already stays as it is.

        Raises:
            StoreError: The server failed or did not answer in time. The record may be there all the same.
        """
        digest = blake2b(record.tenant.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        stem = self._stem(int.from_bytes(digest) % self._shards)
        turn_id = record.turn_id.encode()
        keys = [stem + b"turns", stem + b"t:" + turn_id]
        work = _ADD.run(self._server.client, keys, turn_id, _encode(record), self._remember_ms, self._max_length)
        await self._server.operations.run(work)

    async def records(self, *, shard: int = 0, after: str = "0-0", limit: int = 100) -> Sequence[StreamedTurn]:
        """Return records of a shard in the order in which they were written.

        Args:
            shard: Which, from 0 on.
            after: Position of the last one that was read.
            limit: Most records to return.

        Raises:
            StoreError: The server failed.
        """
        command = ("XRANGE", self._stem(shard) + b"turns", b"(" + after.encode(), "+", "COUNT", limit)
        found = await self._server.operations.run(self._server.client.execute_command(*command))
        return [StreamedTurn(bytes(position).decode(), _decode(fields[b"record"])) for position, fields in found]

    async def forget(self, up_to: str, *, shard: int = 0) -> int:
        """Remove the records up to a position, which have been sent on; return how many there were.

        Raises:
            StoreError: The server failed.
        """
        moment, _, number = up_to.partition("-")
        first_kept = f"{moment}-{int(number or 0) + 1}".encode()
        command = ("XTRIM", self._stem(shard) + b"turns", "MINID", "=", first_kept)
        return int(await self._server.operations.run(self._server.client.execute_command(*command)))

    async def aclose(self) -> None:
        """Wait for what is on its way, and close the connections unless they are the caller's."""
        await self._server.aclose()

    def _stem(self, shard: int) -> bytes:
        """Return how the keys of a shard begin; they are all in one slot of a cluster."""
        if not 0 <= shard < self._shards:
            raise ConfigurationError(f"there are {self._shards} shards, and no {shard}")
        return f"{self._prefix}:{{turns-{shard}}}:".encode()
