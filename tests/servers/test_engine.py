"""The engine on each server, over the socket and over HTTP. What leaves, waits and ends stands with that of wrapped apps, in the files
beside this one.
"""

import http.client
import json
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.servers.client import PATIENCE_S, response_of
from tests.servers.process import Server

pytestmark = pytest.mark.servers

TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
PATH = "/engine/v1/responses"
SOON_S = 3.0
COUNT, SIZE = 8000, 4096


def output_of(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer the call of a response."""
    call = next(item for item in response["output"] if item["type"] == "function_call")
    return [{"type": "function_call_output", "call_id": call["call_id"], "output": "18 C"}]


def text_of(response: dict[str, Any]) -> str:
    return "".join(part["text"] for item in response["output"] if item["type"] == "message" for part in item["content"])


def body_of(**members: Any) -> bytes:
    return json.dumps({"model": "m", "input": "hi", **members}).encode()


def post(server: Server, key: str | None = None, **members: Any) -> dict[str, Any]:
    """Ask over HTTP; the response object, from JSON or from the last of the events."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE_S)
    headers = {"content-type": "application/json", **({"authorization": f"Bearer {key}"} if key else {})}
    try:
        connection.request("POST", PATH, body_of(**members), headers)
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    assert answer.status == 200, text
    found: dict[str, Any]
    if not members.get("stream"):
        found = json.loads(text)
        return found
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert events[-1]["type"] == "response.completed"
    found = events[-1]["response"]
    return found


@contextmanager
def listening(server: Server, script: dict[str, Any], mark: bytes) -> Iterator[socket.socket]:
    """Ask for a stream over HTTP and read up to a mark; the connection is reset at the end."""
    body = body_of(stream=True, user=json.dumps(script))
    head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE_S) as connection:
        connection.sendall(head.encode() + body)
        read = b""
        while mark not in read:
            data = connection.recv(4096)
            assert data, read
            read += data
        yield connection
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_chained_loop_over_the_socket(server: Server) -> None:
    """Without this nobody knows that an engine's chain holds together on this server: nine messages, four of them outputs."""
    with server.connect("engine") as client:
        events = client.turn(tools=[TOOL])
        for _ in range(4):
            parent = response_of(events)
            events = client.turn(tools=[TOOL], input=output_of(parent), previous_response_id=parent["id"])
        assert text_of(response_of(events)) == "9 messages, 4 of them outputs."
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
    server.shows("engine-loop", "works")


@pytest.mark.parametrize("stream", [False, True], ids=["json", "events"])
def test_chained_loop_over_http_and_on_over_the_socket(server: Server, stream: bool) -> None:
    """Without this a client that falls back to HTTP, and comes back, would find another conversation there."""
    first = post(server, "key", tools=[TOOL], stream=stream)
    second = post(server, "key", tools=[TOOL], stream=stream, input=output_of(first), previous_response_id=first["id"])
    with server.connect("engine", key="key") as client:
        events = client.turn(tools=[TOOL], input=output_of(second), previous_response_id=second["id"])
        third = response_of(events)
    assert [item["type"] for item in third["output"]] == ["function_call"]
    last = post(server, "key", input=output_of(third), previous_response_id=third["id"], stream=stream)
    assert text_of(last) == "7 messages, 3 of them outputs."
    server.shows("engine-http", "works")


def test_client_leaves_its_request(server: Server) -> None:
    """Without this a service goes on sampling for a client of HTTP that has gone, and somebody pays for it."""
    with listening(server, {"do": "hold", "key": "left"}, b"begun"):
        pass
    assert server.until_over("left", SOON_S)[0] == "cancelled"
    server.until_empty(SOON_S)
    server.shows("engine-gone", "ends at once")


def test_client_does_not_read_its_answer(server: Server) -> None:
    """Without this a slow client of HTTP lets the service fill our memory."""
    with listening(server, {"do": "stream", "key": "unread", "count": COUNT, "size": SIZE}, b"xxx"):
        sent = server.until_quiet("unread")
    server.shows("engine-slow", "service waits" if sent < COUNT // 2 else "all is buffered")
    server.until_over("unread")
