"""WebSocket mode for any Responses-style HTTP app.

app = ResponsesWebSocketMiddleware(app)
"""

from ws_responses.app import ResponsesApp
from ws_responses.engine import ResponsesEngine
from ws_responses.errors import (
    ConfigurationError,
    Forbidden,
    LocalProtocolError,
    Refused,
    StoreError,
    Unauthorized,
    WireError,
    WSResponsesError,
)
from ws_responses.handshake import Handshake
from ws_responses.limits import Limits
from ws_responses.middleware import ResponsesWebSocketMiddleware
from ws_responses.quota import QuotaExceeded, QuotaRequest
from ws_responses.safety import Safety, Screen, TermClassifier, Verdict
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.upstreams.base import CurrentTurn, Principal, Upstream, current_turn

__version__ = "0.1.0"

__all__ = [
    "ConfigurationError",
    "CurrentTurn",
    "Forbidden",
    "Handshake",
    "Limits",
    "LocalProtocolError",
    "Principal",
    "QuotaExceeded",
    "QuotaRequest",
    "Refused",
    "ResponsesApp",
    "ResponsesEngine",
    "ResponsesWebSocketMiddleware",
    "Safety",
    "Screen",
    "Settlement",
    "StoreError",
    "TermClassifier",
    "TurnRecord",
    "Unauthorized",
    "Upstream",
    "Verdict",
    "WSResponsesError",
    "WireError",
    "current_turn",
]
