"""The tables of a store in a SQLite file, and what is done with them; all of it within one transaction of the caller."""

from collections.abc import Generator
from sqlite3 import Connection
from typing import Final

from ws_responses.errors import StoreError

__all__ = ["SCHEMA", "VERSION", "Tables"]

VERSION: Final = 1
"""Of the tables."""

SCHEMA: Final = (
    # Records that expire together; what a branch forks lives at least as long as the branch.
    "CREATE TABLE branches (branch INTEGER PRIMARY KEY, origin INTEGER, expires_at REAL NOT NULL)",
    "CREATE INDEX branches_by_time ON branches (expires_at, branch)",
    # A new row is above all others, so that a parent is below its children. A hidden record has no id; it stays as long as it has children.
    """CREATE TABLE records (
        row INTEGER PRIMARY KEY,
        tenant BLOB NOT NULL,
        id TEXT,
        parent INTEGER,
        branch INTEGER NOT NULL,
        children INTEGER NOT NULL DEFAULT 0,
        size INTEGER NOT NULL
    )""",
    "CREATE UNIQUE INDEX records_by_id ON records (tenant, id) WHERE id IS NOT NULL",
    "CREATE INDEX records_by_branch ON records (branch, row)",
    "CREATE INDEX leaves ON records (row) WHERE children = 0",
    "CREATE INDEX leaves_by_tenant ON records (tenant, row) WHERE children = 0",
    # Apart from the records: counting a child would else read and write all of its parent.
    "CREATE TABLE contents (row INTEGER PRIMARY KEY, content BLOB NOT NULL)",
    # Bytes of each tenant, and of all in the one without a name.
    "CREATE TABLE sizes (tenant BLOB PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID",
)

RECORD_BYTES: Final = 192
"""Charged for a record beside its content: its rows, and its entries in the indexes; measured."""

_ALL: Final = b""
"""Names all tenants in ``sizes``."""

_FIND: Final = """
SELECT row, branch FROM records JOIN branches USING (branch) WHERE tenant = ? AND id = ? AND expires_at > ?
"""

_CHAIN: Final = """
WITH RECURSIVE chain (row, parent, depth) AS (
    SELECT row, parent, 0 FROM records JOIN branches USING (branch) WHERE tenant = ? AND id = ? AND expires_at > ?
    UNION ALL
    SELECT above.row, above.parent, depth + 1
    FROM chain JOIN records AS above ON above.row = chain.parent AND above.row < chain.row
)
SELECT content FROM chain JOIN contents USING (row) ORDER BY depth DESC
"""

_EXTEND: Final = """
WITH RECURSIVE path (branch, origin) AS (
    SELECT branch, origin FROM branches WHERE branch = :branch
    UNION
    SELECT above.branch, above.origin FROM path JOIN branches AS above ON above.branch = path.origin
    WHERE above.expires_at < :expires_at
)
UPDATE branches SET expires_at = max(expires_at, :expires_at) WHERE branch IN (SELECT branch FROM path)
"""

_NEWEST: Final = "SELECT row FROM records WHERE branch = ? AND id IS NOT NULL ORDER BY row DESC LIMIT 1"
_ADD_BRANCH: Final = "INSERT INTO branches (origin, expires_at) VALUES (?, ?)"
_ADD: Final = "INSERT INTO records (tenant, id, parent, branch, size) VALUES (?, ?, ?, ?, ?)"
_ADD_CONTENT: Final = "INSERT INTO contents (row, content) VALUES (?, ?)"
_COUNT_CHILD: Final = "UPDATE records SET children = children + ? WHERE row = ? RETURNING children, id"
_HIDE: Final = "UPDATE records SET id = NULL WHERE tenant = ? AND id = ? RETURNING row"
_REMOVE: Final = "DELETE FROM records WHERE row = ? AND children = 0 RETURNING tenant, parent, size"
_ADD_SIZE: Final = """
INSERT INTO sizes (tenant, bytes) VALUES (?, ?) ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes
"""


