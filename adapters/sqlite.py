"""A response store in a SQLite file: chains that outlive their process, shared by the workers of one machine.

    app = ResponsesWebSocketMiddleware(app, store=SqliteStore("responses.db"), tenant_key=KEY)

Give all workers the same ``tenant_key``: with a random one each of them takes the same client for another tenant. What was appended
is in the file when the call returns, so that a process that is killed loses none of it. A write costs the turn's own items,
whatever the length of the chain; a chain is read by one query.
"""

import sqlite3
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Final, Literal, TypeVar

from ws_responses.adapters._sqlite_file import SqliteFile, SqliteFileRefused, Synchronous
from ws_responses.adapters._sqlite_tables import SCHEMA, VERSION, Tables
from ws_responses.errors import ConfigurationError, RecordUnreadable, StoreError
from ws_responses.state.encoding import RecordCodec
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey

__all__ = ["SqliteFileRefused", "SqliteStore"]

T = TypeVar("T")

GIB: Final = 1024 * 1024 * 1024

_APPLICATION_ID: Final = 0x77735253
"""Marks a file as ours: "wsRS"."""

_SWEEP: Final = 8
"""Expired branches that an append removes: each makes one at most, so that they cannot pile up."""


class SqliteStore:
    """Keeps responses in a file. Not for network file systems: SQLite's locks do not hold there.

    Args:
        path: The file; it is made at the first use, for its owner only, with ``-wal`` and ``-shm`` beside it.
        codec: Turns records into bytes; give one with a key to have them encrypted.
        max_bytes: Bound of all that is stored. The oldest leaves go first; a root goes when nothing hangs on it any more.
        max_tenant_bytes: The same for each tenant.
        synchronous: "normal": a commit survives the end of the process, but the last ones may be lost with the machine's
            power. "full": each waits for the disk.
        busy_timeout_s: How long an operation waits for another process that writes; shorter than
            ``Limits.store_timeout_s``, because it cannot be cancelled meanwhile.
        fail: What becomes of a turn whose parent cannot be read because the file cannot: "miss" answers that there is
            none, "closed" refuses the turn with 503 ``store_unavailable``.
        clock: Seconds since 1970. All processes must agree on it.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        codec: RecordCodec | None = None,
        max_bytes: int = 4 * GIB,
        max_tenant_bytes: int | None = None,
        synchronous: Synchronous = "normal",
        busy_timeout_s: float = 1.0,
        fail: Literal["miss", "closed"] = "miss",
        clock: Callable[[], float] = time.time,
    ) -> None:
        if synchronous not in {"normal", "full"}:
            raise ConfigurationError(f"synchronous must be 'normal' or 'full', not {synchronous!r}")
        if fail not in {"miss", "closed"}:
            raise ConfigurationError(f"fail must be 'miss' or 'closed', not {fail!r}")
        if max_bytes <= 0 or (max_tenant_bytes is not None and max_tenant_bytes <= 0) or busy_timeout_s < 0:
            raise ConfigurationError("max_bytes and max_tenant_bytes must be positive, and busy_timeout_s not negative")
        self.fails_closed = fail == "closed"
        self._codec = codec or RecordCodec()
        self._max_bytes = max_bytes
        self._max_tenant_bytes = max_tenant_bytes
        self._clock = clock
        # Two connections: a chain is read while another is written.
        self._reader, self._writer = (
            SqliteFile(
                path,
                application_id=_APPLICATION_ID,
                version=VERSION,
                schema=SCHEMA,
                synchronous=synchronous,
                busy_timeout_s=busy_timeout_s,
            )
            for _ in range(2)
        )

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        """Add a record below its parent; returns when it is in the file.

        Raises:
            StoreError: The parent is not here, the record must not be stored or does not fit, or the file cannot be written.
            SqliteFileRefused: The file is another's.
        """
        if parent is not None and parent.tenant != key.tenant:
            raise StoreError("the parent of this response is another tenant's")
        tenant = _digest(key.tenant)

        def append(connection: sqlite3.Connection) -> None:
            content = self._codec.encode(key.tenant, record)
            now = self._clock()
            tables = Tables(connection, now)
            tables.expire(_SWEEP)
            row = tables.append(
                tenant,
                key.response_id,
                None if parent is None else parent.response_id,
                content,
                base=record.base,
                expires_at=now + ttl_s,
            )
            if self._max_tenant_bytes is not None:
                tables.make_room(tenant, self._max_tenant_bytes, row)
            tables.make_room(None, self._max_bytes, row)

        await _asked(self._writer.write, append)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        """Return the records from the newest base to the key's own; empty if there is none.

        Raises:
            StoreError: The file cannot be read.
            RecordUnreadable: What is in it is damaged, or sealed with another key.
            SqliteFileRefused: The file is another's.
        """

        def load(connection: sqlite3.Connection) -> list[Record]:
            contents: list[bytes] = []
            left = 2 * self._codec.max_bytes  # a seal may make them larger
            found = Tables(connection, self._clock()).contents(_digest(key.tenant), key.response_id)
            with closing(found):  # a query that is left open would hold up the clearing of the log
                for content in found:
                    left -= len(content)
                    if left < 0:
                        raise RecordUnreadable("a chain above the limit")
                    contents.append(content)
            return self._codec.decode_chain(key, contents)

        return await _asked(self._reader.run, load)

    async def delete(self, key: StoreKey) -> None:
        """Hide an id; its record goes at once if it has no descendants.

        Raises:
            StoreError: The file cannot be written.
            SqliteFileRefused: The file is another's.
        """

        def delete(connection: sqlite3.Connection) -> None:
            Tables(connection, self._clock()).delete(_digest(key.tenant), key.response_id)

        await _asked(self._writer.write, delete)

    async def sweep(self) -> int:
        """Remove all that has expired, and take it out of the log; return the number of branches.

        Appends do it by and by. Call it now and then where the content of a server without traffic must not stay.

        Raises:
            StoreError: The file cannot be written.
        """
        removed = 0
        while True:
            some = await _asked(self._writer.write, lambda connection: Tables(connection, self._clock()).expire(_SWEEP))
            removed += some
            if some < _SWEEP:
                break
        await _asked(
            self._writer.run, lambda connection: connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        )
        return removed

    async def size(self) -> int:
        """Return the bytes that count for ``max_bytes``; the file is about as large, or as it once was.

        Raises:
            StoreError: The file cannot be read.
        """
        return await _asked(self._reader.run, lambda connection: Tables(connection, 0.0).size())

    async def aclose(self) -> None:
        """Close the file; the next call would open it again."""
        await self._reader.aclose()
        await self._writer.aclose()


async def _asked(
    ask: Callable[[Callable[[sqlite3.Connection], T]], Awaitable[T]], work: Callable[[sqlite3.Connection], T]
) -> T:
    try:
        return await ask(work)
    except (sqlite3.Error, OSError, UnicodeEncodeError) as error:
        raise StoreError(f"the file of the store cannot be used: {type(error).__name__}") from error


def _digest(tenant: str) -> bytes:
    """Return what stands for a tenant in the file, whose name may say who it is."""
    return blake2b(tenant.encode("utf-8", "surrogatepass"), digest_size=16).digest()
