"""What is read of an app's events: the head of each, and the parts that the repairs need."""

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.errors import UpstreamError
from ws_responses.protocol import events
from ws_responses.protocol.events import EventHead, decode_event_head, encode
from ws_responses.protocol.text import mended
from ws_responses.upstreams.output import is_item
from ws_responses.upstreams.places import POSITIONED, is_placed

_USUAL: Final = events.LIFECYCLE | {events.ITEM_ADDED, events.ITEM_DONE} | POSITIONED.keys()
_TYPE: Final = re.compile(r"[A-Za-z0-9_.:\-/]{1,128}\Z").match

decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_index = msgspec.json.Decoder(int).decode

_MEMBERS: Final = {
    "sequence_number": _decode_index,
    "item_id": _decode_text,
    "output_index": _decode_index,
    "content_index": _decode_index,
}
"""Members of an event that we read, and how."""


class _ItemEvent(Struct, gc=False):
    item: Raw


class _PartHead(Struct, gc=False):
    type: str | None = None


class PartEvent(Struct, gc=False):
    """What an event inside an item tells of the item."""

    part: _PartHead | None = None
    delta: str | None = None
    summary_index: int = 0

    @property
    def part_type(self) -> str | None:
        """Type of the part in it, if it has one."""
        return None if self.part is None else self.part.type


_decode_item_event = msgspec.json.Decoder(_ItemEvent).decode
_decode_part_event = msgspec.json.Decoder(PartEvent).decode


class ReadEvent(Struct, frozen=True):
    """An event that is fit for the wire.

    Attributes:
        payload: The event; without members of a wrong type, which count as absent.
        head: What the relay needs of it.
        mended: A lone surrogate escape, or what is not UTF-8, has become U+FFFD.
    """

    payload: bytes
    head: EventHead
    mended: bool


def read_event(payload: bytes) -> ReadEvent:
    """Read an event of the app.

    Raises:
        UpstreamError: It is no JSON object with a type that is a token.
    """
    text = payload if is_utf8(payload) else mended(payload)
    try:
        event = ReadEvent(text, decode_event_head(text), text is not payload)
    except (msgspec.DecodeError, RecursionError):
        event = _read_again(payload, mended(text))
    kind = event.head.type
    if kind not in _USUAL and _TYPE(kind) is None:
        raise UpstreamError("The upstream sent an event without a proper type.")
    return event


def _read_again(payload: bytes, text: bytes) -> ReadEvent:
    try:
        members = decode_members(text)
        kind = _decode_text(members["type"])
    except (msgspec.DecodeError, RecursionError, KeyError):
        raise UpstreamError("The upstream sent an event that is not a JSON object with a type.") from None
    placed = is_placed(kind) or kind in (events.ITEM_ADDED, events.ITEM_DONE)
    wrong = [name for name, decode in _MEMBERS.items() if name in members and not _reads(decode, members[name])]
    for name in wrong:
        if placed or name == "sequence_number":
            del members[name]
    head = decode_event_head(encode({name: members[name] for name in members if placed or name not in wrong}))
    return ReadEvent(encode(members) if wrong else text, head, text != payload)


def _reads(decode: Callable[[Raw], object], value: Raw) -> bool:
    try:
        decode(value)
    except msgspec.ValidationError:
        return bytes(value) == b"null"
    return True


def is_utf8(payload: bytes) -> bool:
    """Whether these bytes may be sent as a text frame."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        return False
    return True


def part_event(payload: bytes) -> PartEvent:
    """Return what an event inside an item tells of the item; nothing if it is odd."""
    try:
        return _decode_part_event(payload)
    except msgspec.ValidationError:
        return PartEvent()


def item_of(payload: bytes, head: EventHead) -> Raw:
    """Return the item of an event.

    Raises:
        UpstreamError: It has none.
    """
    try:
        item = _decode_item_event(payload).item
    except msgspec.ValidationError:
        raise UpstreamError(f"The upstream sent a {head.type} without an item.") from None
    if not is_item(item):
        raise UpstreamError(f"The upstream sent a {head.type} without an item.")
    return item


def response_of(members: Mapping[str, Raw]) -> dict[str, Raw] | None:
    """Return the members of an event's response object, None if it has none."""
    try:
        return decode_members(members["response"])
    except (KeyError, msgspec.ValidationError):
        return None


def without_output(event: bytes) -> bytes:
    """Return the response object of a closing event as records keep it: encoded, without its output."""
    response = response_of(decode_members(event)) or {}
    response.pop("output", None)
    return encode(response)


def text_of(value: Raw | None) -> str | None:
    """Return a text, None for any other value."""
    if value is None:
        return None
    try:
        return _decode_text(value)
    except msgspec.ValidationError:
        return None


def is_closing(payload: bytes) -> bool:
    """Whether an event ends the stream, or cannot be read, which ends it too."""
    try:
        kind = decode_event_head(payload).type
    except (msgspec.DecodeError, RecursionError):
        return True
    return kind in events.TERMINAL or kind == events.ERROR
