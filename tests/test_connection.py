"""How connections and turns end: clients that leave, stall or flood, apps that do not stop, limits of time."""

import asyncio
import gc
import itertools
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.garbage import no_garbage_collection
from tests.shell import KEY, Client, Shell, code_of, create, error_of, frames_of, id_of, kinds, ours, types_of
from ws_responses import Principal
from ws_responses._types import Receive, Scope, Send
from ws_responses.connection import Connection
from ws_responses.instrumentation import ConnectionClosed, TurnFinished
from ws_responses.state.node import Record, ResponseNode
from ws_responses.state.store import InProcessStore
from ws_responses.testing import (
    TERMINAL_TYPES,
    FakeClock,
    MemorySocket,
    ScriptedApp,
    SocketClosed,
    settle,
    steps,
)
from ws_responses.turn import TurnRun

GRACE = 0.25
"""`disconnect_grace_s`: what an app gets between `http.disconnect` and its cancellation."""

Leave = Callable[[MemorySocket], Awaitable[None]]
LEAVES = [pytest.param(MemorySocket.close, id="close"), pytest.param(MemorySocket.abort, id="abort")]


def tasks_now() -> set[int]:
    return {task.id for task in anyio.get_running_tasks()}


class RawApp:
    """An app whose whole HTTP call the test writes."""

    def __init__(self, answer: Callable[[Receive, Send], Awaitable[None]]) -> None:
        self._answer = answer
        self.running = 0
        self.calls = 0
        self.outcomes: list[str] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "POST":
            await send({"type": "http.response.start", "status": 405})
            return
        self.calls += 1
        self.running += 1
        try:
            await receive()
            await self._answer(receive, send)
            self.outcomes.append("finished")
        except anyio.get_cancelled_exc_class():
            self.outcomes.append("cancelled")
            raise
        except BaseException as error:
            self.outcomes.append(type(error).__name__)
            raise
        finally:
            self.running -= 1


START = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
_numbers = itertools.count()


def sse(kind: str, number: int = 0, response_id: str = "resp_1", **members: Any) -> dict[str, Any]:
    """One body message with one lifecycle event."""
    status = {"created": "in_progress", "completed": "completed"}[kind]
    response = f'{{"id":"{response_id}","status":"{status}","output":[],"usage":{{"total_tokens":3}}}}'
    event = f'data: {{"type":"response.{kind}","sequence_number":{number},"response":{response}}}\n\n'
    return {"type": "http.response.body", "body": event.encode(), "more_body": True, **members}


# -- the client leaves ------------------------------------------------------------------------------------------------

SCENES: dict[str, tuple[list[steps.Step], int]] = {
    "before the answer": ([steps.stall()], 0),
    "before the first event": ([steps.response_start(), steps.stall()], 0),
    "after created": ([steps.created(), steps.stall()], 2),
    "between events": ([steps.text("hello", deltas=3), steps.stall()], 10),
    "after the terminal event": ([steps.text("hello"), steps.complete(), steps.stall()], 9),
}


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("scene", SCENES)
async def test_an_app_that_listens_is_told_at_once_that_its_client_has_gone(leave: Leave, scene: str) -> None:
    """By `http.disconnect`, in time that does not pass: its generator is closed, the model is stopped."""
    script, events = SCENES[scene]
    app = ScriptedApp(listen=True)
    app.script(script)
    shell = Shell(app)
    before = tasks_now()

    async with shell.socket(max_unread=None) as ws:
        await ws.send_json(create())
        await app.wait_requests(1)
        await app.wait_events(events)
        await settle()
        await leave(ws)
        await settle()
        assert app.requests[0].outcome == "disconnected"
        assert app.running == 0
        assert shell.clock.now() == 0
        assert ws.returned
        assert ws.cancelled_receives == 0
        assert tasks_now() - before == set()
    outcome = "completed" if "terminal" in scene else "gone"
    assert [fact.outcome for fact in shell.facts.of(TurnFinished)] == [outcome]
    assert shell.middleware.running_turns == 0


@pytest.mark.parametrize("leave", LEAVES)
@pytest.mark.parametrize("scene", SCENES)
async def test_an_app_that_does_not_listen_is_cancelled_after_the_grace(leave: Leave, scene: str) -> None:
    """BlackSheep, Falcon and Sanic never listen; Quart's generators would leak if they were cancelled at once."""
    script, events = SCENES[scene]
    app = ScriptedApp()
    app.script(script)
    shell = Shell(app)
    before = tasks_now()

    async with shell.socket(max_unread=None) as ws:
        await ws.send_json(create())
        await app.wait_requests(1)
        await app.wait_events(events)
        await settle()
        await leave(ws)
        await shell.clock.advance(GRACE - 0.0625)
        assert app.running == 1
        await shell.clock.advance(0.0625)
        assert app.requests[0].outcome == "cancelled"
        assert app.running == 0
        assert ws.returned
        assert tasks_now() - before == set()


@pytest.mark.parametrize("leave", LEAVES)
async def test_a_client_that_leaves_while_the_app_waits_to_write(leave: Leave) -> None:
    """Held up by a slow client, in the middle of its stream."""
    app = ScriptedApp()
    app.script([steps.text("x" * 4000, deltas=4000)])
    shell = Shell(app)

    async with shell.socket(max_unread=4) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        assert app.running == 1
        await leave(ws)
        await settle()
        assert app.requests[0].outcome == "disconnected"
        assert app.running == 0
        assert ws.returned
    assert shell.clock.now() == 0
    assert len(app.requests[0].events) < 2000, (
        "one that never awaits gets to send some before it is its turn to be told"
    )


@pytest.mark.parametrize("swallows", [True, False])
async def test_a_client_that_leaves_while_the_app_never_awaits(swallows: bool) -> None:
    """Servers may swallow what is sent to a client that has gone; a generator without an await must still be stopped."""
    sent = 0

    async def endless(receive: Receive, send: Send) -> None:
        nonlocal sent
        await send(START)
        await send(sse("created"))
        while True:
            sent += 1
            await send({"type": "http.response.body", "body": b": comment\n\n" * (sent % 2), "more_body": True})

    app = RawApp(endless)
    shell = Shell(app)
    async with shell.socket(swallow_after_gone=swallows) as ws:
        await ws.send_json(create())
        assert (await ws.receive_json())["type"] == "response.created"
        await ws.close()
        await ws.wait_returned()
    assert app.outcomes == ["ClientGoneError"]


