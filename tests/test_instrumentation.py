"""What hooks and the log are told: each fact once, no content, no keys; and a hook that fails breaks nothing."""

import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from msgspec.structs import asdict

from tests.shell import KEY, Client, Shell, create, id_of, kinds
from ws_responses import Forbidden, Handshake, Principal
from ws_responses._types import Receive, Scope, Send
from ws_responses.instrumentation import (
    ConnectionClosed,
    ConnectionDenied,
    ConnectionOpened,
    Fact,
    FrameRefused,
    NodeDropped,
    TurnFinished,
    TurnStarted,
)
from ws_responses.testing import ScriptedApp, settle, steps

# -- one TurnFinished for each turn, however it ends ------------------------------------------------------------------

Play = Callable[[Shell, Client, ScriptedApp], Awaitable[None]]


async def one_turn(shell: Shell, ws: Client, app: ScriptedApp) -> None:
    await ws.turn(create())


def frame(**fields: Any) -> Play:
    async def play(shell: Shell, ws: Client, app: ScriptedApp) -> None:
        await ws.turn(create(**fields))

    return play


def after(seconds: float, events: int = 0) -> Play:
    async def play(shell: Shell, ws: Client, app: ScriptedApp) -> None:
        await ws.send_json(create())
        await app.wait_requests(1)
        await app.wait_events(events)
        await settle()
        await shell.clock.advance(seconds)

    return play


def leaving(how: str, events: int = 0) -> Play:
    async def play(shell: Shell, ws: Client, app: ScriptedApp) -> None:
        await after(0, events)(shell, ws, app)
        await getattr(ws, how)()
        await shell.clock.advance(1)

    return play


async def drained(shell: Shell, ws: Client, app: ScriptedApp) -> None:
    await after(0)(shell, ws, app)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(shell.middleware.drain)
        await shell.clock.advance(61)


async def disconnected(shell: Shell, ws: Client, app: ScriptedApp) -> None:
    await after(0)(shell, ws, app)
    (connection,) = shell.middleware.registry.connections
    shell.middleware.disconnect(connection.tenant)
    await shell.clock.advance(1)


async def not_read(shell: Shell, ws: Client, app: ScriptedApp) -> None:
    ws._max_unread = 1
    await ws.send_json(create())
    await ws.wait_blocked()
    await shell.clock.advance(61)


async def finishing_alone(shell: Shell, ws: Client, app: ScriptedApp) -> None:
    await after(0, 2)(shell, ws, app)
    await ws.close()
    await settle()
    app.go.set()  # type: ignore[attr-defined]
    await settle()


def authorize(handshake: Handshake, model: str | None) -> Principal:
    if model == "forbidden":
        raise Forbidden("No.")
    return Principal(id="anna")


@dataclass
class Way:
    """How a turn ends.

    Attributes:
        outcome: what its fact says.
        code: likewise.
        script: what the app does.
        play: what the client does.
        started: whether the turn began to run.
        limits: of the middleware.
        options: of the middleware.
    """

    outcome: str
    code: str | None = None
    script: list[steps.Step] = field(default_factory=list[steps.Step])
    play: Play = one_turn
    started: bool = True
    limits: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])


def raises(when: str) -> list[steps.Step]:
    async def boom() -> None:
        raise RuntimeError("broken")

    return {
        "before": [steps.call(boom)],
        "start": [steps.response_start(), steps.call(boom)],
        "created": [steps.created(), steps.call(boom)],
        "end": [steps.text("x"), steps.complete(), steps.call(boom)],
    }[when]


STALLS = [steps.stall()]
CREATED = [steps.created(), steps.stall()]
AGE: dict[str, Any] = {"max_connection_age_s": 100.0, "age_grace_s": 10.0}

