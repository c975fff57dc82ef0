"""Order, lanes, back-pressure: what went wrong elsewhere does not go wrong here."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from tests.known_faults.talk import Event, create, failure, follow, id_of, kinds, response
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, settle, steps
from ws_responses.testing.steps import Step

BAD_OUTPUT = [{"type": "function_call_output", "call_id": "call_nobody_made", "output": "x"}]


async def send(ws: MemorySocket, **members: Any) -> None:
    """Send a create."""
    await ws.send_json({"type": "response.create", **create(**members)})


def said_by(events: Sequence[Event]) -> str:
    """The text of a completed response, from its deltas."""
    assert response(events)
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def answer_of(texts: dict[str, Sequence[Step]]) -> Any:
    """Make a script that answers by the input of each request."""
    return lambda body: texts[body["input"]]


# -- lanes -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B073")
async def test_lanes_do_not_blend() -> None:
    """Events of lanes that run at once are not labelled, or carry another lane's name."""
    app = ScriptedApp()
    first, second = anyio.Event(), anyio.Event()
    app.script(
        answer_of(
            {
                "to a": [steps.text("one"), steps.wait_for(second), steps.text("two")],
                "to b": [steps.text("three"), steps.signal(second), steps.wait_for(first), steps.text("four")],
                "to none": [steps.text("five"), steps.signal(first), steps.text("six")],
            }
        )
    )

    async with MemorySocket(ResponsesWebSocketMiddleware(app), max_unread=None) as ws:
        await send(ws, input="to a", stream_id="a")
        await send(ws, input="to b", stream_id="b")
        await send(ws, input="to none")
        a, b, none = await ws.collect("a"), await ws.collect("b"), await ws.collect(None)
        assert await ws.settle() == 0

    assert (said_by(a), said_by(b), said_by(none)) == ("onetwo", "threefour", "fivesix")
    assert all("stream_id" not in event for event in none)
    for events in (a, b, none):
        assert len({event["response"]["id"] for event in events if "response" in event}) == 1
        assert [event["sequence_number"] for event in events] == list(range(len(events)))


LANE_FAULTS: dict[str, tuple[dict[str, Any], int]] = {
    "the app knows no such model": ({"input": "bad model"}, 404),
    "a member of a wrong type": ({"model": 7}, 400),
    "a parent that is none": ({"previous_response_id": "resp_none"}, 400),
    "an output of no call": ({"input": BAD_OUTPUT}, 400),
    "an unknown event": ({"type": "response.cancel"}, 400),
    "background": ({"background": True}, 400),
}


@pytest.mark.fault("B075")
@pytest.mark.parametrize("fault", LANE_FAULTS)
async def test_an_error_names_its_lane(fault: str) -> None:
    """An error without its lane's name is laid at another lane's door."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script(
        answer_of(
            {
                "hi": [steps.created(), steps.wait_for(go_on), steps.text("undisturbed")],
                "bad model": [steps.status(404)],
            }
        )
    )
    members, status = LANE_FAULTS[fault]

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await send(ws, stream_id="a")
        await app.wait_events(2)
        await ws.send_json({"type": "response.create", **create(stream_id="b"), **members})
        (error,) = await ws.collect("b")
        go_on.set()
        assert said_by(await ws.collect("a")) == "undisturbed"

    assert (error["type"], error["status"], error["stream_id"]) == ("error", status, "b")


@pytest.mark.fault("B080")
@pytest.mark.parametrize("failure_of_fork", ["refused here", "refused by the app", "failed"])
async def test_a_fork_that_fails_leaves_the_parent_to_its_lane(failure_of_fork: str) -> None:
    """A fork that fails takes the other lane's parent with it."""
    app = ScriptedApp()
    ends: dict[str, Sequence[Step]] = {"refused by the app": [steps.status(400)], "failed": [steps.fail()]}
    members: dict[str, Any] = {"input": BAD_OUTPUT} if failure_of_fork == "refused here" else {}

    async with MemorySocket(ResponsesWebSocketMiddleware(app, store=None)) as ws:
        first = await ws.turn(create(stream_id="a", store=False))
        app.script(*([ends[failure_of_fork]] if failure_of_fork in ends else []))
        failed = await ws.turn(follow(first, **members, stream_id="b", store=False))
        assert failed[-1]["type"] in {"error", "response.failed"}
        second = await ws.turn(follow(first, stream_id="a", store=False))
        assert response(second)
        # In its own lane the very same failure evicts.
        app.script(*([ends[failure_of_fork]] if failure_of_fork in ends else []))
        failed = await ws.turn(follow(second, **members, stream_id="a", store=False))
        assert failed[-1]["type"] in {"error", "response.failed"}
        lost = await ws.turn(follow(second, stream_id="a", store=False))

    assert failure(lost) == (400, "previous_response_not_found", "previous_response_id")


