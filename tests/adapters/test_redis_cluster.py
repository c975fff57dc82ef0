"""A real cluster of three servers: each tenant's keys are on one of them, whatever uses them, and one that fails takes no other along."""

import secrets
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from functools import partial
from typing import Any

import anyio
import pytest
from redis.asyncio import RedisCluster as Client

from tests.adapters.redis_server import Kind, RedisCluster, RedisServer, RedisTime
from tests.adapters.test_redis import append, load
from tests.shell import KEY, OTHER_KEY, Shell, by_bearer, create, id_of, kinds
from tests.test_settlement import record
from ws_responses.adapters._redis_client import tenant_stem
from ws_responses.adapters.redis import RedisBroadcast, RedisStore
from ws_responses.adapters.redis_counters import RedisCounters
from ws_responses.adapters.redis_settlement import RedisSettlement
from ws_responses.errors import StoreError
from ws_responses.settlement import Settlement
from ws_responses.testing import ScriptedApp
from ws_responses.testing.store_conformance import StoreConformance


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=["redis", "valkey"])
def cluster(request: pytest.FixtureRequest) -> Generator[RedisCluster]:
    kind: Kind = request.param
    with RedisCluster(kind) as cluster:
        yield cluster


@pytest.fixture
async def client(cluster: RedisCluster) -> AsyncGenerator[Client]:
    client = Client.from_url(cluster.url)
    yield client
    await client.aclose()


@pytest.fixture
def prefix() -> str:
    return secrets.token_hex(4)


class TestCluster(StoreConformance):
    slack_s = 60.0

    @pytest.fixture
    def clock(self, cluster: RedisCluster) -> RedisTime:
        return RedisTime(*cluster.nodes)

    @pytest.fixture
    async def store(self, client: Client) -> AsyncGenerator[RedisStore]:
        store = RedisStore(client, timeout_s=5)
        yield store
        await store.aclose()


def keys_of(node: RedisServer, prefix: str) -> list[bytes]:
    with node.client() as client:
        return [key for key in client.scan_iter(count=1000) if key.startswith(prefix.encode())]


def test_the_cluster_refuses_keys_of_several_slots(cluster: RedisCluster) -> None:
    """Else the tests here would show nothing."""
    with cluster.nodes[0].client() as client, pytest.raises(Exception, match=r"CROSSSLOT|same slot"):
        client.eval("return redis.call('GET', KEYS[1])", 2, "a", "b")


async def test_tenants_are_spread_and_each_is_in_one_place(cluster: RedisCluster, client: Client, prefix: str) -> None:
    """The work of a large server is shared, and still each write and each load is asked of one node."""
    store = RedisStore(client, prefix=prefix, timeout_s=5)
    for number in range(30):
        await append(store, f"t{number}", "a")
        await append(store, f"t{number}", "b", "a")
        await append(store, f"t{number}", "fork", "a")
    places = Counter(
        (key.split(b"}")[0], place) for place, node in enumerate(cluster.nodes) for key in keys_of(node, prefix)
    )
    assert len(places) == 30, "no tenant is on two nodes"
    assert {place for _, place in places} == {0, 1, 2}
    for number in range(30):
        assert await load(store, f"t{number}", "fork") == ["a", "fork"]


async def test_two_nodes_of_ours_share_it(client: Client, prefix: str) -> None:
    """All that there is, together: chains, places, records and notices."""
    tenants = by_bearer({"key-1": "anna", "key-2": "bert"})
    sink, counters = RedisSettlement(client, prefix=prefix, shards=5), RedisCounters(client, prefix=prefix, timeout_s=5)
    apps = [ScriptedApp(), ScriptedApp()]
    shells = [
        Shell(
            app,
            {"max_tenant_connections": 2},
            store=RedisStore(client, prefix=prefix, timeout_s=5),
            durable=True,
            counters=counters,
            settlement=Settlement(sink, before_terminal=True, terminal_timeout_s=1e6),
            authorize=tenants,
        )
        for app in apps
    ]
    broadcast = RedisBroadcast(client, prefix=prefix, interval_s=0.01, timeout_s=5)
    async with shells[0].socket(KEY) as here, shells[1].socket(KEY) as there, shells[1].socket(OTHER_KEY) as other:
        parent: str | None = None
        ids: list[str] = []
        for number in range(6):
            parent = id_of(await (here, there)[number % 2].turn(create(str(number), previous_response_id=parent)))
            ids.append(parent)
        assert len(apps[1].requests[-1].body["input"]) == 11
        assert kinds(await other.turn(create(previous_response_id=parent))) == ["error"], "another tenant's"
        async with shells[0].socket(KEY) as third:
            await third.handshake()
            assert third.denial is not None
            assert third.denial.status == 429
        async with anyio.create_task_group() as tasks:
            for shell in shells:
                tasks.start_soon(partial(broadcast.listen, disconnect=shell.middleware.disconnect))
            while here.close_code is None or there.close_code is None:
                await broadcast.disconnect("anna", "key revoked")
                await anyio.sleep(0.005)
            assert other.close_code is None
            tasks.cancel_scope.cancel()
    records = [turn.record for shard in range(5) for turn in await sink.records(shard=shard)]
    assert [each.response_id for each in records if each.tenant == "anna" and each.outcome == "completed"] == ids
    for each in (sink, counters):
        await each.aclose()


async def test_a_node_that_hangs_fails_for_its_own_tenants_only(prefix: str) -> None:
    """In bounded time; and afterwards everything is as it was."""
    with RedisCluster("redis") as cluster:
        client = Client.from_url(cluster.url)
        store = RedisStore(client, prefix=prefix, timeout_s=0.5)
        tenants = [f"t{number}" for number in range(12)]
        for tenant in tenants:
            await append(store, tenant, "a")
        node = cluster.nodes[2]
        there = keys_of(node, prefix)
        theirs = {tenant for tenant in tenants if any(key.startswith(tenant_stem(prefix, tenant)) for key in there)}
        assert 0 < len(theirs) < len(tenants)
        with cluster.nodes[0].client() as admin, cluster.nodes[1].client() as second:
            for each in (admin, second):
                each.config_set("cluster-node-timeout", "60000")  # else they would declare all of it down
        node.signal(signal.SIGSTOP)
        try:
            for tenant in tenants:
                if tenant in theirs:
                    with pytest.raises(StoreError):
                        await load(store, tenant, "a")
                else:
                    assert await load(store, tenant, "a") == ["a"]
        finally:
            node.signal(signal.SIGCONT)
        for tenant in tenants:
            assert await load(store, tenant, "a") == ["a"]
        await store.aclose()
        await client.aclose()


async def test_records_and_places_work_on_any_node(client: Client, prefix: str) -> None:
    """The streams of the shards, and the places of tenants, lie on different nodes."""
    sink, counters = RedisSettlement(client, prefix=prefix, shards=8), RedisCounters(client, prefix=prefix, timeout_s=5)
    for number in range(24):
        for _ in range(2):
            await sink(record(f"turn {number}", tenant=f"t{number}"))
        place = await counters.take("turns", f"t{number}", 1)
        assert place is not None
        assert await counters.take("turns", f"t{number}", 1) is None
        place.give_back()
    counts = [len(await sink.records(shard=shard)) for shard in range(8)]
    assert sum(counts) == 24
    for each in (sink, counters):
        await each.aclose()
