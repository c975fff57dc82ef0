"""Liveness, time limits, disconnect, shutdown: what went wrong elsewhere does not go wrong here."""

import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from starlette.requests import Request as StarletteRequest
from starlette.responses import StreamingResponse

from tests.known_faults.talk import Event, answer, create, endings, failure, follow, id_of, kinds, response, sse
from tests.shell import ours
from ws_responses import Handshake, Limits, Principal, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Receive, Scope, Send
from ws_responses.instrumentation import ConnectionClosed, Fact
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, settle, steps

FOREVER = Limits(idle_timeout_s=None)
"""Time limits by default, but no close for silence between turns."""


async def start(ws: MemorySocket, app: ScriptedApp, **members: Any) -> None:
    """Send a create, and wait until the app has it."""
    count = len(app.requests)
    await ws.send_json({"type": "response.create", **create(**members)})
    await app.wait_requests(count + 1)


def code_of(event: Event) -> str:
    """The code of the event that closed a turn that went wrong."""
    assert event["type"] in {"error", "response.failed"}, event
    error = event["error"] if event["type"] == "error" else event["response"]["error"]
    return str(error["code"])


# -- keepalives ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B050")
async def test_a_silent_turn_stays_silent_by_default() -> None:
    """JSON pings that no specification knows break clients that validate each event."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.created(), steps.wait_for(go_on), steps.text("late")])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock)) as ws:
        await start(ws, app)
        await app.wait_events(2)
        await clock.advance(290)
        assert [json.loads(frame)["type"] for frame in ws.frames] == ["response.created", "response.in_progress"]
        go_on.set()
        assert response(await ws.collect())


@pytest.mark.fault("B050", "B051")
async def test_a_keepalive_is_an_extension_event_without_an_id() -> None:
    """A keepalive with an invented id, or without a number, breaks the client that it is to keep."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.created(), steps.wait_for(go_on), steps.text("late")])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, keepalive_s=10)) as ws:
        await start(ws, app, stream_id="a")
        await app.wait_events(2)
        await clock.advance(45)
        go_on.set()
        events = await ws.collect("a")

    alive = [event for event in events if re.fullmatch(r"[a-z_]+:[a-z_]+", event["type"])]
    assert 3 <= len(alive) <= 4
    assert all(set(event) == {"type", "sequence_number", "stream_id"} for event in alive)
    # They count in the response's own sequence.
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.fault("B051")
async def test_there_is_no_keepalive_of_a_response_that_is_none_yet() -> None:
    """A keepalive before ``response.created`` makes a phantom response in the client."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.wait_for(go_on), steps.text("late")])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, keepalive_s=10)) as ws:
        await start(ws, app)
        await clock.advance(100)
        assert ws.frames == []
        go_on.set()
        assert kinds(await ws.collect())[0] == "response.created"


# -- the reader ------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B055")
async def test_something_always_waits_in_receive() -> None:
    """While the server streams nobody receives, so that pongs and hang-ups are not seen."""
    app = ScriptedApp()
    app.script([steps.text("x" * 100, deltas=100)])
    limits = Limits(max_queued_creates=2)

    async with MemorySocket(ResponsesWebSocketMiddleware(app, limits=limits), max_unread=4) as ws:
        await start(ws, app)
        await ws.wait_blocked()
        for number in range(5):
            await ws.send_json({"type": "response.create", **create(input=str(number))})
            await ws.wait_received()
        assert ws.blocked
        turns = [await ws.collect() for _ in range(6)]

    assert ws.cancelled_receives == 0
    refused = [failure(events[-1:]) for events in turns if events[-1]["type"] == "error"]
    assert refused == [(429, "websocket_queue_full", None)] * 3
    assert [request.body["input"] for request in app.requests] == ["hi", "0", "1"]


@pytest.mark.fault("B055", "B057")
async def test_a_client_that_leaves_while_a_write_blocks_is_noticed() -> None:
    """The hang-up of a client that did not read is noticed when the next write fails, which never comes."""
    app = ScriptedApp()
    app.script([steps.text("x" * 100, deltas=100)])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock), max_unread=4) as ws:
        await start(ws, app)
        await ws.wait_blocked()
        await ws.abort()
        await clock.advance(0.25)
        await ws.wait_returned()
        assert app.running == 0


# -- a client that leaves --------------------------------------------------------------------------------------------

LEAVE: dict[str, Callable[[MemorySocket], Awaitable[None]]] = {
    "reset": lambda ws: ws.abort(),
    "1000": lambda ws: ws.close(1000),
    "1001": lambda ws: ws.close(1001),
    "1005": lambda ws: ws.close(1005),
    "4001": lambda ws: ws.close(4001, "bye"),
}


@pytest.mark.fault("B056", "B068")
@pytest.mark.parametrize("listens", [True, False], ids=["app listens", "app does not listen"])
@pytest.mark.parametrize("way", LEAVE)
async def test_a_turn_ends_with_its_client(listens: bool, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """A handler is not told that its client has left, and runs on; or what happens depends on the close code."""
    app = ScriptedApp(listen=listens)
    app.script([steps.text("begun", finish=False), steps.stall()])
    clock = FakeClock()
    facts: list[Fact] = []
    middleware = ResponsesWebSocketMiddleware(app, clock=clock, hooks=[facts.append])

    with caplog.at_level(logging.INFO, "ws_responses"):
        async with MemorySocket(middleware) as ws:
            await start(ws, app)
            await app.wait_events(3)
            await LEAVE[way](ws)
            await clock.advance(0 if listens else 0.25)
            await ws.wait_returned()

            assert app.requests[0].outcome == ("disconnected" if listens else "cancelled")
            assert (app.running, middleware.running_turns, middleware.connections) == (0, 0, 0)
    assert [fact.outcome for fact in endings(facts)] == ["gone"]
    assert sum(isinstance(fact, ConnectionClosed) for fact in facts) == 1
    assert [record.levelno for record in ours(caplog)] == [logging.INFO]


@pytest.mark.fault("B057")
async def test_a_silent_turn_ends_with_its_client() -> None:
    """A client that leaves is noticed by the next send only, so a silent turn runs to its end."""
    app = ScriptedApp()
    app.script([steps.stall()])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock)) as ws:
        await start(ws, app)
        await ws.abort()
        await clock.advance(0.25)
        await ws.wait_returned()

        assert app.requests[0].outcome == "cancelled"
        assert app.requests[0].events == []


@pytest.mark.fault("B056")
async def test_an_app_that_will_not_end_is_given_up_in_time(caplog: pytest.LogCaptureFixture) -> None:
    """An app that ignores its cancellation keeps the connection, and what it holds, for ever."""
    app = ScriptedApp()
    free = anyio.Event()
    app.script([steps.wait_for(free, shield=True)])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock)) as ws:
        await start(ws, app)
        await ws.abort()
        await clock.advance(120)
        stuck = [record for record in caplog.records if record.levelno >= logging.ERROR]
        free.set()
        await ws.wait_returned()

    assert len(stuck) == 1
    assert "ignore cancellation" in stuck[0].getMessage()


def streaming(generate: Callable[[], AsyncIterator[bytes]]) -> ASGIApp:
    """Make an app that answers with a generator, as Starlette and FastAPI do it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await StarletteRequest(scope, receive).body()
            await StreamingResponse(generate(), media_type="text/event-stream")(scope, receive, send)

    return app


