"""What is dropped first, beside a model that looks at all values each time."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ws_responses.state.budget import Ledger
from ws_responses.state.cache import ConnectionCache, LeafCache

IDS = st.sampled_from([f"r{number}" for number in range(7)])


class CacheMachine(RuleBasedStateMachine):
    """The naive rule: of those that are no one's parent here and not pinned, the one whose last use is longest ago."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: LeafCache[str] = LeafCache(Ledger(0, 0))
        self.parents: dict[str, str | None] = {}
        self.values: dict[str, str] = {}
        self.used: dict[str, int] = {}
        self.pins: list[str] = []
        self.uses = 0

    def use(self, name: str) -> None:
        self.uses += 1
        self.used[name] = self.uses

    def forget(self, name: str) -> None:
        del self.parents[name], self.values[name], self.used[name]

    def leaves(self) -> list[str]:
        free = set(self.parents) - {parent for parent in self.parents.values() if parent} - set(self.pins)
        return sorted(free, key=self.used.__getitem__)

    @rule(name=IDS, parent=st.one_of(st.none(), IDS))
    def put(self, name: str, parent: str | None) -> None:
        if name in self.parents:
            self.forget(name)
        self.parents[name] = None if parent == name else parent
        self.use(name)
        self.values[name] = f"value {self.uses}"
        self.cache.put(name, parent, self.values[name])

    @rule(name=IDS)
    def get(self, name: str) -> None:
        assert self.cache.get(name) == self.values.get(name)
        if name in self.parents:
            self.use(name)

    @rule(name=IDS)
    def discard(self, name: str) -> None:
        assert self.cache.discard(name) == self.values.get(name)
        if name in self.parents:
            self.forget(name)

    @rule(name=IDS)
    def pin(self, name: str) -> None:
        self.pins.append(name)
        self.cache.pin(name)

    @precondition(lambda self: self.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.pins))
        self.pins.remove(name)
        self.cache.unpin(name)

    @rule()
    def evict(self) -> None:
        leaves = self.leaves()
        self.cache.evict()
        if leaves:
            self.forget(leaves[0])

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        assert len(self.cache) == len(self.parents)
        assert self.cache.ids() == list(self.parents)
        for name in ("r0", "r3", "r6"):
            assert (name in self.cache) == (name in self.parents)

    @invariant()
    def the_next_to_go_is_the_least_recently_used_leaf(self) -> None:
        leaves = self.leaves()
        # Both count uses from 1, so that the numbers are the same.
        assert self.cache.oldest() == (self.used[leaves[0]] if leaves else None)

    def teardown(self) -> None:
        """Taken apart to the end, in the right order."""
        for name in self.pins:
            self.cache.unpin(name)
        self.pins.clear()
        while leaves := self.leaves():
            self.evict()
            assert leaves[0] not in self.cache


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


def cache_of(*ids: str) -> LeafCache[str]:
    cache: LeafCache[str] = LeafCache(Ledger(0, 0))
    for name in ids:
        cache.put(name, None, name)
    return cache


def evicted(cache: LeafCache[str]) -> list[str]:
    """Everything, in the order in which it goes."""
    order = []
    while cache.oldest() is not None:
        before = cache.ids()
        cache.evict()
        order += [name for name in before if name not in cache]
    return order


def test_what_was_pinned_by_a_running_turn_counts_as_used_when_it_was() -> None:
    """An aborted turn's parent is what the client goes on from; it must not be the first to go."""
    cache = cache_of("old", "parent", "other")
    cache.get("parent")
    cache.pin("parent")
    cache.unpin("parent")
    assert evicted(cache) == ["old", "other", "parent"]


def test_a_use_while_it_was_pinned_counts() -> None:
    """A fork's parent that another turn used meanwhile must not go by its older use."""
    cache = cache_of("a", "b", "c")
    cache.pin("b")
    cache.unpin("b")
    cache.pin("b")
    cache.get("b")
    cache.put("d", None, "d")
    cache.unpin("b")
    assert evicted(cache) == ["a", "c", "b", "d"]


def test_a_parent_that_comes_back_below_its_children_is_no_leaf() -> None:
    """A failed turn evicts a parent, and the store brings it back; dropping it then would free nothing."""
    cache = cache_of("a")
    cache.put("b", "a", "b")
    cache.discard("a")
    cache.put("a", None, "a")
    assert evicted(cache) == ["b", "a"]


def test_a_value_that_replaces_another_keeps_its_children() -> None:
    """Otherwise a count goes below zero, and the name can never be evicted again."""
    cache = cache_of("a")
    cache.put("b", "a", "b")
    cache.put("a", None, "new")
    cache.discard("b")
    cache.pin("a")
    cache.unpin("a")
    assert evicted(cache) == ["a"]


def test_clearing_forgets_pins_too() -> None:
    """A connection that has ended is told about turns that end after it."""
    cache = cache_of("a")
    cache.pin("a")
    cache.clear()
    assert (len(cache), cache.oldest(), cache.ids()) == (0, None, [])
    cache.unpin("a")
    cache.put("a", None, "a")
    assert evicted(cache) == ["a"]


def test_values_that_come_and_go_leave_nothing_behind() -> None:
    """The cache's own lists are no leak: a store sees millions of ids that expire before they are evicted."""
    cache = cache_of("a", "b", "c")
    for number in range(10_000):
        cache.put(str(number), "b", "")
        cache.get(str(number))
        cache.pin("b")
        cache.discard(str(number))
        cache.unpin("b")
    assert len(cache._late) < 200
    assert not cache._absent
    assert evicted(cache) == ["a", "b", "c"]


def test_ids_that_are_gone_leave_nothing_behind() -> None:
    """Pins and children of an name that is not here are forgotten with the last of them."""
    cache = cache_of()
    for number in range(100):
        cache.put(f"child {number}", f"never here {number}", "")
        cache.pin(f"child {number}")
        cache.discard(f"child {number}")
        cache.unpin(f"child {number}")
    assert not cache._absent


@pytest.mark.parametrize("size", [1_000, 20_000])
def test_long_chains_cost_no_more_per_node(size: int) -> None:
    """Each use of the next leaf is a look at the heap's top, not a walk along the chain."""
    cache = cache_of("0")
    for number in range(1, size):
        cache.put(str(number), str(number - 1), "")
    assert evicted_count(cache) == size


def evicted_count(cache: LeafCache[str]) -> int:
    count = 0
    while cache.oldest() is not None:
        cache.evict()
        count += 1
    return count


def test_failed_ids_are_remembered_but_not_without_end() -> None:
    """In history mode "forward" an name that failed here must not be passed to the app as one that it may know."""
    cache = ConnectionCache(Ledger(0, 0))
    for number in range(1000):
        cache.fail(str(number))
    assert cache.has_failed("999")
    assert not cache.has_failed("0")
    assert not cache.has_failed("never")
