"""Work that several ask for at the same time is done once."""

from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

import anyio

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Flight(Generic[V]):
    __slots__ = ("error", "landed", "result")

    def __init__(self) -> None:
        self.landed = anyio.Event()
        self.result: tuple[V] | None = None
        self.error: Exception | None = None


class SingleFlight(Generic[K, V]):
    """Runs of one piece of work by key. The first who asks does it; who asks meanwhile is given the same result, or error.

    If the one who does it is cancelled, one of the others begins anew.
    """

    __slots__ = ("_flights",)

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[V]] = {}

    def __len__(self) -> int:
        return len(self._flights)

    async def run(self, key: K, work: Callable[[], Awaitable[V]]) -> V:
        """Return the result of ``work()``, by whomever it was done.

        Args:
            key: Names the work.
            work: Does it.

        Raises:
            Exception: What the work raised.
        """
        while key in self._flights:
            flight = self._flights[key]
            await flight.landed.wait()
            if flight.error is not None:
                raise flight.error
            if flight.result is not None:
                return flight.result[0]
        flight = self._flights[key] = _Flight()
        try:
            result = await work()
            flight.result = (result,)
        except Exception as error:
            flight.error = error
            raise
        finally:
            del self._flights[key]
            flight.landed.set()
        return result
