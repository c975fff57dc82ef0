"""Tools are written as the library writes them: every blank and comma of the TypeScript, whatever the schema."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.rendering import oracle
from tests.rendering.conversations import schemas, tool_sets
from ws_responses.rendering.harmony_prompt import developer_text
from ws_responses.rendering.harmony_tools import tools_section
from ws_responses.rendering.renderer import RenderSettings, Tool, ToolSet


def ours(*tools: Tool) -> str:
    return tools_section(ToolSet(tools=tools, raw=b"[1]"))


def theirs(tools: ToolSet) -> str:
    """Return the library's developer message for these tools, without what surrounds its text."""
    (message,) = oracle.developer(RenderSettings(tools=tools))
    text: str = oracle.encoding().decode(oracle.encoding().render(message))
    return text.removeprefix("<|start|>developer<|message|>").removesuffix("<|end|>")


@pytest.mark.parametrize("examples", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_any_tools_are_written_as_the_library_writes_them(examples: int) -> None:
    """A model was trained on this text; a parameter that is told in another way is a parameter told badly."""

    @settings(max_examples=examples)
    @given(tools=tool_sets())
    def holds(tools: ToolSet) -> None:
        assert tools_section(tools) == theirs(tools)

    holds()


@pytest.mark.parametrize("examples", [100, pytest.param(1500, marks=pytest.mark.slow)])
def test_any_schema_is_written_as_the_library_writes_it(examples: int) -> None:
    @settings(max_examples=examples)
    @given(schema=schemas())
    def holds(schema: dict[str, Any]) -> None:
        tool = Tool(kind="function", name="f", parameters=schema)
        assert ours(tool) == theirs(ToolSet(tools=(tool,), raw=b"[1]"))

    holds()


KITCHEN_SINK: dict[str, Any] = {
    "type": "object",
    "description": "All there is",
    "properties": {
        "plain": {"type": "string", "title": "PLAIN", "description": "A string", "examples": ["a", 1, "b"]},
        "maybe": {"type": "string", "nullable": True, "default": "x"},
        "null_already": {"type": ["string", "null"], "nullable": True, "default": None},
        "choice": {"type": "string", "enum": ["a", "b"], "default": "a", "description": "A\nB"},
        "number": {"type": "integer", "default": 1e-7},
        "union": {
            "description": "one of",
            "default": 20,
            "oneOf": [
                {"type": "string", "default": "d", "description": "one of"},
                {"type": "number", "description": "N"},
            ],
        },
        "described": {"description": "D", "oneOf": [{"type": "string", "description": "S"}, {"type": "null"}]},
        "no_variants": {"oneOf": None, "default": 1, "description": "never told"},
        "list": {"type": "array", "items": {"type": "object", "properties": {"in": {"oneOf": [{"enum": ["q"]}]}}}},
        "anything": {},
        "nothing": None,
        "any_of": {"anyOf": [{"type": "string"}]},
        "numbers": {"type": "array"},
        "odd": {"type": 7, "required": ["x"]},
    },
    "required": ["plain", 3, "nothing"],
}


@pytest.mark.parametrize(
    "schema",
    [
        KITCHEN_SINK,
        {
            "oneOf": [
                {"type": "string", "default": "d"},
                {"enum": ["a"], "default": "a", "nullable": True},
                KITCHEN_SINK,
            ]
        },
        {"oneOf": []},
        {"type": []},
        {"type": ["integer", 1]},
        {"type": "string", "enum": [1, 2]},
        {"type": "object", "properties": {"x": {"default": [{'a\u0000é"': [1.0, None, True]}]}}},
        {},
    ],
)
def test_each_oddity_is_kept(schema: dict[str, Any]) -> None:
    """Written down, so that a change of the library shows which."""
    tool = Tool(kind="function", name="f", description="Line one.\r\nLine two.\n", parameters=schema)

    assert ours(tool) == theirs(ToolSet(tools=(tool,), raw=b"[1]"))


@given(text=st.text(alphabet="a\r\n \u2028\x0b\x85", max_size=6))
def test_lines_of_a_description_are_those_of_the_library(text: str) -> None:
    """Python knows more line ends than Rust does."""
    tool = Tool(kind="function", name="f", description=text)

    assert ours(tool) == theirs(ToolSet(tools=(tool,), raw=b"[1]"))


@pytest.mark.parametrize("grammar", [None, {"type": "text"}, "odd", {"definition": 1}])
def test_a_custom_tool_takes_free_text(grammar: Any) -> None:
    text = ours(Tool(kind="custom", name="c", grammar=grammar))

    assert "// The argument is free text, not JSON.\ntype c = (_: string) => any;\n" in text
    assert "grammar" not in text


def test_a_response_format_stands_last() -> None:
    tools = ToolSet(tools=(Tool(kind="function", name="f"),), raw=b"[1]")
    text = developer_text(RenderSettings(instructions="I", tools=tools, response_format=b'{"type":"json_object"}'))

    heads = [line for line in text.splitlines() if line.startswith("# ")]
    assert heads == ["# Instructions", "# Tools", "# Response Formats"]
    assert text.endswith('## json_object\n\n// Any JSON object.\n{"type":"object"}')
