"""Items as chat messages: each form by example, the same for any cut into turns, and valid for the SDK's own types."""

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolChoiceOptionParam, ChatCompletionToolParam
from openai.types.shared_params import ResponseFormatJSONObject, ResponseFormatJSONSchema
from pydantic import TypeAdapter, ValidationError

from tests.rendering.conversations import conversations, cuts, encoded
from ws_responses.rendering.chat import ChatRenderer, chat_response_format, chat_tool_choice, chat_tools
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import AUTO, CannotRender, RenderSettings, Tool, ToolChoice, ToolSet

Item = dict[str, Any]
NOTHING = RenderSettings()
RENDERERS = {
    "plain": ChatRenderer(),
    "reasoning": ChatRenderer(reasoning_field="reasoning", developer_role="developer"),
}


def rendered(*turns: Sequence[Item], renderer: ChatRenderer = RENDERERS["plain"], instructions: str = "") -> Rendered:
    state = renderer.begin(RenderSettings(instructions=instructions or None), None)
    for items in turns:
        state = renderer.extend(state, encoded(items))
    return state


def messages(*turns: Sequence[Item], renderer: ChatRenderer = RENDERERS["plain"], instructions: str = "") -> list[Item]:
    found: list[Item] = json.loads(rendered(*turns, renderer=renderer, instructions=instructions).json_array())
    return found


def user(content: Any) -> Item:
    return {"role": "user", "content": content}


def said(text: str) -> Item:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def thought(text: str) -> Item:
    return {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": text}]}


def call(number: int, name: str = "find", **members: str) -> Item:
    return {"type": "function_call", "call_id": f"c{number}", "name": name, "arguments": "{}", **members}


def output(number: int, content: Any = "done") -> Item:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": content}


def tool_call(number: int, name: str = "find", arguments: str = "{}") -> Item:
    return {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


# -- forms ---------------------------------------------------------------------------------------------------------------


def test_instructions_come_first() -> None:
    assert messages([user("hi")], instructions="Be brief.") == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert messages([user("hi")], instructions="Be brief.", renderer=RENDERERS["reasoning"])[0]["role"] == "developer"


def test_a_developer_is_the_system_unless_the_server_knows_developers() -> None:
    item = {"role": "developer", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]}

    assert messages([item]) == [{"role": "system", "content": "ab"}]
    assert messages([item], renderer=RENDERERS["reasoning"]) == [{"role": "developer", "content": "ab"}]


@pytest.mark.parametrize(
    ("content", "chat_content"),
    [
        ("hi", "hi"),
        ([], ""),
        ([{"type": "input_text", "text": "hi"}], "hi"),
        (
            [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        ),
        (
            [{"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "low"}],
            [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}}],
        ),
        (
            [{"type": "input_text", "text": "what?"}, {"type": "input_image", "image_url": "https://a.example/b.png"}],
            [
                {"type": "text", "text": "what?"},
                {"type": "image_url", "image_url": {"url": "https://a.example/b.png"}},
            ],
        ),
        (
            [{"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,AA=="}],
            [{"type": "file", "file": {"file_data": "data:text/plain;base64,AA==", "filename": "a.txt"}}],
        ),
        ([{"type": "input_file", "file_id": "f_1"}], [{"type": "file", "file": {"file_id": "f_1"}}]),
    ],
)
def test_content_of_the_user(content: Any, chat_content: Any) -> None:
    assert messages([user(content)]) == [{"role": "user", "content": chat_content}]


def test_an_answer_with_thoughts_text_and_calls_is_one_message() -> None:
    """Without this a server would see several assistants in a row, and calls apart from their text."""
    items = [thought("hm"), said("I look."), call(1), call(2, "open"), output(2), output(1, "nothing")]

    assert messages(items, renderer=RENDERERS["reasoning"]) == [
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning": "hm",
            "tool_calls": [tool_call(1), tool_call(2, "open")],
        },
        {"role": "tool", "tool_call_id": "c2", "content": "done"},
        {"role": "tool", "tool_call_id": "c1", "content": "nothing"},
    ]


def test_reasoning_is_left_out_unless_the_server_takes_it() -> None:
    items = [thought("hm"), call(1)]

    assert messages(items) == [{"role": "assistant", "content": None, "tool_calls": [tool_call(1)]}]


def test_reasoning_that_is_encrypted_has_no_form() -> None:
    hidden = {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}

    assert messages([hidden, said("a")], renderer=RENDERERS["reasoning"]) == [{"role": "assistant", "content": "a"}]


def test_what_comes_out_of_order_begins_another_message() -> None:
    """Without this text after a call would be read as text before it."""
    items = [call(1), said("a"), said("b"), thought("hm")]

    assert messages(items, renderer=RENDERERS["reasoning"]) == [
        {"role": "assistant", "content": None, "tool_calls": [tool_call(1)]},
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "assistant", "content": "", "reasoning": "hm"},
    ]


