"""Every limit that the socket side keeps, just below, at, and just above its number."""

import ast
import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.shell import KEY, Client, Shell, code_of, create, error_of, id_of, kinds
from ws_responses import ConfigurationError, Limits
from ws_responses.instrumentation import NodeDropped
from ws_responses.testing import ScriptedApp, ScriptedModel, settle, steps

SIZES = [pytest.param(-1, id="n-1"), pytest.param(0, id="n"), pytest.param(1, id="n+1")]

COVERED = {
    "max_rollout_appends": "test_rollout.test_a_rollout_waits_so_often",
    "blocked_timeout_s": "test_rollout.test_a_rollout_waits_so_long",
    "max_pending_steers": "test_steering.test_so_many_may_be_pending",
    "max_pending_steer_bytes": "test_steering.test_so_many_bytes_may_be_pending",
    "max_frame_bytes": "test_limits_shell.test_frame_bytes",
    "max_request_bytes": "test_limits_shell.test_bytes_of_the_rebuilt_request",
    "max_queued_creates": "test_limits_shell.test_queued_creates",
    "max_queued_bytes": "test_limits_shell.test_queued_bytes",
    "max_lanes": "test_limits_shell.test_lanes",
    "max_running_turns": "test_limits_shell.test_running_turns",
    "max_warmup_bytes": "test_limits_shell.test_bytes_of_warm_ups_before_the_first_call",
    "max_event_bytes": "test_limits_shell.test_event_bytes",
    "max_answer_bytes": "test_limits_shell.test_answer_bytes",
    "max_outgoing_bytes": "test_limits_shell.test_outgoing_bytes",
    "max_connections": "test_limits_shell.test_connections",
    "max_tenant_connections": "test_limits_shell.test_connections",
    "max_tenant_turns": "test_counters.test_turns_of_a_tenant_that_run_at_once",
    "max_connection_age_s": "test_connection.test_an_idle_connection_that_is_too_old_is_told_and_closed",
    "age_grace_s": "test_connection.test_turns_that_run_longer_than_the_grace_are_ended_by_the_limit_error",
    "idle_timeout_s": "test_connection.test_a_connection_that_is_idle_too_long_is_closed",
    "authorize_timeout_s": "test_middleware.test_authorize_that_is_late_is_503_with_retry_after",
    "body_timeout_s": "test_app.test_a_body_has_so_much_time",
    "probe_timeout_s": "test_middleware.test_a_hanging_probe_is_aborted_and_lets_the_client_in",
    "first_event_timeout_s": "test_connection.test_an_upstream_that_is_silent_too_long_ends_its_turn_and_no_other",
    "event_timeout_s": "test_connection.test_an_upstream_that_is_silent_too_long_ends_its_turn_and_no_other",
    "send_timeout_s": "test_connection.test_a_write_that_blocks_too_long_closes_with_1008_and_ends_the_call",
    "store_timeout_s": "test_registry.test_a_late_load_is_a_miss",
    "disconnect_grace_s": "test_connection.test_an_app_that_does_not_listen_is_cancelled_after_the_grace",
    "abort_timeout_s": "test_connection.test_an_app_that_ignores_its_end_is_waited_for_within_bounds_and_told_of",
    "trailing_timeout_s": "test_connection.test_an_app_that_goes_on_after_its_terminal_event_holds_up_nobody",
    "background_timeout_s": "test_connection.test_work_in_the_background_is_not_waited_for_for_ever",
    "close_timeout_s": "test_connection.test_a_peer_that_never_answers_a_close_is_given_up",
    "max_connection_bytes": "test_limits_shell.test_bytes_of_history",
    "max_tenant_bytes": "test_limits_shell.test_bytes_of_history",
    "max_process_bytes": "test_limits_shell.test_bytes_of_history",
    "store_ttl_s": "test_limits_shell.test_life_of_what_is_stored",
}


