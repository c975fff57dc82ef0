"""The settlement sink on a stream: what was told to be safe is there once, in order, whatever the server does in between."""

import secrets
import signal
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.adapters.redis_server import Kind, RedisServer
from tests.shell import KEY, Shell, create, id_of, kinds
from tests.test_settlement import record
from ws_responses.adapters.redis_settlement import RedisSettlement
from ws_responses.clock import MonotonicClock
from ws_responses.errors import ConfigurationError, StoreError
from ws_responses.settlement import Settlement, SettlementHook, Settler, TurnRecord, TurnUsage
from ws_responses.testing import ScriptedApp

SAFE = {"appendonly": "yes", "appendfsync": "always"}


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=["redis", "valkey"])
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture(scope="module")
def server(kind: Kind) -> Generator[RedisServer]:
    with RedisServer(kind) as server:
        yield server


@pytest.fixture
async def sink(server: RedisServer) -> AsyncGenerator[Callable[..., RedisSettlement]]:
    """Makes the sink of one node."""
    prefix, sinks = secrets.token_hex(4), list[RedisSettlement]()

    def make(**options: Any) -> RedisSettlement:
        sinks.append(RedisSettlement(server.url, **{"prefix": prefix, "timeout_s": 5.0, **options}))
        return sinks[-1]

    yield make
    for each in sinks:
        await each.aclose()


async def ids_in(sink: RedisSettlement, shard: int = 0) -> list[str]:
    return [turn.record.turn_id for turn in await sink.records(shard=shard, limit=100_000)]


async def test_a_record_comes_back_as_it_was(sink: Callable[..., RedisSettlement]) -> None:
    given = record("a")
    usage = TurnUsage(input_tokens=3, raw='{"input_tokens":3}', partial=True)
    full = TurnRecord(
        **{name: getattr(given, name) for name in given.__struct_fields__} | {"usage": usage, "flags": ("a:b",)}
    )
    await sink()(full)
    (turn,) = await sink().records()
    assert turn.record == full


async def test_a_record_that_comes_again_is_there_once(sink: Callable[..., RedisSettlement]) -> None:
    """From the same node and from others, one after another and at the same time."""
    nodes = [sink() for _ in range(3)]
    await nodes[0](record("first"))
    async with anyio.create_task_group() as tasks:
        for number in range(30):
            tasks.start_soon(nodes[number % 3], record(f"turn {number // 6}"))
    await nodes[1](record("first"))
    found = await ids_in(nodes[0])
    assert sorted(found) == ["first", *(f"turn {number}" for number in range(5))]


async def test_a_record_whose_answer_was_lost_is_there_once(
    server: RedisServer, sink: Callable[..., RedisSettlement]
) -> None:
    """The server has taken it, and nobody was told: it comes again."""
    one = sink(timeout_s=0.2)
    await one(record("a"))
    server.signal(signal.SIGSTOP)
    try:
        for _ in range(2):
            with pytest.raises(StoreError, match="Timeout"):
                await one(record("b"))
    finally:
        server.signal(signal.SIGCONT)
    await sink()(record("b"))
    await sink()(record("c"))
    assert await ids_in(sink()) == ["a", "b", "c"]


async def test_records_are_read_by_a_cursor_and_then_forgotten(sink: Callable[..., RedisSettlement]) -> None:
    one = sink()
    for name in "abcde":
        await one(record(name))
    first = await one.records(limit=2)
    rest = await one.records(after=first[-1].position)
    assert [turn.record.turn_id for turn in (*first, *rest)] == list("abcde")
    assert await one.forget(first[-1].position) == 2
    await one(record("a"))
    assert await ids_in(one) == list("cde"), "one that was read and forgotten does not come back"


async def test_a_tenants_records_are_in_one_shard(sink: Callable[..., RedisSettlement]) -> None:
    """Else a chain would have no order."""
    one = sink(shards=3)
    for number in range(90):
        await one(record(f"turn {number}", tenant=f"tenant {number % 30}"))
    shards = [await one.records(shard=shard, limit=1000) for shard in range(3)]
    tenants = [{turn.record.tenant for turn in shard} for shard in shards]
    assert sum(map(len, tenants)) == len(set().union(*tenants)) == 30
    assert all(tenants), "and they are spread"
    for shard in shards:
        numbers = [int(turn.record.turn_id.removeprefix("turn ")) for turn in shard]
        assert numbers == sorted(numbers)


async def test_the_stream_and_what_is_remembered_are_bounded(
    server: RedisServer, sink: Callable[..., RedisSettlement]
) -> None:
    one = sink(max_length=200, remember_s=60.0)
    async with anyio.create_task_group() as tasks:
        for number in range(500):
            tasks.start_soon(one, record(str(number)))
    with server.client() as client:
        keys = [key for key in client.scan_iter(count=1000) if key.startswith(one._prefix.encode())]
        (stream,) = (key for key in keys if key.endswith(b":turns"))
        assert 200 <= client.xlen(stream) < 400
        assert all(0 < client.pttl(key) <= 60_000 for key in keys if key != stream)


