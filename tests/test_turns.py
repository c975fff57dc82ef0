"""Turns over a socket: order and lanes, warm-ups, forks and evictions, what is stored, and who is asked each time."""

import contextvars
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.shell import KEY, Shell, answer, by_bearer, code_of, create, error_of, id_of, kinds, text_of, types_of
from ws_responses import Forbidden, Handshake, Principal, Unauthorized
from ws_responses._types import Message, Receive, Scope, Send
from ws_responses.instrumentation import FrameRefused, TurnFinished, TurnStarted
from ws_responses.testing import MemorySocket, ScriptedApp, settle, steps

NOT_FOUND = "previous_response_not_found"


async def chained(ws: MemorySocket, previous: str, **fields: Any) -> dict[str, Any]:
    """The last event of a turn that continues `previous`."""
    return (await ws.turn(create(previous_response_id=previous, **fields)))[-1]


def tool_turn(call_id: str = "call_1", response_id: str | None = None) -> list[steps.Step]:
    """A turn that ends with a function call."""
    script: list[steps.Step] = [steps.tool_call("f", {}, call_id)]
    return script if response_id is None else [*script, steps.response_id(response_id)]


# -- order ------------------------------------------------------------------------------------------------------------


async def test_pipelined_creates_of_a_lane_run_one_after_the_other() -> None:
    """Both specifications queue; an overlap would mix two responses on a lane that has no labels."""
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        for number in range(5):
            await ws.send_json(create(f"number {number}"))
        turns = [await ws.collect() for _ in range(5)]

    assert app.max_running == 1
    assert [request.body["input"] for request in app.requests] == [f"number {number}" for number in range(5)]
    for events in turns:
        assert kinds(events)[0] == "created"
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert all("stream_id" not in event for event in events), "the default lane bears no label"


async def test_lanes_run_at_the_same_time_and_label_every_event() -> None:
    app = ScriptedApp()
    slow, quick = anyio.Event(), anyio.Event()
    app.script(lambda body: [steps.created(), steps.wait_for(slow if body["input"] == "a" else quick)])

    async with Shell(app).socket() as ws:
        for lane in ("a", "b"):
            await ws.send_json(create(lane, stream_id=lane))
        await app.wait_requests(2)
        quick.set()
        second = await ws.collect("b")
        slow.set()
        first = await ws.collect("a")

    assert app.max_running == 2
    for lane, events in (("a", first), ("b", second)):
        assert kinds(events) == ["created", "in_progress", "completed"]
        assert {event["stream_id"] for event in events} == {lane}
        assert [event["sequence_number"] for event in events] == [0, 1, 2], "each response has numbers of its own"
    assert [request.body.get("stream_id") for request in app.requests] == [None, None], "it never reaches the app"


async def test_a_busy_lane_holds_up_only_itself() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script(lambda body: [steps.wait_for(go)] if body["input"] == "slow" else None)

    async with Shell(app).socket() as ws:
        await ws.send_json(create("slow"))
        await ws.send_json(create("waits"))
        await app.wait_requests(1)
        assert kinds(await ws.turn(create("other", stream_id="b")))[-1] == "completed"
        assert [request.body["input"] for request in app.requests] == ["slow", "other"]
        go.set()
        await ws.collect(None)
        await ws.collect(None)
    assert [request.body["input"] for request in app.requests] == ["slow", "other", "waits"]


async def test_the_next_create_may_come_the_instant_that_the_last_ended() -> None:
    """The lane is free and the parent known before the client can have read the closing event."""
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        last = id_of(await ws.turn(create()))
        for _ in range(100):
            event = await chained(ws, last)
            assert event["type"] == "response.completed"
            last = event["response"]["id"]
    assert len(app.requests[-1].input) == 2 * 100 + 1


async def test_a_queued_create_finds_its_parent_when_it_starts() -> None:
    """A client that gives its own response ids away may chain before the parent has begun."""
    app = ScriptedApp()
    app.script([steps.response_id("resp_a"), steps.text("one")])

    async with Shell(app).socket() as ws:
        await ws.send_json(create("first"))
        await ws.send_json(create("second", previous_response_id="resp_a"))
        assert kinds(await ws.collect())[-1] == "completed"
        assert kinds(await ws.collect())[-1] == "completed"
    assert types_of(app.requests[1].body) == ["user", "assistant", "user"]


