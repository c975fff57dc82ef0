"""What a response object of an app lacks for the schema of Open Responses, beside members that are missing altogether.

Members that repeat the request take the API's default where they are null and must not be; what is inside of a member is
completed by nulls. Nothing is taken away but what says nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, cast

import msgspec
from msgspec import Raw

from ws_responses.protocol.events import encode

_NEVER_NULL: Final = frozenset(
    {
        "background",
        "frequency_penalty",
        "metadata",
        "parallel_tool_calls",
        "presence_penalty",
        "service_tier",
        "store",
        "temperature",
        "text",
        "tool_choice",
        "tools",
        "top_logprobs",
        "top_p",
        "truncation",
    }
)
"""Members that repeat the request and have a default."""

_NULL: Final = b"null"
_decode: Final = msgspec.json.Decoder().decode


def completed(response: Mapping[str, Raw], defaults: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the members of a response object that must change.

    Args:
        response: The object, with all its members.
        defaults: What members are where the request says nothing.
    """
    changed: dict[str, Raw] = {}
    for name in _NEVER_NULL.intersection(response):
        if bytes(response[name]) == _NULL:
            changed[name] = defaults[name]
    for name, complete in _INSIDES.items():
        raw = changed.get(name, response.get(name))
        if raw is None or bytes(raw) == _NULL:
            continue
        value = _decode(raw)
        better = complete(value)
        if better != value or type(better) is not type(value):
            changed[name] = Raw(encode(better))
    return changed


def _object(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _whole(value: Any) -> Any:
    """Return a time without its fraction."""
    return int(value) if isinstance(value, float) else value


def _tools(value: Any) -> Any:
    return [_tool(tool) for tool in cast("Iterable[Any]", value)] if isinstance(value, list) else value


def _tool(value: Any) -> Any:
    tool = _object(value)
    if tool is None or tool.get("type") != "function":
        return value
    return {**dict.fromkeys(("description", "parameters", "strict")), **tool}


def _reasoning(value: Any) -> Any:
    reasoning = _object(value)
    return value if reasoning is None else {"effort": None, "summary": None, **reasoning}


def _text(value: Any) -> Any:
    text = _object(value)
    if text is None:
        return value
    text = {name: member for name, member in text.items() if name != "verbosity" or member is not None}
    text["format"] = _format(text.get("format"))
    return text


def _format(value: Any) -> Any:
    if value is None:
        return {"type": "text"}
    given = _object(value)
    if given is None or given.get("type") != "json_schema":
        return value
    return {"description": None, **given, "strict": given.get("strict") is True}


def _usage(value: Any) -> Any:
    """Return a usage with its details: 0 is how the schema says that nothing is known of them. None if it tells no tokens."""
    usage = _object(value)
    if usage is None:
        return value
    taken, given = usage.get("input_tokens"), usage.get("output_tokens")
    if type(taken) is not int or type(given) is not int:
        return None
    return {
        **usage,
        "total_tokens": usage.get("total_tokens") or taken + given,
        "input_tokens_details": {"cached_tokens": 0, **_known(usage.get("input_tokens_details"))},
        "output_tokens_details": {"reasoning_tokens": 0, **_known(usage.get("output_tokens_details"))},
    }


def _known(value: Any) -> dict[str, Any]:
    return {name: member for name, member in (_object(value) or {}).items() if member is not None}


def _error(value: Any) -> Any:
    error = _object(value)
    if error is None:
        return value
    return {**error, "code": error.get("code") or "server_error", "message": error.get("message") or ""}


_INSIDES: Final[dict[str, Callable[[Any], Any]]] = {
    "created_at": _whole,
    "completed_at": _whole,
    "tools": _tools,
    "reasoning": _reasoning,
    "text": _text,
    "usage": _usage,
    "error": _error,
}
