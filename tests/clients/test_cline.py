"""Cline's command line, which knows no sockets: over HTTP it must find the same app below them."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import require

from . import programs
from .gate import Gate, run_held
from .programs import MODULES, Command
from .server import Server
from .test_openai_agents import answer

BINARY = MODULES / ".bin" / "cline"

require("cline (tests/clients/setup.sh installs it)", present=BINARY.exists())

pytestmark = pytest.mark.clients

OUTPUT = "the tool has waited"
PROVIDER = "openai-native"
MODEL = "gpt-5.4"

Serve = Callable[[str], Server]


def test_a_tool_loop_over_http(serve: Serve, tmp_path: Path) -> None:
    server = serve("engine")
    home = tmp_path / "cline"
    configure(home, server.base_url)
    # "local": no process that stays behind and serves other starts.
    env = programs.environment(home, CLINE_SESSION_BACKEND_MODE="local", CLINE_NO_AUTO_UPDATE="1")
    ask: Command = (BINARY, "-P", PROVIDER, "-m", MODEL, "run the tool")
    result = run_held(lambda: programs.run(ask, home=home, env=env), Gate(home), output=OUTPUT)

    assert result.returncode == 0, result.stderr
    # Its instructions come as a message before the question; then the call, and the output.
    assert answer(items=4, outputs=1) in result.stdout
    assert OUTPUT in result.stdout
    assert [(post.path, post.status) for post in server.recording.posts] == [("/v1/responses", 200)] * 2
    assert server.recording.sockets == []


def configure(home: Path, base_url: str) -> None:
    """Writes what `cline auth` would, which takes a start of its own."""
    settings = {"provider": PROVIDER, "apiKey": "k", "model": MODEL, "baseUrl": base_url}
    provider = {"settings": settings, "updatedAt": "2026-01-01T00:00:00.000Z", "tokenSource": "manual"}
    providers = {"version": 1, "lastUsedProvider": PROVIDER, "modes": {}, "providers": {PROVIDER: provider}}
    folder = home / ".cline" / "data" / "settings"
    folder.mkdir(parents=True)
    (folder / "providers.json").write_text(json.dumps(providers), encoding="utf-8")
