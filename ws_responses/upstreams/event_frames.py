"""The events of a response as frames: numbered, labelled with their lane, and otherwise as the app wrote them.

``plain`` and the functions that ``relay`` and ``trusting`` give are the hot path: an event that lacks nothing is the frame. What
is inserted into one goes right after the opening brace; an event is encoded anew only if a member must change.
"""

import re
from collections.abc import Awaitable, Callable, Container
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw

from ws_responses.protocol import events
from ws_responses.protocol.events import EventHead, decode_delta_head, decode_plain_head, encode
from ws_responses.protocol.profiles import RENAMED, VERBATIM, renamed
from ws_responses.protocol.turns import Turn
from ws_responses.upstreams.places import POSITIONED
from ws_responses.upstreams.reading import decode_members, is_utf8

_NUMBER: Final = re.compile(rb'("sequence_number"\s*:\s*)-?\d+(?![\d.eE])')

_BRACE: Final = 0x7B
_DELTAS: Final = {kind: kind for kind in events.DELTAS}
"""To get the object that the decoder of deltas gives, which is compared by identity."""


_KNOWN: Final = tuple(f'{{"type":"{kind}"' for kind in sorted(VERBATIM) if kind.endswith(".delta"))
"""How the deltas begin that Open Responses has under the same name, as an upstream of ours writes them."""


_NEVER_PLAIN: Final = tuple(
    f'{{"type":"{kind}"'.encode() for kind in sorted(events.LIFECYCLE | events.TERMINAL | {events.ITEM_DONE})
)
"""How the events begin, as most apps write them, that hold a whole response or item."""


