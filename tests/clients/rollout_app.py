"""Two apps whose model calls a tool twice and then answers: one that is wrapped, and the engine, both in prototype mode."""

from ws_responses import ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedApp, ScriptedModel
from ws_responses.testing.backends import ScriptedBackend

wrapped = ResponsesWebSocketMiddleware(ScriptedApp(ScriptedModel(tool_calls=2)), prototype=True)
engine = ResponsesApp(ResponsesEngine(ScriptedBackend(tool_calls=2)), authorize="open", prototype=True)
