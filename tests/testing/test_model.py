"""The deterministic model."""

import json
from typing import Any

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.engine.schema import OPEN_RESPONSES
from ws_responses.testing import ARGUMENTS, ModelError, ResponseBuilder, ScriptedModel, arguments_for, counting_ids
from ws_responses.testing.builder import CALL_KINDS, CallKind, numbered, split

USER = {"type": "message", "role": "user", "content": "hi"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "42"}

SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


def function(name: str, **schema: Any) -> dict[str, Any]:
    return {"type": "function", "name": name, "parameters": schema}


def answer(body: dict[str, Any], **options: Any) -> list[dict[str, Any]]:
    return list(ScriptedModel(**options).events(body))


def output(body: dict[str, Any], **options: Any) -> dict[str, Any]:
    (item,) = answer(body, **options)[-1]["response"]["output"]
    assert isinstance(item, dict)
    return item


def test_text_answer_in_the_usual_order() -> None:
    events = answer({"model": "m", "input": "hi"}, text="abcdef", deltas=3)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert [event["delta"] for event in events if "delta" in event] == ["ab", "cd", "ef"]
    assert events[2]["item"] | {"status": "in_progress", "content": []} == events[2]["item"]
    final = events[-1]["response"]
    assert final["output"] == [events[-2]["item"]]
    assert final["usage"]["output_tokens"] == 3


def test_response_object_has_every_field_and_integer_times() -> None:
    for event in answer({"model": "m", "input": "hi", "tools": [{"type": "function", "name": "f"}], "store": False}):
        if "response" in event:
            response = event["response"]
            assert set(response) >= OPEN_RESPONSES
            assert isinstance(response["created_at"], int)
            assert isinstance(response["completed_at"], int) == (event["type"] == "response.completed")
            assert response["store"] is False
            assert set(response["tools"][0]) == {"type", "name", "description", "parameters", "strict"}


@pytest.mark.parametrize("kind", CALL_KINDS)
def test_the_sdk_accepts_every_event(kind: CallKind) -> None:
    builder = ResponseBuilder({"model": "m", "input": "hi"})
    steps = [
        builder.start(),
        builder.reasoning("thinking", deltas=2, encrypted_content="e"),
        builder.message("text", deltas=2, phase="commentary"),
        builder.tool_call("tool", kind=kind),
        builder.incomplete(),
    ]
    for event in numbered(event for step in steps for event in step):
        SDK_EVENT.validate_python(event)
        if "response" in event:
            Response.model_validate(event["response"])


def test_same_request_same_answer() -> None:
    body = {"model": "m", "input": [USER], "tools": [function("bash")]}
    first, second = (answer(body, id_factory=counting_ids(), clock=lambda: 1.5) for _ in range(2))
    assert first == second
    assert first[0]["response"]["id"] == "resp_1"
    assert first[0]["response"]["created_at"] == 1


def test_ids_cannot_be_guessed() -> None:
    ids = {answer({"input": "hi"})[0]["response"]["id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(len(each) == len("resp_") + 32 for each in ids)


def test_known_tools_come_first_with_their_arguments() -> None:
    item = output({"input": "hi", "tools": [function("other"), function("bash"), function("shell_command")]})
    assert (item["type"], item["name"]) == ("function_call", "shell_command")
    assert ARGUMENTS["shell_command"]["command"] in item["arguments"]


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"tools": [function("f"), function("g")]}, "f"),
        ({"tools": [function("f"), function("g")], "tool_choice": {"type": "function", "name": "g"}}, "g"),
        ({"tools": [function("f")], "tool_choice": "none"}, None),
        ({"tools": [{"type": "custom", "name": "f"}]}, None),
        ({"tools": None}, None),
    ],
)
def test_choice_of_tool(body: dict[str, Any], name: str | None) -> None:
    assert output({"input": "hi", **body}).get("name") == name


@pytest.mark.parametrize(
    ("items", "calls", "kind"),
    [
        ([USER], 1, "function_call"),
        ([USER, CALL, OUTPUT], 1, "message"),
        ([USER, CALL, OUTPUT], 2, "function_call"),
        ([USER, CALL, OUTPUT, USER], 1, "function_call"),
        ([USER], 0, "message"),
    ],
)
def test_calls_are_counted_since_the_last_user_message(items: list[Any], calls: int, kind: str) -> None:
    assert output({"input": items, "tools": [function("f")]}, tool_calls=calls)["type"] == kind


def test_default_text_tells_what_was_in_the_input() -> None:
    part = output({"input": [USER, CALL, OUTPUT]})["content"][0]
    assert part["text"] == "This answers 3 input items, 1 of them tool outputs."


def test_text_may_depend_on_the_request() -> None:
    assert output({"input": "hi"}, text=lambda body: body["input"] * 2)["content"][0]["text"] == "hihi"


