"""Messages in the form that chat templates are given: those of chat completions, with the arguments of calls decoded."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from ws_responses.rendering import chatml_texts as words
from ws_responses.rendering.chat_messages import ChatMessage
from ws_responses.rendering.json_text import arguments_with
from ws_responses.rendering.renderer import OutputPiece, RenderSettings, ToolSet
from ws_responses.rendering.tool_schemas import within_levels

REASONING: Final = "reasoning_content"
"""Member of an assistant's message by which templates know its reasoning."""


def system_text(settings: RenderSettings) -> str:
    """Return what the first message says: instructions, and the format of answers.

    Raises:
        CannotRender: The format has no form here.
    """
    texts = [settings.instructions] if settings.instructions else []
    schema = None if settings.response_format is None else words.schema_text(settings.response_format)
    if schema is not None:
        texts.append(f"{words.JSON_BEGIN}{schema}{words.JSON_END}")
    return "\n\n".join(texts)


def in_template_form(message: ChatMessage, escape: Callable[[Any], Any], *, objects: bool) -> ChatMessage:
    """Return a message as a template wants it.

    Args:
        message: Of chat completions.
        escape: Makes content unable to become a control token.
        objects: The arguments of calls are objects to it; else they are JSON text.
    """
    escaped = dict(message)
    for name in ("content", REASONING, "tool_call_id"):
        if name in escaped:
            # Templates add texts to each other: none is an empty one.
            escaped[name] = escape(escaped[name] or "")
    if "tool_calls" in escaped:
        escaped["tool_calls"] = [
            {"id": escape(call["id"]), "type": "function", "function": escape(function)}
            for call in escaped["tool_calls"]
            for function in (_decoded(call["function"]) if objects else call["function"],)
        ]
    return escaped


def _decoded(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function call with its arguments as an object.

    What is none becomes one: a template that takes it apart would fail for good over a single call gone wrong.
    """
    arguments: Any = function["arguments"]
    try:
        decoded = msgspec.json.decode(arguments)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        decoded = None
    usable = isinstance(decoded, dict) and within_levels(decoded)
    return {"name": function["name"], "arguments": decoded if usable else {"arguments": arguments}}


def message_of(pieces: Iterable[OutputPiece], tools: ToolSet | None) -> ChatMessage:
    """Return an answer, as its parser has read it, as the message that it is in a history."""
    texts: dict[str, list[str]] = {"text": [], "reasoning": []}
    calls: dict[int, dict[str, str]] = {}
    for piece in pieces:
        if piece.kind == "call":
            call = calls.setdefault(piece.call, {"name": piece.name or "", "arguments": ""})
            call["arguments"] += piece.text
        else:
            texts[piece.kind].append(piece.text)
    message: ChatMessage = {"role": "assistant", "content": "".join(texts["text"])}
    if texts["reasoning"]:
        message[REASONING] = "".join(texts["reasoning"])
    if calls:
        message["tool_calls"] = [
            {"id": f"call{number:05}", "type": "function", "function": _as_function(call, tools)}
            for number, call in calls.items()
        ]
    return message


def _as_function(call: Mapping[str, str], tools: ToolSet | None) -> Mapping[str, str]:
    tool = None if tools is None else tools.find(call["name"])
    if tool is None or tool.kind == "function":
        return call
    return {"name": call["name"], "arguments": arguments_with(call["arguments"])}
