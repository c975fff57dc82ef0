"""What an idle connection takes, object by object: there are thousands of them."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable

import pytest

from ws_responses import Limits, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.bench.apps import bare_sender, plain_app
from ws_responses.bench.inprocess import Peer
from ws_responses.testing.backends import ScriptedBackend

_CONNECTIONS = 200
_MAX_BYTES = 6.5 * 1024
"""In a server's process that is 8 KiB: the allocator takes its share."""

_LIMITS = Limits(max_connections=None, max_tenant_connections=None)


@pytest.fixture
def anyio_backend() -> str:
    """The one loop whose objects the benchmark counts as well."""
    return "asyncio"


async def _bytes_each(app: ASGIApp) -> float:
    """Return what one more idle connection takes, the test's own end included."""
    peers: list[Peer] = []

    async def connect(count: int) -> int:
        peers.extend([await Peer(app).__aenter__() for _ in range(count)])
        for _ in range(5):
            await asyncio.sleep(0)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = await connect(50)
        return (await connect(_CONNECTIONS) - before) / _CONNECTIONS
    finally:
        tracemalloc.stop()
        for peer in peers:
            await peer.__aexit__()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: ResponsesWebSocketMiddleware(plain_app, limits=_LIMITS), id="drop-in"),
        pytest.param(
            lambda: ResponsesApp(ResponsesEngine(ScriptedBackend()), authorize="open", limits=_LIMITS), id="engine"
        ),
    ],
)
async def test_an_idle_connection_takes_little(make: Callable[[], ASGIApp]) -> None:
    """Without this a member made for every connection, used by few, would cost all of them."""
    assert await _bytes_each(make()) - await _bytes_each(bare_sender) < _MAX_BYTES
