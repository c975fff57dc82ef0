"""What is rendered of a conversation: a persistent list that only grows, so that a chain and its forks share what they have in
common, and each turn costs what it adds.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Any, Final, Literal, Self

import msgspec

Form = Literal["json", "msgpack"] | None
"""Encoded form that is kept beside token ids: elements of a JSON or MessagePack array, without its brackets or head."""

RENDERED_BYTES: Final = 240
"""Charged for a link beside its ids and bytes: the object and the heads of both; measured on 64-bit CPython."""

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


class Rendered:
    """A rendered conversation up to some point; immutable, and part of all that continue it.

    Token renderers keep ids (and their encoded form); chat renderers keep encoded messages and no ids.

    Attributes:
        before: What comes before this link, None at the beginning.
        own_ids: Ids that this link adds.
        encoded: What it adds in encoded form: elements of an array, joined by commas (JSON) or not at all (MessagePack).
        form: Of ``encoded``.
        end: Tokens up to and including this link; messages, for a chat renderer.
        memo: The renderer's own notes; immutable.
    """

    __slots__ = ("before", "encoded", "end", "form", "memo", "own_ids")

    def __init__(
        self, before: "Rendered | None", own_ids: "array[int]", encoded: bytes, form: Form, end: int, memo: Any
    ) -> None:
        self.before = before
        self.own_ids = own_ids
        self.encoded = encoded
        self.form: Form = form
        self.end = end
        self.memo = memo

    @classmethod
    def of_tokens(cls, ids: Iterable[int], form: Form, memo: Any = None) -> Self:
        """Begin with token ids."""
        own = array(_ID, ids)
        return cls(None, own, encode_ids(own, form), form, len(own), memo)

    @classmethod
    def of_messages(cls, messages: Sequence[bytes], memo: Any = None) -> Self:
        """Begin with encoded chat messages."""
        return cls(None, _NO_IDS, b",".join(messages), "json", len(messages), memo)

    def with_tokens(self, ids: Iterable[int], memo: Any = None) -> "Rendered":
        """Return this, continued by token ids."""
        own = array(_ID, ids)
        return Rendered(self, own, encode_ids(own, self.form), self.form, self.end + len(own), memo)

    def with_messages(self, messages: Sequence[bytes], memo: Any = None) -> "Rendered":
        """Return this, continued by encoded chat messages."""
        return Rendered(self, _NO_IDS, b",".join(messages), "json", self.end + len(messages), memo)

    def with_memo(self, memo: Any) -> "Rendered":
        """Return the same tokens with other notes."""
        return Rendered(self.before, self.own_ids, self.encoded, self.form, self.end, memo)

    def cut(self, end: int, memo: Any = None) -> "Rendered":
        """Return the first ``end`` tokens (a rewind); the links before the cut are shared.

        Raises:
            ValueError: There are fewer, or the cut goes through a link of chat messages.
        """
        if not 0 <= end <= self.end:
            raise ValueError(f"cannot cut at {end} of {self.end}")
        link: Rendered | None = self
        while link is not None and link.end > end:
            begin = 0 if link.before is None else link.before.end
            if begin < end:
                return link._cut_within(end - begin, end, memo)
            link = link.before
        if link is None:
            return Rendered(None, _NO_IDS, b"", self.form, 0, memo)
        return link.with_memo(memo)

    def _cut_within(self, count: int, end: int, memo: Any) -> "Rendered":
        if not self.own_ids:
            raise ValueError(f"cannot cut at {end}: chat messages are cut between links only")
        own = self.own_ids[:count]
        return Rendered(self.before, own, encode_ids(own, self.form), self.form, end, memo)

    def links(self) -> "Iterator[Rendered]":
        """Yield this link and all before it, newest first."""
        link: Rendered | None = self
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

    def bytes_since(self, ancestor: "Rendered | None") -> int:
        """Return the bytes of memory that this keeps alive and ``ancestor`` does not."""
        size = 0
        link: Rendered | None = self
        other = ancestor
        while link is not None and link is not other:
            if other is not None and other.end > link.end:
                other = other.before  # this line was cut back before it went on
                continue
            size += RENDERED_BYTES + len(link.encoded) + link.own_ids.itemsize * len(link.own_ids)
            size += 0 if link.memo is None else getsizeof(link.memo)
            link = link.before
        return size