async def test_an_app_learns_of_the_leave_whatever_it_waits_for() -> None:
    """`receive` gives `http.disconnect`, again and again; `send` does nothing (ASGI 2.3), but not for ever."""
    heard: list[Any] = []

    async def answer(receive: Receive, send: Send) -> None:
        await send(START)
        await send(sse("created"))
        heard.append((await receive())["type"])
        heard.append((await receive())["type"])
        await send(sse("completed"))
        for _ in range(64 - 1):
            await send({"type": "http.response.body", "body": b"", "more_body": True})
        with pytest.raises(OSError, match="gone"):
            await send({"type": "http.response.body", "body": b"", "more_body": True})
        heard.append("done")

    shell = Shell(RawApp(answer))
    async with shell.socket() as ws:
        await ws.send_json(create())
        await ws.receive_json()
        await ws.close()
        await settle()
    assert heard == ["http.disconnect", "http.disconnect", "done"]
    assert shell.facts.outcomes == [("gone", None)]


async def test_all_lanes_end_when_the_client_leaves_and_what_waits_never_runs() -> None:
    app = ScriptedApp()
    app.script(lambda _: [steps.created(), steps.stall()])
    shell = Shell(app)
    async with shell.socket() as ws:
        for lane in ("a", "b", "c"):
            await ws.send_json(create(stream_id=lane))
            await ws.send_json(create("waits", stream_id=lane))
        await app.wait_requests(3)
        await ws.close()
        await shell.clock.advance(GRACE)
        assert app.running == 0
    assert [request.outcome for request in app.requests] == ["cancelled"] * 3
    assert shell.facts.outcomes == [("gone", None)] * 3


async def test_an_app_that_ignores_its_end_is_waited_for_within_bounds_and_told_of(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.created(), steps.wait_for(go, shield=True)])
    shell = Shell(app, {"abort_timeout_s": 5.0, "background_timeout_s": 30.0})
    async with shell.socket() as ws:
        await ws.send_json(create())
        await app.wait_events(2)
        await ws.close()
        await shell.clock.advance(GRACE + 5 + 30 + 5 - 0.125)
        assert not ours(caplog)
        await shell.clock.advance(0.125)
        assert [record.levelno for record in ours(caplog)] == [logging.ERROR]
        assert "1 app calls ignore cancellation" in caplog.text
        go.set()
        await app.wait_idle()
        await settle()


# -- the server ends the call -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("listens", [True, False])
async def test_a_call_that_the_server_cancels_ends_in_order_too(listens: bool) -> None:
    """hypercorn and daphne cancel at shutdown: the app is told first, and nothing runs on."""
    app = ScriptedApp(listen=listens)
    app.script([steps.created(), steps.stall()])
    shell = Shell(app)
    scope = anyio.CancelScope()
    before = tasks_now()

    async def server(*call: Any) -> None:
        with scope:
            await shell.middleware(*call)

    async with MemorySocket(server) as ws:
        await ws.send_json(create())
        await app.wait_events(2)
        scope.cancel()
        await settle()
        assert app.running == (0 if listens else 1)
        await shell.clock.advance(GRACE)
        assert app.running == 0
        assert app.requests[0].outcome == ("disconnected" if listens else "cancelled")
        assert ws.returned
        assert tasks_now() - before == set()
    assert shell.middleware.connections == 0
    assert shell.facts.outcomes == [("gone", None)]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.parametrize("listens", [True, False])
async def test_a_call_whose_task_is_cancelled_ends_in_order_too(listens: bool) -> None:
    """As servers on asyncio do it, without a cancel scope; one that cancels again does not want to wait."""
    app = ScriptedApp(listen=listens)
    app.script([steps.created(), steps.stall()])
    shell = Shell(app)
    calls: list[asyncio.Task[None]] = []

    async def server(*call: Any) -> None:
        calls.append(asyncio.ensure_future(shell.middleware(*call)))
        await asyncio.wait(calls)

    async with MemorySocket(server) as ws:
        await ws.send_json(create())
        await app.wait_events(2)
        calls[0].cancel()
        await settle()
        if not listens:
            assert app.running == 1
            calls[0].cancel()
            await settle()
        assert calls[0].cancelled()
        assert app.requests[0].outcome == ("disconnected" if listens else "cancelled")
        assert app.running == 0
    assert shell.middleware.connections == 0


# -- on_disconnect ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("leave", LEAVES)
async def test_a_turn_may_finish_after_its_client_left(leave: Leave) -> None:
    """So that its usage is known and it can be continued; the app notices nothing."""
    app = ScriptedApp(listen=True)
    go = anyio.Event()
    app.script([steps.response_id("resp_a"), steps.text("one", deltas=3), steps.wait_for(go), steps.text("two")])
    shell = Shell(app, on_disconnect=20)

    async with shell.socket(KEY) as ws:
        await ws.send_json(create())
        await ws.send_json(create("waits"))
        await app.wait_events(8)
        await leave(ws)
        await shell.clock.advance(19.875)
        assert app.running == 1
        go.set()
        await settle()
        assert app.requests[0].outcome == "finished"
        assert app.running == 0
        assert ws.returned
    assert len(app.requests) == 1, "what waited never ran"
    (fact,) = shell.facts.of(TurnFinished)
    assert (fact.outcome, fact.response_id) == ("completed", "resp_a")
    assert b"output_tokens" in (fact.usage or b"")
    async with shell.socket(KEY) as ws:
        assert kinds(await ws.turn(create(previous_response_id="resp_a")))[-1] == "completed"
    assert types_of(app.requests[-1].body) == ["user", "assistant", "assistant", "user"]


async def test_a_turn_that_does_not_finish_in_that_time_is_ended() -> None:
    app = ScriptedApp(listen=True)
    app.script([steps.created(), steps.stall()])
    shell = Shell(app, on_disconnect=20)
    async with shell.socket() as ws:
        await ws.send_json(create())
        await app.wait_events(2)
        await ws.close()
        await shell.clock.advance(19.875)
        assert app.running == 1
        await shell.clock.advance(0.125)
        assert app.requests[0].outcome == "disconnected"
        assert app.running == 0
    assert shell.facts.outcomes == [("gone", None)]


async def test_a_blocked_turn_goes_on_when_its_client_left() -> None:
    app = ScriptedApp()
    app.script([steps.text("x" * 100, deltas=100)])
    shell = Shell(app, on_disconnect=20)
    async with shell.socket(max_unread=2) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        await ws.close()
        await settle()
        assert app.running == 0
    assert shell.facts.outcomes == [("completed", None)]
    assert app.requests[0].outcome == "finished"


async def test_no_turn_goes_on_after_a_close_of_ours() -> None:
    app = ScriptedApp(listen=True)
    app.script([steps.created(), steps.stall()])
    shell = Shell(app, on_disconnect=20)
    async with shell.socket(KEY) as ws:
        await ws.send_json(create())
        await app.wait_events(2)
        (connection,) = shell.middleware.registry.connections
        shell.middleware.disconnect(connection.tenant)
        await settle()
        assert app.running == 0


