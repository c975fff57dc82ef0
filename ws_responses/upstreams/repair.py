"""One turn's events on their way from the app to the socket: passed on as they are, completed where something is missing.

``plain`` and its kin are the hot path (:mod:`ws_responses.upstreams.event_frames`); ``feed`` takes every other event. All are
functions of the events alone.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from ws_responses.errors import ResponseCancelled, UpstreamError, WireError
from ws_responses.protocol import events
from ws_responses.protocol.calls import output_head
from ws_responses.protocol.events import EventHead, encode, encode_error
from ws_responses.protocol.items import call_key
from ws_responses.protocol.profiles import is_served
from ws_responses.protocol.steering import STEERED
from ws_responses.protocol.turns import Turn
from ws_responses.upstreams.answers import error_from_event
from ws_responses.upstreams.event_frames import EventFrames
from ws_responses.upstreams.item_events import ItemEvents
from ws_responses.upstreams.output import OutputItems, after_compaction
from ws_responses.upstreams.places import is_placed
from ws_responses.upstreams.reading import decode_members, read_event, response_of
from ws_responses.upstreams.snapshots import Snapshots
from ws_responses.upstreams.turn_end import TurnEnd


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
        "_created",
        "_frames",
        "_in_whole",
        "_item_events",
        "_items",
        "_snapshots",
        "_stream_id",
        "_strict",
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
        self._strict = strict
        self._in_whole = in_whole
        self._created: dict[str, Raw] | None = None
        self._snapshots = Snapshots(response_id, previous_response_id, model, is_live, complete, strict=strict)
        self._items = OutputItems(max_output_bytes)
        self._frames = EventFrames(self._items.added, stream_id=stream_id, strict=strict)
        self._item_events = ItemEvents(self._items, self._frames, self._snapshots)

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
        return self._frames.next

    # -- the hot path ------------------------------------------------------------------------------------------------

    @property
    def plain(self) -> Callable[[bytes], bytes | None]:
        """The function that returns the frame of an event that lacks nothing, None if ``feed`` has to look at it."""
        return self._frames.plain

    def relay(
        self, turn: Turn, write_text: Callable[[str], Awaitable[None]], otherwise: Callable[[bytes], Awaitable[None]]
    ) -> Callable[[bytes], Awaitable[None]]:
        """See :meth:`EventFrames.relay`."""
        return self._frames.relay(turn, write_text, otherwise)

    def trusting(
        self, turn: Turn, write_text: Callable[[str], Awaitable[None]], otherwise: Callable[[bytes], Awaitable[None]]
    ) -> Callable[[str], Awaitable[None]]:
        """See :meth:`EventFrames.trusting`."""
        return self._frames.trusting(turn, write_text, otherwise)

    def seal(self) -> None:
        """Let nothing more pass on the hot path."""
        self._frames.seal()

    # -- everything else ---------------------------------------------------------------------------------------------

    def feed(self, payload: bytes) -> list[bytes]:
        """Return the frames for one event; a terminal event gives what must come before it, and sets ``end``.

        Raises:
            WireError: The event is an error, or no event at all; the stream is of no more use.
        """
        frames = self._frames
        frames.trusted = None
        if payload.strip() == b"[DONE]":
            return []
        told = self._created, frames.next, frames.renumber
        try:
            event = read_event(payload)
            self.repaired_surrogates += event.mended
            return self._feed(event.payload, event.head)
        except (WireError, msgspec.DecodeError, RecursionError) as error:
            # What was to come before the event is not sent: the closing frame must not build on it.
            self._created, frames.next, frames.renumber = told
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
            self._frames.renumber = True  # the numbers of what is left out would be missing
            return []
        frames = [] if self._created is not None or not kind.startswith("response.") else self._invent_created()
        if kind == events.ITEM_ADDED:
            frames += self._item_events.item_added(payload, head)
        elif kind == events.ITEM_DONE:
            frames += self._item_events.item_done(payload, head)
        elif is_placed(kind):
            frames += self._item_events.placed(payload, head)
        else:
            frames.append(self._frames.frame(payload, head, {}))
        return frames

    def fail(self, error: WireError) -> bytes:
        """Return the one closing frame of a turn that failed: ``error`` before ``response.created``, else a failed one.

        It stands in the place of the closing event that was to be sent, if there is one. One that its client has cancelled did
        not fail: it is incomplete, with the status that OpenAI's HTTP side gives it.
        """
        if self.end is not None:
            self._frames.next -= 1
        if self._created is None or self._in_whole:
            return encode_error(error, stream_id=self._stream_id)
        response: dict[str, Any] = {**self._created, "output": [Raw(item) for item in self._finished()]}
        if isinstance(error, ResponseCancelled):
            return self._frames.own_event(events.INCOMPLETE, response={**response, "status": "cancelled"})
        response["status"] = "failed"
        response["error"] = {"code": error.code, "message": error.message}
        return self._frames.own_event(events.FAILED, response=response)

    def _finished(self) -> list[bytes]:
        """Return all finished items."""
        return self._items.finished()

    def steer_event(self, kind: str, members: Mapping[str, Any]) -> bytes:
        """Return an event about a steer, numbered among those of the response."""
        return self._frames.own_event(kind, **members)

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
        frame = self._frames.own_event(events.INCOMPLETE, response=response)
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
        return self._frames.own_event("ws_responses:keepalive")

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
        frames.append(self._frames.frame(payload, head, {}))
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
            frames += self._item_events.announce_rest(items)
        if differs:
            response["output"] = Raw(b"[" + b",".join(items) + b"]")
        if changed or differs:
            members["response"] = Raw(encode(response))
            payload = encode(members)
        usage = bytes(response.get("usage", b"null"))
        self.end = TurnEnd(
            frame=self._frames.frame(payload, head, {}),
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
        return [self._frames.own_event(events.CREATED, response=self._created)]
