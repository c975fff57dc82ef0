"""The engine with a backend that says what it is asked to say: the last user message spells it as JSON."""

import msgspec

from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.backends import ChatPrompt
from ws_responses.testing.backends import Asked, Said, ScriptedBackend


def respond(asked: Asked) -> Said:
    assert isinstance(asked.prompt, ChatPrompt)
    messages = msgspec.json.decode(asked.prompt.rendered.json_array())
    wanted = [message["content"] for message in messages if message["role"] == "user"]
    return msgspec.json.decode(wanted[-1], type=Said)


app = ResponsesApp(ResponsesEngine(ScriptedBackend(respond=respond, remembers=0), models=["m"]), authorize="open")