# -- a client that does not read --------------------------------------------------------------------------------------


async def test_an_app_is_held_up_by_a_client_that_does_not_read() -> None:
    """The back-pressure is the await chain: the app is at most one event ahead of what the server takes."""
    app = ScriptedApp()
    app.script([steps.text("x" * 1000, deltas=1000)])
    shell = Shell(app)
    async with shell.socket(max_unread=8) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        await settle()
        assert len(ws.frames) == 9
        assert len(app.requests[0].events) <= 9
        events = await ws.collect()
        assert "".join(event["delta"] for event in events if event["type"].endswith("text.delta")) == "x" * 1000
    assert shell.facts.outcomes == [("completed", None)]


@pytest.mark.parametrize("listens", [True, False])
async def test_a_write_that_blocks_too_long_closes_with_1008_and_ends_the_call(listens: bool) -> None:
    """Else one stalled client would hold a model for ever."""
    app = ScriptedApp(listen=listens)
    app.script([steps.text("x" * 100, deltas=100), steps.stall()])
    shell = Shell(app, {"send_timeout_s": 60.0})
    async with shell.socket(max_unread=4) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        await shell.clock.advance(59.875)
        assert app.running == 1
        await shell.clock.advance(0.125)
        assert (await ws.wait_closed(), ws.close_reason) == (1008, "client does not read")
        await shell.clock.advance(GRACE)
        assert app.running == 0
        assert ws.returned
        assert len(ws.frames) == 5
    assert shell.facts.outcomes == [("gone", None)]


async def test_a_client_that_reads_slowly_is_not_cut() -> None:
    """Each write has the limit to itself."""
    app = ScriptedApp()
    app.script([steps.text("x" * 20, deltas=20)])
    shell = Shell(app, {"send_timeout_s": 60.0, "event_timeout_s": 100.0, "trailing_timeout_s": 5.0})
    async with shell.socket(max_unread=0) as ws:
        await ws.send_json(create())
        events: list[dict[str, Any]] = []
        while not events or events[-1]["type"] != "response.completed":
            await ws.wait_blocked()
            await shell.clock.advance(59)
            events.append(await ws.receive_json())
    assert shell.facts.outcomes == [("completed", None)]


async def test_the_closing_event_of_a_slow_client_is_not_lost() -> None:
    """The app has ended its turn; what it may still do is bounded, the writing of its last event is not by that."""
    app = ScriptedApp()
    app.script([steps.created()], [steps.created()])
    shell = Shell(app, {"send_timeout_s": 60.0, "trailing_timeout_s": 5.0})
    async with shell.socket(max_unread=0) as ws:
        await ws.send_json(create(stream_id="a"))
        await ws.send_json(create(stream_id="b"))
        frames = []
        for _ in range(6):
            await ws.wait_blocked()
            await shell.clock.advance(30)
            frames.append(await ws.receive_json())
        assert sorted(kinds(frames)) == sorted(["created", "in_progress", "completed"] * 2)


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("end", ["truncated", "status", "not streamed", "completed"])
async def test_the_closing_event_that_the_last_chunk_brings_is_not_lost(end: str, listens: bool) -> None:
    """An app that listens hears that it is over only when it has been written: it would take it along."""
    scripts: dict[str, list[steps.Step]] = {
        "truncated": [steps.text("x"), steps.truncate(4)],
        "status": [steps.status(500)],
        "not streamed": [steps.text("x"), steps.json_only()],
        "completed": [steps.text("x"), steps.coalesce()],
    }
    app = ScriptedApp(listen=listens)
    app.script(lambda body: scripts[end] if body["input"] == "ends" else [steps.text("y" * 10, deltas=10)])
    async with Shell(app).socket(max_unread=1) as ws:
        await ws.send_json(create(stream_id="busy"))
        await ws.wait_blocked()
        await ws.send_json(create("ends"))
        await ws.send_json(create("next"))
        frames: list[dict[str, Any]] = []
        while sum(event["type"] in TERMINAL_TYPES for event in frames) < 3:
            await settle()
            frames.append(await ws.receive_json())
    check_wire(frames)
    ends = [event["type"] for event in frames if event["type"] in TERMINAL_TYPES and "stream_id" not in event]
    expected = {"truncated": "response.failed", "status": "error"}.get(end, "response.completed")
    assert ends == [expected, "response.completed"]


@pytest.mark.parametrize("listens", [True, False])
async def test_what_an_aborted_turn_has_still_to_write_comes_before_its_closing_event(listens: bool) -> None:
    """An app that stops takes along what it waits to write: its client would see a gap, or an end without a beginning."""
    app = ScriptedApp(listen=listens)
    app.script(lambda _: [steps.text("x" * 20, deltas=20)])
    shell = Shell(app, {"send_timeout_s": None, "age_grace_s": 10.0, "close_timeout_s": 100.0})
    async with shell.socket(max_unread=1) as ws, anyio.create_task_group() as tasks:
        for lane in ("a", "b", "c"):
            await ws.send_json(create(stream_id=lane))
        await ws.wait_blocked()
        tasks.start_soon(shell.middleware.drain)
        await shell.clock.advance(10 + GRACE)
        assert shell.facts.outcomes == [("aborted", "server_is_overloaded")] * 3
        frames = [json.loads(frame) for frame in await ws.read_to_close()]
        check_wire(frames)
        assert kinds(frames).count("failed") + kinds(frames).count("error") == 3
        await shell.clock.advance(1)
        assert app.running == 0


async def test_errors_that_nobody_reads_close_the_socket_too() -> None:
    """Nothing runs, only our own answers wait."""
    shell = Shell(ScriptedApp(), {"send_timeout_s": 60.0, "idle_timeout_s": None})
    async with shell.socket(max_unread=0) as ws:
        await ws.send_text("{")
        await ws.wait_blocked()
        await shell.clock.advance(59.875)
        assert ws.close_code is None
        await shell.clock.advance(0.125)
        assert await ws.wait_closed() == 1008


async def test_a_write_that_blocks_behind_an_idle_connection_is_noticed() -> None:
    """The last event of the last turn: nothing runs any more while it waits."""
    app = ScriptedApp()
    app.script([steps.created()])
    shell = Shell(app, {"send_timeout_s": 60.0, "idle_timeout_s": None})
    async with shell.socket(max_unread=2) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        await settle()
        assert shell.middleware.running_turns == 0
        await shell.clock.advance(59.875)
        assert ws.close_code is None
        await shell.clock.advance(0.125)
        assert await ws.wait_closed() == 1008


