"""The tools of a request: which of them a model can be offered.

Offered is what the client runs and a model calls by name: functions and custom tools, in namespaces or not. What the service
itself would have to run (hosted tools) is refused by name, or left out if the operator says so.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct

from ws_responses.engine.request import decode_member
from ws_responses.errors import InvalidRequest, excerpt
from ws_responses.protocol.calls import output_head
from ws_responses.protocol.withheld import withheld
from ws_responses.rendering.renderer import Tool, ToolSet
from ws_responses.state.interning import Interned

HostedTools = Literal["refuse", "drop"]
"""What becomes of tools that the service would have to run: a 400, or they are left out."""

HOSTED: Final = frozenset(
    {
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "file_search",
        "code_interpreter",
        "image_generation",
        "mcp",
        "tool_search",
        "programmatic_tool_calling",
    }
)
"""Run by the service (API reference, tools). Those that the client runs, but that no model is offered here, always are a 400."""

MAX_TOOLS: Final = 1024
"""Tools of one request, those in namespaces included: eight times what the API takes for one list of functions."""

ADDITIONAL_TOOLS: Final = "additional_tools"
"""Input item that brings tools (Codex's short form of a request)."""

_MEMORY_FACTOR: Final = 12
"""Bytes that parsed tools take for each byte of their JSON; measured on Codex's tools."""


class _Function(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class _Custom(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    name: str
    description: str | None = None
    format: dict[str, Any] | None = None


class _Namespace(Struct, frozen=True, kw_only=True, tag_field="type", tag="namespace"):
    name: str
    tools: list[Raw]
    description: str | None = None


class _Head(Struct):
    type: str = ""


_Named = _Function | _Custom
_decode_list = msgspec.json.Decoder(list[Raw] | None).decode
_decode_head = msgspec.json.Decoder(_Head).decode
_decode_tool = msgspec.json.Decoder(_Named | _Namespace).decode
_decode_named = msgspec.json.Decoder(_Named).decode
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


class Offer(Struct, frozen=True, kw_only=True):
    """The ``tools`` of a request, parsed once per distinct bytes.

    Attributes:
        tools: In the client's order, namespaces flattened.
        echo: JSON array of them as response objects repeat it.
    """

    tools: ToolSet
    echo: bytes

    __repr__ = withheld


NO_OFFER: Final = Offer(tools=ToolSet(tools=(), raw=b""), echo=b"[]")


class Offered(ToolSet, frozen=True, kw_only=True):
    """Tools of a request together with those that input items brought.

    Attributes:
        base: What the request itself offers.
        added: ``tools`` of the items, encoded, in order.
    """

    base: ToolSet
    added: tuple[bytes, ...]


def parse_tools(raw: bytes, hosted: HostedTools, path: str = "tools") -> Offer:
    """Return what a list of tools offers.

    Args:
        raw: The list, encoded; or null.
        hosted: What becomes of tools that the service would have to run.
        path: Where the list is in the request.

    Raises:
        InvalidRequest: A tool is wrong, or cannot be offered; ``param`` is its path.
    """
    tools: list[Tool] = []
    echoes: list[bytes] = []
    for index, entry in enumerate(decode_member(path, _decode_list, raw) or ()):
        where = f"{path}[{index}]"
        if _is_left_out(entry, where, hosted):
            continue
        tools += _tools_of(entry, where)
        echoes.append(_echo(entry))
        if len(tools) > MAX_TOOLS:
            raise InvalidRequest(f"The field '{path}' must hold at most {MAX_TOOLS} tools.", param=path)
    _refuse_doubles(tools, path)
    return Offer(tools=ToolSet(tools=tuple(tools), raw=raw), echo=b"[" + b",".join(echoes) + b"]")


def offer_of(interned: Interned, hosted: HostedTools) -> Offer:
    """Return what interned tools offer; parsed at the first use."""

    def make(value: Interned) -> tuple[Offer, int]:
        offer = parse_tools(value.raw, hosted)
        return offer, len(offer.echo) + _MEMORY_FACTOR * len(value.raw)

    return interned.derived(f"engine.tools.{hosted}", make)


def with_added(base: ToolSet, added: Sequence[bytes], known: ToolSet | None, hosted: HostedTools) -> ToolSet | None:
    """Return the tools of a turn; None if there are none.

    Args:
        base: What the request itself offers.
        added: ``tools`` of the items that brought some, of the whole conversation in order.
        known: The tools of the turn before: given back if they are the same.
        hosted: What becomes of tools that the service would have to run.

    Raises:
        InvalidRequest: A tool that an item brought is wrong.
    """
    if not added:
        return base if base.tools else None
    if isinstance(known, Offered) and known.base == base and known.added == tuple(added):
        return known
    tools = list(base.tools)
    names = {tool.wire_name for tool in tools}
    for raw in added:
        for tool in parse_tools(raw, hosted, "input.tools").tools.tools:
            if tool.wire_name not in names:  # sent again: the first one stands
                names.add(tool.wire_name)
                tools.append(tool)
    if len(tools) > MAX_TOOLS:
        raise InvalidRequest(f"The request must hold at most {MAX_TOOLS} tools.", param="input")
    raw = b",".join((base.raw, *added))
    return Offered(tools=tuple(tools), raw=raw, base=base, added=tuple(added)) if tools else None


def added_tools(items: Iterable[bytes]) -> list[bytes]:
    """Return the ``tools`` of the items that bring some, encoded."""
    marker = ADDITIONAL_TOOLS.encode()
    return [
        bytes(_decode_members(item).get("tools", b"[]"))
        for item in items
        if marker in item and output_head(item).type == ADDITIONAL_TOOLS
    ]


# --- parts ----------------------------------------------------------------------------------------------------------


def _is_left_out(entry: Raw, where: str, hosted: HostedTools) -> bool:
    """Whether a tool is not offered.

    Raises:
        InvalidRequest: It cannot be, and may not be left out.
    """
    kind = decode_member(where, _decode_head, entry).type
    if kind in ("function", "custom", "namespace"):
        return False
    if kind in HOSTED:
        if hosted == "drop":
            return True
        raise InvalidRequest(
            f"The hosted tool '{kind}' is not available here. Offer a function in its place.",
            param=f"{where}.type",
            code="unsupported_tool",
        )
    named = f"Tools of the type '{excerpt(kind, 64)}' are" if kind else "A tool without a type is"
    raise InvalidRequest(
        f"{named} not available here: offer it as a function.", param=f"{where}.type", code="unsupported_tool"
    )


def _tools_of(entry: Raw, where: str) -> list[Tool]:
    tool = decode_member(where, _decode_tool, entry)
    if not isinstance(tool, _Namespace):
        return [_as_tool(tool, where, None)]
    _require_name(tool.name, where)
    return [
        _as_tool(decode_member(f"{where}.tools[{index}]", _decode_named, inner), f"{where}.tools[{index}]", tool.name)
        for index, inner in enumerate(tool.tools)
    ]


def _as_tool(tool: _Function | _Custom, where: str, namespace: str | None) -> Tool:
    _require_name(tool.name, where)
    if isinstance(tool, _Custom):
        return Tool(
            kind="custom", name=tool.name, namespace=namespace, description=tool.description, grammar=tool.format
        )
    return Tool(
        kind="function",
        name=tool.name,
        namespace=namespace,
        description=tool.description,
        parameters=tool.parameters,
        strict=tool.strict,
    )


def _require_name(name: str, where: str) -> None:
    if not name:
        raise InvalidRequest(f"The field '{where}.name' must not be empty.", param=f"{where}.name")


def _refuse_doubles(tools: Sequence[Tool], path: str) -> None:
    seen: set[str] = set()
    for tool in tools:
        if tool.wire_name in seen:
            raise InvalidRequest(f"Two tools have the name '{excerpt(tool.wire_name)}'.", param=path)
        seen.add(tool.wire_name)


def _echo(entry: Raw) -> bytes:
    """Return a tool with all members that response objects must have."""
    members = _decode_members(entry)
    if bytes(members["type"]) == b'"function"':
        missing = {"description": Raw(b"null"), "parameters": Raw(b"null"), "strict": Raw(b"null")}
        if not missing.keys() <= members.keys():
            return msgspec.json.encode(missing | members)
    return bytes(entry)