def test_every_limit_has_its_test() -> None:
    """A limit that nobody tests is a number in the docs; whoever adds one adds its line, and its test, here."""
    folder = Path(__file__).parent
    functions = {
        f"{path.stem}.{node.name}"
        for path in (*folder.glob("test_*.py"), *folder.glob("protocol/test_*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert COVERED.keys() == {field.name for field in dataclasses.fields(Limits)}
    assert set(COVERED.values()) <= functions


def frame_of(size: int, **fields: Any) -> str:
    """A create frame of exactly so many bytes."""
    bare = json.dumps(create("", **fields))
    return json.dumps(create("x" * (size - len(bare)), **fields))


# -- what a client sends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", SIZES)
@pytest.mark.parametrize("binary", [True, False])
async def test_frame_bytes(over: int, binary: bool) -> None:
    """Bytes on the wire, whatever the characters: 1009 beyond them, as RFC 6455 has it."""
    limit = 1000
    text = frame_of(limit + over)
    wide = text.replace("xxx", "€", 100)  # as many bytes, fewer characters
    async with Shell(ScriptedApp(), {"max_frame_bytes": limit}).socket() as ws:
        for frame in (text, wide):
            assert len(frame.encode()) == limit + over
            await (ws.send_bytes(frame.encode()) if binary else ws.send_text(frame))
            if over > 0:
                assert await ws.wait_closed() == 1009
                return
            assert kinds(await ws.collect())[-1] == "completed"


@pytest.mark.parametrize("over", SIZES)
async def test_bytes_of_the_rebuilt_request(over: int) -> None:
    """The delta may be small where the request rebuilt from the chain is not."""
    app = ScriptedApp(ScriptedModel(text="answer", id_factory=lambda prefix: f"{prefix}_{len(app.requests)}"))
    async with Shell(app).socket() as ws:
        first = id_of(await ws.turn(create("1")))
        await ws.turn(create("2", previous_response_id=first))
    size = len(app.requests[1].raw)

    app.requests.clear()
    async with Shell(app, {"max_request_bytes": size - over}).socket() as ws:
        first = id_of(await ws.turn(create("1")))
        event = (await ws.turn(create("2", previous_response_id=first)))[-1]
    if over <= 0:
        assert event["type"] == "response.completed"
    else:
        assert (event["type"], event["status"], code_of(event)) == ("error", 413, "request_too_large")
        assert error_of(event)["param"] == "input"
        assert len(app.requests) == 1


async def busy(ws: Client, app: ScriptedApp, go: anyio.Event, **fields: Any) -> None:
    """Keep a lane busy."""
    app.script(lambda body: [steps.wait_for(go)] if body["input"] == "busy" else None)
    await ws.send_json(create("busy", **fields))
    await app.wait_requests(1)


@pytest.mark.parametrize("over", SIZES)
async def test_queued_creates(over: int) -> None:
    limit = 3
    app = ScriptedApp()
    go = anyio.Event()
    async with Shell(app, {"max_queued_creates": limit}).socket() as ws:
        await busy(ws, app, go)
        for _ in range(limit + over):
            await ws.send_json(create())
        await settle()
        assert ws.unread == max(over, 0)
        if over > 0:
            event = await ws.receive_json()
            assert (event["status"], code_of(event)) == (429, "websocket_queue_full")
        go.set()
        for _ in range(1 + limit + min(over, 0)):
            assert kinds(await ws.collect())[-1] == "completed"
        assert kinds(await ws.turn(create()))[-1] == "completed"


@pytest.mark.parametrize("over", SIZES)
async def test_queued_bytes(over: int) -> None:
    """Bytes of the frames that wait, over all lanes."""
    limit = 2000
    app = ScriptedApp()
    go = anyio.Event()
    async with Shell(app, {"max_queued_bytes": limit, "max_running_turns": 1}).socket() as ws:
        await busy(ws, app, go)
        await ws.send_text(frame_of(1200, stream_id="b"))
        await ws.send_text(frame_of(800 + over))
        await settle()
        assert ws.unread == max(over, 0)
        if over > 0:
            event = await ws.receive_json()
            assert (event["status"], code_of(event)) == (429, "websocket_queue_full")
        go.set()
        for _ in range(3 - max(over, 0)):
            assert kinds(await ws.collect())[-1] == "completed"


@pytest.mark.parametrize("over", SIZES)
async def test_lanes(over: int) -> None:
    """Names count for the life of the connection, whether their lane is busy or not; the default lane is not one."""
    limit = 4
    async with Shell(ScriptedApp(), {"max_lanes": limit}).socket() as ws:
        await ws.turn(create())
        for number in range(limit + min(over, 0)):
            await ws.turn(create(stream_id=f"lane-{number}"))
        if over > 0:
            (event,) = await ws.turn(create(stream_id="one.too_many"))
            assert (event["status"], code_of(event)) == (400, "websocket_stream_limit_reached")
            assert (event["stream_id"], error_of(event)["param"]) == ("one.too_many", "stream_id")
        for lane in ("lane-0", None):
            assert kinds(await ws.turn(create() if lane is None else create(stream_id=lane)))[-1] == "completed"


@pytest.mark.parametrize("over", SIZES)
async def test_running_turns(over: int) -> None:
    """Over all lanes, the default one included; the next waits, and starts as soon as one has ended."""
    limit = 3
    app = ScriptedApp()
    go = anyio.Event()
    app.script(lambda _: [steps.wait_for(go)])
    async with Shell(app, {"max_running_turns": limit}).socket() as ws:
        for number in range(limit + over):
            await ws.send_json(create(**({"stream_id": f"lane-{number}"} if number else {})))
        await ws.wait_received()
        await settle()
        assert app.running == min(limit, limit + over)
        go.set()
        for _ in range(limit + over):
            assert kinds(await ws.collect())[-1] == "completed"
    assert app.max_running == min(limit, limit + over)


WARM_INPUT = [{"role": "user", "content": "x" * 100}]


@pytest.mark.parametrize("over", SIZES)
@pytest.mark.parametrize("held", ["input", "tools", "instructions"])
async def test_bytes_of_warm_ups_before_the_first_call(over: int, held: str) -> None:
    """Whatever of it is kept: a warm-up is answered without asking the app, so an unproven client could fill the memory."""
    limit = 1000
    value: Any = {"input": WARM_INPUT, "tools": [{"type": "x" * 100}], "instructions": "x" * 100}[held]
    size = len(json.dumps(value)) - (2 if held == "input" else 0)
    rest = limit - 2 * size + over
    app = ScriptedApp()
    shell = Shell(app, {"max_warmup_bytes": limit})
    async with shell.socket() as ws:
        frame = {"type": "response.create", "model": "m", "generate": False, held: value}
        parent = ""
        for _ in range(2):
            await ws.send_json(frame)
            parent = id_of(await ws.collect())
        filler = {"role": "user", "content": "y" * (rest - len('{"role": "user", "content": ""}'))}
        (*_, event) = await ws.turn(create([filler], generate=False, previous_response_id=parent))
        if over > 0:
            assert (event["type"], event["status"], code_of(event)) == ("error", 413, "warm_up_too_large")
            (*_, event) = await ws.turn(create([], generate=False, previous_response_id=parent))
            assert event["type"] == "response.completed", "it evicts nothing, and smaller ones are taken"
        else:
            assert event["type"] == "response.completed"
        assert kinds(await ws.turn(create(previous_response_id=parent)))[-1] == "completed"
        (*_, event) = await ws.turn(create("z" * 5000, generate=False))
        assert event["type"] == "response.completed", "the app has accepted a call: there is no cap any more"


async def test_a_refused_first_call_proves_nothing() -> None:
    app = ScriptedApp(auth="another")
    async with Shell(app, {"max_warmup_bytes": 1000}, probe=False).socket(KEY) as ws:
        assert code_of((await ws.turn(create()))[-1]) == "invalid_api_key"
        assert code_of((await ws.turn(create("x" * 2000, generate=False)))[-1]) == "warm_up_too_large"


async def test_a_refused_warm_up_is_not_kept() -> None:
    shell = Shell(ScriptedApp(), {"max_warmup_bytes": 1000})
    async with shell.socket() as ws:
        before = shell.middleware.history_bytes
        await ws.turn(create(generate=False, tools=[{"type": "x" * 5000}], instructions="y" * 5000))
        assert shell.middleware.history_bytes == before


# -- what the upstream sends ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", SIZES)
@pytest.mark.parametrize("pieces", [None, 97])
async def test_event_bytes(over: int, pieces: int | None) -> None:
    """Of the event's line, however it is cut."""
    limit = 4000
    app = ScriptedApp()
    event = {"type": "response.custom", "sequence_number": 2, "data": ""}
    bare = len("data: " + json.dumps(event, separators=(",", ":")))
    event["data"] = "x" * (limit + over - bare)
    script = [steps.created(), steps.event(event), steps.sse_format(event_field=False)]
    app.script(script if pieces is None else [*script, steps.chunk_bytes(pieces)])
    async with Shell(app, {"max_event_bytes": limit}).socket() as ws:
        events = await ws.turn(create())
        if over > 0:
            assert kinds(events) == ["created", "in_progress", "failed"]
            assert code_of(events[-1]) == "upstream_event_too_large"
        else:
            assert kinds(events) == ["created", "in_progress", "custom", "completed"]
        assert kinds(await ws.turn(create()))[-1] == "completed"


@pytest.mark.parametrize("over", SIZES)
async def test_answer_bytes(over: int) -> None:
    """Of an app that does not stream."""
    limit = 4000
    response = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "metadata": {"x": ""}}
    response["metadata"] = {"x": "x" * (limit + over - len(json.dumps(response)))}
    app = ScriptedApp()
    app.script([steps.status(200, response)])
    async with Shell(app, {"max_answer_bytes": limit}).socket() as ws:
        events = await ws.turn(create())
    if over > 0:
        assert (kinds(events), events[-1]["status"], code_of(events[-1])) == (["error"], 502, "upstream_error")
    else:
        assert kinds(events) == ["created", "in_progress", "completed"]


# -- what waits to be sent --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", SIZES)
async def test_outgoing_bytes(over: int) -> None:
    """Of errors that a client provokes and does not read; what is being written does not wait any more."""
    async with Shell(ScriptedApp()).socket() as ws:
        await ws.send_text("{")
        size = len(await ws.receive())
    shell = Shell(ScriptedApp(), {"max_outgoing_bytes": 5 * size - over})
    async with shell.socket(max_unread=0) as ws:
        await ws.send_text("{")
        await ws.wait_blocked()
        for _ in range(5):
            await ws.send_text("{")
        await settle()
        assert ws.close_code == (1008 if over > 0 else None)
        if over <= 0:
            assert [code_of(await ws.receive_json()) for _ in range(6)] == ["invalid_json"] * 6
            await ws.send_text("{")
            assert code_of(await ws.receive_json()) == "invalid_json"


async def test_the_closing_event_of_an_aborted_turn_is_not_bounded_by_it() -> None:
    """It holds all finished items; nobody provoked it, and the client reads well."""
    app = ScriptedApp()
    app.script(lambda _: [steps.text("x" * 5000), steps.stall()])
    shell = Shell(app, {"max_outgoing_bytes": 1000, "event_timeout_s": 10.0})
    async with shell.socket() as ws:
        for lane in ("a", "b"):
            await ws.send_json(create(stream_id=lane))
        await shell.clock.advance(15)
        for lane in ("a", "b"):
            (*_, event) = await ws.collect(lane)
            assert code_of(event) == "upstream_timeout"
            assert len(event["response"]["output"]) == 1
        await shell.clock.advance(1)
        assert kinds(await ws.turn(create(stream_id="c", generate=False)))[-1] == "completed"


# -- connections ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", SIZES)
@pytest.mark.parametrize("limit", ["max_connections", "max_tenant_connections"])
async def test_connections(over: int, limit: str) -> None:
    shell = Shell(ScriptedApp(), {limit: 3})
    statuses: list[int] = []

    async def client(number: int) -> None:
        async with shell.socket(KEY) as ws:
            statuses.append(101 if ws.denial is None else ws.denial.status)
            await stay.wait()

    stay = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for number in range(3 + over):
            tasks.start_soon(client, number)
        await settle()
        stay.set()
    assert sorted(statuses) == [101] * min(3, 3 + over) + [429] * max(over, 0)


# -- history ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("over", SIZES)
@pytest.mark.parametrize("turns", [1, 3])
@pytest.mark.parametrize("limit", ["max_connection_bytes", "max_tenant_bytes", "max_process_bytes"])
@pytest.mark.parametrize("stored", [True, False])
async def test_bytes_of_history(over: int, turns: int, limit: str, stored: bool) -> None:
    """What no longer fits costs the least recently used chain its id, or the new response its own; never the turn."""
    if stored and limit == "max_connection_bytes":
        return  # what is stored is the tenant's
    model = ScriptedModel(text="answer", id_factory=lambda prefix: f"{prefix}_{len(app.requests):04}")
    app = ScriptedApp(model)
    shell = Shell(app)
    async with shell.socket(KEY) as ws:
        await ws.turn(create(store=stored))
        size = shell.middleware.history_bytes
    app.requests.clear()

    shell = Shell(app, {limit: turns * size - over})
    async with shell.socket(KEY) as ws:
        ids = [id_of(await ws.turn(create(store=stored))) for _ in range(turns)]
        found = [await is_found(ws, response_id) for response_id in ids]
        assert shell.middleware.history_bytes <= turns * size - over
    lost = 1 if over > 0 else 0
    assert found == [False] * lost + [True] * (turns - lost)
    assert len(shell.facts.of(NodeDropped)) == (1 if lost and turns == 1 else 0)


async def test_a_parent_that_was_used_can_be_evicted_afterwards() -> None:
    """It is pinned while a turn runs that continues it, and no longer."""
    numbers = itertools.count(1000)
    app = ScriptedApp(ScriptedModel(text="answer", id_factory=lambda prefix: f"{prefix}_{next(numbers)}"))
    shell = Shell(app)
    async with shell.socket() as ws:
        await ws.turn(create(store=False))
        size = shell.middleware.history_bytes

    shell = Shell(app, {"max_connection_bytes": 2 * size})
    async with shell.socket() as ws:
        used = id_of(await ws.turn(create(store=False)))
        app.script([steps.status(500)])
        await ws.turn(create(store=False, previous_response_id=used, stream_id="fork"))
        app.requests.clear()  # their scopes hold the turns, and these the parent
        kept = [id_of(await ws.turn(create(store=False))) for _ in range(2)]
        assert not await is_found(ws, used), "the least recently used one went"
        assert [await is_found(ws, response_id) for response_id in kept] == [True, True]


async def is_found(ws: Client, response_id: str) -> bool:
    """Whether an id can be resolved, without keeping anything: the turn is refused for its input."""
    frame = create([{"type": "function_call_output", "call_id": "x", "output": ""}], previous_response_id=response_id)
    (event,) = await ws.turn({**frame, "stream_id": "asks"})
    return code_of(event) == "tool_call_not_found"


async def test_life_of_what_is_stored() -> None:
    """Counted from the last turn of the chain."""
    shell = Shell(ScriptedApp(), {"store_ttl_s": 3600.0, "idle_timeout_s": None, "max_connection_age_s": None})
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create()))
        await shell.clock.advance(3000)
        last = id_of(await ws.turn(create(previous_response_id=first)))
    await shell.clock.advance(3599.875)
    async with shell.socket(KEY) as ws:
        assert await is_found(ws, first)
        assert await is_found(ws, last)
    await shell.clock.advance(0.125)
    async with shell.socket(KEY) as ws:
        assert not await is_found(ws, first)
        assert not await is_found(ws, last)


