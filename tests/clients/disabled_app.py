"""The example's app with its WebSocket mode switched off: upgrades are refused, HTTP works."""

from examples.fastapi_app import api
from ws_responses import ResponsesWebSocketMiddleware

app = ResponsesWebSocketMiddleware(api, enabled=False)