WAYS: dict[str, Way] = {
    "completed": Way("completed"),
    "incomplete": Way("incomplete", script=[steps.text("x", finish=False), steps.incomplete()]),
    "failed": Way("failed", "rate_limit_exceeded", [steps.text("x"), steps.fail("rate_limit_exceeded")]),
    "not streamed": Way("completed", script=[steps.text("x"), steps.json_only()]),
    "status": Way("error", "rate_limit_exceeded", [steps.status(429)]),
    "error event first": Way("error", "slow_down", [steps.event({"type": "error", "code": "slow_down"})]),
    "error event later": Way(
        "failed", "slow_down", [steps.created(), steps.event({"type": "error", "code": "slow_down"})]
    ),
    "truncated first": Way("error", "upstream_stream_truncated", [steps.truncate(0)]),
    "truncated later": Way("failed", "upstream_stream_truncated", [steps.text("x"), steps.truncate(3)]),
    "raises before": Way("error", "server_error", raises("before")),
    "raises after start": Way("error", "server_error", raises("start")),
    "raises after created": Way("failed", "server_error", raises("created")),
    "raises after the end": Way("completed", script=raises("end")),
    "event too large": Way(
        "failed", "upstream_event_too_large", [steps.text("x" * 9000)], limits={"max_event_bytes": 4000}
    ),
    "warm-up": Way("completed", play=frame(generate=False)),
    "warm-up too large": Way(
        "error", "warm_up_too_large", play=frame(generate=False), limits={"max_warmup_bytes": 10}, started=False
    ),
    "not found": Way("error", "previous_response_not_found", play=frame(previous_response_id="resp_x"), started=False),
    "wrong input": Way("error", "invalid_request", play=frame(input=[7]), started=False),
    "unknown call": Way(
        "error",
        "tool_call_not_found",
        play=frame(input=[{"type": "function_call_output", "call_id": "x", "output": ""}]),
        started=False,
    ),
    "request too large": Way("error", "request_too_large", play=frame(), limits={"max_request_bytes": 20}),
    "forbidden": Way(
        "error", "permission_denied", play=frame(model="forbidden"), started=False, options={"authorize": authorize}
    ),
    "no first event": Way("aborted", "upstream_timeout", STALLS, after(301)),
    "no next event": Way("aborted", "upstream_timeout", CREATED, after(400, 2)),
    "client closes": Way("gone", None, STALLS, leaving("close")),
    "client closes later": Way("gone", None, CREATED, leaving("close", 2)),
    "client aborts": Way("gone", None, CREATED, leaving("abort", 2)),
    "client does not read": Way("gone", None, [steps.text("x" * 50, deltas=50), steps.stall()], not_read),
    "age": Way("aborted", "websocket_connection_limit_reached", CREATED, after(111, 2), limits=AGE),
    "drain": Way("aborted", "server_is_overloaded", CREATED, drained),
    "operator": Way("aborted", "permission_denied", CREATED, disconnected),
    "finishes alone": Way("completed", None, [], finishing_alone, options={"on_disconnect": 20}),
}


@pytest.mark.parametrize("name", WAYS)
async def test_every_end_of_a_turn_is_told_once(name: str) -> None:
    way = WAYS[name]
    app = ScriptedApp()
    go = app.go = anyio.Event()  # type: ignore[attr-defined]
    script = [steps.created(), steps.wait_for(go)] if name == "finishes alone" else way.script
    if script:
        app.script(script)
    shell = Shell(app, way.limits, **way.options)
    async with shell.socket(KEY) as ws:
        await way.play(shell, ws, app)
        await ws.close()
        await shell.clock.advance(1)

    assert shell.facts.outcomes == [(way.outcome, way.code)]
    assert [type(fact) for fact in shell.facts] == [
        ConnectionOpened,
        *([TurnStarted] if way.started else []),
        TurnFinished,
        ConnectionClosed,
    ]
    (finished,) = shell.facts.of(TurnFinished)
    (closed,) = shell.facts.of(ConnectionClosed)
    assert closed.turns == 1
    assert {getattr(fact, "connection_id", None) for fact in shell.facts} == {closed.connection_id}
    assert {fact.turn_id for fact in shell.facts.of(TurnStarted)} <= {finished.turn_id}
    assert finished.model == ("forbidden" if name == "forbidden" else "m")


