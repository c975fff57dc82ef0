"""The events of a response's items: each at its place, behind what announces its item."""

from typing import Any

from msgspec import Raw

from ws_responses.protocol import events
from ws_responses.protocol.calls import output_head
from ws_responses.protocol.events import EventHead, encode
from ws_responses.upstreams.event_frames import EventFrames
from ws_responses.upstreams.output import OutputItems, begun
from ws_responses.upstreams.places import beginning, has_item_id, is_in_content, item_type
from ws_responses.upstreams.reading import PartEvent, item_of, part_event
from ws_responses.upstreams.snapshots import Snapshots


class ItemEvents:
    """Gives the frames for the events of items: completed by what is missing, with an announcement before if that is missing.

    Args:
        items: The items of the turn.
        frames: Of its events.
        snapshots: Know the id of its response.

    Attributes:
        items: As given.
    """

    __slots__ = ("_frame", "_own_event", "_snapshots", "items")

    def __init__(self, items: OutputItems, frames: EventFrames, snapshots: Snapshots) -> None:
        self.items = items
        self._frame = frames.frame
        self._own_event = frames.own_event
        self._snapshots = snapshots

    def item_added(self, payload: bytes, head: EventHead) -> list[bytes]:
        """Return the frames of an ``added`` event, and what has waited for it."""
        item = item_of(payload, head)
        told = output_head(item)
        missing: dict[str, bytes] = {}
        index = head.output_index
        if type(index) is not int:
            index = self.items.index_of_new(told.id, told.type)
            missing["output_index"] = b"%d" % index
        if index in self.items.drafts:
            return []  # we have announced it before
        frame = self._frame(payload, head, missing)
        self._know(index, told.id, told.type, "item")
        return [frame, *self._release(index)]

    def item_done(self, payload: bytes, head: EventHead) -> list[bytes]:
        """Return the frames of a ``done`` event; its item is kept."""
        item = item_of(payload, head)
        missing: dict[str, bytes] = {}
        index = head.output_index
        if type(index) is not int:
            told = output_head(item)
            index = self.items.index_of(told.id, told.type, finishes=True)
            missing["output_index"] = b"%d" % index
        frames = [] if index in self.items.added else self._announce(index, item)
        self.items.finish(index, bytes(item))
        return [*frames, self._frame(payload, head, missing)]

    def announce_rest(self, items: list[bytes]) -> list[bytes]:
        """Return the ``added`` and ``done`` events of items that only the terminal snapshot has."""
        frames: list[bytes] = []
        done = self.items.done
        if len(done) < len(items):
            for index, item in enumerate(items, self.items.first):
                if index in done:
                    continue
                if index not in self.items.added:
                    frames += self._announce(index, item)
                frames.append(self._own_event(events.ITEM_DONE, output_index=index, item=Raw(item)))
        return frames

    def _announce(self, index: int, item: bytes | Raw) -> list[bytes]:
        """Return the ``added`` event of a finished item, and what has waited for it."""
        frame = self._own_event(events.ITEM_ADDED, output_index=index, item=begun(item))
        told = output_head(item)
        self._know(index, told.id, told.type, "item")
        return [frame, *self._release(index)]

    def _release(self, index: int) -> list[bytes]:
        return [self._frame(payload, head, self._place(head, index)) for payload, head in self.items.released(index)]

    def placed(self, payload: bytes, head: EventHead) -> list[bytes]:
        """Return the frames of an event that belongs to an item; none if it has to wait until we know what that is."""
        items = self.items
        index = head.output_index
        frames: list[bytes] = []
        if type(index) is not int or index not in items.added or index in items.drafts:
            event = part_event(payload)
            needed = item_type(head.type, event.part_type)
            if type(index) is not int:
                index = items.index_of(head.item_id if type(head.item_id) is str else None, needed)
            if index not in items.added:
                frames = self._announce_early(head, event, index)
                if not frames:
                    items.hold(index, payload, head, needed)
                    return []
            if index in items.drafts and head.type == "response.output_text.delta":
                items.draft(index, event.delta or "")
        frames.append(self._frame(payload, head, self._place(head, index)))
        return frames

    def _announce_early(self, head: EventHead, event: PartEvent, index: int) -> list[bytes]:
        """Return what announces the item of an event that comes first, if the event tells enough."""
        begins = beginning(head.type, event.part_type)
        if begins is None:
            return []
        given = head.item_id if type(head.item_id) is str else None
        item_id = self._know(index, given, begins.item["type"], begins.prefix)
        self.items.drafts[index] = []
        frames = [self._own_event(events.ITEM_ADDED, output_index=index, item={"id": item_id, **begins.item})]
        if not head.type.endswith("_part.added"):
            at: dict[str, Any] = {"item_id": item_id, "output_index": index}
            if begins.part_event == "response.content_part.added":
                at["content_index"] = head.content_index if type(head.content_index) is int else 0
            else:
                at["summary_index"] = event.summary_index
            frames.append(self._own_event(begins.part_event, **at, part=begins.part))
        return frames

    def _place(self, head: EventHead, index: int) -> dict[str, bytes]:
        """Return the missing members that say where an event belongs."""
        missing: dict[str, bytes] = {}
        if type(head.output_index) is not int:
            missing["output_index"] = b"%d" % index
        if not (type(head.item_id) is str and head.item_id) and has_item_id(head.type):
            missing["item_id"] = encode(self.items.added[index])
        if type(head.content_index) is not int and is_in_content(head.type):
            begins = head.type == "response.content_part.added"
            missing["content_index"] = b"%d" % self.items.content_index(index, begins=begins)
        return missing

    def _know(self, index: int, given: str | None, kind: str | None, prefix: str) -> str:
        """Note that the client is told of an item; return its id, one of ours if the app gives none."""
        item_id = given or f"{prefix}_{self._snapshots.response_id.removeprefix('resp_')}_{index}"
        self.items.announce(index, item_id, kind, ours=not given)
        return item_id
