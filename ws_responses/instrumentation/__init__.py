"""Facts about connections and turns, for hooks: one frozen object per fact, no content and no keys in any of them."""

from ws_responses.instrumentation.facts import (
    ConnectionClosed,
    ConnectionDenied,
    ConnectionOpened,
    Fact,
    FrameRefused,
    Hook,
    NodeDropped,
    RenderCounts,
    StoreFailed,
    TurnFinished,
    TurnStarted,
)
from ws_responses.instrumentation.reporter import Reporter

__all__ = [
    "ConnectionClosed",
    "ConnectionDenied",
    "ConnectionOpened",
    "Fact",
    "FrameRefused",
    "Hook",
    "NodeDropped",
    "RenderCounts",
    "Reporter",
    "StoreFailed",
    "TurnFinished",
    "TurnStarted",
]
