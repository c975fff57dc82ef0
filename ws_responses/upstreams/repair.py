"""One turn's events on their way from the app to the socket: passed on as they are, completed where something is missing.

``plain`` is the hot path: an event that lacks nothing is the frame. ``feed`` takes every other one. Both are functions of
the events alone. What is inserted goes into an event that the decoder has accepted, right after the opening brace; an
event is encoded anew only if a member must change.
"""

import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, Raw, Struct

from ws_responses.errors import StreamTruncated, UpstreamError, WireError
from ws_responses.protocol import events
from ws_responses.protocol.calls import output_head
from ws_responses.protocol.events import EventHead, decode_event_head, decode_plain_head, encode, encode_error
from ws_responses.protocol.items import COMPACTION
from ws_responses.upstreams.answers import error_from_event

_IN_CONTENT: Final = frozenset(
    f"response.{part}.{step}"
    for part, steps in {
        "output_text": ("delta", "done"),
        "refusal": ("delta", "done"),
        "reasoning_text": ("delta", "done"),
        "content_part": ("added", "done"),
    }.items()
    for step in steps
)
"""Events that name their place by ``item_id``, ``output_index`` and ``content_index``."""

_POSITIONED: Final[dict[str, bool]] = dict.fromkeys(_IN_CONTENT, True) | dict.fromkeys(
    (
        f"response.{part}.{step}"
        for part, steps in {
            "reasoning_summary_part": ("added", "done"),
            "reasoning_summary_text": ("delta", "done"),
            "function_call_arguments": ("delta", "done"),
            "custom_tool_call_input": ("delta", "done"),
            "mcp_call_arguments": ("delta", "done"),
            "code_interpreter_call_code": ("delta", "done"),
        }.items()
        for step in steps
    ),
    False,
)
"""Events that name their item by ``item_id`` and ``output_index`` and need no book-keeping; True: with a content index."""

_MESSAGE_PART: Final = re.compile(r"response\.(output_text|refusal|content_part)\.").match

_USUAL: Final = events.LIFECYCLE | {events.ITEM_ADDED, events.ITEM_DONE} | _POSITIONED.keys()

