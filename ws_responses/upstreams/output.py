"""The output items of one turn: which of them the client knows, which are finished, and what waits for its item."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from ws_responses.errors import UpstreamError
from ws_responses.protocol.calls import output_head
from ws_responses.protocol.events import EventHead, encode
from ws_responses.protocol.items import COMPACTION

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_any = msgspec.json.Decoder().decode

_GROWING: Final[dict[str | None, dict[str, bytes]]] = {
    "message": {"content": b"[]"},
    "reasoning": {"summary": b"[]", "content": b"[]"},
    "function_call": {"arguments": b'""'},
    "custom_tool_call": {"input": b'""'},
    "mcp_call": {"arguments": b'""'},
    "code_interpreter_call": {"code": b'""'},
}
"""By item type: the members that grow by further events, and what they are at first."""

_BEGUN_STATUS: Final = {"status": b'"in_progress"'}

Held = tuple[bytes, EventHead]
"""An event and its head."""


class OutputItems:
    """The output items of one turn.

    Args:
        max_bytes: Bound on what is kept.
        first: Place of the first of them.

    Attributes:
        added: Ids of the items that the client knows, by ``output_index``.
        done: Finished items, byte-exact, by ``output_index``.
        drafts: Items that we have announced in the app's place, by ``output_index``: the text of them so far.
        max_bytes: As given.
        first: As given.
        room: Bytes that may still be kept.
    """

    __slots__ = ("_held", "_ids", "_last", "_parts", "_types", "added", "done", "drafts", "first", "max_bytes", "room")

    def __init__(self, max_bytes: int, first: int = 0) -> None:
        self.added: dict[int, str] = {}
        self.done: dict[int, bytes] = {}
        self.drafts: dict[int, list[str]] = {}
        self._held: dict[int, list[Held]] = {}
        self._ids: dict[int, str] = {}  # the app's own, also of items that the client does not know yet; "" if unknown
        self._types: dict[int, str | None] = {}
        self._parts: dict[int, int] = {}
        self._last = first
        self.first = first
        self.room = max_bytes
        self.max_bytes = max_bytes

    # -- places ------------------------------------------------------------------------------------------------------

    def index_of(self, item_id: str | None, item_type: str | None, *, finishes: bool = False) -> int:
        """Return the place of an event without ``output_index``: by the id of its item, else that of the latest item.

        Args:
            item_id: The id, if the event has it.
            item_type: The type of its item, if the event tells.
            finishes: The event finishes its item, which thus was not finished before.
        """
        places = [index for index, known in self._ids.items() if item_id and known == item_id]
        unfinished = [index for index in places if index not in self.done]
        if unfinished or (places and not finishes):
            return max(unfinished or places)
        return self._last if self._may_be_latest(item_id, item_type) else self._new_index()

    def index_of_new(self, item_id: str | None, item_type: str | None) -> int:
        """Return the place of an item that is announced without ``output_index``: where its events wait, else a new one."""
        early = (*self.drafts, *self._held)
        for index in early:
            if item_id and self._ids[index] == item_id:
                return index
        is_early = self._last in early and self._may_be_latest(item_id, item_type)
        return self._last if is_early else self._new_index()

    def content_index(self, index: int, *, begins: bool) -> int:
        """Return the ``content_index`` of an event that has none; ``begins`` if the event begins a part."""
        if begins:
            self._parts[index] = self._parts.get(index, -1) + 1
        return self._parts.get(index, 0)

    def _may_be_latest(self, item_id: str | None, item_type: str | None) -> bool:
        """Whether the latest item is unfinished, and none with another id or of another type."""
        known = self._ids.get(self._last)
        if known is None or self._last in self.done or (item_id and known):
            return False
        return item_type is None or self._types.get(self._last) in (None, item_type)

    def _new_index(self) -> int:
        return max((self.first - 1, *self._ids, *self.done)) + 1

    # -- items -------------------------------------------------------------------------------------------------------

    def announce(self, index: int, item_id: str, item_type: str | None, *, ours: bool) -> None:
        """Note that the client is told of an item; ``ours`` if the id is not the app's."""
        self.added[index] = item_id
        self._types[index] = item_type
        self._ids[index] = "" if ours else item_id
        self._last = index

    def finish(self, index: int, item: bytes) -> None:
        """Keep a finished item.

        Raises:
            UpstreamError: All in all it is too much.
        """
        self._count(item)
        known = self.done.get(index)
        if known is not None and known != item:
            index = max(self.done) + 1  # an app that gives all its items one index: none of them is lost
        self.done[index] = item

    def hold(self, index: int, payload: bytes, head: EventHead, item_type: str | None) -> None:
        """Keep an event back until its item is announced.

        Raises:
            UpstreamError: All in all it is too much.
        """
        self._count(payload)
        self._held.setdefault(index, []).append((payload, head))
        if not self._ids.get(index):
            self._ids[index] = head.item_id if type(head.item_id) is str else ""
        self._types[index] = item_type
        self._last = index

    def released(self, index: int) -> list[Held]:
        """Give out what waited for an item."""
        return self._held.pop(index, [])

    def draft(self, index: int, text: str) -> None:
        """Keep a piece of the text of an item that we have announced.

        Raises:
            UpstreamError: All in all it is too much.
        """
        self._count(text)
        self.drafts[index].append(text)

    def _count(self, kept: bytes | str) -> None:
        self.room -= len(kept)
        if self.room < 0:
            raise UpstreamError(f"The upstream's output exceeds {self.max_bytes} bytes.")

    def finished(self) -> list[bytes]:
        """Return the finished items in order."""
        return [item for _, item in sorted(self.done.items())]

    # -- the end -----------------------------------------------------------------------------------------------------

    def merged(self, response: Mapping[str, Raw], status: str) -> tuple[list[bytes], bool]:
        """Return the output items, and whether they differ from those of the terminal snapshot.

        What was streamed wins over what is poorer.

        Args:
            response: The snapshot.
            status: Of an item that the app has left unfinished.

        Raises:
            UpstreamError: The snapshot holds something that is no item.
        """
        given = _snapshot(response)
        snapshot = given or []
        known = self.done | {
            index: self._drafted(index, status)
            for index, text in self.drafts.items()
            if text and index not in self.done and index - self.first >= len(snapshot)
        }
        streamed = [item for _, item in sorted(known.items())]
        if len(snapshot) < len(streamed):
            return streamed, True
        if not streamed or len(known) != max(known) + 1 - self.first:
            return snapshot, given is None
        items = [_richer(ours, theirs) for ours, theirs in zip(streamed, snapshot, strict=False)]
        items += snapshot[len(streamed) :]
        return items, items != snapshot

    def _drafted(self, index: int, status: str) -> bytes:
        text = "".join(self.drafts[index])
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        head = {"id": self.added[index], "type": "message", "role": "assistant", "status": status}
        return encode({**head, "content": [part]})


