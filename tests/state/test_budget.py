"""Charged bytes are reachable bytes, and never more than the budgets allow: over connections, tenants, forks and store."""

import gc
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.state.drive import charged, drive
from ws_responses.errors import StoreError
from ws_responses.protocol.calls import START, CallState, OpenCall
from ws_responses.state.budget import Budget, Ledger
from ws_responses.state.cache import ConnectionCache, LeafCache
from ws_responses.state.interning import INTERNED_BYTES, Interned, Interner
from ws_responses.state.node import Record, ResponseNode, Sampled, record_bytes
from ws_responses.state.store import InProcessStore, StoreKey
from ws_responses.testing.store_conformance import make_record

T = TypeVar("T")
BIG = 1 << 40


@dataclass(eq=False)
class Connection:
    """The parts of a connection that hold memory, put together as the shell does."""

    ledger: Ledger
    tenant: str
    limit: int

    def __post_init__(self) -> None:
        self.account = self.ledger.account(self.tenant)
        self.cache = ConnectionCache(self.ledger)
        self.budget = Budget(self.limit)
        self.interner = Interner(partial(self.ledger.reserve, own=self.budget, cache=self.cache, tenant=self.account))
        self.account.caches.add(self.cache)

    def reserve(self, size: int, *, stored: bool) -> tuple[Budget, ...] | None:
        return self.ledger.reserve(size, None if stored else self.budget, self.cache, self.account)

    def close(self) -> None:
        self.cache.clear()
        self.interner.clear()
        self.account.caches.discard(self.cache)


@dataclass(eq=False)
class Turn:
    """A running turn: what it holds and has pinned."""

    connection: Connection
    parent: ResponseNode | None = None
    tools: Interned | None = None


@dataclass
class Held:
    """What the machine itself holds: it is the root that everything must be reachable from."""

    connections: list[Connection] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)


def pick(data: st.DataObject, values: list[T]) -> T:
    """Draw one of them. Its index is drawn: Hypothesis remembers what it drew, and would keep the value alive."""
    return values[data.draw(st.integers(0, len(values) - 1))]


