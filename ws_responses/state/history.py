"""Bodies for the app, put together from bytes that are kept: one pass over the chain's pieces and one copy."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from ws_responses.errors import RequestTooLarge
from ws_responses.protocol.items import user_message
from ws_responses.state.node import ResponseNode

Piece = bytes | Raw

_STREAM: Final = b'"stream":true}'


@lru_cache(256)
def _key(name: str) -> bytes:
    return msgspec.json.encode(name) + b":"


def member_pieces(members: Mapping[str, Raw | bytes]) -> list[Piece]:
    """Return the pieces ``"name":value,`` of an object's members, values untouched."""
    pieces: list[Piece] = []
    for name, value in members.items():
        pieces += (_key(name), value, b",")
    return pieces


def history_pieces(head: ResponseNode | None, stop: ResponseNode | None = None) -> list[Piece]:
    """Return the joined items of a chain, oldest first, each followed by a comma.

    Args:
        head: The newest node; None for no history.
        stop: An ancestor whose items (and all older ones) are left out.
    """
    pieces: list[Piece] = []
    if head is None:
        return pieces
    for node in head.joined():
        if node is stop:
            break
        record = node.record
        if len(record.items) > record.history_at:
            pieces += (b",", record.items[record.history_at :] if record.history_at else record.items)
    pieces.reverse()
    return pieces


def join_items(items: Iterable[Raw | bytes], text: Raw | None) -> bytes:
    """Return a turn's own input items as one piece."""
    if text is not None:
        return user_message(text)
    return b",".join(items)


def request_body(
    members: Mapping[str, Raw | bytes],
    history: list[Piece],
    delta: bytes,
    text: Raw | None,
    *,
    has_input: bool,
    max_bytes: int,
) -> bytes:
    """Return the body of the inner request.

    Args:
        members: The app's members, in order.
        history: As :func:`history_pieces` gives them.
        delta: The turn's own items, joined.
        text: The turn's ``input`` if it was a string: passed on as such when there is no history.
        has_input: Whether the body is to have an ``input`` even if it is empty.
        max_bytes: Bound of the result.

    Raises:
        RequestTooLarge: The body would exceed ``max_bytes``.
    """
    pieces: list[Piece] = [b"{", *member_pieces(members)]
    if not history and text is not None:
        pieces += (b'"input":', text, b",")
    elif history or has_input:
        pieces.append(b'"input":[')
        if delta:
            pieces += (*history, delta)
        else:
            pieces += history[:-1]  # without the comma that waits for a delta
        pieces.append(b"],")
    pieces.append(_STREAM)
    size = sum(map(_length, pieces))
    if size > max_bytes:
        raise RequestTooLarge(size, max_bytes)
    return b"".join(pieces)


def _length(piece: Piece) -> int:
    return len(piece) if type(piece) is bytes else memoryview(piece).nbytes
