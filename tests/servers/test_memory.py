"""What an idle socket costs the process."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.conftest import require
from tests.servers.process import Server

pytestmark = pytest.mark.servers

KIB = 1024
WARM = 100
"""Sockets before the first look: imports, pools and caches are paid for by then."""


@pytest.mark.fault("B031")
@pytest.mark.parametrize(
    ("count", "deflate", "bound"),
    [pytest.param(2000, False, 48 * KIB, id="plain"), pytest.param(500, True, 96 * KIB, id="deflate")],
)
def test_memory_of_idle_sockets(tmp_path: Path, count: int, deflate: bool, bound: int) -> None:
    """Without this what a connection holds while nothing happens could grow by a buffer or a task, and nobody would see it."""
    require("psutil")
    import psutil

    # Idle clients answer no pings here.
    with Server("uvicorn-sansio", tmp_path, "--ws-ping-interval", "600") as server, ExitStack() as sockets:
        process = psutil.Process(server.process.pid)
        used = 0
        for number in range(WARM + count):
            if number == WARM:
                used = process.memory_info().rss
            sockets.enter_context(server.connect(deflate=deflate))
        each = (process.memory_info().rss - used) / count
        assert server.ask("gauges") == {"seats": WARM + count, "connections": WARM + count, "turns": 0, "calls": 0}
        print(f"{count} idle sockets, deflate {'on' if deflate else 'off'}: {each / KIB:.1f} KiB each")
        assert each < bound
        sockets.close()
        server.until_empty()
