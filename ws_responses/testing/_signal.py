"""Waiting for a condition on one event loop, without a lock and without sleeping."""

from collections.abc import Callable

import anyio


class Signal:
    """Tasks wait until a predicate holds; whoever changes the state calls `notify`."""

    def __init__(self) -> None:
        self._event: anyio.Event | None = None

    def notify(self) -> None:
        """Let every waiter look at its predicate again."""
        event, self._event = self._event, None
        if event is not None:
            event.set()

    async def wait_until(self, predicate: Callable[[], bool]) -> None:
        """Return as soon as `predicate()` is true; at once, without a switch, if it is already."""
        while not predicate():
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()

    async def expect(self, predicate: Callable[[], bool], seconds: float, complaint: Callable[[], str]) -> None:
        """Like `wait_until`, but fail the test after `seconds`.

        Raises:
            AssertionError: with the text of `complaint()`. Not a `TimeoutError`, which is an
                `OSError` and would pass for a lost connection.
        """
        with anyio.move_on_after(seconds):
            await self.wait_until(predicate)
        if not predicate():
            raise AssertionError(f"{complaint()} within {seconds} s")