@pytest.mark.fault("B058")
async def test_generation_stops_when_the_client_leaves() -> None:
    """The model goes on for a client that has left."""
    made = 0

    async def generate() -> AsyncIterator[bytes]:
        nonlocal made
        for event in answer("x" * 1000, deltas=1000):
            made += 1
            yield sse(event)
            await anyio.lowlevel.checkpoint()

    async with MemorySocket(ResponsesWebSocketMiddleware(streaming(generate)), max_unread=2) as ws:
        await ws.send_json({"type": "response.create", **create()})
        for _ in range(10):
            await ws.receive()
        await ws.close()
        await ws.wait_returned()

    assert 10 <= made <= 20


@pytest.mark.fault("B058")
async def test_a_generator_that_waits_is_ended_in_its_own_task() -> None:
    """The generator of a client that has left is never closed, or from another task than the one that runs it."""
    tasks: list[int] = []

    async def generate() -> AsyncIterator[bytes]:
        tasks.append(anyio.get_current_task().id)
        try:
            yield sse(answer()[0])
            await anyio.sleep_forever()
        finally:
            tasks.append(anyio.get_current_task().id)

    async with MemorySocket(ResponsesWebSocketMiddleware(streaming(generate))) as ws:
        await ws.send_json({"type": "response.create", **create()})
        await ws.receive()
        await ws.close()
        await ws.wait_returned()

        assert len(tasks) == 2
        assert tasks[0] == tasks[1]