# -- a server that fails ----------------------------------------------------------------------------------------------


def noting(sink: RedisSettlement, failures: list[str]) -> SettlementHook:
    """The sink, whose failures the test can wait for."""

    async def hook(record: TurnRecord) -> None:
        try:
            await sink(record)
        except StoreError:
            failures.append(record.turn_id)
            raise

    return hook


def settler(sink: SettlementHook, **options: Any) -> Settler:
    """A real one that tries again soon: the server has a time of its own."""
    return Settler(
        Settlement(sink, **{"backoff_s": 0.02, "max_backoff_s": 0.1, "attempts": 1000, **options}), MonotonicClock()
    )


async def test_nothing_is_lost_or_doubled_while_the_server_is_killed_and_comes_back(kind: Kind) -> None:
    """In the middle of a stream of turns, several times."""
    with RedisServer(kind, SAFE) as server:
        sink = RedisSettlement(server.url, timeout_s=0.5)
        delivering = settler(sink)
        async with anyio.create_task_group() as tasks:
            for number in range(90):
                one = record(f"turn {number}", None if number < 3 else f"turn {number - 3}")
                delivering.submit(one, tasks.start_soon)
                if number % 30 == 10:
                    while delivering.delivered < number // 2:
                        await anyio.lowlevel.checkpoint()
                    server.kill()
                if number % 30 == 20:
                    server.start()
        assert (delivering.delivered, delivering.undelivered) == (90, 0)
        found = await ids_in(sink)
        assert sorted(found) == sorted(f"turn {number}" for number in range(90))
        for chain in range(3):
            numbers = [int(turn.removeprefix("turn ")) for turn in found]
            mine = [number for number in numbers if number % 3 == chain]
            assert mine == sorted(mine), "in order along a chain"
        await sink.aclose()


async def test_a_server_that_is_full_takes_nothing_and_the_settler_tries_again(kind: Kind) -> None:
    with RedisServer(kind, {"maxmemory-policy": "noeviction"}) as server:
        sink = RedisSettlement(server.url, timeout_s=5.0)
        await sink(record("a"))
        failures: list[str] = []
        delivering = settler(noting(sink, failures))
        with server.client() as client:
            client.config_set("maxmemory", "1kb")
            before = sorted(client.scan_iter(count=1000))
            with pytest.raises(StoreError, match="OutOfMemory"):
                await sink(record("b"))
            assert sorted(client.scan_iter(count=1000)) == before, "nor the mark of a record that is not there"
            async with anyio.create_task_group() as tasks:
                delivering.submit(record("b"), tasks.start_soon)
                while not failures:
                    await anyio.lowlevel.checkpoint()
                client.config_set("maxmemory", "0")
        assert await ids_in(sink) == ["a", "b"]
        await sink.aclose()


async def test_what_is_given_up_is_reported(server: RedisServer, sink: Callable[..., RedisSettlement]) -> None:
    lost: list[str] = []
    delivering = settler(sink(timeout_s=0.1), attempts=2, on_undelivered=lambda record, _: lost.append(record.turn_id))
    server.signal(signal.SIGSTOP)
    try:
        async with anyio.create_task_group() as tasks:
            delivering.submit(record("a"), tasks.start_soon)
    finally:
        server.signal(signal.SIGCONT)
    assert lost == ["a"]


async def test_no_client_is_told_of_an_end_that_is_not_in_the_books(kind: Kind) -> None:
    """`before_terminal`, and a server that is killed with a power of its own: what the client has seen is there afterwards."""
    with RedisServer(kind, SAFE) as server:
        sink = RedisSettlement(server.url, timeout_s=1.0)
        failures: list[str] = []
        hook = noting(sink, failures)
        settlement = Settlement(hook, before_terminal=True, terminal_timeout_s=1e6, backoff_s=0.0, attempts=10**6)
        shell = Shell(ScriptedApp(), settlement=settlement)
        async with shell.socket(KEY) as ws:
            told = [id_of(await ws.turn(create())) for _ in range(5)]
            server.kill()
            await ws.send_json(create())
            while not failures:
                await anyio.lowlevel.checkpoint()
            assert "completed" not in kinds([await ws.receive_json() for _ in range(ws.unread)])
            server.start()
            told.append(id_of(await ws.collect()))
            server.kill()
            server.start()
            reader = RedisSettlement(server.url)
            assert [turn.record.response_id for turn in await reader.records()] == told
            await reader.aclose()
        await sink.aclose()


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"shards": 0}, {"max_length": 0}, {"remember_s": 0}, {"timeout_s": 0}, {"prefix": "{x}"}], ids=str
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RedisSettlement("redis://localhost", **options)


async def test_a_shard_that_is_not_there_is_refused(sink: Callable[..., RedisSettlement]) -> None:
    with pytest.raises(ConfigurationError):
        await sink().records(shard=1)
