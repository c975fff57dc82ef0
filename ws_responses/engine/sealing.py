"""Compaction items: what is left of a conversation, in a form that only its maker takes back.

A *window* is what stands for the conversation from then on. It is packed, compressed and signed (HMAC-SHA256), not encrypted: a
client can read what it says, as it could read the conversation, but cannot make or change one.
"""

import base64
import binascii
import hashlib
import hmac
import secrets
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec
from msgspec import Struct

from ws_responses.errors import ConfigurationError, InvalidRequest, UpstreamError
from ws_responses.protocol.events import encode
from ws_responses.protocol.items import COMPACTION

MIN_KEY_BYTES: Final = 16
"""Shortest key: half of the hash, below which RFC 2104 (section 3) advises against."""

MAX_SEALED_CHARS: Final = 10_485_760
"""Longest ``encrypted_content`` (Open Responses, CompactionSummaryItemParam)."""

MAX_WINDOW_BYTES: Final = 32 * 1024 * 1024
"""Most that a sealed window may unpack to."""

_MAC_BYTES: Final = 32
_PURPOSE: Final = b"ws_responses compaction 1\0"
"""Signed along, so that a key that serves other ends as well signs nothing that passes for a window, and for its version."""

_SUMMARY_HEAD: Final = (
    "The conversation up to here was replaced by this summary of it, which the assistant wrote for itself:\n\n"
)


class Window(Struct, frozen=True):
    """What stands for a conversation.

    Attributes:
        before: Items (encoded JSON) that stay as they were, before the summary: the first instructions.
        summary: Of all the rest.
        after: Items that stay as they were, after it: the newest.
    """

    before: list[bytes]
    summary: str
    after: list[bytes]

    def items(self) -> list[bytes]:
        """Return the items that a model is given."""
        summary = {"type": "message", "role": "user", "content": _SUMMARY_HEAD + self.summary}
        return [*self.before, encode(summary), *self.after]


class InvalidCompaction(InvalidRequest):
    """A compaction item was made elsewhere, or with another key, or was changed."""

    code = "invalid_compaction"

    def __init__(self, param: str | None) -> None:
        super().__init__(
            "The compaction item cannot be read: it was not made by this service, or with another key, or it was changed. "
            "Send the conversation itself.",
            param=param,
        )


class _Item(Struct):
    type: str | None = None
    encrypted_content: str | None = None


_decode_item = msgspec.json.Decoder(_Item).decode
_encode_window = msgspec.msgpack.Encoder().encode
_decode_window = msgspec.msgpack.Decoder(Window).decode


class Seal:
    """Makes compaction items, and reads them again.

    Args:
        key: Signs them; all processes that serve the same clients need the same. None for one of this process only.

    Raises:
        ConfigurationError: The key is too short.
    """

    def __init__(self, key: bytes | None = None) -> None:
        if key is not None and len(key) < MIN_KEY_BYTES:
            raise ConfigurationError(f"compaction_key needs {MIN_KEY_BYTES} bytes at least, not {len(key)}")
        self._key = secrets.token_bytes(_MAC_BYTES) if key is None else key

    def item(self, item_id: str, window: Window) -> bytes:
        """Return the compaction item of a window, encoded.

        Raises:
            UpstreamError: It would be too large.
        """
        packed = _encode_window(window)
        body = zlib.compress(packed)
        content = base64.urlsafe_b64encode(self._mac(body) + body).decode()
        if len(content) > MAX_SEALED_CHARS or len(packed) > MAX_WINDOW_BYTES:
            raise UpstreamError("The compacted conversation is too large.", code="upstream_output_too_large")
        return encode({"id": item_id, "type": COMPACTION, "encrypted_content": content})

    def readable(self, items: Iterable[bytes], *, of_input: bool = False) -> list[bytes]:
        """Return items with those that a model is given in place of compaction items.

        Args:
            items: Encoded JSON.
            of_input: They are a turn's input: errors name their place.

        Raises:
            InvalidCompaction: One is none of ours.
        """
        return [each for index, item in enumerate(items) for each in self._opened(item, index if of_input else None)]

    def readable_history(self, items: Iterable[bytes]) -> list[bytes]:
        """Return items of earlier turns as :meth:`readable` does.

        Raises:
            InvalidRequest: One is none of ours, any more: the key has changed.
        """
        try:
            return self.readable(items)
        except InvalidCompaction as error:
            raise InvalidRequest(f"An earlier item of this conversation: {error.message}", code=error.code) from None

    def original_index(self, items: Sequence[bytes], index: int) -> int:
        """Return which of the items became the one at ``index`` of :meth:`readable`."""
        ends = 0
        for place, item in enumerate(items):
            ends += sum(1 for _ in self._opened(item, None))
            if index < ends:
                return place
        return index

    # -- one item ----------------------------------------------------------------------------------------------------

    def _opened(self, item: bytes, index: int | None) -> Iterator[bytes]:
        if not _may_be_compaction(item):
            yield item
            return
        try:
            told = _decode_item(item)
        except (msgspec.ValidationError, RecursionError):
            told = _Item(type=COMPACTION if _is_compaction(item) else None)
        if told.type != COMPACTION:
            yield item
            return
        window = self._window(told.encrypted_content or "")
        if window is None:
            raise InvalidCompaction(None if index is None else f"input[{index}].encrypted_content")
        yield from window.items()

    def _window(self, content: str) -> Window | None:
        if len(content) > MAX_SEALED_CHARS or not content.isascii():
            return None
        try:
            sealed = base64.b64decode(content, altchars=b"-_", validate=True)
        except binascii.Error:
            return None
        mac, body = sealed[:_MAC_BYTES], sealed[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(body)):
            return None
        # It is our own: nothing in it can be wrong.
        return _decode_window(zlib.decompress(body))

    def _mac(self, body: bytes) -> bytes:
        return hmac.digest(self._key, _PURPOSE + body, hashlib.sha256)


def _may_be_compaction(item: bytes) -> bool:
    """Whether an item may be one; a type may be spelled with escapes."""
    return b"compaction" in item or b"\\u00" in item


class _Kind(Struct):
    type: str | None = None


_decode_kind = msgspec.json.Decoder(_Kind).decode


def _is_compaction(item: bytes) -> bool:
    try:
        return _decode_kind(item).type == COMPACTION
    except (msgspec.ValidationError, RecursionError):
        return False
