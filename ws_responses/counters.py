"""Places of a tenant: how many connections it has open, and how many turns run, in this process or over all nodes.

    app = ResponsesWebSocketMiddleware(app, counters=RedisCounters("redis://localhost:6379/0"), limits=Limits(max_tenant_turns=64))

Each process counts its own places. With shared counters these are asked as well, unless the process alone is at the limit already.
"""

from collections.abc import Awaitable, Callable
from typing import Literal, Protocol

from ws_responses.clock import Clock
from ws_responses.errors import StoreError, Unavailable

__all__ = ["Counted", "Place", "Places", "TenantCounters"]

Counted = Literal["connections", "turns"]
"""What is counted."""


class Place(Protocol):
    """A place that was taken.

    Attributes:
        counted: It is counted over all nodes; False if the counters could not be asked, and let pass what they cannot count.
    """

    @property
    def counted(self) -> bool:
        """See above."""
        ...

    def give_back(self) -> None:
        """Give it back; never waits. Only the first call counts."""


class TenantCounters(Protocol):
    """Counts the places of tenants over all nodes.

    A node that ends without giving its places back must not keep them for ever: places are leases that their node renews.
    """

    async def take(self, what: Counted, tenant: str, limit: int) -> Place | None:
        """Take a place, if fewer than ``limit`` are taken; None if there is none.

        A caller that is cancelled has no place.

        Raises:
            StoreError: They cannot be asked, and what cannot be counted is to be refused.
        """
        ...

    async def aclose(self) -> None:
        """Give back what they hold open."""


class _OwnPlace:
    """A place in this process, and the one over all nodes that belongs to it."""

    __slots__ = ("_key", "_own", "_shared")

    def __init__(self, own: dict[tuple[Counted, str], int], key: tuple[Counted, str]) -> None:
        self._own: dict[tuple[Counted, str], int] | None = own
        self._key = key
        self._shared: Place | None = None
        own[key] = own.get(key, 0) + 1

    @property
    def counted(self) -> bool:
        return self._shared is None or self._shared.counted

    def share(self, shared: Place) -> None:
        self._shared = shared

    def give_back(self) -> None:
        own, self._own = self._own, None
        if own is None:
            return
        own[self._key] -= 1
        if not own[self._key]:
            del own[self._key]
        if self._shared is not None:
            self._shared.give_back()


class Places:
    """The places of one process, and what is asked over all nodes.

    Args:
        shared: Counts over all nodes; None to count in this process only.
        clock: Of the time limit.
        timeout_s: Time for an answer of ``shared``.
        on_failure: Is told when it cannot be asked: by the name of the error.
    """

    def __init__(
        self, shared: TenantCounters | None, clock: Clock, timeout_s: float, on_failure: Callable[[str], object]
    ) -> None:
        self.shared = shared
        self._clock = clock
        self._timeout_s = timeout_s
        self._on_failure = on_failure
        self._own: dict[tuple[Counted, str], int] = {}

    def taken(self, what: Counted, tenant: str) -> int:
        """Return how many a tenant has in this process."""
        return self._own.get((what, tenant), 0)

    async def take(self, what: Counted, tenant: str, limit: int, *, alone: bool = False) -> Place | None:
        """Take a place of a tenant; None if there is none.

        Args:
            what: Of which kind.
            tenant: Whose.
            limit: How many it may have.
            alone: The tenant is in this process only.

        Raises:
            Unavailable: The shared counters do not answer, and are such that fail closed.
        """
        if self.taken(what, tenant) >= limit:
            return None
        place = _OwnPlace(self._own, (what, tenant))
        if self.shared is None or alone:
            return place
        try:
            shared = await self._ask(self.shared.take(what, tenant, limit))
        except BaseException:
            place.give_back()
            raise
        if shared is None:
            place.give_back()
            return None
        place.share(shared)
        if not shared.counted:
            self._on_failure("not counted")
        return place

    async def _ask(self, work: Awaitable[Place | None]) -> Place | None:
        answers: list[Place | None] = []
        error: StoreError | None = None
        try:
            with self._clock.move_on_after(self._timeout_s):
                answers.append(await work)
        except StoreError as failure:
            error = failure
        if answers:
            return answers[0]
        self._on_failure(type(error).__name__ if error is not None else "late")
        raise Unavailable("Limits cannot be checked at the moment. Try again.", headers={"retry-after": "1"}) from error

    async def aclose(self) -> None:
        """Close the shared counters."""
        if self.shared is not None:
            await self.shared.aclose()