def _snapshot(response: Mapping[str, Raw]) -> list[bytes] | None:
    try:
        items = [bytes(item) for item in _decode_items(response["output"])]
    except (KeyError, msgspec.ValidationError):
        return None
    if not all(map(is_item, items)):
        raise UpstreamError("The upstream's output holds something that is no item.")
    return items


def is_item(item: bytes | Raw) -> bool:
    """Whether this JSON is an object."""
    return bytes(memoryview(item)[:1]) == b"{"


def begun(item: bytes | Raw) -> Raw:
    """Return a finished item as it looks when it is announced."""
    members = _decode_members(item)
    for name, value in (_BEGUN_STATUS | _GROWING.get(output_head(item).type, {})).items():
        if name in members and bytes(memoryview(members[name])[:1]) == value[:1]:
            members[name] = Raw(value)
    return Raw(encode(members))


def after_compaction(items: list[bytes]) -> int | None:
    """Return the index of the newest compaction item, None if there is none."""
    for index in range(len(items) - 1, -1, -1):
        if output_head(items[index]).type == COMPACTION:
            return index
    return None


def _richer(streamed: bytes, snapshot: bytes) -> bytes:
    """Return the item that says more; the snapshot unless both are the same item, and it was cut down."""
    if streamed == snapshot:
        return snapshot
    ours, theirs = output_head(streamed), output_head(snapshot)
    if ours.type != theirs.type or theirs.id not in (None, ours.id):
        return snapshot
    return streamed if _weight(streamed) > _weight(snapshot) else snapshot


def _weight(item: bytes) -> int:
    """Length of an item without its spaces and escapes."""
    try:
        return len(encode(_decode_any(item)))
    except msgspec.DecodeError:  # a number beyond all ranges
        return len(item)