async def test_what_a_finished_turn_tells() -> None:
    app = ScriptedApp()
    first, second = anyio.Event(), anyio.Event()
    app.script([steps.wait_for(first), steps.text("one"), steps.wait_for(second), steps.response_id("resp_a")])
    shell = Shell(app)
    async with shell.socket() as ws:
        await ws.send_json(create(stream_id="a"))
        await shell.clock.advance(2)
        first.set()
        await settle()
        await shell.clock.advance(3)
        second.set()
        events = await ws.collect("a")

    (started,) = shell.facts.of(TurnStarted)
    (finished,) = shell.facts.of(TurnFinished)
    assert asdict(started) == {
        "connection_id": finished.connection_id,
        "turn_id": finished.turn_id,
        "lane": "a",
        "model": "m",
        "continues": False,
        "warm_up": False,
    }
    assert asdict(finished) == {
        **asdict(finished),
        "response_id": "resp_a",
        "lane": "a",
        "model": "m",
        "warm_up": False,
        "outcome": "completed",
        "code": None,
        "events": len(events),
        "first_event_s": 2.0,
        "duration_s": 5.0,
        "repaired_surrogates": 0,
    }
    assert finished.usage is not None
    assert b'"output_tokens":1' in finished.usage.replace(b" ", b"")


@pytest.mark.parametrize(
    "script",
    [[steps.text("x"), steps.drop_field("response.usage")], [steps.text("x"), steps.truncate(3)], [steps.status(500)]],
)
async def test_unknown_usage_is_null_and_never_zero(script: list[steps.Step]) -> None:
    app = ScriptedApp()
    app.script(script)
    shell = Shell(app)
    async with shell.socket() as ws:
        await ws.turn(create())
    assert [fact.usage for fact in shell.facts.of(TurnFinished)] == [None]


async def test_a_continued_turn_and_a_warm_up_say_so() -> None:
    shell = Shell(ScriptedApp())
    async with shell.socket() as ws:
        warm = id_of(await ws.turn(create(generate=False)))
        await ws.turn(create(previous_response_id=warm))
    assert [(fact.continues, fact.warm_up) for fact in shell.facts.of(TurnStarted)] == [(False, True), (True, False)]
    assert [(fact.warm_up, fact.response_id == warm) for fact in shell.facts.of(TurnFinished)] == [
        (True, True),
        (False, False),
    ]


async def test_turns_that_wait_and_never_run_are_no_turns() -> None:
    """Refused, dropped at a drain, or left by their client: an answered frame at most."""
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.created(), steps.wait_for(go)])
    shell = Shell(app, {"max_queued_creates": 1})
    async with shell.socket() as ws:
        await ws.send_json(create())
        await ws.send_json(create("waits"))
        await ws.send_json(create("too many"))
        await app.wait_events(2)
        await settle()
        assert [fact.code for fact in shell.facts.of(FrameRefused)] == ["websocket_queue_full"]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shell.middleware.drain)
            await settle()
            assert len(shell.facts.of(FrameRefused)) == 1, "the other is told when its lane is free"
            go.set()
    assert [fact.code for fact in shell.facts.of(FrameRefused)] == ["websocket_queue_full", "server_is_overloaded"]
    assert shell.facts.outcomes == [("completed", None)]


async def test_a_notice_refuses_nothing() -> None:
    """The error that tells an idle client of its age answers no frame."""
    shell = Shell(ScriptedApp(), {"max_connection_age_s": 60.0})
    async with shell.socket() as ws:
        await shell.clock.advance(60)
        assert await ws.wait_closed() == 1001
        assert len(ws.frames) == 1
    assert shell.facts.of(FrameRefused) == []


