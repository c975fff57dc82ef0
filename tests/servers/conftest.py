"""One process per server for most tests; each test leaves it empty and without complaints."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import require
from tests.servers.matrix import SERVERS
from tests.servers.process import Server


def _present(name: str) -> str:
    require(name.partition("-")[0])
    return name


@pytest.fixture(scope="session", params=SERVERS)
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    name = _present(request.param)
    with Server(name, tmp_path_factory.mktemp(name)) as running:
        yield running
    assert not running.complaints(), f"{name} complained at its end:\n{running.log}"


@pytest.fixture
def server(shared_server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that is used by one test after another."""
    yield shared_server
    shared_server.until_empty()
    shared_server.ask("forget")
    complaints = shared_server.complaints()
    assert not complaints, "\n".join((f"{shared_server.name} complained:", *complaints))


@pytest.fixture(params=SERVERS)
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    """A server that the test may end."""
    with Server(_present(request.param), tmp_path) as running:
        yield running
