"""Places of a tenant: counted here, or over all nodes; each is given back once, whatever becomes of its connection or turn."""

from collections import Counter
from typing import Any

import anyio
import pytest

from tests.rooms import Books
from tests.shell import KEY, OTHER_KEY, Shell, code_of, create, id_of, kinds
from ws_responses import QuotaExceeded, QuotaRequest
from ws_responses.counters import Counted, Place, Places
from ws_responses.errors import StoreError, Unavailable
from ws_responses.instrumentation import StoreFailed
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, settle, steps


class SharedPlace:
    def __init__(self, cluster: "Cluster", key: tuple[str, str], *, counted: bool) -> None:
        self._cluster: Cluster | None = cluster
        self._key = key
        self.counted = counted

    def give_back(self) -> None:
        assert self._cluster is not None, "given back twice"
        self._cluster.taken[self._key] -= self.counted
        self._cluster = None


class Cluster:
    """Counters that several middlewares share."""

    def __init__(self) -> None:
        self.taken: Counter[tuple[str, str]] = Counter()
        self.asked = 0
        self.fault: Exception | None = None
        self.counts = True
        self.go = anyio.Event()
        self.go.set()
        self.closed = False

    async def take(self, what: Counted, tenant: str, limit: int) -> Place | None:
        self.asked += 1
        await self.go.wait()
        if self.fault is not None:
            raise self.fault
        if self.taken[what, tenant] >= limit:
            return None
        self.taken[what, tenant] += self.counts
        return SharedPlace(self, (what, tenant), counted=self.counts)

    async def aclose(self) -> None:
        self.closed = True


def node(cluster: Cluster | None, limits: dict[str, Any], **options: Any) -> Shell:
    return Shell(options.pop("app", None) or ScriptedApp(), limits, counters=cluster, **options)


async def status(ws: MemorySocket) -> int:
    await ws.handshake()
    return 101 if ws.denial is None else ws.denial.status


# -- connections ------------------------------------------------------------------------------------------------------


async def test_connections_of_a_tenant_are_counted_over_all_nodes() -> None:
    """Per process, a limit on N nodes would be N times as high."""
    cluster = Cluster()
    one, two = (node(cluster, {"max_tenant_connections": 2}) for _ in range(2))
    async with one.socket(KEY) as first, two.socket(KEY):
        async with two.socket(KEY) as third, two.socket(OTHER_KEY) as other:
            assert (await status(third), await status(other)) == (429, 101)
        await first.close()
        await first.wait_returned()
        async with two.socket(KEY) as third:
            assert await status(third) == 101
    assert set(cluster.taken.values()) == {0}


async def test_the_process_alone_can_refuse_without_asking() -> None:
    """Greedy clients must not keep the counters busy."""
    cluster = Cluster()
    shell = node(cluster, {"max_tenant_connections": 1})
    async with shell.socket(KEY):
        asked = cluster.asked
        async with shell.socket(KEY) as second:
            assert await status(second) == 429
        assert cluster.asked == asked


async def test_strangers_and_tenants_without_a_limit_are_not_asked_about() -> None:
    cluster = Cluster()
    async with node(cluster, {"max_tenant_connections": 1}).socket() as stranger:
        assert await status(stranger) == 101
    async with node(cluster, {"max_tenant_connections": None}).socket(KEY) as ws:
        assert await status(ws) == 101
    assert cluster.asked == 0


@pytest.mark.parametrize("how", ["fails", "late"])
async def test_counters_that_fail_closed_refuse_by_503(how: str) -> None:
    cluster = Cluster()
    shell = node(cluster, {"max_tenant_connections": 1})
    if how == "fails":
        cluster.fault = StoreError("down")
    else:
        cluster.go = anyio.Event()
    async with shell.socket(KEY, wait_handshake=False) as ws:
        await settle()
        await shell.clock.advance(shell.middleware._settings.limits.store_timeout_s)
        assert await status(ws) == 503
    assert [(fact.operation, fact.error) for fact in shell.facts.of(StoreFailed)] == [
        ("count", "StoreError" if how == "fails" else "late")
    ]
    cluster.fault = None
    cluster.go.set()
    async with shell.socket(KEY) as ws:
        assert await status(ws) == 101, "nothing of the refused one is left in the way"


async def test_counters_that_fail_open_leave_the_limit_to_each_process() -> None:
    cluster = Cluster()
    cluster.counts = False
    shell = node(cluster, {"max_tenant_connections": 1})
    async with shell.socket(KEY) as first, shell.socket(KEY) as second:
        assert (await status(first), await status(second)) == (101, 429)
    assert [fact.error for fact in shell.facts.of(StoreFailed)] == ["not counted"]


