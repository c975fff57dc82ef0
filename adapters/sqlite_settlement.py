"""A settlement sink in a SQLite file: durable, idempotent, and safe with several processes on one machine.

    app = ResponsesWebSocketMiddleware(app, settlement=Settlement(SqliteSettlement("turns.db"), before_terminal=True))

Each record is in the file, and the file on the disk, when the call returns. Records that wait for each other are written
together, by one sync of the disk. Whoever sends them on reads them in the order in which they were written, by a cursor of its own.
"""

import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import msgspec
from anyio import to_thread
from msgspec import Struct

from ws_responses.adapters._sqlite_file import OneAtATime
from ws_responses.errors import WSResponsesError
from ws_responses.settlement import TurnRecord

__all__ = ["SettledTurn", "SettlementConflict", "SqliteSettlement"]

T = TypeVar("T")

_VERSION: Final = 1
"""Of the tables (``PRAGMA user_version``)."""

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS turns (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    turn_id TEXT NOT NULL UNIQUE,
    record BLOB NOT NULL
)
"""
_INSERT: Final = "INSERT INTO turns (turn_id, record) VALUES (?, ?) ON CONFLICT (turn_id) DO NOTHING"
_PAGE: Final = "SELECT position, record FROM turns WHERE position > ? ORDER BY position LIMIT ?"
_REMOVE: Final = "DELETE FROM turns WHERE position <= ?"

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(TurnRecord).decode


class SettlementConflict(WSResponsesError):
    """The file has tables of another version, or none of ours."""


class SettledTurn(Struct, frozen=True):
    """A record in the file.

    Attributes:
        position: Rises with each record; what was written later has a higher one, whatever process wrote it.
        record: The record.
    """

    position: int
    record: TurnRecord


class SqliteSettlement:
    """Writes records into a file. Not for network file systems: SQLite's locks do not hold there.

    Args:
        path: The file; it is made at the first use, with ``-wal`` and ``-shm`` beside it.
        busy_timeout_s: How long to wait for another process that writes.
    """

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 5.0) -> None:
        self._path = Path(path)
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._one = OneAtATime("ws_responses.sqlite_settlement")
        self._lock = threading.Lock()
        self._waiting: dict[str, tuple[str, bytes]] = {}

    async def __call__(self, record: TurnRecord) -> None:
        """Write a record (the settlement hook); returns when it is on the disk. A turn that is there already stays as it is.

        Raises:
            sqlite3.Error: It could not be written; nothing of it was.
        """
        entry = (record.turn_id, _encode(record))
        self._waiting[record.turn_id] = entry
        try:
            # The first of those who wait writes for all of them; the others find their record written.
            async with self._one.limiter():
                if self._waiting.get(record.turn_id) is entry:
                    await self._write_waiting()
        finally:
            if self._waiting.get(record.turn_id) is entry:
                del self._waiting[record.turn_id]

    async def _write_waiting(self) -> None:
        batch, self._waiting = self._waiting, {}
        try:
            await self._in_thread(lambda: self._write(list(batch.values())))
        except BaseException:
            # Whoever waits tries for itself: only the settler knows what becomes of its record.
            self._waiting = batch | self._waiting
            raise

    async def records(self, *, after: int = 0, limit: int = 100) -> Sequence[SettledTurn]:
        """Return records in the order in which they were written.

        Args:
            after: Position of the last one that was read; 0 for the beginning.
            limit: Most records to return.
        """
        rows = await self._alone(lambda: self._open().execute(_PAGE, (after, limit)).fetchall())
        return [SettledTurn(position, _decode(record)) for position, record in rows]

    async def forget(self, up_to: int) -> int:
        """Remove the records up to a position, which have been sent on; return how many there were."""
        return await self._alone(lambda: self._open().execute(_REMOVE, (up_to,)).rowcount)

    async def aclose(self) -> None:
        """Close the file; the next call would open it again."""

        def close() -> None:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

        await self._alone(close)

    def _write(self, rows: Sequence[tuple[str, bytes]]) -> None:
        connection = self._open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.executemany(_INSERT, rows)
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            connection = sqlite3.connect(
                self._path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                _prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    async def _alone(self, work: Callable[[], T]) -> T:
        async with self._one.limiter():
            return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        def locked() -> T:
            with self._lock:
                return work()

        # Not left behind on cancellation: whether the record was written would not be known. The busy timeout bounds it.
        return await to_thread.run_sync(locked)


def _prepare(connection: sqlite3.Connection) -> None:
    """Make a new file ours.

    Raises:
        SettlementConflict: It is another's.
    """
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")  # in WAL mode: one sync for each transaction, at its commit
    connection.execute("BEGIN IMMEDIATE")
    try:
        _check(connection)
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_VERSION}")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _check(connection: sqlite3.Connection) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if version not in (0, _VERSION) or (version == 0 and tables):
        raise SettlementConflict("this file is no settlement file of this version")
