"""A rollout over a real socket: by frames alone, and by the openai package, which knows nothing of the prototype."""
# ruff: noqa: E402 - the packages are optional

import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import require

from .server import Server

require("openai")
require("websockets")

from openai import AsyncOpenAI
from websockets.asyncio.client import connect

pytestmark = pytest.mark.clients

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
CREATE = {"type": "response.create", "model": "m", "input": "Look twice.", "tools": [TOOL]}
Event = dict[str, Any]


@pytest.fixture(params=["wrapped", "engine"])
def rolling_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with Server(f"tests.clients.rollout_app:{request.param}", tmp_path) as server:
        yield server


async def run(send: Callable[[Event], Awaitable[None]], receive: Callable[[], Awaitable[Event]]) -> list[Event]:
    """Run a rollout to its end: each call is answered when the response says that it waits."""
    await send(CREATE)
    events = [await receive()]
    while events[-1]["type"] not in ("response.completed", "response.incomplete", "response.failed", "error"):
        if events[-1]["type"] == "response.done":
            await send({"type": "response.append", "input": [{**it, "output": "x"} for it in _wanted(events[-1])]})
        events.append(await receive())
    return events


def _wanted(done: Event) -> list[Event]:
    return [{name: stub[name] for name in ("type", "call_id")} for stub in done["required_input"]]


def check(events: list[Event]) -> None:
    kinds = [event["type"] for event in events]
    assert kinds[-1] == "response.completed", events[-1]
    assert (kinds.count("response.created"), kinds.count("response.done")) == (1, 2)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert len({event["response"]["id"] for event in events if "response" in event}) == 1
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output if item["type"] != "reasoning"] == ["function_call"] * 2 + ["message"]
    assert output == [event["item"] for event in events if event["type"] == "response.output_item.done"]


async def test_a_rollout_by_frames(rolling_server: Server) -> None:
    """Under uvicorn, in a process of its own; then the same socket serves the next, which continues it."""
    url = rolling_server.base_url.replace("http", "ws") + "/responses"
    async with connect(url, additional_headers={"authorization": "Bearer k"}, max_size=None) as socket:

        async def send(frame: Event) -> None:
            await socket.send(json.dumps(frame))

        async def receive() -> Event:
            event: Event = json.loads(await socket.recv())
            return event

        with anyio.fail_after(20):
            events = await run(send, receive)
            check(events)
            await send({**CREATE, "previous_response_id": events[-1]["response"]["id"]})
            assert (await receive())["type"] == "response.created"


async def test_a_rollout_by_the_sdk(rolling_server: Server) -> None:
    """It hands on what it does not know: a client that wants the prototype needs no other package."""
    client = AsyncOpenAI(base_url=rolling_server.base_url, api_key="k")
    async with client, client.responses.connect() as connection:

        async def send(frame: Event) -> None:
            await connection.send_raw(json.dumps(frame))

        async def receive() -> Event:
            event: Event = json.loads(await connection.recv_bytes())
            return event

        with anyio.fail_after(20):
            check(await run(send, receive))
