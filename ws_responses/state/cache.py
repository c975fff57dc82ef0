"""Nodes by id, with the rule of what goes first: the least recently used leaf."""

from collections import OrderedDict
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

from cachetools import LRUCache

from ws_responses.state.budget import Ledger
from ws_responses.state.node import ResponseNode

V = TypeVar("V")

_SLACK: Final = 64
"""Outdated entries that the list of late leaves may have, beside as many as there are values."""


class _Entry(Generic[V]):
    __slots__ = ("holds", "parent_id", "used", "value")

    def __init__(self, value: V, parent_id: str | None, used: int, holds: int) -> None:
        self.value = value
        self.parent_id = parent_id
        self.used = used
        self.holds = holds


class LeafCache(Generic[V]):
    """Values linked to parents. Dropping one that has children would free nothing, so only leaves are evicted.

    A pinned value is no candidate. What is dropped lives on for whoever still holds it; only its id is forgotten. Children
    and pins belong to an id: they count again if it comes back.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: dict[str, _Entry[V]] = {}
        self._leaves: OrderedDict[str, _Entry[V]] = OrderedDict()
        """Leaves by their last use, so that the next to go is the first; those aside that are in ``_late``."""
        self._late: list[tuple[int, str]] = []
        """Heap of (use, id) of what became a leaf out of turn: it was used between the uses of other leaves."""
        self._absent: dict[str, int] = {}
        """Children and pins of ids that are not here."""

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
        entry = self._entries[id] = _Entry(value, parent_id, self._ledger.use(), self._absent.pop(id, 0))
        if not entry.holds:
            self._leaves[id] = entry
        if parent_id is not None:
            self.pin(parent_id)

    def get(self, id: str) -> V | None:  # noqa: A002
        """Return a value, which counts as a use."""
        entry = self._entries.get(id)
        if entry is None:
            return None
        entry.used = self._ledger.use()
        if not entry.holds:
            self._leaves[id] = entry
            self._leaves.move_to_end(id)
        return entry.value

    def discard(self, id: str) -> V | None:  # noqa: A002
        """Forget an id and return its value; descendants stay."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        self._leaves.pop(id, None)
        if entry.holds:
            self._absent[id] = entry.holds
        if entry.parent_id is not None:
            self.unpin(entry.parent_id)
        return entry.value

    def pin(self, id: str) -> None:  # noqa: A002
        """Keep an id from being evicted, until it is unpinned as often."""
        entry = self._entries.get(id)
        if entry is None:
            self._absent[id] = self._absent.get(id, 0) + 1
            return
        entry.holds += 1
        self._leaves.pop(id, None)

    def unpin(self, id: str) -> None:  # noqa: A002
        """Take one pin back; the id may be gone meanwhile, since a failed turn evicts it."""
        entry = self._entries.get(id)
        if entry is not None:
            if entry.holds == 1:
                self._restore(id, entry)
            entry.holds = max(0, entry.holds - 1)
            return
        holds = self._absent.pop(id, 0)
        if holds > 1:
            self._absent[id] = holds - 1

    def oldest(self) -> int | None:
        """Return the use number of the next leaf to go."""
        following = self._next()
        return None if following is None else self._entries[following].used

    def evict(self) -> None:
        """Drop the next leaf, if there is one."""
        following = self._next()
        if following is not None:
            self.discard(following)

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._leaves.clear()
        self._late.clear()
        self._absent.clear()

    def _next(self) -> str | None:
        first = next(iter(self._leaves), None)
        while self._late:
            used, late = self._late[0]
            if not self._is_late(used, late):
                heappop(self._late)
            elif first is None or used < self._leaves[first].used:
                return late
            else:
                break
        return first

    def _is_late(self, used: int, id: str) -> bool:  # noqa: A002
        entry = self._entries.get(id)
        return entry is not None and entry.used == used and not entry.holds

    def _restore(self, id: str, entry: _Entry[V]) -> None:  # noqa: A002
        """Make an entry a leaf again. It was mostly used before all others, or after them."""
        leaves = self._leaves
        if not leaves or entry.used > leaves[next(reversed(leaves))].used:
            leaves[id] = entry
        elif entry.used < leaves[next(iter(leaves))].used:
            leaves[id] = entry
            leaves.move_to_end(id, last=False)
        else:
            heappush(self._late, (entry.used, id))
            if len(self._late) > len(self._entries) + _SLACK:
                self._late = [late for late in set(self._late) if self._is_late(*late)]
                heapify(self._late)


class ConnectionCache(LeafCache[ResponseNode]):
    """All resolvable nodes of one connection, whatever their lane."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger)
        self._failed: LRUCache[str, None] | None = None

    def add(self, node: ResponseNode) -> None:
        """Make a node resolvable."""
        parent = node.parent
        while parent is not None and parent.record.part:
            parent = parent.parent  # nobody asks for the steps of a rollout
        self.put(node.id, None if parent is None else parent.id, node)

    def fail(self, id: str) -> None:  # noqa: A002
        """Evict the parent of a same-lane turn that ran and failed (guide, state)."""
        self.discard(id)
        if self._failed is None:
            self._failed = LRUCache(256)
        self._failed[id] = None

    def has_failed(self, id: str) -> bool:  # noqa: A002
        """Whether the id was evicted by a failed turn on this connection."""
        return self._failed is not None and id in self._failed
