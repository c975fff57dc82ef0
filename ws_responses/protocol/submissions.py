"""What steers and injections share: a submission that is not taken goes back to its client."""

from collections.abc import Mapping
from typing import Any, Literal

from ws_responses.errors import WireError
from ws_responses.protocol.events import encode

RefusalCode = Literal[
    "invalid_input",
    "response_already_completed",
    "response_not_active",
    "response_not_found",
    "steering_not_supported",
    "successor_creation_failed",
    "too_many_pending_steers",
    "tool_call_not_found",
    "websocket_queue_full",
]
"""Those of injections beside "response_already_completed" and "response_not_found" tell apart what OpenAI does not document."""


class SubmissionRefused(WireError):
    """A submission that is not taken, or cannot be committed: it goes back in a ``response.steer.failed`` or ``response.inject.failed``."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_input"
    ran = False

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message, code=code)


def refusal_frame(kind: str, members: Mapping[str, Any], *, stream_id: str | None) -> bytes:
    """Return the frame that gives a submission back; it has no place in the events of any response."""
    frame: dict[str, Any] = {"type": kind, "sequence_number": 0, **members}
    if stream_id is not None:
        frame["stream_id"] = stream_id
    return encode(frame)
