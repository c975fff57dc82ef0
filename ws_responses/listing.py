"""The list of a stored response's input items, in pages (API reference, ``GET /responses/{id}/input_items``)."""

import hashlib
from collections.abc import Container, Sequence
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw

from ws_responses.errors import InvalidRequest
from ws_responses.protocol.events import encode
from ws_responses.protocol.items import split_items
from ws_responses.state.node import Record

_DEFAULT_LIMIT: Final = 20
_MAX_LIMIT: Final = 100

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode


def input_items(records: Sequence[Record], query: bytes) -> dict[str, Any]:
    """Return one page of the items that the last record's response was generated from: the whole chain before its output.

    Args:
        records: The chain, root (or newest base) first.
        query: The query string: ``limit`` (1..100, 20 by default), ``order`` (``desc`` by default) and ``after`` (an item id).

    Raises:
        InvalidRequest: A parameter is wrong.
    """
    limit, order, after = _parameters(query)
    items = [item for record in records[:-1] for item in split_items(record.items[record.history_at :])]
    items += records[-1].input_items()
    named = _all_named(items)
    if order == "desc":
        named.reverse()
    if after is not None:
        ids = [name for name, _ in named]
        if after not in ids:
            raise InvalidRequest(f"No item with id '{after[:64]}' in this list.", param="after")
        named = named[ids.index(after) + 1 :]
    page = named[:limit]
    return {
        "object": "list",
        "data": [Raw(item) for _, item in page],
        "first_id": page[0][0] if page else None,
        "last_id": page[-1][0] if page else None,
        "has_more": len(named) > len(page),
    }


def _parameters(query: bytes) -> tuple[int, str, str | None]:
    given = {name: values[-1] for name, values in parse_qs(query.decode("latin-1")).items()}
    order = given.get("order", "desc")
    if order not in ("asc", "desc"):
        raise InvalidRequest("The parameter 'order' must be 'asc' or 'desc'.", param="order")
    text = given.get("limit", str(_DEFAULT_LIMIT))
    if not (text.isascii() and text.isdigit() and len(text) <= 3 and 1 <= int(text) <= _MAX_LIMIT):
        raise InvalidRequest(f"The parameter 'limit' must be a number from 1 to {_MAX_LIMIT}.", param="limit")
    return int(text), order, given.get("after")


def _all_named(items: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Return the items with ids that tell them apart: with two of the same, ``after`` would lead back to the first."""
    named: list[tuple[str, bytes]] = []
    taken: set[str] = set()
    for place, item in enumerate(items):
        name, shown = _named(item, place, taken)
        taken.add(name)
        named.append((name, shown))
    return named


def _named(item: bytes, place: int, taken: Container[str]) -> tuple[str, bytes]:
    """Return an item with its id; one that came without, or with a taken one, gets one that stays the same from call to call."""
    members = _decode_members(item)
    given = members.get("id")
    own = None if given is None else msgspec.json.decode(given)
    if isinstance(own, str) and own not in taken:
        return own, item
    kind = members.get("type")
    prefix = "msg" if kind is None or bytes(kind) == b'"message"' else "item"
    name = f"{prefix}_{hashlib.sha256(b'%d:' % place + item).hexdigest()[:32]}"
    return name, encode(
        {"type": Raw(b'"message"'), **members, "id": name} if prefix == "msg" else {**members, "id": name}
    )
