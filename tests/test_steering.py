"""Steering over the socket: what is written, in which order, and what the upstream is asked."""

import json
from typing import Any

import anyio
import pytest

from tests.houses import (
    KINDS,
    SDK,
    TOOL,
    House,
    Kind,
    begun,
    check_numbers,
    items_of,
    life,
    of_steers,
    steer,
    until,
)
from tests.shell import answer, create, frames_of
from ws_responses import (
    ConfigurationError,
    Handshake,
    Limits,
    Principal,
    ResponsesWebSocketMiddleware,
)
from ws_responses.safety import Safety, Verdict
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import MemorySocket, ScriptedApp, settle, steps
from ws_responses.upstreams.repair import TurnStream


@pytest.mark.parametrize("kind", KINDS)
async def test_a_steered_response_ends_between_two_items_and_a_successor_goes_on(kind: Kind) -> None:
    """The whole of it: the second item never begins, nothing is asked of the client, and its words reach the model."""
    house = House(kind)
    house.say_items(("reasoning", "hm"), ("text", "never"), hold_after=1)
    house.say_items(("text", "Stopped."))
    async with house.socket() as ws:
        await ws.send_json(create("Go.", temperature=0.5, tools=[TOOL], tool_choice="auto", store=False))
        target = await begun(ws)
        await ws.send_json(steer(target))
        await settle()
        house.go_on()
        events = await until(ws, "completed")
        await settle()
        # Not only when the socket is closed: it would work on for nobody.
        assert house.running == 0

    for event in events:
        SDK.validate_python(event)
    assert life(events) == ["created", "steer.accepted", "incomplete", "created", "completed"]
    check_numbers(events)
    (accepted,) = of_steers(events)
    assert accepted["steer"].keys() == {"id", "previous_response_id"}
    assert accepted["steer"]["id"].startswith("steer_")
    assert len(accepted["steer"]["id"]) == len("steer_") + 32
    assert "stream_id" not in accepted
    ended = next(event["response"] for event in events if event["type"] == "response.incomplete")
    assert ended["incomplete_details"] == {"reason": "steered"}
    assert [item["type"] for item in ended["output"]] == ["reasoning"]
    last = events[-1]["response"]
    assert last["previous_response_id"] == target == ended["id"]
    assert "never" not in house.told(1)
    assert house.told(1).index("Go.") < house.told(1).index("Stop.")
    if kind == "app":
        first, second = (request.body for request in house.app.requests)
        assert {**second, "input": first["input"]} == first
        assert [item.get("role", item["type"]) for item in second["input"]] == ["user", "reasoning", "user"]
        assert house.app.requests[0].outcome in ("disconnected", "cancelled")
    else:
        assert (last["temperature"], last["tools"][0]["name"]) == (0.5, "look")
        assert house.backend.generations[0].outcome == "abandoned"


def test_a_response_is_not_cut_while_one_of_several_items_is_open() -> None:
    """Its client would wait for the rest of an item that it was told of; a call would never be answered."""
    stream = TurnStream("resp_1")

    def feed(kind: str, index: int, item_type: str) -> bool:
        item = {"id": f"item_{index}", "type": item_type, "call_id": "c", "name": "f", "arguments": "{}"}
        event = {"type": f"response.output_item.{kind}", "output_index": index, "item": item}
        stream.feed(json.dumps(event).encode())
        return stream.may_be_cut

    assert not stream.may_be_cut
    assert not feed("added", 0, "reasoning")
    assert not feed("added", 1, "reasoning")
    assert not feed("done", 0, "reasoning")
    assert feed("done", 1, "reasoning")
    assert not feed("added", 2, "function_call")
    assert not feed("done", 2, "function_call")


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_of_one_item_is_finished_first(kind: Kind) -> None:
    """A message is not cut in the middle: the response completes, and its successor follows all the same."""
    house = House(kind)
    house.say("Hello there", then_wait=True)
    house.say("Stopped.")
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(steer(target, [{"role": "user", "content": "One."}]))
        await ws.send_json(steer(target, "Two."))
        await settle()
        house.go_on()
        events = await until(ws, "completed") + await until(ws, "completed")

    assert life(events) == ["created", "steer.accepted", "steer.accepted", "completed", "created", "completed"]
    check_numbers(events)
    assert events[-1]["response"]["previous_response_id"] == target
    told = house.told(1)
    assert told.index("Hello there") < told.index("One.") < told.index("Two.")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lane", [{}, {"stream_id": "a"}])
