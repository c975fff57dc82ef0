"""Responses apps that others have written, wrapped in one line and unchanged, over real sockets."""

import json
from typing import Any

import pytest

from tests.host_apps.process import Server
from tests.servers.client import Client, response_of
from tests.upstreams.wire import assert_legal

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]  # the first one starts the app

TOOL: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {}},
}
USER: dict[str, Any] = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
SOON_S = 3.0


def turn(client: Client, **members: Any) -> list[dict[str, Any]]:
    """Run a turn, and hold its events against the protocol."""
    events = client.turn(**{"model": "fake", "input": [USER], **members})
    if events[0]["type"] != "error":
        assert_legal(events, previous_response_id=members.get("previous_response_id"))
    else:
        assert len(events) == 1
    return events


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


def said(client: Client, parent: list[dict[str, Any]], *items: dict[str, Any], **members: Any) -> str:
    """Continue a chain; return what the answer is: its text, or the type of its item."""
    events = turn(client, input=list(items), previous_response_id=response_of(parent)["id"], **members)
    return text_of(events) or str(response_of(events)["output"][-1]["type"])


def loop(client: Client) -> str:
    """Call a tool, answer, and say how it went."""
    first = turn(client, tools=[TOOL])
    item = response_of(first)["output"][-1]
    if item["type"] != "function_call":
        return "has no calls"
    assert item["name"] == TOOL["name"]
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "18 C"}
    # Three items are the question, the call and its output.
    outcomes = {
        "I have 3 items.": "works",
        "I have 2 items.": "loses the question",
        "I have 1 items.": "loses the history",
        "function_call": "loses the call",
    }
    return outcomes[said(client, first, output, tools=[TOOL])]


def test_tool_loop(server: Server) -> None:
    """Without this nobody knows which of them take part in an agent's loop, and by which history mode."""
    seen = {}
    for mode in ("replay", "forward"):
        with server.connect(mode) as client:
            seen[mode] = loop(client)
    assert seen == {"replay": server.app.replay, "forward": server.app.forward}


def test_chain_of_messages(server: Server) -> None:
    """Without this an app that has no calls could lose its messages as well: 1, 3, 5 items are given."""
    with server.connect() as client:
        first = turn(client)
        second = turn(client, previous_response_id=response_of(first)["id"])
        third = turn(client, previous_response_id=response_of(second)["id"])
    assert [text_of(each) for each in (first, second, third)] == [f"I have {count} items." for count in (1, 3, 5)]
    assert [each["sequence_number"] for each in third] == list(range(len(third)))


def test_warm_up_runs_no_model(server: Server) -> None:
    """Without this a warm-up would be paid for: passed on, every one of these apps runs a whole generation."""
    before = server.ask("calls")["calls"]
    with server.connect() as client:
        warm = turn(client, generate=False)
        assert response_of(warm)["output"] == []
        assert server.ask("calls")["calls"] == before
        assert said(client, warm, USER) == "I have 2 items."
    assert server.ask("calls")["calls"] == before + 1


@pytest.mark.parametrize(("model", "column"), [("raise", "raises"), ("break", "breaks")])
def test_broken_handler(server: Server, model: str, column: str) -> None:
    """Without this one broken turn could end the socket, or close twice."""
    with server.connect() as client:
        last = turn(client, model=model)[-1]
        seen = f"`error` {last['status']}" if last["type"] == "error" else f"`{last['type']}`"
        assert seen == getattr(server.app, column)
        assert "Traceback" not in json.dumps(last)
        assert text_of(turn(client)) == "I have 1 items."


def test_request_that_is_refused(server: Server) -> None:
    """Without this a refusal in a shape of the app's own (there are four) could be told without its reason."""
    if not server.app.refuses:
        pytest.skip("it refuses nothing")
    with server.connect() as client:
        (event,) = turn(client, **server.app.refuses)
        assert 400 <= event["status"] < 500
        assert event["error"]["code"]
        assert "(status" not in event["error"]["message"]
        assert turn(client)[-1]["type"] == "response.completed"


def test_client_that_leaves(server: Server) -> None:
    """Without this the turn of a client that has gone could hold its place; the handler does what it does over HTTP."""
    at_work = server.ask("gauges")["handlers"]

    def quiet() -> bool:
        return server.ask("gauges") == {"connections": 0, "turns": 0, "handlers": at_work}

    with server.request(json.dumps({"model": "stall", "input": [USER], "stream": True}).encode()) as connection:
        read = b""
        while b"I have" not in read:
            data = connection.recv(65536)
            assert data, read
            read += data
    if server.app.gone == "goes on, as over HTTP":
        at_work += 1
    server.until(quiet, "ends what HTTP began", SOON_S)
    client = server.connect()
    client.create(model="stall", input=[USER])
    client.until_text()
    client.abort()
    if server.app.gone == "goes on, as over HTTP":
        at_work += 1
    server.until(quiet, "ends what the socket began", SOON_S)