async def test_a_response_that_cannot_be_kept_is_told_with_its_turn() -> None:
    shell = Shell(ScriptedApp(), {"max_connection_bytes": 100})
    async with shell.socket() as ws:
        response_id = id_of(await ws.turn(create(store=False)))
    (dropped,) = shell.facts.of(NodeDropped)
    assert dropped.response_id == response_id
    assert dropped.size > 100
    assert shell.facts.outcomes == [("completed", None)]


@pytest.mark.parametrize(
    ("leave", "code", "by_client"),
    [("close", 1000, True), ("abort", 1006, True), ("operator", 1008, False), ("age", 1001, False)],
)
async def test_how_a_connection_ended(leave: str, code: int, by_client: bool) -> None:
    shell = Shell(ScriptedApp(), {"max_connection_age_s": 60.0})
    async with shell.socket(KEY) as ws:
        await ws.turn(create())
        await shell.clock.advance(7.5)
        if leave == "operator":
            (connection,) = shell.middleware.registry.connections
            shell.middleware.disconnect(connection.tenant)
        elif leave == "age":
            await shell.clock.advance(52.5)
        else:
            await getattr(ws, leave)()
        await settle()
    (fact,) = shell.facts.of(ConnectionClosed)
    assert (fact.code, fact.by_client, fact.turns) == (code, by_client, 1)
    assert fact.duration_s == (60.0 if leave == "age" else 7.5)


# -- hooks that fail --------------------------------------------------------------------------------------------------


async def test_a_hook_that_raises_breaks_nothing_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    def broken(fact: Fact) -> None:
        raise RuntimeError("broken")

    told: list[Fact] = []
    shell = Shell(ScriptedApp(), hooks=(broken, told.append, broken))
    for _ in range(2):
        async with shell.socket(KEY) as ws:
            for _ in range(3):
                assert kinds(await ws.turn(create()))[-1] == "completed"
            await ws.send_text("{")
            await ws.receive()
    async with shell.socket((b"origin", b"http://evil.example")) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 403

    assert told == list(shell.facts), "the hooks after it are told all the same"
    assert len(told) == 2 * (1 + 6 + 1 + 1) + 1
    errors = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [record.message for record in errors] == ["a hook raised; further failures of it are not logged"] * 2


async def test_a_hook_may_end_the_connection_that_it_hears_of() -> None:
    """One that counts tokens disconnects a tenant whose quota is used up: what waits must not start then."""
    app = ScriptedApp()
    tenants: list[str] = []

    def quota(fact: Fact) -> None:
        if isinstance(fact, TurnFinished):
            shell.middleware.disconnect(tenants[0], "quota")

    shell = Shell(app, hooks=(quota,))
    async with shell.socket(KEY) as ws:
        (connection,) = shell.middleware.registry.connections
        tenants.append(connection.tenant)
        await ws.send_json(create())
        await ws.send_json(create("waits"))
        events = await ws.collect()
        assert kinds(events)[-1] == "completed"
        error = await ws.receive_json()
        assert (error["type"], error["error"]["code"]) == ("error", "permission_denied")
        assert (await ws.wait_closed(), ws.close_reason) == (1008, "quota")
        await shell.clock.advance(1)
        assert app.running == 0
    assert len(app.requests) == 1


async def test_a_hook_may_drain() -> None:
    app = ScriptedApp()

    def hook(fact: Fact) -> None:
        if isinstance(fact, TurnStarted):
            for connection in shell.middleware.registry.connections:
                connection.retire()

    shell = Shell(app, hooks=(hook,))
    async with shell.socket(KEY) as ws:
        assert kinds(await ws.turn(create()))[-1] == "completed"
        assert await ws.wait_closed() == 1012


# -- what is not told -------------------------------------------------------------------------------------------------