async def test_what_is_no_create_is_answered_and_disturbs_nobody() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.created(), steps.wait_for(go), steps.text("done")])
    shell = Shell(app)

    async with shell.socket() as ws:
        await ws.send_json(create())
        await app.wait_events(2)
        await ws.receive_json()
        await ws.receive_json()
        for frame in ("", "[]", "{", '{"type":"response.cancel"}', "null"):
            await ws.send_text(frame)
        await ws.send_bytes(b"\xff\xfe")
        await ws.send_json({"type": "response.processed", "response_id": "resp_1"})
        errors = [await ws.receive_json() for _ in range(6)]
        go.set()
        assert kinds(await ws.collect())[-1] == "completed"
        await ws.send_bytes(b'{"type":"response.create","model":"m","input":"binary"}')
        assert kinds(await ws.collect())[-1] == "completed"

    assert {(event["type"], event["status"], event["sequence_number"]) for event in errors} == {("error", 400, 0)}
    assert [code_of(event) for event in errors] == [
        "invalid_json",
        "invalid_request",
        "invalid_json",
        "unknown_event_type",
        "invalid_request",
        "invalid_json",
    ]
    assert [fact.code for fact in shell.facts.of(FrameRefused)] == [code_of(event) for event in errors]


async def test_what_does_not_fit_the_queue_is_an_error_of_that_frame_alone() -> None:
    """The reader never blocks, and a frame that never ran evicts nothing."""
    app = ScriptedApp()
    go = anyio.Event()
    shell = Shell(app, {"max_queued_creates": 1})

    async with shell.socket() as ws:
        first = id_of(await ws.turn(create(store=False)))
        app.script([steps.wait_for(go)])
        await ws.send_json(create("runs"))
        await ws.send_json(create("waits"))
        await ws.send_json(create("too many", previous_response_id=first, store=False))
        error = await ws.receive_json()
        assert (error["status"], code_of(error), error_of(error)["type"]) == (
            429,
            "websocket_queue_full",
            "rate_limit_error",
        )
        assert "stream_id" not in error
        await ws.send_json(create("other lane runs at once", stream_id="b"))
        assert kinds(await ws.collect("b"))[-1] == "completed"
        go.set()
        await ws.collect()
        await ws.collect()
        assert (await chained(ws, first, store=False))["type"] == "response.completed"
    assert "too many" not in [request.body["input"] for request in app.requests]


async def test_the_error_of_a_full_queue_bears_its_lane() -> None:
    app = ScriptedApp()
    app.script([steps.stall()])
    shell = Shell(app, {"max_queued_creates": 0})

    async with shell.socket() as ws:
        for _ in range(2):
            await ws.send_json(create(stream_id="a"))
        error = await ws.receive_json()
        assert (code_of(error), error["stream_id"]) == ("websocket_queue_full", "a")
        await ws.close()
        await shell.clock.advance(1)


# -- warm-ups ---------------------------------------------------------------------------------------------------------

WARM_UPS: list[dict[str, Any]] = [
    {"generate": False},
    {"prompt_cache_options": {"prewarm": True}},
    {"generate": False, "prompt_cache_options": {"prewarm": True}},
]


@pytest.mark.parametrize("how", WARM_UPS)
async def test_a_warm_up_is_answered_here_and_can_be_continued(how: dict[str, Any]) -> None:
    """Over HTTP it would run and be billed; and its input must not be lost."""
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        events = await ws.turn(create("warm", instructions="A", tools=[], **how))
        assert app.requests == []
        last = await chained(ws, id_of(events), input="go")

    assert kinds(events) == ["created", "in_progress", "completed"]
    assert [event["sequence_number"] for event in events] == [0, 1, 2]
    response = events[-1]["response"]
    assert (response["status"], response["output"], response["usage"]["output_tokens"]) == ("completed", [], 0)
    assert len({event["response"]["id"] for event in events}) == 1
    assert last["response"]["previous_response_id"] == response["id"]
    body = app.requests[0].body
    assert [item["content"] for item in body["input"]] == ["warm", "go"]
    assert not {"generate", "previous_response_id", "instructions", "type"} & body.keys(), "settings are not carried on"


async def test_prewarm_false_is_no_warm_up() -> None:
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        await ws.turn(create(generate=True, prompt_cache_options={"prewarm": False}))
    assert app.requests[0].body["prompt_cache_options"] == {"prewarm": False}