# -- a silent app ----------------------------------------------------------------------------------------------------


@pytest.mark.fault("B060")
@pytest.mark.parametrize("begun", [False, True], ids=["no event", "two events"])
async def test_an_app_that_is_silent_for_ever_loses_its_lane(begun: bool) -> None:
    """An app that says nothing more blocks its lane for the life of the socket."""
    app = ScriptedApp()
    app.script([*([steps.created()] if begun else []), steps.stall()], [steps.text("next")])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, limits=FOREVER)) as ws:
        await start(ws, app)
        await ws.send_json({"type": "response.create", **create()})
        await clock.advance(299)
        assert len(app.requests) == 1
        await clock.advance(100)
        events = await ws.collect()
        assert code_of(events[-1]) == "upstream_timeout"
        if begun:
            assert kinds(events) == ["response.created", "response.in_progress", "response.failed"]
        else:
            assert failure(events) == (504, "upstream_timeout", None)
        assert response(await ws.collect())["output"][0]["content"][0]["text"] == "next"

    assert app.requests[0].outcome == "cancelled"


@pytest.mark.fault("B060")
async def test_an_app_that_shows_life_is_not_silent() -> None:
    """A turn that thinks for long is cut off although the app says by comments that it lives."""
    app = ScriptedApp()
    ticks = [anyio.Event() for _ in range(5)]
    waits = [step for tick in ticks for step in (steps.wait_for(tick), steps.comment())]
    app.script([steps.created(), *waits, steps.text("thought")])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, limits=FOREVER)) as ws:
        await start(ws, app)
        for tick in ticks:
            await clock.advance(200)
            tick.set()
        assert response(await ws.collect())


# -- the end of a connection -----------------------------------------------------------------------------------------

AGE_MESSAGE = (
    "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue."
)


@pytest.mark.fault("B062")
@pytest.mark.parametrize("notice", [True, False])
async def test_an_idle_socket_is_told_of_its_age_only_if_that_is_wanted(notice: bool) -> None:
    """The age limit's error on an idle socket crashes a client that has no listener then."""
    clock = FakeClock()
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), clock=clock, limits=FOREVER, age_notice=notice)

    async with MemorySocket(middleware) as ws:
        await clock.advance(3599)
        assert ws.close_code is None
        await clock.advance(1)
        assert await ws.wait_closed() == 1001
        frames = [json.loads(frame) for frame in await ws.read_to_close()]

    assert [failure([frame]) for frame in frames] == [(400, "websocket_connection_limit_reached", None)] * notice
    assert [frame["error"]["message"] for frame in frames] == [AGE_MESSAGE] * notice


@pytest.mark.fault("B063")
async def test_a_running_turn_may_end_after_the_age_limit() -> None:
    """The deadline of the last write is the connection's own, so that neither the turn's end nor the error is sent."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.created(), steps.wait_for(go_on), steps.text("in time")])
    clock = FakeClock()
    limits = Limits(idle_timeout_s=None, event_timeout_s=None, first_event_timeout_s=None)

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, limits=limits)) as ws:
        await start(ws, app)
        await clock.advance(3600)
        refused = await ws.turn(create(stream_id="new"))
        await clock.advance(59)
        go_on.set()
        ended = await ws.collect(None)
        notice = await ws.collect(None)
        assert await ws.wait_closed() == 1001

    assert failure(refused) == (400, "websocket_connection_limit_reached", None)
    assert response(ended)
    assert failure(notice) == (400, "websocket_connection_limit_reached", None)
    assert ws.frames[-1] == json.dumps(notice[0], separators=(",", ":"))


@pytest.mark.fault("B065")
async def test_a_socket_is_idle_between_its_turns_only() -> None:
    """Nothing ends an abandoned socket; or a long turn counts as idleness."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([], [steps.created(), steps.wait_for(go_on), steps.text("long")])
    clock = FakeClock()
    limits = Limits(event_timeout_s=None, first_event_timeout_s=None, max_connection_age_s=None)

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, limits=limits)) as ws:
        await clock.advance(1799)
        first = await ws.turn(create())
        await clock.advance(1799)
        await start(ws, app, previous_response_id=id_of(first))
        await clock.advance(10_000)
        go_on.set()
        assert response(await ws.collect())
        await clock.advance(1799)
        assert ws.close_code is None
        await clock.advance(1)

        assert await ws.wait_closed() == 1001
        assert ws.close_reason == "idle"
        assert await ws.settle() == 0


