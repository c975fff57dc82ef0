"""Tools for testing Responses apps and the middleware, on asyncio and trio.

Nothing here imports pytest or hypothesis: the fixtures are in `ws_responses.testing.pytest_plugin`,
the strategies in `ws_responses.testing.strategies`.
"""

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
    "OMIT",
    "TERMINAL_TYPES",
    "ClientGone",
    "Denial",
    "MemorySocket",
    "ProtocolViolation",
    "SocketClosed",
]
