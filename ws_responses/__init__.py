"""WebSocket mode for any Responses-style HTTP app.

app = ResponsesWebSocketMiddleware(app)

What is named here is loaded when it is asked for: who wraps an app does not load the engine.
"""

TYPE_CHECKING = False  # checkers know the name; the module typing takes longer than this one
if TYPE_CHECKING:
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
else:  # type checkers would take a module with `__getattr__` for one that has every name
    from ws_responses._lazy import loads

    __getattr__, __dir__ = loads(
        __name__,
        {
            "app": ["ResponsesApp"],
            "engine": ["ResponsesEngine"],
            "errors": [
                "ConfigurationError",
                "Forbidden",
                "LocalProtocolError",
                "Refused",
                "StoreError",
                "Unauthorized",
                "WSResponsesError",
                "WireError",
            ],
            "handshake": ["Handshake"],
            "limits": ["Limits"],
            "middleware": ["ResponsesWebSocketMiddleware"],
            "quota": ["QuotaExceeded", "QuotaRequest"],
            "safety": ["Safety", "Screen", "TermClassifier", "Verdict"],
            "settlement": ["Settlement", "TurnRecord"],
            "upstreams.base": ["CurrentTurn", "Principal", "Upstream", "current_turn"],
        },
    )

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