def test_custom_tools_are_called_with_one_argument() -> None:
    items: list[Item] = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": '*** "a"\n'},
        {
            "type": "custom_tool_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
    ]

    sent = messages(items)

    assert json.loads(sent[0]["tool_calls"][0]["function"]["arguments"]) == {"input": '*** "a"\n'}
    assert sent[1]["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]


def test_a_namespace_is_part_of_the_name() -> None:
    assert messages([call(1, namespace="files")])[0]["tool_calls"] == [tool_call(1, "files__find")]


def test_a_refusal_is_told_as_text() -> None:
    refusal = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}], "type": "message"}

    assert messages([refusal]) == [{"role": "assistant", "content": "No."}]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call", "id": "ws"}, "type"),
        ({"type": "item_reference", "id": "msg"}, "type"),
        ({"type": "compaction", "encrypted_content": "gAAA"}, "type"),
        ({"type": "computer_call_output", "call_id": "c", "output": {}}, "type"),
        (user([{"type": "input_image", "file_id": "f_1"}]), "content[0].image_url"),
        (
            user([{"type": "input_text", "text": ""}, {"type": "input_file", "file_url": "https://a"}]),
            "content[1].file_data",
        ),
        ({"role": "system", "content": [{"type": "input_image", "image_url": "https://a"}]}, "content[0]"),
        (
            output(1, [{"type": "input_text", "text": ""}, {"type": "input_image", "image_url": "https://a"}]),
            "output[1]",
        ),
    ],
)
def test_what_has_no_form_is_refused_by_its_path(item: Item, param: str) -> None:
    """Without this the model would answer without what the client believes that it sees."""
    with pytest.raises(CannotRender) as caught:
        rendered([user("hi"), item])

    assert (caught.value.index, caught.value.param) == (1, param)


# -- turns ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("renderer", RENDERERS.values(), ids=RENDERERS)
@settings(max_examples=40)
@given(data=st.data())
def test_any_cut_into_turns_gives_the_same_messages(renderer: ChatRenderer, data: st.DataObject) -> None:
    """Without this what a model sees would depend on how the client cut its conversation."""
    items = data.draw(conversations())
    turns = data.draw(cuts(items))

    assert rendered(*turns, renderer=renderer).json_array() == rendered(items, renderer=renderer).json_array()


def test_a_message_that_goes_on_is_the_only_one_written_anew() -> None:
    """Without this a turn would cost more than it adds, or change what earlier turns hold."""
    before = rendered([user("hi"), said("a")])
    kept = before.json_array()

    after = RENDERERS["plain"].extend(before, encoded([call(1), output(1)]))

    assert json.loads(after.json_array())[:2] == [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "a", "tool_calls": [tool_call(1)]},
    ]
    assert (before.end, after.common(before), after.end) == (2, 1, 3)
    assert before.json_array() == kept


def test_a_closed_message_is_shared() -> None:
    before = rendered([user("hi")])

    after = RENDERERS["plain"].extend(before, encoded([said("a")]))

    assert after.before is before
    assert RENDERERS["plain"].extend(before, []) is before


def test_an_answer_begins_behind_the_messages() -> None:
    state = rendered([user("hi")])

    answer = RENDERERS["plain"].answer(state, AUTO, NOTHING)

    assert answer.prompt is state
    assert not answer.prefill
    assert [piece.text for piece in answer.parser.feed((), "Hello")] == ["Hello"]
    assert [*answer.parser.feed((), ""), *answer.parser.end()] == []
    with pytest.raises(TypeError):
        RENDERERS["plain"].answered(state, [1])


def test_other_options_have_another_name() -> None:
    """Without this a state could be continued in another form than it was begun in."""
    names = {
        ChatRenderer().name,
        *(renderer.name for renderer in RENDERERS.values()),
        ChatRenderer(reasoning_field="x").name,
    }

    assert len(names) == 3


# -- the SDK's types -----------------------------------------------------------------------------------------------------


def validate(kind: Any, value: Any) -> None:
    """Check a value against a type of the SDK, what is lazy about it included."""
    _exhaust(adapter(kind).validate_python(value))


@functools.cache
def adapter(kind: Any) -> TypeAdapter[Any]:
    """Return the validator of a type; it must outlive what it reads lazily."""
    return TypeAdapter(kind)


