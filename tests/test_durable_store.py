"""`durable=True`: no client is told of a success before the store has the response, whatever becomes of the store."""

from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from tests.rooms import Books
from tests.shell import KEY, Shell, code_of, create, error_of, id_of, kinds, types_of
from ws_responses import ConfigurationError, ResponsesWebSocketMiddleware
from ws_responses.errors import StoreError
from ws_responses.instrumentation import StoreFailed, TurnFinished
from ws_responses.state.budget import Ledger
from ws_responses.state.node import Record
from ws_responses.state.store import InProcessStore, StoreKey
from ws_responses.testing import ScriptedApp, settle


class SharedStore:
    """A store outside of the process, as far as the middleware can tell; writes wait while it is held."""

    def __init__(self) -> None:
        self._store = InProcessStore(Ledger(1 << 30, 1 << 30), lambda: 0.0)
        self.go = anyio.Event()
        self.go.set()
        self.fault: Exception | None = None
        self.asked = 0

    def hold(self) -> None:
        self.go = anyio.Event()

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        self.asked += 1
        await self.go.wait()
        if self.fault is not None:
            raise self.fault
        await self._store.append(key, record, parent, ttl_s)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        if self.fault is not None:
            raise self.fault
        return await self._store.load(key)

    async def delete(self, key: StoreKey) -> None:
        await self._store.delete(key)

    async def aclose(self) -> None:
        await self._store.aclose()

    def __len__(self) -> int:
        return len(self._store)


def durable(app: ScriptedApp, store: SharedStore, **options: Any) -> Shell:
    return Shell(app, store=store, durable=True, **options)


async def test_the_terminal_event_waits_for_the_store() -> None:
    """Told before, a client that goes on at another worker at once would not find its parent there."""
    store = SharedStore()
    shell = durable(ScriptedApp(), store)
    async with shell.socket(KEY) as ws:
        store.hold()
        await ws.send_json(create())
        await settle()
        assert store.asked == 1
        told = kinds([await ws.receive_json() for _ in range(len(ws.frames))])
        assert "output_item.done" in told
        assert "completed" not in told
        store.go.set()
        parent = id_of(await ws.collect())
        assert len(store) == 1
        async with durable(ScriptedApp(), store).socket(KEY) as other:
            assert kinds(await other.turn(create(previous_response_id=parent)))[-1] == "completed"


@pytest.mark.parametrize("how", ["fails", "late"])
async def test_what_the_store_does_not_take_is_no_success(how: str) -> None:
    """The client would go on from a response that the next worker has never heard of."""
    store = SharedStore()
    shell = durable(ScriptedApp(), store)
    async with shell.socket(KEY) as ws:
        if how == "fails":
            store.fault = StoreError("down")
            events = await ws.turn(create())
        else:
            store.hold()
            await ws.send_json(create())
            await settle()
            await shell.clock.advance(shell.middleware._settings.limits.store_timeout_s)
            events = await ws.collect()
        assert (kinds(events)[-1], code_of(events[-1])) == ("failed", "store_unavailable")
        assert "could not be stored" in error_of(events[-1])["message"]
        numbers = [event["sequence_number"] for event in events]
        assert numbers == list(range(len(events))), "it takes the place of the event that is not sent"
        store.fault = None
        store.go.set()
        (event,) = await ws.turn(create(previous_response_id=id_of(events)))
        assert code_of(event) == "previous_response_not_found", "what failed cannot be continued, here as elsewhere"
    assert [fact.operation for fact in shell.facts.of(StoreFailed)] == ["append"]
    assert shell.facts.outcomes[0] == ("failed", "store_unavailable")


async def test_a_turn_that_was_not_stored_can_be_tried_again_from_the_store() -> None:
    """Its parent is stored: the connection has let go of it, and finds it again."""
    app, store = ScriptedApp(), SharedStore()
    shell = durable(app, store)
    async with shell.socket(KEY) as ws:
        parent = id_of(await ws.turn(create("one")))
        store.fault = StoreError("down")
        assert code_of((await ws.turn(create("two", previous_response_id=parent)))[-1]) == "store_unavailable"
        store.fault = None
        assert kinds(await ws.turn(create("two", previous_response_id=parent)))[-1] == "completed"
    assert types_of(app.requests[-1].body) == ["user", "assistant", "user"]
    assert len(store) == 2


