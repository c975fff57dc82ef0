"""What a piece of code in the documentation may use although it does not define it."""

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.testing import ScriptedApp

api: ASGIApp = ScriptedApp()
app = ResponsesWebSocketMiddleware(api)