class BudgetMachine(RuleBasedStateMachine):
    PROCESS = 1800
    TENANT = 1300
    CONNECTION = 900

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ledger = Ledger(self.PROCESS, self.TENANT)
        self.store = InProcessStore(self.ledger, lambda: self.now)
        self.held = Held()
        self.made = 0

    # -- what happens to connections -----------------------------------------------------------------------------------

    @rule(tenant=st.sampled_from(["one", "two"]))
    def connect(self, tenant: str) -> None:
        if len(self.held.connections) < 4:
            self.held.connections.append(Connection(self.ledger, tenant, self.CONNECTION))

    @precondition(lambda self: self.held.connections)
    @rule(data=st.data(), really=st.sampled_from([False, False, True]))
    def disconnect(self, data: st.DataObject, really: bool) -> None:
        if not really:
            return
        connection = pick(data, self.held.connections)
        self.held.connections.remove(connection)
        self.held.turns = [turn for turn in self.held.turns if turn.connection is not connection]
        connection.close()

    @precondition(lambda self: self.held.connections)
    @rule(data=st.data())
    def start(self, data: st.DataObject) -> None:
        connection = pick(data, self.held.connections)
        turn = Turn(connection)
        known = data.draw(st.sampled_from([None, *connection.cache.ids(), *connection.cache.ids()[-1:]]))
        if known is not None:
            turn.parent = connection.cache.get(known)
            connection.cache.pin(known)
        if data.draw(st.booleans()):
            turn.tools = connection.interner.intern(data.draw(st.sampled_from([b"[]", b"[1]", b"[22]"])))
            if turn.tools is not None and data.draw(st.booleans()):
                assert turn.tools.value == msgspec.json.decode(turn.tools.raw)
        self.held.turns.append(turn)

    @precondition(lambda self: self.held.turns)
    @rule(
        data=st.data(),
        size=st.sampled_from([10, 60, 150, 390, 901, 1301, 1801]),
        stored=st.booleans(),
        base=st.sampled_from([False, False, False, True]),
    )
    def complete(self, data: st.DataObject, size: int, stored: bool, base: bool) -> None:
        turn = self.end(data)
        connection, parent = turn.connection, turn.parent
        self.made += 1
        name = f"r{self.made}"
        before = self.pinned()
        budgets = connection.reserve(size, stored=stored)
        assert before <= self.resolvable(), "a pinned parent was evicted"
        if parent is not None:
            connection.cache.unpin(parent.id)
        if budgets is None:
            return
        assert size <= min(budget.limit for budget in budgets)
        record = charged(make_record(name, parent.id if parent else None, base=base, store=stored), size, budgets)
        node = ResponseNode(record, parent, tenant=connection.tenant, lane=None, tools=turn.tools)
        connection.cache.add(node)
        if stored:
            above = None if record.parent_id is None else StoreKey(connection.tenant, record.parent_id)
            try:
                drive(self.store.append(StoreKey(connection.tenant, name), record, above, 50.0))
            except StoreError:
                assert above is not None
                assert not drive(self.store.load(above))

    @precondition(lambda self: self.held.turns)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        turn = self.end(data)
        if turn.parent is not None:
            turn.connection.cache.fail(turn.parent.id)
            turn.connection.cache.unpin(turn.parent.id)

    @precondition(lambda self: self.held.turns)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        turn = self.end(data)
        if turn.parent is not None:
            turn.connection.cache.unpin(turn.parent.id)

    def end(self, data: st.DataObject) -> Turn:
        turn = pick(data, self.held.turns)
        self.held.turns.remove(turn)
        return turn

    @precondition(lambda self: self.held.connections)
    @rule(data=st.data())
    def resume(self, data: st.DataObject) -> None:
        """Load a chain of the store into another connection, as its records are."""
        connection = pick(data, self.held.connections)
        stored = [name for shelf in [self.store._shelves.get(connection.tenant)] if shelf for name in shelf.ids()]
        if not stored:
            return
        name = data.draw(st.sampled_from(stored))
        node: ResponseNode | None = None
        for record in drive(self.store.load(StoreKey(connection.tenant, name))):
            known = connection.cache.get(record.id)
            node = known or ResponseNode(record, node, tenant=connection.tenant)
            connection.cache.add(node)

    # -- what happens to all -------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([1.0, 20.0, 50.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.store.expire()

    @rule(data=st.data(), tenant=st.sampled_from(["one", "two"]))
    def delete(self, data: st.DataObject, tenant: str) -> None:
        if self.made:
            name = f"r{data.draw(st.integers(1, self.made))}"
            drive(self.store.delete(StoreKey(tenant, name)))
            for connection in self.held.connections:
                if connection.tenant == tenant:
                    connection.cache.discard(name)

    # -- what always holds ---------------------------------------------------------------------------------------------

    def pinned(self) -> set[tuple[int, str]]:
        """Ids of parents of running turns that still resolve."""
        return {
            (index, turn.parent.id)
            for index, turn in enumerate(self.held.turns)
            if turn.parent is not None and turn.parent.id in turn.connection.cache
        }

    def resolvable(self) -> set[tuple[int, str]]:
        return {(index, name) for index, turn in enumerate(self.held.turns) for name in turn.connection.cache.ids()}

    def reachable(self) -> tuple[set[int], dict[int, Record], dict[int, Interned]]:
        """Walk from the roots, by the objects' own links. The interner is none: it holds nothing."""
        nodes: list[ResponseNode] = [turn.parent for turn in self.held.turns if turn.parent is not None]
        values: list[Interned] = [turn.tools for turn in self.held.turns if turn.tools is not None]
        for connection in self.held.connections:
            nodes += [entry.value for entry in connection.cache._entries.values()]
        records: dict[int, Record] = {}
        seen: set[int] = set()
        while nodes:
            node = nodes.pop()
            if id(node) in seen:
                continue
            seen.add(id(node))
            records[id(node.record)] = node.record
            values += [value for value in (node.tools, node.instructions) if value is not None]
            if node.parent is not None:
                nodes.append(node.parent)
        for record in stored_records(self.store):
            records[id(record)] = record
        return seen, records, {id(value): value for value in values}

    @invariant()
    def charged_bytes_are_reachable_bytes(self) -> None:
        _, records, values = self.reachable()
        budgets: dict[int, tuple[Budget, int]] = {}

        def charge(budget: Budget, size: int) -> None:
            known, total = budgets.get(id(budget), (budget, 0))
            budgets[id(budget)] = (known, total + size)

        for record in records.values():
            for budget in record.budgets:
                charge(budget, record.size)
        for value in values.values():
            for budget in value._budgets:
                charge(budget, value._size)
        known = [self.ledger.process, *self.ledger._tenants.values()]
        known += [connection.budget for connection in self.held.connections]
        for budget in known:
            assert budget.used == budgets.get(id(budget), (budget, 0))[1]
        for budget, total in budgets.values():
            assert budget.used == total

    @invariant()
    def no_budget_is_exceeded(self) -> None:
        assert 0 <= self.ledger.process.used <= self.PROCESS
        for account in self.ledger._tenants.values():
            assert 0 <= account.used <= self.TENANT
        for connection in self.held.connections:
            assert 0 <= connection.budget.used <= self.CONNECTION

    @invariant()
    def only_tenants_that_hold_something_have_an_account(self) -> None:
        in_use = {connection.tenant for connection in self.held.connections} | set(self.store._shelves)
        assert set(self.ledger._tenants) == in_use

    def teardown(self) -> None:
        while self.held.connections:
            self.held.connections.pop().close()
        self.held = Held()
        drive(self.store.aclose())
        assert self.ledger.process.used == 0
        assert self.ledger.tenants == 0


