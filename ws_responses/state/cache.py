"""Nodes by id, with the rule of what goes first: the least recently used leaf."""

from heapq import heapify, heappop, heappush, heapreplace
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

from ws_responses.state.budget import Ledger
from ws_responses.state.node import ResponseNode

V = TypeVar("V")

_SLACK: Final = 64
"""Outdated entries that the list of candidates may have, beside as many as there are values."""


class _Entry(Generic[V]):
    __slots__ = ("listed", "parent_id", "used", "value")

    def __init__(self, value: V, parent_id: str | None, used: int) -> None:
        self.value = value
        self.parent_id = parent_id
        self.used = used
        self.listed = 0


class LeafCache(Generic[V]):
    """Values linked to parents. Dropping one that has children would free nothing, so only leaves are evicted.

    A pinned value is no candidate. What is dropped lives on for whoever still holds it; only its id is forgotten. Children
    and pins belong to an id: they count again if it comes back.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: dict[str, _Entry[V]] = {}
        self._holds: dict[str, int] = {}
        """Children here and pins, by id."""
        self._candidates: list[tuple[int, str]] = []
        """Heap of (use, id): each leaf once, at a use that may be outdated, and ids that are no leaf any more."""

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, id: str) -> bool:  # noqa: A002 - the wire's word
        return id in self._entries

    def ids(self) -> list[str]:
        """Return all ids, oldest first."""
        return list(self._entries)

    def put(self, id: str, parent_id: str | None, value: V) -> None:  # noqa: A002
        """Add a value as a leaf below its parent; an equal id is replaced."""
        if id in self._entries:
            self.discard(id)
        if parent_id == id:
            parent_id = None
        entry = self._entries[id] = _Entry(value, parent_id, self._ledger.use())
        if parent_id is not None:
            self.pin(parent_id)
        self._list(id, entry)

    def get(self, id: str) -> V | None:  # noqa: A002
        """Return a value, which counts as a use."""
        entry = self._entries.get(id)
        if entry is None:
            return None
        entry.used = self._ledger.use()
        return entry.value

    def discard(self, id: str) -> V | None:  # noqa: A002
        """Forget an id and return its value; descendants stay."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        if entry.parent_id is not None:
            self.unpin(entry.parent_id)
        return entry.value

    def pin(self, id: str) -> None:  # noqa: A002
        """Keep an id from being evicted, until it is unpinned as often."""
        self._holds[id] = self._holds.get(id, 0) + 1

    def unpin(self, id: str) -> None:  # noqa: A002
        """Take one pin back; the id may be gone meanwhile, since a failed turn evicts it."""
        holds = self._holds.pop(id, 0) - 1
        if holds > 0:
            self._holds[id] = holds
            return
        entry = self._entries.get(id)
        if entry is not None:
            self._list(id, entry)

    def oldest(self) -> int | None:
        """Return the use number of the next leaf to go."""
        candidates = self._candidates
        while candidates:
            used, id = candidates[0]  # noqa: A001
            entry = self._entries.get(id)
            if entry is None or entry.listed != used:
                heappop(candidates)
            elif id in self._holds:
                heappop(candidates)
                entry.listed = 0
            elif entry.used != used:
                entry.listed = entry.used
                heapreplace(candidates, (entry.used, id))
            else:
                return used
        return None

    def evict(self) -> None:
        """Drop the next leaf, if there is one."""
        if self.oldest() is not None:
            self.discard(self._candidates[0][1])

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._holds.clear()
        self._candidates.clear()

    def _list(self, id: str, entry: _Entry[V]) -> None:  # noqa: A002
        if entry.listed or id in self._holds:
            return
        entry.listed = entry.used
        heappush(self._candidates, (entry.used, id))
        if len(self._candidates) > 2 * len(self._entries) + _SLACK:
            self._candidates = [(e.listed, i) for i, e in self._entries.items() if e.listed]
            heapify(self._candidates)


class ConnectionCache(LeafCache[ResponseNode]):
    """All resolvable nodes of one connection, whatever their lane."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._failed: LRUCache[str, None] = LRUCache(256)

    def fail(self, id: str) -> None:  # noqa: A002
        """Evict the parent of a same-lane turn that ran and failed (guide, state)."""
        self.discard(id)
        self._failed[id] = None

    def has_failed(self, id: str) -> bool:  # noqa: A002
        """Whether the id was evicted by a failed turn on this connection."""
        return id in self._failed
