"""The one watchdog of a connection: it looks at all time limits when the earliest of them is due.

Where the event loop has timers (asyncio) it is one timer; thousands of idle connections need no task each. Elsewhere (trio) it
is a task that sleeps.
"""

from collections.abc import Callable
from math import inf

import anyio
from anyio.abc import TaskGroup

from ws_responses.clock import Clock

Look = Callable[[float], float]
"""Looks at the limits, given the present time; returns when to look again (``inf``: never)."""


def _never(_: float) -> float:
    return inf


class Watchdog:
    """Calls ``look`` when it is due.

    Args:
        clock: Whose time counts.
        look: See :data:`Look`.
    """

    __slots__ = ("_at", "_cancel", "_clock", "_look", "_stopped", "_wake")

    def __init__(self, clock: Clock, look: Look) -> None:
        self._clock = clock
        self._look = look
        self._at = -inf
        self._cancel: Callable[[], None] | None = None
        self._wake: anyio.Event | None = None
        self._stopped = False

    def start(self, tasks: TaskGroup) -> None:
        """Look for the first time, and go on until ``stop``."""
        if self._clock.has_timers():
            self._ring()
        else:
            self._wake = anyio.Event()
            tasks.start_soon(self._run)

    def look_by(self, when: float) -> None:
        """Look at that time at the latest; before ``start`` there is no need, since that looks at once."""
        if when >= self._at or self._stopped:
            return
        if self._wake is not None:
            self._at = when
            self._wake.set()
        else:
            self._arm(when)

    def stop(self) -> None:
        """Look no more."""
        self._stopped = True
        self._look = _never  # it leads back to the connection, which would wait for the garbage collector
        self._disarm()
        if self._wake is not None:
            self._wake.set()

    def _ring(self) -> None:
        self._disarm()
        at = self._look(self._clock.now())
        if not self._stopped:
            self._arm(at)

    def _arm(self, when: float) -> None:
        self._disarm()
        self._at = when
        if when != inf:
            self._cancel = self._clock.call_later(when - self._clock.now(), self._ring)

    def _disarm(self) -> None:
        if self._cancel is not None:
            self._cancel()
            self._cancel = None

    async def _run(self) -> None:
        while not self._stopped:
            now = self._clock.now()
            self._wake = anyio.Event()
            self._at = self._look(now)
            await self._clock.wait(self._at - now, self._wake)
