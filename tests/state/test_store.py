"""The in-process store beside a dictionary with a clock."""

import gc
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.state.drive import charged, drive
from ws_responses.errors import StoreError
from ws_responses.state.budget import Ledger
from ws_responses.state.cache import LeafCache
from ws_responses.state.node import Record
from ws_responses.state.store import InProcessStore, StoreKey
from ws_responses.testing.store_conformance import make_record

BIG = 1 << 40
TENANTS = st.sampled_from(["one", "two"])
NAMES = st.sampled_from([f"r{number}" for number in range(8)])


@dataclass(eq=False)
class Entry:
    """What the model keeps of a record: what it loads as, and its branch."""

    key: StoreKey
    loads: list[Record]
    branch: "Branch"


@dataclass(eq=False)
class Branch:
    expires_at: float
    origin: "Branch | None"


class StoreMachine(RuleBasedStateMachine):
    """Rules of the model: a branch's newest record is continued by its child, any other is forked; each append gives the
    branch, and those that it forks, at least its time to live; a load gives all that came before, back to a new base.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(BIG, BIG)
        self.store = InProcessStore(self.ledger, lambda: self.now)
        self.entries: dict[StoreKey, Entry] = {}
        self.made = 0

    def expire(self) -> None:
        self.entries = {key: each for key, each in self.entries.items() if each.branch.expires_at > self.now}

    @rule(
        tenant=TENANTS,
        name=NAMES,
        parent=st.one_of(NAMES, st.none()),
        base=st.sampled_from([False, False, False, True]),
        ttl=st.sampled_from([10.0, 10.0, 3.0, 100.0]),
    )
    def append(self, tenant: str, name: str, parent: str | None, base: bool, ttl: float) -> None:
        self.expire()
        key = StoreKey(tenant, name)
        above = None if parent is None else StoreKey(tenant, parent)
        self.made += 1
        record = make_record(name, parent, base=base, items=b"%d" % self.made)
        below = self.entries.get(above) if above is not None else None
        if below is None and above is not None and not base:
            with pytest.raises(StoreError):
                drive(self.store.append(key, record, above, ttl))
            return
        drive(self.store.append(key, record, above, ttl))
        branch = Branch(0.0, None)
        if below is not None:
            siblings = [each for each in self.entries.values() if each.branch is below.branch]
            branch = below.branch if siblings[-1] is below else Branch(0.0, below.branch)
        at: Branch | None = branch
        while at is not None:
            at.expires_at = max(at.expires_at, self.now + ttl)
            at = at.origin
        before = [] if below is None or base else below.loads
        self.entries.pop(key, None)
        self.entries[key] = Entry(key, [*before, record], branch)

    @rule(tenant=TENANTS, name=NAMES)
    def delete(self, tenant: str, name: str) -> None:
        drive(self.store.delete(StoreKey(tenant, name)))
        self.entries.pop(StoreKey(tenant, name), None)

    @rule(seconds=st.sampled_from([0.0, 1.0, 2.5, 3.0, 7.0, 10.0, 95.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.entries)
    @rule()
    def close(self) -> None:
        if self.now > 50:
            drive(self.store.aclose())
            self.entries.clear()

    @invariant()
    def each_key_loads_what_the_model_says(self) -> None:
        self.expire()
        for tenant in ("one", "two", "never"):
            for number in range(8):
                key = StoreKey(tenant, f"r{number}")
                entry = self.entries.get(key)
                loaded = drive(self.store.load(key))
                assert [record.items for record in loaded] == [
                    record.items for record in (entry.loads if entry else [])
                ]
                assert all(mine is theirs for mine, theirs in zip(loaded, entry.loads if entry else [], strict=True))

    @invariant()
    def it_holds_no_more(self) -> None:
        assert len(self.store) == len(self.entries)
        assert set(self.store._shelves) == {key.tenant for key in self.entries}
        assert self.ledger.tenants == len({key.tenant for key in self.entries})


TestStore = StoreMachine.TestCase
TestStore.settings = settings(max_examples=120, stateful_step_count=30, deadline=None)


class Fixture:
    """A store with a clock, budgets, and short words for what tests do."""

    def __init__(self, *, process: int = BIG, tenant: int = BIG) -> None:
        self.now = 0.0
        self.ledger = Ledger(process, tenant)
        self.store = InProcessStore(self.ledger, lambda: self.now)

    def append(
        self,
        name: str,
        parent: str | None = None,
        *,
        tenant: str = "t",
        ttl: float = 100.0,
        size: int = 1,
        base: bool = False,
    ) -> None:
        account = self.ledger.account(tenant)
        budgets = self.ledger.reserve(size, None, LeafCache(self.ledger), account)
        assert budgets is not None
        record = charged(make_record(name, parent, base=base), size, budgets)
        above = None if parent is None else StoreKey(tenant, parent)
        drive(self.store.append(StoreKey(tenant, name), record, above, ttl))

    def load(self, name: str, tenant: str = "t") -> list[str]:
        return [record.id for record in drive(self.store.load(StoreKey(tenant, name)))]

    def delete(self, name: str, tenant: str = "t") -> None:
        drive(self.store.delete(StoreKey(tenant, name)))

    @property
    def used(self) -> int:
        return self.ledger.process.used


@pytest.fixture
def kept() -> Fixture:
    return Fixture()


def test_a_chain_loads_from_its_root(kept: Fixture) -> None:
    """The app is given all of it, in order."""
    for name, parent in (("a", None), ("b", "a"), ("c", "b")):
        kept.append(name, parent)
    assert kept.load("c") == ["a", "b", "c"]
    assert kept.load("a") == ["a"]
    assert kept.load("x") == []


def test_tenants_never_cross(kept: Fixture) -> None:
    """B007: the id of another tenant is as unknown as a random one, also as a parent and for a delete."""
    kept.append("a", tenant="mine")
    assert kept.load("a", tenant="yours") == []
    with pytest.raises(StoreError):
        kept.append("b", "a", tenant="yours")
    kept.delete("a", tenant="yours")
    assert kept.load("a", tenant="mine") == ["a"]
    kept.append("a", tenant="yours")
    kept.delete("a", tenant="yours")
    assert kept.load("a", tenant="mine") == ["a"]


def test_an_append_extends_its_whole_branch(kept: Fixture) -> None:
    """An hour after its first turn a chain that is in use must not lose its beginning."""
    kept.append("a", ttl=10)
    kept.now = 9
    kept.append("b", "a", ttl=10)
    kept.now = 18.9
    assert kept.load("b") == ["a", "b"]
    assert kept.load("a") == ["a"]
    kept.now = 19
    assert kept.load("b") == kept.load("a") == []
    assert kept.used == 0


def test_a_fork_keeps_its_origin_but_not_the_other_way_round(kept: Fixture) -> None:
    """A fork without its beginning could not be loaded; an origin whose fork has ended needs nothing of it."""
    kept.append("a", ttl=10)
    kept.append("b", "a", ttl=10)
    kept.append("fork", "a", ttl=5)
    kept.now = 5
    assert kept.load("fork") == []
    assert kept.load("b") == ["a", "b"]
    kept.append("late", "a", ttl=100)
    kept.now = 50
    assert kept.load("late") == ["a", "late"]


def test_a_short_life_ends_before_a_long_one_that_began_earlier(kept: Fixture) -> None:
    """The time to live is each append's own."""
    kept.append("long", ttl=1000)
    kept.append("short", ttl=1)
    kept.now = 1
    assert kept.load("short") == []
    assert len(kept.store) == 1


