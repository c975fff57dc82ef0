"""The event stream of a rollout: the answers of all its steps, joined to one response.

An app answers each step as a response of its own. Of all but the first the client is told what is in them: their items, at the
places that follow, and their end. An upstream that ``rolls`` does that by itself.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ws_responses.protocol import events
from ws_responses.protocol.events import EventHead, encode
from ws_responses.protocol.rollout import DONE
from ws_responses.state.node import ResponseNode
from ws_responses.upstreams.event_frames import with_number
from ws_responses.upstreams.output import OutputItems
from ws_responses.upstreams.reading import decode_members, response_of, text_of
from ws_responses.upstreams.repair import TurnStream
from ws_responses.upstreams.turn_end import TurnEnd

_TOLD: Final = ("id", "object", "created_at", "model")
"""Members of a response object that ``response.done`` repeats: what does not grow with the conversation or the tools."""

_PLACE: Final = re.compile(rb'("output_index"\s*:\s*)-?\d+(?![\d.eE])')
_decode_any = msgspec.json.Decoder().decode

Ended = Literal["max_output_tokens"] | None
"""Why a rollout ends before its time; None if it does not."""


class RolloutStream(TurnStream):
    """The event stream of one rollout; see :class:`~ws_responses.upstreams.repair.TurnStream`.

    Attributes:
        joins_itself: The upstream numbers events and items over all steps.
        usage: Of the steps that are over, encoded; None if that of one of them is unknown.
        steps: Steps that are over.
        parts: Their nodes, which have the items; the caller adds each before it calls :meth:`block` or :meth:`pause`.
    """

    __slots__ = ("_app_id", "_closed", "joins_itself", "parts", "steps", "usage")

    def __init__(self, response_id: str, **options: Any) -> None:
        super().__init__(response_id, **options)
        self.joins_itself = False
        self.usage: bytes | None = None
        self.steps = 0
        self.parts: list[ResponseNode] = []
        self._closed: dict[str, Raw] = {}
        self._app_id: str | None = None

    # -- events ------------------------------------------------------------------------------------------------------

    @property
    def plain(self) -> Callable[[bytes], bytes | None]:
        """See :attr:`TurnStream.plain`."""
        return self._plain_in_first_step

    def _plain_in_first_step(self, payload: bytes) -> bytes | None:
        return None if self.steps and not self.joins_itself else self._frames.plain(payload)

    def _feed(self, payload: bytes, head: EventHead) -> list[bytes]:
        if self.steps and not self.joins_itself and head.type in events.LIFECYCLE:
            self._app_id = self._id_in(payload) or self._app_id
            if head.type not in events.TERMINAL:
                return []  # the response has begun
        elif self.steps and not self.joins_itself and type(head.output_index) is int:
            head.output_index += self._items.first
            payload = with_number(payload, _PLACE, "output_index", head.output_index)
        return super()._feed(payload, head)

    @staticmethod
    def _id_in(payload: bytes) -> str | None:
        response = response_of(decode_members(payload))
        return None if response is None else text_of(response.get("id"))

    def _finished(self) -> list[bytes]:
        return [*self._earlier(), *super()._finished()]

    def _earlier(self) -> list[bytes]:
        """Return the items of the steps that are over."""
        return [item for node in self.parts for item in node.record.output_items()]

    # -- ends --------------------------------------------------------------------------------------------------------

    def step_end(self, end: TurnEnd) -> TurnEnd:
        """Return how a step has ended: with the id by which the app knows it."""
        if not self.steps or self.joins_itself:
            return end
        return replace(end, own_id=self._app_id is not None, app_id=self._app_id)

    def block(self, end: TurnEnd, required: Sequence[Mapping[str, str]]) -> bytes:
        """Return the event that stands in the place of a step's end, since the response goes on: with the items of this step.

        Args:
            end: Of the step.
            required: What the client is to bring, as stubs.
        """
        self._leave(end)
        told: dict[str, Any] = {name: self._closed[name] for name in _TOLD if name in self._closed}
        told |= {"status": "in_progress", "output": Raw(b"[" + b",".join(end.items) + b"]")}
        told["usage"] = Raw(self.usage or b"null")
        self._frames.next -= 1
        renumber = self._frames.renumber
        frame = self._frames.own_event(DONE, response=told, required_input=list(required))
        # It has the number of the end that it replaces: what the upstream numbers by itself goes on behind it.
        self._frames.renumber = renumber or not self.joins_itself
        self._begin_step(len(end.items))
        return frame

    def pause(self, end: TurnEnd) -> None:
        """Let the response go on after a step of whose end its client is told nothing.

        Args:
            end: Of the step.
        """
        self._leave(end)
        self._frames.next -= 1  # what follows has the number of the end
        self._frames.renumber = True
        self._begin_step(len(end.items))

    def _leave(self, end: TurnEnd) -> None:
        """Keep what the end of the rollout will need of a step that is over."""
        response = self._of_rollout(response_of(decode_members(end.frame)))
        self._note(end)
        self._closed = {name: Raw(bytes(value)) for name, value in response.items() if name not in ("output", "usage")}

    def _of_rollout(self, response: dict[str, Raw] | None) -> dict[str, Raw]:
        """Return the object of a step with the time at which the rollout began."""
        response = response or {}
        begun = None if self._created is None else self._created.get("created_at")
        if begun is not None:
            response["created_at"] = begun
        return response

    def usage_after(self, end: TurnEnd) -> bytes | None:
        """Return the usage with that of one more step."""
        return total(self.usage, end.usage) if self.steps else end.usage

    def _note(self, end: TurnEnd) -> None:
        self.usage = self.usage_after(end)
        self.steps += 1

    def _begin_step(self, count: int) -> None:
        """Let the items that come stand behind those of the step that is over, of which there were so many."""
        items = self._items
        self._items = OutputItems(items.max_bytes, max((items.first + count - 1, *items.added, *items.done)) + 1)
        self._items.room = items.room
        self._item_events.items = self._items
        self._frames.added = self._items.added
        self._app_id = None
        self.end = None
        self._frames.trusted = None

    def whole(self, end: TurnEnd, ended: Ended = None) -> TurnEnd:
        """Return how the rollout ends by the end of its last step: its event has the output and the usage of all steps.

        Args:
            end: Of the step.
            ended: Why it ends there, although it would go on.
        """
        if not self.steps and ended is None:
            return end
        usage = self.usage_after(end)
        members = decode_members(end.frame)
        response = self._of_rollout(response_of(members))
        kind, status = end.kind, end.status
        if ended is not None:
            kind, status = events.INCOMPLETE, "incomplete"
            members["type"] = Raw(encode(kind))
            response |= {"status": Raw(encode(status)), "incomplete_details": Raw(encode({"reason": ended}))}
            response["completed_at"] = Raw(b"null")
        response["output"] = Raw(b"[" + b",".join((*self._earlier(), *end.items)) + b"]")
        response["usage"] = Raw(usage or b"null")
        members["response"] = Raw(encode(response))
        self.end = whole = replace(end, frame=encode(members), kind=kind, status=status, usage=usage)
        return whole

    def let_go(self) -> TurnEnd:
        """Return how a rollout ends that waits: as it is, with its calls open."""
        response: dict[str, Any] = dict(self._closed)
        response["output"] = Raw(b"[" + b",".join(self._earlier()) + b"]")
        response["usage"] = Raw(self.usage or b"null")
        self.end = end = TurnEnd(
            frame=self._frames.own_event(events.COMPLETED, response=response),
            kind=events.COMPLETED,
            response_id=self.response_id,
            items=[],
            base_at=None,
            usage=self.usage,
            status="completed",
            own_id=False,
        )
        return end

    def usage_with(self, step: bytes | None) -> bytes | None:
        """Return what is known of the usage when the rollout is cut off.

        Args:
            step: Of the step that runs, as far as it is known.
        """
        return (total(self.usage, step) or self.usage) if self.steps else step


def total(first: bytes | None, second: bytes | None) -> bytes | None:
    """Return two usages as one, encoded: a number that one of them does not tell is null, never a part of the sum."""
    if first is None or second is None:
        return None
    summed = _sum(_decode_any(first), _decode_any(second))
    return encode(summed) if isinstance(summed, dict) else None


def _sum(first: Any, second: Any) -> Any:
    ours, theirs = _members(first), _members(second)
    if ours is not None and theirs is not None:
        return {name: _sum(ours.get(name), theirs.get(name)) for name in {**ours, **theirs}}
    if _is_number(first) and _is_number(second):
        return first + second
    return second if first == second else None


def _members(value: Any) -> dict[str, Any] | None:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
