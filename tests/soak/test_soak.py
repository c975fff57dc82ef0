"""The soak itself: each thing that it looks for makes it fail."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.soak.__main__ import GROWTH_MIB, MIB, MORE, complaints
from tests.soak.clients import CLOSINGS, Tally
from tests.soak.server import FAULTS

ROOT = Path(__file__).parents[2]


def at_rest(**changes: Any) -> dict[str, Any]:
    gauges = {"connections": 0, "running turns": 0}
    return {"rss": 50 * MIB, "tasks": 3, "descriptors": 10, "objects": 9000, "gauges": gauges, "errors": [], **changes}


def some() -> Tally:
    tally = Tally(turns=10)
    tally.faults["app raises"] = 1
    return tally


def test_nothing_is_wrong_if_nothing_has_changed() -> None:
    assert complaints(some(), at_rest(), at_rest()) == []


@pytest.mark.parametrize(
    ("after", "named"),
    [
        ({"rss": int((50 + GROWTH_MIB + 0.1) * MIB)}, "memory grew"),
        ({"gauges": {"connections": 1, "running turns": 0}}, "connections: 1 left"),
        ({"errors": ["a fault of ours"]}, "a fault of ours"),
        *(({name: at_rest()[name] + more + 1}, f"{name}: ") for name, more in MORE.items()),
    ],
)
def test_whatever_is_left_is_named(after: dict[str, Any], named: str) -> None:
    (found,) = complaints(some(), at_rest(), at_rest(**after))

    assert named in found


def test_a_healthy_client_that_was_served_wrongly_is_named() -> None:
    tally = some()
    tally.wrong.append("healthy: 7 items of nobody")

    (found,) = complaints(tally, at_rest(), at_rest())

    assert "7 items of nobody" in found


def test_a_soak_in_which_nothing_happened_is_no_success() -> None:
    assert complaints(Tally(), at_rest(), at_rest()) == ["nothing happened"]


def test_every_fault_of_the_app_has_its_closing_event() -> None:
    assert FAULTS.keys() == CLOSINGS.keys()


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.parametrize(("sabotage", "named"), [("leak", "memory grew"), ("lie", "served wrongly")])
def test_a_broken_server_makes_it_fail(sabotage: str, named: str) -> None:
    """A soak that cannot fail proves nothing."""
    command = [sys.executable, "-m", "tests.soak", "--seconds", "6", "--sabotage", sabotage]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 1
    assert named in done.stderr