async def test_an_operators_close_is_written_even_if_the_client_does_not_read() -> None:
    app = ScriptedApp()
    app.script([steps.text("x" * 100, deltas=100)])
    shell = Shell(app, {"send_timeout_s": None, "close_timeout_s": 10.0})
    async with shell.socket(KEY, max_unread=2) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        (connection,) = shell.middleware.registry.connections
        assert shell.middleware.disconnect(connection.tenant, "revoked") == 1
        await shell.clock.advance(10)
        assert (await ws.wait_closed(), ws.close_reason) == (1008, "revoked")
        await shell.clock.advance(1)
        assert ws.returned


async def test_a_peer_that_never_answers_a_close_is_given_up() -> None:
    """The server would wait for it; our call must not."""
    shell = Shell(ScriptedApp(), {"close_timeout_s": 10.0})
    sent: list[Any] = []
    first = True

    async def receive() -> Any:
        nonlocal first
        if not first:
            await anyio.sleep_forever()
        first = False
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async with anyio.create_task_group() as tasks:
        ended = anyio.Event()

        async def server() -> None:
            await shell.middleware({"type": "websocket", "path": "/v1/responses", "headers": [KEY]}, receive, send)
            ended.set()

        tasks.start_soon(server)
        await settle()
        (connection,) = shell.middleware.registry.connections
        shell.middleware.disconnect(connection.tenant)
        await shell.clock.advance(9.875)
        assert not ended.is_set()
        await shell.clock.advance(0.125)
        assert ended.is_set()
    assert sent == ["websocket.accept", "websocket.close"]


async def test_a_flood_of_bad_frames_is_answered_within_bounds() -> None:
    """A client that provokes errors and does not read them fills no memory: 1008."""
    shell = Shell(ScriptedApp(), {"max_outgoing_bytes": 10_000})
    async with shell.socket(max_unread=3) as ws:
        (connection,) = shell.middleware.registry.connections
        while ws.close_code is None:
            await ws.send_text("{")
            await settle()
            assert connection.outbox.size <= 10_000
        assert (await ws.wait_closed(), ws.close_reason) == (1008, "client does not read")
        await settle()
        assert ws.returned
        assert len(ws.frames) <= 5
    assert 10_000 / 200 < len(ws.sent) < 200


async def test_a_client_that_floods_and_reads_is_served() -> None:
    shell = Shell(ScriptedApp(), {"max_outgoing_bytes": 10_000})
    async with shell.socket(max_unread=3) as ws:
        for _ in range(300):
            await ws.send_text("{")
            assert code_of(await ws.receive_json()) == "invalid_json"
        assert kinds(await ws.turn(create()))[-1] == "completed"


# -- age --------------------------------------------------------------------------------------------------------------

LIMIT = "websocket_connection_limit_reached"


async def test_an_idle_connection_that_is_too_old_is_told_and_closed() -> None:
    shell = Shell(ScriptedApp(), {"max_connection_age_s": 3600.0, "idle_timeout_s": None})
    async with shell.socket() as ws:
        await ws.turn(create())
        await shell.clock.advance(3599.875)
        assert await ws.settle() == 0
        await shell.clock.advance(0.125)
        event = await ws.receive_json()
        assert (event["type"], event["status"], code_of(event)) == ("error", 400, LIMIT)
        assert error_of(event)["message"] == (
            "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue."
        )
        assert await ws.wait_closed() == 1001
        with pytest.raises(SocketClosed):
            await ws.receive()


async def test_an_idle_connection_may_be_closed_without_a_word() -> None:
    """A client without a listener crashes on an error that comes out of nothing."""
    shell = Shell(ScriptedApp(), {"max_connection_age_s": 60.0, "idle_timeout_s": None}, age_notice=False)
    async with shell.socket() as ws:
        await shell.clock.advance(60)
        assert await ws.wait_closed() == 1001
        assert ws.frames == []


async def test_turns_that_run_when_the_age_is_reached_may_finish() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.created(), steps.wait_for(go), steps.text("done")])
    shell = Shell(app, {"max_connection_age_s": 3600.0, "age_grace_s": 60.0, "event_timeout_s": None})
    async with shell.socket() as ws:
        await ws.send_json(create())
        await ws.send_json(create("waits"))
        await app.wait_events(2)
        await shell.clock.advance(3600)
        events = [await ws.receive_json() for _ in range(2)]
        assert kinds(events) == ["created", "in_progress"]
        await ws.send_json(create("late", stream_id="b"))
        late = await ws.receive_json()
        assert (code_of(late), late["stream_id"]) == (LIMIT, "b")
        await shell.clock.advance(59)
        go.set()
        assert kinds(await ws.collect())[-1] == "completed"
        assert code_of(await ws.receive_json()) == LIMIT, "what waits is refused, behind the turn that it waits for"
        assert await ws.wait_closed() == 1001
    assert len(app.requests) == 1


async def test_what_waits_is_refused_behind_a_turn_whose_grace_has_passed() -> None:
    """An error in the midst of a stream would be taken for its end, and its end for that of the create behind it."""
    app = ScriptedApp(listen=True)
    app.script([steps.created(), steps.stall()])
    shell = Shell(app, {"max_connection_age_s": 3600.0, "age_grace_s": 60.0, "event_timeout_s": None})
    async with shell.socket() as ws:
        await ws.send_json(create())
        await app.wait_events(2)
        await ws.send_json(create("waits"))
        await settle()
        await shell.clock.advance(3600)
        await ws.send_json(create("late"))
        await settle()
        await shell.clock.advance(60)
        events = [await ws.receive_json() for _ in range(5)]
        assert kinds(events) == ["created", "in_progress", "failed", "error", "error"]
        assert {code_of(event) for event in events[2:]} == {LIMIT}
        assert await ws.wait_closed() == 1001
    assert len(app.requests) == 1


@pytest.mark.parametrize("notice", [True, False])
async def test_turns_that_run_longer_than_the_grace_are_ended_by_the_limit_error(notice: bool) -> None:
    app = ScriptedApp(listen=True)
    app.script(lambda body: [steps.created(), steps.stall()] if body["input"] == "begun" else [steps.stall()])
    limits = {
        "max_connection_age_s": 3600.0,
        "age_grace_s": 60.0,
        "first_event_timeout_s": None,
        "event_timeout_s": None,
    }
    shell = Shell(app, limits, age_notice=notice)
    async with shell.socket() as ws:
        await ws.send_json(create("begun", stream_id="a"))
        await ws.send_json(create("not begun", stream_id="b"))
        await app.wait_requests(2)
        await shell.clock.advance(3659.875)
        assert ws.close_code is None
        assert app.running == 2
        await shell.clock.advance(0.125)
        assert app.running == 0
        events = await ws.collect("a")
        assert kinds(events) == ["created", "in_progress", "failed"]
        assert code_of(events[-1]) == LIMIT
        (event,) = await ws.collect("b")
        assert (event["type"], code_of(event)) == ("error", LIMIT)
        assert await ws.wait_closed() == 1001
    assert shell.facts.outcomes == [("aborted", LIMIT)] * 2


