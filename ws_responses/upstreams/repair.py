"""One turn's events on their way from the app to the socket: passed on as they are, completed where something is missing.

``plain`` is the hot path: an event that lacks nothing is the frame. ``feed`` takes every other one. Both are functions of
the events alone. What is inserted goes into an event that the decoder has accepted, right after the opening brace; an
event is encoded anew only if a member must change.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from ws_responses.errors import ResponseCancelled, UpstreamError, WireError
from ws_responses.protocol import events
from ws_responses.protocol.calls import output_head
from ws_responses.protocol.events import EventHead, decode_delta_head, decode_plain_head, encode, encode_error
from ws_responses.protocol.items import call_key
from ws_responses.protocol.profiles import RENAMED, VERBATIM, is_served, renamed
from ws_responses.protocol.steering import STEERED
from ws_responses.protocol.turns import Turn
from ws_responses.protocol.withheld import withheld
from ws_responses.upstreams.answers import error_from_event
from ws_responses.upstreams.output import OutputItems, after_compaction, begun
from ws_responses.upstreams.places import POSITIONED, beginning, has_item_id, is_in_content, is_placed, item_type
from ws_responses.upstreams.reading import (
    PartEvent,
    decode_members,
    is_utf8,
    item_of,
    part_event,
    read_event,
    response_of,
)
from ws_responses.upstreams.snapshots import Snapshots

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


class TurnEnd(Struct, frozen=True):
    """How the upstream ended a turn.

    Attributes:
        frame: The terminal event, ready to be written.
        kind: Its type.
        response_id: Id by which the client can go on.
        items: Output items, in order, byte-exact.
        base_at: Index of the newest compaction item: later turns see nothing that is older. None if there is none.
        usage: Raw JSON of the usage, None if it is unknown.
        status: Status of the response.
        own_id: The app itself has given the id, or ``app_id``.
        app_id: What the app calls it, if that is not ``response_id``.
    """

    frame: bytes
    kind: str
    response_id: str
    items: list[bytes]
    base_at: int | None
    usage: bytes | None
    status: str
    own_id: bool
    app_id: str | None = None

    __repr__ = withheld


class TurnStream:
    """The event stream of one turn.

    Args:
        response_id: Our id, used if the app gives none or one that is live already.
        stream_id: Lane name, or None for the default lane.
        previous_response_id: The parent's id.
        model: As the frame said, for a ``response.created`` that is missing.
        is_live: Whether an id is in use by another response of the tenant.
        complete: Fill the members of response objects that strict clients demand, from these.
        strict: Send what Open Responses knows, by its names.
        in_whole: The client is told nothing but the end: a failure is an ``error`` whenever it comes.
        max_output_bytes: Bound on the output items kept.
    """

    __slots__ = (
        "_added",
        "_created",
        "_in_whole",
        "_items",
        "_label",
        "_next",
        "_renumber",
        "_sealed",
        "_snapshots",
        "_stream_id",
        "_strict",
        "_trusted",
        "end",
        "repaired_surrogates",
    )

    def __init__(
        self,
        response_id: str,
        *,
        stream_id: str | None = None,
        previous_response_id: str | None = None,
        model: str | None = None,
        is_live: Callable[[str], bool] = lambda _: False,
        complete: Mapping[str, Raw] | None = None,
        strict: bool = False,
        in_whole: bool = False,
        max_output_bytes: int = 1 << 26,
    ) -> None:
        self.end: TurnEnd | None = None
        self.repaired_surrogates = 0
        self._stream_id = stream_id
        self._label = b"" if stream_id is None else b'"stream_id":' + encode(stream_id) + b","
        self._next = 0
        self._renumber = False
        self._sealed = False
        self._strict = strict
        self._in_whole = in_whole
        self._trusted: str | None = None
        self._created: dict[str, Raw] | None = None
        self._snapshots = Snapshots(response_id, previous_response_id, model, is_live, complete, strict=strict)
        self._items = OutputItems(max_output_bytes)
        self._added = self._items.added  # for the hot path

    @property
    def response_id(self) -> str:
        """Id of the response: the app's own from ``response.created`` on, if it gives a good one."""
        return self._snapshots.response_id

    @property
    def created(self) -> bool:
        """Whether ``response.created`` has been sent."""
        return self._created is not None

    @property
    def events(self) -> int:
        """Number that the next event would bear."""
        return self._next

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
            if self._trusted is None:
                return otherwise(payload)
            try:
                head = decode_delta_head(payload)
                text = payload.decode()
            except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
                return otherwise(payload)
            number = head.sequence_number
            if head.type is not self._trusted or number < self._next or (label and text[0] != "{"):
                return otherwise(payload)
            self._next = number + 1
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
            if self._renumber or self._sealed:
                return otherwise(text.encode())
            turn.heard += 1
            self._next += 1
            return write_text("{" + label + text[1:] if label else text)

        def trust_known(text: str) -> Awaitable[None]:
            return trust(text) if text.startswith(_KNOWN) else otherwise(text.encode())

        return trust_known if self._strict else trust

    def seal(self) -> None:
        """Let nothing more pass on the hot path."""
        self._sealed = True
        self._trusted = None

    def plain(self, payload: bytes) -> bytes | None:
        """Return the frame of an event that lacks nothing, None if ``feed`` has to look at it."""
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
            or number < self._next
            or head.output_index not in self._added
            or not head.item_id
            or (in_content and head.content_index < 0)
            or self._renumber
            or head.stream_id is not events.NO_LANE
            or not (payload.isascii() or is_utf8(payload))
            or (self._strict and head.type not in VERBATIM)
        ):
            return None
        if payload[0] != _BRACE:
            return None
        self._next = number + 1
        if head.type in _DELTAS and not self._sealed:
            self._trusted = _DELTAS[head.type]
        if not self._label:
            return payload
        return b"{" + self._label + payload[1:]

    # -- everything else ---------------------------------------------------------------------------------------------

    def feed(self, payload: bytes) -> list[bytes]:
        """Return the frames for one event; a terminal event gives what must come before it, and sets ``end``.

        Raises:
            WireError: The event is an error, or no event at all; the stream is of no more use.
        """
        self._trusted = None
        if payload.strip() == b"[DONE]":
            return []
        told = self._created, self._next, self._renumber
        try:
            event = read_event(payload)
            self.repaired_surrogates += event.mended
            return self._feed(event.payload, event.head)
        except (WireError, msgspec.DecodeError, RecursionError) as error:
            # What was to come before the event is not sent: the closing frame must not build on it.
            self._created, self._next, self._renumber = told
            if isinstance(error, WireError):
                raise
            # A part of it that is read only for some types: a number beyond all ranges, nesting at the limit.
            raise UpstreamError("The upstream sent an event that cannot be read.") from None

    def _feed(self, payload: bytes, head: EventHead) -> list[bytes]:
        kind = head.type
        if kind in events.TERMINAL:
            return self._terminal(payload, head)
        if kind == events.ERROR:
            raise error_from_event(msgspec.json.decode(payload))
        if kind in events.LIFECYCLE:
            return self._lifecycle(payload, head)
        if self._strict and not is_served(kind):
            self._renumber = True  # the numbers of what is left out would be missing
            return []
        frames = [] if self.created or not kind.startswith("response.") else self._invent_created()
        if kind == events.ITEM_ADDED:
            frames += self._item_added(payload, head)
        elif kind == events.ITEM_DONE:
            frames += self._item_done(payload, head)
        elif is_placed(kind):
            frames += self._placed(payload, head)
        else:
            frames.append(self._frame(payload, head, {}))
        return frames

    def fail(self, error: WireError) -> bytes:
        """Return the one closing frame of a turn that failed: ``error`` before ``response.created``, else a failed one.

        It stands in the place of the closing event that was to be sent, if there is one. One that its client has cancelled did
        not fail: it is incomplete, with the status that OpenAI's HTTP side gives it.
        """
        if self.end is not None:
            self._next -= 1
        if self._created is None or self._in_whole:
            return encode_error(error, stream_id=self._stream_id)
        response: dict[str, Any] = {**self._created, "output": [Raw(item) for item in self._finished()]}
        if isinstance(error, ResponseCancelled):
            return self._own_event(events.INCOMPLETE, response={**response, "status": "cancelled"})
        response["status"] = "failed"
        response["error"] = {"code": error.code, "message": error.message}
        return self._own_event(events.FAILED, response=response)

    def _finished(self) -> list[bytes]:
        """Return all finished items."""
        return self._items.finished()

    def steer_event(self, kind: str, members: Mapping[str, Any]) -> bytes:
        """Return an event about a steer, numbered among those of the response."""
        return self._own_event(kind, **members)

    @property
    def may_be_cut(self) -> bool:
        """Whether all items of which the client knows are finished, at least one, and none is a call that it must answer."""
        items = self._items
        return (
            bool(items.done)
            and items.added.keys() <= items.done.keys()
            and not any(call_key(output_head(item)) for item in items.done.values())
        )

    def cut(self) -> TurnEnd:
        """End the response in the app's place, because it is steered: all that was finished stays; sets ``end``."""
        response = self._snapshots.closing(self._created, "incomplete")
        items = self._items.finished()
        response["incomplete_details"] = Raw(encode({"reason": STEERED}))
        response["output"] = Raw(b"[" + b",".join(items) + b"]")
        frame = self._own_event(events.INCOMPLETE, response=response)
        self.end = end = TurnEnd(
            frame=frame,
            kind=events.INCOMPLETE,
            response_id=self.response_id,
            items=items,
            base_at=after_compaction(items),
            usage=None,
            status="incomplete",
            own_id=False,  # the app has not kept it
        )
        return end

    def keep_alive(self) -> bytes | None:
        """Return an extension event (Open Responses: ``slug:name``) that shows life; None before ``response.created``."""
        if self._created is None:
            return None
        # It takes a number of the response's own, so the app's later ones must move up.
        return self._own_event("ws_responses:keepalive")

    # -- response objects --------------------------------------------------------------------------------------------

    def _lifecycle(self, payload: bytes, head: EventHead) -> list[bytes]:
        members = decode_members(payload)
        response = response_of(members)
        if response is None:
            return [] if self.created else self._invent_created()
        frames = []
        if head.type != events.CREATED and not self.created:
            frames = self._invent_created(response)
        elif head.type == events.CREATED and self.created:
            return []  # one response.created per response
        changed = self._snapshots.rewrite(response, head.type)
        if self._created is None:
            self._created = response
        if changed:
            members["response"] = Raw(encode(response))
            payload = encode(members)
        frames.append(self._frame(payload, head, {}))
        return frames

    def _terminal(self, payload: bytes, head: EventHead) -> list[bytes]:
        members = decode_members(payload)
        status = head.type.removeprefix("response.")
        response = response_of(members)
        changed = response is None
        if response is None:
            response = self._snapshots.closing(self._created, status)
        frames = [] if self.created else self._invent_created(response)
        changed |= self._snapshots.rewrite(response, head.type)
        items, differs = self._items.merged(response, status)
        if head.type != events.FAILED:
            frames += self._announce_rest(items)
        if differs:
            response["output"] = Raw(b"[" + b",".join(items) + b"]")
        if changed or differs:
            members["response"] = Raw(encode(response))
            payload = encode(members)
        usage = bytes(response.get("usage", b"null"))
        self.end = TurnEnd(
            frame=self._frame(payload, head, {}),
            kind=head.type,
            response_id=self.response_id,
            items=items,
            base_at=after_compaction(items),
            usage=None if usage == b"null" else usage,
            status=status,
            own_id=self._snapshots.own_id,
        )
        return frames

    def _invent_created(self, response: Mapping[str, Raw] | None = None) -> list[bytes]:
        """Return a ``response.created`` for an app that sends none, from a later snapshot if there is one."""
        self._created = self._snapshots.begun(response or {})
        return [self._own_event(events.CREATED, response=self._created)]

    # -- items -------------------------------------------------------------------------------------------------------

    def _item_added(self, payload: bytes, head: EventHead) -> list[bytes]:
        item = item_of(payload, head)
        told = output_head(item)
        missing: dict[str, bytes] = {}
        index = head.output_index
        if type(index) is not int:
            index = self._items.index_of_new(told.id, told.type)
            missing["output_index"] = b"%d" % index
        if index in self._items.drafts:
            return []  # we have announced it before
        frame = self._frame(payload, head, missing)
        self._know(index, told.id, told.type, "item")
        return [frame, *self._release(index)]

    def _item_done(self, payload: bytes, head: EventHead) -> list[bytes]:
        item = item_of(payload, head)
        missing: dict[str, bytes] = {}
        index = head.output_index
        if type(index) is not int:
            told = output_head(item)
            index = self._items.index_of(told.id, told.type, finishes=True)
            missing["output_index"] = b"%d" % index
        frames = [] if index in self._added else self._announce(index, item)
        self._items.finish(index, bytes(item))
        return [*frames, self._frame(payload, head, missing)]

    def _announce_rest(self, items: list[bytes]) -> list[bytes]:
        """Return the ``added`` and ``done`` events of items that only the terminal snapshot has."""
        frames: list[bytes] = []
        done = self._items.done
        if len(done) < len(items):
            for index, item in enumerate(items, self._items.first):
                if index in done:
                    continue
                if index not in self._added:
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
        return [self._frame(payload, head, self._place(head, index)) for payload, head in self._items.released(index)]

    def _placed(self, payload: bytes, head: EventHead) -> list[bytes]:
        """Return the frames of an event that belongs to an item; none if it has to wait until we know what that is."""
        items = self._items
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
        self._items.drafts[index] = []
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
            missing["item_id"] = encode(self._added[index])
        if type(head.content_index) is not int and is_in_content(head.type):
            begins = head.type == "response.content_part.added"
            missing["content_index"] = b"%d" % self._items.content_index(index, begins=begins)
        return missing

    def _know(self, index: int, given: str | None, kind: str | None, prefix: str) -> str:
        """Note that the client is told of an item; return its id, one of ours if the app gives none."""
        item_id = given or f"{prefix}_{self.response_id.removeprefix('resp_')}_{index}"
        self._items.announce(index, item_id, kind, ours=not given)
        return item_id

    # -- frames ------------------------------------------------------------------------------------------------------

    def _frame(self, payload: bytes, head: EventHead, missing: dict[str, bytes]) -> bytes:
        """Return an app's event as our frame: labelled, numbered and completed, otherwise verbatim."""
        if self._strict and head.type in RENAMED:
            payload = renamed(payload, head.type) or with_member(payload, "type", RENAMED[head.type])
        number = head.sequence_number
        if type(number) is not int:
            missing["sequence_number"] = b"%d" % self._next
        elif self._renumber or number < self._next:
            self._renumber = True
            payload = with_number(payload, _NUMBER, "sequence_number", self._next)
        else:
            self._next = number
        self._next += 1
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

    def _own_event(self, kind: str, **members: Any) -> bytes:
        """Return an event of ours; from now on the app's numbers are replaced."""
        number = self._next
        self._next += 1
        self._renumber = True
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