def test_a_shorter_append_shortens_nothing(kept: Fixture) -> None:
    """Extending is all that it may do."""
    kept.append("a", ttl=100)
    kept.append("b", "a", ttl=1)
    kept.now = 99
    assert kept.load("b") == ["a", "b"]


def test_clocks_may_start_anywhere() -> None:
    """A monotonic clock may be negative; what is stored then must expire too."""
    kept = Fixture()
    kept.now = -1000.0
    kept.append("a", ttl=10)
    assert kept.load("a") == ["a"]
    kept.now = -990.0
    assert kept.load("a") == []
    assert kept.used == 0


def test_a_deleted_id_is_hidden_and_its_descendants_stay(kept: Fixture) -> None:
    """OpenAI's delete is about the id; the conversation that went on from it is another response."""
    for name, parent in (("a", None), ("b", "a"), ("c", "b")):
        kept.append(name, parent, size=10)
    kept.delete("b")
    assert kept.load("b") == []
    assert kept.load("c") == ["a", "b", "c"]
    assert kept.used == 30
    kept.delete("c")
    assert kept.used == 10
    kept.delete("c")


@pytest.mark.parametrize("how", ["deleted", "expired", "never there"])
def test_nothing_is_stored_below_what_is_gone(kept: Fixture, how: str) -> None:
    """It would load as if the conversation began with it: a wrong answer instead of an error that clients know."""
    if how != "never there":
        kept.append("a", ttl=10)
    if how == "deleted":
        kept.delete("a")
    kept.now = 20
    with pytest.raises(StoreError):
        kept.append("b", "a")
    assert kept.load("b") == []
    assert kept.used == 0
    assert kept.ledger.tenants == 0