async def test_steers_wait_for_tool_outputs_and_come_before_them(kind: Kind, lane: dict[str, str]) -> None:
    """The client is told what is missing; its create keeps its own settings; nothing is sent twice."""
    house = House(kind)
    house.say_items(("call", "call_1"), hold_after=1)
    house.say_items(("text", "Done."))
    async with house.socket() as ws:
        await ws.send_json(create("Go.", tools=[TOOL], **lane))
        target = await begun(ws)
        await ws.send_json(steer(target, "First."))
        await ws.send_json(steer(target, "Second."))
        await settle()
        house.go_on()
        events = await until(ws, "steer.pending", "steer.pending")
        assert life(events) == [
            "created",
            "steer.accepted",
            "steer.accepted",
            "completed",
            "steer.pending",
            "steer.pending",
        ]
        check_numbers(events)
        for event in events:
            SDK.validate_python(event)
            assert event.get("stream_id") == lane.get("stream_id")
        accepted, pending = of_steers(events)[:2], of_steers(events)[2:]
        assert [event["steer"] for event in pending] == [event["steer"] for event in accepted]
        for each in pending:
            assert each["reason"] == "waiting_for_required_input"
            assert each["required_input"] == [{"type": "function_call_output", "call_id": "call_1", "name": "look"}]
        await ws.send_json(steer(target, "Late."))
        (refused,) = await until(ws, "steer.failed")
        assert refused["error"]["code"] == "response_already_completed"
        await ws.send_json(create([answer("call_1", "seen")], previous_response_id=target, **lane))
        final = await until(ws, "completed")

    assert life(final) == ["created", "completed"]
    told = house.told(1)
    assert told.index("First.") < told.index("Second.") < told.index("seen")
    assert "Late." not in told


@pytest.mark.parametrize("kind", KINDS)
async def test_the_steers_of_a_lane_that_goes_on_from_elsewhere_come_back(kind: Kind) -> None:
    """They would wait for ever, and fill what may wait."""
    house = House(kind)
    house.say_items(("call", "call_1"), hold_after=1)
    async with house.socket() as ws:
        await ws.send_json(create("Go.", tools=[TOOL]))
        target = await begun(ws)
        await ws.send_json(steer(target, "First."))
        await settle()
        house.go_on()
        pending = (await until(ws, "steer.pending"))[-1]
        house.say("Hello.")
        await ws.send_json(create("Something else."))
        events = await until(ws, "completed")

    check_numbers(events)
    (returned,) = of_steers(events)
    SDK.validate_python(returned)
    assert returned["error"]["code"] == "response_not_active"
    assert returned["steer"] == {**pending["steer"], "input": "First."}
    assert "First." not in house.told(1)


async def test_a_response_that_fails_gives_its_steers_back() -> None:
    """The client can put them into its next create."""
    house = House("app")
    house.app.script([steps.text("x"), steps.wait_for(house.go), steps.fail()])
    given = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": 'a "code":"b"'}]}]
    async with house.socket() as ws:
        await ws.send_json(create("Go.", stream_id="a"))
        target = await begun(ws)
        await ws.send_json(steer(target, given))
        await settle()
        house.go_on()
        events = await until(ws, "steer.failed")

    assert life(events) == ["created", "steer.accepted", "failed", "steer.failed"]
    check_numbers(events)
    accepted, failed = of_steers(events)
    SDK.validate_python(failed)
    assert failed["steer"] == {**accepted["steer"], "input": given}
    assert failed["stream_id"] == "a"
    assert failed["error"].keys() == {"type", "code", "message"}
    assert (failed["error"]["type"], failed["error"]["code"]) == ("invalid_request_error", "response_not_active")