@pytest.mark.fault("B081")
@pytest.mark.parametrize("name", ["", "x" * 257, "a b", "ä", "a/b", 7, None, ["a"], "a\n"], ids=repr)
async def test_a_bad_lane_name_is_refused_without_an_echo(name: Any) -> None:
    """A name that is none is taken, or sent back into whatever reads the answer."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        refused = await ws.turn(create(stream_id=name))
        assert said_by(await ws.turn(create(stream_id="x" * 256)))

    assert failure(refused) == (400, "invalid_stream_id", "stream_id")
    assert "stream_id" not in refused[0]
    assert len(app.requests) == 1


@pytest.mark.fault("B081")
async def test_there_are_32_lane_names_for_the_life_of_a_socket() -> None:
    """Names without end; or those of finished turns, or of frames that were refused, are counted wrongly."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        for number in range(32):
            await ws.send_json({"type": "response.create", "model": 7, "stream_id": f"refused{number}"})
            assert (await ws.receive_json())["error"]["param"] == "model"
            assert response(await ws.turn(create(stream_id=f"lane{number}")))
        (error,) = await ws.turn(create(stream_id="lane32"))
        again = await ws.turn(create(stream_id="lane0"))
        default = await ws.turn(create())

    assert failure([error]) == (400, "websocket_stream_limit_reached", "stream_id")
    assert error["stream_id"] == "lane32"
    assert response(again)
    assert response(default)


@pytest.mark.fault("B081")
async def test_the_17th_turn_waits() -> None:
    """Too many turns run at once, or one too many is refused."""
    app = ScriptedApp()
    ends = {str(number): anyio.Event() for number in range(17)}
    app.script(lambda body: [steps.wait_for(ends[body["input"]])])

    async with MemorySocket(ResponsesWebSocketMiddleware(app), max_unread=None) as ws:
        for number in ends:
            await send(ws, input=number, stream_id=f"lane{number}")
        await ws.wait_received()
        await settle()
        assert app.running == 16
        ends["7"].set()
        assert response(await ws.collect("lane7"))
        await app.wait_requests(17)
        assert app.requests[-1].body["input"] == "16"
        for number in ends.keys() - {"7"}:
            ends[number].set()
            assert response(await ws.collect(f"lane{number}"))

    assert app.max_running == 16


# -- order -----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B076", "B078")
async def test_creates_wait_for_their_lane_and_only_the_excess_is_refused() -> None:
    """A create during a turn is refused, or closes the socket, although both specifications let it wait."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.created(), steps.wait_for(go_on)])

    async with MemorySocket(ResponsesWebSocketMiddleware(app, limits=Limits(max_queued_creates=3))) as ws:
        for number in range(6):
            await send(ws, input=str(number))
        # What is refused is told at once, in the middle of the turn that runs.
        events = [event for _ in range(2) for event in await ws.collect()]
        await app.wait_requests(1)
        assert app.running == 1
        go_on.set()
        events += [event for _ in range(4) for event in await ws.collect()]

        assert ws.close_code is None
    errors = [event for event in events if event["type"] == "error"]
    assert [failure([error]) for error in errors] == [(429, "websocket_queue_full", None)] * 2
    assert [request.body["input"] for request in app.requests] == ["0", "1", "2", "3"]
    assert app.max_running == 1


@pytest.mark.fault("B077")
async def test_the_lane_is_free_before_the_terminal_event_is_read() -> None:
    """A client that answers the terminal event at once is told that the lane is busy, or its parent unknown."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, store=None), max_unread=0) as ws:
        await send(ws, store=False)
        while True:
            await ws.wait_blocked()
            event = json.loads(ws.frames[-1])
            if event["type"] == "response.completed":
                break
            await ws.receive()
        # Its write has not even returned.
        assert ws.blocked
        await send(ws, previous_response_id=event["response"]["id"], store=False)
        await app.wait_requests(2)
        await ws.receive()
        assert response(await ws.collect())

    assert len(app.requests[1].body["input"]) == 3


