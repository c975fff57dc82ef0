"""OpenAI's Codex CLI, which opens with a warm-up and sends each later frame with the new items only."""

import re
from pathlib import Path

import pytest

from .codex import AppServer, Codex
from .recorder import Exchange, Json
from .server import Server

pytestmark = pytest.mark.clients

# What the scripted model makes Codex run is `echo ws-probe-$((40+2))`: only a real shell prints this.
PROBE = "ws-probe-42"


def test_exec_runs_a_tool_over_one_socket(server: Server, codex: Codex) -> None:
    result = codex.exec("run the tool")

    assert result.returncode == 0, result.stderr
    socket = server.recording.only_socket
    assert_chained(socket, turns=3)
    warm_up, question, answer = socket.creates
    assert warm_up["generate"] is False
    assert "generate" not in question
    assert PROBE in tool_output(answer)
    assert result.stdout.strip() == text(socket.finished[-1])
    assert_history_arrived(socket, turns=3)


def test_app_server_takes_three_user_turns_over_one_socket(server: Server, codex: Codex) -> None:
    with AppServer(codex) as app_server:
        thread = app_server.start_thread()
        turns = [app_server.turn(thread, f"turn {number}") for number in (1, 2, 3)]

    socket = server.recording.only_socket
    assert_chained(socket, turns=7)
    for turns_so_far in (3, 5, 7):
        assert_history_arrived(socket, turns=turns_so_far)
    _warm_up, *creates = socket.creates
    finals = [text(response) for response in socket.finished[2::2]]
    assert turns == [("completed", [final]) for final in finals]
    assert [roles(create) for create in creates[2::2]] == [["user"], ["user"]]
    assert all(PROBE in tool_output(create) for create in creates[1::2])


def test_doctor_reports_a_connected_websocket(server: Server, codex: Codex) -> None:
    result = codex.run("doctor")

    assert re.search(r"websocket\s+connected \(HTTP 101 Switching Protocols\)", result.stdout), result.stdout
    assert server.recording.only_socket.frames == []


def test_exec_goes_on_over_http_where_the_middleware_is_disabled(
    server_without_sockets: Server, codex_binary: None, tmp_path: Path
) -> None:
    result = Codex(tmp_path / "codex", server_without_sockets.base_url).exec("run the tool")

    assert result.returncode == 0, result.stderr
    assert [socket.status for socket in server_without_sockets.recording.sockets] == [426]
    assert [post.status for post in server_without_sockets.recording.posts] == [200, 200]
    assert PROBE in result.stderr
    assert "1 of them tool outputs" in result.stdout


def assert_chained(socket: Exchange, *, turns: int) -> None:
    """Each turn was completed, and each but the first names the one before it."""
    assert socket.errors == []
    assert socket.binary == 0
    assert len(socket.creates) == len(socket.finished) == turns
    parents = [create.get("previous_response_id") for create in socket.creates]
    assert parents == [None, *(response["id"] for response in socket.finished[:-1])]


def assert_history_arrived(socket: Exchange, *, turns: int) -> None:
    """The app answered the whole conversation so far, of which its client sent the last frame's items only.

    The scripted model's answer counts the items that it was given.
    """
    items = socket.conversation(turns)
    outputs = [item for item in items if item["type"] == "function_call_output"]
    answer = f"This answers {len(items)} input items, {len(outputs)} of them tool outputs."
    assert text(socket.finished[turns - 1]) == answer


def roles(create: Json) -> list[str]:
    return [item.get("role") or item["type"] for item in create["input"]]


def tool_output(create: Json) -> str:
    (item,) = create["input"]
    assert item["type"] == "function_call_output"
    return str(item["output"])


def text(response: Json) -> str:
    (item,) = response["output"]
    return "".join(part["text"] for part in item["content"])
