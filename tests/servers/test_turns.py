"""Turns over real sockets: what agents do all day."""

import time
from typing import Any

import pytest

from tests.servers.apps import HEADER
from tests.servers.client import Client, Ended, create, response_of
from tests.servers.matrix import cell
from tests.servers.process import Server

pytestmark = pytest.mark.servers

TOOL: dict[str, Any] = {"type": "function", "name": "get_weather", "parameters": {"type": "object"}}
FRESH = 200
UNREAD = 40
FLOOD = 500


def call_output(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answer the call of a turn."""
    return [{"type": "function_call_output", "call_id": response_of(events)["output"][-1]["call_id"], "output": "18 C"}]


def errors_of(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in events if each["type"] == "error"]


def text_of(events: list[dict[str, Any]]) -> str:
    return "".join(each["delta"] for each in events if each["type"] == "response.output_text.delta")


@pytest.mark.fault("B067", "B142")
def test_chained_loop_of_five_turns(server: Server) -> None:
    """Without this nobody knows that a chain holds together on this server: the last turn has all nine items."""
    with server.connect() as client:
        events = client.turn(tools=[TOOL])
        for _ in range(4):
            parent = response_of(events)["id"]
            events = client.turn(tools=[TOOL], input=call_output(events), previous_response_id=parent)
        assert text_of(events) == "This answers 9 input items, 4 of them tool outputs."
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        assert client.close().code == 1000


def test_chain_with_a_framework(server: Server) -> None:
    """Without this a scope that lacks what the specification leaves out (daphne's do) may break FastAPI, not our own app."""
    with server.connect("fastapi") as client:
        events = client.turn(tools=[TOOL])
        parent = response_of(events)["id"]
        events = client.turn(tools=[TOOL], input=call_output(events), previous_response_id=parent)
        assert text_of(events) == "This answers 3 input items, 1 of them tool outputs."


@pytest.mark.fault("B073")
def test_lanes_run_side_by_side(server: Server) -> None:
    """Without this a held lane could block the other, on a server that takes one message at a time."""
    with server.connect() as client:
        client.create(stream_id="slow", metadata={"do": "hold", "key": "lane"})
        client.until_text()
        quick = client.turn(stream_id="quick")
        assert {each["stream_id"] for each in quick} <= {"slow", "quick"}
        assert quick[-1]["stream_id"] == "quick"
        server.ask("release", key="lane")
        slow = client.collect()
    assert {each["stream_id"] for each in slow} == {"slow"}
    assert slow[-1]["type"] == "response.completed"


@pytest.mark.fault("B033")
def test_binary_frames_are_taken_and_bad_ones_are_answered(server: Server) -> None:
    """Without this one odd frame could kill the reader, and the client would wait for ever."""
    with server.connect() as client:
        client.send_binary(create().encode())
        assert client.collect()[-1]["type"] == "response.completed"
        client.send_binary(b"\xff\xfe")
        refusal = client.receive()
        assert (refusal["type"], refusal["status"]) == ("error", 400)
        assert client.turn()[-1]["type"] == "response.completed"


def test_compression(server: Server) -> None:
    """Without this a compressed frame that the server hands on wrongly goes unseen."""
    text = "ä" * 20_000
    with server.connect(deflate=True) as client:
        server.shows("deflate", "yes" if client.protocol.extensions else "no")
        assert text_of(client.turn(input=text, metadata={"do": "say", "text": text})) == text


def test_headers_of_the_handshake(server: Server) -> None:
    """Without this an operator would rely on headers that this server drops."""
    with server.connect("headers") as client:
        name, value = HEADER
        server.shows("accept-headers", "sent" if client.response.headers.get(name) == value else "dropped")
        assert client.turn()[-1]["type"] == "response.completed"


@pytest.mark.fault("B151")
def test_fresh_sockets_serve_their_first_frame(server: Server) -> None:
    """Without this a first frame that arrives while the upgrade is being accepted may get lost, one time in a hundred."""
    served = 0
    for _ in range(FRESH):
        with server.connect() as client:
            served += client.turn()[-1]["type"] == "response.completed"
    server.shows("fresh", "served" if served == FRESH else f"{FRESH - served} of {FRESH} lost")


def test_first_frame_before_the_answer_to_the_upgrade(server: Server) -> None:
    """Without this nobody knows what such a client gets, and whether its connection stays behind: the idle limit ends it."""
    for _ in range(FRESH if cell("early", server.name) == "served" else 1):
        with server.connect("idle", early=create()) as client:
            server.shows("early", _fate_of_early(client))


def _fate_of_early(client: Client) -> str:
    if client.response.status_code != 101:
        return str(client.response.status_code)
    try:
        return "served" if client.collect()[-1]["type"] == "response.completed" else "refused"
    except Ended as end:
        # By the idle limit: the frame never came.
        return "lost" if end.code in {1001, 4001} else str(end.code)


def test_flood_of_frames_is_answered_one_by_one(server: Server) -> None:
    """Without this a burst could stop the reader, lose answers or mix them."""
    with server.connect() as client:
        for number in range(FLOOD):
            client.send(f'{{"type":"response.{number}"}}')
        client.create()
        answers = [client.receive()]
        while {"error", "response.completed"} > {each["type"] for each in answers} or len(errors_of(answers)) < FLOOD:
            answers.append(client.receive())
    named = [each["error"]["message"] for each in errors_of(answers)]
    assert [f"response.{number}'" in each for number, each in enumerate(named)] == [True] * FLOOD


@pytest.mark.fault("B055")
def test_queue_has_a_bound_and_its_excess_an_answer(server: Server) -> None:
    """Without this a client could make the process keep any number of its frames."""
    with server.connect() as client:
        client.create(metadata={"do": "hold", "key": "first"})
        client.until_text()
        for _ in range(70):
            client.create()
        refused = [client.error() for _ in range(6)]
        assert {each["error"]["code"] for each in refused} == {"websocket_queue_full"}
        server.ask("release", key="first")
        assert [client.collect()[-1]["type"] for _ in range(65)] == ["response.completed"] * 65


@pytest.mark.fault("B055")
def test_pings_are_answered_while_a_turn_runs_and_frames_wait(server: Server) -> None:
    """Without this a server that stops reading for one unread frame kills every long turn by its own keep-alive."""
    pings = {"daphne": 2, "granian": 0}.get(server.family, 3)
    begin = time.monotonic()
    with server.connect() as client:
        client.create(metadata={"do": "hold", "key": "long"})
        for _ in range(UNREAD):
            client.create()
        client.until_pings(pings)
        elapsed = time.monotonic() - begin
        server.ask("release", key="long")
        assert [client.collect()[-1]["type"] for _ in range(UNREAD + 1)] == ["response.completed"] * (UNREAD + 1)
    assert not pings or elapsed > 2 * (pings - 1)
    server.shows("pings", "answered" if pings else "none sent")