@pytest.mark.fault("B077")
async def test_a_quick_client_never_meets_its_own_last_turn() -> None:
    """Once in thousands of turns the next create comes too early."""
    app = ScriptedApp()
    app.script(lambda body: [steps.text("x")])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        events = await ws.turn(create(store=False))
        for _ in range(200):
            events = await ws.turn(follow(events, store=False))
            assert kinds(events)[-1] == "response.completed"

    assert len(app.requests) == 201
    assert app.max_running == 1


@pytest.mark.fault("B082", "B083")
async def test_a_failed_turn_is_never_run_again() -> None:
    """A turn that failed is run again behind the client's back: tool calls and texts come twice, numbers go back."""
    app = ScriptedApp()
    app.script(
        [steps.raise_error(RuntimeError("x"), "before")],
        [steps.status(503)],
        [steps.text("x", finish=False), steps.raise_error(RuntimeError("x"))],
        [steps.tool_call("f", {}, call_id="c"), steps.raise_error(RuntimeError("x"))],
        [steps.tool_call("f", {}, call_id="c"), steps.truncate(4)],
        [steps.tool_call("f", {}, call_id="c"), steps.fail("server_error")],
    )

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        turns = [await ws.turn(create()) for _ in range(6)]
        assert await ws.settle() == 0

    assert len(app.requests) == 6
    assert [kinds(events)[-1] for events in turns] == ["error", "error", *["response.failed"] * 4]
    for events in turns:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert len({event["response"]["id"] for event in events if "response" in event}) <= 1
        assert kinds(events).count("response.output_item.done") <= 1


@pytest.mark.fault("B082")
async def test_numbers_rise_even_if_the_apps_do_not() -> None:
    """An app that replays its own upstream starts its numbers again, and the client drops what it takes for old."""
    app = ScriptedApp()
    app.script(
        [steps.set_field("sequence_number", 0, event="response.output_text.delta"), steps.text("abcd", deltas=4)],
        [steps.set_field("sequence_number", 0), steps.text("abcd", deltas=4)],
        [steps.drop_field("sequence_number"), steps.text("abcd", deltas=4)],
    )

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        turns = [await ws.turn(create()) for _ in range(3)]

    for events in turns:
        numbers = [event["sequence_number"] for event in events]
        assert numbers == sorted(set(numbers))
        assert said_by(events) == "abcd"


@pytest.mark.fault("B085")
async def test_no_frame_is_lost_between_timers() -> None:
    """A receive that is cancelled by a timer takes a frame with it."""
    app = ScriptedApp()
    count = 500
    clock = FakeClock()
    limits = Limits(max_queued_creates=count, idle_timeout_s=None, max_connection_age_s=None)
    middleware = ResponsesWebSocketMiddleware(app, limits=limits, clock=clock, keepalive_s=0.001)

    async with MemorySocket(middleware, max_unread=None) as ws:
        for number in range(count):
            await send(ws, input=str(number))
            if number % 10 == 0:
                clock.jump(0.001)
                await anyio.lowlevel.checkpoint()
        for _ in range(count):
            assert response(await ws.collect())

    assert [request.body["input"] for request in app.requests] == [str(number) for number in range(count)]
    assert ws.cancelled_receives == 0


@pytest.mark.fault("B086")
async def test_nothing_of_a_turn_comes_after_its_end() -> None:
    """Late events of a turn that was aborted are read as the next turn's."""
    clock = FakeClock()
    app = ScriptedApp()
    limits = Limits(first_event_timeout_s=300, event_timeout_s=300, idle_timeout_s=None, max_connection_age_s=None)

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock, limits=limits), max_unread=None) as ws:
        for begun in (True, False) * 5:
            late = anyio.Event()
            before: list[Step] = [steps.text("one", finish=False)] if begun else []
            app.script(
                [*before, steps.wait_for(late, shield=True), steps.text("late"), steps.text("late")],
                [steps.text("two")],
            )
            await send(ws)
            await send(ws)
            await clock.advance(400)
            aborted, second = await ws.collect(), await ws.collect()
            late.set()
            await app.wait_idle()
            assert await ws.settle() == 0

            assert kinds(aborted)[-1] == ("response.failed" if begun else "error")
            assert said_by(second) == "two"
            assert kinds(second)[0] == "response.created"
            assert len({event["response"]["id"] for event in second if "response" in event}) == 1


