"""Items are read by type; what is not as the API reference has it is refused by its path, and content is never in the text."""

from typing import Any

import msgspec
import pytest

from ws_responses.rendering import items
from ws_responses.rendering.items import RENDERED_TYPES, read_item, read_items, text_of
from ws_responses.rendering.renderer import CannotRender


def encoded(item: object) -> bytes:
    return msgspec.json.encode(item)


def test_a_message_needs_no_type() -> None:
    """Without this the short form of most clients' messages would be refused."""
    assert read_item(b'{"role":"user","content":"hi"}', 0) == items.Message(role="user", content="hi")
    assert read_item(b'{"role":"user","content":"hi","type":null}', 0) == items.Message(role="user", content="hi")


def test_each_known_type_is_read() -> None:
    read: list[dict[str, Any]] = [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "x"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "a"}]},
        {"type": "reasoning", "id": "r", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "additional_tools", "role": "developer", "tools": []},
    ]

    kinds = [type(item) for _, item in read_items(map(encoded, read))]

    assert kinds == [
        items.Message,
        items.FunctionCall,
        items.CustomCall,
        items.CallOutput,
        items.CustomCallOutput,
        items.Reasoning,
        items.AdditionalTools,
    ]
    assert {item["type"] for item in read} == RENDERED_TYPES


def test_a_namespace_is_part_of_a_tools_name_for_the_model() -> None:
    call = read_item(
        encoded({"type": "function_call", "call_id": "c", "name": "f", "arguments": "", "namespace": "n"}), 0
    )

    assert isinstance(call, items.FunctionCall)
    assert call.wire_name == "n__f"


def test_reasoning_is_the_reasoning_or_else_its_summary() -> None:
    summary = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "short"}]}
    content = {**summary, "content": [{"type": "reasoning_text", "text": "a"}, {"type": "reasoning_text", "text": "b"}]}
    hidden: dict[str, Any] = {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "gAAA"}

    texts = [getattr(item, "text", None) for _, item in read_items(map(encoded, (summary, content, hidden)))]

    assert texts == ["short", "a\nb", ""]


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({"type": "web_search_call", "id": "ws"}, "type"),
        ({"type": "item_reference", "id": "secret"}, "type"),
        ({"type": "compaction", "encrypted_content": "secret"}, "type"),
        ({"type": 7, "role": "user"}, "type"),
        ({"role": "secret", "content": ""}, "role"),
        ({"role": "user", "content": 7}, "content"),
        ({"role": "user", "content": [{"type": "secret"}]}, "content[0].type"),
        ({"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text"}]}, "content[1].text"),
        ({"type": "function_call", "call_id": "secret", "name": "f"}, "arguments"),
        ({"type": "function_call_output", "output": "secret"}, "call_id"),
        (["secret"], None),
    ],
)
def test_what_is_wrong_is_named_by_its_path(item: object, param: str | None) -> None:
    """Without this a client would have to guess what was refused; or the text would tell the log what it holds."""
    with pytest.raises(CannotRender) as caught:
        read_item(encoded(item), 3)

    assert (caught.value.index, caught.value.param) == (3, param)
    assert "secret" not in str(caught.value)


def test_an_item_too_deep_to_read_is_refused() -> None:
    with pytest.raises(CannotRender):
        read_item(b'{"role":"user","content":' + b"[" * 100_000, 0)


def test_text_of_content() -> None:
    parts = [items.Text("a"), items.OutputText("b"), items.Refusal("no")]

    assert text_of(parts, 0) == "abno"
    assert text_of("a", 0) == "a"
    assert not text_of(None, 0)


@pytest.mark.parametrize("part", [items.Image(image_url="https://a"), items.File(file_id="f")])
def test_what_is_no_text_is_refused_by_its_path(part: items.Image | items.File) -> None:
    with pytest.raises(CannotRender) as caught:
        text_of([items.Text("a"), part], 2, "output")

    assert (caught.value.index, caught.value.param) == (2, "output[1]")
