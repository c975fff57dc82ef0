"""Rollouts over the socket: one response that waits for tool outputs and goes on, of an app and of the engine."""

import json
from typing import Any, Literal

import pytest

from tests.houses import KINDS, House, Kind, check_numbers, life, steer
from tests.shell import Facts, answer, by_bearer, code_of, create, frames_of, kinds, text_of
from tests.test_app import client
from ws_responses import ConfigurationError, Limits, ResponsesWebSocketMiddleware
from ws_responses.backends import Delta, ToolCallDelta, Usage
from ws_responses.instrumentation import NodeDropped, TurnFinished, TurnStarted
from ws_responses.quota import QuotaRequest
from ws_responses.safety import Safety, Verdict
from ws_responses.safety.verdict import Carried, SafetyInput
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import MemorySocket, ScriptedApp, ScriptedModel, settle, steps

ENDS = {"done", "completed", "incomplete", "failed", "error"}
WORDS = {"type": "message", "role": "user", "content": "Hurry."}

Events = list[dict[str, Any]]


def append(*items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "response.append", "input": list(items), **more}


def rolling(kind: Kind, **options: Any) -> House:
    return House(kind, prototype=True, **options)


async def step(ws: MemorySocket) -> Events:
    """Read to the end of a step."""
    events = [await ws.receive_json()]
    while kinds(events)[-1] not in ENDS:
        events.append(await ws.receive_json())
    return events


async def until_blocked(ws: MemorySocket, given: str = "Go.", **fields: Any) -> Events:
    """Send a create, and read to its ``response.done``."""
    await ws.send_json(create(given, **fields))
    events = await step(ws)
    assert kinds(events)[-1] == "done", events[-1]
    return events


async def go_on(ws: MemorySocket, *items: Any, **fields: Any) -> Events:
    await ws.send_json(append(*items, **fields))
    return await step(ws)


async def ended(house: House, left: int = 0) -> None:
    """Return when only so many calls of the upstream run; the socket may still be open."""
    for _ in range(100):
        await settle()
        if house.running == left:
            return
    pytest.fail("the upstream runs on for nobody")


def left(house: House) -> int:
    """Bytes that are charged when the app has forgotten its requests, which know of their turns."""
    house.app.requests.clear()
    return house.middleware.registry.ledger.process.used


def calls_in(response: dict[str, Any]) -> list[str]:
    return [item["call_id"] for item in response["output"] if item["type"] == "function_call"]


# -- the way of a rollout ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lane", [{}, {"stream_id": "a"}])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_is_one_response(kind: Kind, lane: dict[str, str]) -> None:
    """The whole of it: one beginning, one end, one id, numbers and places that rise, all that was said in the end."""
    house = rolling(kind)
    house.say_items(("text", "Let me see."), ("call", "c1"))
    house.say_items(("call", "c2"))
    house.say_items(("text", "Done."))
    house.say("More.")
    async with house.socket() as ws:
        first = await until_blocked(ws, **lane)
        second = await go_on(ws, answer("c1", "one"), **lane)
        third = await go_on(ws, answer("c2", "two"), WORDS, **lane)
        target = third[-1]["response"]["id"]
        more = await ws.turn(create("And?", previous_response_id=target, **lane))
        await ended(house)

    events = first + second + third
    assert life(events) == ["created", "completed"]
    assert kinds(events).count("done") == 2
    check_numbers(events)
    assert all(event.get("stream_id") == lane.get("stream_id") for event in events)
    assert {event["response"]["id"] for event in events if "response" in event} == {target}
    places = [event["output_index"] for event in events if event["type"] == "response.output_item.done"]
    assert places == [0, 1, 2, 3]
    done = [event for event in events if event["type"] == "response.done"]
    assert [event["required_input"] for event in done] == [
        [{"type": "function_call_output", "call_id": name, "name": "look"}] for name in ("c1", "c2")
    ]
    assert [len(event["response"]["output"]) for event in done] == [2, 1], "each has what is new"
    assert {event["response"]["status"] for event in done} == {"in_progress"}
    last = third[-1]["response"]
    finished = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert last["output"] == finished
    assert calls_in(last) == ["c1", "c2"]
    assert (last["status"], last["previous_response_id"]) == ("completed", None)
    assert last["created_at"] == first[0]["response"]["created_at"]
    assert text_of(more[-1]) == "More."
    assert house.ran == 4
    told = house.told(3)
    words = ("Go.", "Let me see.", '"c1"', "one", '"c2"', "two", "Hurry.", "Done.", "And?")
    places = [told.index(word) for word in words]
    assert places == sorted(places)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_upstream_is_asked_as_in_launched_form(kind: Kind) -> None:
    """What the model sees, step by step, is what the same loop by creates would show it."""

    async def asked(*, prototype: bool) -> list[str]:
        house = House(kind, prototype=prototype)
        for part in (("call", "c1"), ("call", "c2"), ("text", "Done.")):
            house.say_items(part)
        async with house.socket() as ws:
            events = await (until_blocked(ws) if prototype else ws.turn(create("Go.")))
            for name in ("c1", "c2"):
                if prototype:
                    events = await go_on(ws, answer(name))
                else:
                    parent = events[-1]["response"]["id"]
                    events = await ws.turn(create([answer(name)], previous_response_id=parent))
            assert kinds(events)[-1] == "completed"
        return [_without_ids(house.told(number)) for number in range(house.ran)]

    assert await asked(prototype=True) == await asked(prototype=False)


