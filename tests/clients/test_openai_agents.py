"""The openai-agents package, by each of the three ways that turn its WebSocket transport on."""
# ruff: noqa: E402 - the package is optional

from collections.abc import AsyncIterator

import anyio
import pytest

from tests.conftest import require

from .recorder import Exchange
from .server import Server

require("agents")

from agents import (
    Agent,
    ModelSettings,
    OpenAIResponsesWSModel,
    Runner,
    TResponseInputItem,
    function_tool,
    responses_websocket_session,
    set_default_openai_client,
    set_default_openai_responses_transport,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

pytestmark = pytest.mark.clients

TIMEOUT_S = 25


class Weather:
    """An agent with a function tool, and the cities it asked for."""

    def __init__(self) -> None:
        self.cities: list[str] = []

        @function_tool
        def get_weather(city: str) -> str:
            """Tell the weather in a city."""
            self.cities.append(city)
            return f"sunny in {city}"

        self.agent = Agent(name="weather", instructions="Be short.", model="fake-model", tools=[get_weather])


@pytest.fixture(autouse=True)
def no_tracing() -> None:
    set_tracing_disabled(True)


@pytest.fixture
async def client(server: Server) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=server.base_url, api_key="k", max_retries=0) as client:
        yield client


async def test_a_session_takes_streamed_and_plain_runs_over_one_socket(server: Server) -> None:
    weather = Weather()
    with anyio.fail_after(TIMEOUT_S):
        async with responses_websocket_session(api_key="k", base_url=server.base_url) as session:
            first = session.run_streamed(weather.agent, "Weather?")
            async for _ in first.stream_events():
                pass
            second = session.run_streamed(weather.agent, "And again?", previous_response_id=first.last_response_id)
            async for _ in second.stream_events():
                pass
            question: TResponseInputItem = {"role": "user", "content": "And once more?"}
            third = await session.run(weather.agent, [*second.to_input_list(), question])

    answers = [first.final_output, second.final_output, third.final_output]
    # Each question adds four items: itself, a call, its output and the answer. The third run sends what the second one
    # gives as its list, which has the second question on, and its own question.
    assert answers == [answer(items=3, outputs=1), answer(items=7, outputs=2), answer(items=7, outputs=2)]
    assert weather.cities == ["Paris"] * 3
    assert_clean(server.recording.only_socket, turns=6)


async def test_a_model_chains_its_tool_loop_by_previous_response_id(server: Server, client: AsyncOpenAI) -> None:
    weather = Weather()
    model = OpenAIResponsesWSModel(model="fake-model", openai_client=client)
    agent = weather.agent.clone(model=model, model_settings=ModelSettings(store=False))
    with anyio.fail_after(TIMEOUT_S):
        result = await Runner.run(agent, "Weather?", auto_previous_response_id=True)
        await model.close()

    assert result.final_output == answer(items=3, outputs=1)
    assert weather.cities == ["Paris"]
    socket = server.recording.only_socket
    assert_clean(socket, turns=2)
    _question, output = socket.creates
    assert output["previous_response_id"] == socket.finished[0]["id"]
    assert [item["type"] for item in output["input"]] == ["function_call_output"]
    assert output["store"] is False


async def test_the_global_transport_goes_on_from_an_earlier_socket(server: Server, client: AsyncOpenAI) -> None:
    weather = Weather()
    set_default_openai_client(client, use_for_tracing=False)
    set_default_openai_responses_transport("websocket")
    try:
        with anyio.fail_after(TIMEOUT_S):
            first = await Runner.run(weather.agent, "Weather?")
            second = await Runner.run(weather.agent, "Again?", previous_response_id=first.last_response_id)
    finally:
        set_default_openai_responses_transport("http")

    assert first.final_output == answer(items=3, outputs=1)
    assert second.final_output == answer(items=7, outputs=2)
    assert weather.cities == ["Paris"] * 2
    assert server.recording.posts == []
    one, two = server.recording.sockets
    assert_clean(one, turns=2)
    assert_clean(two, turns=2)
    assert two.creates[0]["previous_response_id"] == one.finished[-1]["id"] == first.last_response_id


def answer(*, items: int, outputs: int) -> str:
    """What the scripted model says: it counts what the app was given, so a lost or doubled item shows."""
    return f"This answers {items} input items, {outputs} of them tool outputs."


def assert_clean(socket: Exchange, *, turns: int) -> None:
    assert socket.errors == []
    assert socket.binary == 0
    assert len(socket.creates) == len(socket.finished) == turns
