"""The conformance suite on the in-process store; and that it finds what it is for."""

from collections.abc import Sequence

import anyio
import pytest
from hypothesis import Phase, given, seed, settings
from msgspec.structs import replace

from ws_responses.errors import StoreError
from ws_responses.state.budget import Ledger
from ws_responses.state.node import Record
from ws_responses.state.store import InProcessStore, StoreKey
from ws_responses.testing import FakeClock, _store_run
from ws_responses.testing.store_conformance import StoreConformance

BIG = 1 << 40


class TestInProcessStore(StoreConformance):
    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    def store(self, clock: FakeClock) -> InProcessStore:
        return InProcessStore(Ledger(BIG, BIG), clock.now)


class Store(InProcessStore):
    """What the stores with a fault are made of."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(Ledger(BIG, BIG), clock.now)
        self.clock = clock


class ForgetsSampledIds(Store):
    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await super().append(key, replace(record, sampled=None), parent, ttl_s)


class LoadsFromTheLeaf(Store):
    async def load(self, key: StoreKey) -> Sequence[Record]:
        return list(await super().load(key))[::-1]


class LoadsTheLastHundred(Store):
    async def load(self, key: StoreKey) -> Sequence[Record]:
        return list(await super().load(key))[-100:]


class IgnoresTenants(Store):
    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        above = None if parent is None else StoreKey("all", parent.response_id)
        await super().append(StoreKey("all", key.response_id), record, above, ttl_s)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        return await super().load(StoreKey("all", key.response_id))

    async def delete(self, key: StoreKey) -> None:
        await super().delete(StoreKey("all", key.response_id))


class JoinsNames(Store):
    @staticmethod
    def joined(key: StoreKey) -> StoreKey:
        return StoreKey("all", f"{key.tenant}:{key.response_id}")

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await super().append(self.joined(key), record, None if parent is None else self.joined(parent), ttl_s)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        return await super().load(self.joined(key))

    async def delete(self, key: StoreKey) -> None:
        await super().delete(self.joined(key))


class StoresOrphans(Store):
    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        if parent is not None and not await self.load(parent):
            parent = None
        await super().append(key, record, parent, ttl_s)


class JoinsWhatIsOlderThanABase(Store):
    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        if parent is not None and await self.load(parent):
            record = replace(record, base=False)
        await super().append(key, record, parent, ttl_s)


class KeepsTheFirst(Store):
    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        if not await self.load(key):
            await super().append(key, record, parent, ttl_s)


class DeletesDescendants(Store):
    async def load(self, key: StoreKey) -> Sequence[Record]:
        loaded = await super().load(key)
        for record in loaded:
            if not await super().load(StoreKey(key.tenant, record.id)):
                return ()
        return loaded


class DeletesNothing(Store):
    async def delete(self, key: StoreKey) -> None:
        await self.load(key)


class ExtendsNothing(Store):
    """Each record has a time of its own."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.until: dict[StoreKey, float] = {}

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        self.until[key] = self.clock.now() + ttl_s
        await super().append(key, record, parent, BIG)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        loaded = await super().load(key)
        now = self.clock.now()
        return [record for record in loaded if now < self.until[StoreKey(key.tenant, record.id)]]


class NeverExpires(Store):
    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await super().append(key, record, parent, BIG)


class Shortens(Store):
    """The last append says how long a conversation lives."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.until: dict[StoreKey, float] = {}

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await super().append(key, record, parent, BIG)
        (root, *_) = await super().load(key)
        self.until[StoreKey(key.tenant, root.id)] = self.clock.now() + ttl_s

    async def load(self, key: StoreKey) -> Sequence[Record]:
        loaded = await super().load(key)
        return [each for each in loaded if self.clock.now() < self.until[StoreKey(key.tenant, loaded[0].id)]]


class GivesTheAnswerOfAnother(Store):
    """As a connection does on which an answer was left behind by an operation that was cancelled."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.left: list[Sequence[Record]] = []

    async def load(self, key: StoreKey) -> Sequence[Record]:
        loaded = await super().load(key)
        try:
            await anyio.lowlevel.checkpoint()
        except anyio.get_cancelled_exc_class():
            self.left.append(loaded)
            raise
        return self.left.pop() if self.left else loaded