def test_a_new_base_needs_no_parent_and_keeps_none(kept: Fixture) -> None:
    """Nothing older is joined, so that nothing older must stay in memory."""
    kept.append("a", size=10)
    kept.append("b", "a", base=True, size=10)
    kept.append("c", "b", size=10)
    assert kept.load("c") == ["b", "c"]
    kept.delete("a")
    assert kept.used == 20
    kept.append("d", "never there", base=True)
    assert kept.load("d") == ["d"]


def test_a_record_that_replaces_another_has_its_own_time(kept: Fixture) -> None:
    """Some apps give each process the same ids; the second one must not expire with the first."""
    kept.append("a", ttl=10)
    kept.now = 9
    kept.append("a", ttl=10)
    kept.now = 15
    assert kept.load("a") == ["a"]


def test_budgets_evict_the_oldest_leaf_whatever_chain() -> None:
    """The tenant pays for its own; the root of a chain goes last."""
    kept = Fixture(tenant=40)
    for name, parent in (("a", None), ("b", "a"), ("x", None), ("y", "x")):
        kept.append(name, parent, size=10)
    kept.load("b")
    kept.append("z", size=10)
    assert kept.load("y") == []
    assert kept.load("b") == ["a", "b"]
    assert kept.load("x") == ["x"]
    assert kept.used == 40
    kept.append("big", size=40)
    assert len(kept.store) == 1
    assert kept.ledger.evictions == 5


def test_a_tenant_whose_last_record_is_evicted_is_forgotten() -> None:
    """Tenants come and go by the thousand; each must leave nothing."""
    kept = Fixture(process=10)
    kept.append("a", tenant="one", size=10)
    kept.append("a", tenant="two", size=10)
    assert kept.ledger.tenants == 1
    assert list(kept.store._shelves) == ["two"]


def test_the_branch_goes_on_below_what_is_left_of_it(kept: Fixture) -> None:
    """After the newest was deleted the one before it is the newest."""
    kept.append("a", ttl=10)
    kept.append("b", "a", ttl=10)
    kept.delete("b")
    kept.now = 5
    kept.append("c", "a", ttl=10)
    kept.now = 14
    assert kept.load("c") == ["a", "c"]
    kept.now = 15
    assert kept.load("c") == kept.load("a") == []
    assert len(kept.store) == 0


def test_what_was_evicted_leaves_nothing_behind() -> None:
    """A tenant that stores more than fits must not grow the store's own lists until all of it would have expired."""
    kept = Fixture(tenant=10)
    for number in range(5000):
        kept.append(str(number), size=10)
    assert len(kept.store._deadlines) < 300


def test_a_long_chain_is_freed_without_recursion() -> None:
    """As for nodes: by recursion it would overflow the stack."""
    kept = Fixture()
    kept.append("0")
    for number in range(1, 100_000):
        kept.append(str(number), str(number - 1))
    assert len(kept.load("99999")) == 100_000
    kept.now = 1000.0
    kept.store.expire()
    gc.collect()
    assert kept.used == 0
    assert kept.ledger.tenants == 0


def test_forks_of_forks_are_freed_without_recursion() -> None:
    """Each fork is a branch that knows its origin."""
    kept = Fixture()
    kept.append("0")
    for number in range(1, 3000):
        kept.append(f"other {number}", str(number - 1))
        kept.append(str(number), str(number - 1))
    kept.now = 1000.0
    kept.store.expire()
    assert kept.used == 0
    assert not kept.store._deadlines


def test_closing_gives_everything_back(kept: Fixture) -> None:
    """``aclose`` is what the user's lifespan calls."""
    kept.append("a")
    kept.append("a", tenant="other")
    drive(kept.store.aclose())
    assert (kept.used, kept.ledger.tenants, len(kept.store)) == (0, 0, 0)
    kept.append("b")
    assert kept.load("b") == ["b"]
