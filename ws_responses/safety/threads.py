"""Worker threads of which one that hangs keeps its place: what never answers must not take more and more of them."""

import threading
from collections.abc import Callable
from math import inf
from typing import Any, Generic, NamedTuple, TypeVar

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

T = TypeVar("T")


class _Job(Generic[T]):
    """One call, in its thread."""

    __slots__ = ("_call", "_lock", "_running", "dropped", "ended")

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._lock = threading.Lock()
        self._running = False
        self.dropped = False
        self.ended = False

    def run(self) -> T | None:
        with self._lock:
            if self.dropped:
                return None  # nobody waits for it, and its place is given to another
            self._running = True
        try:
            return self._call()
        finally:
            self.ended = True

    def drop(self) -> bool:
        """Leave it alone; return whether it runs on."""
        with self._lock:
            self.dropped = True
            return self._running and not self.ended


class _Places(NamedTuple):
    """The limiters of one event loop: ours, and one for anyio that never holds up anything."""

    ours: CapacityLimiter
    unlimited: CapacityLimiter


class Threads:
    """Runs functions in at most so many threads at a time.

    Args:
        most: Threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._places: RunVar[_Places] = RunVar("ws_responses.safety.threads")
        self._left_behind: list[tuple[CapacityLimiter, _Job[Any]]] = []

    async def run(self, call: Callable[[], T]) -> T | None:
        """Run a function in a thread, when there is a place; on cancellation it is left behind, and keeps its place to its end."""
        places = self._here()
        self._take_back()
        job = _Job(call)
        await places.ours.acquire_on_behalf_of(job)
        try:
            result = await to_thread.run_sync(job.run, abandon_on_cancel=True, limiter=places.unlimited)
        except BaseException:
            if job.drop():
                self._left_behind.append((places.ours, job))
            else:
                places.ours.release_on_behalf_of(job)
            raise
        places.ours.release_on_behalf_of(job)
        return result

    def _take_back(self) -> None:
        still: list[tuple[CapacityLimiter, _Job[Any]]] = []
        for limiter, job in self._left_behind:
            if job.ended:
                limiter.release_on_behalf_of(job)
            else:
                still.append((limiter, job))
        self._left_behind = still

    def _here(self) -> _Places:
        """Return the limiters of this event loop: a limiter belongs to one."""
        try:
            return self._places.get()
        except LookupError:
            places = _Places(CapacityLimiter(self._most), CapacityLimiter(inf))
            self._places.set(places)
            return places
