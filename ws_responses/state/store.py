"""Where ``store: true`` chains outlive their connection: the protocol, and the store of one process.

A store keeps records with a link to their parent, so that a write costs the delta. Keys hold the tenant: an id says nothing
to anybody else. One time to live per branch, extended by each append to it. Deleting an id hides it; descendants stay.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from ws_responses.state.budget import Ledger
from ws_responses.state.cache import LeafCache
from ws_responses.state.node import Record


class StoreKey(NamedTuple):
    """Names a stored response."""

    tenant: str
    response_id: str


class ResponseStore(Protocol):
    """Keeps responses beyond their connection.

    Implementations raise :class:`~ws_responses.errors.StoreError` when they cannot answer; the middleware treats that and
    a late answer to ``load`` as a miss, and a failed ``append`` as not stored (logged, told to the hooks).
    """

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        """Add a record below its parent; the whole branch lives for another ``ttl_s`` seconds."""

    async def load(self, key: StoreKey) -> Sequence[Record]:
        """Return the records from the root (or the newest base) to the key's own; empty if there is none."""

    async def delete(self, key: StoreKey) -> None:
        """Hide an id. Descendants still load, this record's items included."""

    async def aclose(self) -> None:
        """Give back what the store holds open."""


class _Branch:
    """Records that expire together. A fork starts a new branch whose origin lives at least as long."""

    __slots__ = ("expires_at", "members", "origin")

    def __init__(self, origin: "_Branch | None") -> None:
        self.origin = origin
        self.expires_at = 0.0
        self.members: list[StoreKey] = []


class _Stored:
    __slots__ = ("branch", "hidden", "parent", "record")

    def __init__(self, record: Record, parent: "_Stored | None", branch: _Branch) -> None:
        self.record = record
        self.parent = parent
        self.branch = branch
        self.hidden = False


class InProcessStore:
    """The store of one process; bounded by the tenants' and the process's budgets, and by time.

    Args:
        ledger: Whose budgets evict from it.
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, ledger: Ledger, clock: Callable[[], float]) -> None:
        self._ledger = ledger
        self._clock = clock
        self._shelves: dict[str, LeafCache[_Stored]] = {}
        self._branches: OrderedDict[_Branch, None] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._shelves.values()))

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        """Add a record below its parent."""
        self.expire()
        shelf = self._shelf(key.tenant)
        below = shelf.get(parent.response_id) if parent is not None else None
        branch = self._branch(below, parent)
        branch.members.append(key)
        shelf.put(key.response_id, None if below is None else below.record.id, _Stored(record, below, branch))
        self._extend(branch, self._clock() + ttl_s)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        """Return the records from the newest base to the key's own; empty if there is none."""
        self.expire()
        shelf = self._shelves.get(key.tenant)
        stored = shelf.get(key.response_id) if shelf is not None else None
        if stored is None or stored.hidden:
            return ()
        records: list[Record] = []
        at: _Stored | None = stored
        while at is not None:
            records.append(at.record)
            at = None if at.record.base else at.parent
        records.reverse()
        return records

    async def delete(self, key: StoreKey) -> None:
        """Hide an id."""
        shelf = self._shelves.get(key.tenant)
        stored = shelf.discard(key.response_id) if shelf is not None else None
        if stored is not None:
            stored.hidden = True
            self._tidy(key.tenant)

    async def aclose(self) -> None:
        """Forget everything."""
        for tenant in list(self._shelves):
            self._shelves[tenant].clear()
            self._tidy(tenant)
        self._branches.clear()

    def expire(self) -> None:
        """Drop the branches whose time has come."""
        now = self._clock()
        while self._branches:
            branch = next(iter(self._branches))
            if branch.expires_at > now:
                return
            del self._branches[branch]
            for tenant, response_id in branch.members:
                if tenant in self._shelves:
                    self._shelves[tenant].discard(response_id)
                    self._tidy(tenant)

    def _shelf(self, tenant: str) -> LeafCache[_Stored]:
        shelf = self._shelves.get(tenant)
        if shelf is None:
            shelf = self._shelves[tenant] = LeafCache(self._ledger)
            self._ledger.account(tenant).caches.append(shelf)
        return shelf

    def _tidy(self, tenant: str) -> None:
        if not self._shelves[tenant]:
            self._ledger.account(tenant).caches.remove(self._shelves.pop(tenant))
            self._ledger.settle(tenant)

    def _branch(self, below: _Stored | None, parent: StoreKey | None) -> _Branch:
        if below is None or parent is None:
            return _Branch(None)
        if below.branch.members[-1] == parent:
            return below.branch
        return _Branch(below.branch)

    def _extend(self, branch: _Branch, expires_at: float) -> None:
        at: _Branch | None = branch
        while at is not None and at.expires_at < expires_at:
            at.expires_at = expires_at
            self._branches[at] = None
            self._branches.move_to_end(at)
            at = at.origin
