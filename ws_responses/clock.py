"""The clock that all time limits of a connection look at."""

import time
from contextlib import AbstractContextManager
from typing import Protocol

import anyio


class Clock(Protocol):
    """Tells the time and waits for it; tests give their own (``ws_responses.testing.FakeClock``)."""

    def now(self) -> float:
        """Return seconds of a monotonic clock."""
        ...

    async def wait(self, seconds: float, wake: anyio.Event) -> None:
        """Return after ``seconds`` (``inf``: never), or as soon as ``wake`` is set."""

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Return a context manager that cancels what it holds after ``seconds``, as ``anyio.move_on_after`` does."""
        ...


class MonotonicClock:
    """The real clock."""

    def now(self) -> float:
        """Return ``time.monotonic()``."""
        return time.monotonic()

    async def wait(self, seconds: float, wake: anyio.Event) -> None:
        """Return after ``seconds``, or as soon as ``wake`` is set."""
        with anyio.move_on_after(seconds):
            await wake.wait()

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Return ``anyio.move_on_after(seconds)``."""
        return anyio.move_on_after(seconds)
