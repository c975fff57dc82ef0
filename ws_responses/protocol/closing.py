"""How a connection ends."""

from typing import Final

from msgspec import Struct

from ws_responses.errors import WireError


class Retirement(Struct, frozen=True):
    """Why a connection takes no more turns, and how it ends.

    Attributes:
        error: What further creates are told.
        notice: Send ``error`` once more right before the close.
        close_code: WebSocket close code.
        reason: Close reason.
        deadline: When turns that still run are aborted.
    """

    error: WireError
    notice: bool
    close_code: int
    reason: str
    deadline: float


CLOSE_REASON_BYTES: Final = 123
"""RFC 6455, 5.5: a control frame has at most 125 bytes, two of which are the code."""


def legal_close(code: int, reason: str) -> tuple[int, str]:
    """Return a code and a reason that may be put on the wire.

    Reserved codes (RFC 6455, 7.4) become 1011; the reason is cut at a code point, below the frame's limit.
    """
    if not (1000 <= code <= 1003 or 1007 <= code <= 1014 or 3000 <= code <= 4999):
        code = 1011
    cut = reason.encode("utf-8", "replace")[:CLOSE_REASON_BYTES]
    return code, cut.decode("utf-8", "ignore")
