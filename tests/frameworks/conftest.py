"""One process per framework for most tests; each test leaves it empty and without complaints."""

import sys
from collections.abc import Iterator

import pytest

from tests.conftest import require
from tests.frameworks.matrix import FRAMEWORKS
from tests.frameworks.process import Server
from tests.host_apps.venvs import python_of

PACKAGES = {"plain": "starlette", "sanic": ""}
"""What a framework needs, where it is not its name."""


def interpreter(framework: str) -> str:
    """Return the Python that has the framework."""
    if framework == "sanic":
        return python_of("sanic")
    require(PACKAGES.get(framework, framework))
    return sys.executable


@pytest.fixture(scope="session", params=FRAMEWORKS)
def shared_server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    name: str = request.param
    with Server(name, tmp_path_factory.mktemp(name), python=interpreter(name)) as running:
        yield running
    assert not running.complaints(), f"{name} complained at its end:\n{running.log}"


@pytest.fixture
def server(shared_server: Server, request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server that is used by one test after another."""
    yield shared_server
    shared_server.until_empty()
    shared_server.ask("forget")
    complaints = shared_server.complaints()
    assert not complaints, "\n".join((f"{shared_server.framework} complained:", *complaints))