@pytest.mark.fault("B065")
async def test_silence_of_a_peer_is_no_death() -> None:
    """A peer that only answers pings is declared dead by a guess of ours."""
    clock = FakeClock()
    limits = Limits(idle_timeout_s=None, max_connection_age_s=None)

    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), clock=clock, limits=limits)) as ws:
        await clock.advance(10 * 24 * 3600)
        assert ws.close_code is None
        assert response(await ws.turn(create()))


@pytest.mark.fault("B066")
async def test_a_drain_ends_all_sockets_in_time() -> None:
    """A shutdown hangs on open sockets, or cuts them without a word."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.created(), steps.wait_for(go_on), steps.text("in time")], [steps.created(), steps.stall()])
    clock = FakeClock()
    middleware = ResponsesWebSocketMiddleware(app, clock=clock)
    drained: list[bool] = []

    async def drain() -> None:
        drained.append(await middleware.drain(70))

    async with (
        MemorySocket(middleware) as idle,
        MemorySocket(middleware) as quick,
        MemorySocket(middleware) as stuck,
        anyio.create_task_group() as tasks,
    ):
        await start(quick, app)
        await start(stuck, app)
        tasks.start_soon(drain)
        await settle()
        assert (idle.close_code, idle.close_reason) == (1012, "service restart")
        assert idle.frames == []
        assert failure(await quick.turn(create(stream_id="new"))) == (503, "server_is_overloaded", None)
        async with MemorySocket(middleware) as late:
            assert late.denial is not None
            assert late.denial.status == 503
            assert late.denial.header(b"retry-after") is not None
        go_on.set()
        assert response(await quick.collect(None))
        assert await quick.wait_closed() == 1012
        await clock.advance(59)
        assert stuck.close_code is None
        await clock.advance(2)
        assert code_of((await stuck.collect())[-1]) == "server_is_overloaded"
        assert await stuck.wait_closed() == 1012

    assert drained == [True]
    assert (middleware.connections, app.running) == (0, 0)


@pytest.mark.fault("B067")
async def test_a_socket_stays_open_after_a_turn() -> None:
    """The server ends the socket after each turn, and with it every chain."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, tenant=lambda handshake: "t")

    async with MemorySocket(middleware) as ws:
        events = await ws.turn(create(store=False))
        for _ in range(5):
            assert await ws.settle() == 0
            assert ws.close_code is None
            events = await ws.turn(follow(events, store=False))
        middleware.disconnect("t")

        # An end that is ours has a close frame.
        assert await ws.wait_closed() == 1008
    assert len(app.requests[-1].body["input"]) == 11


@pytest.mark.fault("B070")
async def test_a_turn_that_dies_is_told_and_the_socket_stays() -> None:
    """The app dies in mid-stream, the socket is closed, and nobody knows whether the turn has run."""
    app = ScriptedApp()
    app.script(
        [steps.text("begun", finish=False), steps.raise_error(RuntimeError("died"))],
        [steps.text("begun", finish=False), steps.truncate(4, finish_body=False)],
        [steps.raise_error(RuntimeError("died"), "before")],
    )

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        died = await ws.turn(create())
        cut = await ws.turn(create())
        unborn = await ws.turn(create())
        assert response(await ws.turn(create()))

    assert (kinds(died)[-1], code_of(died[-1])) == ("response.failed", "server_error")
    assert died[-1]["response"]["id"] == died[0]["response"]["id"]
    assert (kinds(cut)[-1], code_of(cut[-1])) == ("response.failed", "upstream_stream_truncated")
    assert failure(unborn) == (500, "server_error", None)


ENDS: dict[str, tuple[str, int]] = {
    "disconnect": ("permission_denied", 1008),
    "drain": ("server_is_overloaded", 1012),
    "age": ("websocket_connection_limit_reached", 1001),
}


