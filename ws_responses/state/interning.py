"""Values that come with every turn and rarely change: kept once per connection, as long as it uses them, and decoded once."""

from collections.abc import Callable
from sys import getsizeof
from typing import Any, Final, TypeVar
from weakref import ref

import msgspec

from ws_responses.state.budget import Budget

T = TypeVar("T")

INTERNED_BYTES: Final = 256
"""Charged for a value beside its bytes: the object, the header of the bytes and the reference that finds it."""

Reserve = Callable[[int], tuple[Budget, ...] | None]
"""Charges a number of bytes, after evicting what is in the way; None if there is no room."""


class Interned:
    """One distinct value: its bytes and, on demand, what they decode to."""

    __slots__ = ("__weakref__", "_budgets", "_decoded", "_derived", "_size", "raw")

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
    """Recently used values of one connection, found by their bytes. Nodes and running turns hold them; this only knows them.

    Bytes of another length differ at once, others mostly at their beginning: a look-up costs one copy and one comparison;
    hashing 20 kB of tools would cost ten times that.

    Args:
        reserve: Charges the bytes to who pays for them.
        size: Distinct values remembered: tools and instructions of 32 lanes. One that is in use lives on when it is forgotten
            here.
    """

    __slots__ = ("_reserve", "_size", "_values", "hits")

    def __init__(self, reserve: Reserve, size: int = 64) -> None:
        self._reserve = reserve
        self._size = size
        self._values: list[ref[Interned]] = []
        self.hits = 0

    def intern(self, raw: bytes) -> Interned | None:
        """Return the shared value equal to ``raw``; None if the budgets have no room for it."""
        return self._known(raw) or self._add(Interned(raw))

    def adopt(self, value: Interned) -> Interned | None:
        """Share a value that was kept alone; return it or its equal, None if the budgets have no room for it."""
        return self._known(value.raw) or self._add(value)

    def _known(self, raw: bytes) -> Interned | None:
        values = self._values
        for place, reference in enumerate(values):
            value = reference()
            if value is not None and value.raw == raw:
                values.insert(0, values.pop(place))  # the latest first
                self.hits += 1
                return value
        return None

    def _add(self, value: Interned) -> Interned | None:
        if not value.charge(self._reserve):
            return None
        alive = [reference for reference in self._values if reference() is not None]
        self._values = [ref(value), *alive[: self._size - 1]]
        return value

    def clear(self) -> None:
        """Forget all values; what a node uses lives on with it."""
        self._values = []