def _without_ids(told: str) -> str:
    """Item ids are random."""
    decoded = json.loads(told)
    items = decoded if isinstance(decoded, list) else decoded["input"]
    for item in items if isinstance(items, list) else ():
        item.pop("id", None)
    return json.dumps(decoded)


@pytest.mark.parametrize("kind", KINDS)
async def test_lanes_have_rollouts_of_their_own(kind: Kind) -> None:
    """One waits while the other is sampled, and an append reaches its own."""
    house = rolling(kind)
    for part in (("call", "a1"), ("call", "b1"), ("text", "B."), ("text", "A.")):
        house.say_items(part)
    async with house.socket() as ws:
        await until_blocked(ws, "A?", stream_id="a")
        await until_blocked(ws, "B?", stream_id="b")
        assert code_of((await go_on(ws, answer("b1"), stream_id="a"))[-1]) == "tool_call_not_found"
        other = await go_on(ws, answer("b1"), stream_id="b")
        one = await go_on(ws, answer("a1"), stream_id="a")
    assert (text_of(other[-1]), text_of(one[-1])) == ("B.", "A.")
    assert {event["stream_id"] for event in one} == {"a"}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_create_waits_for_the_end_of_the_rollout(kind: Kind) -> None:
    """It would else run beside it, on the same lane."""
    house = rolling(kind)
    for part in (("call", "c1"), ("text", "First."), ("text", "Second.")):
        house.say_items(part)
    async with house.socket() as ws:
        await until_blocked(ws)
        await ws.send_json(create("Next."))
        await settle()
        assert house.ran == 1
        assert text_of((await go_on(ws, answer("c1")))[-1]) == "First."
        assert text_of((await step(ws))[-1]) == "Second."


