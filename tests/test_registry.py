"""What the connections of one middleware share: places, the operator's reach, the store and its failures."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import anyio
import pytest
from msgspec.structs import replace

from tests.shell import KEY, OTHER_KEY, Shell, by_bearer, code_of, create, id_of, kinds, types_of
from ws_responses import Handshake, Principal
from ws_responses._types import Message
from ws_responses.errors import RecordUnreadable, StoreError
from ws_responses.ids import Ids
from ws_responses.instrumentation import ConnectionDenied, StoreFailed, TurnFinished
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey
from ws_responses.testing import MemorySocket, ScriptedApp, settle, steps


async def refused(ws: MemorySocket) -> tuple[int, str, bytes | None]:
    """Status, code and retry-after of a refusal."""
    await ws.handshake()
    assert ws.denial is not None
    return ws.denial.status, ws.denial.json()["error"]["code"], ws.denial.header(b"retry-after")


# -- places -----------------------------------------------------------------------------------------------------------


async def test_connections_of_the_process_are_capped() -> None:
    shell = Shell(ScriptedApp(), {"max_connections": 2})
    async with shell.socket(KEY), shell.socket(OTHER_KEY) as second:
        assert shell.middleware.connections == 2
        async with shell.socket() as third:
            assert await refused(third) == (429, "websocket_connections_exhausted", b"5")
        await second.close()
        await second.wait_returned()
        async with shell.socket() as third:
            assert third.accepted
    assert shell.middleware.connections == 0


async def test_connections_of_a_tenant_are_capped_and_others_are_not() -> None:
    shell = Shell(ScriptedApp(), {"max_tenant_connections": 2})
    async with shell.socket(KEY), shell.socket(KEY) as second:
        async with shell.socket(KEY) as third:
            assert await refused(third) == (429, "websocket_connections_exhausted", b"5")
        async with shell.socket(OTHER_KEY) as other, shell.socket() as anonymous, shell.socket() as stranger:
            assert other.accepted
            assert anonymous.accepted
            assert stranger.accepted
        await second.close()
        await second.wait_returned()
        async with shell.socket(KEY) as third:
            assert third.accepted


async def test_none_is_no_cap() -> None:
    shell = Shell(ScriptedApp(), {"max_connections": None, "max_tenant_connections": None})
    async with shell.socket(KEY) as first, shell.socket(KEY) as second:
        assert first.accepted
        assert second.accepted


@pytest.mark.parametrize("limits", [{"max_connections": 2}, {"max_tenant_connections": 2}])
async def test_upgrades_that_are_still_judged_hold_their_place(limits: dict[str, int]) -> None:
    """Else a burst of upgrades, all judged at the same time, would all find room."""
    go = anyio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        await go.wait()

    shell = Shell(slow, limits)
    async with (
        shell.socket(KEY, wait_handshake=False) as first,
        shell.socket(KEY, wait_handshake=False) as second,
    ):
        await settle()
        async with shell.socket(KEY) as third:
            assert (await refused(third))[0] == 429
        go.set()
        await first.handshake()
        await second.handshake()
        assert shell.middleware.connections == 2


async def test_the_cap_is_looked_at_before_anything_that_costs() -> None:
    asked: list[str | None] = []

    def authorize(handshake: Handshake, model: str | None) -> Principal:
        asked.append(handshake.bearer_token)
        return Principal(id="x")

    shell = Shell(ScriptedApp(), {"max_connections": 1}, authorize=authorize)
    async with shell.socket(KEY), shell.socket(OTHER_KEY) as second:
        assert (await refused(second))[0] == 429
    assert asked == ["key-1"]


async def test_refused_upgrades_leave_nothing_behind() -> None:
    """A flood of bad keys must not fill the memory with tenants, or the places with ghosts."""
    app = ScriptedApp(auth="good")

    async def refuses(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": 401})
            await send({"type": "http.response.body"})
        else:
            await app(scope, receive, send)

    probed = Shell(refuses)
    authorized = Shell(app, authorize=by_bearer({}))
    full = Shell(ScriptedApp(), {"max_tenant_connections": 1})
    for shell in (probed, authorized):
        for number in range(20):
            async with shell.socket((b"authorization", b"Bearer bad-%d" % number)) as ws:
                assert (await refused_status(ws)) == 401
    async with full.socket(KEY):
        for _ in range(20):
            async with full.socket(KEY) as ws:
                assert (await refused_status(ws)) == 429
    for shell in (probed, authorized, full):
        assert shell.middleware.registry.ledger.connections == 0
        assert shell.middleware.registry.ledger.tenants == 0


async def refused_status(ws: MemorySocket) -> int:
    await ws.handshake()
    assert ws.denial is not None
    return ws.denial.status


async def test_a_connection_that_ends_gives_its_place_back_once() -> None:
    shell = Shell(ScriptedApp(), {"max_connections": 1})
    for leave in ("close", "abort"):
        async with shell.socket(KEY) as ws:
            await ws.turn(create(store=False))
            await getattr(ws, leave)()
    ledger = shell.middleware.registry.ledger
    assert (ledger.connections, ledger.tenants) == (0, 0)


# -- drain ------------------------------------------------------------------------------------------------------------


async def test_drain_refuses_upgrades() -> None:
    shell = Shell(ScriptedApp())

    assert await shell.middleware.drain() is True

    async with shell.socket() as ws:
        assert await refused(ws) == (503, "server_is_overloaded", b"1")
    assert [fact.status for fact in shell.facts.of(ConnectionDenied)] == [503]


async def test_drain_closes_idle_connections_at_once() -> None:
    shell = Shell(ScriptedApp())
    async with shell.socket(KEY) as first, shell.socket() as second:
        await first.turn(create())
        assert await shell.middleware.drain() is True
        assert (first.close_code, second.close_code) == (1012, 1012)
        assert (first.unread, second.unread) == (0, 0), "no error frame: nobody waits for an answer"
    assert shell.clock.now() == 0


async def test_drain_lets_running_turns_end_and_refuses_waiting_ones() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.created(), steps.wait_for(go), steps.text("done")])
    shell = Shell(app)

    async with shell.socket(KEY) as ws, anyio.create_task_group() as tasks:
        drained: list[bool] = []

        async def drain() -> None:
            drained.append(await shell.middleware.drain())

        await ws.send_json(create())
        await ws.send_json(create("waits"))
        await app.wait_requests(1)
        tasks.start_soon(drain)
        await settle()
        assert not drained
        await ws.send_json(create("late"))
        await ws.send_json(create("late", stream_id="a"))
        late = [await ws.receive_json() for _ in range(3)][-1]
        assert (late["type"], late["status"], late["stream_id"]) == ("error", 503, "a")
        go.set()
        assert kinds(await ws.collect())[-1] == "completed"
        for _ in range(2):
            error = await ws.receive_json()
            assert (error["type"], error["status"], error["headers"]) == ("error", 503, {"retry-after": "1"})
            assert "stream_id" not in error
        assert await ws.wait_closed() == 1012
        await settle()
        assert drained == [True]
    assert len(app.requests) == 1


async def test_drain_ends_what_runs_after_the_grace() -> None:
    app = ScriptedApp()
    app.script([steps.created(), steps.stall()])
    shell = Shell(app, {"age_grace_s": 60.0})

    async with shell.socket(KEY) as ws, anyio.create_task_group() as tasks:
        await ws.send_json(create())
        await app.wait_events(2)
        tasks.start_soon(shell.middleware.drain)
        await shell.clock.advance(59.875)
        assert ws.close_code is None
        await shell.clock.advance(1)
        events = await ws.collect()
        assert kinds(events) == ["created", "in_progress", "failed"]
        assert code_of(events[-1]) == "server_is_overloaded"
        assert await ws.wait_closed() == 1012
    assert app.running == 0
    assert shell.facts.outcomes == [("aborted", "server_is_overloaded")]


async def test_drain_tells_when_its_time_was_not_enough() -> None:
    app = ScriptedApp()
    app.script([steps.stall()])
    shell = Shell(app)

    async with shell.socket(KEY) as ws, anyio.create_task_group() as tasks:
        results: list[bool] = []

        async def drain(seconds: float) -> None:
            results.append(await shell.middleware.drain(seconds))

        await ws.send_json(create())
        await app.wait_requests(1)
        tasks.start_soon(drain, 10)
        tasks.start_soon(drain, 20)
        await shell.clock.advance(10)
        assert results == [False]
        await ws.close()
        await shell.clock.advance(1)
        assert results == [False, True], "each caller is told"


async def test_all_who_wait_for_the_drain_are_told() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.wait_for(go)])
    shell = Shell(app)
    results: list[bool] = []

    async def drain() -> None:
        results.append(await shell.middleware.drain())

    async with shell.socket(KEY) as ws, anyio.create_task_group() as tasks:
        await ws.send_json(create())
        await app.wait_requests(1)
        for _ in range(3):
            tasks.start_soon(drain)
        await settle()
        assert results == []
        go.set()
        await ws.collect()
        await settle()
        assert results == [True] * 3


async def test_an_upgrade_that_is_judged_while_drain_begins_is_not_let_in() -> None:
    """It would be a connection that nobody closes any more."""
    go = anyio.Event()

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        await go.wait()
        return Principal(id="x")

    shell = Shell(ScriptedApp(), authorize=authorize)
    async with shell.socket(wait_handshake=False) as ws, anyio.create_task_group() as tasks:
        await settle()
        tasks.start_soon(shell.middleware.drain)
        await settle()
        go.set()
        assert (await refused(ws))[0] == 503


async def test_an_upgrade_that_is_accepted_while_drain_begins_is_closed() -> None:
    shell = Shell(ScriptedApp())
    accepting, accepted = anyio.Event(), anyio.Event()
    sent: list[dict[str, Any]] = []
    gone = anyio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "websocket.accept":
            accepting.set()
            await accepted.wait()
        if message["type"] == "websocket.close":
            gone.set()

    first = True

    async def receive() -> Any:
        nonlocal first
        if first:
            first = False
            return {"type": "websocket.connect"}
        await gone.wait()
        return {"type": "websocket.disconnect", "code": 1012}

    async with anyio.create_task_group() as tasks:
        scope = {"type": "websocket", "path": "/v1/responses", "headers": []}
        tasks.start_soon(shell.middleware, scope, receive, send)
        await accepting.wait()
        tasks.start_soon(shell.middleware.drain)
        await settle()
        accepted.set()
    assert [(message["type"], message.get("code")) for message in sent] == [
        ("websocket.accept", None),
        ("websocket.close", 1012),
    ]


# -- disconnect -------------------------------------------------------------------------------------------------------


async def test_disconnect_ends_the_connections_of_a_tenant() -> None:
    app = ScriptedApp()
    app.script([steps.created(), steps.stall()], [steps.stall()])
    shell = Shell(app, authorize=by_bearer({"key-1": "anna", "key-2": "bert"}))

    async with shell.socket(KEY) as running, shell.socket(KEY) as idle, shell.socket(OTHER_KEY) as other:
        await running.send_json(create())
        await app.wait_events(2)
        await running.send_json(create("waits"))
        await running.send_json(create("before created", stream_id="b"))
        await app.wait_requests(2)

        assert shell.middleware.disconnect("anna", "revoked") == 2
        assert shell.middleware.disconnect("nobody") == 0
        await running.wait_received()
        assert (await running.wait_closed(), running.close_reason) == (1008, "revoked")
        assert (await idle.wait_closed(), idle.close_reason) == (1008, "revoked")
        events = [await running.receive_json() for _ in range(5)]
        assert [event["type"] for event in events[2:] if "stream_id" not in event] == ["response.failed", "error"]
        assert [event["type"] for event in events[2:] if event.get("stream_id") == "b"] == ["error"]
        assert {code_of(event) for event in events[2:]} == {"permission_denied"}
        assert other.close_code is None
        await shell.clock.advance(1)
        assert app.running == 0
        assert kinds(await other.turn(create()))[-1] == "completed"
    assert len(app.requests) == 3, "what waited never ran"


async def test_a_long_reason_is_cut_at_a_character() -> None:
    """A close frame holds 123 bytes of it; servers raise at more, or at half a character."""
    shell = Shell(ScriptedApp(), authorize=by_bearer({"key-1": "anna"}))
    async with shell.socket(KEY) as ws:
        shell.middleware.disconnect("anna", "é" * 100)
        assert await ws.wait_closed() == 1008
        assert ws.close_reason == "é" * 61


# -- ids --------------------------------------------------------------------------------------------------------------


async def test_ids_cannot_be_guessed_and_never_repeat() -> None:
    ids = Ids()

    drawn = [ids.new("resp") for _ in range(1000)]
    turns = [ids.new_turn() for _ in range(10)]

    assert len(set(drawn)) == 1000
    assert all(re.fullmatch(r"resp_[0-9a-f]{32}", each) for each in drawn)
    assert len(set(turns)) == 10
    assert Ids().new_turn() not in turns, "unique over processes"


# -- a store that takes its time --------------------------------------------------------------------------------------


class SlowStore:
    """A shared store whose every operation waits for the test."""

    def __init__(self) -> None:
        self.kept: dict[StoreKey, tuple[Record, StoreKey | None]] = {}
        self.lost: dict[str, tuple[StoreKey, tuple[Record, StoreKey | None]]] = {}
        self.begun: list[str] = []
        self.gates: dict[str, anyio.Event] = {}
        self.errors: dict[str, Exception] = {}
        self.closed = False

    async def _pass(self, operation: str, key: StoreKey) -> None:
        self.begun.append(f"{operation} {key.response_id}")
        if operation in self.gates:
            await self.gates[operation].wait()
        if operation in self.errors:
            raise self.errors[operation]

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await self._pass("append", key)
        self.kept[key] = (record, parent)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        await self._pass("load", key)
        records: list[Record] = []
        at: StoreKey | None = key
        while at is not None and at in self.kept:
            record, at = self.kept[at]
            records.append(record)
        return records[::-1]

    async def delete(self, key: StoreKey) -> None:
        await self._pass("delete", key)
        if key in self.kept:
            self.lost[key.response_id] = (key, self.kept.pop(key))

    async def aclose(self) -> None:
        self.closed = True

    def forget_charges(self) -> None:
        """Make the records what they are when they come from another process."""
        self.kept = {key: (replace(record, size=0, budgets=()), parent) for key, (record, parent) in self.kept.items()}


async def test_a_turn_never_waits_for_a_shared_store() -> None:
    """The closing event, and the next turn of the socket, come while the write is still on its way, in order."""
    app = ScriptedApp()
    store = SlowStore()
    store.gates["append"] = anyio.Event()
    shell = Shell(app, store=store)

    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create()))
        second = id_of(await ws.turn(create(previous_response_id=first)))
        await settle()
        assert store.begun == [f"append {first}"], "one at a time: a child never before its parent"
        store.gates["append"].set()
        await settle()
        assert store.begun == [f"append {first}", f"append {second}"]

    async with shell.socket(KEY) as ws:
        await ws.turn(create(previous_response_id=second))
    assert types_of(app.requests[-1].body) == ["user", "assistant", "user", "assistant", "user"]


async def test_the_end_of_a_connection_waits_for_its_writes_within_bounds() -> None:
    store = SlowStore()
    store.gates["append"] = anyio.Event()
    shell = Shell(ScriptedApp(), {"store_timeout_s": 2.0}, store=store)

    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create()))
        second = id_of(await ws.turn(create()))
        await ws.close()
        await settle()
        assert shell.middleware.connections == 1
        await shell.clock.advance(2)
        assert store.begun == [f"append {first}", f"append {second}"]
        store.gates["append"].set()
        await settle()
        assert shell.middleware.connections == 0
    assert [(fact.operation, fact.error) for fact in shell.facts.of(StoreFailed)] == [("append", "late")]
    assert [key.response_id for key in store.kept] == [second]


async def test_writes_that_cannot_be_finished_are_told_one_by_one() -> None:
    store = SlowStore()
    store.gates["append"] = anyio.Event()
    shell = Shell(ScriptedApp(), {"store_timeout_s": 100.0, "background_timeout_s": 30.0}, store=store)

    async with shell.socket(KEY) as ws:
        for _ in range(3):
            await ws.turn(create())
        await ws.close()
        await shell.clock.advance(29.875)
        assert shell.middleware.connections == 1
        await shell.clock.advance(0.125)
        assert shell.middleware.connections == 0
    assert [fact.operation for fact in shell.facts.of(StoreFailed)] == ["append"] * 3


@pytest.mark.parametrize("error", [StoreError("redis://:password@host is down"), OSError("x"), RuntimeError("x")])
async def test_a_store_that_fails_costs_nothing_but_what_it_should_have_kept(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """The turn is not its victim; whoever watches is told the kind only, no addresses, no content."""
    store = SlowStore()
    shell = Shell(ScriptedApp(), store=store)

    async with shell.socket(KEY) as ws:
        store.errors["append"] = error
        first = id_of(await ws.turn(create()))
        store.errors["load"] = error
        (event,) = await ws.turn(create(previous_response_id="resp_x"))
        assert code_of(event) == "previous_response_not_found"
        assert kinds(await ws.turn(create(previous_response_id=first)))[-1] == "completed"
    await settle()
    failures = [(fact.operation, fact.error) for fact in shell.facts.of(StoreFailed)]
    assert failures == [(operation, type(error).__name__) for operation in ("append", "load", "append")]
    assert "password" not in caplog.text


@pytest.mark.parametrize("limit", [2.0])
async def test_a_late_load_is_a_miss(limit: float) -> None:
    store = SlowStore()
    store.gates["load"] = anyio.Event()
    shell = Shell(ScriptedApp(), {"store_timeout_s": limit}, store=store)

    async with shell.socket(KEY) as ws:
        await ws.send_json(create(previous_response_id="resp_x"))
        await shell.clock.advance(limit - 0.125)
        assert ws.unread == 0
        await shell.clock.advance(0.125)
        assert code_of(await ws.receive_json()) == "previous_response_not_found"
    assert [(fact.operation, fact.error) for fact in shell.facts.of(StoreFailed)] == [("load", "late")]


async def test_a_chain_is_loaded_once() -> None:
    store = SlowStore()
    shell = Shell(ScriptedApp(), store=store)
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create()))
        last = id_of(await ws.turn(create(previous_response_id=first)))
        await settle()
    async with shell.socket(KEY) as ws:
        for _ in range(3):
            assert kinds(await ws.turn(create(previous_response_id=last, store=False)))[-1] == "completed"
    assert [entry for entry in store.begun if entry.startswith("load")] == [f"load {last}"]


async def test_turns_that_fork_a_stored_chain_at_once_load_it_once() -> None:
    """Sixteen lanes after a reconnect would read the same megabytes sixteen times, and keep them as often."""
    app = ScriptedApp()
    store = SlowStore()
    shell = Shell(app, store=store)
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create("x" * 100_000)))
        await settle()
    store.forget_charges()
    store.gates["load"] = anyio.Event()
    async with shell.socket(KEY) as ws, shell.socket(KEY) as other:
        for lane in range(4):
            await ws.send_json(create("fork", previous_response_id=first, store=False, stream_id=f"lane{lane}"))
        await other.send_json(create("fork", previous_response_id=first, store=False))
        await settle()
        store.gates["load"].set()
        for lane in range(4):
            await ws.collect(f"lane{lane}")
        await other.collect()
        assert store.begun.count(f"load {first}") == 1
        assert 2 * 100_000 < shell.middleware.history_bytes < 2 * 120_000, "once for each connection"
    assert len(app.requests) == 6
    app.requests.clear()  # their scopes hold the turns
    assert shell.middleware.history_bytes == 0


async def test_a_loaded_chain_is_charged_whatever_the_store_says_of_its_size() -> None:
    """Records from another process come without a charge: a client could fill the memory with them."""
    store = SlowStore()
    shell = Shell(ScriptedApp(), store=store)
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create("x" * 100_000)))
        await settle()
    store.forget_charges()
    (key,) = store.kept
    async with shell.socket(KEY) as ws:
        await ws.turn(create(previous_response_id=first, store=False))
        assert shell.middleware.history_bytes > 100_000
    small = Shell(ScriptedApp(), {"max_connection_bytes": 50_000}, store=store, tenant=lambda _: key.tenant)
    async with small.socket(KEY) as ws:
        (event,) = await ws.turn(create(previous_response_id=first, store=False))
        assert code_of(event) == "previous_response_not_found"
    assert small.middleware.history_bytes == 0


class ClosedStore(SlowStore):
    """A store that would rather have a turn refused than run without its history."""

    fails_closed = True


@pytest.mark.parametrize("error", [StoreError("x"), OSError("x"), None])
@pytest.mark.parametrize("history", ["replay", "forward"])
async def test_a_store_that_fails_closed_refuses_turns_that_need_it(
    error: Exception | None, history: Literal["replay", "forward"]
) -> None:
    """A client that is told "not found" sends its whole history anew; told 503, it tries again and finds its chain."""
    app = ScriptedApp()
    store = ClosedStore()
    shell = Shell(app, {"store_timeout_s": 2.0}, store=store, history=history)
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create()))
        await settle()
    async with shell.socket(KEY) as ws:
        if error is None:
            store.gates["load"] = anyio.Event()
        else:
            store.errors["load"] = error
        await ws.send_json(create(previous_response_id=first))
        if error is None:
            await shell.clock.advance(2)
        (event,) = await ws.collect()
        assert (event["type"], event["status"], code_of(event)) == ("error", 503, "store_unavailable")
        assert event["headers"] == {"retry-after": "1"}
        assert len(app.requests) == 1
        assert kinds(await ws.turn(create("needs no store")))[-1] == "completed"
        store.errors.clear()
        store.gates.clear()
        assert kinds(await ws.turn(create(previous_response_id=first)))[-1] == "completed"
    body = app.requests[-1].body
    assert body["previous_response_id"] == first if history == "forward" else types_of(body)[-1] == "user"


async def test_a_record_that_cannot_be_read_is_a_miss_even_where_the_store_fails_closed() -> None:
    """It will not become readable: a client that is told to try again would do so for ever."""
    store = ClosedStore()
    shell = Shell(ScriptedApp(), store=store)
    store.errors["load"] = RecordUnreadable("x")
    async with shell.socket(KEY) as ws:
        (event,) = await ws.turn(create(previous_response_id="resp_x"))
        assert code_of(event) == "previous_response_not_found"
    assert [fact.error for fact in shell.facts.of(StoreFailed)] == ["RecordUnreadable"]


async def test_an_id_that_is_deleted_while_it_is_written_or_loaded_is_gone() -> None:
    """Whatever the order in which a slow store does things."""
    app = ScriptedApp(stateful=True)
    store = SlowStore()
    store.gates["append"] = anyio.Event()
    shell = Shell(app, store=store)
    deleted: list[int] = []
    first = second = ""

    async def delete(response_id: str) -> None:
        deleted.append(await delete_over_http(shell, response_id))

    async with shell.socket(KEY) as ws, anyio.create_task_group() as tasks:
        first = id_of(await ws.turn(create()))
        second = id_of(await ws.turn(create()))
        tasks.start_soon(delete, first)
        await settle()
        assert not deleted
        store.gates["append"].set()
        await settle()
        assert deleted == [200]
        assert store.begun == [f"append {first}", f"append {second}", f"delete {first}"]

    async with shell.socket(KEY) as ws, anyio.create_task_group() as tasks:
        store.gates["load"] = anyio.Event()
        await ws.send_json(create(previous_response_id=second))
        await settle()
        tasks.start_soon(delete, second)
        await settle()
        assert deleted == [200, 200]
        record = store.lost[second]
        store.kept[record[0]] = record[1]  # the answer was on its way already
        store.gates["load"].set()
        await ws.collect()
        store.kept.clear()
        for response_id in (first, second):
            (event,) = await ws.turn(create(previous_response_id=response_id))
            assert code_of(event) == "previous_response_not_found"


async def test_a_delete_does_not_wait_for_ever_for_writes() -> None:
    app = ScriptedApp(stateful=True)
    store = SlowStore()
    store.gates["append"] = anyio.Event()
    shell = Shell(app, {"store_timeout_s": 2.0}, store=store)
    async with shell.socket(KEY) as ws, anyio.create_task_group() as tasks:
        ids = [id_of(await ws.turn(create())) for _ in range(3)]
        tasks.start_soon(delete_over_http, shell, ids[2])
        await shell.clock.advance(2)
        assert f"delete {ids[2]}" in store.begun
        store.gates["append"].set()
        await settle()


async def delete_over_http(shell: Shell, response_id: str) -> int:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "DELETE", "path": f"/v1/responses/{response_id}", "headers": [KEY]}
    await shell.middleware(scope, receive, send)
    return int(sent[0]["status"])


async def test_closing_the_middleware_closes_its_store() -> None:
    store = SlowStore()
    shell = Shell(ScriptedApp(), store=store)

    await shell.middleware.aclose()

    assert store.closed


async def test_without_a_store_nothing_outlives_its_connection() -> None:
    shell = Shell(ScriptedApp(), store=None)
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create(store=True)))
        assert kinds(await ws.turn(create(previous_response_id=first, store=True)))[-1] == "completed"
    async with shell.socket(KEY) as ws:
        (event,) = await ws.turn(create(previous_response_id=first))
        assert code_of(event) == "previous_response_not_found"
    assert len(shell.facts.of(TurnFinished)) == 3
