"""The Codex CLI in a loop that loses its socket, or what the server knew of it: it must go on to the right answer."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from .codex import Codex
from .gate import Gate, run_held, wait_until
from .recorder import Exchange
from .server import Server
from .test_codex import assert_history_arrived, text, tool_output

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("codex_binary")]

OUTPUT = "the tool has waited"
APPS = pytest.mark.parametrize("app", ["wrapped", "engine"])

Serve = Callable[[str], Server]


def exec_over(server: Server, folder: Path, *, meanwhile: Callable[[], object]) -> str:
    """Run `codex exec`, and do something while its tool runs; give what it says at last."""
    codex = Codex(folder / "codex", server.base_url, retries=2)
    result = run_held(lambda: codex.exec("run the tool"), Gate(codex.home), meanwhile=meanwhile, output=OUTPUT)
    assert result.returncode == 0, result.stderr
    assert server.recording.posts == []
    return result.stdout.strip()


def assert_sent_whole(socket: Exchange) -> None:
    """A socket on which the loop went on: nothing of the lost one was named, and the whole conversation came along."""
    first = socket.creates[0]
    assert first.get("previous_response_id") is None
    assert OUTPUT in tool_output({"input": first["input"][-1:]})
    assert_history_arrived(socket, turns=1)


@APPS
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["shutdown", "crash"])
def test_the_server_is_started_anew_while_a_tool_runs(
    serve: Serve, tmp_path: Path, app: str, how: signal.Signals
) -> None:
    server = serve(app)
    said = exec_over(server, tmp_path, meanwhile=lambda: server.restart(how))

    lost, found = server.recording.sockets
    assert [create.get("generate") for create in lost.creates] == [False, None]
    assert_sent_whole(found)
    assert said == text(found.finished[-1])


@APPS
def test_the_connection_grows_too_old_while_a_tool_runs(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(f"{app}_ageing")

    def closed() -> bool:
        return server.recording.sockets[0].close is not None

    said = exec_over(server, tmp_path, meanwhile=lambda: wait_until(closed))

    old, *_, new = server.recording.sockets
    assert old.close is not None
    assert old.close["code"] == 1001
    assert [error["error"]["code"] for error in old.errors] == ["websocket_connection_limit_reached"]
    assert_sent_whole(new)
    assert said == text(new.finished[-1])


@APPS
def test_the_parent_of_each_turn_is_lost(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(f"{app}_forgetful")
    said = exec_over(server, tmp_path, meanwhile=lambda: None)

    # The warm-up is not there for the question, nor the question for the tool's output: each time a new socket, and all of it.
    asked, answered, last = server.recording.sockets
    assert [[error["error"]["code"] for error in socket.errors] for socket in (asked, answered, last)] == [
        ["previous_response_not_found"],
        ["previous_response_not_found"],
        [],
    ]
    assert_sent_whole(last)
    assert said == text(last.finished[-1])
