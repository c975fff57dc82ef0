"""The two profiles: one core, and what Open Responses has not is not sent, and not taken."""

import json
from typing import Any

import pytest

from tests.engine.service import STOP, ScriptedService, socket_to
from tests.open_responses import assert_events
from tests.shell import Shell, code_of, create, error_of, id_of, kinds
from ws_responses import ConfigurationError, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses.backends import Delta, ToolCallDelta
from ws_responses.testing import ScriptedApp, steps
from ws_responses.testing.steps import Step

STRICT: dict[str, Any] = {"profile": "open-responses"}

POOR: dict[str, Any] = {"temperature": None, "top_p": None, "parallel_tool_calls": None, "tools": None, "text": {}}


def poor(**members: Any) -> list[Step]:
    """An app that answers with response objects such as servers in the wild send them."""
    return [
        steps.text("hi", deltas=2),
        *(steps.set_field(f"response.{name}", value) for name, value in members.items()),
    ]


class TestLanes:
    async def test_a_stream_id_is_refused_and_the_socket_goes_on(self) -> None:
        """Without this a client would believe that its lanes run at once."""
        async with Shell(ScriptedApp(), **STRICT).socket() as ws:
            await ws.send_json(create(stream_id="main"))
            (refusal,) = await ws.collect()
            answer = await ws.turn(create())

        assert (refusal["status"], code_of(refusal)) == (400, "invalid_stream_id")
        assert error_of(refusal)["param"] == "stream_id"
        assert "stream_id" not in refusal
        assert_events(answer)

    async def test_a_stream_id_that_is_refused_evicts_nothing(self) -> None:
        """Without this a slip would cost the conversation."""
        async with Shell(ScriptedApp(), **STRICT).socket() as ws:
            first = await ws.turn(create(store=False))
            await ws.send_json(create(stream_id="main", store=False, previous_response_id=id_of(first)))
            await ws.collect()
            second = await ws.turn(create(store=False, previous_response_id=id_of(first)))

        assert second[-1]["type"] == "response.completed"

    async def test_creates_are_answered_one_after_another(self) -> None:
        """The specification's MUST: one response in flight, the rest in order."""
        app = ScriptedApp()
        async with Shell(app, **STRICT).socket() as ws:
            for number in range(3):
                await ws.send_json(create(f"{number}"))
            turns = [await ws.collect() for _ in range(3)]

        assert app.max_running == 1
        assert [request.input[0]["content"] for request in app.requests] == ["0", "1", "2"]
        for turn in turns:
            assert_events(turn)

    async def test_the_other_profile_has_lanes(self) -> None:
        async with Shell(ScriptedApp()).socket() as ws:
            events = await ws.turn(create(stream_id="main"))

        assert events[-1]["stream_id"] == "main"


