"""Routers for several models and backends: what is found, what is kept and for how long, and who is healthy."""

from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.state.drive import drive
from ws_responses import ConfigurationError, WireError
from ws_responses.errors import InvalidRequest
from ws_responses.failover import FailoverRouter
from ws_responses.routers import CachingRouter, StaticRouter, tell_failed, tell_served
from ws_responses.routing import Route, SingleRouter, UnknownModel
from ws_responses.testing import FakeClock, settle


class Backend:
    """Stands for a backend: routers only tell one from another."""


def route(model: str = "m", name: str = "r", backend: Any = None) -> Route:
    renderer: Any = None
    backend = backend or Backend()
    return Route(model=model, backend=backend, backend_model=f"b-{model}", renderer=renderer, name=name)


def failure(status: int = 500, **headers: str) -> WireError:
    return WireError(
        "failed", status=status, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )


def name_of(router: Any, model: str | None = "m", tenant: str = "t", previous: Route | None = None) -> str:
    found: Route = drive(router.resolve(model, tenant, previous))
    return found.name


# -- the table -------------------------------------------------------------------------------------------------------------


def test_a_model_is_found_by_its_names_and_keeps_the_one_that_was_asked_for() -> None:
    router = StaticRouter([route("big"), route("small", "s")], aliases={"large": "big"}, default="small")
    found = drive(router.resolve("large", "t", None))
    assert (found.model, found.backend_model) == ("large", "b-big")
    assert drive(router.resolve("large", "t", None)) is found
    assert name_of(router, None) == "s"
    assert router.models("t") == ["big", "small", "large"]


def test_for_who_may_not_use_a_model_it_does_not_exist() -> None:
    """Another answer would tell what others have."""
    router = StaticRouter(
        [route("big"), route("small")], allowed=lambda tenant, model: tenant == "rich" or model == "small"
    )
    assert router.models("poor") == ["small"]
    with pytest.raises(UnknownModel) as refused:
        name_of(router, "big", "poor")
    with pytest.raises(UnknownModel) as unknown:
        name_of(router, "tiny", "poor")
    assert str(refused.value).replace("big", "tiny") == str(unknown.value)
    assert name_of(router, "big", "rich") == "r"


def test_without_a_model_the_only_one_is_meant() -> None:
    assert name_of(StaticRouter([route()]), None) == "r"
    with pytest.raises(InvalidRequest, match="missing"):
        name_of(StaticRouter([route("a"), route("b")]), None)
    with pytest.raises(InvalidRequest, match="missing"):
        name_of(FailoverRouter({"a": [route("a")], "b": [route("b")]}), None)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: StaticRouter([]),
        lambda: StaticRouter([route(), route()]),
        lambda: StaticRouter([route()], aliases={"x": "y"}),
        lambda: StaticRouter([route()], aliases={"m": "m"}),
        lambda: StaticRouter([route()], default="x"),
        lambda: CachingRouter(StaticRouter([route()]), ttl_s=0),
        lambda: CachingRouter(StaticRouter([route()]), max_entries=0),
        lambda: FailoverRouter({}),
        lambda: FailoverRouter({"m": []}),
        lambda: FailoverRouter({"m": [route(), route()]}),
        lambda: FailoverRouter({"m": [route()]}, default="x"),
        lambda: FailoverRouter({"m": [route()]}, failures=0),
        lambda: FailoverRouter({"m": [route()]}, cool_down_s=10, max_cool_down_s=5),
        lambda: FailoverRouter({"m": [route()]}, spread="random"),  # type: ignore[arg-type]
    ],
)
def test_wrong_options_are_refused_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


# -- the cache -------------------------------------------------------------------------------------------------------------


class Slow:
    """A router that asks a database: it answers when it may, and counts."""

    def __init__(self) -> None:
        self.asked: list[tuple[str | None, str]] = []
        self.gate: anyio.Event | None = None
        self.error: Exception | None = None
        self.backend = Backend()
        self.told: list[str] = []

    async def resolve(self, model: str | None, tenant: str, previous: Route | None) -> Route:
        self.asked.append((model, tenant))
        number = len(self.asked)
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        return route(model or "default", f"r{number}", self.backend)

    def models(self, tenant: str) -> list[str]:
        return [tenant]

    def failed(self, route: Route, error: WireError) -> None:
        self.told.append(f"failed {route.name}")

    def served(self, route: Route) -> None:
        self.told.append(f"served {route.name}")