@pytest.mark.parametrize("kind", KINDS)
async def test_after_a_bad_append_the_rollout_goes_on(kind: Kind) -> None:
    """Each is an ``error`` on the lane, outside of the response: its numbers have no gap."""
    house = rolling(kind)
    house.say_items(("call", "c1"))
    house.say_items(("text", "Done."))
    bad = [
        (append(answer("c9")), "tool_call_not_found"),
        (append(WORDS), "tool_output_missing"),
        (append(answer("c1"), answer("c1")), "tool_call_not_found"),
        (append(), "invalid_request"),
        (append(answer("c1"), model="m"), "unknown_parameter"),
        (append(answer("c1"), stream_id="b"), "rollout_not_found"),
    ]
    async with house.socket() as ws:
        events = await until_blocked(ws)
        for frame, code in bad:
            await ws.send_json(frame)
            error = await ws.receive_json()
            assert (error["type"], code_of(error), error["status"]) == ("error", code, 400)
            assert error.get("stream_id") == frame.get("stream_id")
        events += await go_on(ws, answer("c1"))
        assert code_of((await go_on(ws, answer("c1")))[-1]) == "rollout_not_found"
    check_numbers(events)
    assert life(events) == ["created", "completed"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_append_while_it_is_sampled_is_refused_and_the_answer_goes_on(kind: Kind) -> None:
    """The client does not wait for its turn; the response is not harmed."""
    house = rolling(kind)
    house.say("Thinking.", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        await settle()
        await ws.send_json(append(answer("c1")))
        await settle()
        house.go_on()
        events = await step(ws)
        while kinds(events)[-1] != "completed":
            events += await step(ws)
    assert [code_of(event) for event in events if event["type"] == "error"] == ["rollout_not_blocked"]


@pytest.mark.parametrize("kind", KINDS)
async def test_without_prototype_mode_nothing_is_different(kind: Kind) -> None:
    """Off by default: a response ends by its calls, and the event is none."""
    house = House(kind)
    house.say_items(("call", "c1"))
    async with house.socket() as ws:
        events = await ws.turn(create("Go."))
        await ws.send_json(append(answer("c1")))
        assert code_of(await ws.receive_json()) == "unknown_event_type"
    assert kinds(events)[-1] == "completed"


def test_open_responses_has_no_prototype() -> None:
    """Its clients reject the event."""
    with pytest.raises(ConfigurationError, match="prototype"):
        ResponsesWebSocketMiddleware(ScriptedApp(), prototype=True, profile="open-responses")


@pytest.mark.parametrize("kind", KINDS)
async def test_a_warm_up_comes_before_a_rollout_and_is_none(kind: Kind) -> None:
    """It generates nothing that could wait."""
    house = rolling(kind)
    house.say_items(("call", "c1"))
    house.say_items(("text", "Done."))
    async with house.socket() as ws:
        warm = await ws.turn(create("Listen.", generate=False))
        await until_blocked(ws, previous_response_id=warm[-1]["response"]["id"])
        last = await go_on(ws, answer("c1"))
    assert last[-1]["response"]["previous_response_id"] == warm[-1]["response"]["id"]
    assert "Listen." in house.told(house.ran - 1)


# -- what comes once -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_what_comes_before_and_after_inference_comes_once(kind: Kind) -> None:
    """A rollout is one turn: one question to ``authorize`` and quota, one record, one turn for the hooks."""
    asked: list[Any] = []
    records: list[TurnRecord] = []
    known = by_bearer({"key-1": None})

    def authorize(handshake: Any, model: str | None) -> Any:
        asked.append(model)
        return known(handshake, model)

    async def quota(request: QuotaRequest) -> None:
        asked.append(request.turn_id)

    async def settle_it(record: TurnRecord) -> None:
        records.append(record)

    facts = Facts()
    settlement = Settlement(settle_it)
    house = rolling(kind, quota=quota, settlement=settlement, hooks=(facts,), authorize=authorize)
    for part in (("call", "c1"), ("call", "c2"), ("text", "Done.")):
        house.say_items(part)
    async with house.socket() as ws:
        await until_blocked(ws)
        await go_on(ws, answer("c1"))
        last = await go_on(ws, answer("c2"))
        await settle()

    (record,) = records
    assert asked == [None, "m", record.turn_id]
    assert (record.outcome, record.ran, record.parent_id) == ("completed", True, None)
    assert record.response_id == last[-1]["response"]["id"]
    assert record.events == last[-1]["sequence_number"] + 1
    assert (len(facts.of(TurnStarted)), len(facts.of(TurnFinished))) == (1, 1)


def usage(given: int, said: int, **more: Any) -> dict[str, Any]:
    return {"input_tokens": given, "output_tokens": said, "total_tokens": given + said, **more}


def used(*steps_used: dict[str, Any] | None) -> ScriptedApp:
    """An app that calls a tool until its last step, with these usages."""
    app = ScriptedApp()
    for number, each in enumerate(steps_used, 1):
        what = steps.text("Done.") if number == len(steps_used) else steps.tool_call("look", {}, call_id=f"c{number}")
        app.script([what, steps.set_field("response.usage", each, event="response.completed")])
    return app


async def run_out(app: ScriptedApp, count: int, **fields: Any) -> Events:
    """Run a rollout of so many calls to its end."""
    async with MemorySocket(ResponsesWebSocketMiddleware(app, prototype=True)) as ws:
        events = await until_blocked(ws, **fields)
        for number in range(1, count + 1):
            events += await go_on(ws, answer(f"c{number}"))
        return events


async def test_usage_is_summed() -> None:
    """Each step has read its own prompt; so it is billed."""
    one = usage(10, 2, input_tokens_details={"cached_tokens": 4})
    two = usage(20, 3, input_tokens_details={"cached_tokens": 8})
    events = await run_out(used(one, two, two), 2)
    done = [event["response"]["usage"] for event in events if event["type"] == "response.done"]
    assert done == [one, usage(30, 5, input_tokens_details={"cached_tokens": 12})]
    assert events[-1]["response"]["usage"] == usage(50, 8, input_tokens_details={"cached_tokens": 20})


@pytest.mark.parametrize("unknown", [0, 1, 2])
async def test_a_usage_that_is_unknown_is_null_and_no_part_of_a_sum(unknown: int) -> None:
    """A sum of what is known would be a bill that is too low."""
    given: list[dict[str, Any] | None] = [usage(10, 2)] * 3
    given[unknown] = None
    assert (await run_out(used(*given), 2))[-1]["response"]["usage"] is None


async def test_a_count_that_one_step_does_not_tell_is_null() -> None:
    """The others are still summed."""
    events = await run_out(used(usage(10, 2, cached=3), usage(10, 2)), 1)
    assert events[-1]["response"]["usage"] == usage(20, 4, cached=None)


async def test_the_bound_of_tokens_is_the_rollouts() -> None:
    """``max_output_tokens`` bounds a response; the app is told what is left of it."""
    app = used(usage(1, 30), usage(1, 50), usage(1, 1))
    events = await run_out(app, 2, max_output_tokens=100)
    assert [request.body["max_output_tokens"] for request in app.requests] == [100, 70, 20]
    assert kinds(events)[-1] == "completed"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_out_of_tokens_is_incomplete(kind: Kind) -> None:
    """Where it would wait: nothing could be sampled of what the client would bring."""
    house = rolling(kind)
    _say_calls(house, 50)
    _say_calls(house, 50, "c2")
    async with house.socket() as ws:
        await until_blocked(ws, max_output_tokens=100)
        events = await go_on(ws, answer("c1"))
    response = events[-1]["response"]
    assert kinds(events)[-1] == "incomplete"
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert calls_in(response) == ["c1", "c2"]
    assert response["usage"]["output_tokens"] == 100
    if kind == "engine":
        assert [generation.params.max_tokens for generation in house.backend.generations] == [100, 50]


def _say_calls(house: House, output_tokens: int, call_id: str = "c1") -> None:
    if house.kind == "app":
        used_now = steps.set_field("response.usage", usage(1, output_tokens), event="response.completed")
        house.app.script([steps.tool_call("look", {}, call_id=call_id), used_now])
        return
    call = ToolCallDelta(index=0, id=call_id, name="look", arguments="{}")
    end = Delta(finish="tool_calls", usage=Usage(input_tokens=1, output_tokens=output_tokens))
    house.backend.will_answer([Delta(tool_calls=(call,)), end])


@pytest.mark.parametrize(
    ("choice", "then"),
    [
        ("required", "auto"),
        ("auto", "auto"),
        ("none", "none"),
        (None, None),
        ({"type": "function", "name": "look"}, "auto"),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "look"}]},
        ),
    ],
)
async def test_a_call_that_is_demanded_is_demanded_once(choice: Any, then: Any) -> None:
    """The response has its call then; demanded in each step it would never end."""
    app = used(usage(1, 1), usage(1, 1))
    await run_out(app, 1, tool_choice=choice)
    assert [request.body["tool_choice"] for request in app.requests] == [choice, then]