async def test_a_successor_that_cannot_be_created_is_no_error_of_a_create() -> None:
    """The client has no create of its own to which an ``error`` could belong."""
    calls: list[str | None] = []

    def authorize(handshake: Handshake, model: str | None) -> Principal | None:
        del handshake
        calls.append(model)
        return Principal(id="p") if len(calls) < 3 else None

    records: list[TurnRecord] = []

    async def settled(record: TurnRecord) -> None:
        records.append(record)

    house = House("app", authorize=authorize, settlement=Settlement(settled))
    house.say("Hello", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(steer(target))
        await settle()
        house.go_on()
        events = await until(ws, "steer.failed")
        await settle()
        assert not ws.unread

    assert life(events) == ["created", "steer.accepted", "completed", "steer.failed"]
    assert events[-1]["error"]["code"] == "successor_creation_failed"
    assert "error" not in [event["type"] for event in frames_of(ws)]
    assert [record.outcome for record in records] == ["completed", "refused"]


async def test_a_wrapped_app_is_not_steered_unless_it_is_asked_for() -> None:
    """Its call would have to be ended, which costs what it has not sent yet: the operator decides."""
    go = anyio.Event()
    app = ScriptedApp()
    app.script([steps.text("Hello", finish=False), steps.wait_for(go)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.send_json(create("Go.", stream_id="a"))
        await ws.send_json(steer(await begun(ws)))
        refused = [event for event in await until(ws, "steer.failed") if "error" in event]
        go.set()
        await until(ws, "completed")

    SDK.validate_python(refused[0])
    assert refused[0]["error"]["code"] == "steering_not_supported"
    assert refused[0]["stream_id"] == "a"
    assert refused[0]["steer"].keys() == {"previous_response_id", "input"}
    assert len(app.requests) == 1


@pytest.mark.parametrize("blocked", [{"conversation": "conv_1"}, {"context_management": [{"type": "compaction"}]}])
async def test_what_blocks_steering(blocked: dict[str, Any]) -> None:
    """The guide: no conversations, no automatic compaction."""
    house = House("app")
    house.say("Hello", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go.", **blocked))
        await ws.send_json(steer(await begun(ws)))
        await settle()
        house.go_on()
        events = await until(ws, "completed")
        events += await until(ws, "steer.failed") if not of_steers(events) else []

    assert [event["error"]["code"] for event in of_steers(events)] == ["steering_not_supported"]


@pytest.mark.parametrize("kind", KINDS)
async def test_lanes_are_steered_apart(kind: Kind) -> None:
    """The lane is the target's; the other one neither ends nor hears of it."""
    house = House(kind)
    house.say("Hello a", then_wait=True)
    house.say("Hello b", then_wait=True)
    house.say("Stopped.")
    async with house.socket() as ws:
        for name in ("a", "b"):
            await ws.send_json(create("Go.", stream_id=name))
            await begun(ws, stream_id=name)
        target = await begun(ws, stream_id="b")
        await ws.send_json(steer(target, "Stop b.", stream_id="a"))
        await ws.send_json(steer(target, "Stop b."))
        await settle()
        house.go_on()
        for _ in range(3):
            await until(ws, "completed")
        frames = frames_of(ws)

    steers = of_steers(frames)
    told = {event["type"].rpartition(".")[2]: event for event in steers}
    assert len(steers) == 2
    assert told["accepted"]["stream_id"] == told["failed"]["stream_id"] == "b"
    assert told["failed"]["error"]["code"] == "invalid_input"
    assert life([frame for frame in frames if frame["stream_id"] == "a"]) == ["created", "completed"]
    assert house.ran == 3


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_leaves_leaves_nothing(kind: Kind) -> None:
    """Accepted or not, it is lost with the socket; no successor runs for nobody."""
    house = House(kind)
    house.say("Hello", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        await ws.send_json(steer(await begun(ws)))
        await settle()
        await ws.abort()

    assert house.ran == 1
    assert house.running == 0
    assert house.middleware.connections == 0


async def test_a_drain_gives_steers_back() -> None:
    """No turn starts any more; what was accepted must not vanish."""
    house = House("app")
    house.say("Hello", then_wait=True)
    events: list[dict[str, Any]] = []
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(steer(target, "Early."))
        await settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(house.middleware.drain)
            await settle()
            await ws.send_json(steer(target, "Late."))
            await settle()
            house.go_on()
            events += await until(ws, "steer.failed")
            events += await until(ws, "steer.failed")
            await ws.wait_closed()

    returned = {event["steer"]["input"]: event["error"]["code"] for event in of_steers(events) if "error" in event}
    assert returned == {"Early.": "successor_creation_failed", "Late.": "response_not_active"}


async def test_a_successor_can_be_steered_and_goes_before_what_waits() -> None:
    """The lane's queue is for creates; a rollout that was steered is still the one before them."""
    house = House("app")
    house.say("One", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        await ws.send_json(steer(await begun(ws), "to two"))
        await ws.send_json(create("Later."))
        await settle()
        house.go_on()
        house.say("Two", then_wait=True)
        house.say("Three")
        house.say("Four")
        await ws.send_json(steer(await begun(ws, 2), "to three"))
        await settle()
        house.go_on()
        for _ in range(4):
            await until(ws, "completed")

    asked = [
        [item["content"] for item in items_of(request.body) if item["role"] == "user"] for request in house.app.requests
    ]
    assert asked == [["Go."], ["Go.", "to two"], ["Go.", "to two", "to three"], ["Later."]]


async def test_a_steer_that_is_too_large_is_not_given_back() -> None:
    """Megabytes that come back unread would close the socket."""
    house = House("app", limits=Limits(max_pending_steer_bytes=100))
    house.say("Hello", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(steer(target, "x" * 99))  # and two quotes
        await ws.send_json(steer(target, "x" * 98))
        await ws.send_json(steer(target, ""))
        await settle()
        events = frames_of(ws)[-3:]
        house.go_on()

    assert sorted(event["type"] for event in events) == [
        "error",
        "response.steer.accepted",
        "response.steer.failed",
    ]
    told = {event["type"]: event["error"]["code"] for event in events if "error" in event}
    assert told == {"error": "request_too_large", "response.steer.failed": "too_many_pending_steers"}


def test_steering_is_not_for_open_responses() -> None:
    """Its clients refuse the events."""
    with pytest.raises(ConfigurationError, match="steering"):
        ResponsesWebSocketMiddleware(ScriptedApp(), steering="interrupt", profile="open-responses")
    with pytest.raises(ConfigurationError, match="steering"):
        ResponsesWebSocketMiddleware(ScriptedApp(), steering="yes")  # type: ignore[arg-type] # a typo


async def test_open_responses_does_not_know_the_frame() -> None:
    """There the frame is an unknown event, as any other."""
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), profile="open-responses")) as ws:
        await ws.send_json(steer("resp_1"))
        assert (await ws.receive_json())["error"]["code"] == "unknown_event_type"


@pytest.mark.parametrize("kind", KINDS)
async def test_output_that_is_judged_can_be_steered(kind: Kind) -> None:
    """What is held for its verdict and what is told of steers go by the same numbers."""

    async def classify(delta: object, state: object) -> Verdict:
        del delta, state
        return Verdict()

    house = House(kind, safety=Safety(classify, output="windows"))
    house.say_items(("reasoning", "hm"), ("text", "never"), hold_after=1)
    house.say_items(("text", "Stopped."))
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        await ws.send_json(steer(await begun(ws)))
        await settle()
        house.go_on()
        events = await until(ws, "completed")

    assert life(events) == ["created", "steer.accepted", "incomplete", "created", "completed"]
    check_numbers(events)
    assert "never" not in json.dumps(events)
