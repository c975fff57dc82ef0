"""One generation of a backend, tried again as long as nothing was sampled."""

import logging
import random
from collections.abc import AsyncGenerator, Callable
from typing import Final

import anyio
from msgspec import Struct

from ws_responses.backends import ChatPrompt, Delta, GenerateParams, TokenPrompt, may_succeed_again
from ws_responses.clock import Clock
from ws_responses.errors import ConfigurationError, StreamTruncated, WireError
from ws_responses.instrumentation.raised import log_raised
from ws_responses.routing import Route

logger = logging.getLogger("ws_responses.engine")

CLOSE_S: Final = 1.0
"""Time that a generation gets to end; adapters need half a second at most (``Backend.generate``)."""

DRAIN_S: Final = 1.0
"""Time that a generation gets to come to its own end after its last delta: only then its connection serves another one."""

Generation = AsyncGenerator[Delta]


class Retry(Struct, frozen=True, kw_only=True):
    """How often, and how long, a backend is asked again before it has sampled anything.

    Attributes:
        attempts: Requests in all; 1 for no retry.
        first_s: Seconds before the second request; twice as much before each further one, less up to half of it at random.
        max_s: Longest wait. A service that asks for more (retry-after) is not asked again: the client is told.
        total_s: Seconds after the first request after which no other is made.

    Raises:
        ConfigurationError: A number is out of range.
    """

    attempts: int = 3
    first_s: float = 0.5
    max_s: float = 5.0
    total_s: float = 20.0

    def __post_init__(self) -> None:
        if self.attempts < 1 or min(self.first_s, self.max_s, self.total_s) < 0:
            raise ConfigurationError("Retry needs at least one attempt, and no negative times")

    def wait_s(self, attempt: int, error: WireError, chance: float) -> float | None:
        """Return how long to wait after a failed attempt; None if there is to be no other.

        Args:
            attempt: Which one failed, from 1 on.
            error: How.
            chance: 0..1, at random.
        """
        if attempt >= self.attempts or not may_succeed_again(error):
            return None
        asked = retry_after_s(error)
        wait: float = min(self.first_s * 2 ** (attempt - 1), self.max_s) * (1 - chance / 2)
        if asked is None:
            return wait
        return max(asked, wait) if asked <= self.max_s else None


def retry_after_s(error: WireError) -> float | None:
    """Return the seconds after which the service wants to be asked again; None if it does not say, or gives a date."""
    for name, unit in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        try:
            seconds = float(error.headers[name]) / unit
        except (KeyError, ValueError):
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    return None


class Opened(Struct):
    """A generation that has begun.

    Attributes:
        deltas: What is to come.
        first: What has come: the last of them carries output, or the end.
    """

    deltas: Generation
    first: list[Delta]


class Caller:
    """Asks backends.

    Args:
        retry: How often.
        clock: Tells the time and waits.
        chance: Gives a number 0..1 at random.
    """

    def __init__(self, retry: Retry, clock: Clock, chance: Callable[[], float] = random.random) -> None:
        self._retry = retry
        self._clock = clock
        self._chance = chance

    async def open(
        self, route: Route, prompt: TokenPrompt | ChatPrompt, params: GenerateParams, alive: Callable[[], None]
    ) -> Opened:
        """Begin a generation; the caller closes it.

        Args:
            route: Whose backend is asked.
            prompt: Of a kind that it takes.
            params: How to sample.
            alive: Called for each sign of life before the first output.

        Raises:
            WireError: It failed for good, before anything was sampled.
        """
        started = self._clock.now()
        attempt = 0
        while True:
            attempt += 1
            try:
                return await _first_output(route.backend.generate(prompt, params), alive)
            except WireError as error:
                wait = self._retry.wait_s(attempt, error, self._chance())
                if wait is None or self._clock.now() + wait - started > self._retry.total_s:
                    raise
                logger.info("route %s: attempt %d failed (%s), again in %.1f s", route.name, attempt, error.code, wait)
            await self._clock.wait(wait, anyio.Event())


async def _first_output(deltas: Generation, alive: Callable[[], None]) -> Opened:
    first: list[Delta] = []
    async for delta in deltas:
        if delta.has_output or delta.finish is not None:
            return Opened(deltas, [*first, delta])
        alive()
        if delta.usage is not None or delta.service_tier is not None:
            first = [*first[-1:], delta]  # what was told last counts
    raise StreamTruncated


async def drain(deltas: Generation) -> None:
    """Let a generation whose answer is complete come to its end."""
    with anyio.move_on_after(DRAIN_S):
        try:
            async for _ in deltas:
                pass
        except WireError as error:
            logger.debug("a backend failed after its answer was complete: %s", error.code)


async def close(deltas: Generation) -> None:
    """End a generation, also if the turn is cancelled; one that does not end in time is left behind, and reported."""
    with anyio.move_on_after(CLOSE_S, shield=True) as scope:
        try:
            await deltas.aclose()
        except Exception as error:  # noqa: BLE001 - the answer is there, or its failure is on its way already
            text = "a backend's generation raised when it was closed"
            log_raised(logger, logging.ERROR, text, error=error, private=True)
    if scope.cancelled_caught:
        logger.error("a backend's generation does not end when it is closed")
