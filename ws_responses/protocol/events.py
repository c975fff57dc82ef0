"""Events: their names, what is read of those of an upstream, and the errors that we write."""

from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from ws_responses.errors import InvalidRequest, UnknownEvent, WireError, excerpt

CREATE: Final = "response.create"
PROCESSED: Final = "response.processed"
"""Codex's acknowledgement: taken, and answered by nothing."""

CREATED: Final = "response.created"
IN_PROGRESS: Final = "response.in_progress"
ITEM_ADDED: Final = "response.output_item.added"
ITEM_DONE: Final = "response.output_item.done"
COMPLETED: Final = "response.completed"
FAILED: Final = "response.failed"
INCOMPLETE: Final = "response.incomplete"
ERROR: Final = "error"
TERMINAL: Final = frozenset({COMPLETED, FAILED, INCOMPLETE})
LIFECYCLE: Final = frozenset({CREATED, IN_PROGRESS, "response.queued"}) | TERMINAL

encode = msgspec.json.encode


class EventHead(Struct, gc=False):
    """What the relay reads of an app's event; the rest is skipped unread."""

    type: str
    sequence_number: int | UnsetType | None = UNSET
    item_id: str | UnsetType | None = UNSET
    output_index: int | UnsetType | None = UNSET
    content_index: int | UnsetType | None = UNSET
    stream_id: Raw | UnsetType = UNSET


NO_LANE: Final = Raw()
"""Stands for an absent ``stream_id``, by identity."""


class PlainHead(Struct, gc=False):
    """The head of an event on the hot path: what is absent has a value that no event has, null is no match at all."""

    type: str
    sequence_number: int = -1
    item_id: str = ""
    output_index: int = -1
    content_index: int = -1
    stream_id: Raw = NO_LANE


DELTAS: Final = (
    "response.output_text.delta",
    "response.reasoning_text.delta",
    "response.reasoning_summary_text.delta",
    "response.refusal.delta",
    "response.function_call_arguments.delta",
    "response.custom_tool_call_input.delta",
)
"""The events that come in thousands."""


if TYPE_CHECKING:
    _DeltaType = str
else:
    _DeltaType = Literal[DELTAS]  # a tuple of constants, which msgspec reads at run time


class DeltaHead(Struct, gc=False):
    """What is read of one delta among many of its kind; ``type`` is the very object in :data:`DELTAS`."""

    type: _DeltaType
    sequence_number: int = -1


decode_delta_head = msgspec.json.Decoder(DeltaHead).decode
decode_plain_head = msgspec.json.Decoder(PlainHead).decode
decode_event_head = msgspec.json.Decoder(EventHead).decode


def encode_error(error: WireError, *, stream_id: str | None = None, sequence_number: int = 0) -> bytes:
    """Return the ``error`` frame of a failure (one nested envelope, always with ``status`` and a string ``code``).

    Headers go where each client looks for them: on top (Codex, opencode) and in ``error`` (pydantic-ai).
    """
    body: dict[str, Any] = {
        **error.extra,
        "type": error.type,
        "code": error.code,
        "message": error.message,
        "param": error.param,
    }
    frame: dict[str, Any] = {"type": ERROR, "status": error.status, "sequence_number": sequence_number, "error": body}
    if error.headers:
        body["headers"] = dict(error.headers)
        frame["headers"] = dict(error.headers)
    if stream_id is not None:
        frame["stream_id"] = stream_id
    return encode(frame)


def not_an_event(kind: str) -> UnknownEvent:
    """Return the error for a frame whose type we do not serve."""
    return UnknownEvent(
        f"Unknown event type {excerpt(kind, 64)!r}. This endpoint serves 'response.create'.", param="type"
    )


def invalid(message: str, param: str) -> InvalidRequest:
    """Return a 400 for a field of a turn that has begun to run."""
    return InvalidRequest(message, param=param)
