"""Places among the open connections of a process, and the end of them all."""

from typing import Self

import anyio

from ws_responses.counters import Place, Places
from ws_responses.errors import ConnectionsExhausted, Unavailable
from ws_responses.limits import Limits
from ws_responses.state.budget import Ledger


class Seat:
    """A place among the open connections: counted from before the costly checks on, and given back exactly once.

    Args:
        seats: Where it is.
    """

    __slots__ = ("_place", "_seats", "_taken")

    def __init__(self, seats: "Seats") -> None:
        self._seats = seats
        self._taken = False
        self._place: Place | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._place is not None:
            self._place.give_back()
        if self._taken:
            self._seats.leave()

    def take(self) -> None:
        """Take a place in the process.

        Raises:
            Unavailable: The process is draining.
            ConnectionsExhausted: There is none.
        """
        self.confirm()
        self._seats.enter()
        self._taken = True

    async def take_for(self, tenant: str, *, alone: bool) -> None:
        """Take a place of a tenant.

        Args:
            tenant: Whose.
            alone: The tenant is this connection alone.

        Raises:
            ConnectionsExhausted: There is none.
            Unavailable: Whether there is one cannot be told, and that is to be refused.
        """
        limit = self._seats.limits.max_tenant_connections
        if limit is None:
            return
        self._place = await self._seats.places.take("connections", tenant, limit, alone=alone)
        if self._place is None:
            raise ConnectionsExhausted("Too many open connections with this credential.", headers={"retry-after": "5"})

    def confirm(self) -> None:
        """Look once more whether connections are taken at all, after the checks have had their time.

        Raises:
            Unavailable: The process is draining.
        """
        if self._seats.draining:
            raise Unavailable("This server is shutting down. Connect again.", headers={"retry-after": "1"})


class Seats:
    """All places of a process.

    Args:
        ledger: Counts its connections.
        places: Counts those of each tenant.
        limits: How many there may be.

    Attributes:
        draining: No more connections are taken.
    """

    def __init__(self, ledger: Ledger, places: Places, limits: Limits) -> None:
        self.places = places
        self.limits = limits
        self.draining = False
        self._ledger = ledger
        self._emptied: anyio.Event | None = None

    def seat(self) -> Seat:
        """Return a place for one more connection, to be taken in a ``with`` block that lasts as long as it does."""
        return Seat(self)

    def enter(self) -> None:
        """Count one more connection (for ``Seat``).

        Raises:
            ConnectionsExhausted: There is no place.
        """
        limit = self.limits.max_connections
        if limit is not None and self._ledger.connections >= limit:
            raise ConnectionsExhausted("Too many open connections to this server.", headers={"retry-after": "5"})
        self._ledger.connections += 1

    def leave(self) -> None:
        """Count one less, and tell who waits for it that all have ended (for ``Seat``)."""
        self._ledger.connections -= 1
        if self._emptied is not None and not self._ledger.connections:
            self._emptied.set()
            self._emptied = None

    async def empty(self) -> None:
        """Return when all connections have ended."""
        while self._ledger.connections:
            if self._emptied is None:
                self._emptied = anyio.Event()
            await self._emptied.wait()
