"""What a server is started with that will be killed: turns that are written down before their end is told.

BILLED_KIND=engine BILLED_PATH=turns.db uvicorn tests.billed:app
"""

import os

from ws_responses import ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware, Settlement
from ws_responses._types import ASGIApp
from ws_responses.adapters.sqlite_settlement import SqliteSettlement
from ws_responses.testing import ScriptedApp
from ws_responses.testing.backends import ScriptedBackend


def billed(kind: str, path: str) -> ASGIApp:
    """Return an app of a kind ("app" or "engine") whose records are in the file of this path."""
    settlement = Settlement(SqliteSettlement(path), before_terminal=True, terminal_timeout_s=60.0)
    if kind == "app":
        return ResponsesWebSocketMiddleware(ScriptedApp(), settlement=settlement)
    engine = ResponsesEngine(ScriptedBackend(text="Some words that are billed."))
    return ResponsesApp(engine, authorize="open", settlement=settlement)


if "BILLED_PATH" in os.environ:
    app = billed(os.environ["BILLED_KIND"], os.environ["BILLED_PATH"])