@pytest.mark.parametrize("given", [{"input": []}, {}])
async def test_a_warm_up_is_continued_without_new_input(given: dict[str, Any]) -> None:
    """Codex does: `input: []` generates from what was warmed."""
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        warm = id_of(await ws.turn(create([{"role": "user", "content": "warm"}], generate=False)))
        await ws.send_json({"type": "response.create", "model": "m", "previous_response_id": warm, **given})
        assert kinds(await ws.collect())[-1] == "completed"
    assert app.requests[0].body["input"] == [{"role": "user", "content": "warm"}]


async def test_warm_ups_at_any_position() -> None:
    """First, in the middle, two in a row, chained and self-contained, on a lane of their own."""
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        first = id_of(await ws.turn(create("1", generate=False)))
        second = id_of(await ws.turn(create("2", generate=False, previous_response_id=first)))
        third = (await chained(ws, second, input="3"))["response"]["id"]
        fourth = (await chained(ws, third, input="4", generate=False))["response"]["id"]
        alone = id_of(await ws.turn(create("alone", generate=False, stream_id="b")))
        await chained(ws, fourth, input="5")
        await ws.turn(create("6", previous_response_id=alone, stream_id="b"))
    said = [[item["content"] for item in request.input if item.get("role") == "user"] for request in app.requests]
    assert said == [["1", "2", "3"], ["1", "2", "3", "4", "5"], ["alone", "6"]]


async def test_a_warm_up_waits_for_its_lane() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.created(), steps.wait_for(go)])
    async with Shell(app).socket() as ws:
        await ws.send_json(create())
        await ws.send_json(create(generate=False))
        await app.wait_events(2)
        await ws.receive_json()
        await ws.receive_json()
        assert await ws.settle() == 0
        go.set()
        assert kinds(await ws.collect()) == ["completed"]
        assert kinds(await ws.collect()) == ["created", "in_progress", "completed"]


async def test_a_warm_up_need_not_answer_open_calls() -> None:
    app = ScriptedApp()
    app.script(tool_turn())
    async with Shell(app).socket() as ws:
        first = id_of(await ws.turn(create()))
        warm = await chained(ws, first, input=[], generate=False)
        assert warm["type"] == "response.completed"
        last = await chained(ws, warm["response"]["id"], input=[answer("call_1")])
        assert last["type"] == "response.completed"
    assert types_of(app.requests[1].body) == ["user", "function_call", "function_call_output"]


async def test_a_warm_up_that_is_wrong_fails_as_any_turn() -> None:
    shell = Shell(ScriptedApp())
    async with shell.socket() as ws:
        (event,) = await ws.turn(create([answer("nothing")], generate=False))
        assert (event["status"], code_of(event)) == (400, "tool_call_not_found")
    assert [fact.warm_up for fact in shell.facts.of(TurnFinished)] == [True]


# -- eviction ---------------------------------------------------------------------------------------------------------

SECRET = "internal detail"

RAN_AND_FAILED: dict[str, tuple[dict[str, Any], list[steps.Step], str]] = {
    "unknown call": ({"input": [answer("call_x")]}, [], "tool_call_not_found"),
    "no item": ({"input": [7]}, [], "invalid_request"),
    "store transition": ({"store": True}, [], "invalid_store_transition"),
    "status 400": ({}, [steps.status(400)], "invalid_request"),
    "status 429": ({}, [steps.status(429)], "rate_limit_exceeded"),
    "status 500": ({}, [steps.status(500)], "server_error"),
    "raises before": ({}, [steps.raise_error(RuntimeError(SECRET), after="before")], "server_error"),
    "raises after": ({}, [steps.text("x"), steps.raise_error(RuntimeError(SECRET))], "server_error"),
    "response.failed": ({}, [steps.text("x"), steps.fail("rate_limit_exceeded")], "rate_limit_exceeded"),
    "error event": ({}, [steps.event({"type": "error", "code": "server_error", "message": "x"})], "server_error"),
    "truncated": ({}, [steps.text("x", deltas=3), steps.truncate(5)], "upstream_stream_truncated"),
    "no answer": ({}, [steps.truncate(0, finish_body=False)], "upstream_stream_truncated"),
}


