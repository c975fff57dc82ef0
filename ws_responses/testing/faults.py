"""What may go wrong with an inference service, and what the client is told then."""

import enum
from collections.abc import Mapping
from typing import Final

from msgspec import Struct

__all__ = ["EXPECTED", "Expected", "Fault"]


class Fault(enum.Enum):
    """What a service does instead of answering.

    Those of the first group come in the place of the first delta; the others after some.
    """

    BAD_REQUEST = "bad_request"
    CONTEXT_OVERFLOW = "context_overflow"
    KEY_REFUSED = "key_refused"
    FORBIDDEN = "forbidden"
    UNPAID = "unpaid"
    MODEL_NOT_FOUND = "model_not_found"
    TOO_LARGE = "too_large"
    UNPROCESSABLE = "unprocessable"
    RATE_LIMITED = "rate_limited"
    OVERLOADED = "overloaded"
    INTERNAL = "internal"
    UNREACHABLE = "unreachable"
    SILENT = "silent"

    ERROR_IN_STREAM = "error_in_stream"
    CUT = "cut"
    ENDED_EARLY = "ended_early"
    NONSENSE = "nonsense"
    EVENT_TOO_LARGE = "event_too_large"
    STALLED = "stalled"

    @property
    def in_stream(self) -> bool:
        """Whether deltas may come before it."""
        return self in _IN_STREAM

    @property
    def needs_patience(self) -> bool:
        """Whether it shows only when a backend has waited long enough."""
        return self in {Fault.SILENT, Fault.STALLED}


_IN_STREAM: Final = frozenset(
    {
        Fault.ERROR_IN_STREAM,
        Fault.CUT,
        Fault.ENDED_EARLY,
        Fault.NONSENSE,
        Fault.EVENT_TOO_LARGE,
        Fault.STALLED,
    }
)


class Expected(Struct, frozen=True):
    """What the client is told.

    Attributes:
        status: Of the error.
        code: Of the error.
        retry_after: Value of the header, if the service gives one.
        param: Of the error.
    """

    status: int
    code: str
    retry_after: str | None = None
    param: str | None = None


EXPECTED: Final[Mapping[Fault, Expected]] = {
    Fault.BAD_REQUEST: Expected(400, "bad_temperature", param="temperature"),
    Fault.CONTEXT_OVERFLOW: Expected(400, "context_length_exceeded"),
    Fault.KEY_REFUSED: Expected(502, "upstream_authentication_error"),
    Fault.FORBIDDEN: Expected(502, "upstream_authentication_error"),
    Fault.UNPAID: Expected(402, "insufficient_quota"),
    Fault.MODEL_NOT_FOUND: Expected(404, "model_not_found"),
    Fault.TOO_LARGE: Expected(413, "request_too_large"),
    Fault.UNPROCESSABLE: Expected(422, "invalid_request"),
    Fault.RATE_LIMITED: Expected(429, "rate_limit_exceeded", retry_after="7"),
    Fault.OVERLOADED: Expected(503, "server_is_overloaded", retry_after="2"),
    Fault.INTERNAL: Expected(500, "server_error"),
    Fault.UNREACHABLE: Expected(503, "upstream_unreachable"),
    Fault.SILENT: Expected(504, "upstream_timeout"),
    Fault.ERROR_IN_STREAM: Expected(500, "server_error"),
    Fault.CUT: Expected(502, "upstream_stream_truncated"),
    Fault.ENDED_EARLY: Expected(502, "upstream_stream_truncated"),
    Fault.NONSENSE: Expected(502, "upstream_error"),
    Fault.EVENT_TOO_LARGE: Expected(502, "upstream_event_too_large"),
    Fault.STALLED: Expected(504, "upstream_timeout"),
}
"""By fault, as :mod:`ws_responses.backend_errors` has it."""
