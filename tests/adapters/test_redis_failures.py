"""What becomes of chains when the Redis server stops, hangs, is full or starts anew: an error or a miss, never a wrong answer."""

import gc
import random
import signal
from collections.abc import AsyncGenerator, Generator
from typing import Any, Literal

import anyio
import anyio.lowlevel
import pytest

from tests.adapters.redis_server import RedisServer
from tests.adapters.test_redis import append, load
from tests.shell import KEY, Shell, code_of, create, id_of, kinds, types_of
from ws_responses.adapters.redis import RedisStore
from ws_responses.errors import RecordUnreadable, StoreError
from ws_responses.instrumentation import StoreFailed
from ws_responses.state.store import StoreKey
from ws_responses.testing import ScriptedApp, settle

TTL_S = 1000.0


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def server() -> Generator[RedisServer]:
    with RedisServer("redis") as server:
        yield server


@pytest.fixture
async def store(server: RedisServer) -> AsyncGenerator[RedisStore]:
    store = RedisStore(server.url, timeout_s=0.3)
    yield store
    await store.aclose()


async def test_a_server_that_is_not_there_is_an_error(server: RedisServer, store: RedisStore) -> None:
    server.kill()
    for work in (append(store, "t", "a"), load(store, "t", "a"), store.delete(StoreKey("t", "a"))):
        with pytest.raises(StoreError, match="ConnectionError"):
            await work
    server.start()
    await append(store, "t", "a")
    assert await load(store, "t", "a") == ["a"]


async def test_a_server_that_hangs_is_an_error_in_bounded_time(server: RedisServer, store: RedisStore) -> None:
    """And what it says in the end is not taken for the answer to something else."""
    for tenant in ("mine", "yours"):
        await append(store, tenant, "a", items=b'"%s"' % tenant.encode())
    server.signal(signal.SIGSTOP)
    failed = 0
    for number in range(3):
        for work in (append(store, "mine", f"b{number}", "a"), load(store, "mine", "a")):
            with pytest.raises(StoreError, match="Timeout"):
                await work
            failed += 1
    assert failed == 6
    server.signal(signal.SIGCONT)
    for tenant in ("yours", "mine", "yours"):
        (record,) = await store.load(StoreKey(tenant, "a"))
        assert record.items == b'"%s"' % tenant.encode()
    for number in range(3):
        assert await load(store, "mine", f"b{number}") in ([], ["a", f"b{number}"]), "whole or nothing"


async def test_callers_that_give_up_on_a_slow_server_get_nobody_elses_answer(
    server: RedisServer, store: RedisStore
) -> None:
    """A storm of time limits and hang-ups around answers that are on their way."""
    tenants = [f"tenant{number}" for number in range(20)]
    for tenant in tenants:
        await append(store, tenant, "a", items=b'"%s"' % tenant.encode())
    chance = random.Random(1)
    asked = 0

    async def ask(tenant: str) -> None:
        nonlocal asked
        for _ in range(20):
            asked += 1
            with anyio.move_on_after(chance.choice([0, 0.0001, 0.001, 0.01, 1])):
                try:
                    (record,) = await store.load(StoreKey(tenant, "a"))
                except StoreError:
                    continue
                assert record.items == b'"%s"' % tenant.encode()

    with server.client() as client:
        async with anyio.create_task_group() as tasks:
            for tenant in tenants:
                tasks.start_soon(ask, tenant)
            for number in range(5):
                while asked < 70 * number:
                    await anyio.lowlevel.checkpoint()
                client.execute_command("CLIENT", "PAUSE", 50, "ALL")
    for tenant in tenants:
        (record,) = await store.load(StoreKey(tenant, "a"))
        assert record.items == b'"%s"' % tenant.encode()
    await store.aclose()
    assert not store._operations._running


