"""Measures the costs of the scaling model: servers and a Redis of their own, and the CPU clocks of their processes.

All by CPU time and counters, never by waiting time, so that a machine that is busy changes little.
"""

import asyncio
import json
import os
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Self

from redis.asyncio import Redis

from ws_responses.adapters.redis import RedisStore
from ws_responses.bench.client import Socket
from ws_responses.bench.inprocess import Conversation
from ws_responses.bench.results import Unexpected
from ws_responses.bench.scaling import Costs
from ws_responses.bench.server import CpuTime, Server, cpu_seconds
from ws_responses.protocol.calls import START
from ws_responses.protocol.events import encode
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey

_WORDS: Final = [f"word{number}" for number in range(2000)]
_CHAIN: Final = 25
_SOCKETS: Final = 16
_EVENTS: Final = 2_000
_IDLE_S: Final = 25.0
"""Longer than uvicorn's interval of pings (20 s), which an idle connection costs as well."""
_QUICK_IDLE_S: Final = 1.0
_TTL_S: Final = 3600.0
_AT_ONCE: Final = 50
_US: Final = 1e6
_SIZES_KB: Final = (1, 9)


class _RedisServer:
    """A Redis of its own, with nothing kept on disk."""

    def __init__(self) -> None:
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            raise Unexpected("neither redis-server nor valkey-server is on the PATH")
        self._folder = tempfile.TemporaryDirectory(prefix="ws-", dir="/tmp" if Path("/tmp").is_dir() else None)
        self._program = found
        self._process: subprocess.Popen[bytes]
        self.url = f"unix://{self._folder.name}/redis.sock"

    def __enter__(self) -> Self:
        path = self.url.removeprefix("unix://")
        command = [self._program, "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, cwd=self._folder.name)
        until = time.monotonic() + 10
        while not Path(path).exists():
            if time.monotonic() > until:
                raise Unexpected("the Redis server does not start")
            time.sleep(0.01)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()
        self._folder.cleanup()

    def cpu_us(self) -> float:
        return cpu_seconds(self._process.pid) * _US


def _text(chance: random.Random, size: int) -> str:
    """Return words that compress as text does."""
    words: list[str] = []
    while size > 0:
        words.append(chance.choice(_WORDS))
        size -= len(words[-1]) + 1
    return " ".join(words)


def measure(out: Path, *, quick: bool) -> int:
    """Measure, write the numbers, and return the exit code."""
    begin = time.perf_counter()
    try:
        costs = asyncio.run(_measure(quick=quick))
    except (Unexpected, OSError) as error:
        print(f"bench: stopped: {error}", file=sys.stderr)
        return 2
    measured = {
        "on": time.strftime("%Y-%m-%d"),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}",
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "seconds": round(time.perf_counter() - begin),
    }
    kept = {"measured": measured, "costs": {name: round(value, 3) for name, value in asdict(costs).items()}}
    out.write_text(json.dumps(kept, indent=2) + "\n")
    print(f"written: {out}")
    return 0


async def _measure(*, quick: bool) -> Costs:
    turns = 100 if quick else 1_000
    numbers: dict[str, float] = {}
    numbers |= await _idle(200, _QUICK_IDLE_S) if quick else await _idle(2_000, _IDLE_S)
    numbers |= await _relay(turns)
    numbers["kept_kb_per_kb"] = await _kept()
    with _RedisServer() as redis:
        numbers |= await _shared(redis, turns)
        numbers |= await _stored(redis, turns)
    return Costs(**numbers)


