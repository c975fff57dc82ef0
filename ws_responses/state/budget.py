"""Who pays for the bytes that history keeps, and what goes when they run out.

A charge lives exactly as long as the record that it is for: the record gives its bytes back when its last holder lets go of
it (CPython's reference counting makes that immediate). So charged bytes are reachable bytes, with no book-keeping beside
the objects themselves. A budget that would be exceeded evicts the least recently used leaves of its caches first.
"""

from collections.abc import Iterable
from heapq import heapify, heappop, heapreplace
from itertools import count
from typing import Protocol
from weakref import WeakSet, WeakValueDictionary


class Budget:
    """A number of bytes and what is used of it."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def has_room(self, size: int) -> bool:
        """Whether ``size`` more bytes fit."""
        return self.used + size <= self.limit


class Evictable(Protocol):
    """A cache whose least recently used leaf can be dropped."""

    def oldest(self) -> int | None:
        """Return when the least recently used leaf that may go was used (a ``Ledger.use`` number), None if none may."""

    def evict(self) -> None:
        """Drop that leaf."""


class TenantAccount(Budget):
    """The budget of one tenant, and the caches that hold its history.

    It exists as long as somebody holds it: a connection, or a record that is charged to it. It holds no cache: a record
    would be its own holder then.
    """

    __slots__ = ("__weakref__", "caches")

    def __init__(self, limit: int) -> None:
        super().__init__(limit)
        self.caches: WeakSet[Evictable] = WeakSet()


class Ledger:
    """The budgets of a process.

    Args:
        process_bytes: Bound over all tenants.
        tenant_bytes: Bound of each tenant.
    """

    def __init__(self, process_bytes: int, tenant_bytes: int) -> None:
        self.process = Budget(process_bytes)
        self.connections = 0
        self.evictions = 0
        self._tenant_bytes = tenant_bytes
        self._tenants: WeakValueDictionary[str, TenantAccount] = WeakValueDictionary()
        self._uses = count(1)

    def use(self) -> int:
        """Return a number that is higher than all before: the time of a use."""
        return next(self._uses)

    def account(self, tenant: str) -> TenantAccount:
        """Return the account of ``tenant``, a new one if it has none; hold it as long as it is to count."""
        account = self._tenants.get(tenant)
        if account is None:
            account = self._tenants[tenant] = TenantAccount(self._tenant_bytes)
        return account

    @property
    def tenants(self) -> int:
        """Number of tenants that hold something."""
        return len(self._tenants)

    def reserve(
        self, size: int, own: Budget | None, cache: Evictable, tenant: TenantAccount
    ) -> tuple[Budget, ...] | None:
        """Charge ``size`` bytes to a connection, its tenant and the process, after evicting what is in the way.

        Args:
            size: Bytes.
            own: The connection's budget; None for what is stored, which belongs to the tenant alone.
            cache: The connection's cache.
            tenant: The tenant's account.

        Returns:
            The budgets charged, to be given back by the record; None if there is no room even after evicting all that
            may go.
        """
        charged = (tenant, self.process) if own is None else (tenant, self.process, own)
        for budget in charged:
            if size > budget.limit:
                return None
        for budget in charged:
            if budget.used + size > budget.limit and not self._make_room(budget, size, cache, tenant):
                return None
        for budget in charged:
            budget.used += size
        return charged

    def _make_room(self, budget: Budget, size: int, cache: Evictable, tenant: TenantAccount) -> bool:
        caches = list(self._caches(budget, cache, tenant))
        ages = [(age, index) for index, each in enumerate(caches) if (age := each.oldest()) is not None]
        heapify(ages)
        while not budget.has_room(size):
            if not ages:
                return False
            index = ages[0][1]
            caches[index].evict()
            self.evictions += 1
            age = caches[index].oldest()
            if age is None:
                heappop(ages)
            else:
                heapreplace(ages, (age, index))
        return True

    def _caches(self, budget: Budget, cache: Evictable, tenant: TenantAccount) -> Iterable[Evictable]:
        """Return the caches whose leaves a budget pays for."""
        if budget is self.process:
            return (each for account in self._tenants.values() for each in account.caches)
        return tenant.caches if budget is tenant else (cache,)
