"""``response.inject`` over the socket: outputs that reach a response while it runs, and what becomes of those that cannot."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from openai.types.beta import BetaResponsesServerEvent
from pydantic import TypeAdapter

from tests.houses import TOOL, House, begun, check_numbers, life, until
from tests.shell import KEY, Client, answer, code_of, create, frames_of, id_of, kinds, text_of
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.backends import Delta, ToolCallDelta
from ws_responses.protocol.injecting import BETA, is_served
from ws_responses.safety import Safety, TermClassifier
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import ScriptedApp, settle, steps
from ws_responses.upstreams.base import CurrentTurn, Emit

SDK: TypeAdapter[Any] = TypeAdapter(BetaResponsesServerEvent)
HEADER = (b"openai-beta", b"responses_websockets=2026-02-06, " + BETA.encode())
AGENTS = {"multi_agent": {"enabled": True}}
WORDS = {"type": "message", "role": "user", "content": "Hurry."}


def injecting(**options: Any) -> House:
    return House("engine", **options)


def socket(house: House, *headers: tuple[bytes, bytes]) -> Client:
    client = Client(house.served, headers=(KEY, *(headers or (HEADER,))))
    client.clock = house.clock
    return client


def inject(target: str, *items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "response.inject", "response_id": target, "input": list(items), **more}


def call(house: House, *call_ids: str, hold_after: int | None = None) -> None:
    """Let the next answer call tools, and wait after so many calls."""
    deltas = [
        Delta(tool_calls=(ToolCallDelta(index=index, id=call_id, name="look", arguments="{}"),))
        for index, call_id in enumerate(call_ids)
    ]
    house.backend.will_answer([*deltas, Delta(finish="tool_calls")], hold_after=hold_after)


def of_injections(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event for event in events if event["type"].startswith("response.inject")]


async def waits(house: House, ws: Client, **lane: Any) -> str:
    """Wait until a response has called its tools; return its id."""
    target = await begun(ws, **lane)
    for _ in range(50):
        await settle()
        if not house.running:
            return target
    pytest.fail("it does not wait")


@pytest.mark.parametrize("lane", [{}, {"stream_id": "a"}])
async def test_a_response_goes_on_when_all_that_it_waits_for_has_come(lane: dict[str, str]) -> None:
    """The whole of it: one response over two samplings, two submissions committed at once, and a chain that goes on from it."""
    house = injecting()
    call(house, "call_1", "call_2")
    house.say("Done.")
    house.say("Sure.")
    async with socket(house) as ws:
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS, **lane))
        target = await waits(house, ws, **lane)
        await ws.send_json(inject(target, answer("call_1", "one")))
        await settle()
        assert house.ran == 1
        assert not of_injections(frames_of(ws))
        await ws.send_json(inject(target, answer("call_2", "two")))
        events = await until(ws, "completed")
        last = await ws.turn(create("Thanks.", previous_response_id=target, **lane))

    assert life(events) == ["created", "completed"]
    assert "response.done" not in [event["type"] for event in events]
    check_numbers(events)
    for event in events:
        SDK.validate_python(event)
        assert event.get("stream_id") == lane.get("stream_id")
    created = [event["response_id"] for event in of_injections(events)]
    assert created == [target, target]
    places = {event["output_index"] for event in events if event["type"] == "response.output_item.done"}
    assert places == {0, 1, 2}
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["function_call", "function_call", "message"]
    assert events[-1]["response"]["id"] == target
    for told in (house.told(1), house.told(2)):
        assert told.index("one") < told.index("two")
    assert text_of(last[-1]) == "Sure."


async def test_what_comes_before_it_is_waited_for_is_kept_until_then() -> None:
    """A client answers a call as soon as it has it, while the model still samples the next one."""
    house = injecting()
    call(house, "call_1", "call_2", hold_after=2)
    house.say("Done.")
    async with socket(house) as ws:
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS))
        target = await begun(ws)
        await ws.send_json(inject(target, answer("call_2", "two"), answer("call_1", "one")))
        await ws.send_json(inject(target, answer("call_1", "again")))
        await settle()
        assert not of_injections(frames_of(ws))
        house.go_on()
        events = await until(ws, "completed")

    assert [event["type"] for event in of_injections(events)] == ["response.inject.failed", "response.inject.created"]
    failed = of_injections(events)[0]
    assert failed["error"]["code"] == "tool_call_not_found"
    assert failed["input"] == [answer("call_1", "again")]
    check_numbers(events)
    assert "again" not in house.told(1)


async def test_a_response_may_wait_many_times() -> None:
    """That is what it is for: a loop of tools in one response; settlement gets one record of it."""
    records: list[TurnRecord] = []

    async def settled(record: TurnRecord) -> None:
        records.append(record)

    house = injecting(settlement=Settlement(settled))
    for number in range(5):
        call(house, f"call_{number}")
    house.say("Done.")
    async with socket(house) as ws:
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS))
        events: list[dict[str, Any]] = []
        for number in range(5):
            target = await waits(house, ws)
            await ws.send_json(inject(target, answer(f"call_{number}", f"output {number}")))
            events += await until(ws, "inject.created")
        events += await until(ws, "completed")

    check_numbers(events)
    assert kinds(events).count("created") == 1
    assert len(events[-1]["response"]["output"]) == 6
    assert [record.outcome for record in records] == ["completed"]


@pytest.mark.parametrize(
    ("target", "items", "code"),
    [
        ("{waiting}", [answer("call_x")], "tool_call_not_found"),
        ("{waiting}", [answer("call_1"), answer("call_1")], "tool_call_not_found"),
        ("{waiting}", [answer("call_1"), answer("call_x")], "tool_call_not_found"),
        ("{waiting}", [], "invalid_input"),
        ("{waiting}", [WORDS], "invalid_input"),
        ("{waiting}", [answer("call_1"), 7], "invalid_input"),
        ("{waiting}", [{"type": "function_call_output", "output": "x"}], "invalid_input"),
        ("{completed}", [answer("call_1")], "response_already_completed"),
        ("{plain}", [answer("call_1")], "response_not_found"),
        ("resp_unknown", [answer("call_1")], "response_not_found"),
    ],
)
async def test_what_cannot_be_committed_comes_back_and_nothing_of_it_stays(
    target: str, items: list[Any], code: str
) -> None:
    """All or nothing: a client that gets its input back may send it again, and that must be right."""
    house = injecting()
    house.say("One.")
    async with socket(house) as ws:
        completed = id_of(await ws.turn(create("Go.", stream_id="c", **AGENTS)))
        house.say("Plain", then_wait=True)
        await ws.send_json(create("Go.", stream_id="p"))
        plain = await begun(ws, stream_id="p")
        call(house, "call_1")
        await ws.send_json(create("Go.", tools=[TOOL], stream_id="w", **AGENTS))
        waiting = await begun(ws, stream_id="w")
        while house.running > 1:
            await settle()
        named = target.format(waiting=waiting, completed=completed, plain=plain)
        await ws.send_json(inject(named, *items))
        failed = (await until(ws, "inject.failed"))[-1]
        house.say("Done.")
        await ws.send_json(inject(waiting, answer("call_1", "right")))
        events = await until(ws, "completed")
        house.go_on()
        await until(ws, "completed")

    assert failed["error"].keys() == {"code", "message"}
    assert failed["error"]["code"] == code
    assert (failed["response_id"], failed["input"]) == (named, items)
    lanes = {waiting: "w", completed: "c", plain: "p"}
    assert failed.get("stream_id") == lanes.get(named)
    assert text_of(events[-1]) == "Done."
    assert house.told(3).count("right") == 1


@pytest.mark.parametrize("frame", [{"response_id": "r"}, {"input": []}, {"response_id": "", "input": []}])
async def test_a_frame_that_nothing_could_be_given_back_of_is_an_error(frame: dict[str, Any]) -> None:
    """And so is one with members that mean nothing: a lane does not belong there."""
    async with socket(injecting()) as ws:
        for wrong in (frame, {"response_id": "r", "input": [], "stream_id": "a"}):
            await ws.send_json({"type": "response.inject", **wrong})
            error = await ws.receive_json()
            assert (error["type"], code_of(error), error["status"]) == ("error", "invalid_request", 400)


async def test_a_response_that_ends_gives_back_what_waited() -> None:
    """By a cancel, or because nobody brought the rest: the client puts it into its next create."""
    house = injecting(accept_cancel=True)
    async with socket(house) as ws:
        call(house, "call_1", "call_2")
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS))
        target = await waits(house, ws)
        await ws.send_json(inject(target, answer("call_1", "one")))
        await ws.send_json({"type": "response.cancel", "response_id": target})
        events = await until(ws, "inject.failed")
        assert life(events) == ["created", "incomplete"]
        check_numbers(events)
        assert events[-1]["error"]["code"] == "response_already_completed"
        assert events[-1]["input"] == [answer("call_1", "one")]

        call(house, "call_3", "call_4")
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS))
        target = await begun(ws, 2)
        await settle()
        await ws.send_json(inject(target, answer("call_3", "three")))
        await settle()
        patience = Limits().blocked_timeout_s
        assert patience is not None
        await house.clock.advance(patience)
        events = await until(ws, "inject.failed")
        assert life(events) == ["created", "completed"]
        house.say("Done.")
        outputs = [answer("call_3", "three"), answer("call_4", "four")]
        last = await ws.turn(create(outputs, previous_response_id=target))

    assert text_of(last[-1]) == "Done."


async def test_how_much_may_wait_is_bounded() -> None:
    """It is memory that a client fills; what is too large to be sent back is refused without its input."""
    house = injecting(limits=Limits(max_queued_creates=1, max_queued_bytes=300, max_pending_steer_bytes=100))
    call(house, "call_1", "call_2")
    async with socket(house) as ws:
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS))
        target = await waits(house, ws)
        await ws.send_json(inject(target, answer("call_1", "x" * 300)))
        told = (await until(ws, "error"))[-1]
        assert code_of(told) == "websocket_queue_full"
        await ws.send_json(inject(target, answer("call_1", "x")))
        await ws.send_json(inject(target, answer("call_2", "x")))
        failed = (await until(ws, "inject.failed"))[-1]

    assert failed["error"]["code"] == "websocket_queue_full"


async def refused(ws: Client, target: str) -> dict[str, Any]:
    await ws.send_json(inject(target, answer("call_1")))
    return (await until(ws, "inject.failed"))[-1]


@pytest.mark.parametrize("headers", [(), (b"openai-beta", b"responses_multi_agent=v2")])
async def test_without_the_header_the_engine_has_no_agents(headers: Any) -> None:
    """A client that does not speak the beta would wait for ever for the end of a response that waits for it."""
    house = injecting()
    house.say("Hello", then_wait=True)
    async with socket(house, headers or KEY) as ws:
        (error,) = await ws.turn(create("Go.", **AGENTS))
        assert (code_of(error), error["error"]["param"]) == ("unsupported_parameter", "multi_agent")
        await ws.send_json(create("Go."))
        told = await refused(ws, await begun(ws))
        house.go_on()
        await until(ws, "completed")

    assert told["error"]["code"] == "response_not_found"


async def test_a_response_without_agents_calls_tools_as_ever() -> None:
    """The header alone changes nothing: most turns of such a client are plain ones."""
    house = injecting()
    call(house, "call_1")
    house.say("Done.")
    async with socket(house) as ws:
        first = await ws.turn(create("Go.", tools=[TOOL], multi_agent=None))
        assert kinds(first)[-1] == "completed"
        last = await ws.turn(create([answer("call_1")], previous_response_id=id_of(first)))

    assert text_of(last[-1]) == "Done."


async def test_a_wrapped_app_takes_none() -> None:
    """It answers one POST; that its create names agents is its own affair."""
    app = ScriptedApp(listen=True)
    house = House("app")
    app.script([steps.created(), steps.wait_for(house.go), steps.text("Hello")])
    client = Client(ResponsesWebSocketMiddleware(app, clock=house.clock), headers=(KEY, HEADER))
    client.clock = house.clock
    async with client as ws:
        await ws.send_json(create("Go.", **AGENTS))
        target = await begun(ws)
        told = await refused(ws, target)
        house.go_on()
        await until(ws, "completed")
        over = await refused(ws, target)

    assert app.requests[0].body["multi_agent"] == AGENTS["multi_agent"]
    assert told["error"]["code"] == "response_not_found"
    assert over["error"]["code"] == "response_already_completed"


async def until_done(ws: Client) -> dict[str, Any]:
    return (await until(ws, "done"))[-1]


@pytest.mark.parametrize("lane", [{}, {"stream_id": "a"}])
async def test_in_prototype_mode_a_response_with_agents_takes_injections_only(lane: dict[str, str]) -> None:
    """An append in the middle would go on without what had been injected: the model would miss an output."""
    house = injecting(prototype=True)
    call(house, "call_1", "call_2")
    house.say("Done.")
    async with socket(house) as ws:
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS, **lane))
        target = await waits(house, ws, **lane)
        await ws.send_json(inject(target, answer("call_1", "one")))
        await ws.send_json({"type": "response.append", "input": [answer("call_2", "two")], **lane})
        events = await until(ws, "error")
        assert (code_of(events[-1]), events[-1].get("stream_id")) == ("rollout_not_found", lane.get("stream_id"))
        assert "response.inject" in events[-1]["error"]["message"]
        assert house.ran == 1, "it waits on"
        await ws.send_json(inject(target, answer("call_2", "two")))
        events += await until(ws, "completed")

    assert life(events) == ["created", "error", "completed"]
    assert "response.done" not in [event["type"] for event in events]
    assert [event["response_id"] for event in of_injections(events)] == [target, target]
    assert house.told(1).index("one") < house.told(1).index("two")


async def test_in_prototype_mode_a_response_without_agents_takes_appends_only() -> None:
    """It is told `response.done`; an injection is refused, and the rollout waits on."""
    house = injecting(prototype=True)
    call(house, "call_1")
    house.say("Done.")
    async with socket(house) as ws:
        await ws.send_json(create("Go.", tools=[TOOL]))
        done = await until_done(ws)
        told = await refused(ws, done["response"]["id"])
        assert told["error"]["code"] == "response_not_found"
        await ws.send_json({"type": "response.append", "input": [answer("call_1", "one")]})
        events = await until(ws, "completed")

    assert text_of(events[-1]) == "Done."


async def test_in_prototype_mode_both_kinds_run_beside_each_other() -> None:
    """Each lane has the form that its create has asked for, and the next create on a lane may ask for the other."""
    house = injecting(prototype=True)
    async with socket(house) as ws:
        call(house, "call_1")
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS, stream_id="a"))
        target = await waits(house, ws, stream_id="a")
        call(house, "call_2")
        await ws.send_json(create("Go.", tools=[TOOL], stream_id="b"))
        done = await until_done(ws)
        assert done["stream_id"] == "b"
        house.say("Done.")
        await ws.send_json({"type": "response.append", "input": [answer("call_2")], "stream_id": "b"})
        await until(ws, "completed")
        house.say("Done, too.")
        await ws.send_json(inject(target, answer("call_1")))
        assert (await until(ws, "completed"))[-1]["stream_id"] == "a"
        call(house, "call_3")
        await ws.send_json(create("More.", tools=[TOOL], previous_response_id=target, stream_id="a"))
        while (await ws.receive_json())["type"] != "response.done":
            pass


async def test_open_responses_does_not_know_the_frame() -> None:
    """There the frame is an unknown event, as any other."""
    house = House("engine", profile="open-responses")
    async with socket(house) as ws:
        await ws.send_json(inject("resp_1"))
        assert code_of(await ws.receive_json()) == "unknown_event_type"


class Asking:
    """An upstream of somebody's own, which answers each step as a response of its own."""

    injects = True

    def __init__(self) -> None:
        self.app = ScriptedApp()
        self.deltas: list[list[bytes]] = []

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        """Call a tool first, then say what has come."""
        assert turn.injects
        self.deltas.append(turn.delta)
        item: dict[str, Any] = {
            "id": "fc_1",
            "type": "function_call",
            "call_id": "call_1",
            "name": "f",
            "arguments": "{}",
        }
        if len(self.deltas) > 1:
            text = {"type": "output_text", "text": "Done.", "annotations": []}
            item = {"id": "msg_1", "type": "message", "role": "assistant", "content": [text]}
        for kind, members in (
            ("created", {"response": {"id": f"resp_own_{len(self.deltas)}", "status": "in_progress"}}),
            ("output_item.added", {"output_index": 0, "item": item}),
            ("output_item.done", {"output_index": 0, "item": item}),
            (
                "completed",
                {"response": {"id": f"resp_own_{len(self.deltas)}", "status": "completed", "output": [item]}},
            ),
        ):
            await emit.event(_encode({"type": f"response.{kind}", **members}))


