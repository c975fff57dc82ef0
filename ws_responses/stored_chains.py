"""The store as connections use it: asked within a time limit, and never the end of a turn by its failures."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from msgspec.structs import replace

from ws_responses.asking import LateError, in_time
from ws_responses.errors import RecordUnreadable, StoreError, StoreUnavailable
from ws_responses.instrumentation import Reporter, StoreFailed
from ws_responses.settings import Settings
from ws_responses.single_flight import SingleFlight
from ws_responses.state.budget import Budget, Ledger
from ws_responses.state.cache import ConnectionCache
from ws_responses.state.node import Record, ResponseNode, record_bytes
from ws_responses.state.store import InProcessStore, ResponseStore, StoreKey

logger = logging.getLogger("ws_responses.store")

T = TypeVar("T")

Charge = Callable[[int], tuple[Budget, ...] | None]
"""Charges bytes to the connection that keeps them; returns to which budgets, None if these have no room."""


class StoredChains:
    """The chains of all connections that are stored.

    Args:
        store: Keeps ``store: true`` chains; "memory" for the in-process one, None for none.
        settings: The options.
        ledger: Is charged by the in-process store.
        reporter: Is told of failures.

    Attributes:
        store: The store.
        deletions: How often an id was deleted.
    """

    def __init__(
        self, store: ResponseStore | str | None, settings: Settings, ledger: Ledger, reporter: Reporter
    ) -> None:
        self.store: ResponseStore | None = (
            InProcessStore(ledger, settings.clock.now) if isinstance(store, str) else store
        )
        self.deletions = 0
        self._settings = settings
        self._reporter = reporter
        self._loads: SingleFlight[tuple[StoreKey, int], Sequence[Record]] = SingleFlight()

    @property
    def is_local(self) -> bool:
        """Whether the store is the one of this process, which never waits for anything."""
        return isinstance(self.store, InProcessStore)

    async def append(self, node: ResponseNode) -> bool:
        """Write a node; return whether the store has it. A failure is reported."""
        assert self.store is not None
        key = StoreKey(node.tenant, node.id)
        parent = None if node.record.parent_id is None else StoreKey(node.tenant, node.record.parent_id)
        with suppress(StoreError):
            await self._ask("append", self.store.append(key, node.record, parent, self._settings.limits.store_ttl_s))
            return True
        return False

    async def resolve(
        self, response_id: str, *, tenant: str, lane: str | None, cache: ConnectionCache, charge: Charge
    ) -> ResponseNode | None:
        """Return a stored node with its chain, and keep it in a connection's cache; None if there is none.

        Raises:
            StoreUnavailable: See ``records``.
        """
        deletions = self.deletions
        records = await self.records(tenant, response_id)
        node = cache.get(response_id)
        if node is not None:
            return node  # another turn has loaded it meanwhile
        for record in records:
            known = cache.get(record.id)
            if known is None:
                charged = _charged(record, None if node is None else node.record, charge)
                if charged is None:
                    return None
                known = ResponseNode(charged, node, tenant=tenant, lane=lane)
            node = known
        # Its ancestors stay unknown here: their ids may have been deleted, which only the store can tell. So may its own have
        # been, while it was on its way.
        if node is not None and node.id not in cache and deletions == self.deletions:
            cache.add(node)
        return node

    async def records(self, tenant: str, response_id: str) -> Sequence[Record]:
        """Return the records of a stored chain, root (or newest base) first; empty if there is none.

        A store that fails or is late is a miss, unless it is one that fails closed.

        Raises:
            StoreUnavailable: It is, and did not answer.
        """
        store = self.store
        if store is None:
            return ()
        key = StoreKey(tenant, response_id)
        try:
            if self.is_local:
                return await self._ask("load", store.load(key))
            # Who asks after a deletion must not be given what was on its way before it.
            return await self._loads.run((key, self.deletions), lambda: self._ask("load", store.load(key)))
        except RecordUnreadable:
            return ()
        except StoreError:
            if getattr(store, "fails_closed", False):
                raise StoreUnavailable from None
            return ()

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Drop an id; return whether the store has. A failure is reported."""
        assert self.store is not None
        try:
            await self._ask("delete", self.store.delete(StoreKey(tenant, response_id)))
        except StoreError:
            return False
        finally:
            self.deletions += 1
        return True

    async def _ask(self, operation: str, work: Awaitable[T]) -> T:
        """Return what the store says.

        Raises:
            StoreError: It failed, or was late; that is reported.
        """
        settings = self._settings
        try:
            return await in_time(lambda: work, settings.clock, settings.limits.store_timeout_s)
        except LateError:
            self._reporter.report(StoreFailed(operation=operation, error="late"))
            raise StoreError(f"{operation} took too long") from None
        except Exception as error:
            # Never the turn's end. Only the kind is told: the text may hold an address with its password, or content.
            self._reporter.report(StoreFailed(operation=operation, error=type(error).__name__))
            logger.debug("store: %s failed", operation, exc_info=error)
            raise error if isinstance(error, StoreError) else StoreError(operation) from error


def _charged(record: Record, parent: Record | None, charge: Charge) -> Record | None:
    if record.budgets:
        return record
    size = record_bytes(record, parent, stored=False)
    budgets = charge(size)
    return None if budgets is None else replace(record, size=size, budgets=budgets)
