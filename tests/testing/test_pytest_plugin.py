"""The fixtures, in a test suite of their own."""

import subprocess
import sys
from pathlib import Path

SUITE = """
import pytest
pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend():
    return "asyncio"

async def test_refused(scripted_app, memory_socket):
    async with memory_socket(scripted_app) as ws:
        assert ws.denial.status == 403

def test_not_entered(scripted_app, memory_socket):
    memory_socket(scripted_app)
"""


def test_fixtures_are_there_once_opted_in(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "ws_responses.testing.pytest_plugin", "-c", "/dev/null"]
    done = subprocess.run([*command, str(tmp_path)], check=False, capture_output=True, text=True, cwd=tmp_path)
    assert "2 passed, 1 error" in done.stdout
    assert "1 sockets were made, but not used" in done.stdout