@pytest.mark.parametrize("case", RAN_AND_FAILED)
async def test_a_turn_that_ran_and_failed_evicts_its_parent_on_the_same_lane(case: str) -> None:
    """The guide has it so, and clients recover by sending everything again; the ancestors stay."""
    fields, script, code = RAN_AND_FAILED[case]
    app = ScriptedApp()
    shell = Shell(app)
    async with shell.socket() as ws:
        grandparent = id_of(await ws.turn(create("1", store=False)))
        parent = (await chained(ws, grandparent, input="2", store=False))["response"]["id"]
        if script:
            app.script(script)
        event = await chained(ws, parent, **{"store": False, **fields})
        assert code_of(event) == code
        assert SECRET not in str(event)
        (event,) = await ws.turn(create(previous_response_id=parent, store=False))
        assert (event["status"], code_of(event)) == (400, NOT_FOUND)
        assert error_of(event)["param"] == "previous_response_id"
        assert error_of(event)["message"] == f"Previous response with id '{parent}' not found."
        assert (await chained(ws, grandparent, store=False))["type"] == "response.completed"
    assert len(shell.facts.of(TurnFinished)) == 5


@pytest.mark.parametrize("case", RAN_AND_FAILED)
async def test_a_fork_that_failed_evicts_nothing_of_the_other_lane(case: str) -> None:
    fields, script, code = RAN_AND_FAILED[case]
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        parent = id_of(await ws.turn(create(store=False)))
        if script:
            app.script(script)
        event = await chained(ws, parent, stream_id="fork", **{"store": False, **fields})
        assert code_of(event) == code
        assert event["stream_id"] == "fork"
        assert (await chained(ws, parent, store=False))["type"] == "response.completed"


async def test_a_queued_continuation_of_what_fails_before_it_finds_it_evicted() -> None:
    """Only forks are pinned: on its own lane a create sees what the one before it has done."""
    app = ScriptedApp()
    go = anyio.Event()
    async with Shell(app).socket() as ws:
        parent = id_of(await ws.turn(create(store=False)))
        app.script([steps.wait_for(go), steps.fail()])
        for _ in range(2):
            await ws.send_json(create(previous_response_id=parent, store=False))
        await app.wait_requests(2)
        go.set()
        assert kinds(await ws.collect())[-1] == "failed"
        assert code_of(await ws.receive_json()) == NOT_FOUND


async def test_an_unanswered_call_evicts_the_parent() -> None:
    app = ScriptedApp()
    app.script(tool_turn())
    async with Shell(app).socket() as ws:
        parent = id_of(await ws.turn(create(store=False)))
        event = await chained(ws, parent, store=False)
        assert code_of(event) == "tool_output_missing"
        assert code_of(await chained(ws, parent, input=[answer("call_1")], store=False)) == NOT_FOUND


async def test_a_time_out_of_the_upstream_evicts_the_parent() -> None:
    app = ScriptedApp()
    shell = Shell(app, {"first_event_timeout_s": 300.0})
    async with shell.socket() as ws:
        parent = id_of(await ws.turn(create(store=False)))
        app.script([steps.stall()])
        await ws.send_json(create(previous_response_id=parent, store=False))
        await shell.clock.advance(300)
        assert code_of(await ws.receive_json()) == "upstream_timeout"
        assert code_of(await chained(ws, parent, store=False)) == NOT_FOUND
        await shell.clock.advance(1)


async def test_an_evicted_parent_that_is_stored_comes_back_from_the_store() -> None:
    """Eviction then costs the fast path only."""
    app = ScriptedApp()
    async with Shell(app).socket(KEY) as ws:
        parent = id_of(await ws.turn(create()))
        app.script([steps.status(500)])
        assert code_of(await chained(ws, parent)) == "server_error"
        assert (await chained(ws, parent))["type"] == "response.completed"
    assert types_of(app.requests[-1].body) == ["user", "assistant", "user"]


NEVER_RAN: dict[str, tuple[dict[str, Any], str]] = {
    "syntax": ({"store": "yes"}, "invalid_request"),
    "background": ({"background": True}, "invalid_request"),
    "conversation too": ({"conversation": "conv_1"}, "invalid_request"),
    "forbidden model": ({"model": "forbidden"}, "permission_denied"),
    "revoked key": ({"model": "revoked"}, "invalid_api_key"),
}