# -- silence ----------------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_idle_too_long_is_closed() -> None:
    shell = Shell(ScriptedApp(), {"idle_timeout_s": 1800.0, "max_connection_age_s": None})
    async with shell.socket() as ws:
        await shell.clock.advance(1799)
        await ws.turn(create())
        await shell.clock.advance(1799)
        await ws.send_json({"type": "response.processed", "response_id": "resp_1"})
        await shell.clock.advance(1799.875)
        assert ws.close_code is None
        await shell.clock.advance(0.125)
        assert (await ws.wait_closed(), ws.close_reason) == (1001, "idle")


async def test_a_connection_with_a_running_turn_is_not_idle() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.created(), steps.wait_for(go)])
    shell = Shell(app, {"idle_timeout_s": 10.0, "event_timeout_s": None})
    async with shell.socket() as ws:
        await ws.send_json(create())
        await shell.clock.advance(100)
        assert ws.close_code is None
        go.set()
        await ws.collect()
        await shell.clock.advance(9.875)
        assert ws.close_code is None
        await shell.clock.advance(0.125)
        assert await ws.wait_closed() == 1001


@pytest.mark.parametrize("begun", ["silent", "started", "created"])
@pytest.mark.parametrize("lane", [None, "a"])
async def test_an_upstream_that_is_silent_too_long_ends_its_turn_and_no_other(begun: str, lane: str | None) -> None:
    """One closing event, 504 and `upstream_timeout`; the lane is free at once, also for what waited."""
    app = ScriptedApp()
    scripts: dict[str, list[steps.Step]] = {
        "silent": [steps.stall()],
        "started": [steps.response_start(), steps.stall()],
        "created": [steps.created(), steps.stall()],
    }
    app.script(lambda body: scripts[begun] if body["input"] == "stalls" else None)
    shell = Shell(app, {"first_event_timeout_s": 300.0, "event_timeout_s": 200.0})
    label = {} if lane is None else {"stream_id": lane}
    patience = 200 if begun == "created" else 300

    async with shell.socket() as ws:
        await ws.send_json(create("stalls", **label))
        await ws.send_json(create("waits", **label))
        await app.wait_requests(1)
        await settle()
        await shell.clock.advance(patience - 0.125)
        assert len(app.requests) == 1
        # A look at the events stamps the time of those since the last look: a quarter of the limit at most.
        await shell.clock.advance(0.125 + (50 if begun == "created" else 0))
        events = await ws.collect(lane)
        assert kinds(events) == (["created", "in_progress", "failed"] if begun == "created" else ["error"])
        assert code_of(events[-1]) == "upstream_timeout"
        assert begun == "created" or events[-1]["status"] == 504
        assert kinds(await ws.collect(lane))[-1] == "completed", "what waited has run"
        assert kinds(await ws.turn(create(**label)))[-1] == "completed"
        await shell.clock.advance(GRACE)
        assert app.running == 0
    assert [event for event in frames_of(ws) if event["type"] in {"error", "response.failed"}] == events[-1:]


async def test_comments_are_signs_of_life() -> None:
    """FastAPI and sse-starlette send one every 15 s while the model thinks."""
    app = ScriptedApp()
    pings = [anyio.Event() for _ in range(10)]
    app.script([step for ping in pings for step in (steps.wait_for(ping), steps.comment())])
    shell = Shell(app, {"first_event_timeout_s": 20.0, "event_timeout_s": 20.0})
    async with shell.socket() as ws:
        await ws.send_json(create())
        for ping in pings:
            await shell.clock.advance(14)
            ping.set()
            await settle()
        assert kinds(await ws.collect())[-1] == "completed"
    assert shell.facts.outcomes == [("completed", None)]


async def test_an_upstream_that_is_held_up_is_not_silent() -> None:
    """The client's slowness is measured apart: the right one is named."""
    app = ScriptedApp()
    app.script([steps.text("x" * 50, deltas=50)])
    shell = Shell(app, {"event_timeout_s": 10.0, "send_timeout_s": 1000.0})
    async with shell.socket(max_unread=4) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        await shell.clock.advance(900)
        assert kinds(await ws.collect())[-1] == "completed"


async def test_an_upstream_that_falls_silent_after_it_was_held_up_is_ended_all_the_same() -> None:
    app = ScriptedApp()
    app.script([steps.text("x" * 5, deltas=5), steps.stall()])
    shell = Shell(app, {"event_timeout_s": 10.0, "send_timeout_s": 1000.0})
    async with shell.socket(max_unread=4) as ws:
        await ws.send_json(create())
        await ws.wait_blocked()
        await shell.clock.advance(900)
        for _ in range(12):
            await ws.receive_json()
        await shell.clock.advance(15)
        assert code_of((await ws.collect())[-1]) == "upstream_timeout"
        await shell.clock.advance(GRACE)