@pytest.mark.parametrize("kind", ["engine"])
async def test_the_engine_demands_a_call_once(kind: Kind) -> None:
    """As an app is told."""
    house = rolling(kind)
    _say_calls(house, 1)
    house.say("Done.")
    tool = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
    async with house.socket() as ws:
        await until_blocked(ws, tools=[tool], tool_choice="required")
        await go_on(ws, answer("c1"))
    prompts: list[Any] = [generation.prompt for generation in house.backend.generations]
    assert prompts[0].tool_choice == b'"required"'
    assert prompts[1].tool_choice in (None, b'"auto"')


# -- safety --------------------------------------------------------------------------------------------------------------


class Reader:
    """A classifier that keeps what it reads, flags the word "odd" and blocks "evil"."""

    name = "reader"

    def __init__(self) -> None:
        self.read: list[tuple[str, str]] = []

    async def classify(self, delta: SafetyInput, state: Carried) -> Verdict:
        del state
        self.read.append((delta.stage, delta.new_text))
        action: Literal["allow", "flag", "block"]
        action = "block" if "evil" in delta.new_text else "flag" if "odd" in delta.new_text else "allow"
        return Verdict(action=action, categories=("word",) if action != "allow" else ())


def guarded(kind: Kind, **options: Any) -> tuple[House, Reader, list[TurnRecord]]:
    reader, records = Reader(), list[TurnRecord]()

    async def keep(record: TurnRecord) -> None:
        records.append(record)

    return rolling(kind, safety=Safety(reader, **options), settlement=Settlement(keep)), reader, records


@pytest.mark.parametrize("mode", ["before", "beside"])
@pytest.mark.parametrize("kind", KINDS)
async def test_each_append_is_judged_and_nothing_twice(kind: Kind, mode: Any) -> None:
    """The delta alone; and the record has the verdicts of all of them."""
    house, reader, records = guarded(kind, mode=mode)
    for part in (("call", "c1"), ("call", "c2"), ("text", "Done.")):
        house.say_items(part)
    async with house.socket() as ws:
        await until_blocked(ws)
        await go_on(ws, answer("c1", "something odd"))
        await go_on(ws, answer("c2", "two"))
        await settle()
    given = [text for stage, text in reader.read if stage == "input"]
    assert len(given) == 3
    assert "Go." in given[0]
    assert "something odd" in given[1]
    assert "something odd" not in given[2]
    (record,) = records
    assert (record.verdict, record.flags, record.outcome) == ("flag", ("reader:word",), "completed")


