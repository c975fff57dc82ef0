"""``tool_choice``: which of the tools offered may or must be called."""

from typing import Literal

import msgspec
from msgspec import Raw, Struct

from ws_responses.engine.request import decode_member
from ws_responses.errors import InvalidRequest, excerpt
from ws_responses.rendering.renderer import AUTO, ToolChoice, ToolSet


class _Choice(Struct, frozen=True, kw_only=True):
    type: str
    name: str | None = None
    namespace: str | None = None
    mode: Literal["auto", "required"] = "auto"
    tools: list[Raw] = []


_decode_mode = msgspec.json.Decoder(Literal["none", "auto", "required"] | _Choice | None).decode
_decode_choice = msgspec.json.Decoder(_Choice).decode


def parse_choice(raw: bytes | None, tools: ToolSet | None) -> ToolChoice:
    """Return which tools may or must be called.

    Args:
        raw: ``tool_choice``, encoded; None if absent.
        tools: What is offered.

    Raises:
        InvalidRequest: It is wrong, names a tool that is not offered, or demands a call where there is no tool.
    """
    if raw is None:
        return AUTO
    choice = decode_member("tool_choice", _decode_mode, raw)
    if choice is None or choice == "auto":
        return AUTO
    if isinstance(choice, str):
        if choice == "required" and tools is None:
            raise InvalidRequest("The field 'tool_choice' demands a call, but there are no tools.", param="tool_choice")
        return ToolChoice(mode="none" if choice == "none" else "required")
    if choice.type != "allowed_tools":
        return ToolChoice(mode="required", names=(_name_of(choice, tools, "tool_choice"),))
    if not choice.tools:
        raise InvalidRequest("The field 'tool_choice.tools' must not be empty.", param="tool_choice.tools")
    allowed = [
        _name_of(decode_member(path, _decode_choice, entry), tools, path)
        for path, entry in ((f"tool_choice.tools[{index}]", entry) for index, entry in enumerate(choice.tools))
    ]
    return ToolChoice(mode="required" if choice.mode == "required" else "auto", names=tuple(dict.fromkeys(allowed)))


def _name_of(choice: _Choice, tools: ToolSet | None, path: str) -> str:
    """Return the wire name of the tool that is meant."""
    if choice.type not in ("function", "custom"):
        raise InvalidRequest(
            f"Tools of the type '{excerpt(choice.type, 64)}' cannot be chosen here.", param=f"{path}.type"
        )
    if not choice.name:
        raise InvalidRequest(f"The field '{path}.name' is missing.", param=f"{path}.name")
    offered = [tool for tool in ((tools and tools.tools) or ()) if tool.kind == choice.type]
    for tool in offered:
        if tool.name == choice.name and tool.namespace == choice.namespace:
            return tool.wire_name
    inside = [tool for tool in offered if choice.name in (tool.wire_name, tool.name)]
    if choice.namespace is None and len(inside) == 1:
        return inside[0].wire_name
    raise InvalidRequest(f"The tool '{excerpt(choice.name)}' is not among 'tools'.", param=f"{path}.name")