@pytest.mark.parametrize(
    "items",
    [
        [USER, OUTPUT],
        [USER, OUTPUT, CALL],
        [USER, CALL, {**OUTPUT, "call_id": "c2"}],
        [USER, {"type": "mcp_approval_response", "approval_request_id": "c2", "approve": True}],
        [USER, CALL, {**OUTPUT, "call_id": ["c1"]}],
    ],
)
def test_unknown_call_is_refused_at_once(items: list[Any]) -> None:
    with pytest.raises(ModelError) as caught:
        ScriptedModel().events({"input": items})
    assert caught.value.status == 400
    error = caught.value.body["error"]
    assert error["message"].startswith("No tool call found for function call output with call_id ")
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", "input", None)


@pytest.mark.parametrize(
    "body",
    [
        {"input": [USER, CALL, OUTPUT]},
        {"input": [OUTPUT], "previous_response_id": "resp_1"},
        {"input": [{"type": "compaction", "encrypted_content": "x"}, OUTPUT]},
        {
            "input": [
                {"type": "mcp_approval_request", "id": "a"},
                {"type": "mcp_approval_response", "approval_request_id": "a"},
            ]
        },
        {"input": [USER, "not an item", {"type": "tool_search_output", "call_id": None}]},
        {
            "input": [{"type": "program_output", "call_id": "p"}, {"type": ["x"], "role": {}}],
            "tools": [{"type": []}, 7],
        },
    ],
)
def test_known_and_unknowable_calls_pass(body: dict[str, Any]) -> None:
    assert answer(body)[-1]["type"] == "response.completed"
    if "previous_response_id" in body:
        with pytest.raises(ModelError):
            ScriptedModel().events(body, whole_input=True)


def test_arguments_from_a_schema() -> None:
    schema = {
        "type": "object",
        "properties": {
            "s": {"type": "string", "minLength": 3},
            "n": {"type": "number"},
            "i": {"type": "integer", "minimum": 7},
            "b": {"type": "boolean"},
            "a": {"type": "array", "items": {"type": "string"}, "minItems": 2},
            "e": {"enum": ["first", "second"]},
            "c": {"const": 5},
            "u": {"anyOf": [{"type": "null"}, {"type": "string"}]},
            "t": {"type": ["null", "integer"]},
            "r": {"$ref": "#/$defs/r"},
            "m": {
                "allOf": [{"properties": {"x": {}}, "required": ["x"]}, {"properties": {"y": {}}, "required": ["y"]}]
            },
            "loop": {"$ref": "#/properties/loop"},
            "optional": {"type": "string"},
        },
        "required": ["s", "n", "i", "b", "a", "e", "c", "u", "t", "r", "m", "loop", "undeclared"],
        "$defs": {"r": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}},
    }
    assert arguments_for(schema) == {
        "s": "xxx",
        "n": 1,
        "i": 7,
        "b": True,
        "a": ["x", "x"],
        "e": "first",
        "c": 5,
        "u": None,
        "t": 1,
        "r": {"k": "x"},
        "m": {"x": "x", "y": "x"},
        "loop": None,
        "undeclared": None,
    }
    assert arguments_for({"type": "string"}) == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": 1, "required": [1, "a"]},
        {"required": {}, "anyOf": 1, "oneOf": {"a": 1}, "allOf": "x"},
        {"properties": {"a": {"type": "array", "minItems": 2**53}}, "required": ["a"]},
        {"properties": {"a": {"type": "number", "minimum": "x"}}, "required": ["a"]},
        {"$ref": "nowhere"},
    ],
)
def test_broken_schemas_do_no_harm(schema: dict[str, Any]) -> None:
    assert len(json.dumps(arguments_for(schema))) < 10_000


def test_reasoning_goes_first() -> None:
    final = answer({"input": "hi"}, reasoning="hm")[-1]["response"]
    assert [item["type"] for item in final["output"]] == ["reasoning", "message"]
    assert final["usage"]["output_tokens_details"]["reasoning_tokens"] == 1


async def test_stream_keeps_to_the_rate() -> None:
    import anyio

    model = ScriptedModel(text="abcdef", deltas=6)
    begin = anyio.current_time()
    events = [event async for event in model.stream({"input": "hi"}, rate=200)]
    assert anyio.current_time() - begin >= 5 / 200
    assert len(events) == len(list(model.events({"input": "hi"})))
    assert len([event async for event in model.stream({"input": "hi"})]) == len(events)


def test_compaction_keeps_user_messages() -> None:
    done = ScriptedModel(id_factory=counting_ids()).compact({"model": "m", "input": [USER, CALL, OUTPUT]})
    assert done["object"] == "response.compaction"
    assert [item["type"] for item in done["output"]] == ["message", "compaction"]
    with pytest.raises(ModelError) as caught:
        ScriptedModel().compact({"input": "hi"})
    assert caught.value.body["error"]["param"] == "model"


@pytest.mark.parametrize(("text", "pieces", "parts"), [("abc", 2, ["a", "bc"]), ("ab", 9, ["a", "b"]), ("", 3, [])])
def test_split(text: str, pieces: int, parts: list[str]) -> None:
    assert split(text, pieces) == parts
