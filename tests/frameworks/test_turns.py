"""Turns of apps in every framework, over real sockets: what agents do all day."""

import json
from typing import Any

import pytest

from tests.frameworks.matrix import cell
from tests.frameworks.process import Server
from tests.frameworks.source import EVENT_STREAM, HELPED, KEY, PATH, WHOLE_PATH
from tests.servers.client import Client, response_of

pytestmark = pytest.mark.servers

TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
MIB = 1024 * 1024


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


def loop(client: Client) -> list[dict[str, Any]]:
    """Call the tool four times; return the events of the last turn."""
    events = client.turn(tools=[TOOL])
    for _ in range(4):
        response = response_of(events)
        output = {"type": "function_call_output", "call_id": response["output"][-1]["call_id"], "output": "18 C"}
        events = client.turn(tools=[TOOL], input=[output], previous_response_id=response["id"])
    return events


def types_over_http(server: Server, **options: Any) -> list[str]:
    status, headers, body = server.post({"stream": True, **options})
    assert (status, headers.get_content_type()) == (200, EVENT_STREAM)
    return [
        json.loads(line[6:])["type"] for line in body.decode().replace("\r\n", "\n").split("\n") if line[:6] == "data: "
    ]


def test_chained_tool_calls(server: Server) -> None:
    """Without this nobody knows that handlers of this framework get the whole conversation, and that all they say arrives."""
    with server.connect() as client:
        events = loop(client)
        assert text_of(events) == "This answers 9 input items, 4 of them tool outputs."
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        server.shows("loop", "yes")


def test_http_goes_on_as_before(server: Server) -> None:
    """Without this the wrapped app could answer HTTP clients otherwise than the bare one."""
    over_http = types_over_http(server)
    with server.connect() as client:
        assert [each["type"] for each in client.turn()] == over_http
    assert over_http[-1] == "response.completed"
    server.shows("http", "as before")


def test_helper_of_the_framework(server: Server) -> None:
    """Without this what it writes (CRLF, pings, its own quoting) may be read wrongly."""
    with server.connect(path=HELPED) as client:
        events = client.turn(tools=[TOOL])
        if events[-1]["type"] == "error":
            assert events[-1]["status"] == 404
            server.shows("helper", "has none")
            return
        assert response_of(events)["output"][-1]["type"] == "function_call"
        server.shows("helper", "yes")


@pytest.mark.parametrize("name", ["none", "key", "gzip"])
def test_current_turn(server: Server, name: str) -> None:
    """Without this a handler in mode "turn" may not find its turn: a framework that runs it elsewhere loses the context."""
    with server.connect(name, key=KEY) as client:
        first = client.turn()
        second = client.turn(
            previous_response_id=response_of(first)["id"],
            input=[{"role": "user", "content": "go"}],
            metadata={"do": "turn"},
        )
    assert text_of(second) == "2 before, 1 new"
    server.shows("turn", "yes")


def test_current_turn_in_a_generator_without_async(server: Server) -> None:
    """Without this one that is run in a thread may not find its turn."""
    if cell("sync", server.framework) not in {"streams", "all at once"}:
        pytest.skip("it takes none")
    with server.connect() as client:
        assert text_of(client.turn(metadata={"do": "turn", "plain": True, "key": "turn"})) == "0 before, 1 new"
        server.until_over("turn")


@pytest.mark.parametrize("script", [None, "json"])
def test_compression(server: Server, script: str | None) -> None:
    """Without this a compressing layer could hide the events, although the client of the socket allows it by its headers."""
    body = {"metadata": {"do": script}}
    _, headers, _ = server.post({"metadata": {"do": "json"}}, "gzip", **{"accept-encoding": "gzip"})
    if "content-encoding" not in headers:
        server.shows("compression", "has none")
        return
    with server.connect("gzip", headers=[("Accept-Encoding", "gzip")]) as client:
        assert response_of(client.turn(**body))["status"] == "completed"
        server.shows("compression", "leaves turns alone")


def test_below_a_prefix(server: Server) -> None:
    """Without this a framework that does not know `root_path` would be believed to be mountable."""
    path = f"/api{PATH}"
    status, _, _ = server.post({"stream": True}, "mounted", path)
    with server.connect("mounted", path=path) as client:
        last = client.turn()[-1]
    if last["type"] == "error":
        assert last["status"] == status
        server.shows("mounted", status)
        with server.connect("mounted", path=WHOLE_PATH) as client:
            assert client.turn()[-1]["type"] == "response.completed"
        return
    assert (last["type"], status) == ("response.completed", 200)
    server.shows("mounted", "served")


@pytest.mark.parametrize("size", [3, 11, 18])
def test_large_conversation(server: Server, size: int) -> None:
    """Without this nobody is warned of limits which frameworks have by default, and which a long conversation meets."""
    with server.connect() as client:
        first = client.turn(input="x" * (size * MIB // 2))
        if first[-1]["type"] == "error":
            server.shows(f"body-{size}", first[-1]["status"])
            return
        last = client.turn(input="x" * (size * MIB // 2), previous_response_id=response_of(first)["id"])[-1]
        server.shows(f"body-{size}", last["status"] if last["type"] == "error" else "taken")