def stored_records(store: InProcessStore) -> Iterator[Record]:
    for shelf in store._shelves.values():
        for entry in shelf._entries.values():
            at = entry.value
            while at is not None:
                yield at.record
                at = at.parent  # type: ignore[assignment] # the chain's end


TestBudgets = BudgetMachine.TestCase
TestBudgets.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


# -- single rules --------------------------------------------------------------------------------------------------------


def full(ledger: Ledger, tenant: str, sizes: list[int], limit: int = BIG) -> Connection:
    """A connection that holds a root of each size."""
    connection = Connection(ledger, tenant, limit)
    for number, size in enumerate(sizes):
        keep(connection, f"{tenant} {number}", size)
    return connection


def keep(connection: Connection, name: str, size: int) -> bool:
    budgets = connection.reserve(size, stored=False)
    if budgets is None:
        return False
    record = charged(make_record(name), size, budgets)
    connection.cache.add(ResponseNode(record, None, tenant=connection.tenant))
    return True


@pytest.mark.parametrize("scope", ["connection", "tenant", "process"])
@pytest.mark.parametrize("over", [-1, 0, 1])
def test_each_budget_is_kept_to_the_byte(scope: str, over: int) -> None:
    """Rule 10: n - 1 and n fit beside what is there, n + 1 evicts."""
    limits = {"connection": BIG, "tenant": BIG, "process": BIG, scope: 100}
    ledger = Ledger(limits["process"], limits["tenant"])
    connection = full(ledger, "t", [40], limits["connection"])
    assert keep(connection, "new", 60 + over)
    assert ("t 0" in connection.cache) == (over <= 0)
    assert ledger.evictions == (1 if over > 0 else 0)
    assert keep(connection, "all", 100 + min(over, 0))
    assert keep(connection, "too much", 101) is False


