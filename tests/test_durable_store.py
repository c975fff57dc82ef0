"""`durable=True`: no client is told of a success before the store has the response, whatever becomes of the store."""

from typing import Any

import anyio
import pytest

from tests.held_store import SharedStore
from tests.rooms import Books
from tests.shell import KEY, Shell, code_of, create, error_of, frames_of, id_of, kinds, types_of
from ws_responses import ConfigurationError, ResponsesWebSocketMiddleware
from ws_responses.errors import StoreError
from ws_responses.instrumentation import StoreFailed, TurnFinished
from ws_responses.state.budget import Ledger
from ws_responses.state.store import InProcessStore
from ws_responses.testing import ScriptedApp, settle


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


# -- who stops a turn while it is stored ------------------------------------------------------------------------------


@pytest.mark.parametrize("frame", [{}, {"response_id": "its own"}], ids=["lane", "response"])
async def test_a_cancel_while_a_response_is_stored_comes_too_late(frame: dict[str, str]) -> None:
    """Told that it was cancelled, the client would have an id that resolves nevertheless, here and at the next worker."""
    app, store = ScriptedApp(), SharedStore()
    shell = durable(app, store, accept_cancel=True)
    async with shell.socket(KEY) as ws:
        store.hold()
        await ws.send_json(create("one"))
        await settle()
        target = frames_of(ws)[0]["response"]["id"]
        await ws.send_json({"type": "response.cancel", **dict.fromkeys(frame, target)})
        await settle()
        assert "completed" not in kinds(frames_of(ws)), "the store does not have it yet"
        store.go.set()
        events = await ws.collect()
        assert (kinds(events)[-1], id_of(events)) == ("completed", target)
        assert kinds(await ws.turn(create("two", previous_response_id=target)))[-1] == "completed"
        async with durable(ScriptedApp(), store).socket(KEY) as other:
            assert kinds(await other.turn(create(previous_response_id=target)))[-1] == "completed"
    assert shell.facts.outcomes[0] == ("completed", None)


async def test_a_cancel_of_a_lane_drops_what_waits_behind_a_response_that_is_stored() -> None:
    """They have not run: that the one before them cannot be stopped any more is no reason to start them."""
    app, store = ScriptedApp(), SharedStore()
    async with durable(app, store, accept_cancel=True).socket(KEY) as ws:
        store.hold()
        await ws.send_json(create("one"))
        await ws.send_json(create("two"))
        await settle()
        await ws.send_json({"type": "response.cancel"})
        await settle()
        store.go.set()
        await settle()
        assert kinds(frames_of(ws))[-2:] == ["error", "completed"]
    assert len(app.requests) == 1


async def test_an_upstream_is_not_silent_while_its_response_is_stored() -> None:
    """It has answered: its time limit would blame it, evict the parent, and leave an id that resolves."""
    store = SharedStore()
    shell = durable(ScriptedApp(), store, limits={"event_timeout_s": 1.0, "store_timeout_s": 30.0})
    async with shell.socket(KEY) as ws:
        store.hold()
        await ws.send_json(create())
        await settle()
        for _ in range(8):
            await shell.clock.advance(0.5)
        store.go.set()
        events = await ws.collect()
    assert kinds(events)[-1] == "completed"


@pytest.mark.parametrize("how", ["operator", "drain"])
@pytest.mark.parametrize("takes_late", [False, True], ids=["not yet written", "written"])
async def test_a_response_whose_connection_is_ended_while_it_is_stored_is_taken_back(
    how: str, takes_late: bool
) -> None:
    """Its client is told of a failure, and goes on from the response before: what is stored must not say otherwise."""
    store, books = SharedStore(), Books()
    shell = durable(ScriptedApp(), store, settlement=books.settlement(), limits={"store_timeout_s": 90.0})
    async with shell.socket(KEY) as ws:
        parent = id_of(await ws.turn(create("one")))
        store.hold()
        store.takes_late = takes_late
        await ws.send_json(create("two", previous_response_id=parent))
        await settle()
        if how == "operator":
            shell.middleware.disconnect(next(iter(shell.middleware.registry.connections)).tenant)
        else:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(shell.middleware.drain)
                await settle()
                await shell.clock.advance(shell.middleware._settings.limits.age_grace_s)
                await settle()
                tasks.cancel_scope.cancel()
        events = await ws.collect()
        assert kinds(events)[-1] == "failed"
        await shell.clock.advance(1.0)
        await settle()
    store.takes_late = False
    store.go.set()
    assert len(store) == 1, "the parent's alone"
    async with durable(ScriptedApp(), store).socket(KEY) as other:
        assert (
            code_of((await other.turn(create(previous_response_id=id_of(events))))[-1]) == "previous_response_not_found"
        )
        assert kinds(await other.turn(create("two", previous_response_id=parent)))[-1] == "completed"
    assert books.records[1].usage is not None
    assert books.records[1].usage.total_tokens, "the model has answered"


async def test_what_a_store_takes_too_late_is_taken_back() -> None:
    """A store that does the write and loses the answer has what its client was told it has not."""
    store = SharedStore()
    shell = durable(ScriptedApp(), store)
    async with shell.socket(KEY) as ws:
        store.hold()
        store.takes_late = True
        await ws.send_json(create())
        await settle()
        assert len(store) == 1
        await shell.clock.advance(shell.middleware._settings.limits.store_timeout_s)
        assert code_of((await ws.collect())[-1]) == "store_unavailable"
        await settle()
        assert len(store) == 0


@pytest.mark.parametrize("takes_late", [False, True], ids=["not yet written", "written"])
async def test_of_a_client_that_leaves_while_it_is_stored_the_store_has_all_or_nothing(takes_late: bool) -> None:
    """It was told no end: either is right, and its usage is in the books."""
    store, books = SharedStore(), Books()
    shell = durable(ScriptedApp(), store, settlement=books.settlement())
    async with shell.socket(KEY) as ws:
        store.hold()
        store.takes_late = takes_late
        await ws.send_json(create())
        await settle()
        response_id = frames_of(ws)[0]["response"]["id"]
        await ws.close()
        await shell.clock.advance(1.0)
        await settle()
        assert ws.returned
    store.takes_late = False
    store.go.set()
    async with durable(ScriptedApp(), store).socket(KEY) as other:
        events = await other.turn(create(previous_response_id=response_id))
    assert kinds(events)[-1] == ("completed" if takes_late else "error")
    (record,) = books.records
    assert (record.outcome, record.usage is not None and record.usage.total_tokens is not None) == ("gone", True)


async def test_a_cancel_while_a_turn_is_settled_comes_too_late() -> None:
    """With `before_terminal` no end is told that is not in the books: not to one who cancels either."""
    books = Books()
    books.gate = anyio.Event()
    shell = Shell(ScriptedApp(), accept_cancel=True, settlement=books.settlement(before_terminal=True))
    async with shell.socket(KEY) as ws:
        await ws.send_json(create())
        await settle()
        await ws.send_json({"type": "response.cancel"})
        await settle()
        assert "completed" not in kinds(frames_of(ws))
        books.gate.set()
        assert kinds(await ws.collect())[-1] == "completed"
    assert books.outcomes == ["completed"]


@pytest.mark.parametrize(
    "store", ["memory", None, InProcessStore(Ledger(1, 1), lambda: 0.0)], ids=["name", "none", "own"]
)
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
