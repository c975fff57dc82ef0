"""What the connections of one middleware share, and the operator's reach to all of them."""

from typing import TYPE_CHECKING

from cachetools import LRUCache

from ws_responses.admission import Admission
from ws_responses.counters import Places, TenantCounters
from ws_responses.ids import Ids
from ws_responses.instrumentation import Reporter, StoreFailed
from ws_responses.parts import Parts
from ws_responses.seats import Seats
from ws_responses.settings import Settings
from ws_responses.settlement import Settler
from ws_responses.state.budget import Ledger
from ws_responses.state.store import ResponseStore
from ws_responses.stored_chains import StoredChains

if TYPE_CHECKING:
    from ws_responses.connection import Connection

_BLOCKED_IDS = 4096
"""Responses remembered that were blocked, by whose ids nothing may go on; about 1 MB."""


class Registry:
    """Shared state of a middleware; made with it, without a running loop.

    Args:
        settings: The options.
        reporter: Where facts go.
        store: Keeps ``store: true`` chains; "memory" for the in-process one, None for none.
        tenant_key: Key of the hash that names tenants; give the same to all workers that share a store.
        counters: Counts the places of tenants over all nodes; None for this process alone.

    Attributes:
        ids: Draws ids.
        ledger: The budgets of the process and of its tenants.
        chains: What is stored.
        places: The places of tenants.
        seats: The places of connections.
        admission: Judges clients.
        parts: What some options add to each turn.
        settler: Delivers the records of turns; None if nobody is given them.
        connections: The open ones.
    """

    def __init__(
        self,
        settings: Settings,
        reporter: Reporter,
        store: ResponseStore | str | None,
        tenant_key: bytes | None,
        counters: TenantCounters | None = None,
    ) -> None:
        self.settings = settings
        self.reporter = reporter
        self.ids = Ids()
        self.ledger = Ledger(settings.limits.max_process_bytes, settings.limits.max_tenant_bytes)
        self.chains = StoredChains(store, settings, self.ledger, reporter)
        self.places = Places(
            counters,
            settings.clock,
            settings.limits.store_timeout_s,
            lambda error: reporter.report(StoreFailed(operation="count", error=error)),
        )
        self.seats = Seats(self.ledger, self.places, settings.limits)
        shares_store = self.chains.store is not None and not self.chains.is_local
        self.admission = Admission(settings, self.ids, tenant_key, shares_store=shares_store)
        self.parts = Parts(settings)
        self.settler = None if settings.settlement is None else Settler(settings.settlement, settings.clock)
        self.connections: set[Connection] = set()
        self._blocked: LRUCache[tuple[str, str], None] = LRUCache(_BLOCKED_IDS)

    def add(self, connection: "Connection") -> None:
        """Note a connection, so that the operator reaches it."""
        self.connections.add(connection)

    def remove(self, connection: "Connection") -> None:
        """Note a connection no more."""
        self.connections.discard(connection)

    async def drain(self, timeout_s: float | None) -> bool:
        """Refuse new connections and turns, and wait for the open ones to end.

        Returns:
            Whether all have ended in time.
        """
        self.seats.draining = True
        for connection in list(self.connections):
            connection.retire()
        with self.settings.clock.move_on_after(float("inf") if timeout_s is None else timeout_s):
            await self.seats.empty()
        return not self.ledger.connections

    def disconnect(self, tenant: str, reason: str) -> int:
        """End all connections of a tenant; return how many there were."""
        theirs = [connection for connection in self.connections if connection.tenant == tenant]
        for connection in theirs:
            connection.disconnect(reason)
        return len(theirs)

    def block(self, tenant: str, response_id: str) -> None:
        """Let a response whose output was blocked not be continued, also where the app itself knows it."""
        self._blocked[tenant, response_id] = None

    def is_blocked(self, tenant: str, response_id: str) -> bool:
        """Whether that is so; the oldest are forgotten."""
        return (tenant, response_id) in self._blocked

    async def forget(self, tenant: str, response_id: str) -> bool:
        """Drop an id everywhere here, because its owner deleted it; descendants stay.

        Returns:
            Whether the store has dropped it as well.
        """
        self.chains.deletions += 1
        theirs = [connection for connection in self.connections if connection.tenant == tenant]
        for connection in theirs:
            connection.cache.discard(response_id)
        if self.chains.store is None:
            return True
        with self.settings.clock.move_on_after(self.settings.limits.store_timeout_s):
            for connection in theirs:
                if connection.store is not None:
                    await (
                        connection.store.written()
                    )  # else the store would be told to delete first, and to keep it then
        return await self.chains.delete(tenant, response_id)
