"""The clock that all time limits of a connection look at."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import anyio

from ws_responses.loop import running_loop

if TYPE_CHECKING:
    import asyncio


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

    def has_timers(self) -> bool:
        """Whether ``call_later`` works in the running event loop."""
        ...

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call ``callback`` once after ``seconds``; return what prevents that."""
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

    def has_timers(self) -> bool:
        """Return True under asyncio."""
        return running_loop() is not None

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Set a timer of the event loop; ``callback`` is called in a task, so that it may start others by anyio."""
        loop = running_loop()
        if loop is None:
            raise RuntimeError("no event loop of asyncio is running")
        return loop.call_later(max(seconds, 0.0), _call_in_task, loop, callback).cancel


_calls: "set[asyncio.Task[None]]" = set()


def _call_in_task(loop: "asyncio.AbstractEventLoop", callback: Callable[[], None]) -> None:
    # Where sniffio is installed, anyio knows the library by the current task: a bare callback has none.
    task = loop.create_task(_call(callback))
    _calls.add(task)
    task.add_done_callback(_calls.discard)


async def _call(callback: Callable[[], None]) -> None:
    callback()
