"""Real clients in a loop whose worker goes away between two turns, or in one: they finish it at another worker."""
# ruff: noqa: E402 - the packages are optional

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from tests.conftest import require

from .codex import Codex
from .gate import Gate, run_held, wait_until
from .rolling import How, Workers
from .server import Server
from .test_openai_python import MODEL, WEATHER, send

require("openai")
require("agents")

from agents import (
    Agent,
    OpenAIResponsesWSModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from websockets.exceptions import ConnectionClosed

pytestmark = [pytest.mark.clients, pytest.mark.slow]

HOW = pytest.mark.parametrize("how", ["restart", "crash"])
OUTPUT = "the tool has waited"


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Server]:
    """What the workers ask; it records their requests."""
    (tmp_path / "model").mkdir()
    with Server("tests.clients.recovery_app:wrapped", tmp_path / "model") as server:
        yield server


@pytest.fixture
def workers(model: Server, tmp_path: Path) -> Iterator[Workers]:
    with Workers(model.base_url, f"sqlite:{tmp_path / 'chains.db'}") as workers:
        yield workers


def sockets(model: Server) -> int:
    """How many there were: for each, the workers ask what they stand before whether it refuses the client."""
    return sum(exchange.method == "GET" for exchange in model.recording.exchanges())


@HOW
@pytest.mark.usefixtures("codex_binary")
def test_codex_ends_its_loop(model: Server, workers: Workers, tmp_path: Path, how: How) -> None:
    """It stores nothing, so that it sends all of it again: to whichever worker, on one more socket."""
    codex = Codex(tmp_path / "codex", workers.base_url, retries=2)
    gate = Gate(codex.home)
    result = run_held(lambda: codex.exec("run the tool"), gate, meanwhile=lambda: workers.disturb(how), output=OUTPUT)

    assert result.returncode == 0, result.stderr
    assert "1 of them tool outputs" in result.stdout
    assert len(model.recording.posts) == 2, "no turn was lost, and none was asked twice"
    assert sockets(model) == 2


@pytest.mark.usefixtures("codex_binary")
def test_codex_takes_a_turn_again_whose_worker_is_killed(tmp_path: Path) -> None:
    """In the middle of the turn: it counts one retry, and ends its loop at the other worker."""
    (tmp_path / "model").mkdir()
    with (
        Server("tests.clients.recovery_app:wrapped_stalling", tmp_path / "model") as model,
        Workers(model.base_url, f"sqlite:{tmp_path / 'chains.db'}") as workers,
        ThreadPoolExecutor(1) as threads,
    ):
        codex = Codex(tmp_path / "codex", workers.base_url, retries=1)
        gate = Gate(codex.home)
        running = threads.submit(codex.exec, "run the tool")
        gate.reached().open(OUTPUT)
        wait_until(lambda: len(model.recording.posts) == 2)
        workers.disturb("crash")
        result = running.result()

    assert result.returncode == 0, result.stderr
    assert "1 of them tool outputs" in result.stdout
    assert len(model.recording.posts) == 3, "the question, the output, and the output again"
    assert sockets(model) == 2


async def take(connection: Any, body: dict[str, Any]) -> Any:
    """Take one turn; return its last event."""
    await send(connection, {"model": MODEL, "tools": [WEATHER], **body})
    async for event in connection:
        if event.type in {"response.completed", "response.incomplete", "response.failed", "error"}:
            return event
    raise AssertionError("the connection ended in order within a turn")


@HOW
async def test_the_openai_package_goes_on_by_the_id_of_its_last_response(
    model: Server, workers: Workers, how: How
) -> None:
    """The chain is in the store: only the tool's output is sent, and the other worker knows the rest."""
    async with AsyncOpenAI(base_url=workers.base_url, api_key="k") as client:
        async with client.responses.connect() as connection:
            asked = (await take(connection, {"input": "Use the tool."})).response
            await to_thread.run_sync(workers.disturb, how)
            (call,) = asked.output
            output = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
            body = {"previous_response_id": asked.id, "input": [output]}
            with pytest.raises(ConnectionClosed):
                await take(connection, body)
        async with client.responses.connect() as connection:
            final = (await take(connection, body)).response

    assert final.output_text == "This answers 3 input items, 1 of them tool outputs."
    assert final.previous_response_id == asked.id
    assert len(model.recording.posts) == 2
    assert sockets(model) == 2


@HOW
@pytest.mark.parametrize("chained", [True, False])
async def test_an_agent_of_openai_agents_ends_its_run(model: Server, workers: Workers, how: How, chained: bool) -> None:
    """Between two turns it opens another socket by itself, whether it names its last response or sends all."""
    set_tracing_disabled(True)

    @function_tool
    async def get_weather(city: str) -> str:
        """Tell the weather in a city."""
        await to_thread.run_sync(workers.disturb, how)
        return f"sunny in {city}"

    async with AsyncOpenAI(base_url=workers.base_url, api_key="k", max_retries=0) as client:
        ws_model = OpenAIResponsesWSModel(model=MODEL, openai_client=client)
        agent = Agent(name="weather", instructions="Be short.", model=ws_model, tools=[get_weather])
        with anyio.fail_after(45):
            result = await Runner.run(agent, "Weather?", auto_previous_response_id=chained)
            await ws_model.close()

    assert result.final_output == "This answers 3 input items, 1 of them tool outputs."
    assert len(model.recording.posts) == 2
    assert sockets(model) == 2