@pytest.mark.fault("B063", "B070")
@pytest.mark.parametrize("end", ENDS)
async def test_no_close_of_ours_comes_before_the_end_of_a_turn(end: str) -> None:
    """The server closes the socket while turns run or wait, and clients cannot tell what became of them."""
    app = ScriptedApp()
    app.script([steps.text("begun", finish=False), steps.stall()], [steps.stall()])
    clock = FakeClock()
    limits = Limits(event_timeout_s=None, first_event_timeout_s=None)
    middleware = ResponsesWebSocketMiddleware(
        app, clock=clock, limits=limits, tenant=lambda handshake: "t", age_notice=False
    )
    code, close_code = ENDS[end]

    async with MemorySocket(middleware) as ws:
        await start(ws, app, stream_id="begun")
        await start(ws, app, stream_id="silent")
        await ws.send_json({"type": "response.create", **create(stream_id="silent")})
        await ws.wait_received()
        if end == "disconnect":
            middleware.disconnect("t")
        elif end == "drain":
            assert not await middleware.drain(0)
        await clock.advance(3600 + 61 if end == "age" else 61)
        begun = await ws.collect("begun")
        silent = [(await ws.collect("silent"))[-1] for _ in range(2)]

        assert await ws.wait_closed() == close_code
    assert kinds(begun)[-1] == "response.failed"
    assert code_of(begun[-1]) == code
    assert [(event["type"], code_of(event)) for event in silent] == [("error", code)] * 2
    assert ws.messages[-1]["type"] == "websocket.close"
    assert app.running == 0


# -- what fails closed, and who is to blame ----------------------------------------------------------------------------


@pytest.mark.fault("B071")
@pytest.mark.parametrize("trouble", ["late", "raises"])
async def test_a_check_that_fails_lets_no_turn_through(trouble: str) -> None:
    """A check that is late or broken refuses over HTTP, but lets the turns of a socket pass."""
    app = ScriptedApp()
    clock = FakeClock()

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        if model == "m" and trouble == "raises":
            raise RuntimeError("the database is down")
        if model == "m":
            await anyio.sleep_forever()
        return Principal(id="p")

    async with MemorySocket(ResponsesWebSocketMiddleware(app, authorize=authorize, clock=clock)) as ws:
        await ws.send_json({"type": "response.create", **create()})
        await clock.advance(5)
        refused = await ws.collect()
        assert app.requests == []
        assert response(await ws.turn(create(model="other")))

    assert failure(refused) == (503, "server_is_overloaded", None)
    assert "database" not in json.dumps(refused)


SLOW = Limits(event_timeout_s=5, first_event_timeout_s=5, send_timeout_s=60)


@pytest.mark.fault("B072")
async def test_a_slow_client_is_not_the_apps_silence() -> None:
    """The app is blamed, and its turn ended, because the client does not read."""
    app = ScriptedApp()
    app.script([steps.text("x" * 50, deltas=50)])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, limits=SLOW), max_unread=4) as ws:
        await start(ws, app)
        await ws.wait_blocked()
        await clock.advance(55)
        assert response(await ws.collect())["output"][0]["content"][0]["text"] == "x" * 50


@pytest.mark.fault("B072", "B088")
async def test_a_client_that_does_not_read_is_told_so_by_the_close() -> None:
    """A client that never reads holds the turn for ever, or the close blames the app."""
    app = ScriptedApp()
    app.script([steps.text("x" * 50, deltas=50)])
    clock = FakeClock()
    facts: list[Fact] = []
    middleware = ResponsesWebSocketMiddleware(app, clock=clock, limits=SLOW, hooks=[facts.append])

    async with MemorySocket(middleware, max_unread=4) as ws:
        await start(ws, app)
        await ws.wait_blocked()
        await clock.advance(62)
        assert (ws.close_code, ws.close_reason) == (1008, "client does not read")
        await clock.advance(20)
        await ws.wait_returned()

    assert app.running == 0
    (ended,) = endings(facts)
    assert ended.code != "upstream_timeout"


@pytest.mark.fault("B072")
async def test_an_apps_silence_is_not_the_clients_fault() -> None:
    """The clock of the app's silence stands still for a client that reads all it is given."""
    app = ScriptedApp()
    app.script([steps.text("x", finish=False), steps.stall()])
    clock = FakeClock()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, limits=SLOW)) as ws:
        await start(ws, app)
        await app.wait_events(3)
        await clock.advance(20)
        events = await ws.collect()

        assert code_of(events[-1]) == "upstream_timeout"
        assert ws.close_code is None