@pytest.mark.parametrize("case", NEVER_RAN)
async def test_a_turn_that_never_ran_evicts_nothing(case: str) -> None:
    fields, code = NEVER_RAN[case]

    def authorize(handshake: Handshake, model: str | None) -> Principal:
        if model == "forbidden":
            raise Forbidden("Not this model.", param="model")
        if model == "revoked":
            raise Unauthorized("Gone.")
        return Principal(id="anna")

    app = ScriptedApp()
    async with Shell(app, authorize=authorize).socket() as ws:
        parent = id_of(await ws.turn(create(store=False)))
        event = await chained(ws, parent, **{"store": False, **fields})
        assert code_of(event) == code
        assert (await chained(ws, parent, store=False))["type"] == "response.completed"
    assert len(app.requests) == 2


async def test_an_incomplete_response_can_be_continued_and_evicts_nothing() -> None:
    app = ScriptedApp()
    app.script([steps.text("one")], [steps.text("two", finish=False), steps.incomplete()])
    async with Shell(app).socket() as ws:
        parent = id_of(await ws.turn(create(store=False)))
        cut = await chained(ws, parent, store=False)
        assert cut["type"] == "response.incomplete"
        assert (await chained(ws, cut["response"]["id"], store=False))["type"] == "response.completed"
        assert (await chained(ws, parent, store=False))["type"] == "response.completed"
    assert types_of(app.requests[2].body) == ["user", "assistant", "user", "assistant", "user"]


async def test_a_response_that_failed_cannot_be_continued() -> None:
    app = ScriptedApp()
    app.script([steps.text("x"), steps.fail()], [steps.text("x"), steps.truncate(4)])
    async with Shell(app).socket() as ws:
        for _ in range(2):
            failed = id_of(await ws.turn(create()))
            assert code_of(await chained(ws, failed)) == NOT_FOUND


async def test_any_earlier_response_of_the_connection_can_be_continued() -> None:
    """Whatever lane it is of, and however old."""
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        first = id_of(await ws.turn(create("1", store=False)))
        second = (await chained(ws, first, input="2", store=False))["response"]["id"]
        for previous, lane in itertools.product((first, second), ("a", "b")):
            event = await chained(ws, previous, input="fork", stream_id=lane, store=False)
            assert event["type"] == "response.completed"
    assert [len(request.input) for request in app.requests[2:]] == [3, 3, 5, 5]


# -- forks ------------------------------------------------------------------------------------------------------------


async def test_a_fork_that_waits_keeps_its_parent() -> None:
    """Pinned when it is enqueued: the source lane may fail before the fork has begun."""
    app = ScriptedApp()
    go = anyio.Event()
    async with Shell(app).socket() as ws:
        parent = id_of(await ws.turn(create("parent", store=False)))
        app.script([steps.wait_for(go)], [steps.status(500)])
        await ws.send_json(create("busy", stream_id="fork", store=False))
        await ws.send_json(create("forks", stream_id="fork", previous_response_id=parent, store=False))
        await app.wait_requests(2)
        assert code_of(await chained(ws, parent, store=False)) == "server_error"
        assert code_of(await chained(ws, parent, store=False)) == NOT_FOUND
        go.set()
        await ws.collect("fork")
        assert kinds(await ws.collect("fork"))[-1] == "completed"
    assert types_of(app.requests[-1].body) == ["user", "assistant", "user"]


async def test_a_fork_that_starts_at_once_keeps_its_parent_too() -> None:
    """Its first step may be an `authorize` that takes its time; the source lane fails meanwhile."""
    app = ScriptedApp()
    go = anyio.Event()

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        if model == "slow":
            await go.wait()
        return Principal(id="anna")

    async with Shell(app, authorize=authorize).socket() as ws:
        parent = id_of(await ws.turn(create("parent", store=False)))
        app.script([steps.status(500)])
        await ws.send_json(create("forks", model="slow", stream_id="b", previous_response_id=parent, store=False))
        assert code_of(await chained(ws, parent, store=False)) == "server_error"
        assert code_of(await chained(ws, parent, store=False)) == NOT_FOUND
        go.set()
        assert kinds(await ws.collect("b"))[-1] == "completed"
    assert types_of(app.requests[-1].body) == ["user", "assistant", "user"]


