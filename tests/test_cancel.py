"""``response.cancel`` over the socket: what is stopped, what is told of it, and what stays as it was."""

import json
from typing import Any

import pytest

from tests.houses import KINDS, SDK, TOOL, House, Kind, begun, check_numbers, life, of_steers, steer, until
from tests.shell import KEY, Facts, Shell, answer, code_of, create, frames_of, id_of, text_of
from ws_responses import Limits
from ws_responses.backends import Delta
from ws_responses.protocol.cancelling import CANCEL
from ws_responses.safety import Safety, Verdict
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import ScriptedApp, settle, steps


def cancel(response_id: str | None = None, **more: Any) -> dict[str, Any]:
    return {"type": CANCEL, **({} if response_id is None else {"response_id": response_id}), **more}


def cancelling(kind: Kind, **options: Any) -> House:
    return House(kind, accept_cancel=True, **options)


async def ended(house: House, left: int = 0) -> None:
    """Return when only so many calls of the upstream run; the socket is still open."""
    for _ in range(100):
        await settle()
        if house.running == left:
            return
    pytest.fail("the upstream runs on for nobody")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lane", [{}, {"stream_id": "a"}])
async def test_a_running_response_is_stopped_and_its_parent_can_be_continued(kind: Kind, lane: dict[str, str]) -> None:
    """The whole of it: one closing event, the upstream ends with the socket still open, and the lane is as it was before."""
    house = cancelling(kind)
    house.say("One.")
    house.say("Never ending", then_wait=True)
    house.say("Three.")
    async with house.socket() as ws:
        parent = id_of(await ws.turn(create("Go.", **lane)))
        await ws.send_json(create("Tell me all.", previous_response_id=parent, **lane))
        target = await begun(ws, 2)
        await ws.send_json(cancel(target))
        events = await until(ws, "incomplete")
        await ended(house)
        await ws.send_json(create("And?", previous_response_id=target, **lane))
        assert code_of(await ws.receive_json()) == "previous_response_not_found"
        last = await ws.turn(create("Shorter.", previous_response_id=parent, **lane))

    assert life(events) == ["created", "incomplete"]
    check_numbers(events)
    for event in events:
        SDK.validate_python(event)
        assert event.get("stream_id") == lane.get("stream_id")
    response = events[-1]["response"]
    assert (response["id"], response["status"]) == (target, "cancelled")
    assert (response["error"], response["incomplete_details"], response["usage"]) == (None, None, None)
    assert text_of(last[-1]) == "Three."
    assert "One." in house.told(2)
    assert "Tell me all." not in house.told(2)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_lane_is_cancelled_with_what_waits_on_it_and_no_other_is(kind: Kind) -> None:
    """A user who says stop means all that the lane would still do; each create gets its own closing event."""
    house = cancelling(kind)
    house.say("On a", then_wait=True)
    house.say("On b", then_wait=True)
    house.say("Next.")
    async with house.socket() as ws:
        await ws.send_json(create("A.", stream_id="a"))
        target = await begun(ws, stream_id="a")
        await ws.send_json(create("B.", stream_id="b"))
        await begun(ws, stream_id="b")
        await ws.send_json(create("Waits on a.", stream_id="a"))
        await ws.send_json(create("Waits on b.", stream_id="b"))
        await ws.send_json(create("Waits on a too.", stream_id="a"))
        await settle()
        await ws.send_json(cancel(stream_id="a"))
        told = await until(ws, "error", "error")
        await ended(house, left=1)
        assert house.ran == 2
        on_a = [frame for frame in told if frame.get("stream_id") == "a"]
        assert life(on_a) == ["created", "incomplete", "error", "error"]
        assert on_a[-3]["response"]["id"] == target
        assert [(code_of(frame), frame["status"]) for frame in on_a[-2:]] == [("response_cancelled", 409)] * 2
        for frame in on_a:
            SDK.validate_python(frame)
        house.go_on()
        events = await until(ws, "completed")
        events += await until(ws, "completed")

    on_b = [event for event in (*told, *events) if event.get("stream_id") == "b"]
    assert life(on_b) == ["created", "completed", "created", "completed"]
    assert "Waits on a" not in house.told(2)


