"""Places of tenants on real servers: never too many, none lost for ever, whatever ends or fails in between."""

import secrets
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.adapters.redis_server import Kind, RedisServer
from tests.shell import KEY, Shell, code_of, create, kinds
from ws_responses.adapters.redis_counters import RedisCounters
from ws_responses.counters import Place
from ws_responses.errors import ConfigurationError, StoreError
from ws_responses.instrumentation import StoreFailed
from ws_responses.testing import ScriptedApp, steps

NODE = """
import sys
import anyio
from ws_responses.adapters.redis_counters import RedisCounters

async def main(url, prefix, many):
    counters = RedisCounters(url, prefix=prefix, lease_s=1.0, timeout_s=0.2)
    for _ in range(many):
        assert await counters.take("connections", "t", many) is not None
    print("taken", flush=True)
    await anyio.sleep_forever()

anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
"""


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Generator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture
def prefix() -> str:
    return secrets.token_hex(4)


@pytest.fixture
async def node(server: RedisServer, prefix: str) -> AsyncGenerator[Callable[..., RedisCounters]]:
    """Makes the counters of one node."""
    nodes = list[RedisCounters]()

    def make(**options: Any) -> RedisCounters:
        nodes.append(RedisCounters(server.url, prefix=prefix, **{"timeout_s": 2.0, **options}))
        return nodes[-1]

    yield make
    for each in nodes:
        await each.aclose()


async def taken(counters: RedisCounters, limit: int, tenant: str = "t") -> Place:
    place = await counters.take("connections", tenant, limit)
    assert place is not None
    return place


async def until_free(counters: RedisCounters, limit: int, tenant: str = "t") -> Place:
    """Ask again and again until there is a place."""
    while True:
        place = await counters.take("connections", tenant, limit)
        if place is not None:
            return place
        await anyio.sleep(0.02)


async def test_places_are_counted_over_nodes_and_tenants_apart(node: Callable[..., RedisCounters]) -> None:
    one, two = node(), node()
    first = await taken(one, 2)
    assert first.counted
    await taken(two, 2)
    assert await one.take("connections", "t", 2) is None
    assert await two.take("connections", "t", 2) is None
    assert await two.take("turns", "t", 2) is not None, "another kind"
    assert await two.take("connections", "u", 2) is not None, "another tenant"
    first.give_back()
    first.give_back()
    await until_free(two, 2)
    assert await one.take("connections", "t", 2) is None


async def test_a_storm_never_takes_more_than_there_are(node: Callable[..., RedisCounters]) -> None:
    """Asking first and taking then would let in all who ask at the same time."""
    nodes, held, most = [node() for _ in range(3)], 0, 0

    async def client(counters: RedisCounters) -> None:
        nonlocal held, most
        for _ in range(5):
            place = await counters.take("turns", "t", 7)
            if place is None:
                continue
            held += 1
            most = max(most, held)
            await anyio.lowlevel.checkpoint()
            held -= 1
            place.give_back()

    async with anyio.create_task_group() as tasks:
        for number in range(60):
            tasks.start_soon(client, nodes[number % 3])
    assert most <= 7
    for each in nodes:
        await each._server.operations.wait()
        assert (each._held, each._leaving) == ({}, {})
    places = [await taken(nodes[0], 7) for _ in range(7)]
    assert len(places) == 7