# -- signs of life of ours --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [None, "a"])
async def test_keepalives_come_in_silence_and_never_before_created(lane: str | None) -> None:
    """Middleboxes cut silent sockets. Numbers stay strictly rising, ids are never invented."""
    app = ScriptedApp()
    first, second = anyio.Event(), anyio.Event()
    app.script([steps.wait_for(first), steps.created(), steps.wait_for(second), steps.text("done", deltas=2)])
    shell = Shell(app, {"first_event_timeout_s": None, "event_timeout_s": None}, keepalive_s=20)
    label = {} if lane is None else {"stream_id": lane}
    async with shell.socket() as ws:
        await ws.send_json(create(**label))
        await shell.clock.advance(100)
        assert await ws.settle() == 0
        first.set()
        await settle()
        await shell.clock.advance(100)
        second.set()
        events = await ws.collect(lane)
    kept = [event for event in events if event["type"] == "ws_responses:keepalive"]
    assert 3 <= len(kept) <= 5
    assert kinds(events)[:2] == ["created", "in_progress"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all(event.get("stream_id") == lane for event in events)
    assert all(event.keys() <= {"type", "sequence_number", "stream_id"} for event in kept)
    assert kinds(events)[-1] == "completed"


async def test_no_keepalive_while_events_come() -> None:
    app = ScriptedApp()
    ticks = [anyio.Event() for _ in range(20)]
    app.script([steps.created(), *(step for tick in ticks for step in (steps.wait_for(tick), steps.text("x")))])
    shell = Shell(app, keepalive_s=20)
    async with shell.socket(max_unread=None) as ws:
        await ws.send_json(create())
        for tick in ticks:
            await shell.clock.advance(10)
            tick.set()
            await settle()
        assert "ws_responses:keepalive" not in kinds(await ws.collect())


async def test_keepalives_do_not_keep_a_dead_upstream_alive() -> None:
    app = ScriptedApp()
    app.script([steps.created(), steps.stall()])
    shell = Shell(app, {"event_timeout_s": 100.0}, keepalive_s=20)
    async with shell.socket() as ws:
        await ws.send_json(create())
        await shell.clock.advance(130)
        events = await ws.collect()
        assert code_of(events[-1]) == "upstream_timeout"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        await shell.clock.advance(GRACE)


async def test_by_default_nothing_is_sent_in_silence() -> None:
    """Strict clients reject events that they do not know."""
    app = ScriptedApp()
    app.script([steps.created(), steps.stall()])
    shell = Shell(app, {"event_timeout_s": None})
    async with shell.socket() as ws:
        await ws.send_json(create())
        await shell.clock.advance(3000)
        assert ws.unread == 2
        await ws.close()
        await shell.clock.advance(1)


# -- after the closing event ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("listens", [True, False])
async def test_an_app_that_goes_on_after_its_terminal_event_holds_up_nobody(listens: bool) -> None:
    """The lane is free at the terminal event; the rest of the body is given a little time, then ended."""
    app = ScriptedApp(listen=listens)
    app.script([steps.text("done"), steps.complete(), steps.stall()])
    shell = Shell(app, {"trailing_timeout_s": 5.0})
    async with shell.socket() as ws:
        first = await ws.turn(create())
        assert kinds(await ws.turn(create(previous_response_id=id_of(first))))[-1] == "completed"
        await settle()
        assert app.running == 1
        await shell.clock.advance(4.875)
        assert app.running == 1
        await shell.clock.advance(0.125 + GRACE)
        assert app.running == 0
        assert app.requests[0].outcome == ("disconnected" if listens else "cancelled")
    assert shell.facts.outcomes == [("completed", None)] * 2


async def test_events_after_the_terminal_one_reach_nobody() -> None:
    async def answer(receive: Receive, send: Send) -> None:
        await send(START)
        for message in (sse("created"), sse("completed", 1), sse("created", 2), sse("completed", 3)):
            await send(message)
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})

    shell = Shell(RawApp(answer))
    async with shell.socket() as ws:
        assert kinds(await ws.turn(create())) == ["created", "completed"]
        assert await ws.settle() == 0
    assert shell.facts.outcomes == [("completed", None)]


async def test_an_app_that_sends_for_ever_after_its_terminal_event_is_ended() -> None:
    """Also if it never awaits anything but `send`."""

    async def answer(receive: Receive, send: Send) -> None:
        await send(START)
        await send(sse("created"))
        await send(sse("completed", 1))
        while True:
            await send(sse("created", 2))

    app = RawApp(answer)
    shell = Shell(app, {"trailing_timeout_s": 5.0})
    async with shell.socket() as ws:
        assert kinds(await ws.turn(create())) == ["created", "completed"]
        assert kinds(await ws.turn(create())) == ["created", "completed"]
        shell.clock.jump(5)
        for _ in range(500):
            await anyio.lowlevel.checkpoint()
        shell.clock.jump(GRACE)
        for _ in range(500):
            await anyio.lowlevel.checkpoint()
        assert app.running == 0


def background(wait: Callable[[], Awaitable[None]]) -> RawApp:
    """An app with work of its own after the last chunk, as Starlette's background tasks are."""

    async def answer(receive: Receive, send: Send) -> None:
        await send(START)
        number = next(_numbers)
        await send(sse("created", response_id=f"resp_{number}"))
        await send(sse("completed", 1, response_id=f"resp_{number}"))
        await send({"type": "http.response.body", "body": b""})
        await wait()

    return RawApp(answer)


async def test_work_in_the_background_is_not_touched_by_what_follows() -> None:
    go = anyio.Event()
    app = background(go.wait)
    shell = Shell(app, {"trailing_timeout_s": 5.0, "idle_timeout_s": None})
    async with shell.socket() as ws:
        for _ in range(3):
            assert kinds(await ws.turn(create())) == ["created", "completed"]
        await shell.clock.advance(600)
        assert app.running == 3
        go.set()
        await settle()
        assert app.outcomes == ["finished"] * 3


@pytest.mark.parametrize("leave", LEAVES)
async def test_work_in_the_background_may_finish_after_the_end_of_the_connection(leave: Leave) -> None:
    go = anyio.Event()
    app = background(go.wait)
    shell = Shell(app, {"background_timeout_s": 30.0})
    async with shell.socket() as ws:
        await ws.turn(create())
        await leave(ws)
        await shell.clock.advance(29.875)
        assert app.running == 1
        go.set()
        await settle()
        assert app.outcomes == ["finished"]
        assert ws.returned


async def test_work_in_the_background_is_not_waited_for_for_ever() -> None:
    app = background(anyio.sleep_forever)
    shell = Shell(app, {"background_timeout_s": 30.0})
    async with shell.socket() as ws:
        await ws.turn(create())
        await ws.close()
        await shell.clock.advance(29.875)
        assert app.running == 1
        await shell.clock.advance(0.125)
        assert app.outcomes == ["cancelled"]
        assert ws.returned


async def test_after_its_last_chunk_an_app_hears_the_disconnect_at_once() -> None:
    """Litestar's call does not return before: calls would pile up, one per turn."""
    app = ScriptedApp(await_disconnect=True)
    async with Shell(app).socket() as ws:
        for _ in range(3):
            await ws.turn(create())
            await settle()
            assert app.running == 0


# -- memory -----------------------------------------------------------------------------------------------------------


TOOLS = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]


async def broken() -> None:
    raise RuntimeError("broken")


async def some_turns(shell: Shell, ws: Client, app: ScriptedApp) -> None:
    """Turns of all kinds: chained, failed, warm-up, forked, timed out, refused, and one that still runs."""
    first = id_of(await ws.turn(create("one", tools=TOOLS, instructions="long", tool_choice="none")))
    second = id_of(await ws.turn(create("two", previous_response_id=first, tools=TOOLS, tool_choice="none")))
    await ws.turn(create("warm", previous_response_id=second, generate=False))
    await ws.turn(create("fork", previous_response_id=first, stream_id="b"))
    await ws.turn(create("bad", previous_response_id="resp_x"))
    app.script([steps.status(500)])
    await ws.turn(create("fails", previous_response_id=second))
    app.script([steps.text("x"), steps.call(broken)])
    await ws.turn(create("raises"))
    app.script([steps.created(), steps.stall()])
    await ws.send_json(create("stalls", previous_response_id=first, stream_id="b"))
    await app.wait_requests(6)
    await shell.clock.advance(400)
    await ws.collect("b")
    app.script([steps.created(), steps.stall()])
    await ws.send_json(create("runs", previous_response_id=first, stream_id="b"))
    await ws.send_json(create("waits", previous_response_id=first, stream_id="b"))
    await app.wait_requests(7)


