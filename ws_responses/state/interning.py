"""Values that come with every turn and rarely change: kept once per connection, decoded once."""

from collections.abc import Callable
from sys import getsizeof
from typing import Any, Final, TypeVar

import msgspec
from cachetools import LRUCache

from ws_responses.state.budget import Budget

T = TypeVar("T")

INTERNED_BYTES: Final = 256
"""Charged for a value beside its bytes: the object, the header of the bytes and the entry that finds it."""

Reserve = Callable[[int], tuple[Budget, ...] | None]
"""Charges a number of bytes, after evicting what is in the way; None if there is no room."""


class Interned:
    """One distinct value: its bytes and, on demand, what they decode to."""

    __slots__ = ("_budgets", "_decoded", "_derived", "_size", "raw")

    def __init__(self, raw: bytes, budgets: tuple[Budget, ...] = ()) -> None:
        self.raw = raw
        self._budgets = budgets
        self._size = len(raw) + INTERNED_BYTES
        self._decoded: Any = None
        self._derived: dict[str, Any] | None = None

    def __del__(self) -> None:
        for budget in self._budgets:
            budget.used -= self._size

    def charge(self, reserve: Reserve) -> bool:
        """Charge a value that nobody was charged for; return whether the budgets have room for it."""
        budgets = reserve(self._size)
        if budgets is None:
            return False
        self._budgets = budgets
        return True

    @property
    def value(self) -> Any:
        """The decoded value; decoded at the first use and shared, if the budgets have room for it: do not change it."""
        if self._decoded is not None:
            return self._decoded
        decoded = msgspec.json.decode(self.raw)
        size = _memory(decoded)
        if all(budget.has_room(size) for budget in self._budgets):
            for budget in self._budgets:
                budget.used += size
            self._size += size
            self._decoded = decoded
        return decoded

    def derived(self, name: str, make: Callable[["Interned"], tuple[T, int]]) -> T:
        """Return what is made of this value; made at the first use and kept, if the budgets have room for it.

        Args:
            name: Names what is made.
            make: Makes it; returns it and the bytes that it takes.
        """
        known = self._derived
        if known is not None and name in known:
            made: T = known[name]
            return made
        made, size = make(self)
        if all(budget.has_room(size) for budget in self._budgets):
            for budget in self._budgets:
                budget.used += size
            self._size += size
            if self._derived is None:
                self._derived = {}
            self._derived[name] = made
        return made


def _memory(decoded: Any) -> int:
    """Return the bytes that a decoded value takes: five to twenty times those of its encoded form."""
    size = 0
    rest = [decoded]
    while rest:
        value = rest.pop()
        size += getsizeof(value)
        if type(value) is list:
            rest += value
        elif type(value) is dict:
            rest += value
            rest += value.values()
    return size


class Interner:
    """Recently used values of one kind, found by their length and compared by their bytes.

    A look-up costs one copy and one comparison; hashing 20 kB of tools would cost ten times that.

    Args:
        reserve: Charges the bytes to who pays for them.
        size: Distinct values remembered; a value in use by a node lives on when it is forgotten here.
    """

    __slots__ = ("_reserve", "_size", "_values", "hits")

    def __init__(self, reserve: Reserve, size: int = 4) -> None:
        self._reserve = reserve
        self._size = size
        self._values: LRUCache[int, Interned] | None = None
        self.hits = 0

    def intern(self, raw: bytes) -> Interned | None:
        """Return the shared value equal to ``raw``; None if the budgets have no room for it."""
        return self._known(raw) or self._add(Interned(raw))

    def adopt(self, value: Interned) -> Interned | None:
        """Share a value that was kept alone; return it or its equal, None if the budgets have no room for it."""
        return self._known(value.raw) or self._add(value)

    def _known(self, raw: bytes) -> Interned | None:
        known = self._values.get(len(raw)) if self._values is not None else None
        if known is None or known.raw != raw:
            return None
        self.hits += 1
        return known

    def _add(self, value: Interned) -> Interned | None:
        if not value.charge(self._reserve):
            return None
        if self._values is None:
            self._values = LRUCache(self._size)
        self._values[len(value.raw)] = value
        return value

    def clear(self) -> None:
        """Forget all values; what a node uses lives on with it."""
        self._values = None
