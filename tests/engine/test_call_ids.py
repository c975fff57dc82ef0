"""Ids of calls on a chain: a service that numbers the calls of each response does not give two of them one name."""

from typing import Any

import httpx
import pytest

from tests.engine.schema import assert_turn
from tests.engine.service import STOP, ScriptedService, last, socket_to
from ws_responses.app import ResponsesApp
from ws_responses.backends import Delta, ToolCallDelta
from ws_responses.engine import ResponsesEngine, call_ids
from ws_responses.engine.call_ids import CallIds
from ws_responses.engine.plan import EngineKept
from ws_responses.protocol.calls import output_head
from ws_responses.protocol.items import ItemHead
from ws_responses.testing import MemorySocket

FIND = {"type": "function", "name": "find", "parameters": {"type": "object"}}
CREATE: dict[str, Any] = {"model": "m", "tools": [FIND]}
KEY = [(b"authorization", b"Bearer k")]


def call(call_id: str | None, index: int = 0) -> Delta:
    return Delta(tool_calls=(ToolCallDelta(index=index, id=call_id, name="find", arguments="{}"),))


def result(item: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": item["call_id"], "output": "found"}


class Agent:
    """Answers the calls of each turn, and goes on from there."""

    def __init__(self, ws: MemorySocket, service: ScriptedService, **members: Any) -> None:
        self._ws = ws
        self._service = service
        self._members = members
        self.response: dict[str, Any] = {}
        self.calls: list[dict[str, Any]] = []

    async def go_on(self, *ids: str | None) -> list[str]:
        """Let the service make calls by these ids; return the ones that the client is told."""
        self._service.will([*(call(one, index) for index, one in enumerate(ids)), STOP])
        outputs = [result(one) for one in self.calls] or "Look."
        parent = self.response.get("id")
        events = await self._ws.turn({**CREATE, **self._members, "input": outputs, "previous_response_id": parent})
        assert_turn(events)
        self.response = last(events)
        self.calls = [item for item in self.response["output"] if item["type"] == "function_call"]
        return [item["call_id"] for item in self.calls]


async def test_ids_that_begin_anew_in_each_response_are_told_apart() -> None:
    """Without this a client that keeps its history (@openai/agents) pairs an output with the call of another turn."""
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service)) as ws:
        agent = Agent(ws, service)
        told = [one for _ in range(3) for one in await agent.go_on("call_0", "call_1")]
        await agent.go_on()
    assert told[:2] == ["call_0", "call_1"]
    assert len(set(told)) == 6
    history = [one for one in service.messages() if one["role"] in ("assistant", "tool")]
    pairs = [[made["id"] for made in one["tool_calls"]] for one in history if one.get("tool_calls")]
    assert [one for pair in pairs for one in pair] == told
    assert [one["tool_call_id"] for one in history if one["role"] == "tool"] == told


async def test_ids_that_differ_are_the_services_own() -> None:
    """Some services want to see them again as they gave them (``functions.find:3``)."""
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service)) as ws:
        agent = Agent(ws, service)
        told = [one for number in range(4) for one in await agent.go_on(f"functions.find:{number}")]
    assert told == [f"functions.find:{number}" for number in range(4)]


async def test_turns_without_such_ids_do_not_hide_those_before_them() -> None:
    """A text, a warm-up, calls that the service gives no id: what came before is still known."""
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service)) as ws:
        agent = Agent(ws, service)
        assert await agent.go_on("call_0") == ["call_0"]
        await agent.go_on()
        await agent.go_on(None)
        await agent.go_on()
        parent = agent.response["id"]
        events = await ws.turn({**CREATE, "input": "Wait.", "generate": False, "previous_response_id": parent})
        agent.response = last(events)
        (told,) = await agent.go_on("call_0")
    assert told != "call_0"


async def test_a_fork_knows_what_it_goes_on_from_and_nothing_else() -> None:
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service)) as ws:
        agent = Agent(ws, service)
        await agent.go_on("call_0")
        parent, calls = agent.response, agent.calls
        assert await agent.go_on("call_1") == ["call_1"]
        agent.response, agent.calls = parent, calls
        assert await agent.go_on("call_1") == ["call_1"]
        assert await agent.go_on("call_0") != ["call_0"]


async def test_what_was_stored_is_known_on_another_socket() -> None:
    """There nothing is kept of the turns but their records."""
    service = ScriptedService()
    app = ResponsesApp(ResponsesEngine(service), authorize="open", tenant_key=b"k" * 32)
    async with MemorySocket(app, headers=KEY) as ws:
        agent = Agent(ws, service, store=True)
        assert await agent.go_on("call_0") == ["call_0"]
        await agent.go_on("call_1")
    async with MemorySocket(app, headers=KEY) as ws:
        other = Agent(ws, service, store=True)
        other.response, other.calls = agent.response, agent.calls
        (told,) = await other.go_on("call_0")
        assert told != "call_0"
        assert await other.go_on("call_1") != ["call_1"]


async def test_also_in_a_history_that_comes_with_the_request() -> None:
    """HTTP is the fallback of every client, with all items each time."""
    service = ScriptedService()
    service.will([call("call_0"), STOP])
    made = {"type": "function_call", "call_id": "call_0", "name": "find", "arguments": "{}"}
    app = ResponsesApp(ResponsesEngine(service), authorize="open")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as http:
        body = {**CREATE, "store": False, "input": [{"role": "user", "content": "Look."}, made, result(made)]}
        answer = (await http.post("/v1/responses", json=body)).json()
    assert answer["output"][0]["call_id"] != "call_0"


@pytest.mark.parametrize("given", ["", "x" * 257, "\ud800"])
async def test_what_can_name_no_call_is_replaced(given: str) -> None:
    """Without this a client would get a name that it cannot send back, or two calls of one name."""
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service)) as ws:
        agent = Agent(ws, service)
        told = await agent.go_on(given, given)
    assert len(set(told)) == 2
    assert all(0 < len(one) <= 256 for one in told)


async def test_each_item_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this every call would cost a walk over the whole history."""
    looked: list[bytes] = []

    def look(item: bytes) -> ItemHead:
        looked.append(item)
        return output_head(item)

    monkeypatch.setattr(call_ids, "output_head", look)
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service)) as ws:
        agent = Agent(ws, service)
        for _ in range(20):
            await agent.go_on("call_0")
    assert len(looked) == 20 * 2  # an input and an output each


def test_they_are_paid_for_once() -> None:
    """Without this a service (or a client) with long ids would fill memory that no budget knows of."""
    parent = CallIds(frozenset({"x" * 256}))
    ids = CallIds(frozenset({"y" * 256, "z"}), parent)
    charged = EngineKept(call_ids=ids).bytes_since(EngineKept(call_ids=parent)) - EngineKept().bytes_since(None)
    assert 256 < charged < 256 + 512
