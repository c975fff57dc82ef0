"""Tools as models know them: functions with a JSON Schema; and the schema of a call, for sampling that is held to one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from ws_responses.rendering.json_text import INPUT
from ws_responses.rendering.renderer import CannotRender, Tool, ToolChoice, ToolSet

_NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
_INPUT_PARAMETERS: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


MOST_LEVELS: Final = 128
"""Of lists and objects within each other in a tool's parameters: what walks through them does so by recursion."""


def function_of(tool: Tool) -> dict[str, Any]:
    """Return a tool as a function: its name, description and parameters.

    A custom tool becomes a function with the one argument ``input``; that a grammar rules its text can only be told.

    Raises:
        CannotRender: The parameters are nested too deeply.
    """
    function: dict[str, Any] = {"name": tool.wire_name}
    description = _description(tool) if tool.kind == "custom" else tool.description
    if description:
        function["description"] = description
    function["parameters"] = parameters_of(tool)
    return function


def parameters_of(tool: Tool) -> Mapping[str, Any]:
    """Return the JSON Schema of a tool's arguments.

    Raises:
        CannotRender: It is nested too deeply.
    """
    if tool.kind == "custom":
        return _INPUT_PARAMETERS
    if tool.parameters is None:
        return _NO_PARAMETERS
    if not within_levels(tool.parameters):
        raise CannotRender("The parameters of a tool are nested too deeply.", param="tools")
    parameters: Mapping[str, Any] = tool.parameters
    return parameters


def within_levels(value: Any) -> bool:
    """Whether a decoded JSON value has at most :data:`MOST_LEVELS` levels."""
    level = [value]
    for _ in range(MOST_LEVELS):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return True
    return False


def _inside(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value).values()
    return _entries(value)


def _description(tool: Tool) -> str:
    texts = [tool.description or "", f"'{INPUT}' is free text, not JSON."]
    match tool.grammar:
        case {"type": "grammar", "syntax": str(syntax), "definition": str(definition)}:
            texts.append(f"It must follow this {syntax} grammar:\n{definition}")
        case _:
            pass
    return "\n\n".join(text for text in texts if text)


def callable_tools(choice: ToolChoice, tools: ToolSet | None) -> Sequence[Tool]:
    """Return the tools that may be called, for a format in which nothing but a schema holds a model to a choice.

    Raises:
        CannotRender: Some tools may be called and some not, and no call is demanded; or a call is demanded, and there is no
            such tool.
    """
    offered = () if tools is None or choice.mode == "none" else tools.tools
    allowed = [tool for tool in offered if choice.names is None or tool.wire_name in choice.names]
    if choice.mode == "required" and not allowed:
        raise CannotRender("The tool choice demands a call, but there is no such tool.", param="tool_choice")
    if choice.mode == "auto" and len(allowed) != len(offered):
        raise CannotRender("The model cannot be held to a part of the tools.", param="tool_choice")
    return allowed


# -- the schema of a call ------------------------------------------------------------------------------------------------


def call_schema(tools: Sequence[Tool]) -> bytes:
    """Return the JSON Schema (encoded) of a call of one of these tools: ``{"name": ..., "arguments": ...}``, in this order.

    Raises:
        CannotRender: Parameters are nested too deeply.
    """
    definitions: dict[str, Any] = {}
    calls = [_call(tool, f"tool_{number}", definitions) for number, tool in enumerate(tools)]
    schema: dict[str, Any] = calls[0] if len(calls) == 1 else {"anyOf": calls}
    if definitions:
        schema = {**schema, "$defs": definitions}
    return msgspec.json.encode(schema)


def _call(tool: Tool, place: str, definitions: dict[str, Any]) -> dict[str, Any]:
    parameters = parameters_of(tool)
    if _refers(parameters):
        # References count from the root of the whole, which these parameters are no more.
        definitions[place] = _moved(parameters, f"#/$defs/{place}")
        parameters = {"$ref": f"#/$defs/{place}"}
    return {
        "type": "object",
        "properties": {"name": {"const": tool.wire_name}, "arguments": parameters},
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


def _refers(schema: Any) -> bool:
    if isinstance(schema, Mapping):
        members = cast("Mapping[str, Any]", schema)
        return isinstance(members.get("$ref"), str) or any(map(_refers, members.values()))
    return any(map(_refers, _entries(schema)))


def _entries(schema: Any) -> Sequence[Any]:
    return cast("Sequence[Any]", schema) if isinstance(schema, list) else ()


def _moved(schema: Any, root: str) -> Any:
    """Return a schema whose references into itself begin at ``root``."""
    if isinstance(schema, list):
        return [_moved(entry, root) for entry in _entries(schema)]
    if not isinstance(schema, Mapping):
        return schema
    members = cast("Mapping[str, Any]", schema)
    moved = {name: _moved(value, root) for name, value in members.items()}
    reference = members.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = root + reference[1:]
    return moved
