"""An engine whose model thinks for two seconds before it answers, so that a client can steer it meanwhile."""

from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.testing.backends import ScriptedBackend

backend = ScriptedBackend(tool_calls=0, reasoning="one two three four five six seven eight nine ten " * 4, rate=20)
app = ResponsesApp(ResponsesEngine(backend), authorize="open")
