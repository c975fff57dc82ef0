"""The @openai/agents package, by each of the ways that turn its WebSocket transport on."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

from .programs import Script, installed
from .server import Server
from .test_openai_agents import answer, assert_clean

require("node")
require("@openai/agents (tests/clients/setup.sh installs it)", present=installed("@openai/agents") and installed("ws"))

pytestmark = pytest.mark.clients

Serve = Callable[[str], Server]


def told(server: Server, scenario: str, folder: Path) -> list[Any]:
    with Script("agents.mjs", server.base_url, scenario, home=folder / "home") as script:
        return list(script.lines())


def test_a_session_takes_streamed_and_plain_runs_over_one_socket(server: Server, tmp_path: Path) -> None:
    first, second, third = told(server, "session", tmp_path)

    # The question, a call, its output; then all four items so far, and the same again.
    assert first["final"] == first["streamed"] == answer(items=3, outputs=1)
    assert second["final"] == second["streamed"] == answer(items=7, outputs=2)
    assert third == {"final": answer(items=3, outputs=1), "cities": ["Paris"] * 3}
    socket = server.recording.only_socket
    assert_clean(socket, turns=6)
    assert_chained(socket.creates[2:4], socket.finished[1:3])


def test_a_provider_keeps_its_socket_from_run_to_run(server: Server, tmp_path: Path) -> None:
    first, second = told(server, "provider", tmp_path)

    assert first == {"final": answer(items=3, outputs=1)}
    assert second == {"final": answer(items=7, outputs=2), "cities": ["Paris"] * 2}
    assert_clean(server.recording.only_socket, turns=4)


def test_an_error_fails_its_run_only(server: Server, tmp_path: Path) -> None:
    error, after = told(server, "error", tmp_path)

    assert error == {"error": "ModelBehaviorError"}
    assert after == {"final": answer(items=3, outputs=1)}
    codes = [error["error"]["code"] for socket in server.recording.sockets for error in socket.errors]
    assert codes == ["previous_response_not_found"]


@pytest.mark.parametrize("app", ["wrapped", "engine"])
def test_a_run_after_a_restart_takes_another_socket(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(app)
    with Script("agents.mjs", server.base_url, "reconnect", home=tmp_path / "home") as script:
        before = script.read()
        server.restart()
        script.go_on()
        (after,) = script.lines()

    assert before == after == {"final": answer(items=3, outputs=1)}
    assert len(server.recording.sockets) == 2
    for socket in server.recording.sockets:
        assert_clean(socket, turns=2)


def assert_chained(creates: list[dict[str, Any]], parents: list[dict[str, Any]]) -> None:
    """Each create names the response before it, and has one new item: the user's message, or the tool's output."""
    assert [create["previous_response_id"] for create in creates] == [parent["id"] for parent in parents]
    assert [len(create["input"]) for create in creates] == [1, 1]