class EventFrames:
    """The frames of one turn's events.

    Args:
        added: Ids of the items that the client knows, by ``output_index``.
        stream_id: Lane name, or None for the default lane.
        strict: Send what Open Responses knows, by its names.

    Attributes:
        added: As given.
        next: Number that the next event would bear.
        renumber: The app's numbers are replaced.
        trusted: The type of delta that passes unread, since one of it has just passed with all its members; None for none.
    """

    __slots__ = ("_label", "_sealed", "_stream_id", "_strict", "added", "next", "renumber", "trusted")

    def __init__(self, added: Container[int], *, stream_id: str | None = None, strict: bool = False) -> None:
        self.added = added
        self.next = 0
        self.renumber = False
        self.trusted: str | None = None
        self._stream_id = stream_id
        self._label = b"" if stream_id is None else b'"stream_id":' + encode(stream_id) + b","
        self._strict = strict
        self._sealed = False

    # -- the hot path ------------------------------------------------------------------------------------------------

    def relay(
        self, turn: Turn, write_text: Callable[[str], Awaitable[None]], otherwise: Callable[[bytes], Awaitable[None]]
    ) -> Callable[[bytes], Awaitable[None]]:
        """Return the function that takes every event of the app: the hot path, with no call that it can do without.

        Of a delta only the type and the number are read if one of its type has just passed with all its members.

        Args:
            turn: Where signs of life are counted.
            write_text: Writes a frame.
            otherwise: Takes every other event.
        """
        label = self._label.decode()

        def relay(payload: bytes) -> Awaitable[None]:
            turn.heard += 1
            if self.trusted is None:
                return otherwise(payload)
            try:
                head = decode_delta_head(payload)
                text = payload.decode()
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return otherwise(payload)
            number = head.sequence_number
            if head.type is not self.trusted or number < self.next or (label and text[0] != "{"):
                return otherwise(payload)
            self.next = number + 1
            return write_text("{" + label + text[1:]) if label else write_text(text)

        return relay

    def trusting(
        self, turn: Turn, write_text: Callable[[str], Awaitable[None]], otherwise: Callable[[bytes], Awaitable[None]]
    ) -> Callable[[str], Awaitable[None]]:
        """Return the function that takes events which lack nothing, from an upstream of ours; nothing of them is read.

        Args:
            turn: Where signs of life are counted.
            write_text: Writes a frame.
            otherwise: Takes them where they must change after all, or the turn is over.
        """
        label = self._label.decode()

        def trust(text: str) -> Awaitable[None]:
            if self.renumber or self._sealed:
                return otherwise(text.encode())
            turn.heard += 1
            self.next += 1
            return write_text("{" + label + text[1:] if label else text)

        def trust_known(text: str) -> Awaitable[None]:
            return trust(text) if text.startswith(_KNOWN) else otherwise(text.encode())

        return trust_known if self._strict else trust

    def seal(self) -> None:
        """Let nothing more pass on the hot path."""
        self._sealed = True
        self.trusted = None

    def plain(self, payload: bytes) -> bytes | None:
        """Return the frame of an event that lacks nothing, None if it has to be looked at."""
        if payload.startswith(_NEVER_PLAIN):
            return None  # a large object, which need not be read twice
        try:
            head = decode_plain_head(payload)
        except (msgspec.DecodeError, RecursionError):
            return None
        in_content = POSITIONED.get(head.type)
        number = head.sequence_number
        if (
            in_content is None
            or number < self.next
            or head.output_index not in self.added
            or not head.item_id
            or (in_content and head.content_index < 0)
            or self.renumber
            or head.stream_id is not events.NO_LANE
            or not (payload.isascii() or is_utf8(payload))
            or (self._strict and head.type not in VERBATIM)
        ):
            return None
        if payload[0] != _BRACE:
            return None
        self.next = number + 1
        if head.type in _DELTAS and not self._sealed:
            self.trusted = _DELTAS[head.type]
        if not self._label:
            return payload
        return b"{" + self._label + payload[1:]

    # -- single frames -----------------------------------------------------------------------------------------------

    def frame(self, payload: bytes, head: EventHead, missing: dict[str, bytes]) -> bytes:
        """Return an app's event as our frame: labelled, numbered and completed, otherwise verbatim."""
        if self._strict and head.type in RENAMED:
            payload = renamed(payload, head.type) or with_member(payload, "type", RENAMED[head.type])
        number = head.sequence_number
        if type(number) is not int:
            missing["sequence_number"] = b"%d" % self.next
        elif self.renumber or number < self.next:
            self.renumber = True
            payload = with_number(payload, _NUMBER, "sequence_number", self.next)
        else:
            self.next = number
        self.next += 1
        wrong = [name for name in missing if getattr(head, name) is not UNSET]
        if wrong or head.stream_id is not UNSET:
            members = decode_members(payload)
            members.pop("stream_id", None)
            members.update((name, Raw(missing.pop(name))) for name in wrong)
            payload = encode(members)
        insert = self._label + b"".join(b'"%b":%b,' % (name.encode(), value) for name, value in missing.items())
        if not insert:
            return payload
        brace = payload.index(b"{") + 1
        return payload[:brace] + insert + payload[brace:]

    def own_event(self, kind: str, **members: Any) -> bytes:
        """Return an event of ours; from now on the app's numbers are replaced."""
        number = self.next
        self.next += 1
        self.renumber = True
        event: dict[str, Any] = {"type": kind, "sequence_number": number, **members}
        if self._stream_id is not None:
            event["stream_id"] = self._stream_id
        return encode(event)


def with_number(payload: bytes, pattern: re.Pattern[bytes], name: str, number: int) -> bytes:
    """Return an event with another value of a member that is a number.

    Args:
        payload: The event.
        pattern: Finds the member; its group ends before the value. Quotes are escaped in strings, so one match is the member.
        name: Of the member.
        number: The value.
    """
    found = pattern.search(payload)
    if found is None or pattern.search(payload, found.end()) is not None:
        return with_member(payload, name, number)
    return b"%b%d%b" % (payload[: found.end(1)], number, payload[found.end() :])


def with_member(payload: bytes, name: str, value: str | int) -> bytes:
    """Return an event with another value of a member."""
    return encode({**decode_members(payload), name: value})