SECRETS = {
    "key": "sk-secret-key",
    "cookie": "session=secret-cookie",
    "input": "secret input",
    "instructions": "secret instructions",
    "tools": "secret_tool",
    "output": "secret output",
    "metadata": "secret metadata",
    "query": "api_key=secret-in-query",
    "error": "secret error text",
}


@pytest.mark.parametrize("kind", ["fine", "fails", "refused", "wrong", "gone", "raises before start"])
async def test_neither_content_nor_keys_are_told(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """Not even at DEBUG; what an app raises is its own, and logged with its traceback."""
    caplog.set_level(logging.DEBUG)
    app = ScriptedApp()
    output: list[steps.Step] = [steps.text(SECRETS["output"], deltas=2)]
    app.script(
        {
            "fine": output,
            "fails": [*output, steps.fail("server_error", SECRETS["error"])],
            "refused": [steps.status(401, {"error": {"message": SECRETS["error"], "type": "x", "code": "no"}})],
            "gone": [*output, steps.stall()],
        }.get(kind, output)
    )
    shell = Shell(app)
    body = create(
        SECRETS["input"],
        instructions=SECRETS["instructions"],
        metadata={"x": SECRETS["metadata"]},
        tools=[{"type": "function", "name": SECRETS["tools"]}],
    )
    headers = [
        (b"authorization", f"Bearer {SECRETS['key']}".encode()),
        (b"cookie", SECRETS["cookie"].encode()),
    ]
    async with shell.socket(*headers, path=f"/v1/responses?{SECRETS['query']}") as ws:
        if kind == "wrong":
            await ws.send_text(json.dumps(body)[:-1])
            await ws.send_json({**body, "previous_response_id": "resp_x"})
            await ws.collect()
            await ws.collect()
        else:
            await ws.send_json(body)
            await app.wait_requests(1)
            await settle()
        await ws.close()
        await shell.clock.advance(1)

    told = caplog.text + repr(list(shell.facts))
    assert "TurnFinished" in told
    assert [name for name, secret in SECRETS.items() if secret in told] == []


async def test_a_refused_upgrade_tells_no_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    shell = Shell(ScriptedApp(), authorize=lambda handshake, model: None)
    async with shell.socket((b"authorization", b"Bearer sk-secret"), path="/v1/responses?key=sk-secret") as ws:
        assert ws.denial is not None
    assert len(shell.facts.of(ConnectionDenied)) == 1
    assert "401" in caplog.text
    assert "sk-secret" not in caplog.text + repr(list(shell.facts))


def test_facts_cannot_be_changed() -> None:
    fact = ConnectionOpened(connection_id="conn_1", path="/v1/responses", transport="websocket")
    with pytest.raises(AttributeError):
        fact.path = "/other"  # type: ignore[misc]


async def test_our_refusals_are_no_errors_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A 426 that is intended, a bad key: whoever watches for errors must not be woken by strangers."""
    caplog.set_level(logging.DEBUG)
    refusing: list[dict[str, Any]] = [{"enabled": False}, {"authorize": lambda *_: None}]
    for options in refusing:
        async with Shell(ScriptedApp(), **options).socket() as ws:
            assert ws.denial is not None
    async with Shell(ScriptedApp()).socket() as ws:
        await ws.send_text("{")
        await ws.receive()
        await ws.turn(create(previous_response_id="resp_x"))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


async def test_what_an_app_raises_after_its_client_left_is_expected(caplog: pytest.LogCaptureFixture) -> None:
    """Starlette's `ClientDisconnect`, an `OSError` of ours: for whoever debugs, and nobody else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await receive()
        raise RuntimeError("client disconnected")

    caplog.set_level(logging.DEBUG)
    shell = Shell(app, probe=False)
    async with shell.socket() as ws:
        await ws.send_json(create())
        await ws.wait_received()
        await settle()
        await ws.close()
    assert [record for record in caplog.records if record.levelno > logging.INFO] == []
    assert "the app ended by RuntimeError after it was aborted" in caplog.text
