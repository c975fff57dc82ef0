"""Tools are encoded once for each list of them, and small lists only are remembered."""

import json

from ws_responses.engine.prompts import ChatTools
from ws_responses.engine.tools import parse_tools
from ws_responses.rendering.renderer import AUTO, ToolChoice, ToolSet


def tools_of(description: str) -> ToolSet:
    tools = [{"type": "function", "name": name, "description": description} for name in ("a", "b")]
    return parse_tools(json.dumps(tools).encode(), "refuse").tools


def test_a_list_is_encoded_once_for_each_choice() -> None:
    known = ChatTools()
    tools = tools_of("x")
    first = known.encoded(tools, AUTO)
    assert first is known.encoded(tools, AUTO)
    assert known.encoded(tools, ToolChoice(names=("a",))) != first
    assert known.encoded(tools_of("y"), AUTO) != first
    assert known.encoded(None, AUTO) is None


def test_a_long_list_is_not_remembered() -> None:
    """A client could fill the memory with them, and nobody would be charged."""
    known = ChatTools()
    tools = tools_of("x" * 40_000)
    assert known.encoded(tools, AUTO) is not known.encoded(tools, AUTO)