async def test_a_failure_that_nobody_waits_for_is_not_logged(
    server: RedisServer, store: RedisStore, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio would log the whole exception of a task that nobody has asked for it."""
    await append(store, "t", "a")
    server.signal(signal.SIGSTOP)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(load, store, "t", "a")
        await settle()
        tasks.cancel_scope.cancel()
    await store._operations.wait()
    gc.collect()
    server.signal(signal.SIGCONT)
    assert "never retrieved" not in caplog.text


async def test_an_append_ends_although_its_caller_has_gone(server: RedisServer, store: RedisStore) -> None:
    """Between its commands, too: else the caller's end would decide what is stored."""
    await append(store, "t", "a")
    for number in range(12):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(append, store, "t", f"b{number}", "a")
            for _ in range(number + 1):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
    await store.aclose()
    for number in range(12):
        assert await load(store, "t", f"b{number}") == ["a", f"b{number}"]


async def test_a_server_that_starts_anew_has_forgotten_and_says_so(server: RedisServer, store: RedisStore) -> None:
    """Without persistence: what was above is gone, so that nothing is stored below it; a new chain is."""
    await append(store, "t", "a")
    await append(store, "t", "b", "a")
    server.kill()
    server.start()
    await settle()  # the loop hears of the old connection's end: it is made anew, and nothing fails
    assert await load(store, "t", "b") == []
    with pytest.raises(StoreError, match="not stored"):
        await append(store, "t", "c", "b")
    await append(store, "t", "a")
    await append(store, "t", "c", "a")
    assert await load(store, "t", "c") == ["a", "c"]


async def test_with_persistence_what_was_acknowledged_survives_a_kill() -> None:
    with RedisServer("redis", {"appendonly": "yes", "appendfsync": "always"}) as server:
        store = RedisStore(server.url, timeout_s=2)
        told = ["0"]
        await append(store, "t", "0")

        async def grow() -> None:
            while True:
                try:
                    await append(store, "t", str(len(told)), told[-1])
                except StoreError:
                    return
                told.append(str(len(told)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(grow)
            while len(told) < 50:
                await anyio.lowlevel.checkpoint()
            server.kill()
        server.start()
        assert await load(store, "t", told[-1]) == told
        await append(store, "t", "on it goes", told[-1])
        assert await load(store, "t", "on it goes") == [*told, "on it goes"]
        await store.aclose()


async def test_scripts_that_the_server_has_forgotten_are_sent_again(server: RedisServer, store: RedisStore) -> None:
    await append(store, "t", "a")
    with server.client() as client:
        client.script_flush()
    await append(store, "t", "b", "a")
    with server.client() as client:
        client.script_flush()
    await store.delete(StoreKey("t", "a"))
    assert await load(store, "t", "b") == ["a", "b"]


async def test_a_server_that_is_full_takes_nothing_and_loses_nothing(server: RedisServer, store: RedisStore) -> None:
    """Not half a record, nor the one that was to be replaced."""
    await append(store, "t", "a")
    await append(store, "t", "b", "a", items=b'"old"')
    with server.client() as client:
        client.config_set("maxmemory", "1kb")
        client.config_set("maxmemory-policy", "noeviction")
        before = {key: client.dump(key) for key in client.scan_iter(count=1000)}
        for name, parent in (("c", "b"), ("b", "a"), ("fork", "a"), ("x", None)):
            with pytest.raises(StoreError, match="OutOfMemory"):
                await append(store, "t", name, parent, items=b'"new"')
        assert {key: client.dump(key) for key in client.scan_iter(count=1000)} == before
        assert await load(store, "t", "b") == ["a", "b"]
        client.config_set("maxmemory", "0")
    await append(store, "t", "c", "b")
    assert await load(store, "t", "c") == ["a", "b", "c"]


async def test_a_server_that_evicts_never_gives_half_a_chain(server: RedisServer) -> None:
    store = RedisStore(server.url, timeout_s=5)
    with server.client() as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory-policy", "allkeys-random")
        client.config_set("maxmemory", str(used + 400_000))
    chance = random.Random(1)
    chains: dict[str, list[str]] = {}
    outcomes: dict[str, int] = {"whole": 0, "missing": 0, "refused": 0}
    for number in range(600):
        name, parent = str(number), chance.choice([None, *list(chains)[-20:]])
        try:
            await append(store, "t", name, parent, items=b"x" * 2000 + chance.randbytes(800))
        except StoreError:
            outcomes["refused"] += 1
            continue
        chains[name] = [*(chains[parent] if parent is not None else ()), name]
        asked = chance.choice(list(chains)[-40:])
        try:
            loaded = await load(store, "t", asked)
        except RecordUnreadable:
            loaded = []
        assert loaded in ([], chains[asked])
        outcomes["whole" if loaded else "missing"] += 1
    assert min(outcomes.values()) > 10, outcomes
    await store.aclose()


# -- as clients see it ------------------------------------------------------------------------------------------------


async def written(shell: Shell) -> None:
    """Return when what is to be stored has been written, or has failed."""
    for connection in shell.middleware.registry.connections:
        await connection.stored()


@pytest.mark.parametrize("fail", ["miss", "closed"])
async def test_a_socket_goes_on_while_the_server_is_away(server: RedisServer, fail: Literal["miss", "closed"]) -> None:
    """Its own chain is in memory. Another socket is told what ``fail`` says, and finds the chain when the server is back."""
    app = ScriptedApp()
    store = RedisStore(server.url, timeout_s=0.3, fail=fail)
    shell = Shell(app, store=store)
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create()))
        await written(shell)
        server.signal(signal.SIGSTOP)
        assert kinds(await ws.turn(create(previous_response_id=first)))[-1] == "completed"
        async with shell.socket(KEY) as other:
            (event,) = await other.turn(create(previous_response_id=first))
            expected = {"miss": (400, "previous_response_not_found"), "closed": (503, "store_unavailable")}
            assert (event["status"], code_of(event)) == expected[fail]
            assert kinds(await other.turn(create("something new")))[-1] == "completed"
            server.signal(signal.SIGCONT)
            assert kinds(await other.turn(create(previous_response_id=first)))[-1] == "completed"
            await written(shell)
    assert types_of(app.requests[-1].body) == ["user", "assistant", "user"]
    assert ("load", "StoreError") in {(fact.operation, fact.error) for fact in shell.facts.of(StoreFailed)}
    await store.aclose()