def alive(kind: type) -> int:
    return sum(type(each) is kind for each in gc.get_objects())


@pytest.mark.parametrize(
    ("end", "anonymous"), [("close", True), ("close", False), ("abort", False), ("age", True), ("operator", False)]
)
async def test_a_closed_connection_leaves_only_what_is_stored(
    end: str, anonymous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """At once and without the garbage collector: charged bytes are what others may use."""
    caplog.set_level(logging.CRITICAL, "ws_responses.turn")  # pytest keeps records, and they hold tracebacks
    app = ScriptedApp()
    shell = Shell(app, {"idle_timeout_s": None})
    with no_garbage_collection():
        runs, nodes, connections = alive(TurnRun), alive(ResponseNode), alive(Connection)
        async with shell.socket(*(() if anonymous else (KEY,)), max_unread=None) as ws:
            await some_turns(shell, ws, app)
            (connection,) = shell.middleware.registry.connections
            assert shell.middleware.history_bytes > 1000
            if end == "age":
                await shell.clock.advance(4000)
            elif end == "operator":
                shell.middleware.disconnect(connection.tenant)
            else:
                await getattr(ws, end)()
            del connection
            await shell.clock.advance(GRACE)
            assert ws.returned
        app.requests.clear()  # their scopes hold the turns
        await settle()
        assert alive(TurnRun) == runs
        assert alive(ResponseNode) == nodes
        assert alive(Connection) == connections
        stored = 0 if anonymous else sum(record.size for record in stored_records(shell))
        assert shell.middleware.history_bytes == stored
        assert anonymous or stored > 0


def stored_records(shell: Shell) -> list[Record]:
    store = shell.middleware.registry.chains.store
    assert isinstance(store, InProcessStore)
    return [entry.value.record for shelf in store._shelves.values() for entry in shelf._entries.values()]


async def test_a_long_connection_keeps_nothing_of_turns_that_are_over() -> None:
    """But their nodes: no task, no run, no frame of a client."""
    app = ScriptedApp()
    shell = Shell(app)
    with no_garbage_collection():
        runs = alive(TurnRun)
        async with shell.socket() as ws:
            for number in range(20):
                await ws.turn(create(f"{number}", store=False, stream_id="a" if number % 2 else "b"))
            app.requests.clear()
            await settle()
            assert alive(TurnRun) == runs
            before = tasks_now()
            await ws.turn(create())
            app.requests.clear()
            await settle()
            assert tasks_now() == before


async def test_what_waits_is_let_go_of_at_the_end() -> None:
    """Frames of queued creates, up to 32 MiB of them."""
    app = ScriptedApp()
    app.script([steps.stall()])
    shell = Shell(app)
    async with shell.socket() as ws:
        await ws.send_json(create())
        for _ in range(10):
            await ws.send_json(create("x" * 1000))
        await app.wait_requests(1)
        (connection,) = shell.middleware.registry.connections
        assert connection.session.lanes.queued_bytes > 10_000
        await ws.close()
        await shell.clock.advance(GRACE)
        assert connection.session.lanes.queued_bytes == 0
        assert not any(lane.queue for lane in connection.session.lanes.by_name.values())


# -- whatever happens -------------------------------------------------------------------------------------------------

PLAYS: dict[str, Callable[[], list[steps.Step]]] = {
    "text": lambda: [steps.text("hello", deltas=3)],
    "long": lambda: [steps.text("x" * 40, deltas=40)],
    "tool": lambda: [steps.tool_call("f", {}, "call_1")],
    "incomplete": lambda: [steps.text("x", finish=False), steps.incomplete()],
    "failed": lambda: [steps.text("x"), steps.fail()],
    "status": lambda: [steps.status(500)],
    "raises": lambda: [steps.text("x"), steps.call(broken)],
    "raises at once": lambda: [steps.call(broken)],
    "truncated": lambda: [steps.text("x"), steps.truncate(4)],
    "stalls": lambda: [steps.stall()],
    "stalls later": lambda: [steps.text("x"), steps.stall()],
    "trails": lambda: [steps.text("x"), steps.complete(), steps.stall()],
    "not streamed": lambda: [steps.text("x"), steps.json_only()],
    "one chunk": lambda: [steps.text("x"), steps.coalesce(), steps.done_marker()],
    "small chunks": lambda: [steps.text("hello", deltas=3), steps.chunk_bytes(50)],
    "comments": lambda: [steps.comment(), steps.text("x"), steps.comment()],
    "no created": lambda: [steps.text("x"), steps.drop_event("response.created")],
    "poor": lambda: [steps.tool_call("f", {}, "call_1"), steps.set_field("response.output", [])],
    "error event": lambda: [steps.text("x"), steps.event({"type": "error", "code": "x", "message": "y"})],
    "same id": lambda: [steps.text("x"), steps.response_id("resp_same")],
}

CREATES = st.fixed_dictionaries(
    {
        "do": st.just("create"),
        "play": st.sampled_from(sorted(PLAYS)),
        "lane": st.sampled_from([None, None, "a", "b", "one too many", "c"]),
        "parent": st.none() | st.integers(0, 5),
        "store": st.sampled_from([None, True, False]),
        "generate": st.sampled_from([True, True, True, False]),
    }
)
ACTS = st.lists(
    CREATES
    | st.fixed_dictionaries({"do": st.just("garbage"), "text": st.sampled_from(["", "{", "[]", '{"type":"x"}'])})
    | st.fixed_dictionaries({"do": st.just("read"), "frames": st.sampled_from([1, 5, 50])})
    | st.fixed_dictionaries({"do": st.just("wait"), "seconds": st.sampled_from([0.25, 5.0, 30.0, 61.0, 110.0])}),
    min_size=2,
    max_size=14,
)
ENDS = st.sampled_from(["close", "abort", "drain", "disconnect", "cancel"])


class Chaos:
    """One connection to which anything may happen."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.app = ScriptedApp(listen=options.pop("listen"), await_disconnect=options.pop("await_disconnect"))
        self.app.script(lambda body: PLAYS[body["metadata"]["play"]]())
        limits = {
            "max_lanes": 3,
            "max_running_turns": 3,
            "max_queued_creates": 3,
            "max_outgoing_bytes": 2000,
            "max_connection_age_s": 400.0,
            "age_grace_s": 30.0,
            "idle_timeout_s": 300.0,
            "first_event_timeout_s": 100.0,
            "event_timeout_s": 100.0,
        }
        self.shell = Shell(self.app, limits, **options)
        self.known = ["resp_unknown"]

    async def act(self, ws: Client, act: dict[str, Any]) -> None:
        if act["do"] == "wait":
            await self.shell.clock.advance(act["seconds"])
        elif act["do"] == "read":
            await settle()
            for _ in range(min(act["frames"], ws.unread)):
                event = await ws.receive_json()
                if event["type"] == "response.completed":
                    self.known.append(event["response"]["id"])
                await settle()
        elif ws.close_code is None and act["do"] == "garbage":
            await ws.send_text(act["text"])
        elif ws.close_code is None and act["do"] == "create":
            fields = {key: act[key] for key in ("store", "generate")}
            if act["lane"] is not None:
                fields["stream_id"] = act["lane"]
            if act["parent"] is not None:
                fields["previous_response_id"] = self.known[act["parent"] % len(self.known)]
            await ws.send_json(create(metadata={"play": act["play"]}, **fields))

    async def end(self, ws: Client, how: str, server: anyio.CancelScope) -> None:
        if how == "drain":
            with self.shell.clock.move_on_after(50):
                await self.shell.middleware.drain()
        elif how == "disconnect":
            for connection in list(self.shell.middleware.registry.connections):
                self.shell.middleware.disconnect(connection.tenant)
        elif how == "cancel":
            server.cancel()
        else:
            await getattr(ws, how)()


@settings(max_examples=100)
@given(
    acts=ACTS,
    end=ENDS,
    max_unread=st.sampled_from([0, 3, None]),
    swallows=st.booleans(),
    options=st.fixed_dictionaries(
        {
            "listen": st.booleans(),
            "await_disconnect": st.booleans(),
            "keepalive_s": st.sampled_from([None, 20]),
            "on_disconnect": st.sampled_from(["cancel", 30]),
            "age_notice": st.booleans(),
        }
    ),
)
async def test_whatever_happens_the_wire_stays_legal_and_nothing_is_left(
    acts: list[dict[str, Any]], end: str, max_unread: int | None, swallows: bool, options: dict[str, Any]
) -> None:
    """One closing event for each response that began, rising numbers, no overlap on a lane; and in the end no call, no
    task, no byte of it."""
    before = tasks_now()
    chaos = Chaos(dict(options))
    shell, app = chaos.shell, chaos.app
    server = anyio.CancelScope()

    async def call(*arguments: Any) -> None:
        with server:
            await shell.middleware(*arguments)

    client = Client(call, headers=[KEY], max_unread=max_unread, swallow_after_gone=swallows)
    client.clock = shell.clock
    async with client as ws:
        for act in acts:
            await chaos.act(ws, act)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(chaos.end, ws, end, server)
            await shell.clock.advance(200)
        assert app.running == 0
        assert ws.returned
        assert ws.cancelled_receives <= 1
        assert tasks_now() - before == set()
        check_wire(frames_of(ws))
    books = shell.middleware
    assert (books.connections, books.running_turns, books.registry.ledger.connections) == (0, 0, 0)
    (closed,) = shell.facts.of(ConnectionClosed)
    assert len(shell.facts.of(TurnFinished)) == closed.turns


def check_wire(frames: list[dict[str, Any]]) -> None:
    """Read the frames as a strict client does."""
    open_now: dict[str | None, tuple[str, int]] = {}
    for event in frames:
        lane = event.get("stream_id")
        if event["type"] == "error":
            assert isinstance(event["error"]["code"], str)
            assert event["status"] >= 400
            continue
        number = event["sequence_number"]
        if event["type"] == "response.created":
            assert lane not in open_now, "an overlap"
            assert number == 0
            open_now[lane] = (event["response"]["id"], 0)
            continue
        assert lane in open_now, f"{event['type']} outside of a response"
        response_id, last = open_now[lane]
        assert number == last + 1
        open_now[lane] = (response_id, number)
        if "response" in event:
            assert event["response"]["id"] == response_id
        if event["type"] in {"response.completed", "response.failed", "response.incomplete"}:
            del open_now[lane]


# -- odds and ends ----------------------------------------------------------------------------------------------------


async def test_a_socket_that_ends_without_a_code() -> None:
    """granian and uvicorn report 1005 or none: logged, never decided on."""
    shell = Shell(ScriptedApp())
    messages = iter([{"type": "websocket.connect"}, {"type": "websocket.disconnect"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        pass

    await shell.middleware({"type": "websocket", "path": "/v1/responses", "headers": []}, receive, send)
    assert [fact.code for fact in shell.facts.of(ConnectionClosed)] == [1005]


async def test_messages_with_both_keys_or_none() -> None:
    """hypercorn sends both keys, one of them None."""
    app = ScriptedApp()
    async with Shell(app).socket(both_keys=True) as ws:
        assert kinds(await ws.turn(create()))[-1] == "completed"
        await ws.send_bytes(b'{"type":"response.create","model":"m","input":"hi"}')
        assert kinds(await ws.collect())[-1] == "completed"
        ws._inbox.append({"type": "websocket.receive", "text": None, "bytes": None})
        assert kinds(await ws.turn(create()))[-1] == "completed"


async def test_turns_that_fail_in_every_way_leave_the_books_even() -> None:
    """No lane stays busy, no place is lost, after ten rounds of each."""
    app = ScriptedApp()
    shell = Shell(app, authorize=lambda handshake, model: None if model == "no" else Principal(id="x"))
    ways: list[tuple[list[steps.Step] | None, dict[str, Any]]] = [
        (None, {}),
        ([steps.raise_error(RuntimeError("x"), after="before")], {}),
        ([steps.text("x"), steps.raise_error(RuntimeError("x"))], {}),
        ([steps.status(429)], {}),
        ([steps.fail()], {}),
        ([steps.incomplete()], {}),
        ([steps.text("x"), steps.truncate(3)], {}),
        (None, {"model": "no"}),
        (None, {"previous_response_id": "resp_x"}),
        (None, {"generate": False}),
    ]
    async with shell.socket() as ws:
        for _, (script, fields) in itertools.product(range(10), ways):
            if script is not None:
                app.script(script)
            await ws.turn(create(**fields))
        assert shell.middleware.running_turns == 0
        assert app.running == 0
    assert len(shell.facts.of(TurnFinished)) == 100
    assert shell.middleware.connections == 0


def test_the_fake_clock_is_the_clock_of_all_limits() -> None:
    """No test here waits for real time: nothing of the shell may look at another clock."""
    clock = FakeClock()
    middleware = Shell(ScriptedApp()).middleware
    assert middleware._settings.clock.now() == clock.now() == 0
