"""Values that come with every turn and rarely change: kept once per connection, decoded once."""

from typing import Any

import msgspec
from cachetools import LRUCache

from ws_responses.state.budget import Budget


class Interned:
    """One distinct value: its bytes and, on demand, what they decode to."""

    __slots__ = ("_budgets", "_decoded", "raw")

    def __init__(self, raw: bytes, budgets: tuple[Budget, ...]) -> None:
        self.raw = raw
        self._budgets = budgets
        self._decoded: Any = None
        for budget in budgets:
            budget.used += len(raw)

    def __del__(self) -> None:
        for budget in self._budgets:
            budget.used -= len(self.raw)

    @property
    def value(self) -> Any:
        """The decoded value; decoded at the first use and shared: do not change it."""
        if self._decoded is None:
            self._decoded = msgspec.json.decode(self.raw)
        return self._decoded


class Interner:
    """Recently used values of one kind, found by their length and compared by their bytes.

    A look-up costs one copy and one comparison; hashing 20 kB of tools would cost ten times that.

    Args:
        budgets: Who pays for the bytes.
        size: Distinct values remembered; a value in use by a node lives on when it is forgotten here.
    """

    def __init__(self, budgets: tuple[Budget, ...], size: int = 4) -> None:
        self._budgets = budgets
        self._values: LRUCache[int, Interned] = LRUCache(size)
        self.hits = 0

    def intern(self, raw: bytes) -> Interned | None:
        """Return the shared value equal to ``raw``; None if a budget has no room for it."""
        known = self._values.get(len(raw))
        if known is not None and known.raw == raw:
            self.hits += 1
            return known
        if not all(budget.has_room(len(raw)) for budget in self._budgets):
            return None
        value = self._values[len(raw)] = Interned(raw, self._budgets)
        return value
