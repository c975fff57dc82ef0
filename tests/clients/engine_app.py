"""The engine behind its app, with a backend that calls tools and then says what it was given, as the example's model does."""

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


def respond(asked: Asked) -> Said:
    prompt = asked.prompt
    assert isinstance(prompt, ChatPrompt)
    messages = msgspec.json.decode(prompt.rendered.json_array())
    offered = [tool["function"]["name"] for tool in msgspec.json.decode(prompt.tools or b"[]")]
    known = [name for name in ARGUMENTS if name in offered]
    if known and not asked.calls:
        return Said(calls=(Call(known[0], msgspec.json.encode(ARGUMENTS[known[0]]).decode()),))
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


engine = ResponsesEngine(ScriptedBackend(respond=respond, remembers=0), renderer=ItemsOnly(), hosted_tools="drop")
app = ResponsesApp(engine, authorize="open")
