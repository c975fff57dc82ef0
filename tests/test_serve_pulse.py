"""When `serve --workers` takes a worker for one that hangs: what is decided, by a clock that the test holds."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_responses.serve.pulse import Pulse, keep_beating

PATIENCE_S = 8.0


class Times:
    """What a loop does with `call_later`, at a time that the test says."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Call]] = []
        self._count = 0

    def later(self, seconds: float, function: Callable[[], None]) -> "Call":
        call = Call(function)
        self._count += 1
        self._calls.append((self.now + seconds, self._count, call))
        return call

    def pass_until(self, at: float) -> None:
        """Let time pass as it does for a loop that runs."""
        while due := [each for each in self._calls if each[0] <= at]:
            first = min(due, key=lambda each: each[:2])
            self._calls.remove(first)
            self.now = first[0]
            first[2].run()
        self.now = at

    def stand_still_until(self, at: float) -> None:
        """Let it pass as it does for a process that is stopped: what is due comes once, late."""
        self.now = at
        due = [each for each in self._calls if each[0] <= at]
        self._calls = [each for each in self._calls if each[0] > at]
        for _, _, call in due:
            call.run()


class Call:
    def __init__(self, function: Callable[[], None]) -> None:
        self._function: Callable[[], None] | None = function

    def cancel(self) -> None:
        self._function = None

    def run(self) -> None:
        if self._function is not None:
            self._function()


class Watched:
    """A pulse, and when it found silence."""

    def __init__(self) -> None:
        self.times = Times()
        self.found: list[float] = []
        self.pulse = Pulse(PATIENCE_S, self.times.later, lambda: self.found.append(self.times.now))


def test_a_worker_that_beats_is_left_alone() -> None:
    """Without this every worker would be killed."""
    watched = Watched()
    keep_beating(PATIENCE_S, watched.times.later, watched.pulse.beat)

    watched.times.pass_until(1000.0)
    assert watched.found == []


@given(st.floats(0, 100))
def test_silence_is_found_after_the_patience_and_not_before(last_beat: float) -> None:
    """Without this one that is busy would be killed for it, or one that hangs would be found late."""
    watched = Watched()
    at = 0.0
    while (at := at + 3.0) < last_beat:
        watched.times.pass_until(at)
        watched.pulse.beat()
    watched.times.pass_until(last_beat)
    watched.pulse.beat()

    watched.times.pass_until(last_beat + 100.0)
    (found,) = watched.found
    assert PATIENCE_S <= found - last_beat + 1e-9 <= 1.25 * PATIENCE_S + 2e-9


def test_a_supervisor_that_was_stopped_blames_nobody() -> None:
    """Without this all workers would be killed when a laptop wakes up, or a debugger lets the supervisor go on."""
    watched = Watched()
    watched.times.pass_until(3.0)
    watched.times.stand_still_until(500.0)
    watched.pulse.beat()  # what came meanwhile is read in the next turn of its loop

    watched.times.pass_until(500.0 + PATIENCE_S - 0.1)
    assert watched.found == []


@pytest.mark.parametrize("at", [0.0, 5.0])
def test_nobody_looks_at_a_worker_that_is_to_end(at: float) -> None:
    """Without this one that drains, and has a longer time for that, would be killed in the middle of it."""
    watched = Watched()
    watched.times.pass_until(at)
    watched.pulse.stop()

    watched.times.pass_until(1000.0)
    assert watched.found == []