async def test_a_route_is_asked_for_once_per_tenant_and_model_while_it_is_valid() -> None:
    clock, slow = FakeClock(), Slow()
    router = CachingRouter(slow, ttl_s=10.0, clock=clock)
    first = await router.resolve("m", "t", None)
    assert await router.resolve("m", "t", first) is first
    await router.resolve("m", "other", None)
    await router.resolve("n", "t", None)
    assert slow.asked == [("m", "t"), ("m", "other"), ("n", "t")]
    await clock.advance(9.9)
    assert await router.resolve("m", "t", None) is first
    await clock.advance(0.1)
    assert await router.resolve("m", "t", None) is not first
    assert router.models("t") == ["t"]


async def test_many_turns_that_come_at_once_ask_once() -> None:
    """A route that runs out under load would else be asked for by every turn at the same time."""
    slow = Slow()
    slow.gate = anyio.Event()
    router = CachingRouter(slow, clock=FakeClock())
    found: list[Route] = []

    async def resolve() -> None:
        found.append(await router.resolve("m", "t", None))

    async with anyio.create_task_group() as tasks:
        for _ in range(5):
            tasks.start_soon(resolve)
        await settle()
        slow.gate.set()
    assert len(slow.asked) == 1
    assert len({id(each) for each in found}) == 1


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_when_the_one_that_asks_has_no_answer_the_next_one_asks(how: str) -> None:
    """Else the others would wait for ever, or be told an error that was another's."""
    slow = Slow()
    slow.gate = anyio.Event()
    router = CachingRouter(slow, clock=FakeClock())
    found: list[str] = []
    first = anyio.CancelScope()

    async def resolve(scope: anyio.CancelScope) -> None:
        with scope:
            try:
                found.append((await router.resolve("m", "t", None)).name)
            except RuntimeError:
                found.append("failed")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(resolve, first)
        await settle()
        tasks.start_soon(resolve, anyio.CancelScope())
        await settle()
        if how == "is cancelled":
            first.cancel()
            await settle()
        else:
            slow.error = RuntimeError()
            slow.gate.set()
            await settle()
            assert found == ["failed", "failed"]
        slow.error = None
        slow.gate.set()
    assert len(slow.asked) == 2


async def test_that_a_model_is_unknown_is_kept_for_a_moment_and_no_other_failure_is() -> None:
    """Clients choose the names: each would else cost a look-up. A failure of the database is no answer."""
    clock, slow = FakeClock(), Slow()
    router = CachingRouter(slow, unknown_ttl_s=5.0, clock=clock)
    slow.error = UnknownModel("m")
    for _ in range(3):
        with pytest.raises(UnknownModel):
            await router.resolve("m", "t", None)
    assert len(slow.asked) == 1
    await clock.advance(5.0)
    slow.error = RuntimeError()
    for _ in range(2):
        with pytest.raises(RuntimeError):
            await router.resolve("m", "t", None)
    assert len(slow.asked) == 3


async def test_what_is_kept_is_bounded() -> None:
    router = CachingRouter(Slow(), max_entries=10, clock=FakeClock())
    for number in range(100):
        await router.resolve(str(number), "t", None)
    assert router.invalidate() == 10


@pytest.mark.parametrize("length", [255, 256, 257, 100_000])
async def test_of_a_long_name_little_is_kept(length: int) -> None:
    """Clients choose names, up to the length of a frame: ten thousand of those would be kept as keys."""
    slow = Slow()
    router = CachingRouter(slow, clock=FakeClock())
    name = "m" * length
    slow.error = UnknownModel(name)
    for _ in range(2):
        with pytest.raises(UnknownModel, match="mmm"):
            await router.resolve(name, "t", None)
    assert slow.asked == [(name, "t")], "it is known by it all the same"
    ((_, key),) = router._entries
    assert key is not None
    assert len(key) <= 256
    assert router.invalidate(model=name) == 1


async def test_routes_are_dropped_by_tenant_and_by_model() -> None:
    slow = Slow()
    router = CachingRouter(slow, clock=FakeClock())
    for tenant in ("one", "two"):
        for model in ("a", "b"):
            await router.resolve(model, tenant, None)
    assert router.invalidate(tenant="one", model="a") == 1
    assert router.invalidate(model="b") == 2
    assert router.invalidate(tenant="nobody") == 0
    assert router.invalidate() == 1


