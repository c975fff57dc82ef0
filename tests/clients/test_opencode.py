"""opencode, which keeps one socket for a session and sends the whole conversation each time; titles it asks for by HTTP.

Each run takes seconds of processor time, so there is one for each app.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import require

from .gate import Gate, run_held, wait_until
from .opencode import BINARY, OpenCode
from .recorder import Exchange
from .server import Server
from .test_codex import roles, text
from .test_openai_agents import answer, assert_clean

require("opencode (tests/clients/setup.sh installs it)", present=BINARY.exists())

pytestmark = pytest.mark.clients

OUTPUT = "the tool has waited"

WHOLE = ["developer", "user", "function_call", "function_call_output"]

Serve = Callable[[str], Server]


def said(server: Server, folder: Path, *, meanwhile: Callable[[], object] = lambda: None) -> str:
    """Run `opencode run`, and do something while its tool runs; give what it says at last."""
    opencode = OpenCode(folder / "opencode", server.base_url)
    result = run_held(lambda: opencode.run("run the tool"), Gate(opencode.work), meanwhile=meanwhile, output=OUTPUT)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def assert_answered(socket: Exchange, final: str) -> None:
    """The socket's last turn answered the whole conversation, and that is what was said."""
    last = socket.creates[-1]
    assert roles(last) == WHOLE
    assert OUTPUT in last["input"][-1]["output"]
    assert final == text(socket.finished[-1]) == answer(items=len(WHOLE), outputs=1)


def test_a_tool_loop_over_one_socket(serve: Serve, tmp_path: Path) -> None:
    server = serve("wrapped")
    final = said(server, tmp_path)

    (socket,) = server.recording.sockets
    assert_clean(socket, turns=2)
    assert_answered(socket, final)
    # Its other request is for the title.
    assert [post.status for post in server.recording.posts] == [200]


def test_the_server_is_started_anew_while_a_tool_runs(serve: Serve, tmp_path: Path) -> None:
    server = serve("engine")
    final = said(server, tmp_path, meanwhile=server.restart)

    lost, found = server.recording.sockets
    assert_clean(lost, turns=1)
    assert_clean(found, turns=1)
    assert_answered(found, final)


def test_the_connection_grows_too_old_while_a_tool_runs(serve: Serve, tmp_path: Path) -> None:
    """Its notice, an error of no turn, does not end the run."""
    server = serve("wrapped_ageing")

    def closed() -> bool:
        return server.recording.sockets[0].close is not None

    final = said(server, tmp_path, meanwhile=lambda: wait_until(closed))

    old, new = server.recording.sockets
    assert old.close is not None
    assert old.close["code"] == 1001
    assert_answered(new, final)


def test_the_socket_is_cut_before_an_answer(serve: Serve, tmp_path: Path) -> None:
    """As by a server that is started anew in that moment."""
    server = serve("wrapped_cut_off")
    final = said(server, tmp_path)

    cut, new = server.recording.sockets
    assert cut.close is not None
    assert cut.close["code"] == 1012
    assert_answered(new, final)