def _encode(event: Mapping[str, Any]) -> bytes:
    return json.dumps(event).encode()


async def test_an_upstream_of_ones_own_can_take_them() -> None:
    """The contract is one attribute and one flag: who writes an engine need not know the frames."""
    upstream = Asking()
    house = House("app")
    served = ResponsesWebSocketMiddleware(ScriptedApp(), upstream=upstream, authorize="open", clock=house.clock)
    client = Client(served, headers=(KEY, HEADER))
    client.clock = house.clock
    async with client as ws:
        await ws.send_json(create("Go.", **AGENTS))
        target = await begun(ws)
        await settle()
        await ws.send_json(inject(target, answer("call_1", "18 C")))
        events = await until(ws, "completed")

    check_numbers(events)
    assert life(events) == ["created", "completed"]
    assert [item["type"] for item in events[-1]["response"]["output"]] == ["function_call", "message"]
    assert json.loads(upstream.deltas[1][0]) == answer("call_1", "18 C")


def test_the_header_is_read_as_a_list() -> None:
    """Clients name several betas in it; another version is another protocol."""
    assert is_served(BETA)
    assert is_served(f"a=1 ,  {BETA} ,b=2")
    assert not is_served("")
    assert not is_served(BETA + "2")


async def test_what_is_injected_is_judged_before_it_is_sampled() -> None:
    """Tool outputs are what others have written: a way round the classifiers would be used."""
    house = injecting(safety=Safety(TermClassifier(["bad word"])))
    call(house, "call_1")
    house.say("Never.")
    async with socket(house) as ws:
        await ws.send_json(create("Go.", tools=[TOOL], **AGENTS))
        target = await waits(house, ws)
        await ws.send_json(inject(target, answer("call_1", "a bad word")))
        events = await ws.collect()
        while kinds(events)[-1] not in ("failed", "incomplete", "error"):
            events += await ws.collect()

    check_numbers(events)
    assert house.ran == 1
    assert kinds(events)[-1] == "failed"
    assert code_of(events[-1]) == "invalid_prompt"


async def test_lanes_wait_by_themselves() -> None:
    """Two responses that wait at once take each its own; a third lane goes on beside them."""
    house = injecting()
    async with socket(house) as ws:
        targets: dict[str, str] = {}
        for lane in ("a", "b"):
            call(house, f"call_{lane}")
            await ws.send_json(create("Go.", tools=[TOOL], stream_id=lane, **AGENTS))
            targets[lane] = await waits(house, ws, stream_id=lane)
        house.say("Beside.")
        assert text_of((await ws.turn(create("Hi.", stream_id="c")))[-1]) == "Beside."
        await ws.send_json(inject(targets["a"], answer("call_b")))
        failed = (await until(ws, "inject.failed"))[-1]
        assert (failed["error"]["code"], failed["stream_id"]) == ("tool_call_not_found", "a")
        for lane in ("b", "a"):
            house.say(f"Done {lane}.")
            await ws.send_json(inject(targets[lane], answer(f"call_{lane}")))
            last = (await until(ws, "completed"))[-1]
            assert (last["stream_id"], text_of(last)) == (lane, f"Done {lane}.")