async def test_an_answer_that_was_on_its_way_when_routes_were_dropped_is_not_kept() -> None:
    """It may be older than what it was dropped for: a revoked model would come back."""
    slow = Slow()
    slow.gate = anyio.Event()
    router = CachingRouter(slow, clock=FakeClock())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(router.resolve, "m", "t", None)
        await settle()
        router.invalidate()
        slow.gate.set()
    await router.resolve("m", "t", None)
    assert len(slow.asked) == 2


async def test_a_route_that_failed_is_dropped_and_the_router_is_told() -> None:
    slow = Slow()
    router = CachingRouter(slow, clock=FakeClock())
    first = await router.resolve("m", "t", None)
    other = await router.resolve("n", "t", None)
    tell_failed(router, first, failure(400))
    assert await router.resolve("m", "t", None) is first, "the request was at fault"
    tell_failed(router, first, failure(503))
    tell_served(router, other)
    assert await router.resolve("m", "t", None) is not first
    assert await router.resolve("n", "t", None) is other
    assert slow.told == ["failed r1", "failed r1", "served r2"]


def test_a_router_that_does_not_want_to_know_is_not_told() -> None:
    router = StaticRouter([route()])
    tell_failed(router, route(), failure())
    tell_served(router, route())
    assert not hasattr(SingleRouter, "failed")


# -- failover ----------------------------------------------------------------------------------------------------------------


class Pair:
    """Two backends of a model."""

    def __init__(self, **options: Any) -> None:
        self.clock = FakeClock()
        self.one, self.two = route(name="one"), route(name="two")
        options = {"failures": 2, "cool_down_s": 10.0, "max_cool_down_s": 35.0, "trial_s": 5.0, **options}
        self.router = FailoverRouter({"m": [self.one, self.two]}, clock=self.clock, **options)

    def fail(self, which: Route, times: int = 1, status: int = 500, **headers: str) -> None:
        for _ in range(times):
            self.router.failed(which, failure(status, **headers))


def test_the_first_serves_until_it_has_failed_often_enough() -> None:
    pair = Pair()
    pair.fail(pair.one)
    assert name_of(pair.router) == "one"
    pair.fail(pair.one)
    assert name_of(pair.router) == "two"
    assert pair.router.is_down(pair.one)


def test_failures_count_in_a_row_only() -> None:
    pair = Pair()
    for _ in range(5):
        pair.fail(pair.one)
        pair.router.served(pair.one)
    assert name_of(pair.router) == "one"


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_errors_of_the_request_do_not_count(status: int) -> None:
    """A client could else take the backend from all others."""
    pair = Pair()
    pair.fail(pair.one, 10, status)
    assert name_of(pair.router) == "one"


def test_a_chain_stays_where_it_is_while_that_is_healthy() -> None:
    """Elsewhere its prompt is in no cache."""
    pair = Pair()
    assert name_of(pair.router, previous=pair.two) == "two"
    pair.fail(pair.two, 2)
    assert name_of(pair.router, previous=pair.two) == "one"


def test_one_turn_tries_it_again_and_others_wait_for_that() -> None:
    pair = Pair()
    pair.fail(pair.one, 2)
    pair.clock.jump(9.9)
    assert name_of(pair.router) == "two"
    pair.clock.jump(0.1)
    assert [name_of(pair.router) for _ in range(3)] == ["one", "two", "two"]
    pair.router.served(pair.one)
    assert [name_of(pair.router) for _ in range(3)] == ["one"] * 3


def test_a_trial_that_never_ends_is_followed_by_another() -> None:
    pair = Pair()
    pair.fail(pair.one, 2)
    pair.clock.jump(10.0)
    assert [name_of(pair.router) for _ in range(2)] == ["one", "two"]
    pair.clock.jump(5.0)
    assert [name_of(pair.router) for _ in range(2)] == ["one", "two"]


def test_a_backend_that_stays_ill_is_tried_less_and_less_often() -> None:
    pair = Pair()
    pair.fail(pair.one, 2)
    waits = []
    for _ in range(4):
        waited = 0.0
        while name_of(pair.router) == "two":
            pair.clock.jump(1.0)
            waited += 1.0
        waits.append(waited)
        pair.fail(pair.one)
    assert waits == [10.0, 20.0, 35.0, 35.0]


def test_turns_that_were_under_way_say_nothing_new() -> None:
    """A hundred turns that fail together are one failure of the backend: else it would be out for the longest time at once."""
    pair = Pair()
    pair.fail(pair.one, 100)
    pair.router.served(pair.one)
    assert name_of(pair.router) == "two"
    pair.clock.jump(10.0)
    assert name_of(pair.router) == "one"