async def test_a_fork_whose_parent_is_still_running_finds_it_when_it_starts() -> None:
    app = ScriptedApp()
    go, busy = anyio.Event(), anyio.Event()
    scripts: dict[str, list[steps.Step]] = {
        "source": [steps.response_id("resp_a"), steps.created(), steps.wait_for(go), steps.text("x")],
        "busy": [steps.wait_for(busy)],
    }
    app.script(lambda body: scripts.get(str(body["input"])))
    async with Shell(app).socket() as ws:
        await ws.send_json(create("source", stream_id="a"))
        await ws.send_json(create("busy", stream_id="b"))
        await ws.send_json(create("fork", stream_id="b", previous_response_id="resp_a"))
        await app.wait_requests(2)
        go.set()
        await ws.collect("a")
        busy.set()
        await ws.collect("b")
        assert kinds(await ws.collect("b"))[-1] == "completed"


async def test_a_waiting_fork_that_is_dropped_gives_its_pin_back() -> None:
    """Else the parent could never be evicted from a full budget."""
    app = ScriptedApp()
    shell = Shell(app)
    async with shell.socket() as ws:
        parent = id_of(await ws.turn(create(store=False)))
        app.script([steps.stall()])
        await ws.send_json(create(stream_id="b", store=False))
        await ws.send_json(create(stream_id="b", previous_response_id=parent, store=False))
        await app.wait_requests(2)
        await ws.close()
        await shell.clock.advance(1)
    app.requests.clear()
    assert shell.middleware.history_bytes == 0


# -- what is stored ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parent", "child", "found_here", "found_elsewhere"),
    [
        (None, None, True, True),
        (None, True, True, True),
        (None, False, True, False),
        (True, None, True, True),
        (True, True, True, True),
        (True, False, True, False),
        # On top of what was not to be stored: nothing is, whatever the default is; and to ask for it is an error.
        (False, None, True, False),
        (False, True, False, False),
        (False, False, True, False),
    ],
)
async def test_store_over_a_chain_of_two(
    parent: bool | None, child: bool | None, found_here: bool, found_elsewhere: bool
) -> None:
    """A new socket must never get a chain without its beginning, nor what somebody asked not to keep."""
    app = ScriptedApp()
    shell = Shell(app)

    def fields(store: bool | None) -> dict[str, Any]:
        return {} if store is None else {"store": store}

    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create("1", **fields(parent))))
        second = await chained(ws, first, input="2", **fields(child))
        if not found_here:
            assert (second["status"], code_of(second)) == (400, "invalid_store_transition")
            assert error_of(second)["param"] == "store"
            return
        assert second["type"] == "response.completed"
        third = await chained(ws, second["response"]["id"], input="3", store=False)
        assert third["type"] == "response.completed"
    async with shell.socket(KEY) as ws:
        event = await chained(ws, second["response"]["id"], input="4", store=False)
        assert event["type"] == ("response.completed" if found_elsewhere else "error")
        if found_elsewhere:
            assert len(app.requests[-1].input) == 5
        event = await chained(ws, first, input="5", store=False)
        assert event["type"] == ("error" if parent is False else "response.completed")


async def test_a_null_store_is_the_default() -> None:
    shell = Shell(ScriptedApp())
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create(store=None)))
    async with shell.socket(KEY) as ws:
        assert (await chained(ws, first))["type"] == "response.completed"


async def test_what_the_app_is_told_about_store() -> None:
    app = ScriptedApp()
    async with Shell(app).socket() as ws:
        for fields in ({"store": True}, {"store": False}, {}):
            await ws.turn(create(**fields))
    assert [request.body.get("store") for request in app.requests] == [True, False, None]

    app = ScriptedApp()
    async with Shell(app, app_store="never").socket() as ws:
        for fields in ({"store": True}, {"store": False}, {}):
            await ws.turn(create(**fields))
    assert [request.body["store"] for request in app.requests] == [False] * 3


async def test_the_ids_of_a_closed_connection_are_told() -> None:
    told: list[list[str]] = []
    shell = Shell(ScriptedApp(), on_close=lambda ids: told.append(list(ids)))
    async with shell.socket(KEY) as ws:
        ids = [id_of(await ws.turn(create(store=False))) for _ in range(3)]
    async with shell.socket(KEY):
        pass
    assert told == [ids]


async def test_a_hook_on_close_that_raises_breaks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def on_close(ids: Any) -> None:
        raise RuntimeError("broken")

    shell = Shell(ScriptedApp(), on_close=on_close)
    async with shell.socket(KEY) as ws:
        await ws.turn(create())
    assert shell.middleware.connections == 0
    assert "on_close raised" in caplog.text


# -- authorize, turn by turn ------------------------------------------------------------------------------------------