class TestResponseObjects:
    @pytest.mark.parametrize(
        "members",
        [
            POOR,
            {"created_at": 1767225600.0, "completed_at": 1767225601.0},
            {"created_at": 1767225600.25, "completed_at": 1767225601.5},
            {"reasoning": {"effort": "low"}, "metadata": None, "store": None},
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}}, "verbosity": None}},
            {"usage": {"input_tokens": 3, "output_tokens": 4}},
            {"usage": {"input_tokens": 3, "output_tokens": 4, "input_tokens_details": {"cached_tokens": None}}},
            {"usage": {}},
            {"tools": [{"type": "function", "name": "f"}]},
        ],
    )
    async def test_have_all_that_the_schema_demands(self, members: dict[str, Any]) -> None:
        """Without this a strict client refuses the whole answer of an app that most clients take."""
        app = ScriptedApp()
        app.script(poor(**members))
        async with Shell(app, **STRICT).socket() as ws:
            events = await ws.turn(create())

        assert_events(events)

    async def test_keep_what_is_right(self) -> None:
        """Without this a repair could change what the app said."""
        given = {
            "temperature": 0.25,
            "usage": {
                "input_tokens": 3,
                "output_tokens": 4,
                "total_tokens": 7,
                "input_tokens_details": {"cached_tokens": 2, "own": 1},
                "output_tokens_details": {"reasoning_tokens": 1},
            },
            "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {}, "strict": True}],
            "text": {"format": {"type": "json_object"}, "verbosity": "low"},
        }
        app = ScriptedApp()
        app.script(poor(**given))
        async with Shell(app, **STRICT).socket() as ws:
            events = await ws.turn(create())

        assert events[-1]["response"].items() >= given.items()

    async def test_take_the_default_for_a_null_and_nothing_for_an_unknown_usage(self) -> None:
        app = ScriptedApp()
        app.script(poor(**POOR, usage={}))
        async with Shell(app, **STRICT).socket() as ws:
            response = (await ws.turn(create()))[-1]["response"]

        assert (response["temperature"], response["tools"], response["usage"]) == (1, [], None)

    async def test_of_the_other_profile_are_the_apps_own(self) -> None:
        app = ScriptedApp()
        app.script(poor(**POOR))
        async with Shell(app).socket() as ws:
            response = (await ws.turn(create()))[-1]["response"]

        assert response.items() >= POOR.items()

    async def test_of_a_failure_have_a_code(self) -> None:
        app = ScriptedApp()
        app.script([steps.fail(), steps.set_field("response.error", {"message": "no"})])
        async with Shell(app, **STRICT).socket() as ws:
            events = await ws.turn(create())

        assert_events(events)
        assert code_of(events[-1]) == "server_error"

    async def test_of_a_warm_up(self) -> None:
        async with Shell(ScriptedApp(), **STRICT).socket() as ws:
            events = await ws.turn(create(generate=False, reasoning={"effort": "low"}))

        assert_events(events)


def search(step: str) -> Step:
    return steps.event({"type": f"response.web_search_call.{step}", "item_id": "ws_1", "output_index": 0})


def sse(event: str) -> bytes:
    return f"data: {event}\n\n".encode()


def thoughts(*deltas: str) -> list[Step]:
    """Reasoning as OpenAI streams it."""
    item: dict[str, Any] = {"type": "reasoning", "id": "rs_1", "summary": []}
    place = {"item_id": "rs_1", "output_index": 0, "content_index": 0}
    text = "".join(deltas)
    events = [
        {"type": "response.output_item.added", "output_index": 0, "item": item},
        *({"type": "response.reasoning_text.delta", **place, "delta": delta} for delta in deltas),
        {"type": "response.reasoning_text.done", **place, "text": text},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": item | {"content": [{"type": "reasoning_text", "text": text}]},
        },
    ]
    return [steps.event(event) for event in events]


