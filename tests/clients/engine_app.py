"""The engine behind its app, with a backend that calls tools and then says what it was given, as the example's model does."""

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import structs

from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.backends import ChatPrompt
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import RenderSettings
from ws_responses.testing.backends import Asked, Call, Said, ScriptedBackend
from ws_responses.testing.model import ARGUMENTS


class Respond:
    """What the backend does: one call after each user message, if a tool is offered for which it knows arguments."""

    def __init__(self, arguments: Mapping[str, Mapping[str, Any]]) -> None:
        self._arguments = arguments

    def __call__(self, asked: Asked) -> Said:
        prompt = asked.prompt
        assert isinstance(prompt, ChatPrompt)
        messages = msgspec.json.decode(prompt.rendered.json_array())
        offered = [tool["function"]["name"] for tool in msgspec.json.decode(prompt.tools or b"[]")]
        known = [name for name in self._arguments if name in offered]
        if known and not asked.calls:
            return Said(calls=(Call(known[0], msgspec.json.encode(self._arguments[known[0]]).decode()),))
        items = sum(map(items_of, messages))
        outputs = sum(message["role"] == "tool" for message in messages)
        return Said(text=f"This answers {items} input items, {outputs} of them tool outputs.")


def items_of(message: dict[str, Any]) -> int:
    """How many items became this message: calls are joined with the text before them."""
    return len(message.get("tool_calls") or ()) + (message.get("content") is not None)


class ItemsOnly(ChatRenderer):
    """Leaves the instructions out: they would count as an item."""

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:
        return super().begin(structs.replace(settings, instructions=None), form)


def engine_with(arguments: Mapping[str, Mapping[str, Any]]) -> ResponsesEngine:
    backend = ScriptedBackend(respond=Respond(arguments), remembers=0)
    return ResponsesEngine(backend, renderer=ItemsOnly(), hosted_tools="drop")


app = ResponsesApp(engine_with(ARGUMENTS), authorize="open")
