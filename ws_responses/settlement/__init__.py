"""The settlement room: each turn leaves one record, delivered beside the next turns.

app = ResponsesWebSocketMiddleware(app, settlement=Settlement(bill))
"""

from ws_responses.settlement.options import OnLag, Settlement
from ws_responses.settlement.record import (
    OUTCOMES,
    OnUndelivered,
    Outcome,
    SettlementHook,
    SettlementLag,
    TurnRecord,
    TurnUsage,
    Undeliverable,
    Undelivered,
    read_usage,
)
from ws_responses.settlement.settler import Delivery, Settler, Spawn
from ws_responses.settlement.settling import Settling

__all__ = [
    "OUTCOMES",
    "Delivery",
    "OnLag",
    "OnUndelivered",
    "Outcome",
    "Settlement",
    "SettlementHook",
    "SettlementLag",
    "Settler",
    "Settling",
    "Spawn",
    "TurnRecord",
    "TurnUsage",
    "Undeliverable",
    "Undelivered",
    "read_usage",
]