async def _idle(sockets: int, idle_s: float) -> Mapping[str, float]:
    """Open connections to a server, and let them idle."""
    with Server("plain") as server:
        await _open(server, "first", _AT_ONCE)
        before = server.resident_bytes()
        count = sockets // _AT_ONCE * _AT_ONCE
        for batch in range(sockets // _AT_ONCE):
            await _open(server, str(batch), _AT_ONCE)
        async with CpuTime(server):
            pass  # what the upgrades have left to do
        kib = (server.resident_bytes() - before) / count / 1024
        async with CpuTime(server) as idle:
            await asyncio.sleep(idle_s)
        return {"connection_kib": kib, "connection_us_per_s": idle.seconds * _US / idle_s / (count + _AT_ONCE)}


async def _open(server: Server, name: str, count: int) -> list[Socket]:
    return await asyncio.gather(*(Socket.connect(server.url, f"sk-{name}-{number}") for number in range(count)))


async def _relay(turns: int) -> Mapping[str, float]:
    """Take turns of two events, and one of many, on a server without a shared store."""
    with Server("plain") as server:
        await _turns(server, "short-2", _AT_ONCE)
        async with CpuTime(server) as short:
            taken = await _turns(server, "short-2", turns)
        async with CpuTime(server) as long:
            long_ones = await _turns(server, f"deltas-{_EVENTS}", max(1, turns // 100))
    turn_us = short.seconds / taken * _US
    return {"turn_us": turn_us, "event_us": (long.seconds / long_ones * _US - turn_us) / _EVENTS}


async def _turns(server: Server, model: str, count: int) -> int:
    """Take turns of 4 kB in chains, on several connections at the same time, as a server that is busy does; return how many."""
    each = max(1, count // _SOCKETS)
    sockets = min(count, _SOCKETS)
    await asyncio.gather(*(_chain_of_turns(server, model, each, f"sk-{number}") for number in range(sockets)))
    return each * sockets


async def _chain_of_turns(server: Server, model: str, count: int, key: str) -> None:
    chance = random.Random(key)
    socket = await Socket.connect(server.url, key)
    parent: str | None = None
    for number in range(count):
        frame = {"type": "response.create", "model": model, "input": _text(chance, 4000)}
        last = await socket.turn(encode(frame | ({"previous_response_id": parent} if parent else {})))
        ends = (number + 1) % _CHAIN == 0
        parent = None if ends else json.loads(last)["response"]["id"]
    await socket.close()


async def _kept() -> float:
    """Return what a chain keeps in memory, beside its items (as the memory benchmark does)."""
    import tracemalloc

    from ws_responses.bench.memory import chain_kb

    async with Conversation.with_app("replay", store=False):
        pass  # what is loaded or made once
    assert not tracemalloc.is_tracing()
    sample = await chain_kb(lambda: Conversation.with_app("replay", store=False), _CHAIN)
    return sample.value / sample.floor


async def _shared(redis: _RedisServer, turns: int) -> Mapping[str, float]:
    """Take the same turns with everything on Redis: what the server costs, and what Redis does."""
    client = _client(redis.url)
    with ExitStack() as stack:
        os.environ["WS_BENCH_REDIS"] = redis.url
        stack.callback(os.environ.pop, "WS_BENCH_REDIS")
        server = stack.enter_context(Server("redis"))
        await _turns(server, "short-2", _AT_ONCE)
        before, before_us = await _counters(client), redis.cpu_us()
        async with CpuTime(server) as shared:
            taken = await _turns(server, "short-2", turns)
        after, after_us = await _counters(client), redis.cpu_us()
    await client.aclose()
    grown = {name: (after[name] - before[name]) / taken for name in after}
    return {
        "shared_turn_us": shared.seconds / taken * _US,
        "redis_turn_us": (after_us - before_us) / taken,
        "redis_turn_commands": grown["total_commands_processed"],
        "redis_turn_in_bytes": grown["total_net_input_bytes"],
        "redis_turn_out_bytes": grown["total_net_output_bytes"],
    }


def _client(url: str) -> Any:
    untyped: Any = Redis  # it types each answer for both of its worlds
    return untyped.from_url(url)


async def _counters(client: Any) -> Mapping[str, float]:
    stats: Mapping[str, float] = await client.info("stats")
    names = ("total_commands_processed", "total_net_input_bytes", "total_net_output_bytes")
    return {name: stats[name] for name in names}


async def _stored(redis: _RedisServer, turns: int) -> Mapping[str, float]:
    """Store turns of two sizes, and load their chains: memory of Redis, and CPU on both sides."""
    client = _client(redis.url)
    store = RedisStore(client, timeout_s=30)
    taken: list[float] = []
    for size in _SIZES_KB:
        await client.flushall()
        before = (await client.info("memory"))["used_memory"]
        await _chains(store, size * 1000, turns)
        taken.append(((await client.info("memory"))["used_memory"] - before) / turns)
    small, large = taken
    per_byte = (large - small) / ((_SIZES_KB[1] - _SIZES_KB[0]) * 1000)
    loads = max(1, turns // _CHAIN)
    own, theirs = time.process_time(), redis.cpu_us()
    for number in range(loads):
        if len(await store.load(StoreKey("t", f"{number}.{_CHAIN - 1}"))) != _CHAIN:
            raise Unexpected("a chain is not as long as it was")
    loaded = loads * _CHAIN * _SIZES_KB[1] / 100
    own, theirs = (time.process_time() - own) * _US, redis.cpu_us() - theirs
    await store.aclose()
    await client.aclose()
    return {
        "redis_record_bytes": small - _SIZES_KB[0] * 1000 * per_byte,
        "redis_kb_per_kb": per_byte,
        "load_us": own / loaded,
        "redis_load_us": theirs / loaded,
    }


async def _chains(store: RedisStore, size: int, turns: int) -> None:
    chance = random.Random(size)
    for chain in range(max(1, turns // _CHAIN)):
        for number in range(_CHAIN):
            parent = None if number == 0 else f"{chain}.{number - 1}"
            text = encode({"type": "message", "role": "user", "content": _text(chance, size)})
            record = Record(
                id=f"{chain}.{number}",
                parent_id=parent,
                model="m",
                store=True,
                items=text,
                output_at=len(text),
                history_at=0,
                base=False,
                calls=START,
                generated=True,
                status="completed",
            )
            above = None if parent is None else StoreKey("t", parent)
            await store.append(StoreKey("t", record.id), record, above, _TTL_S)