class TestEvents:
    async def test_of_reasoning_have_the_names_of_open_responses(self) -> None:
        """Without this a validating client ends the turn at the first thought."""
        app = ScriptedApp()
        app.script(thoughts("hm ", "h", "m"))
        async with Shell(app, **STRICT).socket() as ws:
            events = await ws.turn(create())

        assert_events(events)
        deltas = [event["delta"] for event in events if event["type"] == "response.reasoning.delta"]
        assert "".join(deltas) == "hm hm"
        assert [event["text"] for event in events if event["type"] == "response.reasoning.done"] == ["hm hm"]

    @pytest.mark.parametrize("kind", ["response.reasoning_text.delta", "response.reasoning\\u005ftext.delta"])
    async def test_are_renamed_however_they_are_spelled(self, kind: str) -> None:
        """Without this a text that quotes an event would be changed in its place."""
        app = ScriptedApp()
        quoted = json.dumps('"type":"response.reasoning_text.delta"')
        place = '"item_id":"rs","output_index":0,"content_index":0'
        delta = f'{{{place},"delta":{quoted},"type" : "{kind}"}}'
        item = {"type": "reasoning", "id": "rs", "summary": []}
        added = {"type": "response.output_item.added", "output_index": 0, "item": item}
        done = {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": [item]}}
        app.script([steps.raw_sse(sse(json.dumps(added)), sse(delta), sse(json.dumps(done)))])
        async with Shell(app, **STRICT).socket() as ws:
            events = await ws.turn(create())

        (renamed,) = (event for event in events if "reasoning" in event["type"])
        assert renamed["type"] == "response.reasoning.delta"
        assert renamed["delta"] == '"type":"response.reasoning_text.delta"'

    async def test_that_it_does_not_know_are_left_out_and_the_numbers_close_up(self) -> None:
        """Without this a client that counts would wait for an event that never comes."""
        app = ScriptedApp()
        app.script([search("in_progress"), search("completed"), steps.text("hi", deltas=3)])
        async with Shell(app, **STRICT).socket() as ws:
            events = await ws.turn(create())

        assert_events(events)
        assert events[-1]["type"] == "response.completed"

    async def test_that_are_extensions_pass(self) -> None:
        """The specification's own way for more: ``slug:name``."""
        app = ScriptedApp()
        app.script([steps.event({"type": "acme:trace_event", "n": 1}), steps.text("hi")])
        async with Shell(app, **STRICT).socket() as ws:
            events = await ws.turn(create())

        assert [event["n"] for event in events if event["type"] == "acme:trace_event"] == [1]

    async def test_of_the_other_profile_are_all_the_apps(self) -> None:
        app = ScriptedApp()
        app.script([*thoughts("hm"), search("in_progress")])
        async with Shell(app).socket() as ws:
            events = await ws.turn(create())

        assert {"web_search_call.in_progress", "reasoning_text.delta"} <= set(kinds(events))

    async def test_are_relayed_as_they_are_where_they_are_right(self) -> None:
        """Without this the profile would cost what makes the relay fast: nothing is encoded anew."""
        app = ScriptedApp()
        app.script([steps.text("hi there you", deltas=5)])
        async with Shell(app, **STRICT).socket() as ws:
            await ws.turn(create())
            sent = [json.loads(frame) for frame in ws.frames]

        assert sent[2:-1] == app.requests[0].events[2:-1]


class TestEngine:
    async def test_speaks_the_profile(self) -> None:
        """Without this the fast path of the engine, which nobody reads, would pass the wrong names."""
        service = ScriptedService()
        service.will([Delta(reasoning="hm "), Delta(reasoning="hm"), Delta(text="hi"), STOP])
        body = create(reasoning={"effort": "low"}, include=["reasoning.encrypted_content"], store=False)
        async with socket_to(ResponsesEngine(service), profile="open-responses") as ws:
            events = await ws.turn(body)

        assert_events(events)
        assert [event["delta"] for event in events if event["type"] == "response.reasoning.delta"] == ["hm ", "hm"]
        # The schema has a text there, or nothing.
        assert "encrypted_content" not in events[-1]["response"]["output"][0]

    async def test_leaves_out_the_pieces_of_what_open_responses_has_not(self) -> None:
        service = ScriptedService()
        call = ToolCallDelta(index=0, id="call_1", name="run", arguments='{"input":"ls -l"}')
        service.will([Delta(tool_calls=(call,)), STOP])
        async with socket_to(ResponsesEngine(service), profile="open-responses") as ws:
            events = await ws.turn(create(tools=[{"type": "custom", "name": "run"}]))

        assert not any("custom_tool_call_input" in event["type"] for event in events)
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert events[-1]["response"]["output"][0]["input"] == "ls -l"

    async def test_the_other_profile_has_both(self) -> None:
        service = ScriptedService()
        service.will([Delta(reasoning="hm"), Delta(text="hi"), STOP])
        async with socket_to(ResponsesEngine(service)) as ws:
            events = await ws.turn(create(include=["reasoning.encrypted_content"]))

        assert "reasoning_text.delta" in kinds(events)
        assert events[-1]["response"]["output"][0]["encrypted_content"] is None


class TestOptions:
    async def app(self, *_: Any) -> None:
        raise AssertionError

    def test_an_unknown_profile(self) -> None:
        with pytest.raises(ConfigurationError, match="profile must be one of"):
            ResponsesWebSocketMiddleware(self.app, profile="other")  # type: ignore[arg-type]

    def test_a_keepalive_is_an_event_that_strict_clients_refuse(self) -> None:
        with pytest.raises(ConfigurationError, match="keepalive_s"):
            ResponsesWebSocketMiddleware(self.app, profile="open-responses", keepalive_s=5)

    def test_the_engines_app_has_it_as_well(self) -> None:
        with pytest.raises(ConfigurationError, match="keepalive_s"):
            ResponsesApp(ResponsesEngine(ScriptedService()), authorize="open", profile="open-responses", keepalive_s=5)
