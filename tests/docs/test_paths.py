"""The ways into the project, as new users go them: an empty folder, a new environment, the built wheel, and the page alone."""

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from os import environ
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from tests.adapters.cerebras.fake import answer
from tests.clients.codex import BINARY
from tests.clients.server import Server
from tests.conftest import require
from ws_responses.testing.services import LoopbackService

from .pages import blocks
from .reader import Reader, free_ports
from .source import REPO

TUTORIAL = REPO / "docs" / "tutorial" / "first-socket.md"
CEREBRAS = REPO / "docs" / "how-to" / "cerebras.md"
SIDECAR = REPO / "docs" / "how-to" / "sidecar.md"

pytestmark = pytest.mark.timeout(400)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The loopback service is asyncio's."""
    return "asyncio", {"use_uvloop": False}


@contextmanager
def reader(tmp_path: Path, wheel: Path, ports: dict[int, int], **env: str) -> Iterator[Reader]:
    """Somebody in an empty folder."""
    folder = tmp_path / "empty"
    folder.mkdir()
    with Reader(folder, wheel, ports, tmp_path / "home", env) as reader:
        yield reader


@pytest.mark.slow
def test_a_fastapi_team_adds_the_middleware(tmp_path: Path, wheel: Path) -> None:
    """Without this the first thing that a reader does could fail."""
    (port,) = free_ports(1)
    with reader(tmp_path, wheel, {8000: port}) as team:
        team.follow(TUTORIAL)
        given = [line for line in team.log.splitlines() if line.startswith("the app is")]

    assert team.done[-1] == "python first_client.py"
    assert len(team.printed.splitlines()) == 2
    assert len(given) == 2  # a whole request for each frame


def test_the_client_of_the_tutorial_is_short() -> None:
    """Without this the tutorial would grow into a program."""
    (_, client) = blocks(TUTORIAL)

    assert len(client.text.splitlines()) <= 16


@pytest.fixture
async def cerebras() -> AsyncIterator[LoopbackService]:
    async with LoopbackService() as service:
        service.script(answer("Hello", " Ada."), answer("Your name", " is Ada."))
        yield service


@pytest.mark.slow
async def test_a_platform_team_runs_the_engine_with_cerebras(
    tmp_path: Path, wheel: Path, cerebras: LoopbackService
) -> None:
    """Without this who serves models could get no further than the first page."""
    (port,) = free_ports(1)
    with reader(tmp_path, wheel, {8000: port}, CEREBRAS_BASE_URL=cerebras.url) as team:
        await anyio.to_thread.run_sync(team.follow, CEREBRAS, [""])

    assert team.printed.split() == ["Hello", "Ada.", "Your", "name", "is", "Ada."]
    first, second = (request.decoded()["messages"] for request in cerebras.requests)
    assert [message["role"] for message in first] == ["user"]
    assert [message["content"] for message in second] == ["My name is Ada.", "Hello Ada.", "What is my name?"]
    assert cerebras.requests[0].headers["authorization"] == "Bearer csk-..."


# The only command that Codex is told to run is the scripted model's `echo`, and a sandbox would need rights that CI has not.
_CODEX_OF_TESTS = (
    'approval_policy = "never"\nsandbox_mode = "danger-full-access"\ncheck_for_update_on_startup = false\n'
)


@pytest.mark.clients
def test_a_codex_user_puts_the_sidecar_in_front_of_a_server(tmp_path: Path, wheel: Path) -> None:
    """Without this a user of Codex could stand before a socket that is never opened."""
    require("codex (tests/clients/setup.sh installs it)", present=BINARY.exists())
    require("node")
    config = tmp_path / "home" / ".codex" / "config.toml"
    config.parent.mkdir(parents=True)
    config.write_text(_CODEX_OF_TESTS, encoding="utf-8")
    with Server("examples.fastapi_app:api", tmp_path) as server:
        (port,) = free_ports(1)
        env = {"PATH": f"{BINARY.parent}:{environ['PATH']}", "CODEX_HOME": str(config.parent)}
        with reader(tmp_path, wheel, {8000: server.port, 8080: port}, **env) as user:
            user.follow(SIDECAR, ["", "Codex in front of it"])

        bodies = [post for post in server.recording.posts if post.status == 200]

    assert user.done[-2].startswith("codex doctor")
    assert "1 of them tool outputs" in user.printed
    assert len(bodies) == 2
    assert server.recording.sockets == []