@pytest.mark.parametrize("mode", ["before", "beside"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_append_that_is_blocked_ends_the_rollout(kind: Kind, mode: Any) -> None:
    """As a create with the same outputs would be: the model never answers it, and there is one closing event."""
    house, _, records = guarded(kind, mode=mode)
    house.say_items(("call", "c1"))
    house.say("Never told.")
    async with house.socket() as ws:
        events = await until_blocked(ws)
        events += await go_on(ws, answer("c1", "evil"))
        await settle()
        assert code_of((await go_on(ws, answer("c1")))[-1]) == "rollout_not_found"
    assert life(events) == ["created", "failed"]
    assert code_of(events[-1]) == "invalid_prompt"
    assert calls_in(events[-1]["response"]) == ["c1"]
    check_numbers(events)
    (record,) = records
    assert (record.outcome, record.verdict) == ("blocked", "block")


@pytest.mark.parametrize("kind", KINDS)
async def test_output_that_is_blocked_in_a_later_step_ends_the_rollout_there(kind: Kind) -> None:
    """What was sent before stays: the closing event has the earlier steps, and nothing of what was blocked."""
    house, _, records = guarded(kind, output="windows")
    house.say_items(("text", "Good."), ("call", "c1"))
    house.say_items(("text", "evil words"))
    async with house.socket() as ws:
        events = await until_blocked(ws)
        events += await go_on(ws, answer("c1"))
        await settle()
    response = events[-1]["response"]
    assert kinds(events)[-1] == "incomplete"
    assert response["incomplete_details"] == {"reason": "content_filter"}
    assert calls_in(response) == ["c1"]
    assert "evil" not in json.dumps(events)
    assert "Good." in json.dumps(response["output"])
    check_numbers(events)
    (record,) = records
    assert record.outcome == "blocked"


# -- ends ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_whose_client_is_silent_ends_as_it_is(kind: Kind) -> None:
    """Nothing is lost: the calls stay open, and a create can bring what an append would have."""
    house = rolling(kind, limits=Limits(blocked_timeout_s=100.0))
    house.say_items(("text", "Let me see."), ("call", "c1"))
    house.say_items(("call", "c2"))
    house.say("Done.")
    async with house.socket() as ws:
        await until_blocked(ws)
        blocked = await go_on(ws, answer("c1"))
        house.clock.jump(99.0)
        await settle()
        assert not ws.unread
        house.clock.jump(1.0)
        events = await step(ws)
        assert kinds(events) == ["completed"]
        assert events[0]["sequence_number"] == blocked[-1]["sequence_number"] + 1
        assert calls_in(events[0]["response"]) == ["c1", "c2"]
        assert code_of((await go_on(ws, answer("c2")))[-1]) == "rollout_not_found"
        await ws.send_json(create([answer("c2")], previous_response_id=events[0]["response"]["id"]))
        assert text_of((await step(ws))[-1]) == "Done."
    assert "Let me see." in house.told(2)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_that_has_waited_often_enough_ends_as_it_is(kind: Kind) -> None:
    """Where it would wait once more."""
    house = rolling(kind, limits=Limits(max_rollout_appends=1))
    house.say_items(("call", "c1"))
    house.say_items(("call", "c2"))
    house.say("Done.")
    async with house.socket() as ws:
        await until_blocked(ws)
        events = await go_on(ws, answer("c1"))
        assert kinds(events)[-1] == "completed"
        assert calls_in(events[-1]["response"]) == ["c1", "c2"]
        await ws.send_json(create([answer("c2")], previous_response_id=events[-1]["response"]["id"]))
        assert text_of((await step(ws))[-1]) == "Done."


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_goes_while_it_is_waited_for(kind: Kind) -> None:
    """Nothing runs on, nothing is kept, and what was used is settled: once."""
    records: list[TurnRecord] = []

    async def keep(record: TurnRecord) -> None:
        records.append(record)

    house = rolling(kind, settlement=Settlement(keep))
    _say_calls(house, 7)
    _say_calls(house, 8, "c2")
    async with house.socket() as ws:
        await until_blocked(ws)
        await go_on(ws, answer("c1"))
    (record,) = records
    assert record.outcome == "gone"
    assert record.usage is not None
    assert (record.usage.output_tokens, record.usage.partial) == (15, True)
    assert house.running == 0
    assert left(house) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_client_that_goes_while_a_later_step_is_sampled(kind: Kind) -> None:
    """The call of that step ends, and what the steps before it have used is known."""
    records: list[TurnRecord] = []

    async def keep(record: TurnRecord) -> None:
        records.append(record)

    house = rolling(kind, settlement=Settlement(keep))
    _say_calls(house, 7)
    house.say("Working", then_wait=True)
    async with house.socket() as ws:
        await until_blocked(ws)
        await ws.send_json(append(answer("c1")))
        await settle()
        assert house.running == 1
    (record,) = records
    assert record.outcome == "gone"
    assert record.usage is not None
    assert record.usage.output_tokens == 7
    assert house.running == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_left_to_run_on_ends_where_it_waits_and_can_be_continued(kind: Kind) -> None:
    """``on_disconnect``: there is nobody to wait for, but what was sampled is stored for who comes back."""
    house = rolling(kind, on_disconnect=30.0)
    house.say_items(("call", "c1"))
    house.say("Done.")
    async with house.socket() as ws:
        blocked = await until_blocked(ws)
    async with house.socket() as ws:
        await ws.send_json(create([answer("c1")], previous_response_id=blocked[-1]["response"]["id"]))
        assert text_of((await step(ws))[-1]) == "Done."


@pytest.mark.parametrize("kind", KINDS)
async def test_a_drain_does_not_wait_for_tools(kind: Kind) -> None:
    """What waits, and what would wait, ends as it is: its client goes on by a create, at another server."""
    house = rolling(kind)
    house.say_items(("call", "c1"))
    house.say_items(("call", "d1"), hold_after=0 if kind == "app" else None)
    house.say("Done.")
    async with house.socket() as ws:
        blocked = await until_blocked(ws)
        assert await house.middleware.drain(0.0) is False
        events = await step(ws)
        assert kinds(events) == ["completed"]
        assert calls_in(events[0]["response"]) == ["c1"]
        assert await ws.wait_closed() == 1012
    house.middleware.registry.seats.draining = False
    house.app._turns.clear()
    house.backend._scripts.clear()
    house.say("Done.")
    async with house.socket() as ws:
        await ws.send_json(create([answer("c1")], previous_response_id=blocked[-1]["response"]["id"]))
        assert text_of((await step(ws))[-1]) == "Done."


@pytest.mark.parametrize("kind", KINDS)
async def test_the_age_of_a_connection_ends_a_rollout_that_waits(kind: Kind) -> None:
    """Then the socket is closed at once, since nothing runs."""
    house = rolling(kind, limits=Limits(max_connection_age_s=50.0))
    house.say_items(("call", "c1"))
    async with house.socket() as ws:
        await until_blocked(ws)
        house.clock.jump(50.0)
        assert kinds(await step(ws)) == ["completed"]
        assert code_of(await ws.receive_json()) == "websocket_connection_limit_reached"
        assert await ws.wait_closed() == 1001


@pytest.mark.parametrize("kind", KINDS)
async def test_a_failure_in_a_later_step_ends_the_rollout(kind: Kind) -> None:
    """One closing event, with what was finished before; its parent is evicted as by any failure."""
    records: list[TurnRecord] = []

    async def keep(record: TurnRecord) -> None:
        records.append(record)

    house = rolling(kind, settlement=Settlement(keep))
    house.say("Base.")
    _say_calls(house, 7)
    if kind == "app":
        house.app.script([steps.text("Half"), steps.truncate(3)])
    else:
        house.backend.will_answer([Delta(text="Half")])
    async with house.socket() as ws:
        base = (await ws.turn(create("Begin.", store=False)))[-1]["response"]["id"]
        events = await until_blocked(ws, previous_response_id=base, store=False)
        events += await go_on(ws, answer("c1"))
        await ended(house)
        await ws.send_json(create("Again.", previous_response_id=base))
        assert code_of(await ws.receive_json()) == "previous_response_not_found"
    assert life(events) == ["created", "failed"]
    check_numbers(events)
    assert code_of(events[-1]) == "upstream_stream_truncated"
    assert calls_in(events[-1]["response"]) == ["c1"]
    record = records[1]
    assert (record.outcome, record.code) == ("failed", "upstream_stream_truncated")
    assert record.usage is not None
    assert record.usage.output_tokens == 7


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_that_waits_can_be_cancelled(kind: Kind) -> None:
    """It ends by its one closing event, and the lane is free."""
    house = rolling(kind, accept_cancel=True)
    house.say_items(("call", "c1"))
    house.say("Next.")
    async with house.socket() as ws:
        blocked = await until_blocked(ws)
        await ws.send_json({"type": "response.cancel", "response_id": blocked[-1]["response"]["id"]})
        event = await ws.receive_json()
        assert event["response"]["status"] == "cancelled"
        assert calls_in(event["response"]) == ["c1"]
        assert code_of((await go_on(ws, answer("c1")))[-1]) == "rollout_not_found"
        await ws.send_json(create("Next?"))
        assert text_of((await step(ws))[-1]) == "Next."


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_is_steered_by_what_is_appended_and_by_nothing_else(kind: Kind) -> None:
    """A steer would end it: it is given back."""
    house = rolling(kind)
    house.say_items(("call", "c1"))
    async with house.socket() as ws:
        blocked = await until_blocked(ws)
        await ws.send_json(steer(blocked[-1]["response"]["id"]))
        refused = await ws.receive_json()
    assert refused["type"] == "response.steer.failed"
    assert refused["error"]["code"] == "steering_not_supported"


# -- what is kept --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_appended_is_charged(kind: Kind) -> None:
    """While it waits, and after it: a rollout is no way round the budgets."""
    house = rolling(kind)
    used_at: list[int] = []
    ledger = house.middleware.registry.ledger
    for part in (("call", "c1"), ("call", "c2"), ("text", "Done.")):
        house.say_items(part)
    async with house.socket() as ws:
        await until_blocked(ws, store=False)
        used_at.append(ledger.process.used)
        await go_on(ws, answer("c1", "x" * 10_000))
        used_at.append(ledger.process.used)
        await go_on(ws, answer("c2", "x" * 10_000))
        used_at.append(ledger.process.used)
    assert used_at[0] > 0
    assert used_at[1] - used_at[0] > 10_000
    assert used_at[2] - used_at[1] > 10_000
    assert left(house) == 0


async def test_what_is_kept_of_the_create_is_charged() -> None:
    """An app is given it in each step: a member without end must not be a way round the budgets either."""
    house = rolling("app", limits=Limits(max_connection_bytes=30_000))
    ledger = house.middleware.registry.ledger
    house.say_items(("call", "c1"))
    house.say_items(("call", "d1"))
    async with house.socket() as ws:
        await until_blocked(ws, store=False, own="x" * 10_000)
        assert ledger.process.used > 10_000
        await ws.send_json(create("Go.", store=False, own="x" * 20_000, stream_id="a"))
        assert kinds(await step(ws))[-1] == "completed", "there is no room for it to wait"
        assert house.app.requests[0].body["own"] == "x" * 10_000
    assert left(house) == 0


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_for_which_there_is_no_room_ends_where_it_would_wait(kind: Kind) -> None:
    """It could not go on: its client is told all there is, and hooks that it was not kept."""
    facts = Facts()
    house = rolling(kind, limits=Limits(max_connection_bytes=8_000), hooks=(facts,))
    house.say_items(("call", "c1"))
    house.say_items(("call", "c2"))
    async with house.socket() as ws:
        await until_blocked(ws, store=False)
        events = await go_on(ws, answer("c1", "x" * 10_000))
    assert kinds(events)[-1] == "completed"
    assert calls_in(events[-1]["response"]) == ["c1", "c2"]
    assert facts.of(NodeDropped)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stored_rollout_is_found_on_another_socket(kind: Kind) -> None:
    """All of its steps are stored, when it has ended."""
    house = rolling(kind)
    for part in (("text", "Let me see."), ("call", "c1"), ("text", "Done."), ("text", "More.")):
        house.say_items(part)
    house.app._turns.clear()
    house.backend._scripts.clear()
    house.say_items(("text", "Let me see."), ("call", "c1"))
    house.say("Done.")
    house.say("More.")
    async with house.socket() as ws:
        await until_blocked(ws)
        target = (await go_on(ws, answer("c1", "one")))[-1]["response"]["id"]
    async with house.socket() as ws:
        assert text_of((await ws.turn(create("And?", previous_response_id=target)))[-1]) == "More."
    told = house.told(2)
    assert all(word in told for word in ("Go.", "Let me see.", '"c1"', "one", "Done.", "And?"))


async def test_a_stored_rollout_is_read_as_one_response() -> None:
    """Its output is that of all its steps, its usage their sum; what was appended is input; deleted, it is gone whole."""
    house = rolling("engine")
    _say_calls(house, 7)
    _say_calls(house, 8, "c2")
    house.say("Done.")
    async with house.socket() as ws:
        await until_blocked(ws)
        await go_on(ws, answer("c1", "one"))
        last = (await go_on(ws, answer("c2", "two")))[-1]["response"]
    path = f"/v1/responses/{last['id']}"
    async with client(house.served) as http:
        assert (await http.get(path)).json() == last
        given = (await http.get(path + "/input_items?order=asc")).json()["data"]
        assert [item.get("output", item["type"]) for item in given] == [
            "message",
            "function_call",
            "one",
            "function_call",
            "two",
        ]
        assert (await http.delete(path)).json()["deleted"] is True
        assert (await http.get(path)).status_code == 404


async def test_a_post_is_no_rollout() -> None:
    """There is nobody who could append: its response ends by its calls, as ever."""
    house = rolling("engine")
    house.say_items(("call", "c1"))
    async with client(house.served) as http:
        response = (await http.post("/v1/responses", json={"model": "m", "input": "Go."})).json()
    assert (response["status"], calls_in(response)) == ("completed", ["c1"])


async def test_the_steps_of_a_rollout_are_no_responses() -> None:
    """Their ids are nobody's: hooks hear of none of them, and the least recently used leaf is never one."""
    closed: list[str] = []
    app = used(usage(1, 1), usage(1, 1))
    served = ResponsesWebSocketMiddleware(app, prototype=True, on_close=closed.extend)
    async with MemorySocket(served) as ws:
        await until_blocked(ws)
        target = (await go_on(ws, answer("c1")))[-1]["response"]["id"]
    assert closed == [target]


# -- apps ----------------------------------------------------------------------------------------------------------------


async def test_an_app_that_works_on_after_a_step_holds_up_nothing() -> None:
    """Background work after the closing event is the app's affair, as after any response."""
    house = rolling("app")
    house.app.script([steps.tool_call("look", {}, call_id="c1"), steps.complete(), steps.wait_for(house.go)])
    house.app.script([steps.text("Done.")])
    async with house.socket() as ws:
        await until_blocked(ws)
        assert text_of((await go_on(ws, answer("c1")))[-1]) == "Done."
        await ended(house, 1)
        house.go_on()


async def test_history_forward_goes_on_from_the_apps_own_ids() -> None:
    """Within the rollout, and after it: the app has a response for each step, and knows nothing of ours."""
    app = ScriptedApp(stateful=True)
    for what in (steps.tool_call("look", {}, call_id="c1"), steps.text("Done."), steps.text("More.")):
        app.script([what])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, prototype=True, history="forward")) as ws:
        await until_blocked(ws)
        last = (await go_on(ws, answer("c1")))[-1]["response"]
        await ws.turn(create("And?", previous_response_id=last["id"]))
    first, second = list(app.stored)[:2]
    assert last["id"] == first
    bodies = [request.body for request in app.requests]
    assert [body.get("previous_response_id") for body in bodies] == [None, first, second]
    assert bodies[1]["input"] == [answer("c1")]
    assert bodies[2]["input"] == "And?" or len(bodies[2]["input"]) == 1


