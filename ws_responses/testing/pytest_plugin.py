"""Fixtures for test suites. Opt in with `pytest_plugins = ["ws_responses.testing.pytest_plugin"]`.

async def test_greeting(scripted_app, memory_socket):
async with memory_socket(ResponsesWebSocketMiddleware(scripted_app)) as ws:
assert (await ws.turn({"model": "m", "input": "Hi"}))[-1]["type"] == "response.completed"
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ws_responses._types import ASGIApp
from ws_responses.testing.scripted import ScriptedApp
from ws_responses.testing.socket import MemorySocket

__all__ = ["memory_socket", "scripted_app"]


@pytest.fixture
def scripted_app() -> ScriptedApp:
    """A `ScriptedApp` with the default model and no script."""
    return ScriptedApp()


@pytest.fixture
def memory_socket() -> Iterator[Callable[..., MemorySocket]]:
    """A factory of `MemorySocket`; a socket that was made but never entered fails the test."""
    made: list[MemorySocket] = []

    def make(app: ASGIApp, *args: Any, **options: Any) -> MemorySocket:
        made.append(MemorySocket(app, *args, **options))
        return made[-1]

    yield make
    idle = sum(not socket.returned for socket in made)
    assert not idle, f"{idle} sockets were made, but not used with `async with`"
