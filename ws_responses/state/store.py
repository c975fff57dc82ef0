"""Where ``store: true`` chains outlive their connection: the protocol, and the store of one process.

A store keeps records with a link to their parent, so that a write costs the delta. Keys hold the tenant: an id says nothing
to anybody else. One time to live per branch, extended by each append to it. Deleting an id hides it; descendants stay.
"""

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from typing import Final, NamedTuple, Protocol

from ws_responses.errors import StoreError
from ws_responses.state.budget import Ledger, TenantAccount
from ws_responses.state.cache import LeafCache
from ws_responses.state.node import Record


class StoreKey(NamedTuple):
    """Names a stored response."""

    tenant: str
    response_id: str


class ResponseStore(Protocol):
    """Keeps responses beyond their connection.

    Implementations raise :class:`~ws_responses.errors.StoreError` when they cannot answer; the middleware treats that and
    a late answer to ``load`` as a miss, and a failed ``append`` as not stored (logged, told to the hooks). With an attribute
    ``fails_closed`` that is true, a turn for which ``load`` fails or is late is refused with 503 instead. What can be loaded
    but not read (:class:`~ws_responses.errors.RecordUnreadable`) is always a miss.

    Time: a record loads at least until ``ttl_s`` seconds after its own append, and after each append below it; and at most
    as long as any record of the conversation that it belongs to. A load gives the whole chain, or nothing.
    """

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        """Add a record below its parent; the whole branch lives for another ``ttl_s`` seconds.

        Raises:
            StoreError: The parent is not here (deleted, expired, evicted), so that the record would load without what
                came before it. A record that starts a new base needs no parent.
        """

    async def load(self, key: StoreKey) -> Sequence[Record]:
        """Return the records from the root (or the newest base) to the key's own; empty if there is none."""
        ...

    async def delete(self, key: StoreKey) -> None:
        """Hide an id. Descendants still load, this record's items included."""

    async def aclose(self) -> None:
        """Give back what the store holds open."""


_FEW: Final = 64
"""Branches that may wait for their time before those without members are looked for."""


class _Branch:
    """Records that expire together. A fork starts a new branch whose origin lives at least as long.

    Attributes:
        tenant: Whose.
        origin: The branch that this one forks.
        expires_at: When its members go.
        listed: It waits for its time in the store's list.
        members: Ids, in the order in which they were added.
    """

    __slots__ = ("expires_at", "listed", "members", "origin", "tenant")

    def __init__(self, tenant: str, origin: "_Branch | None") -> None:
        self.tenant = tenant
        self.origin = origin
        self.expires_at = float("-inf")
        self.listed = False
        self.members: dict[str, None] = {}


class _Stored:
    __slots__ = ("branch", "parent", "record")

    def __init__(self, record: Record, parent: "_Stored | None", branch: _Branch) -> None:
        self.record = record
        self.parent = parent
        self.branch = branch


class _Shelf(LeafCache[_Stored]):
    """What is stored of one tenant."""

    def __init__(self, ledger: Ledger, account: TenantAccount, emptied: Callable[[], None]) -> None:
        super().__init__(ledger)
        self.account = account
        self._emptied = emptied

    def discard(self, id: str) -> _Stored | None:  # noqa: A002 - the wire's word
        stored = super().discard(id)
        if stored is not None:
            del stored.branch.members[id]
        return stored

    def evict(self) -> None:
        super().evict()
        if not len(self):
            self._emptied()


class InProcessStore:
    """The store of one process; bounded by the tenants' and the process's budgets, and by time.

    Args:
        ledger: Whose budgets evict from it.
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}
        self._deadlines: list[tuple[float, int, _Branch]] = []
        """Heap of the branches, each once, by a deadline that may have been extended since."""
        self._listings = count()
        self._sweep_at = _FEW

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        """Add a record below its parent.

        Raises:
            StoreError: See the protocol.
        """
        self.expire()
        shelf = self._shelves.get(key.tenant)
        below = shelf.get(parent.response_id) if shelf is not None and parent is not None else None
        if parent is not None and below is None and not record.base:
            raise StoreError("the parent of this response is not stored")
        if shelf is None:
            shelf = self._new_shelf(key.tenant)
        branch = self._branch(key.tenant, parent, below)
        if record.base:
            below = None  # what is older is not joined any more, and must not stay for its sake
        above = None if below is None or parent is None else parent.response_id
        shelf.put(key.response_id, above, _Stored(record, below, branch))
        branch.members[key.response_id] = None
        self._extend(branch, self._clock() + ttl_s)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        """Return the records from the newest base to the key's own; empty if there is none."""
        self.expire()
        shelf = self._shelves.get(key.tenant)
        at = shelf.get(key.response_id) if shelf is not None else None
        records: list[Record] = []
        while at is not None:
            records.append(at.record)
            at = at.parent
        records.reverse()
        return records

    async def delete(self, key: StoreKey) -> None:
        """Hide an id; its record lives on in its descendants."""
        shelf = self._shelves.get(key.tenant)
        if shelf is not None and shelf.discard(key.response_id) is not None:
            self._tidy(key.tenant)

    async def aclose(self) -> None:
        """Forget everything."""
        for tenant in list(self._shelves):
            self._shelves[tenant].clear()
            self._tidy(tenant)
        self._deadlines.clear()

    def expire(self) -> None:
        """Drop the branches whose time has come."""
        now = self._clock()
        deadlines = self._deadlines
        while deadlines and deadlines[0][0] <= now:
            branch = deadlines[0][2]
            if branch.expires_at > now:
                heapreplace(deadlines, (branch.expires_at, next(self._listings), branch))
                continue
            heappop(deadlines)
            branch.listed = False
            shelf = self._shelves.get(branch.tenant)
            if shelf is not None:
                for response_id in list(branch.members):
                    shelf.discard(response_id)
                self._tidy(branch.tenant)

    def _new_shelf(self, tenant: str) -> _Shelf:
        account = self._ledger.account(tenant)
        shelf = self._shelves[tenant] = _Shelf(self._ledger, account, lambda: self._tidy(tenant))
        account.caches.add(shelf)
        return shelf

    def _tidy(self, tenant: str) -> None:
        """Forget the shelf of a tenant if there is nothing on it."""
        if not len(self._shelves[tenant]):
            del self._shelves[tenant]

    def _branch(self, tenant: str, parent: StoreKey | None, below: _Stored | None) -> _Branch:
        """Return the branch of a new record: that of its parent, if this is the newest of it."""
        if below is None or parent is None:
            return _Branch(tenant, None)
        newest = next(reversed(below.branch.members))
        return below.branch if newest == parent.response_id else _Branch(tenant, below.branch)

    def _extend(self, branch: _Branch, expires_at: float) -> None:
        at: _Branch | None = branch
        while at is not None and at.expires_at < expires_at:
            at.expires_at = expires_at
            if not at.listed:
                self._list(at)
            at = at.origin

    def _list(self, branch: _Branch) -> None:
        branch.listed = True
        heappush(self._deadlines, (branch.expires_at, next(self._listings), branch))
        if len(self._deadlines) > self._sweep_at:
            for _, _, each in self._deadlines:
                each.listed = bool(each.members) or each is branch
            self._deadlines = [entry for entry in self._deadlines if entry[2].listed]
            heapify(self._deadlines)
            self._sweep_at = 2 * len(self._deadlines) + _FEW