async def test_the_default_lane_is_meant_by_a_frame_without_names() -> None:
    """As everywhere else; a named lane goes on."""
    house = cancelling("app")
    house.say("Default", then_wait=True)
    house.say("Named", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        await begun(ws)
        await ws.send_json(create("Go.", stream_id="a"))
        await begun(ws, 2)
        await ws.send_json(cancel())
        events = await until(ws, "incomplete")
        assert "stream_id" not in events[-1]
        house.go_on()
        assert (await until(ws, "completed"))[-1]["stream_id"] == "a"


async def test_by_its_id_one_response_is_stopped_and_what_waits_behind_it_starts() -> None:
    """An id names one response: the creates behind it have been asked for on their own."""
    house = cancelling("app")
    house.say("First", then_wait=True)
    house.say("Second.")
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(create("Next."))
        await ws.send_json(cancel(target))
        events = await until(ws, "completed")

    assert life(events) == ["created", "incomplete", "created", "completed"]
    assert text_of(events[-1]) == "Second."


@pytest.mark.parametrize("kind", KINDS)
async def test_before_its_first_event_a_turn_is_closed_by_an_error(kind: Kind) -> None:
    """There is no response yet that could be incomplete; and its parent stays, since nothing has failed."""
    house = cancelling(kind)
    house.say("One.")
    async with house.socket() as ws:
        parent = id_of(await ws.turn(create("Go.")))
        if kind == "app":
            house.app.script([steps.wait_for(house.go), steps.text("Late.")])
        else:
            house.backend.will_answer([Delta(text="Late."), Delta(finish="stop")], hold_after=0)
        await ws.send_json(create("More.", previous_response_id=parent))
        await settle()
        assert house.running == 1
        await ws.send_json(cancel())
        closing = (await ws.collect())[-1]
        await ended(house)
        house.say("Three.")
        last = await ws.turn(create("Again.", previous_response_id=parent))

    assert (code_of(closing), closing["status"]) == ("response_cancelled", 409)
    assert text_of(last[-1]) == "Three."


@pytest.mark.parametrize("kind", KINDS)
async def test_settlement_is_told_of_an_aborted_turn(kind: Kind) -> None:
    """What was generated is to be billed; the hooks know who has ended it."""
    records: list[TurnRecord] = []

    async def settled(record: TurnRecord) -> None:
        records.append(record)

    facts = Facts()
    house = cancelling(kind, settlement=Settlement(settled), hooks=(facts,))
    house.say("Never ending", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(create("Waits."))
        await settle()
        await ws.send_json(cancel())
        await until(ws, "incomplete", "error")

    (record,) = records
    assert (record.outcome, record.code, record.response_id) == ("aborted", "response_cancelled", target)
    assert record.ran
    assert facts.outcomes == [("aborted", "response_cancelled")]


@pytest.mark.parametrize(
    ("frame", "code", "status"),
    [
        ({"response_id": "resp_unknown"}, "response_not_found", 404),
        ({"response_id": "{running}", "stream_id": "b"}, "response_not_found", 404),
        ({"response_id": "{completed}"}, "response_already_completed", 409),
        ({"response_id": "{cancelled}"}, "response_not_active", 409),
        ({}, "response_not_active", 409),
        ({"stream_id": "never"}, "response_not_active", 409),
        ({"stream_id": None}, "invalid_stream_id", 400),
        ({"response_id": None}, "invalid_request", 400),
        ({"response_id": ""}, "invalid_request", 400),
        ({"response_id": "x" * 2049}, "invalid_request", 400),
        ({"previous_response_id": "{running}"}, "invalid_request", 400),
    ],
)
async def test_what_cannot_be_cancelled_is_an_error_and_changes_nothing(
    frame: dict[str, Any], code: str, status: int
) -> None:
    """A race with the end is told from a mistake; the responses that run are not touched by either."""
    house = cancelling("app")
    house.say("One.")
    house.say("Never", then_wait=True)
    house.say("On a", then_wait=True)
    async with house.socket() as ws:
        completed = id_of(await ws.turn(create("Go.", stream_id="c")))
        await ws.send_json(create("Go.", stream_id="d"))
        cancelled = await begun(ws, 2)
        await ws.send_json(cancel(cancelled))
        await until(ws, "incomplete")
        await ws.send_json(create("Go.", stream_id="a"))
        ids = {"{running}": await begun(ws, 3), "{completed}": completed, "{cancelled}": cancelled}
        await ws.send_json({"type": CANCEL, **{name: ids.get(value, value) for name, value in frame.items()}})
        error = (await until(ws, "error"))[-1]
        lanes = len(house.app.requests)
        house.go_on()
        last = await until(ws, "completed")

    assert (code_of(error), error["status"]) == (code, status)
    assert text_of(last[-1]) == "On a"
    assert lanes == 3


async def test_a_name_that_is_only_cancelled_takes_no_lane() -> None:
    """Lanes are counted for life: a cancel must not use them up."""
    house = cancelling("app", limits=Limits(max_lanes=1))
    house.say("Hello.")
    async with house.socket() as ws:
        for name in ("x", "y"):
            await ws.send_json(cancel(stream_id=name))
            assert code_of(await ws.receive_json()) == "response_not_active"
        events = await ws.turn(create("Go.", stream_id="a"))

    assert text_of(events[-1]) == "Hello."


@pytest.mark.parametrize("profile", ["openai", "open-responses"])
async def test_it_is_off_by_default(profile: Any) -> None:
    """OpenAI's endpoint has no such event, and its clients must not come to rely on it unawares."""
    house = House("app", profile=profile, steering=None)
    house.say("Hello", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(cancel(target))
        error = (await until(ws, "error"))[-1]
        house.go_on()
        assert (await until(ws, "completed"))[-1]["response"]["id"] == target

    assert code_of(error) == "unknown_event_type"


async def test_open_responses_can_have_it_without_lanes() -> None:
    """One response runs there at a time; the frame needs no name, and a lane's is refused as ever."""
    house = cancelling("app", profile="open-responses", steering=None)
    house.say("Hello", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        await begun(ws)
        await ws.send_json(cancel(stream_id="a"))
        assert code_of((await until(ws, "error"))[-1]) == "invalid_stream_id"
        await ws.send_json(cancel())
        closing = (await until(ws, "incomplete"))[-1]

    assert closing["response"]["status"] == "cancelled"


async def test_an_app_that_does_not_listen_is_cancelled_after_its_grace() -> None:
    """The client has its answer at once, and the lane goes on; the app may not run for ever."""
    app = ScriptedApp(listen=False)
    app.script([steps.created(), steps.stall()])
    shell = Shell(app, accept_cancel=True)
    async with shell.socket(KEY) as ws:
        await ws.send_json(create("Go."))
        await begun(ws)
        await ws.send_json(cancel())
        await until(ws, "incomplete")
        await ws.turn(create("Next."))
        assert app.running == 1
        await shell.clock.advance(Limits().disconnect_grace_s)
        await settle()
        assert (app.running, app.cancelled) == (0, 1)


@pytest.mark.parametrize("kind", KINDS)
async def test_the_steers_of_a_cancelled_response_come_back(kind: Kind) -> None:
    """Who stops the response does not want its successor; what was typed is not lost."""
    house = cancelling(kind)
    house.say("Hello", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        target = await begun(ws)
        await ws.send_json(steer(target, "Or so."))
        await ws.send_json(cancel(target))
        events = await until(ws, "steer.failed")
        await ended(house)

    assert life(events) == ["created", "steer.accepted", "incomplete", "steer.failed"]
    check_numbers(events)
    returned = of_steers(events)[-1]
    assert (returned["error"]["code"], returned["steer"]["input"]) == ("response_not_active", "Or so.")
    assert house.ran == 1


@pytest.mark.parametrize("kind", KINDS)
async def test_items_that_were_finished_are_told_once_more_and_no_others(kind: Kind) -> None:
    """The closing event repeats what the client has in full; an item that was cut in the middle is in none."""
    house = cancelling(kind)
    house.say_items(("reasoning", "hm"), ("text", "Half a"), hold_after=2)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        await begun(ws)
        while not any(frame["type"] == "response.output_text.delta" for frame in frames_of(ws)):
            await settle()
        await ws.send_json(cancel())
        closing = (await until(ws, "incomplete"))[-1]

    types = [item["type"] for item in closing["response"]["output"]]
    done = [frame["item"]["type"] for frame in frames_of(ws) if frame["type"] == "response.output_item.done"]
    assert types == done
    assert types[0] == "reasoning"


@pytest.mark.parametrize("kind", KINDS)
async def test_output_that_is_held_back_does_not_leave_by_a_cancel(kind: Kind) -> None:
    """Else it would be the way round the classifiers."""

    async def classify(delta: object, state: object) -> Verdict:
        del delta, state
        return Verdict()

    house = cancelling(kind, safety=Safety(classify, output="whole"))
    house.say("Not judged yet", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create("Go."))
        while not house.running:
            await settle()
        await settle()
        await ws.send_json(cancel())
        await ws.collect()
        await ended(house)
        assert "Not judged" not in json.dumps(frames_of(ws))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_rollout_that_waits_for_its_client_is_stopped_too(kind: Kind) -> None:
    """Nothing runs then that could be told of it: the response must end all the same, and free its lane."""
    records: list[TurnRecord] = []

    async def settled(record: TurnRecord) -> None:
        records.append(record)

    house = cancelling(kind, prototype=True, settlement=Settlement(settled))
    house.say_items(("call", "call_1"))
    house.say("Next.")
    async with house.socket() as ws:
        await ws.send_json(create("Go.", tools=[TOOL]))
        target = await begun(ws)
        await until(ws, "done")
        await ws.send_json(create("Waits."))
        await ws.send_json(cancel(target))
        events = await until(ws, "completed")
        await ended(house)
        await ws.send_json({"type": "response.append", "input": [answer("call_1")]})
        assert code_of(await ws.receive_json()) == "rollout_not_found"

    assert life(events) == ["incomplete", "created", "completed"]
    closed = events[0]["response"]
    assert (closed["id"], closed["status"]) == (target, "cancelled")
    assert [item["type"] for item in closed["output"]] == ["function_call"]
    assert [record.outcome for record in records] == ["aborted", "completed"]
