"""Tools for testing Responses apps and the middleware, on asyncio and trio.

    from ws_responses.testing import MemorySocket, ScriptedApp, steps

    async def test_greeting() -> None:
        app = ScriptedApp()
        app.script([steps.text("Hello", deltas=2)])
        async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
            events = await ws.turn({"model": "m", "input": "Hi"})
        assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"

Nothing here imports pytest or hypothesis: the fixtures are in `ws_responses.testing.pytest_plugin`,
the strategies in `ws_responses.testing.strategies`.
"""

from ws_responses.testing import steps
from ws_responses.testing.builder import ResponseBuilder, counting_ids, numbered, random_ids
from ws_responses.testing.clock import FakeClock, settle
from ws_responses.testing.model import ARGUMENTS, ModelError, ScriptedModel, arguments_for
from ws_responses.testing.scripted import Request, ScriptedApp
from ws_responses.testing.socket import (
    OMIT,
    TERMINAL_TYPES,
    ClientGone,
    Denial,
    MemorySocket,
    ProtocolViolation,
    SocketClosed,
)

__all__ = [
    "ARGUMENTS",
    "OMIT",
    "TERMINAL_TYPES",
    "ClientGone",
    "Denial",
    "FakeClock",
    "MemorySocket",
    "ModelError",
    "ProtocolViolation",
    "Request",
    "ResponseBuilder",
    "ScriptedApp",
    "ScriptedModel",
    "SocketClosed",
    "arguments_for",
    "counting_ids",
    "numbered",
    "random_ids",
    "settle",
    "steps",
]