async def test_what_is_not_to_be_stored_does_not_wait() -> None:
    store = SharedStore()
    store.fault = StoreError("down")
    async with durable(ScriptedApp(), store).socket(KEY) as ws:
        assert kinds(await ws.turn(create(store=False)))[-1] == "completed"
    async with durable(ScriptedApp(), store).socket() as nobody:
        assert kinds(await nobody.turn(create()))[-1] == "completed", "of strangers nothing is stored"
    assert store.asked == 0


async def test_a_response_without_room_in_memory_is_no_success() -> None:
    """It is kept nowhere then."""
    store = SharedStore()
    shell = durable(ScriptedApp(), store, limits={"max_tenant_bytes": 100})
    async with shell.socket(KEY) as ws:
        assert code_of((await ws.turn(create("x" * 500)))[-1]) == "store_unavailable"


async def test_a_turn_that_was_not_stored_is_billed_for_what_it_used() -> None:
    """The model has answered, whatever the client was told."""
    store, books = SharedStore(), Books()
    store.fault = StoreError("down")
    shell = durable(ScriptedApp(), store, settlement=books.settlement())
    async with shell.socket(KEY) as ws:
        assert code_of((await ws.turn(create()))[-1]) == "store_unavailable"
    (record,) = books.records
    assert (record.outcome, record.code, record.ran) == ("failed", "store_unavailable", True)
    assert record.usage is not None
    assert record.usage.total_tokens is not None
    assert not record.usage.partial


@pytest.mark.parametrize("how", ["client", "operator"])
async def test_a_turn_that_ends_while_it_is_stored_ends_once(how: str) -> None:
    store = SharedStore()
    shell = durable(ScriptedApp(), store)
    async with shell.socket(KEY) as ws:
        store.hold()
        await ws.send_json(create())
        await settle()
        if how == "client":
            await ws.close()
        else:
            (connection,) = shell.middleware.registry.connections
            shell.middleware.disconnect(connection.tenant)
            events = await ws.collect()
            assert kinds(events)[-1] == "failed"
        store.go.set()
        await settle()
    assert len(shell.facts.of(TurnFinished)) == 1


@pytest.mark.parametrize("store", ["memory", None, InProcessStore(Ledger(1, 1), lambda: 0.0)], ids=str)
def test_it_needs_a_store_outside_of_the_process(store: Any) -> None:
    with pytest.raises(ConfigurationError, match="outlives"):
        ResponsesWebSocketMiddleware(ScriptedApp(), store=store, durable=True)


# -- whose chains they are --------------------------------------------------------------------------------------------


def test_a_shared_store_without_a_tenant_key_is_warned_of() -> None:
    """Each process hashes with a key of its own: what one stores no other finds, and nothing else would say so."""
    with pytest.warns(UserWarning, match="tenant_key"):
        ResponsesWebSocketMiddleware(ScriptedApp(), store=SharedStore())
    named: list[dict[str, Any]] = [{"tenant_key": b"k" * 32}, {"tenant": lambda _: "t"}]
    for options in named:
        ResponsesWebSocketMiddleware(ScriptedApp(), store=SharedStore(), **options)
    ResponsesWebSocketMiddleware(ScriptedApp(), store="memory")
    ResponsesWebSocketMiddleware(ScriptedApp(), store=None)


async def test_where_the_operator_names_no_tenant_it_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """What `tenant` and `authorize` will say is not known at the start."""
    shell = Shell(ScriptedApp(), store=SharedStore(), tenant_key=None, tenant=lambda _: None)
    for _ in range(2):
        async with shell.socket(KEY):
            pass
    assert caplog.text.count("Give all processes") == 1
