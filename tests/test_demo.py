"""The demo, as a user runs it."""

import re
import subprocess
import sys

import pytest

from tests.conftest import require


@pytest.mark.servers
def test_demo_runs_both_loops_and_ends_by_itself() -> None:
    """Without this the first command of the readme could break unseen."""
    for package in ("fastapi", "uvicorn", "openai"):
        require(package)

    run = subprocess.run(
        [sys.executable, "-m", "ws_responses", "demo"], capture_output=True, text=True, timeout=120, check=False
    )

    assert run.returncode == 0, run.stderr
    assert len(re.findall(r"^ +\d+ ( +[\d,.]+){6}$", run.stdout, re.MULTILINE)) == 21
    totals = re.search(r"^ all +([\d,]+) +([\d,]+)", run.stdout, re.MULTILINE)
    assert totals is not None
    http, socket = (int(text.replace(",", "")) for text in totals.groups())
    assert http > 4 * socket
