"""The openai package: one connection driven by hand, and its session which shares a connection among lanes."""
# ruff: noqa: E402 - the package is optional

import json
from typing import Any

import anyio
import pytest

from tests.conftest import require

from .server import Server

require("openai")

from openai import AsyncOpenAI
from openai.lib.responses_websocket import AsyncResponsesWebSocketSession, ResponsesWebSocketLimits

pytestmark = pytest.mark.clients

MODEL = "fake-model"
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


async def send(connection: Any, body: dict[str, Any]) -> None:
    """Sends a create; the SDK's type for it wants every member spelled out."""
    await connection.send({"type": "response.create", **body})


async def turn(connection: Any, **body: Any) -> Any:
    """Takes one turn and gives its last event."""
    await send(connection, {"model": MODEL, **body})
    with anyio.fail_after(10):
        async for event in connection:
            if event.type in {"response.completed", "response.failed", "response.incomplete", "error"}:
                return event
    raise AssertionError("the connection ended within a turn")


async def test_a_tool_loop_on_one_connection(server: Server) -> None:
    client = AsyncOpenAI(base_url=server.base_url, api_key="k")
    async with client, client.responses.connect() as connection:
        warm_up = (await turn(connection, generate=False, input=[], tools=[WEATHER])).response
        call = (
            await turn(connection, previous_response_id=warm_up.id, input="Use the tool.", tools=[WEATHER], store=False)
        ).response
        (item,) = call.output
        output = {"type": "function_call_output", "call_id": item.call_id, "output": "sunny"}
        final = (
            await turn(connection, previous_response_id=call.id, input=[output], tools=[WEATHER], store=False)
        ).response

    assert warm_up.output == []
    assert (item.type, item.name, json.loads(item.arguments)) == ("function_call", "get_weather", {"city": "Paris"})
    # The question, the call and its output: the app was given all three, its client sent the last one only.
    assert final.output_text == "This answers 3 input items, 1 of them tool outputs."
    assert final.previous_response_id == call.id
    assert len(server.recording.only_socket.finished) == 3


async def test_an_error_leaves_the_connection_usable(server: Server) -> None:
    client = AsyncOpenAI(base_url=server.base_url, api_key="k")
    async with client, client.responses.connect() as connection:
        error = await turn(connection, previous_response_id="resp_unknown", input="hi")
        final = await turn(connection, input="hi")

    assert (error.type, error.status, error.error.code) == ("error", 400, "previous_response_not_found")
    assert final.type == "response.completed"
    assert len(server.recording.only_socket.creates) == 2


@pytest.mark.parametrize(("key", "answer"), [("right", "response.completed"), ("wrong", "error")])
async def test_the_handlers_own_key_check_judges_each_turn(server_with_key: Server, key: str, answer: str) -> None:
    client = AsyncOpenAI(base_url=server_with_key.base_url, api_key=key)
    async with client, client.responses.connect() as connection:
        event = await turn(connection, input="hi")

    assert event.type == answer
    assert getattr(event, "status", None) == (401 if key == "wrong" else None)


async def test_a_session_shares_one_connection_among_concurrent_lanes(server: Server) -> None:
    limits = ResponsesWebSocketLimits(
        max_lanes=8, max_events_per_lane=128, max_events=512, max_bytes_per_lane=2**24, max_bytes=2**25
    )
    answers: dict[str, list[Any]] = {"a": [], "b": [], "c": []}
    client = AsyncOpenAI(base_url=server.base_url, api_key="k")

    async def two_turns(session: AsyncResponsesWebSocketSession, name: str) -> None:
        lane = session.lane(name)
        await lane.send({"type": "response.create", "model": MODEL, "input": f"hi from {name}"})
        first = await lane.get_final_response()
        await lane.send({"type": "response.create", "model": MODEL, "input": "go on", "previous_response_id": first.id})
        answers[name] += [first, await lane.get_final_response()]

    with anyio.fail_after(20):
        async with (
            client,
            client.responses.connect() as connection,
            AsyncResponsesWebSocketSession(connection, limits=limits) as session,
            anyio.create_task_group() as lanes,
        ):
            for name in answers:
                lanes.start_soon(two_turns, session, name)

    socket = server.recording.only_socket
    for name, (first, second) in answers.items():
        assert first.output_text == "This answers 1 input items, 0 of them tool outputs."
        assert second.output_text == "This answers 3 input items, 0 of them tool outputs."
        events = [event for event in socket.events if event.get("stream_id") == name]
        ended = [event["response"]["id"] for event in events if event["type"] == "response.completed"]
        assert ended == [first.id, second.id]
        assert second.previous_response_id == first.id
    assert {event.get("stream_id") for event in socket.events} == set(answers)


async def test_http_and_socket_give_the_same_events(server: Server) -> None:
    """A client that falls back to HTTP in the middle of a loop must find the same API."""
    body: dict[str, Any] = {"model": MODEL, "input": "Use the tool.", "tools": [WEATHER], "store": False}
    async with AsyncOpenAI(base_url=server.base_url, api_key="k") as client:
        over_http = [
            event.model_dump(exclude_unset=True) async for event in await client.responses.create(**body, stream=True)
        ]
        over_socket: list[dict[str, Any]] = []
        async with client.responses.connect() as connection:
            await send(connection, body)
            with anyio.fail_after(10):
                async for event in connection:
                    over_socket.append(event.model_dump(exclude_unset=True))
                    if event.type == "response.completed":
                        break

    assert without_chance(over_http) == without_chance(over_socket)


def without_chance(events: list[dict[str, Any]]) -> Any:
    """Take away what differs from response to response: ids, numbers, times."""
    text = json.dumps(events)
    final = events[-1]["response"]
    for number, own in enumerate((final["id"], *(item[key] for item in final["output"] for key in ("id", "call_id")))):
        text = text.replace(own, f"id-{number}")
    told = json.loads(text)
    for event in told:
        event.pop("sequence_number")
        for name in ("created_at", "completed_at"):
            event.get("response", {}).pop(name, None)
    return told
