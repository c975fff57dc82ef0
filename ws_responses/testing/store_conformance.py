"""The conformance suite of response stores: subclass it, and give it your store.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        async def store(self):
            store = MyStore()
            yield store
            await store.aclose()

Needs pytest and hypothesis. The tests run by the plugin of anyio, or by any other in its automatic mode. All tests may run on one
store, one after another: each has tenants of its own.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar

import anyio
import pytest
from hypothesis import HealthCheck, given, settings

from ws_responses.errors import StoreError
from ws_responses.protocol.calls import CallState, OpenCall
from ws_responses.state.node import Record, Sampled
from ws_responses.state.store import ResponseStore, StoreKey
from ws_responses.testing._store_run import OPERATIONS, TTL_S, Operation, Shelf, StoreClock, make_record, run

__all__ = ["StoreClock", "StoreConformance", "make_record"]


def _no_clock(_: "StoreConformance") -> None:
    return None


class StoreConformance:
    """The tests. Subclasses define the fixture ``store``, and ``clock`` if they can move the time that their store looks at.

    Attributes:
        slack_s: How far the store's clock may have gone on by itself meanwhile: 0 if the test holds it.
        large_bytes: Size of a large record.
    """

    pytestmark: ClassVar[Any] = pytest.mark.anyio

    slack_s: float = 0.0
    large_bytes: int = 4 * 1024 * 1024

    # Typed as anything, so that subclasses may give it other arguments, and make it async.
    clock: Any = pytest.fixture(_no_clock)

    # -- chains ------------------------------------------------------------------------------------------------------

    async def test_a_record_comes_back_as_it_was(self, store: ResponseStore) -> None:
        """All of it: what is lost makes another worker go on differently."""
        shelf = Shelf(store)
        items = '{"type":"message"},{"a":"é\N{PARTY POPPER}\\u0000"}'.encode()
        record = Record(
            id="resp_a",
            parent_id=None,
            model="m/1",
            store=True,
            items=items,
            output_at=19,
            history_at=0,
            base=False,
            calls=CallState((OpenCall("function_call", "call_1", required=True),), known=False),
            generated=False,
            status="incomplete",
            sampled=Sampled.of("harmony", [0, 1, 200_000, 2**32 - 1]),
            response=b'{"id":"resp_a"}',
            safety=b"\x95\xc4\x00",
        )
        await store.append(shelf.key("resp_a"), record, None, TTL_S)
        assert list(await store.load(shelf.key("resp_a"))) == [record]

    async def test_a_chain_loads_from_its_root(self, store: ResponseStore) -> None:
        """In order, each record once."""
        shelf = Shelf(store)
        await shelf.chain("a", "b", "c")
        assert await shelf.load("c") == ["a", "b", "c"]
        assert await shelf.load("b") == ["a", "b"]
        assert await shelf.load("a") == ["a"]
        assert await shelf.load("x") == []

    async def test_a_long_chain_loads(self, store: ResponseStore) -> None:
        """No recursion, no bound of a query, no order by text."""
        shelf = Shelf(store)
        names = [str(number) for number in range(300)]
        await shelf.chain(*names)
        assert await shelf.load("299") == names
        assert await shelf.load("150") == names[:151]

    async def test_forks_share_their_beginning(self, store: ResponseStore) -> None:
        """Also forks of forks, from the end, the middle and the root."""
        shelf = Shelf(store)
        await shelf.chain("a", "b", "c")
        await shelf.append("b2", "a")
        await shelf.append("c2", "b2")
        await shelf.append("b3", "a")
        await shelf.append("d2", "c2")
        await shelf.append("d", "c")
        await shelf.append("c3", "b2")
        assert await shelf.load("d") == ["a", "b", "c", "d"]
        assert await shelf.load("d2") == ["a", "b2", "c2", "d2"]
        assert await shelf.load("c3") == ["a", "b2", "c3"]
        assert await shelf.load("b3") == ["a", "b3"]

    async def test_a_new_base_joins_nothing_older(self, store: ResponseStore) -> None:
        """After a compaction the old history must not come back; and it need not be there any more."""
        shelf = Shelf(store)
        await shelf.chain("a", "b")
        await shelf.append("c", "b", base=True)
        await shelf.append("d", "c")
        assert await shelf.load("d") == ["c", "d"]
        assert await shelf.load("b") == ["a", "b"]
        await shelf.append("e", "never there", base=True)
        assert await shelf.load("e") == ["e"]

    @pytest.mark.parametrize("how", ["never there", "deleted", "another tenant's"])
    async def test_nothing_is_stored_below_what_is_not_there(self, store: ResponseStore, how: str) -> None:
        """It would load as if the conversation began with it."""
        shelf, other = Shelf(store), Shelf(store)
        if how == "deleted":
            await shelf.append("a")
            await shelf.delete("a")
        if how == "another tenant's":
            await other.append("a")
        with pytest.raises(StoreError):
            await shelf.append("b", "a")
        assert await shelf.load("b") == []

    # -- the same id again -------------------------------------------------------------------------------------------

    async def test_a_record_that_comes_again_is_there_once(self, store: ResponseStore) -> None:
        """Whoever did not hear the answer may ask again."""
        shelf = Shelf(store)
        await shelf.append("a")
        for _ in range(3):
            await shelf.append("b", "a")
        await shelf.append("c", "b")
        assert await shelf.load("c") == ["a", "b", "c"]

    async def test_a_record_replaces_another_of_its_id(self, store: ResponseStore) -> None:
        """Some apps count their ids from 1 in each process; what was appended to the old one keeps it."""
        shelf = Shelf(store)
        old = await shelf.append("a", items=b'"old"')
        below = await shelf.append("b", "a")
        new = await shelf.append("a", items=b'"new"')
        assert list(await store.load(shelf.key("a"))) == [new]
        assert list(await store.load(shelf.key("b"))) == [old, below]
        await shelf.append("c", "a")
        assert [record.items for record in await store.load(shelf.key("c"))] == [b'"new"', b"{}"]

    # -- tenants and names -------------------------------------------------------------------------------------------

    async def test_tenants_never_cross(self, store: ResponseStore) -> None:
        """Equal ids of two tenants are two records; another's is as unknown as one that never was."""
        mine, yours = Shelf(store), Shelf(store)
        await mine.append("a", items=b'"mine"')
        assert await yours.load("a") == []
        await yours.delete("a")
        await yours.append("a", items=b'"yours"')
        await yours.append("b", "a")
        assert [record.items for record in await store.load(mine.key("a"))] == [b'"mine"']
        assert [record.items for record in await store.load(yours.key("b"))] == [b'"yours"', b"{}"]
        await yours.delete("a")
        assert await mine.load("a") == ["a"]
        assert await mine.load("b") == []

    async def test_names_that_look_alike_are_others(self, store: ResponseStore) -> None:
        """Keys that are put together from parts must not be equal for other parts."""
        base = Shelf(store).tenant
        pairs = [
            (f"{base}:a", "b"),
            (base, "a:b"),
            (f"{base}", "a"),
            (f"{base}:", "a"),
            (f"{base}{{x}}", "{a}"),
            (f"{{{base}}}", "a"),
            (f"{base}\N{PARTY POPPER}", "é'\"%_*?[]"),
            (base, "A"),
            (base.upper(), "a"),
            (base, "0"),
            (base, "00"),
            (base, "a "),
            (base, "x" * 2000),
            ("t" * 2000 + base, "a"),
            (base, ""),
            (base, "a\0"),
        ]
        for number, (tenant, name) in enumerate(pairs):
            await Shelf(store, tenant).append(name, items=b"%d" % number)
        for number, (tenant, name) in enumerate(pairs):
            (record,) = await store.load(StoreKey(tenant, name))
            assert (record.id, record.items) == (name, b"%d" % number)

    # -- deletion ----------------------------------------------------------------------------------------------------

    async def test_a_deleted_id_is_hidden_and_its_descendants_stay(self, store: ResponseStore) -> None:
        """A delete is about the id; what went on from it is another response."""
        shelf = Shelf(store)
        await shelf.chain("a", "b", "c")
        await shelf.append("fork", "b")
        await shelf.delete("b")
        await shelf.delete("b")
        await shelf.delete("never there")
        assert await shelf.load("b") == []
        assert await shelf.load("c") == ["a", "b", "c"]
        assert await shelf.load("fork") == ["a", "b", "fork"]
        await shelf.append("d", "c")
        assert await shelf.load("d") == ["a", "b", "c", "d"]

    async def test_a_chain_goes_on_below_what_is_left_of_it(self, store: ResponseStore) -> None:
        """After its newest records were deleted, with a fork hanging on one of them."""
        shelf = Shelf(store)
        await shelf.chain("a", "b", "c")
        await shelf.append("fork", "b")
        await shelf.delete("c")
        await shelf.delete("b")
        await shelf.append("x", "a")
        await shelf.append("y", "x")
        assert await shelf.load("y") == ["a", "x", "y"]
        assert await shelf.load("fork") == ["a", "b", "fork"]
        await shelf.append("z", "fork")
        assert await shelf.load("z") == ["a", "b", "fork", "z"]

    async def test_an_id_can_be_stored_again_after_its_deletion(self, store: ResponseStore) -> None:
        """It is another record then."""
        shelf = Shelf(store)
        await shelf.chain("a", "b", "c")
        await shelf.delete("b")
        await shelf.append("b", "a", items=b'"again"')
        assert [record.items for record in await store.load(shelf.key("b"))] == [b"{}", b'"again"']
        assert [record.items for record in await store.load(shelf.key("c"))] == [b"{}", b"{}", b"{}"]

    # -- time --------------------------------------------------------------------------------------------------------

    async def test_a_chain_that_is_in_use_keeps_its_beginning(
        self, store: ResponseStore, clock: StoreClock | None
    ) -> None:
        """Each append gives all that is above it the time to live, too."""
        clock = _required(clock)
        shelf = Shelf(store)
        await shelf.append("a")
        for parent, name in zip("abcde", "bcdef", strict=True):
            await clock.advance(TTL_S * 0.9)
            await shelf.append(name, parent)
        assert await shelf.load("f") == list("abcdef")
        assert await shelf.load("a") == ["a"]
        await clock.advance(TTL_S * 0.9)
        assert await shelf.load("c") == list("abc")
        await clock.advance(TTL_S * 0.2)
        for name in "abcdef":
            assert await shelf.load(name) == []
        with pytest.raises(StoreError):
            await shelf.append("g", "f")

    async def test_a_fork_keeps_what_it_forks(self, store: ResponseStore, clock: StoreClock | None) -> None:
        """Without its beginning it would be another conversation; the rest of the origin may go."""
        clock = _required(clock)
        shelf = Shelf(store)
        await shelf.chain("a", "b", "c")
        await clock.advance(TTL_S / 2)
        await shelf.append("fork", "b")
        await shelf.append("fork 2", "fork")
        await shelf.append("fork of the fork", "fork", ttl_s=3 * TTL_S)
        await clock.advance(TTL_S * 0.8)
        assert await shelf.load("fork") == ["a", "b", "fork"]
        assert await shelf.load("b") == ["a", "b"]
        await clock.advance(TTL_S)
        assert await shelf.load("fork of the fork") == ["a", "b", "fork", "fork of the fork"]
        await clock.advance(2 * TTL_S)
        assert await shelf.load("fork of the fork") == []

    async def test_a_shorter_time_shortens_nothing(self, store: ResponseStore, clock: StoreClock | None) -> None:
        """Extending is all that an append does."""
        clock = _required(clock)
        shelf = Shelf(store)
        await shelf.append("a", ttl_s=TTL_S)
        await shelf.append("b", "a", ttl_s=TTL_S / 10)
        await clock.advance(TTL_S * 0.5)
        assert await shelf.load("a") == ["a"]

    async def test_a_record_that_replaces_another_has_its_own_time(
        self, store: ResponseStore, clock: StoreClock | None
    ) -> None:
        """It must not go with the one that it replaces."""
        clock = _required(clock)
        shelf = Shelf(store)
        await shelf.append("a")
        await clock.advance(TTL_S * 0.9)
        await shelf.append("a")
        await clock.advance(TTL_S * 0.5)
        assert await shelf.load("a") == ["a"]

    # -- size --------------------------------------------------------------------------------------------------------

    async def test_large_records_come_back_whole(self, store: ResponseStore) -> None:
        """An image in a turn; JSON that does not compress, and some that does."""
        shelf = Shelf(store)
        noise = bytes(number * number % 251 for number in range(65_521)) * (self.large_bytes // 65_521)
        await shelf.append("a", items=noise)
        await shelf.append("b", "a", items=b" " * self.large_bytes)
        assert [record.items for record in await store.load(shelf.key("b"))] == [noise, b" " * self.large_bytes]

    # -- at the same time --------------------------------------------------------------------------------------------

    async def test_appends_at_the_same_time_do_not_mix(self, store: ResponseStore) -> None:
        """Lanes fork one parent, other chains grow, and all of it is read meanwhile."""
        shelves = [Shelf(store) for _ in range(3)]

        async def grow(shelf: Shelf, lane: int) -> None:
            parent = "root"
            for number in range(5):
                name = f"{lane}.{number}"
                await shelf.append(name, parent)
                parent = name
                assert await shelf.load(name) == ["root", *(f"{lane}.{each}" for each in range(number + 1))]

        for shelf in shelves:
            await shelf.append("root")
        async with anyio.create_task_group() as tasks:
            for shelf in shelves:
                for lane in range(4):
                    tasks.start_soon(grow, shelf, lane)
        for shelf in shelves:
            assert await shelf.load("3.4") == ["root", *(f"3.{number}" for number in range(5))]

    async def test_an_operation_that_is_cancelled_is_whole_or_nothing(self, store: ResponseStore) -> None:
        """And the next one is not given its answer: that may be another tenant's."""
        mine, yours = Shelf(store), Shelf(store)
        await mine.chain("a", "b", items=b'"mine"')
        await yours.chain("a", "b", items=b'"yours"')
        operations: Sequence[Callable[[int], Coroutine[Any, Any, object]]] = (
            lambda number: mine.append(f"c{number}", "b", items=b'"mine"'),
            lambda _: mine.load("b"),
            lambda number: mine.delete(f"c{number - 3}"),
        )
        for number in range(36):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(operations[number % 3], number)
                for _ in range(number // 3):
                    await anyio.lowlevel.checkpoint()
                tasks.cancel_scope.cancel()
            assert [record.items for record in await store.load(yours.key("b"))] == [b'"yours"'] * 2
            assert await mine.load(f"c{number}") in ([], ["a", "b", f"c{number}"])
        assert await mine.load("b") == ["a", "b"]

    # -- the end -----------------------------------------------------------------------------------------------------

    async def test_it_can_be_closed_twice(self, store: ResponseStore) -> None:
        """By the middleware, and by who made it."""
        await Shelf(store).append("a")
        await store.aclose()
        await store.aclose()

    # -- all of it ---------------------------------------------------------------------------------------------------

    @given(operations=OPERATIONS)
    @settings(
        deadline=None,
        max_examples=60,
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.differing_executors,
            HealthCheck.too_slow,
        ],
    )
    async def test_it_is_a_dictionary_with_a_clock(
        self, store: ResponseStore, clock: StoreClock | None, operations: Sequence[Operation]
    ) -> None:
        """Appends, forks, bases, replacements, deletions and time in any order."""
        await run(store, clock, self.slack_s, operations)


def _required(clock: StoreClock | None) -> StoreClock:
    if clock is None:
        pytest.skip("no clock to move")
    return clock