@pytest.mark.fault("B086")
async def test_what_an_app_adds_after_its_terminal_event_is_dropped() -> None:
    """An app goes on after its terminal event, and the client takes that for the next turn."""
    app = ScriptedApp()
    terminal = {"type": "response.completed", "response": {"id": "resp_evil", "object": "response", "output": []}}
    app.script(
        [steps.text("one"), steps.complete(), steps.event({"type": "response.odd"}), steps.event(terminal)],
        [steps.text("two")],
    )

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await send(ws)
        await send(ws)
        first, second = await ws.collect(), await ws.collect()
        assert await ws.settle() == 0

    assert (said_by(first), said_by(second)) == ("one", "two")
    assert kinds(second)[0] == "response.created"


@pytest.mark.fault("B087")
async def test_a_cancel_is_refused_and_harms_nothing() -> None:
    """``response.cancel``, which this mode does not have, ends the session."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.created(), steps.wait_for(go_on), steps.text("whole")])

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.send_json({"type": "response.cancel"})
        assert failure([await ws.receive_json()]) == (400, "unknown_event_type", "type")
        await send(ws)
        await app.wait_events(2)
        assert [(await ws.receive_json())["type"] for _ in range(2)] == ["response.created", "response.in_progress"]
        await ws.send_json({"type": "response.cancel"})
        assert failure([await ws.receive_json()]) == (400, "unknown_event_type", "type")
        go_on.set()
        assert said_by(await ws.collect()) == "whole"


# -- back-pressure ---------------------------------------------------------------------------------------------------


@pytest.mark.fault("B088")
async def test_an_app_waits_for_a_client_that_reads_slowly() -> None:
    """What a client has not read piles up in memory."""
    app = ScriptedApp()
    app.script([steps.text("x" * 5000, deltas=5000)])

    async with MemorySocket(ResponsesWebSocketMiddleware(app), max_unread=4) as ws:
        await send(ws)
        await ws.wait_blocked()
        await settle()
        assert len(ws.frames) == 5
        assert len(app.requests[0].events) <= 5
        assert said_by(await ws.collect()) == "x" * 5000


@pytest.mark.fault("B088")
async def test_answers_that_nobody_reads_are_bounded() -> None:
    """A client that provokes errors and reads none of them fills the memory."""
    limits = Limits(max_outgoing_bytes=10_000)
    sent = 0

    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), limits=limits), max_unread=2) as ws:
        while ws.close_code is None and sent < 1000:
            await ws.send_text("{")
            sent += 1
            await settle()
        assert (ws.close_code, ws.close_reason) == (1008, "client does not read")

    one = len(ws.frames[0])
    assert 10_000 // one <= sent <= 10_000 // one + 6


@pytest.mark.fault("B090")
@pytest.mark.parametrize("max_unread", [None, 0, 4])
async def test_a_huge_lane_does_not_starve_a_small_one(max_unread: int | None) -> None:
    """A lane with much to say holds the socket until it has said it all."""
    app = ScriptedApp()
    app.script(answer_of({"huge": [steps.text("x" * 2000, deltas=2000)], "small": [steps.text("y" * 10, deltas=10)]}))

    async with MemorySocket(ResponsesWebSocketMiddleware(app), max_unread=max_unread) as ws:
        await send(ws, input="huge", stream_id="huge")
        await send(ws, input="small", stream_id="small")
        small = await ws.collect("small")
        huge = await ws.collect("huge")

    order = [json.loads(frame)["stream_id"] for frame in ws.frames]
    first, last = order.index("small"), len(order) - 1 - order[::-1].index("small")
    assert (said_by(small), said_by(huge)) == ("y" * 10, "x" * 2000)
    # 128 frames (about a millisecond) is how long a lane that nothing blocks goes on; where the client is slow, lanes
    # take turns.
    assert first <= 2 * 128
    assert last - first <= (3 * len(small) if max_unread is not None else 2 * 128)


@pytest.mark.fault("B077", "B086")
async def test_the_next_turn_of_a_lane_follows_the_end_of_the_one_before() -> None:
    """Under load the first events of a turn overtake the last event of the one before."""
    app = ScriptedApp()
    app.script(lambda body: [steps.text("x", deltas=3)])
    count = 20

    async with MemorySocket(ResponsesWebSocketMiddleware(app), max_unread=0) as ws:
        for number in range(count):
            await send(ws, stream_id=f"lane{number % 3}")
        for number in range(count):
            assert id_of(await ws.collect(f"lane{number % 3}"))

    for lane in range(3):
        events = [json.loads(frame) for frame in ws.frames if f'"lane{lane}"' in str(frame)]
        running: str | None = None
        for event in events:
            if event["type"] == "response.created":
                assert running is None
                running = event["response"]["id"]
            elif event["type"] == "response.completed":
                assert running == event["response"]["id"]
                running = None
