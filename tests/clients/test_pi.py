"""The pi coding agent, which chains by `previous_response_id` at a path of its own, `codex/responses`."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import require

from .gate import Gate, run_held, wait_until
from .pi import CLI, Pi
from .server import Server
from .test_codex import tool_output
from .test_openai_agents import answer, assert_clean

require("node")
require("pi (tests/clients/setup.sh installs it)", present=CLI.exists())

pytestmark = pytest.mark.clients

OUTPUT = "the tool has waited"
APPS = pytest.mark.parametrize("app", ["wrapped", "engine"])

Serve = Callable[[str], Server]


@APPS
def test_two_user_turns_chain_over_one_socket(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(app)
    pi = Pi(tmp_path / "pi", server.base_url)
    result = run_held(lambda: pi.ask("run the tool", "and again"), Gate(pi.home), output=OUTPUT, tools=2)

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == answer(items=7, outputs=2)
    socket = server.recording.only_socket
    assert_clean(socket, turns=4)
    parents = [create.get("previous_response_id") for create in socket.creates]
    assert parents == [None, *(response["id"] for response in socket.finished[:-1])]
    assert [len(create["input"]) for create in socket.creates] == [1] * 4
    assert all(OUTPUT in tool_output(create) for create in socket.creates[1::2])


@APPS
def test_the_server_is_started_anew_while_a_tool_runs(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(app)
    pi = Pi(tmp_path / "pi", server.base_url)
    result = run_held(
        lambda: pi.ask("run the tool"),
        Gate(pi.home),
        meanwhile=lambda: server.restart(signal.SIGTERM),
        output=OUTPUT,
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == answer(items=3, outputs=1)
    assert server.recording.posts == []
    lost, found = server.recording.sockets
    assert_clean(lost, turns=1)
    assert_clean(found, turns=1)
    (create,) = found.creates
    assert create.get("previous_response_id") is None
    assert len(create["input"]) == 3


def test_an_error_is_shown(serve: Serve, tmp_path: Path) -> None:
    """It does not go on from a lost parent, as Codex does: the error's frame ends the run."""
    server = serve("wrapped_forgetful")
    pi = Pi(tmp_path / "pi", server.base_url)
    result = run_held(lambda: pi.ask("run the tool"), Gate(pi.home), output=OUTPUT)

    assert result.returncode == 1
    assert "previous_response_not_found" in result.stderr


@APPS
def test_the_connection_grows_too_old_while_a_tool_runs(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(f"{app}_ageing")
    pi = Pi(tmp_path / "pi", server.base_url)

    def closed() -> bool:
        return server.recording.sockets[0].close is not None

    result = run_held(
        lambda: pi.ask("run the tool"), Gate(pi.home), meanwhile=lambda: wait_until(closed), output=OUTPUT
    )

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == answer(items=3, outputs=1)
    old, new = server.recording.sockets
    assert old.close is not None
    assert old.close["code"] == 1001
    (create,) = new.creates
    assert create.get("previous_response_id") is None
    assert len(create["input"]) == 3


def test_the_socket_is_cut_before_an_answer(serve: Serve, tmp_path: Path) -> None:
    """It asks once more by HTTP, with the whole conversation: its path has to be served there as well."""
    server = serve("engine_cut_off")
    pi = Pi(tmp_path / "pi", server.base_url)
    result = run_held(lambda: pi.ask("run the tool"), Gate(pi.home), output=OUTPUT)

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == answer(items=3, outputs=1)
    assert len(server.recording.sockets) == 1
    (post,) = server.recording.posts
    assert (post.path, post.status) == ("/v1/codex/responses", 200)