# -- numbers ----------------------------------------------------------------------------------------------------------

MAY_BE_ZERO = {
    "max_queued_creates",
    "max_queued_bytes",
    "max_warmup_bytes",
    "max_lanes",
    "age_grace_s",
    "disconnect_grace_s",
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Limits)])
def test_numbers_that_serve_nobody_are_refused(name: str) -> None:
    def limits(value: Any) -> Any:
        options: dict[str, Any] = {name: value}
        return getattr(Limits(**options), name)

    for wrong in (-1, "1", True, *([] if name in MAY_BE_ZERO else [0])):
        with pytest.raises(ConfigurationError, match=name):
            limits(wrong)
    if name in MAY_BE_ZERO:
        assert limits(0) == 0
    if "None" in str(Limits.__dataclass_fields__[name].type):
        assert limits(None) is None
    else:
        with pytest.raises(ConfigurationError, match=name):
            limits(None)


async def test_no_lanes_no_queue_no_grace() -> None:
    """Zero where it means something: one turn at a time, as Open Responses has it."""
    app = ScriptedApp()
    go = anyio.Event()
    limits = {"max_lanes": 0, "max_queued_creates": 0, "disconnect_grace_s": 0, "max_warmup_bytes": 0}
    shell = Shell(app, limits)
    async with shell.socket() as ws:
        await busy(ws, app, go)
        await ws.send_json(create())
        assert code_of(await ws.receive_json()) == "websocket_queue_full"
        await ws.send_json(create(stream_id="a"))
        assert code_of(await ws.receive_json()) == "websocket_stream_limit_reached"
        await ws.close()
        await settle()
        assert app.running == 0