@pytest.mark.parametrize("scope", ["connection", "tenant", "process"])
def test_what_can_never_fit_evicts_nothing(scope: str) -> None:
    """A turn that is too large must not cost the client its other conversations."""
    limits = {"connection": BIG, "tenant": BIG, "process": BIG, scope: 100}
    ledger = Ledger(limits["process"], limits["tenant"])
    connection = full(ledger, "t", [40, 40], limits["connection"])
    assert keep(connection, "huge", 101) is False
    assert len(connection.cache) == 2
    assert ledger.process.used == connection.account.used == connection.budget.used == 80


def test_the_oldest_of_all_connections_goes_first() -> None:
    """Within a tenant, and in the process over tenants: whoever is idle longest pays."""
    ledger = Ledger(110, BIG)
    first, second = full(ledger, "one", [30, 30]), full(ledger, "two", [30])
    first.cache.get("one 0")
    assert keep(second, "new", 40)
    assert first.cache.ids() == ["one 0"]
    assert second.cache.ids() == ["two 0", "new"]
    assert keep(first, "more", 40)
    assert first.cache.ids() == ["one 0", "more"]
    assert second.cache.ids() == ["new"]


def test_a_tenants_budget_evicts_that_tenants_only() -> None:
    """Nobody pays for another."""
    ledger = Ledger(BIG, 100)
    other, mine, mine_too = full(ledger, "other", [90]), full(ledger, "t", [50]), full(ledger, "t", [50])
    assert keep(mine_too, "new", 60)
    assert (len(other.cache), mine.cache.ids(), mine_too.cache.ids()) == (1, [], ["new"])


def test_a_connections_budget_evicts_that_connections_only() -> None:
    """One agent of a team does not cost another its history."""
    ledger = Ledger(BIG, BIG)
    other, mine = full(ledger, "t", [90], 100), full(ledger, "t", [90], 100)
    assert keep(mine, "new", 90)
    assert (mine.cache.ids(), len(other.cache)) == (["new"], 1)


def test_pinned_leaves_stay() -> None:
    """The parent of a running turn, or of a waiting fork, must be there when the turn needs it."""
    ledger = Ledger(100, BIG)
    connection = full(ledger, "t", [60, 40])
    connection.cache.pin("t 0")
    assert keep(connection, "new", 40)
    assert connection.cache.ids() == ["t 0", "new"]
    connection.cache.pin("new")
    assert keep(connection, "more", 1) is False
    assert ledger.process.used == 100


def test_what_is_evicted_while_it_is_in_use_stays_charged() -> None:
    """Memory returns with the last holder; until then it must not be given out again."""
    ledger = Ledger(100, BIG)
    connection = full(ledger, "t", [60])
    node = connection.cache.get("t 0")
    connection.cache.discard("t 0")
    assert ledger.process.used == 60
    assert keep(connection, "new", 50) is False
    del node
    assert ledger.process.used == 0


def test_many_connections_are_searched_once_for_all_that_must_go() -> None:
    """A full process that makes room for a large turn must not look at each cache again for each small leaf."""

    class Counting(LeafCache[int]):
        looks = 0

        def oldest(self) -> int | None:
            Counting.looks += 1
            return super().oldest()

        def evict(self) -> None:
            super().evict()
            ledger.process.used -= 1

    ledger = Ledger(1000, BIG)
    accounts = [ledger.account(str(number)) for number in range(50)]
    caches = [Counting(ledger) for _ in accounts]
    for account, cache in zip(accounts, caches, strict=True):
        account.caches.add(cache)
        for number in range(20):
            cache.put(str(number), None, number)
    ledger.process.used = 1000
    assert ledger.reserve(900, None, caches[0], accounts[0]) is not None
    assert Counting.looks <= 50 + 2 * 900


def test_an_account_lives_as_long_as_something_is_charged_to_it() -> None:
    """A second connection of the tenant must find the bytes that the first one left in use."""
    ledger = Ledger(BIG, 100)
    connection = full(ledger, "t", [60])
    node = connection.cache.get("t 0")
    connection.close()
    del connection
    assert ledger.tenants == 1
    assert ledger.account("t").used == 60
    del node
    assert ledger.tenants == 0


