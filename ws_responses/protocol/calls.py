"""Which calls of a conversation wait for the client, carried from turn to turn.

The state after *n* turns is a function of the items of those turns, whether they are walked one turn at a time or all at
once; that is what lets the validator look at the delta only.
"""

from collections.abc import Iterable
from sys import getsizeof, intern
from typing import Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.errors import InvalidRequest, ToolCallNotFound, ToolOutputMissing, excerpt
from ws_responses.protocol.items import (
    CALLS,
    COMPACTION,
    ITEM_REFERENCE,
    OUTPUTS,
    ItemHead,
    answered_key,
    call_key,
    decode_head,
)


class OpenCall(Struct, frozen=True, gc=False):
    """A call without its answer.

    Attributes:
        type: Item type of the call.
        key: What names it.
        required: Whether it must be answered: a call that the model did not finish may be left.
    """

    type: str
    key: str
    required: bool


class CallState(Struct, frozen=True, gc=False):
    """Open calls of a conversation.

    Attributes:
        open: In the order in which they were made.
        known: Whether all that came before is known to us; if not, an answer to an unknown call is the app's business.
    """

    open: tuple[OpenCall, ...] = ()
    known: bool = True

    @property
    def size(self) -> int:
        """Bytes of memory, for who must pay for them: a client may open calls without end."""
        return sum(_CALL_BYTES + getsizeof(call.key) for call in self.open)


_CALL_BYTES: Final = 64
"""An open call and its place in the tuple, beside the string that names it."""

START: Final = CallState()
UNKNOWN_BASE: Final = CallState(known=False)

_TYPED_ITEMS: Final = frozenset(CALLS) | frozenset(OUTPUTS) | {"message", ITEM_REFERENCE, COMPACTION, None}
_members = msgspec.json.Decoder(dict[str, Raw]).decode
_string = msgspec.json.Decoder(str | None).decode


def input_head(item: Raw | bytes, index: int) -> ItemHead:
    """Return the head of an input item.

    Raises:
        InvalidRequest: It is no item; ``param`` is the path of the member at fault.
    """
    where = f"input[{index}]"
    try:
        head = decode_head(item)
    except (msgspec.ValidationError, RecursionError):
        head, wrong = _member_by_member(item)
        if wrong is None:
            raise InvalidRequest(f"The item {where} must be an object.", param=where) from None
        if wrong and head.type in _TYPED_ITEMS:
            path = f"{where}.{wrong[0]}"
            raise InvalidRequest(f"The field '{path}' must be a string.", param=path) from None
    if head.type is None and head.role is None:
        raise InvalidRequest(
            f"The item {where} needs a 'type' (or a 'role', if it is a message).", param=f"{where}.type"
        )
    return head


def output_head(item: Raw | bytes) -> ItemHead:
    """Return the head of an item that the upstream made; members of a wrong type count as absent."""
    try:
        return decode_head(item)
    except (msgspec.ValidationError, RecursionError):
        return _member_by_member(item)[0]


def _member_by_member(item: Raw | bytes) -> tuple[ItemHead, list[str] | None]:
    """Return the head of what is right, and the names of what is not; None if it is no object at all."""
    try:
        members = _members(item)
    except (msgspec.ValidationError, RecursionError):
        return ItemHead(), None
    right: dict[str, str | None] = {}
    wrong: list[str] = []
    for name in ItemHead.__struct_fields__:
        try:
            right[name] = _string(members.get(name, b"null"))
        except msgspec.ValidationError:
            wrong.append(name)
    return ItemHead(**right), wrong


def after_input(state: CallState, heads: Iterable[ItemHead]) -> CallState:
    """Return the state after a turn's input items.

    Args:
        state: Before them.
        heads: Of all input items, in order.

    Raises:
        ToolCallNotFound: An answer names no open call of its kind; ``param`` is its path.
        InvalidRequest: A call or an answer names nothing.
    """
    calls = {(call.type, call.key): call for call in state.open}
    known = state.known
    for index, head in enumerate(heads):
        kind = head.type
        if kind == COMPACTION:
            # The compacted part may hold calls that we never saw; older ones are no longer part of the conversation.
            calls.clear()
            known = False
        elif kind == ITEM_REFERENCE:
            known = False
        elif kind in OUTPUTS:
            _answer(calls, head, index, known=known)
        elif kind in CALLS:
            _open(calls, head, f"input[{index}]")
    return _changed(state, calls, known=known)


def after_output(state: CallState, heads: Iterable[ItemHead]) -> CallState:
    """Return the state after what the upstream answered; hosted tools answer their own calls there."""
    calls = {(call.type, call.key): call for call in state.open}
    known = state.known
    for head in heads:
        if head.type == COMPACTION:
            calls.clear()
            known = False
        elif head.type in OUTPUTS:
            key = answered_key(head)
            if key is not None:
                calls.pop((OUTPUTS[head.type], key), None)
        elif head.type in CALLS:
            _open(calls, head, None)
    return _changed(state, calls, known=known)


def _changed(state: CallState, calls: dict[tuple[str, str], OpenCall], *, known: bool) -> CallState:
    """Return the state with these calls; a state that exists already is shared along the chain."""
    if not calls:
        return START if known else UNKNOWN_BASE
    now = tuple(calls.values())
    return state if known == state.known and now == state.open else CallState(now, known)


def require_answers(state: CallState) -> None:
    """Refuse a generating turn that leaves calls open.

    Raises:
        ToolOutputMissing: Naming the oldest of them.
    """
    for call in state.open:
        if call.required:
            words = CALLS[call.type].words
            raise ToolOutputMissing(f"No tool output found for {words} {excerpt(call.key)}.", param="input")


def _open(calls: dict[tuple[str, str], OpenCall], head: ItemHead, where: str | None) -> None:
    key = call_key(head)
    kind = head.type or ""
    if key is not None:
        kind = intern(kind)
        calls[kind, key] = OpenCall(kind, key, head.status != "incomplete")
    elif where is not None and not CALLS[kind].client_only:
        member = CALLS[kind].key
        raise InvalidRequest(f"The field '{where}.{member}' is missing.", param=f"{where}.{member}")


def _answer(calls: dict[tuple[str, str], OpenCall], head: ItemHead, index: int, *, known: bool) -> None:
    kind = OUTPUTS[head.type or ""]
    pairing = CALLS[kind]
    path = f"input[{index}].{pairing.answer_key}"
    key = answered_key(head)
    if pairing.client_only and head.execution == "server":
        return
    if not key:
        raise InvalidRequest(f"The field '{path}' is missing.", param=path)
    if calls.pop((kind, key), None) is None and known:
        raise ToolCallNotFound(
            f"No tool call found for {pairing.words} output with call_id {excerpt(key)}.", param=path
        )
