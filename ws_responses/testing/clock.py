"""A clock that stands still until the test moves it.

clock = FakeClock()
async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock)) as ws:
    await clock.advance(1800)
    assert await ws.wait_closed() == 1001
"""

import asyncio
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from weakref import WeakSet

import anyio

__all__ = ["FakeClock", "settle"]

_MAX_SECONDS = 5.0
_CALM_ROUNDS = 3

_settling: "WeakSet[asyncio.Task[object]]" = WeakSet()


class FakeClock:
    """The clock of a middleware in a test: ``ResponsesWebSocketMiddleware(app, clock=FakeClock())``.

    Args:
        start: the first reading.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._timers: dict[object, tuple[float, Callable[[], None]]] = {}

    def now(self) -> float:
        """Return the present reading."""
        return self._now

    @property
    def next_due(self) -> float:
        """The earliest time that somebody waits for; `inf` if nobody does."""
        return min((due for due, _ in self._timers.values()), default=math.inf)

    async def wait(self, seconds: float, wake: anyio.Event) -> None:
        """Return when the clock has been moved on by `seconds`, or as soon as `wake` is set."""
        with self.move_on_after(seconds):
            await wake.wait()

    def move_on_after(self, seconds: float) -> AbstractContextManager[anyio.CancelScope]:
        """Cancel the block when the clock has been moved on by `seconds`."""
        return _Timeout(self, seconds)

    def has_timers(self) -> bool:
        """Return True: its timers need no event loop."""
        return True

    def call_later(self, seconds: float, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the clock has been moved on by `seconds`; return what prevents that."""
        timer = object()
        self._timers[timer] = (self._now + seconds, callback)

        def cancel() -> None:
            self._timers.pop(timer, None)

        return cancel

    async def advance(self, seconds: float) -> None:
        """Move on by `seconds`: wake whoever waits for a time on the way, in order, and let all tasks run each time.

        Raises:
            AssertionError: The tasks do not come to rest, so that time cannot go on.
        """
        until = self._now + seconds
        await settle()
        while (due := self.next_due) <= until:
            self._now = max(self._now, due)
            self._fire()
            await settle()
        self._now = until

    def jump(self, seconds: float) -> None:
        """Move on by `seconds` at once, and wake whoever waited for a time on the way; nobody has run when it returns."""
        self._now += seconds
        self._fire()

    def _fire(self) -> None:
        for timer, (due, fire) in list(self._timers.items()):
            if due <= self._now:
                del self._timers[timer]
                fire()


class _Timeout(AbstractContextManager[anyio.CancelScope]):
    # No generator: from Python 3.12 on, one that takes an exception leaves a cycle, which holds all frames that this has passed.

    def __init__(self, clock: FakeClock, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        self._scope = anyio.CancelScope()

    def __enter__(self) -> anyio.CancelScope:
        scope = self._scope.__enter__()
        if self._seconds <= 0:
            scope.cancel()
        self._forget = self._clock.call_later(self._seconds, scope.cancel)
        return scope

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._forget()
        return self._scope.__exit__(kind, error, traceback)


async def settle() -> None:
    """Let the other tasks run until every one of them waits for something.

    Raises:
        AssertionError: They never do.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with anyio.move_on_after(_MAX_SECONDS) as scope:
            await anyio.wait_all_tasks_blocked()
        if scope.cancelled_caught:
            raise AssertionError(f"some task is still busy after {_MAX_SECONDS} s") from None
        return
    # anyio's own looks again only after a tenth of a second.
    here = asyncio.current_task()
    assert here is not None
    _settling.add(here)
    try:
        await _calm()
    finally:
        _settling.discard(here)


async def _calm() -> None:
    # Of this process: on a busy machine the same work takes any time.
    until = time.process_time() + _MAX_SECONDS
    calm = 0
    while time.process_time() < until:
        await asyncio.sleep(0)
        # Whoever waits for calm as well does not disturb it. And a cancellation may be on its way to a task that seems to be
        # blocked: the loop delivers it one round later.
        blocked = all(task in _settling or _is_blocked(task) for task in asyncio.all_tasks())
        calm = calm + 1 if blocked else 0
        if calm == _CALM_ROUNDS:
            return
    raise AssertionError(f"some task is still busy after {_MAX_SECONDS} s")


def _is_blocked(task: "asyncio.Task[object]") -> bool:
    waiter = getattr(task, "_fut_waiter", None)
    return waiter is not None and not waiter.done()