class MixesWhatComesTogether(Store):
    """An append that waits between what it reads and what it writes, as two commands do."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(clock)
        self.parent: StoreKey | None = None

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        self.parent = parent
        await anyio.lowlevel.checkpoint()
        await super().append(key, record, self.parent, ttl_s)


class CutsLargeRecords(Store):
    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await super().append(key, replace(record, items=record.items[: 1024 * 1024]), parent, ttl_s)


class ClosesOnce(Store):
    closed = False

    async def aclose(self) -> None:
        if self.closed:
            raise StoreError("closed")
        self.closed = True


SUITE = StoreConformance()


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        (ForgetsSampledIds, "test_a_record_comes_back_as_it_was"),
        (LoadsFromTheLeaf, "test_a_chain_loads_from_its_root"),
        (LoadsTheLastHundred, "test_a_long_chain_loads"),
        (IgnoresTenants, "test_tenants_never_cross"),
        (JoinsNames, "test_names_that_look_alike_are_others"),
        (JoinsWhatIsOlderThanABase, "test_a_new_base_joins_nothing_older"),
        (KeepsTheFirst, "test_a_record_replaces_another_of_its_id"),
        (DeletesDescendants, "test_a_deleted_id_is_hidden_and_its_descendants_stay"),
        (DeletesNothing, "test_a_deleted_id_is_hidden_and_its_descendants_stay"),
        (ExtendsNothing, "test_a_chain_that_is_in_use_keeps_its_beginning"),
        (ExtendsNothing, "test_a_fork_keeps_what_it_forks"),
        (NeverExpires, "test_a_chain_that_is_in_use_keeps_its_beginning"),
        (Shortens, "test_a_shorter_time_shortens_nothing"),
        (GivesTheAnswerOfAnother, "test_an_operation_that_is_cancelled_is_whole_or_nothing"),
        (MixesWhatComesTogether, "test_appends_at_the_same_time_do_not_mix"),
        (CutsLargeRecords, "test_large_records_come_back_whole"),
        (ClosesOnce, "test_it_can_be_closed_twice"),
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
async def test_the_suite_finds(fault: type[Store], test: str) -> None:
    """Without this a suite that tests nothing would pass."""
    clock = FakeClock()
    arguments = {"store": fault(clock), "clock": clock}
    method = getattr(SUITE, test)
    names = method.__code__.co_varnames[1 : method.__code__.co_argcount]
    with pytest.raises((AssertionError, StoreError, BaseExceptionGroup)):
        await method(**{name: arguments[name] for name in names})


@pytest.mark.parametrize("how", ["never there", "deleted"])
async def test_the_suite_finds_orphans(how: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        await SUITE.test_nothing_is_stored_below_what_is_not_there(StoresOrphans(FakeClock()), how)


@pytest.mark.parametrize(
    "fault",
    [
        LoadsFromTheLeaf,
        IgnoresTenants,
        StoresOrphans,
        JoinsWhatIsOlderThanABase,
        KeepsTheFirst,
        DeletesDescendants,
        DeletesNothing,
        ExtendsNothing,
        NeverExpires,
        Shortens,
    ],
    ids=lambda fault: fault.__name__,
)
def test_the_dictionary_with_a_clock_finds(fault: type[Store]) -> None:
    """What the single tests look for one by one comes up among random operations as well."""

    @seed(1)
    @settings(database=None, deadline=None, max_examples=300, phases=[Phase.generate], report_multiple_bugs=False)
    @given(operations=_store_run.OPERATIONS)
    def find(operations: Sequence[_store_run.Operation]) -> None:
        clock = FakeClock()
        anyio.run(_store_run.run, fault(clock), clock, 0.0, operations)

    with pytest.raises((AssertionError, StoreError)):
        find()
