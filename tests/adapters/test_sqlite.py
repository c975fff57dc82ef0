"""The SQLite store: durable, whole or nothing, bounded, and one file for several workers."""

import random
import signal
import sqlite3
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from msgspec.structs import replace

from ws_responses.adapters.sqlite import SqliteFileRefused, SqliteStore
from ws_responses.errors import ConfigurationError, RecordUnreadable, StoreError
from ws_responses.state.encoding import RecordCodec
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey
from ws_responses.testing import FakeClock
from ws_responses.testing.store_conformance import StoreConformance, make_record

TTL_S = 1000.0

APPENDER = """
import sys
import anyio
from tests.adapters.test_sqlite import append
from ws_responses.adapters.sqlite import SqliteStore

async def main(path, name, count):
    store = SqliteStore(path, busy_timeout_s=20)
    parent = "root"
    for number in range(count):
        await append(store, f"{name}-{number}", parent)
        parent = f"{name}-{number}"
        print(parent, flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


async def append(store: SqliteStore, name: str, parent: str | None = None, **options: Any) -> None:
    tenant, ttl_s = options.pop("tenant", "t"), options.pop("ttl_s", TTL_S)
    record = make_record(name, parent, **options)
    await store.append(StoreKey(tenant, name), record, None if parent is None else StoreKey(tenant, parent), ttl_s)


async def load(store: SqliteStore, name: str, tenant: str = "t") -> list[str]:
    return [record.id for record in await store.load(StoreKey(tenant, name))]


def appender(path: Path, name: str, count: int) -> "subprocess.Popen[str]":
    """Another process that appends a chain, and prints each id when it is told that it is stored."""
    return subprocess.Popen(
        [sys.executable, "-c", APPENDER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def rows(path: Path) -> dict[str, int]:
    connection = sqlite3.connect(path)
    tables = ("branches", "records", "contents", "sizes")
    counts = {table: connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    connection.close()
    return counts


def on_disk(path: Path) -> bytes:
    """What somebody finds who looks into the files."""
    return b"".join(file.read_bytes() for file in sorted(path.parent.iterdir()))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "responses.db"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(1e9)


@pytest.fixture
async def store(path: Path, clock: FakeClock) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path, clock=clock.now)
    yield store
    await store.aclose()


class Workers:
    """Two processes' stores on one file: each operation is the other's turn."""

    def __init__(self, path: Path, clock: FakeClock) -> None:
        self.stores = [SqliteStore(path, clock=clock.now, synchronous=mode) for mode in ("normal", "full")]

    @property
    def next(self) -> SqliteStore:
        self.stores.reverse()
        return self.stores[0]

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await self.next.append(key, record, parent, ttl_s)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        return await self.next.load(key)

    async def delete(self, key: StoreKey) -> None:
        await self.next.delete(key)

    async def aclose(self) -> None:
        for store in self.stores:
            await store.aclose()


class TestSqliteStore(StoreConformance):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock(1e9)

    @pytest.fixture
    async def store(self, path: Path, clock: FakeClock) -> AsyncGenerator[SqliteStore]:
        store = SqliteStore(path, clock=clock.now)
        yield store
        await store.aclose()


class TestWorkers(StoreConformance):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock(1e9)

    @pytest.fixture
    async def store(self, path: Path, clock: FakeClock) -> AsyncGenerator[Workers]:
        workers = Workers(path, clock)
        yield workers
        await workers.aclose()


# -- durable ----------------------------------------------------------------------------------------------------------


async def test_chains_outlive_the_store_that_made_them(path: Path, store: SqliteStore, clock: FakeClock) -> None:
    await append(store, "a")
    await append(store, "b", "a")
    await store.aclose()
    assert await load(store, "b") == ["a", "b"], "it opens again"
    other = SqliteStore(path, clock=clock.now)
    assert await load(other, "b") == ["a", "b"]
    await other.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_told_to_be_stored_survives_a_kill(anyio_backend: str, path: Path) -> None:
    """A process that is killed runs no more code of its own: what is in its memory only is lost."""
    store = SqliteStore(path)
    await append(store, "root", ttl_s=1e6)
    child = appender(path, "k", 100_000)
    assert child.stdout is not None
    told = [child.stdout.readline().strip() for _ in range(40)]
    child.send_signal(signal.SIGKILL)
    told += child.stdout.read().split()
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL

    assert len(told) >= 40
    assert await load(store, told[-1]) == ["root", *told]
    await append(store, "next", told[-1])
    assert await load(store, "next") == ["root", *told, "next"]
    await store.aclose()
    counts = rows(path)
    assert counts["records"] == counts["contents"]
    assert counts["records"] - len(told) - 2 in (0, 1), "at most the one whose answer was on its way"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_several_processes_append_to_one_chain(anyio_backend: str, path: Path) -> None:
    """Workers of one server; SQLite lets one write at a time, and the others wait for it."""
    store = SqliteStore(path)
    await append(store, "root", ttl_s=1e6)
    children = [appender(path, name, 25) for name in ("one", "two", "three")]
    for child, name in zip(children, ("one", "two", "three"), strict=True):
        output, _ = child.communicate()
        names = [f"{name}-{number}" for number in range(25)]
        assert (child.returncode, output.split()) == (0, names)
        assert await load(store, names[-1]) == ["root", *names]
    await store.aclose()


LOADER = """
import sys
import anyio
from tests.adapters.test_sqlite import load
from ws_responses.adapters.sqlite import SqliteStore

