"""Nodes by id, with the rule of what goes first: the least recently used leaf."""

from collections import OrderedDict
from typing import Generic, TypeVar

from cachetools import LRUCache

from ws_responses.state.budget import Ledger
from ws_responses.state.node import ResponseNode

V = TypeVar("V")


class _Entry(Generic[V]):
    __slots__ = ("children", "parent_id", "pins", "used", "value")

    def __init__(self, value: V, parent_id: str | None, used: int) -> None:
        self.value = value
        self.parent_id = parent_id
        self.children = 0
        self.pins = 0
        self.used = used


class LeafCache(Generic[V]):
    """Values linked to parents. Dropping one that has children would free nothing, so only leaves are evicted.

    A pinned value is no candidate. What is dropped lives on for whoever still holds it; only its id is forgotten.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._entries: dict[str, _Entry[V]] = {}
        self._leaves: OrderedDict[str, None] = OrderedDict()

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
        self._entries[id] = _Entry(value, parent_id, self._ledger.use())
        self._leaves[id] = None
        parent = self._entries.get(parent_id) if parent_id is not None else None
        if parent is not None:
            parent.children += 1
            self._leaves.pop(parent_id, None)  # type: ignore[arg-type] # not None here

    def get(self, id: str) -> V | None:  # noqa: A002
        """Return a value, which counts as a use."""
        entry = self._entries.get(id)
        if entry is None:
            return None
        entry.used = self._ledger.use()
        if id in self._leaves:
            self._leaves.move_to_end(id)
        return entry.value

    def discard(self, id: str) -> V | None:  # noqa: A002
        """Forget an id and return its value; descendants stay."""
        entry = self._entries.pop(id, None)
        if entry is None:
            return None
        self._leaves.pop(id, None)
        parent = self._entries.get(entry.parent_id) if entry.parent_id is not None else None
        if parent is not None and entry.parent_id is not None:
            parent.children -= 1
            self._restore(entry.parent_id, parent)
        return entry.value

    def pin(self, id: str) -> None:  # noqa: A002
        """Keep an id from being evicted, until it is unpinned as often."""
        entry = self._entries.get(id)
        if entry is not None:
            entry.pins += 1
            self._leaves.pop(id, None)

    def unpin(self, id: str) -> None:  # noqa: A002
        """Take one pin back; unknown ids are no error, since a failed turn may have evicted them."""
        entry = self._entries.get(id)
        if entry is not None and entry.pins:
            entry.pins -= 1
            self._restore(id, entry)

    def oldest(self) -> int | None:
        """Return the use number of the next leaf to go."""
        for id in self._leaves:  # noqa: A001
            return self._entries[id].used
        return None

    def evict(self) -> None:
        """Drop the next leaf."""
        self.discard(next(iter(self._leaves)))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._leaves.clear()

    def _restore(self, id: str, entry: _Entry[V]) -> None:  # noqa: A002
        if not entry.children and not entry.pins and id not in self._leaves:
            self._leaves[id] = None
            # It was used before most leaves were; the front is where the next look goes.
            self._leaves.move_to_end(id, last=False)


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
