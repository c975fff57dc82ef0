"""The openai package for Node: its ResponsesWS, driven by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

from .programs import Script, installed
from .server import Server
from .test_codex import text
from .test_openai_agents import answer

require("node")
require("openai for Node (tests/clients/setup.sh installs it)", present=installed("openai") and installed("ws"))

pytestmark = pytest.mark.clients

Serve = Callable[[str], Server]


def told(server: Server, scenario: str, folder: Path) -> list[Any]:
    with Script("openai_node.mjs", server.base_url, scenario, home=folder / "home") as script:
        return list(script.lines())


def test_a_tool_loop_on_one_socket(server: Server, tmp_path: Path) -> None:
    warm_up, call, final = told(server, "loop", tmp_path)

    assert warm_up["response"]["output"] == []
    assert [item["type"] for item in call["response"]["output"]] == ["function_call"]
    # The question, the call and its output: the app was given all three, its client sent the last one only.
    assert final["streamed"] == text(final["response"]) == answer(items=3, outputs=1)
    assert final["response"]["previous_response_id"] == call["response"]["id"]
    socket = server.recording.only_socket
    assert [len(create["input"]) for create in socket.creates[::2]] == [0, 1]
    assert len(socket.finished) == 3
    assert socket.errors == []


def test_an_error_leaves_the_socket_usable(server: Server, tmp_path: Path) -> None:
    error, final = told(server, "error", tmp_path)

    assert error["error"]["status"] == 400
    assert error["error"]["error"]["code"] == "previous_response_not_found"
    assert text(final["response"]) == answer(items=1, outputs=0)
    assert len(server.recording.only_socket.creates) == 2


def test_lanes_share_a_socket(server: Server, tmp_path: Path) -> None:
    told_of = told(server, "lanes", tmp_path)

    assert {one["lane"] for one in told_of} == {"a", "b"}
    assert [text(one["response"]) for one in told_of] == [answer(items=1, outputs=0)] * 2
    assert {event["stream_id"] for event in server.recording.only_socket.events} == {"a", "b"}


@pytest.mark.parametrize("app", ["wrapped", "engine"])
def test_it_opens_a_socket_anew_when_the_server_restarts(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(app)
    with Script("openai_node.mjs", server.base_url, "reconnect", home=tmp_path / "home") as script:
        before = script.read()
        server.restart()
        reconnecting, after = script.lines()

    # 1012 is "service restart": the client knows that it may come back.
    assert reconnecting == {"reconnecting": 1012}
    assert [text(one["response"]) for one in (before, after)] == [answer(items=1, outputs=0)] * 2
    assert [len(socket.creates) for socket in server.recording.sockets] == [1, 1]
