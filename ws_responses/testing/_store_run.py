"""Sequences of operations on a store, and on the dictionary with a clock that it must be like."""

from collections.abc import Sequence
from itertools import count
from typing import Any, Final, Protocol

from hypothesis import strategies as st

from ws_responses.errors import StoreError
from ws_responses.protocol.calls import START
from ws_responses.state.node import Record
from ws_responses.state.store import ResponseStore, StoreKey
from ws_responses.testing._store_model import StoreModel

_numbers = count()

TTL_S: Final = 1000.0
"""Time to live in the tests: long beside what they take."""

_NAMES: Final = tuple(f"resp_{number}" for number in range(6))

Operation = tuple[str, str, str, str | None, float]
"""What, the tenant, the id, the parent's id, and the seconds to live or to wait."""

OPERATIONS: Final[st.SearchStrategy[list[Operation]]] = st.lists(
    st.tuples(
        st.sampled_from(["append"] * 5 + ["base", "load", "delete", "wait"]),
        st.sampled_from(["one", "two"]),
        st.sampled_from(_NAMES),
        st.one_of(st.none(), st.sampled_from(_NAMES), st.just("newest"), st.just("newest")),
        st.sampled_from([300.0, 1000.0, 1000.0, 4000.0]),
    ),
    max_size=40,
)


class StoreClock(Protocol):
    """The time that a store looks at, moved by the test. ``FakeClock`` is one."""

    async def advance(self, seconds: float) -> None:
        """Move on."""


def make_record(
    name: str, parent: str | None = None, *, base: bool = False, items: bytes = b"{}", store: bool = True
) -> Record:
    """Return a record as a turn makes one.

    Args:
        name: Its id.
        parent: The id that it continues.
        base: It joins nothing older.
        items: Its encoded items, joined by commas.
        store: As its create said.
    """
    return Record(
        id=name,
        parent_id=parent,
        model="m",
        store=store,
        items=items,
        output_at=len(items),
        history_at=0,
        base=base,
        calls=START,
        generated=True,
        status="completed",
    )


class Shelf:
    """A tenant's part of a store, in short words.

    Args:
        store: The store.
        tenant: A name; a new one for each test.
    """

    def __init__(self, store: ResponseStore, tenant: str | None = None) -> None:
        self.store = store
        self.tenant = tenant or f"tenant-{next(_numbers)}"

    def key(self, name: str) -> StoreKey:
        """Return the key of an id."""
        return StoreKey(self.tenant, name)

    async def append(
        self, name: str, parent: str | None = None, *, ttl_s: float = TTL_S, base: bool = False, items: bytes = b"{}"
    ) -> Record:
        """Store a record and return it."""
        record = make_record(name, parent, base=base, items=items)
        await self.store.append(self.key(name), record, None if parent is None else self.key(parent), ttl_s)
        return record

    async def load(self, name: str) -> list[str]:
        """Return the ids of a chain."""
        return [record.id for record in await self.store.load(self.key(name))]

    async def delete(self, name: str) -> None:
        """Hide an id."""
        await self.store.delete(self.key(name))

    async def chain(self, *names: str, **options: Any) -> None:
        """Store a chain of these ids."""
        for parent, name in zip((None, *names), names, strict=False):
            await self.append(name, parent, **options)


async def run(store: ResponseStore, clock: StoreClock | None, slack_s: float, operations: Sequence[Operation]) -> None:
    """Do one operation after the other, and compare the store with the model."""
    one = _Run(store, clock, slack_s)
    for operation in operations:
        await one.do(*operation)
    await one.check_all()


class _Run:
    """One sequence of operations on a store and on the model."""

    def __init__(self, store: ResponseStore, clock: StoreClock | None, slack_s: float) -> None:
        self._clock = clock
        self._now = 0.0
        self._model = StoreModel(slack_s)
        self._shelves = {name: Shelf(store) for name in ("one", "two")}
        self._newest: dict[str, str | None] = dict.fromkeys(self._shelves)
        self._made = 0

    async def do(self, operation: str, tenant: str, name: str, parent: str | None, seconds: float) -> None:
        """Do one operation, and compare."""
        shelf = self._shelves[tenant]
        if operation == "wait":
            if self._clock is not None:
                await self._clock.advance(seconds)
                self._now += seconds
        elif operation == "load":
            await self._check(shelf, name)
        elif operation == "delete":
            await shelf.delete(name)
            self._model.gone(shelf.key(name))
        else:
            await self._append(shelf, tenant, name, parent, seconds, base=operation == "base")

    async def _append(
        self, shelf: Shelf, tenant: str, name: str, parent: str | None, ttl_s: float, *, base: bool
    ) -> None:
        if parent == "newest":
            parent = self._newest[tenant]
        above = None if parent is None else shelf.key(parent)
        self._made += 1
        record = make_record(name, parent, base=base, items=b"%d" % self._made)
        try:
            await shelf.store.append(shelf.key(name), record, above, ttl_s)
        except StoreError:
            assert above is not None, "a record without a parent can always be stored"
            assert not base, "a new base needs no parent"
            assert not self._model.must_have(above, self._now), "the parent must be there"
            self._model.gone(above)
            return
        assert above is None or base or self._model.may_have(above, self._now), "the parent must not be there"
        self._model.appended(shelf.key(name), record, above, self._now + ttl_s)
        self._newest[tenant] = name

    async def _check(self, shelf: Shelf, name: str) -> None:
        key = shelf.key(name)
        loaded = list(await shelf.store.load(key))
        if loaded:
            assert self._model.may_have(key, self._now), "it must not be there"
            assert loaded == self._model.chain(key)
        else:
            assert not self._model.must_have(key, self._now), "it must be there"
            self._model.gone(key)

    async def check_all(self) -> None:
        """Compare all ids of all tenants."""
        for shelf in self._shelves.values():
            for name in _NAMES:
                await self._check(shelf, name)