_TYPE: Final = re.compile(r"[A-Za-z0-9_.:\-/]{1,128}\Z").match
_LONE_SURROGATE: Final = re.compile(
    rb"(?<!\\)((?:\\\\)*)(?:(\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_NUMBER: Final = re.compile(rb'("sequence_number"\s*:\s*)-?\d+')

_BRACE: Final = 0x7B

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_id = msgspec.json.Decoder(str).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode


class _ItemEvent(Struct, gc=False):
    item: Raw
    output_index: int | msgspec.UnsetType | None = UNSET


_decode_item_event = msgspec.json.Decoder(_ItemEvent).decode

NULL: Final = Raw(b"null")


class TurnEnd(Struct, frozen=True):
    """How the upstream ended a turn.

    Attributes:
        frame: The terminal event, ready to be written.
        kind: Its type.
        response_id: Id by which the client can go on.
        items: Output items, in order, byte-exact.
        history_from: Index of the first of them that later turns see (above 0 after a compaction item).
        usage: Raw JSON of the usage, None if it is unknown.
        status: Status of the response.
        own_id: The id is the app's own.
    """

    frame: bytes
    kind: str
    response_id: str
    items: list[bytes]
    history_from: int
    usage: bytes | None
    status: str
    own_id: bool


class TurnStream:
    """The event stream of one turn.

    Args:
        response_id: Our id, used if the app gives none or one that is live already.
        stream_id: Lane name, or None for the default lane.
        previous_response_id: The parent's id.
        model: As the frame said, for a ``response.created`` that is missing.
        is_live: Whether an id is in use by another response of the tenant.
        complete: Fill the members of response objects that strict clients demand, from these.
        max_output_bytes: Bound on the output items kept.
    """

    __slots__ = (
        "_added",
        "_announced",
        "_complete",
        "_created",
        "_done",
        "_is_live",
        "_label",
        "_last_index",
        "_max_output_bytes",
        "_model",
        "_next",
        "_output_bytes",
        "_own_id",
        "_previous",
        "_renumber",
        "_stream_id",
        "end",
        "repaired_surrogates",
        "response_id",
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
        max_output_bytes: int = 1 << 26,
    ) -> None:
        self.response_id = response_id
        self.end: TurnEnd | None = None
        self.repaired_surrogates = 0
        self._stream_id = stream_id
        self._label = b"" if stream_id is None else b'"stream_id":' + encode(stream_id) + b","
        self._previous = previous_response_id
        self._model = model
        self._is_live = is_live
        self._complete = complete
        self._max_output_bytes = max_output_bytes
        self._output_bytes = 0
        self._next = 0
        self._renumber = False
        self._announced = False
        self._own_id = False
        self._created: dict[str, Raw] | None = None
        self._added: dict[int, str | None] = {}
        self._done: dict[int, bytes] = {}
        self._last_index = 0

    @property
    def created(self) -> bool:
        """Whether ``response.created`` has been sent."""
        return self._created is not None

    @property
    def events(self) -> int:
        """Number that the next event would bear."""
        return self._next

    # -- the hot path ------------------------------------------------------------------------------------------------

    def plain(self, payload: bytes) -> bytes | None:
        """Return the frame of an event that lacks nothing, None if ``feed`` has to look at it."""
        try:
            head = decode_plain_head(payload)
        except msgspec.DecodeError:
            return None
        in_content = _POSITIONED.get(head.type)
        number = head.sequence_number
        if (
            in_content is None
            or number < self._next
            or head.output_index not in self._added
            or not head.item_id
            or (in_content and head.content_index < 0)
            or self._renumber
            or head.stream_id is not events.NO_LANE
        ):
            return None
        self._next = number + 1
        if not self._label:
            return payload
        return b"{" + self._label + payload[1:] if payload[0] == _BRACE else None

    # -- everything else ---------------------------------------------------------------------------------------------

    def feed(self, payload: bytes) -> list[bytes]:
        """Return the frames for one event; a terminal event gives what must come before it, and sets ``end``.

        Raises:
            WireError: The event is an error, or no event at all; the stream is of no more use.
        """
        if payload.strip() == b"[DONE]":
            return []
        payload, head = self._decode(payload)
        kind = head.type
        if kind in events.TERMINAL:
            return self._terminal(payload, head)
        if kind == events.ERROR:
            raise error_from_event(msgspec.json.decode(payload))
        if kind in events.LIFECYCLE:
            return self._lifecycle(payload, head)
        frames = [] if self.created or not kind.startswith("response.") else self._invent_created()
        insert = b""
        if kind in (events.ITEM_ADDED, events.ITEM_DONE):
            insert = self._note_item(payload, kind, frames)
        elif kind in _POSITIONED:
            insert = self._position(head, frames)
        frames.append(self._frame(payload, head, insert))
        return frames

    def fail(self, error: WireError) -> bytes:
        """Return the one closing frame of a turn that failed: ``error`` before ``response.created``, else a failed one."""
        if self._created is None:
            return encode_error(error, stream_id=self._stream_id)
        response: dict[str, Any] = dict(self._created)
        response["status"] = "failed"
        response["error"] = {"code": error.code, "message": error.message}
        response["output"] = [Raw(item) for _, item in sorted(self._done.items())]
        return self._own_event(events.FAILED, response=response)

    def keep_alive(self) -> bytes | None:
        """Return an extension event (Open Responses: ``slug:name``) that shows life; None before ``response.created``."""
        if self._created is None:
            return None
        # It takes a number of the response's own, so the app's later ones must move up.
        self._renumber = True
        return self._own_event("ws_responses:keepalive")

    # -- single events -----------------------------------------------------------------------------------------------

    def _decode(self, payload: bytes) -> tuple[bytes, EventHead]:
        try:
            payload.decode()
            head = decode_event_head(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            payload, head = self._decode_again(payload)
        if head.type not in _USUAL and _TYPE(head.type) is None:
            raise UpstreamError("The upstream sent an event without a proper type.")
        return payload, head

    def _decode_again(self, payload: bytes) -> tuple[bytes, EventHead]:
        """A lone surrogate escape becomes U+FFFD, what is not UTF-8 as well; anything else is no event."""
        text = payload.decode("utf-8", "replace").encode()
        text = _LONE_SURROGATE.sub(lambda m: m[0] if m[2] else m[1] + b"\\ufffd", text)
        try:
            head = decode_event_head(text)
        except (msgspec.DecodeError, RecursionError):
            raise UpstreamError("The upstream sent an event that is not a JSON object with a type.") from None
        self.repaired_surrogates += 1
        return text, head

    def _lifecycle(self, payload: bytes, head: EventHead) -> list[bytes]:
        members = _decode_members(payload)
        response = self._response_of(members)
        if response is None:
            return [] if self.created else self._invent_created()
        frames = []
        if head.type != events.CREATED and not self.created:
            frames = self._invent_created(response)
        elif head.type == events.CREATED and self.created:
            return []  # one response.created per response
        changed = self._rewrite(response)
        if self._created is None:
            self._created = response
        if changed:
            members["response"] = Raw(encode(response))
            payload = encode(members)
        frames.append(self._frame(payload, head))
        return frames

    def _terminal(self, payload: bytes, head: EventHead) -> list[bytes]:
        members = _decode_members(payload)
        response = self._response_of(members)
        if response is None:
            raise StreamTruncated
        frames = [] if self.created else self._invent_created(response)
        changed = self._rewrite(response)
        items, differs = self._merge_output(response)
        if head.type != events.FAILED:
            frames += self._announce_items(items)
        if differs:
            response["output"] = Raw(b"[" + b",".join(items) + b"]")
        if changed or differs:
            members["response"] = Raw(encode(response))
            payload = encode(members)
        frame = self._frame(payload, head)
        usage = bytes(response.get("usage", b"null"))
        self.end = TurnEnd(
            frame=frame,
            kind=head.type,
            response_id=self.response_id,
            items=items,
            history_from=_after_compaction(items),
            usage=None if usage == b"null" else usage,
            status=head.type.removeprefix("response."),
            own_id=self._own_id,
        )
        return frames

    def _note_item(self, payload: bytes, kind: str, frames: list[bytes]) -> bytes:
        try:
            event = _decode_item_event(payload)
        except msgspec.ValidationError:
            raise UpstreamError(f"The upstream sent a {kind} without an item.") from None
        index = event.output_index
        insert = b""
        if type(index) is not int:
            # Without an index: the one that is open (done), or the next one (added).
            index = self._last_index if kind == events.ITEM_DONE and self._is_open() else self._new_index()
            insert = b'"output_index":%d,' % index
        item = bytes(event.item)
        if kind == events.ITEM_ADDED:
            self._add(index, item)
            return insert
        if index not in self._added:
            frames.append(self._own_event(events.ITEM_ADDED, output_index=index, item=_begun(item)))
            self._add(index, item)
        self._output_bytes += len(item)
        if self._output_bytes > self._max_output_bytes:
            raise UpstreamError(f"The upstream's output exceeds {self._max_output_bytes} bytes.")
        self._done[index] = item
        return insert

    def _position(self, head: EventHead, frames: list[bytes]) -> bytes:
        """Return the missing members that say where an event belongs; an item that it needs is announced first."""
        index = head.output_index
        insert = b""
        if type(index) is not int:
            index = self._last_index
            insert += b'"output_index":%d,' % index
        item_id = head.item_id if type(head.item_id) is str else self._added.get(index)
        if index not in self._added and _MESSAGE_PART(head.type):
            item_id = item_id or f"msg_{self.response_id.removeprefix('resp_')}_{index}"
            item = {"id": item_id, "type": "message", "role": "assistant", "status": "in_progress", "content": []}
            frames.append(self._own_event(events.ITEM_ADDED, output_index=index, item=item))
            self._add(index, encode(item))
            if not head.type.startswith("response.content_part."):
                part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
                if head.type.startswith("response.refusal."):
                    part = {"type": "refusal", "refusal": ""}
                at = {"item_id": item_id, "output_index": index, "content_index": 0}
                frames.append(self._own_event("response.content_part.added", **at, part=part))
        if type(head.item_id) is not str and item_id is not None:
            insert += b'"item_id":' + encode(item_id) + b","
        if type(head.content_index) is not int and head.type in _IN_CONTENT:
            insert += b'"content_index":0,'
        return insert

    # -- parts -------------------------------------------------------------------------------------------------------

    def _frame(self, payload: bytes, head: EventHead, insert: bytes = b"") -> bytes:
        """Return an app's event as our frame: labelled and numbered, otherwise verbatim."""
        number = head.sequence_number
        if type(number) is int and not self._renumber and number >= self._next:
            self._next = number + 1
        elif number is UNSET:
            insert += b'"sequence_number":%d,' % self._next
            self._next += 1
        else:
            self._renumber = True
            payload = _renumbered(payload, self._next)
            self._next += 1
        if head.stream_id is not UNSET:
            members = _decode_members(payload)
            del members["stream_id"]
            payload = encode(members)
        insert = self._label + insert
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

    def _invent_created(self, response: Mapping[str, Raw] | None = None) -> list[bytes]:
        """Return a ``response.created`` for an app that sends none, from a later snapshot if there is one."""
        begun: dict[str, Any] = dict(response) if response is not None else {}
        if response is None:
            begun = {"id": self.response_id, "object": "response", "created_at": int(time.time()), "model": self._model}
        begun |= {"status": "in_progress", "output": [], "error": None, "incomplete_details": None, "usage": None}
        created = {name: value if isinstance(value, Raw) else Raw(encode(value)) for name, value in begun.items()}
        self._rewrite(created)
        self._created = created
        return [self._own_event(events.CREATED, response=created)]

    def _response_of(self, members: Mapping[str, Raw]) -> dict[str, Raw] | None:
        try:
            return _decode_members(members["response"])
        except (KeyError, msgspec.ValidationError):
            return None

    def _rewrite(self, response: dict[str, Raw]) -> bool:
        """Set what must be true of every response object of the turn; return whether something changed."""
        changed = False
        if not self._announced:
            self._announced = True
            given = _text(response.get("id"))
            if given and len(given) <= events.MAX_ID_CHARS and not self._is_live(given):
                self.response_id, self._own_id = given, True
        own = encode(self.response_id)
        if bytes(response.get("id", b"")) != own:
            response["id"] = Raw(own)
            changed = True
        if self._previous is not None:
            previous = encode(self._previous)
            if bytes(response.get("previous_response_id", b"")) != previous:
                response["previous_response_id"] = Raw(previous)
                changed = True
        if self._complete is not None:
            for name, value in self._complete.items():
                if name not in response:
                    response[name] = value
                    changed = True
        return changed

    def _merge_output(self, response: Mapping[str, Raw]) -> tuple[list[bytes], bool]:
        """Return the output items, and whether they differ from the snapshot: what was streamed wins over a poorer one."""
        streamed = [item for _, item in sorted(self._done.items())]
        try:
            snapshot = [bytes(item) for item in _decode_items(response["output"])]
        except (KeyError, msgspec.ValidationError):
            return streamed, True
        if len(snapshot) < len(streamed):
            return streamed, True
        if not streamed or len(self._done) != max(self._done) + 1:
            return snapshot, False
        merged = [_richer(ours, theirs) for ours, theirs in zip(streamed, snapshot, strict=False)]
        merged += snapshot[len(streamed) :]
        return merged, merged != snapshot

    def _announce_items(self, items: list[bytes]) -> list[bytes]:
        """Return the ``added`` and ``done`` events of items that only the terminal snapshot has."""
        frames = []
        if len(self._done) < len(items):
            for index, item in enumerate(items):
                if index in self._done:
                    continue
                if index not in self._added:
                    frames.append(self._own_event(events.ITEM_ADDED, output_index=index, item=_begun(item)))
                frames.append(self._own_event(events.ITEM_DONE, output_index=index, item=Raw(item)))
        return frames

    def _is_open(self) -> bool:
        return self._last_index in self._added and self._last_index not in self._done

    def _new_index(self) -> int:
        return max(self._added) + 1 if self._added else 0

    def _add(self, index: int, item: bytes) -> None:
        self._added[index] = output_head(item).id
        self._last_index = index


def _begun(item: bytes) -> Raw:
    """Return a finished item as it looks when it is announced."""
    members = _decode_members(item)
    if "status" in members:
        members["status"] = Raw(b'"in_progress"')
    for name, empty in (("content", b"[]"), ("arguments", b'""'), ("input", b'""')):
        if name in members:
            members[name] = Raw(empty)
    return Raw(encode(members))


def _richer(streamed: bytes, snapshot: bytes) -> bytes:
    if len(streamed) <= len(snapshot):
        return snapshot
    ours, theirs = output_head(streamed), output_head(snapshot)
    return streamed if ours.type == theirs.type and (ours.id == theirs.id or theirs.id is None) else snapshot


def _after_compaction(items: list[bytes]) -> int:
    for index in range(len(items) - 1, -1, -1):
        if output_head(items[index]).type == COMPACTION:
            return index
    return 0


def _renumbered(payload: bytes, number: int) -> bytes:
    """Return an event with another ``sequence_number``; its quotes are escaped in strings, so one match is the member."""
    changed, count = _NUMBER.subn(rb"\g<1>%d" % number, payload)
    if count == 1:
        return changed
    members = _decode_members(payload)
    members["sequence_number"] = Raw(b"%d" % number)
    return encode(members)


def _text(value: Raw | None) -> str | None:
    if value is None:
        return None
    try:
        return _decode_id(value)
    except msgspec.ValidationError:
        return None