async def test_a_client_that_leaves_while_its_place_is_asked_for_holds_none() -> None:
    cluster = Cluster()
    places = Places(cluster, FakeClock(), 2.0, lambda _: None)
    cluster.go = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(places.take, "connections", "t", 1)
        await settle()
        assert places.taken("connections", "t") == 1, "else a burst would find room for all of it"
        tasks.cancel_scope.cancel()
    assert places.taken("connections", "t") == 0


async def test_the_middleware_closes_them() -> None:
    cluster = Cluster()
    await node(cluster, {}).middleware.aclose()
    assert cluster.closed


# -- turns ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("over", [pytest.param(-1, id="n-1"), pytest.param(0, id="n"), pytest.param(1, id="n+1")])
async def test_turns_of_a_tenant_that_run_at_once(over: int, shared: bool) -> None:
    """Over all its connections, and with shared counters over all nodes; the next is refused, and its parent stays."""
    limit, go, app = 3, anyio.Event(), ScriptedApp()
    cluster = Cluster() if shared else None
    nodes = [node(cluster, {"max_tenant_turns": limit}, app=app) for _ in range(2 if shared else 1)]
    async with nodes[0].socket(KEY) as ws, nodes[-1].socket(KEY) as other, nodes[-1].socket(OTHER_KEY) as another:
        parent = id_of(await ws.turn(create()))
        app.script(lambda body: [steps.wait_for(go)] if body["input"] == "busy" else None)
        for number in range(limit - 1 + over):
            await other.send_json(create("busy", stream_id=f"lane-{number}"))
        await app.wait_requests(1 + limit - 1 + over)
        last = (await ws.turn(create("more", previous_response_id=parent)))[-1]
        if over > 0:
            assert (last["status"], code_of(last), last["headers"]["retry-after"]) == (429, "too_many_turns", "1")
        else:
            assert last["type"] == "response.completed"
        assert kinds(await another.turn(create()))[-1] == "completed"
        go.set()
        for _ in range(limit - 1 + over):
            await other.collect()
        assert kinds(await ws.turn(create("more", previous_response_id=parent)))[-1] == "completed"
    for each in nodes:
        assert each.middleware.registry.places._own == {}
    assert cluster is None or set(cluster.taken.values()) == {0}


async def test_one_turn_after_the_other_needs_one_place() -> None:
    """The next turn of a lane starts before the end of the one before it is written: its place must be free by then."""
    cluster = Cluster()
    shell = node(cluster, {"max_tenant_turns": 1})
    async with shell.socket(KEY) as ws:
        for number in range(5):
            await ws.send_json(create(str(number)))
        for _ in range(5):
            assert kinds(await ws.collect())[-1] == "completed"


@pytest.mark.parametrize("how", ["refused", "fails", "gone", "warm-up", "settled before its end"])
async def test_a_turn_gives_its_place_back_however_it_ends(how: str) -> None:
    """Else some day none would be left."""

    def quota(request: QuotaRequest) -> None:
        if how == "refused":
            raise QuotaExceeded

    app, cluster, go = ScriptedApp(), Cluster(), anyio.Event()
    books = Books()
    shell = node(
        cluster, {"max_tenant_turns": 1}, app=app, quota=quota, settlement=books.settlement(before_terminal=True)
    )
    async with shell.socket(KEY) as ws:
        for _ in range(3):
            if how == "gone":
                app.script([steps.wait_for(go)])
                await ws.send_json(create())
                await app.wait_requests(1)
                await ws.close()
                await shell.clock.advance(1)
                break
            if how == "fails":
                app.script([steps.status(500)])
            await ws.turn(create(**({"generate": False} if how == "warm-up" else {})))
    assert cluster.asked > 0
    assert set(cluster.taken.values()) == {0}
    assert shell.middleware.registry.places._own == {}


async def test_a_turn_is_refused_by_503_if_counters_that_fail_closed_do_not_answer() -> None:
    cluster = Cluster()
    shell = node(cluster, {"max_tenant_turns": 1})
    async with shell.socket(KEY) as ws:
        parent = id_of(await ws.turn(create()))
        cluster.fault = StoreError("down")
        (event,) = await ws.turn(create(previous_response_id=parent))
        assert (event["status"], code_of(event)) == (503, Unavailable.code)
        cluster.fault = None
        assert kinds(await ws.turn(create(previous_response_id=parent)))[-1] == "completed"
