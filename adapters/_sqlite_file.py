"""A SQLite file: one connection, used by one thread at a time, by statements that are whole or nothing."""

import os
import sqlite3
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from ws_responses.errors import ConfigurationError, WSResponsesError

__all__ = ["OneAtATime", "SqliteFile", "SqliteFileRefused", "Synchronous"]

T = TypeVar("T")

Synchronous = Literal["normal", "full"]
"""Whether each commit waits for the disk ("full"), or the operating system writes it soon ("normal")."""

_PRIVATE: Final = 0o600
"""Mode of a new file: it holds conversations. SQLite gives ``-wal`` and ``-shm`` the same."""


_making: Final = threading.Lock()
"""No connection is opened to a file that is about to be closed by who has made it."""


class SqliteFileRefused(WSResponsesError):
    """The file has tables of another version, or of something else."""


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Generator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk ends it by itself
            connection.execute("ROLLBACK")
        raise


class OneAtATime:
    """Lets one piece of work of an event loop run at a time, and takes no other work's threads.

    Args:
        name: For debuggers.
    """

    def __init__(self, name: str) -> None:
        self._limiter: RunVar[CapacityLimiter] = RunVar(name)

    def limiter(self) -> CapacityLimiter:
        """Return the limiter of this event loop."""
        try:
            return self._limiter.get()
        except LookupError:
            limiter = CapacityLimiter(1)
            self._limiter.set(limiter)
            return limiter


class SqliteFile:
    """One connection to a file, opened at its first use.

    Work runs in a thread of its own, one piece after the other. It is never left behind: a caller that is cancelled goes on
    when the piece has ended, so that it knows that nothing runs on; ``busy_timeout_s`` bounds that.

    Args:
        path: The file.
        application_id: Marks the file as ours (``PRAGMA application_id``).
        version: Of the tables (``PRAGMA user_version``).
        schema: Statements that make them.
        synchronous: See ``Synchronous``.
        busy_timeout_s: How long a piece of work waits for another process or thread that writes.

    Raises:
        ConfigurationError: The path names no file.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        application_id: int,
        version: int,
        schema: tuple[str, ...],
        synchronous: Synchronous,
        busy_timeout_s: float,
    ) -> None:
        if str(path) in ("", ":memory:"):
            # SQLite would give each connection a database of its own.
            raise ConfigurationError(
                f"a database that several connections share needs the name of a file, not {str(path)!r}"
            )
        self.path = Path(path)
        self._application_id = application_id
        self._version = version
        self._schema = schema
        self._synchronous = synchronous
        self._busy_timeout_s = busy_timeout_s
        self._connection: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._one = OneAtATime("ws_responses.sqlite_file")

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``work`` returns; it runs in a thread, with the connection for itself.

        Raises:
            SqliteFileRefused: The file is another's.
            sqlite3.Error: It could not be opened, or what ``work`` raised.
        """

        def locked() -> T:
            with self._lock:  # another event loop may use the same store
                return work(self._open())

        return await to_thread.run_sync(locked, limiter=self._one.limiter())

    async def write(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return what ``work`` returns, which runs in a transaction that no other writer comes between.

        Raises:
            SqliteFileRefused: The file is another's.
            sqlite3.Error: It could not be opened or written, or what ``work`` raised; nothing was changed.
        """

        def transaction(connection: sqlite3.Connection) -> T:
            # Not deferred: a transaction that begins by reading may find that it can write no more.
            with _transaction(connection):
                return work(connection)

        return await self.run(transaction)

    async def aclose(self) -> None:
        """Close the connection; the next use would open it again."""

        def close() -> None:
            with self._lock:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None

        await to_thread.run_sync(close, limiter=self._one.limiter())

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._make()
            connection = sqlite3.connect(
                self.path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _make(self) -> None:
        """Make the file, for its owner only; one that is there must not be touched.

        Whoever closes a descriptor of a file gives up all locks of the process on it (POSIX), those of other connections too:
        the next process that ends would take itself for the last one, and remove the log that this one goes on to write.
        """
        with _making, suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _PRIVATE))

    def _prepare(self, connection: sqlite3.Connection) -> None:
        """Make a new file ours.

        Raises:
            SqliteFileRefused: It is another's.
        """
        if self._is_ours(connection):
            self._configure(connection)
            return
        self._configure(connection)
        with _transaction(connection):
            if not self._is_ours(connection):  # another process may have been faster
                for statement in self._schema:
                    connection.execute(statement)
                connection.execute(f"PRAGMA application_id = {self._application_id}")
                connection.execute(f"PRAGMA user_version = {self._version}")

    def _configure(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")
        connection.execute("PRAGMA secure_delete = ON")  # what was deleted must not be found in the file

    def _is_ours(self, connection: sqlite3.Connection) -> bool:
        """Return whether a file has our tables; False if it is empty.

        Raises:
            SqliteFileRefused: Neither.
        """
        application_id = connection.execute("PRAGMA application_id").fetchone()[0]
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if (application_id, version, tables) == (0, 0, 0):
            return False
        if application_id != self._application_id:
            raise SqliteFileRefused(f"{self.path.name} is a file of something else")
        if version != self._version:
            raise SqliteFileRefused(
                f"{self.path.name} has tables of version {version}; this version of ws_responses reads {self._version}"
            )
        return True
