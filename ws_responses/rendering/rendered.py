"""What is rendered of a conversation: a persistent list that only grows.

A chain and its forks share what they have in common, and each turn costs what it adds.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Any, Final, Literal, Self

import msgspec
from msgspec import Struct

Form = Literal["json", "msgpack"] | None
"""Encoded form that is kept beside token ids: elements of a JSON or MessagePack array, without its brackets or head."""

RENDERED_BYTES: Final = 256
"""Charged for a link beside its ids and bytes: the object and the heads of both; measured on 64-bit CPython."""

DETOUR_BYTES: Final = 48
"""Charged for a detour beside the links that it leads over."""

_ID: Final = "I"
_NO_IDS: Final = array(_ID)


def encode_ids(ids: Sequence[int], form: Form) -> bytes:
    """Return the elements of an encoded array, without what surrounds them."""
    if form == "json":
        return msgspec.json.encode(list(ids))[1:-1]
    if form == "msgpack":
        encoded = msgspec.msgpack.encode(list(ids))
        return encoded[_msgpack_head(len(ids)) :]
    return b""


def _msgpack_head(count: int) -> int:
    return 1 if count < 16 else 3 if count < 1 << 16 else 5


def _msgpack_array(count: int) -> bytes:
    if count < 16:
        return bytes((0x90 | count,))
    return b"\xdc" + count.to_bytes(2, "big") if count < 1 << 16 else b"\xdd" + count.to_bytes(4, "big")


class Detour(Struct, frozen=True):
    """Another form of the beginning of a conversation, for a format that goes back and forth between two.

    Attributes:
        place: The links up to this place are passed over.
        instead: What is read in their stead.
    """

    place: int
    instead: "Rendered"


class Rendered:
    """A rendered conversation up to some point; immutable, and part of all that continue it.

    Token renderers keep ids (and their encoded form); chat renderers keep encoded messages and no ids.

    Attributes:
        before: What comes before this link, None at the beginning; :meth:`links` knows of detours as well.
        own_ids: Ids that this link adds.
        encoded: What it adds in encoded form: elements of an array, joined by commas (JSON) or not at all (MessagePack).
        form: Of ``encoded``.
        place: Tokens (messages, for a chat renderer) up to and including this link, without any detour.
        memo: The renderer's own notes; immutable. ``getsizeof`` tells what they take.
        detour: The other form of the beginning, if there is one.
        takes_detour: Whether it counts here.
    """

    __slots__ = ("before", "detour", "encoded", "form", "memo", "own_ids", "place", "takes_detour")

    def __init__(
        self,
        before: "Rendered | None",
        own_ids: "array[int]",
        encoded: bytes,
        form: Form,
        place: int,
        memo: Any,
        detour: Detour | None = None,
        *,
        takes_detour: bool = False,
    ) -> None:
        self.before = before
        self.own_ids = own_ids
        self.encoded = encoded
        self.form: Form = form
        self.place = place
        self.memo = memo
        self.detour = detour
        self.takes_detour = takes_detour

    @property
    def end(self) -> int:
        """Tokens up to and including this link; messages, for a chat renderer."""
        if self.takes_detour and self.detour is not None:
            return self.place - self.detour.place + self.detour.instead.place
        return self.place

    # -- make ------------------------------------------------------------------------------------------------------------

    @classmethod
    def of_tokens(cls, ids: Iterable[int], form: Form, memo: Any = None) -> Self:
        """Begin with token ids."""
        own = array(_ID, ids)
        return cls(None, own, encode_ids(own, form), form, len(own), memo)

    @classmethod
    def of_messages(cls, messages: Sequence[bytes], memo: Any = None) -> Self:
        """Begin with encoded chat messages."""
        return cls(None, _NO_IDS, b",".join(messages), "json", len(messages), memo)

    def with_tokens(self, ids: Iterable[int], memo: Any = None, *, takes_detour: bool | None = None) -> "Rendered":
        """Return this, continued by token ids.

        Args:
            ids: The ids.
            memo: Notes of the new link.
            takes_detour: Whether the detour counts from here on, if there is one; None leaves it as it is.
        """
        own = array(_ID, ids)
        takes = self.detour is not None and (self.takes_detour if takes_detour is None else takes_detour)
        if not own:
            return self._copy(memo, self.detour, takes_detour=takes)
        encoded = encode_ids(own, self.form)
        return Rendered(self, own, encoded, self.form, self.place + len(own), memo, self.detour, takes_detour=takes)

    def with_messages(self, messages: Sequence[bytes], memo: Any = None) -> "Rendered":
        """Return this, continued by encoded chat messages."""
        if not messages:
            return self.with_memo(memo)
        place = self.place + len(messages)
        encoded = b",".join(messages)
        return Rendered(self, _NO_IDS, encoded, "json", place, memo, self.detour, takes_detour=self.takes_detour)

    def behind(self, before: "Rendered", memo: Any = None) -> "Rendered":
        """Return what this link adds as the continuation of another one; nothing is copied."""
        own, encoded = self.own_ids, self.encoded
        place = before.place + self.place - (0 if self.before is None else self.before.place)
        detour, takes = before.detour, before.takes_detour
        return Rendered(before, own, encoded, self.form, place, memo, detour, takes_detour=takes)

    def with_memo(self, memo: Any) -> "Rendered":
        """Return the same tokens with other notes."""
        return self._copy(memo, self.detour, takes_detour=self.takes_detour)

    def with_detour(self, instead: "Rendered", *, takes_detour: bool) -> "Rendered":
        """Return the same with another form of all that is up to here, for this and for all that continue it.

        Args:
            instead: That form; best with as many links in common as there can be, and without a detour of its own.
            takes_detour: Whether it counts from here on.
        """
        return self._copy(self.memo, Detour(self.place, instead), takes_detour=takes_detour)

    def _copy(self, memo: Any, detour: Detour | None, *, takes_detour: bool) -> "Rendered":
        own, encoded = self.own_ids, self.encoded
        return Rendered(self.before, own, encoded, self.form, self.place, memo, detour, takes_detour=takes_detour)

    def cut(self, end: int, memo: Any = None) -> "Rendered":
        """Return the first ``end`` tokens (a rewind); the links before the cut are shared.

        Raises:
            ValueError: There are fewer, or the cut goes through a link of chat messages.
        """
        if not 0 <= end <= self.end:
            raise ValueError(f"cannot cut at {end} of {self.end}")
        detour = self.detour
        if detour is not None and self.takes_detour:
            if end <= detour.instead.place:
                return detour.instead.cut(end, memo)
            end += self.place - self.end
        if detour is not None and end < detour.place:
            detour = None
        link: Rendered | None = self
        while link is not None and link.place > end:
            begin = 0 if link.before is None else link.before.place
            if begin < end:
                link = link.shortened(end - begin)
                break
            link = link.before
        if link is None:
            return Rendered(None, _NO_IDS, b"", self.form, 0, memo)
        return link._copy(memo, detour, takes_detour=self.takes_detour and detour is not None)  # noqa: SLF001 - its own

    def shortened(self, count: int) -> "Rendered":
        """Return this link with its first ``count`` ids only.

        Raises:
            ValueError: It is a link of chat messages.
        """
        if not self.own_ids:
            raise ValueError("chat messages are cut between links only")
        own = self.own_ids[:count]
        place = self.place - len(self.own_ids) + count
        return Rendered(self.before, own, encode_ids(own, self.form), self.form, place, None)

    # -- read ------------------------------------------------------------------------------------------------------------

    def links(self) -> "Iterator[Rendered]":
        """Yield this link and all before it, newest first; those of the detour, where it counts."""
        link: Rendered | None = self
        if self.takes_detour and self.detour is not None:
            while link is not None and link.place > self.detour.place:
                yield link
                link = link.before
            link = self.detour.instead
        while link is not None:
            yield link
            link = link.before

    def ids(self) -> "array[int]":
        """Return all token ids, in one copy."""
        whole = array(_ID)
        for link in reversed(list(self.links())):
            whole += link.own_ids
        return whole

    def json_ids(self) -> bytes:
        """Return all token ids as a JSON array; one copy of the kept form, if that is JSON."""
        if self.form != "json":
            return msgspec.json.encode(self.ids().tolist())
        return self.json_array()

    def msgpack_ids(self) -> bytes:
        """Return all token ids as a MessagePack array; one copy of the kept form, if that is MessagePack."""
        if self.form != "msgpack":
            return msgspec.msgpack.encode(self.ids().tolist())
        pieces = [link.encoded for link in self.links()]
        pieces.append(_msgpack_array(self.end))
        pieces.reverse()
        return b"".join(pieces)

    def json_array(self) -> bytes:
        """Return the kept elements as a JSON array (chat messages, or ids in form "json"), in one copy."""
        pieces = [link.encoded for link in self.links() if link.encoded]
        if not pieces:
            return b"[]"
        pieces.reverse()
        # The first and the last piece take the brackets, so that the whole is copied once.
        pieces[0] = b"[" + pieces[0]
        pieces[-1] += b"]"
        return b",".join(pieces)

    # -- compare ---------------------------------------------------------------------------------------------------------

    def bytes_since(self, ancestor: "Rendered | None") -> int:
        """Return the bytes of memory that this keeps alive and ``ancestor`` does not.

        Takes work in proportion to what is not shared.
        """
        mine: list[Rendered] = []
        theirs: list[Rendered] = []
        link: Rendered | None = self
        other = ancestor
        while link is not None:
            while other is not None and other.place > link.place:
                theirs.append(other)  # this line was cut back before it went on
                other = other.before
            if link is other:
                break
            mine.append(link)
            link = link.before
        while other is not None and link is None:
            theirs.append(other)
            other = other.before
        known = {id(one.own_ids) for one in theirs} | {id(one.encoded) for one in theirs}
        size = 0
        for one in mine:
            size += RENDERED_BYTES + (0 if one.memo is None else getsizeof(one.memo))
            size += 0 if id(one.own_ids) in known else one.own_ids.itemsize * len(one.own_ids)
            size += 0 if id(one.encoded) in known else len(one.encoded)
        detour = self.detour
        if detour is not None and (ancestor is None or ancestor.detour is not detour):
            size += DETOUR_BYTES + detour.instead.bytes_since(self)
        return size

    def continues(self, other: "Rendered") -> bool:
        """Return whether this is ``other`` with more behind it, by its links."""
        if self.takes_detour is not other.takes_detour or (self.takes_detour and self.detour is not other.detour):
            return False
        link: Rendered | None = self
        while link is not None and link.place > other.place:
            link = link.before
        return link is other

    def common(self, other: "Rendered") -> int:
        """Return how many tokens (messages) at the front are the same in both: what a rewind left of a line.

        Links that are not shared are compared by their ids at the first difference only.
        """
        if self.continues(other):
            return other.end
        end = 0
        for mine, theirs in zip(reversed([*self.links()]), reversed([*other.links()]), strict=False):
            if mine.own_ids is not theirs.own_ids or mine.encoded is not theirs.encoded:
                pairs = enumerate(zip(mine.own_ids, theirs.own_ids, strict=False))
                shorter = min(len(mine.own_ids), len(theirs.own_ids))
                return end + next((at for at, (one, two) in pairs if one != two), shorter)
            end += mine.place - (0 if mine.before is None else mine.before.place)
        return end
