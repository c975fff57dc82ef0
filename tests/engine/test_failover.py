"""Several backends for one model: a turn whose backend fails before its first output goes to another one."""

from typing import Any

import pytest

from tests.engine.schema import assert_turn
from tests.engine.service import kinds, last, socket_to
from ws_responses.backends import Delta
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.engine.generation import Retry
from ws_responses.failover import FailoverRouter
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.routing import Route
from ws_responses.testing.backends import Fault, ScriptedBackend
from ws_responses.testing.clock import FakeClock

CREATE: dict[str, Any] = {"model": "m", "input": "hi"}


class Pair:
    """An engine with two backends."""

    def __init__(self) -> None:
        self.first, self.second = ScriptedBackend(text="first"), ScriptedBackend(text="second")
        routes = [
            Route(model="m", backend=backend, backend_model="m", renderer=ChatRenderer(), name=name)
            for name, backend in (("first", self.first), ("second", self.second))
        ]
        self.router = FailoverRouter({"m": routes}, clock=FakeClock())
        self.engine = ResponsesEngine(router=self.router, retry=Retry(attempts=1))


def said(events: list[Any]) -> str:
    return str(last(events)["output"][0]["content"][0]["text"])


@pytest.mark.parametrize("fault", [Fault.UNREACHABLE, Fault.RATE_LIMITED, Fault.OVERLOADED, Fault.INTERNAL])
async def test_another_backend_answers(fault: Fault) -> None:
    pair = Pair()
    pair.first.will_fail(fault)
    async with socket_to(pair.engine) as ws:
        events = await ws.turn(CREATE)
    assert_turn(events)
    assert said(events) == "second"
    assert pair.engine.counts.elsewhere == 1


async def test_a_chain_stays_where_it_went() -> None:
    """Its prompt is in that backend's cache, and not in the other's."""
    pair = Pair()
    pair.first.will_fail(Fault.INTERNAL)
    async with socket_to(pair.engine) as ws:
        events = await ws.turn(CREATE)
        again = await ws.turn({**CREATE, "previous_response_id": last(events)["id"]})
    assert said(again) == "second"


async def test_what_another_backend_would_refuse_as_well_is_told() -> None:
    pair = Pair()
    pair.first.will_fail(Fault.BAD_REQUEST)
    async with socket_to(pair.engine) as ws:
        (error,) = await ws.turn(CREATE)
    assert error["status"] == 400
    assert not pair.second.generations


async def test_nothing_is_tried_again_after_the_first_output() -> None:
    """The client has seen half an answer: another one cannot follow it."""
    pair = Pair()
    pair.first.will_fail(Fault.CUT, after=[Delta(text="Half")])
    async with socket_to(pair.engine) as ws:
        events = await ws.turn(CREATE)
    assert kinds(events)[-1] == "failed"
    assert not pair.second.generations


async def test_where_all_are_down_the_client_is_told() -> None:
    pair = Pair()
    for backend in (pair.first, pair.second):
        for _ in range(9):
            backend.will_fail(Fault.OVERLOADED)
    async with socket_to(pair.engine) as ws:
        (error,) = await ws.turn(CREATE)
    assert (error["status"], error["error"]["code"]) == (503, "server_is_overloaded")
    assert pair.first.running == pair.second.running == 0