def test_what_is_dropped_with_its_middleware_is_freed() -> None:
    """Records are invisible to the collector of cycles; so nothing may lead from one back to its holder."""
    ledger = Ledger(BIG, BIG)
    store = InProcessStore(ledger, lambda: 0.0)
    connection = full(ledger, "t", [60])
    budgets = connection.reserve(10, stored=True)
    assert budgets is not None
    drive(store.append(StoreKey("t", "r"), charged(make_record("r"), 10, budgets), None, 10.0))
    process = ledger.process
    del ledger, store, connection, budgets
    gc.collect()
    assert process.used == 0


# -- interned values -----------------------------------------------------------------------------------------------------


def test_equal_values_are_kept_once() -> None:
    """Codex sends 20 kB of tools with each turn."""
    connection = full(Ledger(BIG, BIG), "t", [])
    raw = msgspec.json.encode([{"type": "function", "name": "f" * 1000}])
    first = connection.interner.intern(raw)
    again = connection.interner.intern(bytes(bytearray(raw)))
    assert first is again
    assert first is not None
    assert connection.interner.hits == 1
    assert connection.budget.used == connection.account.used == len(raw) + INTERNED_BYTES
    assert first.value == msgspec.json.decode(raw)
    assert first.value is first.value


def test_a_decoded_value_is_charged_what_it_costs() -> None:
    """It takes five times the bytes of usual tools, and more of others; thousands of connections may have one."""
    connection = full(Ledger(BIG, BIG), "t", [])
    tools = [{"type": "function", "name": f"f{n}", "parameters": {"x": [n, {}, [], None, "text"]}} for n in range(200)]
    value = connection.interner.intern(msgspec.json.encode(tools))
    assert value is not None
    before = connection.budget.used
    tracemalloc.start()
    start = tracemalloc.get_traced_memory()[0]
    assert value.value == tools
    used = tracemalloc.get_traced_memory()[0] - start
    tracemalloc.stop()
    assert used <= connection.budget.used - before <= 3 * used
    assert value.value is value.value
    del value
    connection.interner.clear()
    assert connection.budget.used == connection.account.used == 0


def test_a_decoded_value_that_does_not_fit_is_not_kept() -> None:
    """It is decoded anew each time then: slower, but within the budget."""
    raw = b"[[],[],[]]"
    connection = full(Ledger(BIG, BIG), "t", [], len(raw) + INTERNED_BYTES + 100)
    value = connection.interner.intern(raw)
    assert value is not None
    before = connection.budget.used
    assert value.value == value.value == [[], [], []]
    assert value.value is not value.value
    assert connection.budget.used == before


def test_values_of_equal_length_are_told_apart() -> None:
    """Their bytes decide, not their length."""
    connection = full(Ledger(BIG, BIG), "t", [])
    one, two = connection.interner.intern(b"[1]"), connection.interner.intern(b"[2]")
    assert one is not None
    assert two is not None
    assert (one.raw, two.raw) == (b"[1]", b"[2]")


def test_a_forgotten_value_lives_on_with_its_node() -> None:
    """The interner remembers few; nodes hold theirs, and pay."""
    connection = full(Ledger(BIG, BIG), "t", [])
    kept = connection.interner.intern(b"[0]")
    others = [connection.interner.intern(b"1" * number) for number in range(4, 68)]
    assert connection.interner.intern(b"[0]") is not kept
    del others
    assert connection.budget.used == 3 + INTERNED_BYTES
    assert kept is not None
    assert kept.value == [0]
    del kept
    assert connection.budget.used == 0


