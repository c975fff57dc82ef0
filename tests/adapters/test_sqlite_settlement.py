"""The SQLite sink: what was written is there after a kill, once, in order, whoever else writes."""

import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from tests.test_settlement import record
from ws_responses.adapters.sqlite_settlement import SettlementConflict, SqliteSettlement
from ws_responses.settlement import Settlement, Settler, TurnRecord, TurnUsage
from ws_responses.testing import FakeClock

WRITER = """
import sys
import anyio
from tests.test_settlement import record
from ws_responses.adapters.sqlite_settlement import SqliteSettlement

async def main(path, name, count):
    sink = SqliteSettlement(path)
    for number in range(count):
        await sink(record(f"{name}-{number}"))
        print(f"{name}-{number}", flush=True)

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


def writer(path: Path, name: str, count: int) -> "subprocess.Popen[str]":
    """Another process that writes records, and prints the id of each when it is told that it is safe."""
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


async def ids_in(path: Path) -> list[str]:
    sink = SqliteSettlement(path)
    found = [settled.record.turn_id for settled in await sink.records(limit=100_000)]
    await sink.aclose()
    return found


async def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    sink = SqliteSettlement(tmp_path / "turns.db")
    given = record("a")
    usage = TurnUsage(input_tokens=3, raw='{"input_tokens":3}', partial=True)
    full = type(given)(
        **{name: getattr(given, name) for name in given.__struct_fields__} | {"usage": usage, "flags": ("a:b",)}
    )
    await sink(full)
    (settled,) = await sink.records()
    assert (settled.position, settled.record) == (1, full)
    await sink.aclose()


async def test_a_record_that_comes_again_is_there_once(tmp_path: Path) -> None:
    """A delivery whose answer was lost is tried again."""
    sink = SqliteSettlement(tmp_path / "turns.db")
    for _ in range(3):
        await sink(record("a"))
    await sink.aclose()
    assert await ids_in(tmp_path / "turns.db") == ["a"]


async def test_what_waits_together_is_written_together(tmp_path: Path) -> None:
    """One sync of the disk for each record would bound a server to some hundred turns a second."""
    sink = SqliteSettlement(tmp_path / "turns.db")
    await sink(record("first"))
    commits: list[str] = []
    assert sink._connection is not None
    sink._connection.set_trace_callback(lambda text: commits.append(text) if text == "COMMIT" else None)
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(sink, record(str(number)))
    assert len(commits) <= 3
    await sink.aclose()
    assert sorted(await ids_in(tmp_path / "turns.db")) == sorted(["first", *map(str, range(50))])


async def test_records_are_read_by_a_cursor_and_then_forgotten(tmp_path: Path) -> None:
    sink = SqliteSettlement(tmp_path / "turns.db")
    for name in "abcde":
        await sink(record(name))
    first = await sink.records(limit=2)
    rest = await sink.records(after=first[-1].position)
    assert [settled.record.turn_id for settled in (*first, *rest)] == list("abcde")
    assert await sink.forget(first[-1].position) == 2
    await sink(record("f"))
    left = await sink.records()
    assert [settled.record.turn_id for settled in left] == list("cdef")
    assert left[-1].position == 6, "a position is never given twice: a reader's cursor would skip the record"
    await sink.forget(6)
    await sink(record("g"))
    assert [settled.position for settled in await sink.records()] == [7]
    await sink.aclose()


async def test_each_commit_is_on_the_disk(tmp_path: Path) -> None:
    """In WAL mode, anything less than FULL may lose the last commits when the machine loses its power."""
    sink = SqliteSettlement(tmp_path / "turns.db")
    await sink(record("a"))
    assert sink._connection is not None
    assert sink._connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert sink._connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    await sink.aclose()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_what_was_told_to_be_safe_survives_a_kill(anyio_backend: str, tmp_path: Path) -> None:
    """A process that is killed runs no more code of its own: what was in its memory only would be lost."""
    path = tmp_path / "turns.db"
    child = writer(path, "k", 100_000)
    assert child.stdout is not None
    safe = [child.stdout.readline().strip() for _ in range(30)]
    child.send_signal(signal.SIGKILL)
    safe += [line.strip() for line in child.stdout.read().split("\n") if line.strip()]
    child.stdout.close()
    assert child.wait() == -signal.SIGKILL

    found = await ids_in(path)
    assert len(safe) >= 30
    assert found[: len(safe)] == safe
    assert len(found) - len(safe) in (0, 1), "at most the record whose answer was on its way"


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_several_processes_write_into_one_file(anyio_backend: str, tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    children = [writer(path, name, 25) for name in ("one", "two", "three")]
    told = [child.communicate()[0].split() for child in children]
    assert [child.returncode for child in children] == [0, 0, 0]
    found = await ids_in(path)
    assert sorted(found) == sorted(turn_id for child in told for turn_id in child)
    for child in told:
        assert [turn_id for turn_id in found if turn_id in child] == child


async def test_a_file_that_is_locked_for_too_long_fails_and_the_settler_tries_again(tmp_path: Path) -> None:
    path = tmp_path / "turns.db"
    sink = SqliteSettlement(path, busy_timeout_s=0.05)
    await sink(record("a"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        await sink(record("b"))
    assert sink._waiting == {}

    clock = FakeClock()
    failed = anyio.Event()

    async def hook(record: TurnRecord) -> None:
        try:
            await sink(record)
        except sqlite3.OperationalError:
            failed.set()
            raise

    settler = Settler(Settlement(hook, backoff_s=1.0), clock, chance=lambda: 0.0)
    async with anyio.create_task_group() as tasks:
        delivery = settler.submit(record("b"), tasks.start_soon)
        await failed.wait()
        other.execute("ROLLBACK")
        await clock.advance(1.0)
        await delivery.done.event.wait()
    other.close()
    await sink.aclose()
    assert await ids_in(path) == ["a", "b"]


async def test_a_batch_that_fails_fails_for_each_of_its_records(tmp_path: Path) -> None:
    """A record that is told to be safe because another one's turn it was to fail would be lost."""
    path = tmp_path / "turns.db"
    sink = SqliteSettlement(path, busy_timeout_s=0.01)
    await sink(record("a"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    failed: list[str] = []

    async def write(name: str) -> None:
        try:
            await sink(record(name))
        except sqlite3.OperationalError:
            failed.append(name)

    async with anyio.create_task_group() as tasks:
        for name in "bcd":
            tasks.start_soon(write, name)
    other.execute("ROLLBACK")
    other.close()
    assert sorted(failed) == ["b", "c", "d"]
    await sink(record("e"))
    await sink.aclose()
    assert await ids_in(path) == ["a", "e"]


async def test_a_call_that_is_cancelled_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    sink = SqliteSettlement(tmp_path / "turns.db")
    await sink(record("a"))
    hold, held = threading.Event(), threading.Event()

    def block() -> None:
        held.set()
        hold.wait(10)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(sink._alone, block)
        await to_thread.run_sync(held.wait)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await sink(record("b"))
        assert sink._waiting == {}
        hold.set()
    await sink.aclose()


@pytest.mark.parametrize("what", ["another's table", "another version"])
async def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, what: str) -> None:
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE people (name TEXT)" if what == "another's table" else "PRAGMA user_version = 7")
    other.commit()
    other.close()
    with pytest.raises(SettlementConflict):
        await SqliteSettlement(path)(record("a"))


async def test_it_can_be_closed_and_used_again(tmp_path: Path) -> None:
    sink = SqliteSettlement(tmp_path / "turns.db")
    await sink.aclose()
    await sink(record("a"))
    await sink.aclose()
    await sink(record("b"))
    await sink.aclose()
    assert await ids_in(tmp_path / "turns.db") == ["a", "b"]
