"""A router for a wrapped app: its handlers are told the route of each turn, and it is told how that did."""

from decimal import Decimal
from typing import Any

import pytest

from tests.rooms import Books, House, next_id
from tests.safety_room import Scripted
from tests.shell import code_of, create, id_of, kinds
from ws_responses import ConfigurationError, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware, current_turn
from ws_responses.advice import AppBackend, app_route
from ws_responses.errors import UpstreamError
from ws_responses.failover import FailoverRouter
from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.pricing import Price
from ws_responses.routers import StaticRouter
from ws_responses.routing import Route
from ws_responses.safety import Safety, Screen, Verdict
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, steps
from ws_responses.testing.backends import ScriptedBackend

PRICE = Price(input=Decimal(1), output=Decimal(2))


def two(**options: Any) -> FailoverRouter:
    """Two services for the model "m"; one failure is enough."""
    routes = [
        app_route("m", name=name, address=f"https://{name}.example", context_window=1000, price=PRICE)
        for name in ("east", "west")
    ]
    return FailoverRouter({"m": routes}, failures=1, clock=FakeClock(), **options)


class Routed(House):
    """A wrapped app whose handler notes where it is sent."""

    def __init__(self, **options: Any) -> None:
        super().__init__("app", **options)
        self.routes: list[Route | None] = []

    def answer(self, *steps_: Any) -> None:
        async def look() -> None:
            self.routes.append(current_turn().route)

        self.app.script([steps.call(look), *(steps_ or (steps.text("Fine."),))])

    @property
    def addresses(self) -> list[str]:
        return [str(getattr(getattr(route, "backend", None), "address", None)) for route in self.routes]


async def test_a_handler_is_told_the_route_and_the_books_as_well() -> None:
    """The limits, the address and the price of a model are resolved once for a chain, and not by each handler."""
    books, told = Books(), list[Fact]()
    house = Routed(router=two(), settlement=books.settlement(), hooks=[told.append])
    parent: dict[str, Any] = {}
    async with house.socket() as ws:
        for _ in range(2):
            house.answer()
            parent = {"previous_response_id": await next_id(ws, create(model="m", **parent))}
    assert house.addresses == ["https://east.example"] * 2
    assert [route.context_window for route in house.routes if route is not None] == [1000, 1000]
    assert [request.body["model"] for request in house.app.requests] == ["m", "m"]
    assert [(record.route, record.price) for record in books.records] == [("east", PRICE)] * 2
    finished = [fact for fact in told if isinstance(fact, TurnFinished)]
    assert [(fact.route, fact.route_reused) for fact in finished] == [("east", None), ("east", True)]


FAILURES: dict[str, tuple[tuple[Any, ...], bool]] = {
    "503": ((steps.status(503),), True),
    "429": ((steps.status(429),), True),
    "400": ((steps.status(400),), False),
    "response.failed": ((steps.text("Half"), steps.fail("server_error")), True),
    "response.failed, by the request": ((steps.fail("invalid_prompt"),), False),
    "cut off": ((steps.text("Half"), steps.truncate(3)), True),
}


@pytest.mark.parametrize("how", FAILURES)
async def test_a_route_whose_app_failed_is_left_unless_the_request_was_at_fault(how: str) -> None:
    """Else a chain would be sent to a service that is down until its cache expires, or leave one that is well."""
    what, leaves = FAILURES[how]
    house = Routed(router=two())
    async with house.socket() as ws:
        house.answer()
        parent = await next_id(ws, create(model="m", store=True))
        house.answer(*what)
        failed = await ws.turn(create(model="m", store=True, previous_response_id=parent))
        assert kinds(failed)[-1] in ("error", "failed")
        house.answer()
        await next_id(ws, create(model="m", store=True, previous_response_id=parent))
    assert house.addresses == [f"https://{name}.example" for name in ("east", "east", "west" if leaves else "east")]


async def test_a_route_that_is_silent_for_too_long_is_left() -> None:
    """A service that hangs is down, whoever ends the turn."""
    house = Routed(router=two(), limits={"first_event_timeout_s": 5.0})
    async with house.socket() as ws:
        house.answer(steps.stall())
        await ws.send_json(create(model="m"))
        await house.wait_ran(1)
        await house.clock.advance(7)
        await ws.collect()
        house.answer()
        await next_id(ws, create(model="m"))
    assert house.addresses == ["https://east.example", "https://west.example"]


@pytest.mark.parametrize("verdict", [Verdict(action="block"), None], ids=["blocked", "not judged"])
async def test_a_block_says_nothing_about_a_route(verdict: Any) -> None:
    """Else whoever asks for forbidden things, or a classifier that is down, would take services from the others."""
    classifier = Scripted(lambda text: verdict if "bomb" in text else Verdict())
    house = Routed(router=two(), safety=Safety(Screen(classifier, stages=["output"])))
    async with house.socket() as ws:
        house.answer(steps.text("A bomb."))
        ended = await ws.turn(create(model="m"))
        assert kinds(ended)[-1] == ("failed" if verdict is None else "incomplete")
        house.answer()
        await next_id(ws, create(model="m"))
    assert house.addresses == ["https://east.example"] * 2


async def test_a_model_that_the_router_does_not_know_never_reaches_the_app() -> None:
    """It is what a router is for."""
    house = Routed(router=StaticRouter([app_route("m", name="east")]))
    async with house.socket() as ws:
        (refusal,) = await ws.turn(create(model="other"))
    assert (refusal["status"], code_of(refusal), house.ran) == (400, "model_not_found", 0)


async def test_a_warm_up_brings_its_route_to_the_turn_after_it() -> None:
    """Else the first turn that the user waits for would look it up."""
    told: list[Fact] = []
    house = Routed(router=two(), hooks=[told.append])
    async with house.socket() as ws:
        warm = await ws.turn(create(model="m", generate=False))
        house.answer()
        await next_id(ws, create(model="m", previous_response_id=id_of(warm)))
    assert [fact.route_reused for fact in told if isinstance(fact, TurnFinished)] == [None, True]


def test_who_routes_by_itself_takes_no_router() -> None:
    """Two routers for one turn would contradict each other."""
    engine = ResponsesEngine(ScriptedBackend())
    with pytest.raises(ConfigurationError, match="router="):
        ResponsesWebSocketMiddleware(ScriptedApp(), upstream=engine, authorize="open", router=two())


async def test_an_engine_that_is_given_an_apps_route_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Else the mistake would look like a backend that is silent."""
    engine = ResponsesEngine(router=StaticRouter([app_route("m", name="east", address="https://east.example")]))
    async with MemorySocket(ResponsesApp(engine, authorize="open")) as ws:
        (error,) = await ws.turn(create(model="m"))
    assert error["status"] == 500
    assert "this route is for a wrapped app" in caplog.text


def test_routes_that_share_a_backend_are_down_together() -> None:
    """Two models of one service."""
    shared = AppBackend("https://east.example")
    big, small = (app_route(model, name=model, backend=shared) for model in ("big", "small"))
    router = FailoverRouter({"big": [big], "small": [small]}, failures=1, clock=FakeClock())
    router.failed(big, UpstreamError("down", status=503))
    assert router.is_down(small)
    with pytest.raises(ConfigurationError):
        app_route("m", name="m", address="x", backend=shared)
