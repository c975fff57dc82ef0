"""Tools as the harmony format offers them: JSON Schema written as TypeScript, in the namespace ``functions``.

The source of every blank and comma is ``json_schema_to_typescript`` of openai-harmony 0.0.8 (src/encoding.rs), oddities
included: a model was trained on this text, and a test compares the two.
"""

from collections.abc import Iterator
from typing import Any, Final, cast

import msgspec

from ws_responses.rendering.renderer import CannotRender, Tool, ToolSet

NAMESPACE: Final = "functions"
"""Of all tools that a client runs."""

MAX_DEPTH: Final = 100
"""Levels of a schema: far more than any tool needs, and far fewer than Python's stack has room for."""

_FREE_TEXT: Final = "The argument is free text, not JSON."


def tools_section(tools: ToolSet) -> str:
    """Return the section ``# Tools`` of the developer message.

    Raises:
        CannotRender: A schema is nested too deeply.
    """
    lines = [f"## {NAMESPACE}\n", f"namespace {NAMESPACE} {{\n"]
    for tool in tools.tools:
        lines += [f"// {line}" for line in _lines(tool_description(tool))]
        parameters = tool_parameters(tool)
        argument = "" if parameters is None else f"_: {_typescript(_object(parameters), '')}"
        lines.append(f"type {tool.wire_name} = ({argument}) => any;\n")
    lines.append(f"}} // namespace {NAMESPACE}")
    return "# Tools\n\n" + "\n".join(lines)


def tool_description(tool: Tool) -> str:
    """Return what the model is told of a tool; of a custom one, how its argument must look as well."""
    if tool.kind == "function":
        return tool.description or ""
    lines = [tool.description] if tool.description else []
    lines.append(_FREE_TEXT)
    grammar = _object(tool.grammar)
    form = f"It must follow this grammar ({grammar.get('syntax')}):"
    return "\n".join([*lines, *(f"{form}\n{definition}" for definition in _texts(grammar, "definition"))])


def tool_parameters(tool: Tool) -> Any:
    """Return the schema of a tool's argument: a custom tool takes a string."""
    return tool.parameters if tool.kind == "function" else {"type": "string"}


def _lines(text: str) -> list[str]:
    """Return the lines of a text as Rust's ``lines`` has them: ended by LF or CRLF, the last one by nothing as well."""
    *ended, last = text.split("\n")
    lines = [line.removesuffix("\r") for line in ended]
    return [*lines, last] if last else lines


def _typescript(schema: dict[str, Any], indent: str, depth: int = 0) -> str:
    if depth > MAX_DEPTH:
        raise CannotRender(f"A tool's schema has more than {MAX_DEPTH} levels.", param="tools")
    if "oneOf" in schema and isinstance(schema["oneOf"], list):
        return "".join(f"\n{indent} | {_variant(_object(one), indent, depth)}" for one in _array(schema["oneOf"]))
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join("number" if one == "integer" else one for one in _strings(schema, "type")) or "any"
    if kind == "object":
        return _members(schema, indent, depth)
    if kind == "array":
        return f"{_typescript(_object(schema['items']), indent, depth + 1)}[]" if "items" in schema else "Array<any>"
    if kind == "string":
        return " | ".join(f'"{value}"' for value in _strings(schema, "enum")) or "string"
    return _PLAIN.get(kind, "any") if isinstance(kind, str) else "any"


_PLAIN: Final = {"number": "number", "integer": "number", "boolean": "boolean"}


def _variant(schema: dict[str, Any], indent: str, depth: int) -> str:
    """Return one of several types, with its comment behind it."""
    comments = _texts(schema, "description")
    if "default" in schema:
        default = schema["default"]
        quoted = isinstance(default, str) and not _array(schema.get("enum"))
        comments.append(f'default: "{default}"' if quoted else f"default: {_json(default)}")
    return _nullable(schema, f"{indent}   ", depth) + _comment(comments)


def _members(schema: dict[str, Any], indent: str, depth: int) -> str:
    """Return an object's type."""
    comments = [f"{indent}// {description}\n" for description in _texts(schema, "description")]
    required = set(_strings(schema, "required"))
    members = [
        piece
        for key, value in _object(schema.get("properties")).items()
        for piece in _member(f"{indent}{key}{'' if key in required else '?'}:", value, indent, depth)
    ]
    return "".join([*comments, "{\n", *members, indent, "}"])


def _member(head: str, value: Any, indent: str, depth: int) -> Iterator[str]:
    """Yield a member of an object: comments, then its name and type."""
    schema = _object(value)
    for title in _texts(schema, "title"):
        yield f"{indent}// {title}\n{indent}//\n"
    if "oneOf" not in schema:
        yield from (f"{indent}// {description}\n" for description in _texts(schema, "description"))
    if _array(schema.get("examples")):
        yield f"{indent}// Examples:\n"
        yield from (f'{indent}// - "{example}"\n' for example in _strings(schema, "examples"))
    if isinstance(schema.get("oneOf"), list):
        yield from _member_of_variants(head, schema, indent, depth)
        return
    default = _comment([] if "oneOf" in schema else _default(schema))
    yield f"{head} {_nullable(schema, f'{indent}    ', depth)},{default}\n"


def _member_of_variants(head: str, schema: dict[str, Any], indent: str, depth: int) -> Iterator[str]:
    variants = [_object(variant) for variant in _array(schema["oneOf"])]
    description = _texts(schema, "description")
    described = bool(description) and not (variants and _texts(variants[0], "description") == description)
    comments = [*(description if described else ()), *_default(schema)]
    yield from (f"{indent}// {comment}\n" for comment in comments)
    yield f"{head}\n"
    for number, variant in enumerate(variants):
        own = [] if number == 0 and described else _texts(variant, "description")
        comment = _comment([*(own if own != description else ()), *_default(variant)])
        yield f"{indent} | {_nullable(variant, f'{indent}   ', depth)}{comment}\n"
    yield f"{indent},\n"


def _nullable(schema: dict[str, Any], indent: str, depth: int) -> str:
    kind = _typescript(schema, indent, depth + 1)
    return f"{kind} | null" if schema.get("nullable") is True and "null" not in kind else kind


def _comment(comments: list[str]) -> str:
    return f" // {' '.join(comments)}" if comments else ""


def _default(schema: dict[str, Any]) -> list[str]:
    """Return the comment on a default, if there is one."""
    if "default" not in schema:
        return []
    default = schema["default"]
    if not isinstance(default, str):
        return [f"default: {_json(default)}"]
    return [f"default: {default}" if _array(schema.get("enum")) else f'default: "{default}"']


# -- of JSON of any shape, what has the right type -----------------------------------------------------------------------


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _array(value: Any) -> list[Any]:
    return [*value] if isinstance(value, list) else []


def _strings(schema: dict[str, Any], name: str) -> list[str]:
    return [value for value in _array(schema.get(name)) if isinstance(value, str)]


def _texts(schema: dict[str, Any], name: str) -> list[str]:
    value = schema.get(name)
    return [value] if isinstance(value, str) else []


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except RecursionError as error:
        raise CannotRender("A tool's schema has a default that is nested too deeply.", param="tools") from error