@pytest.mark.parametrize("raws", [[b"[1]", b"[2]"], [b"%064d" % lane for lane in range(64)]], ids=["two", "all lanes"])
def test_values_that_alternate_are_decoded_once_each(raws: list[bytes]) -> None:
    """Lanes take turns, each with tools and instructions of its own, which may well be of equal length."""
    connection = full(Ledger(BIG, BIG), "t", [])
    first = [connection.interner.intern(raw) for raw in raws]
    assert [connection.interner.intern(bytes(bytearray(raw))) for raw in raws * 3] == first * 3
    assert connection.interner.hits == 3 * len(raws)
    assert connection.budget.used == sum(len(raw) + INTERNED_BYTES for raw in raws)


def test_what_no_node_uses_takes_no_room() -> None:
    """Else the tools of turns that are forgotten would fill a budget that no eviction can empty."""
    connection = full(Ledger(BIG, BIG), "t", [], 3 * INTERNED_BYTES)
    for number in range(100):
        assert connection.interner.intern(b"[%d]" % number) is not None
    assert connection.budget.used == 0


def test_old_history_makes_room_for_new_tools() -> None:
    """In a full cache, which is its usual state, a turn's tools must not be lost: a handler would see none."""
    ledger = Ledger(BIG, BIG)
    connection = full(ledger, "t", [500, 500], 1000)
    assert connection.interner.intern(b"[1]") is not None
    assert connection.cache.ids() == ["t 1"]
    assert connection.interner.intern(b"1" * 1000) is None


# -- what is charged -----------------------------------------------------------------------------------------------------

LINES = {"one chain": 1, "fifty chains": 50, "all roots": 2000}


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("lines", LINES)
def test_a_record_is_charged_what_it_costs(lines: str, stored: bool) -> None:
    """Tiny turns are all overhead: if that were free, a budget of 64 MiB would hold gigabytes."""
    ledger = Ledger(BIG, BIG)
    connection = full(ledger, "t", [])
    store = InProcessStore(ledger, lambda: 0.0)
    heads: list[ResponseNode | None] = [None] * LINES[lines]
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(2000):
        parent = heads[number % len(heads)]
        record = make_record(
            f"resp_{number:032}", parent.id if parent else None, items=b'{"n":%d}' % number, store=stored
        )
        size = record_bytes(record, parent.record if parent else None, stored=stored)
        budgets = connection.reserve(size, stored=stored)
        assert budgets is not None
        record = charged(record, size, budgets)
        node = ResponseNode(record, parent, tenant="t", lane=None)
        connection.cache.add(node)
        heads[number % len(heads)] = None if lines == "all roots" else node
        if stored:
            above = None if parent is None else StoreKey("t", parent.id)
            drive(store.append(StoreKey("t", node.id), record, above, 10.0))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used <= ledger.process.used <= 2 * used


def test_open_calls_are_charged_to_who_opened_them() -> None:
    """Warm-ups may leave calls open for ever, and each turn's state repeats them all."""
    calls = CallState(tuple(OpenCall("function_call", f"call_{number}", True) for number in range(1000)))
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    copy = CallState(tuple(OpenCall(call.type, "".join(list(call.key)), True) for call in calls.open))
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    plain = make_record("r")
    opened = msgspec.structs.replace(plain, calls=copy)
    assert record_bytes(plain, None, stored=False) + used <= record_bytes(opened, None, stored=False) + 200
    assert record_bytes(opened, opened, stored=False) == record_bytes(plain, None, stored=False)
    assert plain.calls is START


@pytest.mark.parametrize(
    ("changes", "more"),
    [
        ({"items": b"x" * 1002}, 1000),
        ({"model": "m" * 1001}, 1000),
        ({"id": "r" * 1001}, 1000),
        ({"sampled": Sampled.of("v", range(1000, 1100))}, 400),
        ({"response": b"r" * 1001}, 1000),
        ({"items": b"x" * 1002, "history_at": 502}, 1500),
    ],
)
def test_all_that_a_client_can_make_long_is_charged(changes: dict[str, object], more: int) -> None:
    """What is kept for nothing is what is sent without end."""
    plain = make_record("r")
    long = msgspec.structs.replace(plain, **changes)
    assert record_bytes(long, None, stored=False) >= record_bytes(plain, None, stored=False) + more