def _exhaust(value: Any) -> None:
    if isinstance(value, Mapping):
        for member in value.values():
            _exhaust(member)
    elif not isinstance(value, str | bytes) and hasattr(value, "__iter__"):
        for entry in value:
            _exhaust(entry)


def test_the_check_against_the_sdk_finds_faults() -> None:
    """Without this the tests below could pass for anything."""
    wrong = {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "type": "function", "function": {}}]}

    with pytest.raises(ValidationError):
        validate(ChatCompletionMessageParam, wrong)


@settings(max_examples=40)
@given(items=conversations(), instructions=st.sampled_from(["", "Be brief."]))
def test_messages_are_those_of_the_sdk(items: list[Item], instructions: str) -> None:
    """Without this a server that checks its input would refuse them."""
    for message in messages(items, instructions=instructions):
        validate(ChatCompletionMessageParam, message)
        assert message.keys() <= {"role", "content", "tool_calls", "tool_call_id"}
        assert message["content"] is not None or message["tool_calls"]


# -- tools, choice, format -----------------------------------------------------------------------------------------------

FIND = Tool(kind="function", name="find", description="Finds.", parameters={"type": "object"}, strict=True)
PATCH = Tool(
    kind="custom",
    name="patch",
    namespace="files",
    description="Patches.",
    grammar={"type": "grammar", "syntax": "lark", "definition": "start: WORD"},
)
BARE = Tool(kind="function", name="bare")
TOOLS = ToolSet(tools=(FIND, PATCH, BARE), raw=b"")


def test_tools() -> None:
    find, patch, bare = tools = json.loads(chat_tools(TOOLS))

    for tool in tools:
        validate(ChatCompletionToolParam, tool)
    assert find == {
        "type": "function",
        "function": {"name": "find", "description": "Finds.", "parameters": {"type": "object"}, "strict": True},
    }
    assert patch["function"]["name"] == "files__patch"
    assert patch["function"]["description"].endswith("It must follow this lark grammar:\nstart: WORD")
    assert patch["function"]["parameters"]["required"] == ["input"]
    assert bare["function"] == {"name": "bare", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("choice", "sent", "offered"),
    [
        (AUTO, None, 3),
        (ToolChoice(mode="none"), "none", 3),
        (ToolChoice(mode="required"), "required", 3),
        (ToolChoice(mode="required", names=("find",)), {"type": "function", "function": {"name": "find"}}, 1),
        (ToolChoice(mode="required", names=("find", "bare")), "required", 2),
        (ToolChoice(mode="auto", names=("find",)), None, 1),
    ],
)
def test_a_choice_among_tools_is_what_is_offered(choice: ToolChoice, sent: Any, offered: int) -> None:
    """Without this a server that knows no `allowed_tools` would let the model call any."""
    encoded_choice = chat_tool_choice(choice)
    decoded = None if encoded_choice is None else json.loads(encoded_choice)

    assert decoded == sent
    assert len(json.loads(chat_tools(TOOLS, choice))) == offered
    if decoded is not None:
        validate(ChatCompletionToolChoiceOptionParam, decoded)


def test_formats() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True, "description": "d"}

    sent = json.loads(chat_response_format(msgspec.json.encode(schema)))

    assert sent == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True, "description": "d"},
    }
    validate(ResponseFormatJSONSchema, sent)
    for kind in ("text", "json_object"):
        plain = json.loads(chat_response_format(msgspec.json.encode({"type": kind})))
        assert plain == {"type": kind}
    validate(ResponseFormatJSONObject, {"type": "json_object"})


@pytest.mark.parametrize(
    ("text_format", "param"),
    [
        (b'{"type":"grammar"}', "text.format"),
        (b"[]", "text.format"),
        (b'{"type":"json_schema","name":"n"}', "text.format.schema"),
        (b'{"type":"json_schema","name":"n","schema":null}', "text.format.schema"),
    ],
)
def test_a_format_that_is_wrong_is_refused_by_its_path(text_format: bytes, param: str) -> None:
    with pytest.raises(CannotRender) as caught:
        chat_response_format(text_format)

    assert caught.value.param == param


def test_parameters_nested_too_deeply_are_refused() -> None:
    """Without this a tool could break the turn by a recursion error."""
    deep: Any = {}
    for _ in range(500):
        deep = {"items": deep}

    with pytest.raises(CannotRender):
        chat_tools(ToolSet(tools=(Tool(kind="function", name="f", parameters=deep),), raw=b""))
