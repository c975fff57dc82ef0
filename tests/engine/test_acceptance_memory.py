"""What a turn leaves behind: nothing that waits for the garbage collector, and what is kept is bounded and charged."""

import gc
from typing import Any

import pytest

from tests.engine.service import last, socket_to
from tests.garbage import no_garbage_collection
from ws_responses import Limits
from ws_responses.backends import Delta
from ws_responses.engine import ResponsesEngine, Retry
from ws_responses.testing.backends import Fault, ScriptedBackend
from ws_responses.upstreams.base import CurrentTurn

CREATE: dict[str, Any] = {"model": "m", "store": False}


def turns_alive() -> int:
    return sum(type(one) is CurrentTurn for one in gc.get_objects())


async def test_a_turn_is_gone_when_it_is_over() -> None:
    """A turn knows its history: in a circle of references it would stay, evicted or not, until all of memory is searched."""
    backend = ScriptedBackend(text="Hello there.", keeps=1)
    engine = ResponsesEngine(backend, retry=Retry(attempts=1))
    async with socket_to(engine) as ws:
        await ws.turn({**CREATE, "input": "first"})
        with no_garbage_collection():
            before = turns_alive()
            parent = last(await ws.turn({**CREATE, "input": "hi"}))["id"]
            backend.will_fail(Fault.CUT, [Delta(text="a")])
            backend.will_fail(Fault.BAD_REQUEST)
            await ws.turn({**CREATE, "input": "breaks"})
            await ws.turn({**CREATE, "input": "fails"})
            await ws.turn({**CREATE, "input": "wrong", "temperature": 9})
            await ws.turn({**CREATE, "input": "warm", "generate": False, "previous_response_id": parent})
            assert turns_alive() == before


@pytest.mark.parametrize("chained", [True, False])
async def test_what_a_socket_keeps_is_bounded(chained: bool) -> None:
    """However many turns it takes: the oldest are dropped, and of a chain that is too long the newest are."""
    limits = Limits(max_connection_bytes=64 * 1024)
    async with socket_to(ResponsesEngine(ScriptedBackend()), limits=limits) as ws:
        parent = None
        kept = 0
        for number in range(100):
            events = await ws.turn({**CREATE, "input": f"{number} " + "x" * 1000, "previous_response_id": parent})
            if events[-1]["type"] == "error":
                assert (events[-1]["error"]["code"], chained) == ("previous_response_not_found", True)
                parent = None
                continue
            kept += 1
            parent = last(events)["id"] if chained else None
    assert kept > 90