async def test_a_revoked_key_ends_the_next_turn_and_the_socket_stays() -> None:
    app = ScriptedApp()
    tokens: dict[str, str | None] = {"key-1": None}
    shell = Shell(app, authorize=by_bearer(tokens))

    async with shell.socket(KEY) as ws:
        assert kinds(await ws.turn(create()))[-1] == "completed"
        tokens.clear()
        for frame in (create(), create(generate=False)):
            (event,) = await ws.turn(frame)
            assert (event["type"], event["status"], code_of(event)) == ("error", 401, "invalid_api_key")
        tokens["key-1"] = None
        assert kinds(await ws.turn(create()))[-1] == "completed"
    assert len(app.requests) == 2
    assert shell.facts.outcomes == [
        ("completed", None),
        ("error", "invalid_api_key"),
        ("error", "invalid_api_key"),
        ("completed", None),
    ]
    assert len(shell.facts.of(TurnStarted)) == 2


async def test_a_key_that_is_revoked_while_a_create_waits() -> None:
    app = ScriptedApp()
    go = anyio.Event()
    app.script([steps.wait_for(go)])
    tokens: dict[str, str | None] = {"key-1": None}

    async with Shell(app, authorize=by_bearer(tokens)).socket(KEY) as ws:
        await ws.send_json(create())
        await ws.send_json(create("waits"))
        await app.wait_requests(1)
        tokens.clear()
        go.set()
        assert kinds(await ws.collect())[-1] == "completed"
        assert code_of(await ws.receive_json()) == "invalid_api_key"
    assert len(app.requests) == 1


async def test_a_forbidden_model_ends_that_turn_only() -> None:
    def authorize(handshake: Handshake, model: str | None) -> Principal:
        if model == "expensive":
            raise Forbidden("Not this model.", param="model")
        return Principal(id="anna")

    app = ScriptedApp()
    async with Shell(app, authorize=authorize).socket() as ws:
        for model in ("cheap", "expensive", "cheap"):
            await ws.send_json(create(model=model))
        assert kinds(await ws.collect())[-1] == "completed"
        event = await ws.receive_json()
        assert (event["status"], code_of(event), error_of(event)["param"]) == (403, "permission_denied", "model")
        assert kinds(await ws.collect())[-1] == "completed"
    assert [request.body["model"] for request in app.requests] == ["cheap", "cheap"], "never another model in its place"


async def test_a_key_that_now_is_somebody_elses() -> None:
    app = ScriptedApp()
    tokens: dict[str, str | None] = {"key-1": "anna"}
    async with Shell(app, authorize=by_bearer(tokens)).socket(KEY) as ws:
        tokens["key-1"] = "bert"
        (event,) = await ws.turn(create())
        assert (event["status"], code_of(event)) == (401, "invalid_api_key")
    assert app.requests == []


@pytest.mark.parametrize("late", [False, True])
async def test_authorize_that_cannot_answer_fails_the_turn_closed(late: bool) -> None:
    broken = False

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        if broken and late:
            await anyio.sleep_forever()
        if broken:
            raise RuntimeError(SECRET)
        return Principal(id="anna")

    app = ScriptedApp()
    shell = Shell(app, {"authorize_timeout_s": 5.0}, authorize=authorize)
    async with shell.socket() as ws:
        broken = True
        await ws.send_json(create())
        if late:
            await shell.clock.advance(4.875)
            assert await ws.settle() == 0
            await shell.clock.advance(0.125)
        event = await ws.receive_json()
        assert (event["status"], code_of(event)) == (503, "server_is_overloaded")
        assert SECRET not in str(event)
    assert app.requests == []


async def test_the_app_judges_each_turn_by_the_handshakes_headers() -> None:
    """Without `authorize`: the app's own 401 is an error frame of the turn."""
    app = ScriptedApp(auth="key-1")
    async with Shell(app, probe=False).socket(KEY) as ws:
        assert kinds(await ws.turn(create()))[-1] == "completed"
        app.auth = "another"
        (event,) = await ws.turn(create())
        assert (event["type"], event["status"], code_of(event)) == ("error", 401, "invalid_api_key")