async def test_an_app_that_numbers_badly_and_answers_in_whole_is_joined() -> None:
    """Places and numbers of a step are its own, if it has any."""
    app = ScriptedApp()
    app.script([steps.json_only(), steps.tool_call("look", {}, call_id="c1")])
    app.script(
        [
            steps.drop_field("output_index"),
            steps.drop_field("sequence_number"),
            steps.text("Hm."),
            steps.tool_call("look", {}, call_id="c2"),
        ]
    )
    app.script(
        [steps.drop_event("response.output_item.done"), steps.drop_event("response.created"), steps.text("Done.")]
    )
    events = await run_out(app, 2)
    check_numbers(events)
    places = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert places == [0, 1, 2, 3]
    assert all(event["output_index"] >= 0 for event in events if "item_id" in event)
    assert [item["type"] for item in events[-1]["response"]["output"]] == [
        "function_call",
        "message",
        "function_call",
        "message",
    ]
    assert life(events) == ["created", "completed"]


async def test_a_call_of_an_earlier_turn_that_the_app_leaves_open_does_not_block() -> None:
    """``open_calls="app"``: only what this step has called for is waited for."""
    app = ScriptedApp(ScriptedModel(text="Hello."))
    given = [{"type": "function_call", "call_id": "old", "name": "look", "arguments": "{}"}, WORDS]
    async with MemorySocket(ResponsesWebSocketMiddleware(app, prototype=True, open_calls="app")) as ws:
        events = await ws.turn(create(given))
    assert kinds(events)[-1] == "completed"


async def test_numbers_have_no_gap_where_errors_come_between() -> None:
    """An ``error`` for a bad append has the number 0: it is no event of the response."""
    house = rolling("app")
    house.say_items(("call", "c1"))
    async with house.socket() as ws:
        await until_blocked(ws)
        await ws.send_json(append(WORDS))
        error = await ws.receive_json()
        assert error["sequence_number"] == 0
        assert len([frame for frame in frames_of(ws) if frame["type"] == "error"]) == 1
