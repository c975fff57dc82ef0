"""Bodies for the app, put together from bytes that are kept: one pass over the chain's pieces and one copy."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Raw

from ws_responses.errors import RequestTooLarge
from ws_responses.protocol.items import user_message

Piece = bytes | Raw

_STREAM: Final = b'"stream":true}'


_SHORT_NAME: Final = 64


@lru_cache(256)
def _short_key(name: str) -> bytes:
    return msgspec.json.encode(name) + b":"


def _key(name: str) -> bytes:
    # Names are the client's; those that are kept beyond its connection must be small.
    return _short_key(name) if len(name) <= _SHORT_NAME else _short_key.__wrapped__(name)


def member_pieces(members: Mapping[str, Raw | bytes]) -> list[Piece]:
    """Return the pieces ``"name":value,`` of an object's members, values untouched."""
    pieces: list[Piece] = []
    for name, value in members.items():
        pieces += (_key(name), value, b",")
    return pieces


def join_items(items: Iterable[Raw | bytes], text: Raw | None) -> bytes:
    """Return a turn's own input items as one piece."""
    if text is not None:
        return user_message(text)
    return b",".join(items)


def request_body(
    members: Mapping[str, Raw | bytes],
    history: list[bytes],
    delta: bytes,
    text: Raw | None,
    *,
    has_input: bool,
    max_bytes: int,
) -> bytes:
    """Return the body of the inner request.

    Args:
        members: The app's members, in order.
        history: Joined items from before this turn, in pieces, oldest first; the list is used up.
        delta: The turn's own items, joined.
        text: The turn's ``input`` if it was a string: passed on as such when there is no history.
        has_input: Whether the body is to have an ``input`` even if it is empty.
        max_bytes: Bound of the result.

    Raises:
        RequestTooLarge: The body would exceed ``max_bytes``.
    """
    head: list[Piece] = [b"{", *member_pieces(members)]
    if not history and text is not None:
        return _bounded([b"".join((*head, b'"input":', text, b",", _STREAM))], max_bytes)
    if not (history or has_input):
        return _bounded([b"".join((*head, _STREAM))], max_bytes)
    pieces = history
    if delta:
        pieces.append(delta)
    if not pieces:
        pieces.append(b"")
    # The first and the last piece take what comes before and after the items, so that the whole is copied once.
    pieces[0] = b"".join((*head, b'"input":[', pieces[0]))
    pieces[-1] += b"]," + _STREAM
    return _bounded(pieces, max_bytes)


def _bounded(pieces: list[bytes], max_bytes: int) -> bytes:
    size = sum(map(len, pieces)) + len(pieces) - 1
    if size > max_bytes:
        raise RequestTooLarge(size, max_bytes)
    return pieces[0] if len(pieces) == 1 else b",".join(pieces)