async def main(path, name):
    store = SqliteStore(path)
    print(*await load(store, name))
    await store.aclose()

anyio.run(main, sys.argv[1], sys.argv[2])
"""


async def loaded_elsewhere(path: Path, name: str) -> list[str]:
    """What another process finds, which opens the file for that, and closes it."""
    done = await anyio.run_process([sys.executable, "-c", LOADER, str(path), name])
    return done.stdout.decode().split()


async def test_a_process_that_ends_takes_nothing_along_of_those_that_stay(path: Path) -> None:
    """Each has several connections. Without care the locks of all of them are gone when one is opened (POSIX gives up a
    process's locks on a file with any descriptor of it); then whoever closes the file takes itself for the last one, and removes
    the log that the others go on to write: what they store from then on is lost, and the file damaged."""
    store = SqliteStore(path)
    await append(store, "a")
    assert await load(store, "a") == ["a"]
    assert await loaded_elsewhere(path, "a") == ["a"]
    await append(store, "b", "a")

    assert await loaded_elsewhere(path, "b") == ["a", "b"]
    await store.aclose()
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.parametrize("synchronous", ["normal", "full"])
async def test_how_durable_a_commit_is_can_be_chosen(path: Path, synchronous: Any) -> None:
    store = SqliteStore(path, synchronous=synchronous)
    await append(store, "a")
    connection = store._writer._connection
    assert connection is not None
    assert connection.execute("PRAGMA synchronous").fetchone() == ({"normal": 1, "full": 2}[synchronous],)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await store.aclose()


# -- while another writes ---------------------------------------------------------------------------------------------


async def test_a_write_that_waits_holds_up_nobody(path: Path, store: SqliteStore) -> None:
    """Neither the event loop nor who reads."""
    await append(store, "a")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    done = anyio.Event()

    async def write() -> None:
        await append(store, "b", "a")
        done.set()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(write)
        for _ in range(3):
            assert await load(store, "a") == ["a"]
        assert not done.is_set()
        other.execute("ROLLBACK")
        await done.wait()
    other.close()
    assert await load(store, "b") == ["a", "b"]


async def test_a_file_that_stays_locked_is_an_error_in_bounded_time(path: Path) -> None:
    store = SqliteStore(path, busy_timeout_s=0.05)
    await append(store, "a")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for work in (append(store, "b", "a"), store.delete(StoreKey("t", "a")), store.sweep()):
        with pytest.raises(StoreError, match="cannot be used"):
            await work
    other.execute("ROLLBACK")
    other.close()
    await append(store, "b", "a")
    assert await load(store, "b") == ["a", "b"]
    await store.aclose()


async def test_a_caller_that_is_cancelled_leaves_nothing_running(path: Path, store: SqliteStore) -> None:
    """What runs on in a thread would write after the turn was told that it had failed, or hold the file at the end."""
    await append(store, "a")
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(append, store, "b", "a")
        await load(store, "a")
        tasks.cancel_scope.cancel()
        other.execute("ROLLBACK")
    other.close()
    after = rows(path)["records"]
    await load(store, "a")
    assert rows(path)["records"] == after


# -- time and size ----------------------------------------------------------------------------------------------------


async def test_what_has_expired_is_removed_by_and_by(path: Path, store: SqliteStore, clock: FakeClock) -> None:
    """By appends, a few at a time: no turn pays for all that piled up."""
    for number in range(100):
        await append(store, f"r{number}")
        await append(store, f"fork{number}", f"r{number}")
    await clock.advance(TTL_S)
    before = rows(path)["branches"]
    await append(store, "new")
    assert rows(path)["branches"] == before - 8 + 1
    for number in range(20):
        await append(store, f"new{number}")
    assert rows(path)["records"] == 21


async def test_sweep_removes_all_that_has_expired(path: Path, store: SqliteStore, clock: FakeClock) -> None:
    """Also from the disk: what a user wrote must not be found there for ever because nobody writes any more."""
    secret = b'"very secret words"'
    for number in range(30):
        await append(store, f"r{number}", items=secret)
        await append(store, f"b{number}", f"r{number}", items=secret)
        await append(store, f"fork{number}", f"r{number}", items=secret)
    await append(store, "stays", ttl_s=2 * TTL_S)
    assert secret in on_disk(path)
    await clock.advance(TTL_S)
    assert await store.sweep() == 60
    assert await store.sweep() == 0
    assert await load(store, "stays") == ["stays"]
    assert rows(path) == {"branches": 1, "records": 1, "contents": 1, "sizes": 2}
    assert secret not in on_disk(path)


async def test_what_is_deleted_leaves_the_file_when_nothing_hangs_on_it(path: Path, store: SqliteStore) -> None:
    for name, parent in (("a", None), ("b", "a"), ("c", "b"), ("fork", "b")):
        await append(store, name, parent)
    for name in ("b", "c"):
        await store.delete(StoreKey("t", name))
    assert rows(path)["records"] == 3, "the fork still needs what was b"
    await store.delete(StoreKey("t", "fork"))
    assert rows(path)["records"] == 1
    await store.delete(StoreKey("t", "a"))
    assert rows(path) == {"branches": 2, "records": 0, "contents": 0, "sizes": 1}
    assert await store.size() == 0


async def test_the_oldest_leaves_go_first(path: Path, clock: FakeClock) -> None:
    """Whatever chain they belong to; what others hang on stays."""
    store = SqliteStore(path, clock=clock.now, codec=RecordCodec(compress_from=None), max_bytes=10_000)
    noise = b"x" * 1500
    for name, parent in (("a", None), ("b", "a"), ("x", None), ("c", "b"), ("y", "x")):
        await append(store, name, parent, items=noise)
    assert await load(store, "y") == ["x", "y"]
    await append(store, "z", items=noise)
    assert await load(store, "c") == []
    assert await load(store, "b") == ["a", "b"]
    assert await store.size() <= 10_000
    with pytest.raises(StoreError, match="does not fit"):
        await append(store, "d", "b", items=b"x" * 9000)
    assert await load(store, "z") == ["z"], "what cannot be stored pushes nothing out"
    await append(store, "d", "b", items=noise)
    assert await load(store, "d") == ["a", "b", "d"]
    await store.aclose()


async def test_a_tenant_cannot_push_out_what_is_anothers(path: Path, clock: FakeClock) -> None:
    store = SqliteStore(path, clock=clock.now, max_bytes=10**9, max_tenant_bytes=2000)
    await append(store, "a", tenant="other")
    for number in range(20):
        await append(store, f"r{number}", items=b"x" * 200)
    assert await load(store, "a", "other") == ["a"]
    assert 2 <= rows(path)["records"] - 1 <= 4
    assert await load(store, "r19") == ["r19"]
    await store.aclose()


async def test_sizes_stay_right_whatever_happens(path: Path, clock: FakeClock) -> None:
    """A sum that drifts would evict everything one day, or nothing."""
    store = SqliteStore(path, clock=clock.now, max_bytes=20_000)
    chance = random.Random(1)
    names = [f"r{number}" for number in range(12)]
    for _ in range(400):
        name, parent = chance.choice(names), chance.choice([None, *names])
        try:
            await append(
                store,
                name,
                parent,
                base=parent is not None and chance.random() < 0.1,
                ttl_s=chance.choice([100, 1000]),
                items=b"x" * chance.randrange(1000),
                tenant=chance.choice(["one", "two"]),
            )
        except StoreError:
            await store.delete(StoreKey("one", name))
        await clock.advance(chance.choice([0, 0, 30]))
    connection = sqlite3.connect(path)
    charged = dict(connection.execute("SELECT tenant, sum(size) FROM records GROUP BY tenant"))
    told = dict(connection.execute("SELECT tenant, bytes FROM sizes"))
    assert told.pop(b"") == sum(charged.values())
    assert told == charged
    children = "SELECT row, (SELECT count(*) FROM records AS c WHERE c.parent = r.row) FROM records AS r"
    assert sorted(connection.execute(children)) == sorted(connection.execute("SELECT row, children FROM records"))
    assert not list(connection.execute("SELECT row FROM records WHERE id IS NULL AND children = 0"))
    kept, held = (sorted(connection.execute(f"SELECT row FROM {table}")) for table in ("records", "contents"))
    assert kept == held
    connection.close()
    await clock.advance(2000)
    await store.sweep()
    assert rows(path) == {"branches": 0, "records": 0, "contents": 0, "sizes": 1}
    await store.aclose()


# -- what an operation costs ------------------------------------------------------------------------------------------


async def test_a_write_costs_the_same_at_the_end_of_a_long_chain(path: Path, store: SqliteStore) -> None:
    """In statements, and in bytes that go to the disk; a load is one query."""
    await append(store, "0")
    writer, statements = store._writer._connection, list[str]()
    assert writer is not None
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    log = path.with_name(path.name + "-wal")
    costs: list[tuple[int, int]] = []
    for number in range(1, 500):
        statements.clear()
        writer.set_trace_callback(statements.append)
        before = log.stat().st_size
        await append(store, str(number), str(number - 1), items=b"x" * 900)
        writer.set_trace_callback(None)
        costs.append((len(statements), log.stat().st_size - before))
    assert len({count for count, _ in costs}) == 1
    early, late = sum(size for _, size in costs[:50]), sum(size for _, size in costs[-50:])
    assert late < 1.5 * early

    await load(store, "0")
    reader, queries = store._reader._connection, list[str]()
    assert reader is not None
    reader.set_trace_callback(queries.append)
    assert len(await load(store, "499")) == 500
    assert len(queries) == 1


async def test_appending_to_a_large_record_does_not_read_it(path: Path, store: SqliteStore) -> None:
    """The parent of a turn may hold an image of many megabytes."""
    noise = random.Random(1).randbytes(4_000_000)
    await append(store, "a", items=noise)
    log = path.with_name(path.name + "-wal")
    await store.sweep()
    await append(store, "b", "a")
    assert log.stat().st_size < 200_000


# -- what is in the file ----------------------------------------------------------------------------------------------


async def test_the_file_is_its_owners_only(path: Path, store: SqliteStore) -> None:
    await append(store, "a")
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


async def test_a_sealed_file_shows_neither_content_nor_names_of_tenants(path: Path) -> None:
    def turned(sealed: bytes) -> bytes:
        return bytes(byte ^ 0x5A for byte in sealed)

    store = SqliteStore(path, codec=RecordCodec(seal=turned, unseal=turned))
    await append(store, "a", items=b'"secret"', tenant="anna@example.com")
    content = on_disk(path)
    assert b"secret" not in content
    assert b"anna" not in content
    assert await load(store, "a", "anna@example.com") == ["a"]
    other = SqliteStore(path)
    with pytest.raises(RecordUnreadable):
        await load(other, "a", "anna@example.com")
    for each in (store, other):
        await each.aclose()


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE contents SET content = x'0100ff' WHERE row = 2",
        "UPDATE contents SET content = (SELECT content FROM contents WHERE row = 1) WHERE row = 3",
        "DELETE FROM contents WHERE row = 2",
        "DELETE FROM records WHERE row = 1",
        "UPDATE records SET parent = 3 WHERE row = 1",
        "UPDATE records SET parent = NULL WHERE row = 2",
        "UPDATE records SET parent = 1 WHERE row = 3",
        "UPDATE records SET id = 'c' WHERE row = 2",
    ],
)
async def test_a_damaged_chain_is_an_error_and_never_another_chain(path: Path, store: SqliteStore, damage: str) -> None:
    for name, parent in (("a", None), ("b", "a"), ("c", "b")):
        await append(store, name, parent)
    connection = sqlite3.connect(path)
    if "id = 'c'" in damage:
        connection.execute("UPDATE records SET id = NULL WHERE row = 3")
    connection.execute(damage)
    connection.commit()
    connection.close()
    if damage == "UPDATE records SET parent = 3 WHERE row = 1":
        assert await load(store, "c") == ["a", "b", "c"], "a parent is older than its child: no circle is followed"
        return
    with pytest.raises(RecordUnreadable):
        await load(store, "c")


async def test_a_chain_above_the_bound_is_not_read(path: Path, store: SqliteStore) -> None:
    await append(store, "0", items=b"x" * 4000)
    for number in range(1, 10):
        await append(store, str(number), str(number - 1), items=random.Random(number).randbytes(4000))
    small = SqliteStore(path, codec=RecordCodec(max_bytes=10_000), clock=store._clock)
    with pytest.raises(RecordUnreadable, match="a chain above the limit"):  # before anything is decoded
        await load(small, "9")
    assert await load(small, "0") == ["0"]
    await small.aclose()


@pytest.mark.parametrize(
    ("pragma", "words"),
    [("user_version = 2", "version 2"), ("application_id = 7", "something else"), ("", "something else")],
)
async def test_a_file_of_something_else_is_refused_and_left_alone(path: Path, pragma: str, words: str) -> None:
    """An older server must not write into what a newer one has made; nor anybody into somebody else's tables."""
    if pragma:
        store = SqliteStore(path)
        await append(store, "a")
        await store.aclose()
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA {pragma}" if pragma else "CREATE TABLE theirs (x)")
    connection.commit()
    connection.close()
    before = on_disk(path)
    store = SqliteStore(path)
    for work in (append(store, "b"), load(store, "a"), store.delete(StoreKey("t", "a"))):
        with pytest.raises(SqliteFileRefused, match=words):
            await work
    await store.aclose()
    assert on_disk(path) == before


@pytest.fixture
def no_database(path: Path) -> None:
    path.write_bytes(b"not a database at all" * 1000)


@pytest.mark.usefixtures("no_database")
async def test_a_file_that_is_no_database_is_an_error(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="DatabaseError"):
        await load(store, "a")
    nowhere = SqliteStore(path.parent / "missing" / "responses.db")
    with pytest.raises(StoreError, match="FileNotFoundError"):
        await append(nowhere, "a")
    await store.aclose()
    await nowhere.aclose()


async def test_a_full_disk_loses_nothing_that_was_stored(path: Path, store: SqliteStore) -> None:
    """And no half of what was not."""
    await append(store, "a")
    writer = store._writer._connection
    assert writer is not None
    (pages,) = writer.execute("PRAGMA page_count").fetchone()
    writer.execute(f"PRAGMA max_page_count = {pages + 3}")
    noise = random.Random(1).randbytes(100_000)
    for _ in range(3):
        with pytest.raises(StoreError, match="OperationalError"):
            await append(store, "b", "a", items=noise)
    assert await load(store, "a") == ["a"]
    assert rows(path)["records"] == 1
    writer.execute("PRAGMA max_page_count = 1000000")
    await append(store, "b", "a", items=noise)
    assert await load(store, "b") == ["a", "b"]


async def test_a_parent_of_another_tenant_is_refused(store: SqliteStore) -> None:
    await append(store, "a", tenant="mine")
    with pytest.raises(StoreError, match="another tenant"):
        await store.append(StoreKey("yours", "b"), make_record("b", "a"), StoreKey("mine", "a"), TTL_S)


async def test_what_is_not_to_be_stored_is_refused(path: Path, store: SqliteStore) -> None:
    unstored = replace(make_record("a"), store=False)
    with pytest.raises(StoreError, match="not to be stored"):
        await store.append(StoreKey("t", "a"), unstored, None, TTL_S)
    assert rows(path)["records"] == 0


@pytest.mark.parametrize("path", ["", ":memory:"])
def test_a_database_without_a_file_is_refused(path: str) -> None:
    """Without this ``:memory:`` would be a file of that name, wherever the process was started."""
    with pytest.raises(ConfigurationError, match="name of a file"):
        SqliteStore(path)


@pytest.mark.parametrize(
    "options",
    [
        {"synchronous": "off"},
        {"fail": "open"},
        {"max_bytes": 0},
        {"max_tenant_bytes": 0},
        {"busy_timeout_s": -1},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        SqliteStore(path, **options)


def test_nothing_is_opened_before_it_is_used(path: Path) -> None:
    """A server may be forked after its app is made: a connection must not go along."""
    assert SqliteStore(path).fails_closed is False
    assert SqliteStore(path, fail="closed").fails_closed is True
    assert not path.exists()