def test_a_service_may_say_when_to_come_back() -> None:
    pair = Pair()
    pair.fail(pair.one, 1, 429, retry_after="3")
    assert name_of(pair.router) == "two"
    pair.clock.jump(3.0)
    assert name_of(pair.router) == "one"
    pair.fail(pair.one, 1, 429, retry_after="100000")
    pair.clock.jump(35.0)
    assert name_of(pair.router) == "one", "not longer than the longest time"


@pytest.mark.parametrize("header", ["", "soon", "-1", "nan", "inf", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_retry_after_that_is_no_number_of_seconds_is_a_failure_like_others(header: str) -> None:
    pair = Pair()
    pair.fail(pair.one, 1, 429, retry_after=header)
    assert name_of(pair.router) == "one"
    pair.fail(pair.one, 1, 429, retry_after=header)
    assert name_of(pair.router) == "two"


def test_if_all_are_down_the_one_that_comes_back_first_is_used() -> None:
    """A client whose prompts make backends fail must not take the model from everybody."""
    pair = Pair()
    pair.fail(pair.two, 2)
    pair.clock.jump(1.0)
    pair.fail(pair.one, 2)
    assert name_of(pair.router) == "two"


def test_a_backend_of_two_models_is_down_for_both() -> None:
    shared = Backend()
    router = FailoverRouter(
        {"a": [route("a", "one", shared), route("a", "two")], "b": [route("b", "one", shared), route("b", "two")]},
        failures=1,
        clock=FakeClock(),
    )
    router.failed(drive(router.resolve("a", "t", None)), failure())
    assert name_of(router, "b") == "two"


def test_routes_of_others_are_of_no_interest() -> None:
    pair = Pair()
    pair.router.failed(route(), failure())
    pair.router.served(route())
    assert name_of(pair.router) == "one"


@given(tenants=st.lists(st.text(max_size=4), min_size=30, max_size=60, unique=True))
def test_tenants_are_spread_and_keep_their_backend(tenants: list[str]) -> None:
    """A backend that goes moves its own tenants only: the caches of the others stay warm."""
    routes = [route(name=name) for name in ("one", "two", "three")]
    clock = FakeClock()
    router = FailoverRouter({"m": routes}, spread="tenant", failures=1, clock=clock)
    before = {tenant: name_of(router, tenant=tenant) for tenant in tenants}
    assert len(set(before.values())) > 1
    router.failed(routes[0], failure())
    after = {tenant: name_of(router, tenant=tenant) for tenant in tenants}
    assert all(after[tenant] == name for tenant, name in before.items() if name != "one")
    assert "one" not in after.values()


class FailoverMachine(RuleBasedStateMachine):
    """Backends fail, recover and are asked for, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.routes = [route(name=name) for name in ("one", "two", "three")]
        self.router = FailoverRouter(
            {"m": self.routes}, failures=2, cool_down_s=4.0, max_cool_down_s=16.0, trial_s=3.0, clock=self.clock
        )
        self.untouched = [True, True, True]

    @rule(which=st.integers(0, 2), status=st.sampled_from([400, 429, 500, 503]), told=st.sampled_from(["", "2", "50"]))
    def fail(self, which: int, status: int, told: str) -> None:
        self.router.failed(self.routes[which], failure(status, retry_after=told))
        if status != 400:
            self.untouched[which] = False

    @rule(which=st.integers(0, 2))
    def serve(self, which: int) -> None:
        down = self.router.is_down(self.routes[which])
        self.router.served(self.routes[which])
        assert self.router.is_down(self.routes[which]) is down

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0, 20.0]))
    def wait(self, seconds: float) -> None:
        self.clock.jump(seconds)

    @rule(previous=st.sampled_from([None, 0, 1, 2]))
    def ask(self, previous: int | None) -> None:
        before = None if previous is None else self.routes[previous]
        found = drive(self.router.resolve("m", "t", before))
        healthy = [each for each in self.routes if not self.router.is_down(each)]
        assert found.backend in [each.backend for each in healthy or self.routes]
        if previous is not None and self.untouched[previous]:
            assert found.name == self.routes[previous].name, "a chain left a backend that never failed"
        if all(self.untouched):
            assert found.name == (self.routes[previous or 0].name)

    @rule()
    def after_long_enough_all_are_tried(self) -> None:
        self.clock.jump(60.0)
        assert not any(map(self.router.is_down, self.routes))


TestFailover = FailoverMachine.TestCase
