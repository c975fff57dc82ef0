"""What a store must answer: a dictionary with a clock, as loose as the contract is."""

from msgspec import Struct

from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey

__all__ = ["StoreModel"]


class _Tree:
    """A conversation with all its forks: none of it lives longer than all of it."""

    def __init__(self) -> None:
        self.latest = float("-inf")


class _Entry(Struct, eq=False):
    """A record under its id.

    Attributes:
        chain: Entries from the root or the newest base on, this one included: what it loads as.
        tree: Its conversation.
        until: It must be there before this time.
    """

    record: Record
    chain: list["_Entry"]
    tree: _Tree
    until: float


class StoreModel:
    """Says what may come of an operation, and is told what came.

    Args:
        slack_s: How far the store's clock may be from the model's.
    """

    def __init__(self, slack_s: float) -> None:
        self._slack_s = slack_s
        self._entries: dict[StoreKey, _Entry] = {}

    def must_have(self, key: StoreKey, now: float) -> bool:
        """Whether an id must be there."""
        entry = self._entries.get(key)
        return entry is not None and now < entry.until - self._slack_s

    def may_have(self, key: StoreKey, now: float) -> bool:
        """Whether an id may be there: between its own end and that of its conversation that is left to the store."""
        entry = self._entries.get(key)
        return entry is not None and now < entry.tree.latest + self._slack_s

    def chain(self, key: StoreKey) -> list[Record]:
        """Return what an id loads as, if it is there."""
        return [entry.record for entry in self._entries[key].chain]

    def appended(self, key: StoreKey, record: Record, parent: StoreKey | None, until: float) -> None:
        """Note that a record was stored."""
        above = None if parent is None else self._entries.get(parent)
        tree = _Tree() if above is None else above.tree
        chain = [] if above is None or record.base else above.chain
        entry = _Entry(record, [], tree, until)
        entry.chain = [*chain, entry]
        for each in entry.chain:
            each.until = max(each.until, until)
        tree.latest = max(tree.latest, until)
        self._entries[key] = entry

    def gone(self, key: StoreKey) -> None:
        """Note that an id was deleted, or was found to have expired."""
        self._entries.pop(key, None)