class Tables:
    """The store's operations on an open connection.

    Args:
        connection: Within a transaction, if something is to be changed.
        now: The time, in seconds since 1970.
    """

    def __init__(self, connection: Connection, now: float) -> None:
        self._connection = connection
        self._now = now

    def contents(self, tenant: bytes, response_id: str) -> Generator[bytes]:
        """Yield the contents of a chain, the oldest first, by one query."""
        for (content,) in self._connection.execute(_CHAIN, (tenant, response_id, self._now)):
            yield content

    def append(
        self, tenant: bytes, response_id: str, parent_id: str | None, content: bytes, *, base: bool, expires_at: float
    ) -> int:
        """Add a record and return its row; the branch that it belongs to, and those that it forks, live until ``expires_at``.

        Raises:
            StoreError: The parent is not here.
        """
        below = None
        if parent_id is not None:
            below = self._connection.execute(_FIND, (tenant, parent_id, self._now)).fetchone()
            if below is None and not base:
                raise StoreError("the parent of this response is not stored")
        replaced = self._connection.execute(_HIDE, (tenant, response_id)).fetchall()
        branch = self._branch(below)
        parent = None if below is None or base else below[0]
        size = len(content) + RECORD_BYTES
        row = self._connection.execute(_ADD, (tenant, response_id, parent, branch, size)).lastrowid
        assert row is not None
        self._connection.execute(_ADD_CONTENT, (row, content))
        if parent is not None:
            self._connection.execute(_COUNT_CHILD, (1, parent)).fetchall()
        self._add_size(tenant, size)
        self._connection.execute(_EXTEND, {"branch": branch, "expires_at": expires_at})
        for (old,) in replaced:
            self._remove(old)
        return row

    def _branch(self, below: tuple[int, int] | None) -> int:
        """Return the branch of a new record: that of its parent, if this is the newest of it."""
        if below is not None:
            newest = self._connection.execute(_NEWEST, (below[1],)).fetchone()
            if newest == (below[0],):
                return below[1]
        origin = None if below is None else below[1]
        branch = self._connection.execute(_ADD_BRANCH, (origin, self._now)).lastrowid
        assert branch is not None
        return branch

    def delete(self, tenant: bytes, response_id: str) -> None:
        """Hide an id; its record goes when it has no descendants."""
        for (row,) in self._connection.execute(_HIDE, (tenant, response_id)).fetchall():
            self._remove(row)

    def expire(self, branches: int) -> int:
        """Remove the branches whose time has come, so many at most; return how many there were."""
        due = self._connection.execute(
            "SELECT branch FROM branches WHERE expires_at <= ? ORDER BY expires_at LIMIT ?",
            (self._now, branches),
        ).fetchall()
        for (branch,) in due:
            rows = self._connection.execute(
                "SELECT row FROM records WHERE branch = ? ORDER BY row DESC", (branch,)
            ).fetchall()
            for (row,) in rows:
                self._connection.execute("UPDATE records SET id = NULL WHERE row = ?", (row,))
                self._remove(row)
            self._connection.execute("DELETE FROM branches WHERE branch = ?", (branch,))
        return len(due)

    def make_room(self, tenant: bytes | None, limit: int, keep: int) -> None:
        """Remove the oldest leaves until no more than ``limit`` bytes are left.

        Args:
            tenant: Whose; None for all.
            limit: Bytes.
            keep: Row of the new record, which is not removed.

        Raises:
            StoreError: It alone, with what it hangs on, takes more.
        """
        where, whose = ("", ()) if tenant is None else ("AND tenant = ?", (tenant,))
        oldest = f"SELECT row FROM records WHERE children = 0 {where} ORDER BY row LIMIT 1"  # noqa: S608 - ours
        while self.size(tenant) > limit:
            (row,) = self._connection.execute(oldest, whose).fetchone()
            if row == keep:
                raise StoreError(f"this chain does not fit into {limit} bytes")
            self._connection.execute("UPDATE records SET id = NULL WHERE row = ?", (row,))
            self._remove(row)

    def size(self, tenant: bytes | None = None) -> int:
        """Return the bytes of a tenant, or of all."""
        named = _ALL if tenant is None else tenant
        found = self._connection.execute("SELECT bytes FROM sizes WHERE tenant = ?", (named,)).fetchone()
        return 0 if found is None else int(found[0])

    def _remove(self, row: int | None) -> None:
        """Remove a record that has no children; then its parent, if that is hidden and has none any more, and so on."""
        while row is not None:
            removed = self._connection.execute(_REMOVE, (row,)).fetchone()
            if removed is None:
                return
            tenant, parent, size = removed
            self._connection.execute("DELETE FROM contents WHERE row = ?", (row,))
            self._add_size(tenant, -size)
            above = None if parent is None else self._connection.execute(_COUNT_CHILD, (-1, parent)).fetchone()
            row = parent if above == (0, None) else None

    def _add_size(self, tenant: bytes, size: int) -> None:
        for named in (tenant, _ALL):
            self._connection.execute(_ADD_SIZE, (named, size))
        if size < 0:
            self._connection.execute("DELETE FROM sizes WHERE tenant = ? AND bytes = 0", (tenant,))
