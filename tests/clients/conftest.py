"""The apps that the clients talk to, under uvicorn: the wrapped one of examples/fastapi_app.py and the engine's own. And the
clients that need a set-up.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

from .codex import BINARY, Codex
from .server import Server


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The clients stand on asyncio."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(params=["examples.fastapi_app:app", "tests.clients.engine_app:app"], ids=["wrapped", "engine"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    yield from _running(Server(request.param, tmp_path))


@pytest.fixture
def server_with_key(tmp_path: Path) -> Iterator[Server]:
    yield from _running(Server("examples.fastapi_app:app", tmp_path, env={"DEMO_API_KEY": "right"}))


@pytest.fixture
def server_without_sockets(tmp_path: Path) -> Iterator[Server]:
    yield from _running(Server("tests.clients.disabled_app:app", tmp_path))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    """Starts an app of `recovery_app` by its name."""
    with ExitStack() as servers:

        def serve(name: str) -> Server:
            server = Server(f"tests.clients.recovery_app:{name}", tmp_path, restarts=True)
            servers.callback(lambda: print(server.output))
            return servers.enter_context(server)

        yield serve


def _running(server: Server) -> Iterator[Server]:
    try:
        with server:
            yield server
    finally:
        print(server.output)  # pytest shows it for the tests that fail


@pytest.fixture
def codex_binary() -> None:
    require("codex (tests/clients/setup.sh installs it)", present=BINARY.exists())
    require("node")


@pytest.fixture
def codex(codex_binary: None, tmp_path: Path, server: Server) -> Codex:
    return Codex(tmp_path / "codex", server.base_url)