async def test_what_is_given_back_can_be_taken_at_once(
    node: Callable[..., RedisCounters], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The turns of a lane follow each other: the next must not be refused for the sake of the one before it."""
    counters, held_up = node(), anyio.Event()
    real = counters._server.client.execute_command

    async def late(*command: Any, **options: Any) -> Any:
        if command[0] == "ZREM":
            await held_up.wait()
        return await real(*command, **options)

    monkeypatch.setattr(counters._server.client, "execute_command", late)
    for _ in range(20):
        place = await taken(counters, 1)
        place.give_back()
    held_up.set()
    await counters._server.operations.wait()
    assert counters._leaving == {}


async def test_callers_that_give_up_leave_nothing_taken(node: Callable[..., RedisCounters]) -> None:
    counters = node()
    for number in range(40):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(counters.take, "connections", "t", 40)
            for _ in range(number % 12):
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        if number % 12 > 8:  # some came to their end
            for key, names in list(counters._held.items()):
                for name in list(names):
                    counters.leave(key, name)
    await counters._server.operations.wait()
    for _ in range(40):
        await taken(counters, 40)


async def test_the_places_of_a_node_that_was_killed_are_free_again(
    server: RedisServer, prefix: str, node: Callable[..., RedisCounters]
) -> None:
    """A number that is only counted up and down would stay too high for ever."""
    counters = node(lease_s=1.0, timeout_s=0.2)
    command = [sys.executable, "-c", NODE, server.url, prefix, "5"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:  # noqa: ASYNC220 - a test of its own
        try:
            assert other.stdout is not None
            assert other.stdout.readline().strip() == b"taken"
            assert await counters.take("connections", "t", 5) is None
        finally:
            other.send_signal(signal.SIGKILL)
    for _ in range(5):
        await until_free(counters, 5)


def ends_of(server: RedisServer, counters: RedisCounters) -> list[float]:
    """When the leases end, by the server's time."""
    with server.client() as client:
        keys = [key for key in client.scan_iter(count=1000) if key.startswith(counters._prefix.encode())]
        return [score for key in keys for _, score in client.zrange(key, 0, -1, withscores=True)]


async def test_places_that_are_held_are_renewed(server: RedisServer, node: Callable[..., RedisCounters]) -> None:
    """A connection lives for an hour, a lease for a minute."""
    holder, other = node(lease_s=3.0, timeout_s=0.5), node()
    place = await taken(holder, 1)
    first = ends_of(server, holder)
    assert len(first) == 1
    while ends_of(server, holder) in (first, []):  # noqa: ASYNC110 - the server of another process changes them
        await anyio.sleep(0.02)
    assert await other.take("connections", "t", 1) is None
    place.give_back()
    await until_free(other, 1)
    assert holder._held == {}


async def test_a_server_that_has_forgotten_them_is_told_again(
    server: RedisServer, node: Callable[..., RedisCounters]
) -> None:
    """After a restart without persistence the limit would else not hold until all old connections have ended."""
    holder, other = node(lease_s=0.3, timeout_s=0.05), node(timeout_s=1.0)
    await taken(holder, 1)
    with server.client() as client:
        client.flushall()
    while True:
        place = await other.take("connections", "t", 1)
        if place is None:
            break
        place.give_back()
        await anyio.sleep(0.02)


async def test_all_keys_expire(server: RedisServer, node: Callable[..., RedisCounters]) -> None:
    counters = node(lease_s=60.0)
    await taken(counters, 1)
    with server.client() as client:
        (key,) = (each for each in client.scan_iter(count=1000) if each.startswith(counters._prefix.encode()))
        assert b"{" in key
        assert 50_000 < client.pttl(key) <= 60_000


# -- a server that fails ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fail", ["open", "closed"])
async def test_a_server_that_hangs_holds_nobody_up_for_long(
    server: RedisServer, node: Callable[..., RedisCounters], fail: Any
) -> None:
    counters = node(timeout_s=0.1, fail=fail)
    await taken(counters, 3)
    server.signal(signal.SIGSTOP)
    try:
        if fail == "open":
            place = await counters.take("connections", "t", 3)
            assert place is not None
            assert not place.counted
        else:
            with pytest.raises(StoreError):
                await counters.take("connections", "t", 3)
    finally:
        server.signal(signal.SIGCONT)


async def test_what_was_let_in_uncounted_is_counted_afterwards(
    server: RedisServer, node: Callable[..., RedisCounters]
) -> None:
    """Else a short failure would lift the limit for as long as its connections live."""
    holder, other = node(lease_s=0.5, timeout_s=0.05), node(timeout_s=1.0)
    server.signal(signal.SIGSTOP)
    try:
        place = await holder.take("connections", "t", 1)
    finally:
        server.signal(signal.SIGCONT)
    assert place is not None
    while (free := await other.take("connections", "t", 1)) is not None:
        free.give_back()
        await anyio.sleep(0.02)


async def test_a_server_that_is_gone_and_comes_back(prefix: str) -> None:
    with RedisServer("redis") as server:
        counters = RedisCounters(server.url, prefix=prefix, timeout_s=0.5, fail="closed")
        server.kill()
        with pytest.raises(StoreError, match="ConnectionError"):
            await counters.take("turns", "t", 1)
        server.start()
        await until_free(counters, 1)
        await counters.aclose()


@pytest.mark.parametrize("kind", ["redis", "valkey"])
async def test_a_server_that_is_full_counts_on(prefix: str, kind: Kind) -> None:
    """Places are small and few; a store that fills the server must not lift the limits, nor lock all clients out."""
    with RedisServer(kind, {"maxmemory": "1kb", "maxmemory-policy": "noeviction"}) as server:
        counters = RedisCounters(server.url, prefix=prefix, fail="closed", timeout_s=2.0)
        place = await taken(counters, 1)
        assert await counters.take("connections", "t", 1) is None
        place.give_back()
        await until_free(counters, 1)
        await counters.aclose()


# -- as clients see it ------------------------------------------------------------------------------------------------


async def test_two_nodes_share_one_limit(node: Callable[..., RedisCounters]) -> None:
    app, go = ScriptedApp(), anyio.Event()
    app.script(lambda body: [steps.wait_for(go)] if body["input"] == "busy" else None)
    limits = {"max_tenant_connections": 2, "max_tenant_turns": 1}
    one, two = (Shell(app, limits, counters=node()) for _ in range(2))
    async with one.socket(KEY) as ws, two.socket(KEY) as other:
        async with two.socket(KEY) as third:
            await third.handshake()
            assert third.denial is not None
            assert third.denial.status == 429
        await ws.send_json(create("busy"))
        await app.wait_requests(1)
        assert code_of((await other.turn(create()))[-1]) == "too_many_turns"
        go.set()
        await ws.collect()
        while (await other.turn(create()))[-1]["type"] != "response.completed":
            pass  # what the other node gave back arrives by a task of its own


async def test_a_node_whose_server_hangs_serves_on(server: RedisServer, node: Callable[..., RedisCounters]) -> None:
    shell = Shell(ScriptedApp(), {"max_tenant_turns": 1}, counters=node(timeout_s=0.1))
    async with shell.socket(KEY) as ws:
        server.signal(signal.SIGSTOP)
        try:
            assert kinds(await ws.turn(create()))[-1] == "completed"
        finally:
            server.signal(signal.SIGCONT)
    assert {fact.operation for fact in shell.facts.of(StoreFailed)} == {"count"}


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"fail": "miss"}, {"timeout_s": 0}, {"lease_s": 1.0, "timeout_s": 0.3}, {"prefix": "{x}"}], ids=str
)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RedisCounters("redis://localhost", **options)
