"""The benchmarks themselves, on this machine, with little work: they run, and what they measure answers rightly."""

import contextlib
import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from ws_responses.bench.command import PACKAGES

ROWS = {
    "P1": {f"P1.{leg}{client}" for leg in ("relay", "engine") for client in ("", ".late")},
    "P2": {
        "P2.event.plain",
        "P2.event.fastapi",
        "P2.event.bare",
        "P2.turn2.bare",
        *(f"P2.turn{events}.{app}" for events in (1, 2) for app in ("plain", "fastapi")),
    },
    "P3": {"P3.forward", "P3.turn", "P3.engine", "P3.replay"},
    "P4": {"P4.delta", "P4.tokens", "P4.rewind"},
    "P5": {f"P5.{way}{kind}" for way in ("", "single.", "queued.") for kind in ("tokens", "chat")},
    "P6": {
        *(f"P6.at{tokens}" for tokens in (5_000, 50_000, 100_000, 200_000)),
        *(f"P6.classifier{ms}" for ms in (1, 10)),
        *(f"P6.part.{part}" for part in ("read", "plan", "render", "body", "events")),
        *(f"P6.run.{way}{loop}" for way in ("socket", "http") for loop in (0, 1)),
    },
    "P7": {"P7.engine", "P7.engine20k", "P7.app"},
    "P8": {
        "P8.idle",
        "P8.idle.engine",
        *(f"{of}.{what}" for of in ("P8", "P8.engine") for what in ("chain25", "chain50", "chain100", "linear")),
    },
    "P11": {"P11.judged", "P11.judged.http", "P11.once", "P11.items", "P11.saved"},
    "P12": {"P12.settled", "P12.noise", "P12.waits"},
}


def run(only: str, out: Path) -> dict[str, Any]:
    for package in PACKAGES:
        require(package)
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "ws_responses",
        "bench",
        "--quick",
        "--rounds",
        "1",
        "--only",
        only,
        "--out",
        out,
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where there is no terminal, and no complaint of a server
    report: dict[str, Any] = json.loads((out / "bench.json").read_text())
    return report


@pytest.mark.servers
def test_relay_is_measured_and_costs_something(tmp_path: Path) -> None:
    """Without this the command could break unseen; the frames are counted by its client."""
    rows = run("P1", tmp_path)["rows"]

    assert {row["key"] for row in rows} == ROWS["P1"]
    assert all(0 < row["floor"] < row["value"] for row in rows)


def test_tokens_rendered_are_those_that_a_turn_adds(tmp_path: Path) -> None:
    """Without this a cache that renders more than is new could look good on a fast machine."""
    rows = {row["key"]: row for row in run("P4", tmp_path)["rows"]}

    assert rows.keys() == ROWS["P4"]
    assert rows["P4.tokens"]["value"] == rows["P4.tokens"]["floor"] > 300


@pytest.mark.servers
def test_server_whose_app_raises_spoils_the_benchmark() -> None:
    """Without this an app that fails beside the turns, at the end of a connection say, would go unseen."""
    require("psutil")
    from ws_responses.bench.results import Unexpected
    from ws_responses.bench.server import Server

    with (
        pytest.raises(Unexpected, match="no such app: nonsense"),
        Server("nonsense") as server,
        contextlib.suppress(ConnectionError),
        socket.create_connection(server.address) as connection,
    ):
        assert connection.recv(1) == b""  # it has ended


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", ["P2", "P3", "P5", "P6", "P7", "P8", "P11", "P12"])
def test_every_benchmark_fills_its_rows(name: str, tmp_path: Path) -> None:
    """Without this a benchmark that is rarely run could break unseen."""
    rows = {row["key"]: row for row in run(name, tmp_path)["rows"]}

    assert rows.keys() == ROWS[name]
    assert all(row["value"] > 0 and row["floor"] > 0 for row in rows.values())
