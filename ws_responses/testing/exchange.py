"""Requests to a loopback service, and answers as a test writes them."""

import enum
import gzip
from collections.abc import Sequence
from typing import Any, Final, Self

import msgspec

__all__ = ["CUT", "HOLD", "HttpAnswer", "Piece", "ServiceRequest", "Step", "recut"]


class Step(enum.Enum):
    """What a body may do between its pieces."""

    HOLD = "hold"
    CUT = "cut"


HOLD: Final = Step.HOLD
"""Wait for ``release()``, or for the client to hang up. Each one wants a release of its own, since the request came."""
CUT: Final = Step.CUT
"""Break the connection off, without the end of the body."""

Piece = bytes | Step


class ServiceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request that came.

    Attributes:
        method: As it came.
        path: With its query.
        headers: Names in lower case.
        body: As it came, encoded or not.
        connection: Which connection of the service it came by, from 1 on.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int

    def decoded(self) -> Any:
        """Return the body decoded, from JSON or MessagePack, and unpacked first if it is gzipped."""
        body = gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body
        if "msgpack" in self.headers.get("content-type", ""):
            return msgspec.msgpack.decode(body)
        return msgspec.json.decode(body)


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer.

    Attributes:
        status: Its HTTP status.
        headers: Beside those that frame the body.
        content_type: Of the body.
        body: Pieces and steps, in order.
        held: Hold before the first byte.
        dropped: Break the connection off without a byte.
        rate: Pieces per second; 0 for no pace.
        apart: Give the client (of the same event loop) time to read each piece by itself.
        whole: Frame the body by its length instead of chunks; for bodies without steps.
    """

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    content_type: str = "text/event-stream; charset=utf-8"
    body: Sequence[Piece] = ()
    held: bool = False
    dropped: bool = False
    rate: float = 0.0
    apart: bool = False
    whole: bool = False

    @classmethod
    def json(cls, value: Any, *, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> Self:
        """Return an answer that is JSON."""
        body = (msgspec.json.encode(value),)
        return cls(status=status, headers=headers, content_type="application/json", body=body, whole=True)


def recut(pieces: Sequence[Piece], size: int) -> list[Piece]:
    """Return the same body cut into pieces of ``size`` bytes; steps keep their place."""
    cut: list[Piece] = []
    run = bytearray()
    for piece in [*pieces, None]:
        if isinstance(piece, bytes):
            run += piece
            continue
        cut += [bytes(run[at : at + size]) for at in range(0, len(run), size)]
        run.clear()
        if piece is not None:
            cut.append(piece)
    return cut
