"""pydantic-ai, with its WebSocket transport: a chained loop on one socket, and concurrent runs on lanes of it."""
# ruff: noqa: E402 - the package is optional

from collections.abc import Callable

import anyio
import pytest

from tests.conftest import require

from .server import Server
from .test_openai_agents import answer, assert_clean

require("pydantic_ai")

from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIResponsesModel, OpenAIResponsesModelSettings
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers.openai import OpenAIProvider

pytestmark = pytest.mark.clients

TIMEOUT_S = 25
RUNS = 4

Serve = Callable[[str], Server]


class Weather:
    """An agent with a function tool, and the cities it asked for.

    Args:
        server: What it talks to.
        lanes: Whether runs at the same time share the socket; without lanes all but one of them go over HTTP.
    """

    def __init__(self, server: Server, *, lanes: bool = False) -> None:
        self.cities: list[str] = []
        model = OpenAIResponsesModel(
            "fake-model",
            provider=OpenAIProvider(base_url=server.base_url, api_key="k"),
            profile=OpenAIModelProfile(openai_responses_supports_websocket_stream_id=lanes),
        )
        settings = OpenAIResponsesModelSettings(openai_transport="websocket", openai_store=False)
        self.agent = Agent(model, model_settings=settings)

        @self.agent.tool_plain
        def get_weather(city: str) -> str:
            """Tell the weather in a city."""
            self.cities.append(city)
            return f"sunny in {city}"


async def test_plain_and_streamed_runs_chain_over_one_socket(server: Server) -> None:
    weather = Weather(server)
    with anyio.fail_after(TIMEOUT_S):
        async with weather.agent as agent:
            first = await agent.run("Weather?")
            second = await agent.run("Again?", message_history=first.all_messages())
            async with agent.run_stream("And once more?", message_history=second.all_messages()) as stream:
                pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]

    assert first.output == answer(items=3, outputs=1)
    assert second.output == answer(items=7, outputs=2)
    assert "".join(pieces) == answer(items=11, outputs=3)
    assert len(pieces) > 1
    assert weather.cities == ["Paris"] * 3
    socket = server.recording.only_socket
    assert_clean(socket, turns=6)
    parents = [create.get("previous_response_id") for create in socket.creates]
    assert parents == [None, *(response["id"] for response in socket.finished[:-1])]
    assert [len(create["input"]) for create in socket.creates] == [1] * 6


async def test_runs_at_the_same_time_share_a_socket_by_lanes(server: Server) -> None:
    weather = Weather(server, lanes=True)
    outputs: list[str] = []

    async def run(agent: Agent[None, str], number: int) -> None:
        outputs.append((await agent.run(f"Weather {number}?")).output)

    with anyio.fail_after(TIMEOUT_S):
        async with weather.agent as agent, anyio.create_task_group() as runs:
            for number in range(RUNS):
                runs.start_soon(run, agent, number)

    assert outputs == [answer(items=3, outputs=1)] * RUNS
    socket = server.recording.only_socket
    assert_clean(socket, turns=2 * RUNS)
    lanes = {create.get("stream_id") for create in socket.creates}
    assert len(lanes) > 1
    assert {event.get("stream_id") for event in socket.events} == lanes


async def test_an_error_has_its_status_and_code(server: Server) -> None:
    weather = Weather(server)
    unknown = OpenAIResponsesModelSettings(openai_previous_response_id="resp_unknown")
    with anyio.fail_after(TIMEOUT_S):
        async with weather.agent as agent:
            with pytest.raises(ModelHTTPError) as caught:
                await agent.run("Weather?", model_settings=unknown)
            after = await agent.run("Weather?")

    assert caught.value.status_code == 400
    assert "previous_response_not_found" in str(caught.value.body)
    assert after.output == answer(items=3, outputs=1)
    assert server.recording.posts == []


@pytest.mark.parametrize("app", ["wrapped", "engine"])
async def test_a_run_after_a_restart_takes_another_socket(serve: Serve, app: str) -> None:
    server = serve(app)
    weather = Weather(server)
    with anyio.fail_after(TIMEOUT_S):
        async with weather.agent as agent:
            before = await agent.run("Weather?")
            await anyio.to_thread.run_sync(server.restart)
            after = await agent.run("Weather?")

    assert before.output == after.output == answer(items=3, outputs=1)
    assert server.recording.posts == []
    for socket in server.recording.sockets:
        assert_clean(socket, turns=2)
