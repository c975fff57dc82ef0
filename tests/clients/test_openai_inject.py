"""The openai package injects tool outputs into a response of the engine, over a real socket."""
# ruff: noqa: E402 - the package is optional

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import require

from .server import Server

require("openai")

from openai import AsyncOpenAI
from openai.types.beta import BetaFunctionToolParam
from openai.types.beta.beta_response_input_item_param import FunctionCallOutput

pytestmark = pytest.mark.clients

TOOL: BetaFunctionToolParam = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {}},
    "strict": False,
}


@pytest.fixture
def engine_server(tmp_path: Path) -> Iterator[Server]:
    with Server("tests.clients.engine_app:app", tmp_path) as server:
        yield server


async def test_the_sdk_answers_a_call_within_its_response(engine_server: Server) -> None:
    """Its beta's own method sends the frame, and its own types read all that comes: a loop of tools in one response."""
    events: list[Any] = []
    client = AsyncOpenAI(base_url=engine_server.base_url, api_key="k")
    beta = {"OpenAI-Beta": "responses_multi_agent=v1"}
    async with client, client.beta.responses.connect(extra_headers=beta) as connection:
        await connection.response.create(
            model="m", input="How is the weather?", tools=[TOOL], multi_agent={"enabled": True}
        )
        with anyio.fail_after(20):
            async for event in connection:
                events.append(event)
                if event.type == "response.output_item.done" and event.item.type == "function_call":
                    output = FunctionCallOutput(type="function_call_output", call_id=event.item.call_id, output="18 C")
                    await connection.response.inject(response_id=events[0].response.id, input=[output])
                if event.type in {"response.completed", "response.failed", "error"}:
                    break

    kinds = [event.type for event in events]
    assert kinds.count("response.created") == 1
    assert kinds.count("response.inject.created") == kinds.count("response.output_item.done") - 1
    assert kinds[-1] == "response.completed"
    assert [event.sequence_number for event in events] == list(range(len(events)))
    items = [item.type for item in events[-1].response.output]
    assert items[-1] == "message"
    assert set(items[:-1]) == {"function_call"}
