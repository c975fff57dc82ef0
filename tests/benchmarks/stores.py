"""What a chain of 500 turns costs in each store: `python -m tests.benchmarks.stores`.

Prints, for each store: the median time of an append among the first and the last 50 turns, the bytes that an append writes there (SQLite:
growth of the log; Redis: what is sent), the median time of a load of the whole chain, and its queries or round trips.
"""

import json
import random
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median
from typing import Any

import anyio
from redis.asyncio import Redis

from tests.adapters.redis_server import RedisServer
from ws_responses.adapters.redis import RedisStore
from ws_responses.adapters.sqlite import SqliteStore
from ws_responses.state.budget import Ledger
from ws_responses.state.store import InProcessStore, ResponseStore, StoreKey
from ws_responses.testing.store_conformance import make_record

TURNS = 500
EDGE = 50
LOADS = 9
WORDS = [f"word{number}" for number in range(2000)]

Written = Callable[[], int]


def items_of(number: int) -> bytes:
    """About 4 kB of JSON, as a tool call with its output and an answer."""
    chance = random.Random(number)
    text = " ".join(chance.choices(WORDS, k=250))
    return (
        json.dumps({"type": "message", "role": "user", "content": text}).encode()[:-2]
        + b'..."}'
        + b","
        + json.dumps({"type": "message", "role": "assistant", "content": text[::-1]}).encode()
    )


async def timed(work: Callable[[], Awaitable[Any]]) -> float:
    begin = time.perf_counter()
    await work()
    return time.perf_counter() - begin


async def measure(name: str, store: ResponseStore, written: Written, asked: Written) -> None:
    """Append a chain, load it, and print a line."""
    times: list[float] = []
    sizes: list[int] = []
    for number in range(TURNS):
        parent = None if number == 0 else str(number - 1)
        record = make_record(str(number), parent, items=items_of(number))
        key, above = StoreKey("t", str(number)), None if parent is None else StoreKey("t", parent)
        before = written()

        async def append(key: Any = key, record: Any = record, above: Any = above) -> None:
            await store.append(key, record, above, 3600.0)

        times.append(await timed(append))
        sizes.append(written() - before)
    before = asked()
    loads = [await timed(lambda: store.load(StoreKey("t", str(TURNS - 1)))) for _ in range(LOADS)]
    questions = (asked() - before) / LOADS
    print(
        f"{name:16} append {median(times[1:EDGE]) * 1e3:6.2f} -> {median(times[-EDGE:]) * 1e3:6.2f} ms   "
        f"bytes {sum(sizes[1:EDGE]) // (EDGE - 1):6} -> {sum(sizes[-EDGE:]) // EDGE:6}   "
        f"load of {TURNS} {median(loads) * 1e3:6.1f} ms, {questions:g} queries"
    )


class Counting:
    """A client that counts commands and the bytes in them."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.commands = 0
        self.sent = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        self.commands += 1
        self.sent += sum(len(each) if isinstance(each, bytes | str) else 8 for each in args)
        return await self._client.execute_command(*args, **options)

    async def aclose(self) -> None:
        await self._client.aclose()

    def get_encoder(self) -> Any:
        return self._client.get_encoder()


async def of_redis(kind: Any) -> None:
    with RedisServer(kind) as server:
        client = Counting(Redis.from_url(server.url))
        store = RedisStore(client, timeout_s=30)
        await measure(kind, store, lambda: client.sent, lambda: client.commands)
        await store.aclose()
        await client.aclose()


async def of_sqlite(synchronous: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "responses.db"
        store = SqliteStore(path, synchronous=synchronous)
        await store.append(StoreKey("t", "first"), make_record("first"), None, 3600.0)
        await store.load(StoreKey("t", "first"))
        writer, reader = store._writer._connection, store._reader._connection
        assert writer is not None
        assert reader is not None
        queries: list[str] = []
        writer.execute("PRAGMA wal_autocheckpoint = 0")
        reader.set_trace_callback(queries.append)
        log = path.with_name(path.name + "-wal")
        await measure(f"sqlite {synchronous}", store, lambda: log.stat().st_size, lambda: len(queries))
        await store.aclose()


async def main() -> None:
    print(f"{TURNS} turns of {len(items_of(1))} bytes")
    await measure("in process", InProcessStore(Ledger(1 << 40, 1 << 40), time.monotonic), lambda: 0, lambda: 0)
    for synchronous in ("normal", "full"):
        await of_sqlite(synchronous)
    for kind in ("redis", "valkey"):
        await of_redis(kind)


if __name__ == "__main__":
    anyio.run(main)
