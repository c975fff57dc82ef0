"""The new text of a turn's input: each item is read once, whatever the length of the conversation."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ws_responses.errors import InvalidRequest
from ws_responses.safety.options import MAX_TEXTS
from ws_responses.safety.text import (
    MOST_LEVELS,
    Leaf,
    TooDeep,
    as_object,
    decode_item,
    dotted,
    is_json_text,
    kind_of,
    leaves,
    role_of,
    unescaped,
)
from ws_responses.safety.verdict import About, Piece, SafetyInput, SafetyState, TooManyTexts
from ws_responses.state.interning import Interned

_DIGEST_BYTES: Final = 16
_DERIVED: Final = "safety"
_decode = msgspec.json.Decoder().decode

Member = Interned | Raw | bytes
"""A member of a request: raw JSON, as it came or as it is kept."""


class Reading(Struct, frozen=True):
    """What there is to judge.

    Attributes:
        delta: The new text; None if there is none.
        state: The state to judge it with: the parent's, with what it now knows of the request's members.
    """

    delta: SafetyInput | None
    state: SafetyState


def read_input(
    items: Sequence[Raw | bytes],
    *,
    members: Mapping[str, Member],
    about: About,
    state: SafetyState | None,
    history: Iterable[Raw | bytes] = (),
    max_texts: int = MAX_TEXTS,
) -> Reading:
    """Return what is new in a turn's input.

    Args:
        items: The input items, as they came.
        members: Those members of the request that are to be judged if they differ from the turn's before.
        about: Whose turn it is.
        state: The parent's; None without a parent, or for one that was never judged here.
        history: Items before these that are to be judged as well, because nobody has judged them: those of a parent without a
            state (it came from a store).
        max_texts: Most texts that the items and members may have.

    Raises:
        TooManyTexts: They have more.
        InvalidRequest: Something cannot be read, and so not be judged; ``param`` is where.
    """
    known = SafetyState() if state is None else state
    digests = {name: _digest_of(value) for name, value in members.items()}
    judged = dict(known.settings)
    new = [name for name, digest in digests.items() if judged.get(name) != digest]
    if new:
        known = replace(known, settings=tuple((judged | digests).items()))
    settings = _at_most(max_texts, max_texts, ((name, _member_pieces(name, members[name])) for name in new))
    own = _at_most(
        max_texts - len(settings),
        max_texts,
        (("input", item_pieces(item, f"input[{index}]")) for index, item in enumerate(items)),
    )
    older = [piece for index, item in enumerate(history) for piece in item_pieces(item, f"history[{index}]")]
    pieces = [*settings, *older, *own]
    if not pieces:
        return Reading(None, known)
    if known.tail:
        pieces[0] = replace(pieces[0], before=known.tail + "\n")
    return Reading(SafetyInput(stage="input", pieces=tuple(pieces), about=about), known)


def item_pieces(item: Raw | bytes, path: str) -> Iterator[Piece]:
    """Yield the texts of an item.

    Raises:
        InvalidRequest: It cannot be read.
    """
    value = decode_item(item, path)
    members = as_object(value) or {}
    given = members.get("type")
    kind = given if isinstance(given, str) else None
    role = role_of(kind, members.get("role"))
    for leaf in _leaves(value, path, kind):
        text = unescaped(leaf.text) if is_json_text(kind, leaf.path) else leaf.text
        yield Piece(
            text=text,
            kind=kind_of(kind, leaf.path),
            role=role,
            item=kind or "message",
            path=path + dotted(leaf.path),
        )


def _leaves(value: Any, param: str, kind: str | None = None) -> Iterator[Leaf]:
    try:
        yield from leaves(value, kind)
    except TooDeep:
        raise InvalidRequest(f"This is nested more than {MOST_LEVELS} levels deep.", param=param) from None


def _at_most(room: int, limit: int, groups: Iterable[tuple[str, Iterator[Piece]]]) -> list[Piece]:
    """Return all pieces of some groups, each with the field that it belongs to.

    Raises:
        TooManyTexts: There are more than there is room for, of a limit.
    """
    pieces: list[Piece] = []
    for param, group in groups:
        pieces += islice(group, room + 1 - len(pieces))
        if len(pieces) > room:
            raise TooManyTexts(limit, param)
    return pieces


def _member_pieces(name: str, member: Member) -> Iterator[Piece]:
    try:
        value = _decode(member.raw if isinstance(member, Interned) else member)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(
            "This field cannot be read: a number is out of range, or half of a character is missing.", param=name
        ) from None
    role = "system" if name == "instructions" else None
    for leaf in _leaves(value, name):
        yield Piece(text=leaf.text, kind="setting", role=role, path=name + dotted(leaf.path))


def _digest_of(member: Member) -> bytes:
    if isinstance(member, Interned):
        return member.derived(_DERIVED, lambda interned: (_digest(interned.raw), 2 * _DIGEST_BYTES))
    return _digest(member)


def _digest(raw: Raw | bytes) -> bytes:
    return blake2b(memoryview(raw), digest_size=_DIGEST_BYTES).digest()