async def test_a_turn_that_is_aborted_while_it_is_authorized_never_reaches_the_app() -> None:
    app = ScriptedApp()
    go = anyio.Event()

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        if model is not None:
            await go.wait()
        return Principal(id="anna")

    shell = Shell(app, {"first_event_timeout_s": 2.0}, authorize=authorize)
    async with shell.socket() as ws:
        await ws.send_json(create())
        await shell.clock.advance(2)
        assert code_of(await ws.receive_json()) == "upstream_timeout"
        go.set()
        await settle()
    assert app.requests == []
    assert shell.facts.outcomes == [("aborted", "upstream_timeout")]
    assert shell.facts.of(TurnStarted) == []


# -- contexts ---------------------------------------------------------------------------------------------------------

variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="unset")


def sse(*events: str) -> list[dict[str, Any]]:
    start = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
    bodies = [
        {"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True} for event in events
    ]
    return [start, *bodies]


CREATED = '{"type":"response.created","sequence_number":0,"response":{"id":"%s","status":"in_progress","output":[]}}'
COMPLETED = '{"type":"response.completed","sequence_number":1,"response":{"id":"%s","status":"completed","output":[]}}'


async def test_each_turn_has_its_own_copy_of_the_upgrades_context() -> None:
    """What an outer layer set at the upgrade is seen by every turn; what a turn sets, by no other."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(variable.get())
        variable.set("by a turn")
        for message in sse(CREATED % f"resp_{len(seen)}", COMPLETED % f"resp_{len(seen)}"):
            await send(message)
            seen[-1] += "/" + variable.get()

    shell = Shell(app, probe=False)

    async def outer(scope: Scope, receive: Receive, send: Send) -> None:
        variable.set("by the upgrade")
        await shell.middleware(scope, receive, send)
        assert variable.get() == "by the upgrade"

    async with MemorySocket(outer) as ws:
        for lane in (None, None, "a"):
            events = await ws.turn(create() if lane is None else create(stream_id=lane))
            assert kinds(events)[-1] == "completed"
    assert seen == ["by the upgrade" + "/by a turn" * 3] * 3


async def test_turns_that_are_started_by_another_turns_end_have_the_upgrades_context_too() -> None:
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(variable.get())
        variable.set("leaks")
        for message in sse(CREATED % f"resp_{len(seen)}", COMPLETED % f"resp_{len(seen)}"):
            await send(message)

    async with Shell(app, probe=False).socket() as ws:
        for _ in range(3):
            await ws.send_json(create())
        for _ in range(3):
            await ws.collect()
    assert seen == ["unset"] * 3


Leave = Callable[[MemorySocket], Awaitable[None]]


@pytest.mark.parametrize("leave", [MemorySocket.close, MemorySocket.abort])
@pytest.mark.parametrize("listens", [True, False])
async def test_a_generator_is_closed_in_the_task_and_context_that_ran_it(leave: Leave, listens: bool) -> None:
    """Tokens of another context and cancel scopes of another task raise when they are undone; cleanup would be lost."""
    undone: list[str] = []

    async def generator() -> AsyncGenerator[Message]:
        token = variable.set("inside")
        try:
            with anyio.CancelScope():
                for message in sse(CREATED % "resp_1"):
                    yield message
                await anyio.sleep_forever()
        finally:
            variable.reset(token)
            undone.append(variable.get())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        events = generator()

        async def stream() -> None:
            try:
                async for message in events:
                    await send(message)
            finally:
                with anyio.CancelScope(shield=True):
                    await events.aclose()

        if not listens:
            await stream()
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(stream)
            while (await receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

    shell = Shell(app, probe=False)
    async with shell.socket() as ws:
        await ws.send_json(create())
        assert (await ws.receive_json())["type"] == "response.created"
        await leave(ws)
        await shell.clock.advance(1)
        assert undone == ["unset"]
    assert shell.facts.outcomes == [("gone", None)]


async def test_texts_of_turns_do_not_mix() -> None:
    """Sixteen lanes at once, each with its own text in many deltas, over a client that reads slowly."""
    app = ScriptedApp()
    app.script(lambda body: [steps.text(body["input"] * 20, deltas=20)])
    async with Shell(app).socket(max_unread=1) as ws:
        for number in range(16):
            await ws.send_json(create(f"<{number}>", stream_id=f"lane-{number}"))
        for number in range(16):
            events = await ws.collect(f"lane-{number}")
            deltas = "".join(event["delta"] for event in events if "delta" in event["type"])
            assert deltas == text_of(events[-1]) == f"<{number}>" * 20
            assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert app.max_running == 16
