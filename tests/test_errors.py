"""What the client is told: each error has all that clients need, and the documented words."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ws_responses import errors
from ws_responses.errors import (
    BodyTooSlow,
    ConfigurationError,
    ConnectionLimitReached,
    ConnectionsExhausted,
    EventTooLarge,
    Forbidden,
    FrameTooLarge,
    InvalidRequest,
    InvalidStoreTransition,
    InvalidStreamId,
    LanesNotServed,
    LocalProtocolError,
    MalformedFrame,
    NothingToCancel,
    PreviousResponseNotFound,
    QueueFull,
    Refused,
    RequestTooLarge,
    ResponseCancelled,
    ResponseNotStored,
    StoreError,
    StoreUnavailable,
    StreamLimitReached,
    StreamTruncated,
    ToolCallNotFound,
    ToolOutputMissing,
    TurnsExhausted,
    Unauthorized,
    Unavailable,
    UnknownEvent,
    UpstreamError,
    UpstreamTimeout,
    WireError,
    WSResponsesError,
    excerpt,
)
from ws_responses.protocol.events import encode_error

WIRE: dict[type[WireError], tuple[Callable[[], WireError], int, str, str, str | None]] = {
    WireError: (lambda: WireError("m"), 500, "server_error", "server_error", None),
    InvalidRequest: (lambda: InvalidRequest("m"), 400, "invalid_request_error", "invalid_request", None),
    MalformedFrame: (lambda: MalformedFrame("m"), 400, "invalid_request_error", "invalid_json", None),
    UnknownEvent: (lambda: UnknownEvent("m"), 400, "invalid_request_error", "unknown_event_type", None),
    InvalidStreamId: (InvalidStreamId, 400, "invalid_request_error", "invalid_stream_id", "stream_id"),
    StreamLimitReached: (
        lambda: StreamLimitReached(32),
        400,
        "invalid_request_error",
        "websocket_stream_limit_reached",
        "stream_id",
    ),
    FrameTooLarge: (lambda: FrameTooLarge(1), 413, "invalid_request_error", "websocket_message_too_big", None),
    ConnectionLimitReached: (
        lambda: ConnectionLimitReached(3600),
        400,
        "invalid_request_error",
        "websocket_connection_limit_reached",
        None,
    ),
    NothingToCancel: (lambda: NothingToCancel("m"), 404, "invalid_request_error", "response_not_found", None),
    ResponseCancelled: (ResponseCancelled, 409, "invalid_request_error", "response_cancelled", None),
    LanesNotServed: (LanesNotServed, 400, "invalid_request_error", "invalid_stream_id", "stream_id"),
    PreviousResponseNotFound: (
        lambda: PreviousResponseNotFound("resp_abc"),
        400,
        "invalid_request_error",
        "previous_response_not_found",
        "previous_response_id",
    ),
    InvalidStoreTransition: (
        lambda: InvalidStoreTransition("resp_abc"),
        400,
        "invalid_request_error",
        "invalid_store_transition",
        "store",
    ),
    ToolCallNotFound: (lambda: ToolCallNotFound("m"), 400, "invalid_request_error", "tool_call_not_found", None),
    ToolOutputMissing: (lambda: ToolOutputMissing("m"), 400, "invalid_request_error", "tool_output_missing", None),
    RequestTooLarge: (lambda: RequestTooLarge(2, 1), 413, "invalid_request_error", "request_too_large", "input"),
    BodyTooSlow: (lambda: BodyTooSlow(1.0), 408, "invalid_request_error", "request_timeout", None),
    Refused: (lambda: Refused("m"), 403, "invalid_request_error", "permission_denied", None),
    Unauthorized: (lambda: Unauthorized("m"), 401, "invalid_request_error", "invalid_api_key", None),
    Forbidden: (lambda: Forbidden("m"), 403, "invalid_request_error", "permission_denied", None),
    QueueFull: (lambda: QueueFull("m"), 429, "rate_limit_error", "websocket_queue_full", None),
    ConnectionsExhausted: (
        lambda: ConnectionsExhausted("m"),
        429,
        "rate_limit_error",
        "websocket_connections_exhausted",
        None,
    ),
    Unavailable: (lambda: Unavailable("m"), 503, "server_error", "server_is_overloaded", None),
    ResponseNotStored: (ResponseNotStored, 503, "server_error", "store_unavailable", None),
    TurnsExhausted: (TurnsExhausted, 429, "rate_limit_error", "too_many_turns", None),
    StoreUnavailable: (StoreUnavailable, 503, "server_error", "store_unavailable", None),
    UpstreamError: (lambda: UpstreamError("m"), 502, "server_error", "upstream_error", None),
    EventTooLarge: (lambda: EventTooLarge(1), 502, "server_error", "upstream_event_too_large", None),
    StreamTruncated: (StreamTruncated, 502, "server_error", "upstream_stream_truncated", None),
    UpstreamTimeout: (lambda: UpstreamTimeout("m"), 504, "server_error", "upstream_timeout", None),
}

NEVER_RAN = {
    MalformedFrame,
    UnknownEvent,
    InvalidStreamId,
    LanesNotServed,
    StreamLimitReached,
    NothingToCancel,
    ResponseCancelled,
    FrameTooLarge,
    ConnectionLimitReached,
    RequestTooLarge,
    BodyTooSlow,
    Refused,
    Unauthorized,
    Forbidden,
    QueueFull,
    ConnectionsExhausted,
    TurnsExhausted,
    Unavailable,
    StoreUnavailable,
}
"""Syntax, lane, queue, auth, quota: these evict no parent (design, lanes and eviction)."""


def public_classes() -> Iterator[type[Any]]:
    for value in vars(errors).values():
        if isinstance(value, type) and issubclass(value, WSResponsesError):
            yield value


def test_each_wire_error_is_listed_here() -> None:
    """A new one must say what clients get."""
    assert {each for each in public_classes() if issubclass(each, WireError)} == set(WIRE)


@pytest.mark.parametrize("kind", WIRE, ids=lambda kind: kind.__name__)
def test_each_error_is_what_clients_know(kind: type[WireError]) -> None:
    """Codes and statuses are keyed on by clients; a changed one breaks their recovery."""
    make, status, error_type, code, param = WIRE[kind]
    frame = json.loads(encode_error(make()))
    assert (frame["status"], frame["error"]["type"], frame["error"]["code"]) == (status, error_type, code)
    assert frame["error"]["param"] == param
    assert isinstance(frame["error"]["message"], str)
    assert frame["error"]["message"]


@pytest.mark.parametrize("kind", WIRE, ids=lambda kind: kind.__name__)
def test_only_turns_that_ran_evict_their_parent(kind: type[WireError]) -> None:
    """B093: a refusal must not cost the client its conversation."""
    assert kind.ran is (kind not in NEVER_RAN)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PreviousResponseNotFound("resp_abc"), "Previous response with id 'resp_abc' not found."),
        (
            InvalidStreamId(),
            (
                "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain letters, "
                "numbers, underscores, hyphens, and periods."
            ),
        ),
        (
            StreamLimitReached(32),
            (
                "This WebSocket connection has reached its maximum number of distinct stream IDs (32). Reuse an existing "
                "stream_id or open a new WebSocket connection."
            ),
        ),
        (
            ConnectionLimitReached(3600.0),
            "Responses websocket connection limit reached (60 minutes). Create a new websocket connection to continue.",
        ),
        (
            ConnectionLimitReached(90.0),
            "Responses websocket connection limit reached (1.5 minutes). Create a new websocket connection to continue.",
        ),
    ],
)
def test_documented_texts(error: WireError, message: str) -> None:
    """Protocol e.2: some clients match the text."""
    assert error.message == str(error).partition(": ")[2] == message


def test_one_tree() -> None:
    """Users catch one base; a misuse of theirs is also what Python calls it."""
    assert all(issubclass(each, WSResponsesError) for each in public_classes())
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(LocalProtocolError, RuntimeError)
    assert not issubclass(StoreError, WireError)
    for each in (ConfigurationError, LocalProtocolError, StoreError):
        assert str(each("text")) == "text"


def test_what_an_error_is_given_overrides_its_class() -> None:
    """Apps' own errors are passed on with their own code and status."""
    error = UpstreamError("m", code="c", status=429, type="t", param="p", headers={"retry-after": "1"}, extra={"x": 1})
    assert (error.code, error.status, error.type, error.param) == ("c", 429, "t", "p")
    assert (dict(error.headers), dict(error.extra)) == ({"retry-after": "1"}, {"x": 1})
    assert str(error) == "429 c at p: m"
    assert (UpstreamError.code, UpstreamError.status, UpstreamError.type) == ("upstream_error", 502, "server_error")


def test_a_code_is_never_empty() -> None:
    """B040: a code that is null or empty slips past the retry rules of clients."""
    assert (WireError("m", code="").code, WireError("m", type="").type) == ("server_error", "server_error")


@pytest.mark.parametrize("status", [0, 100, 200, 302, 399, 600, -400])
def test_a_status_is_one_of_an_error(status: int) -> None:
    """B048: Codex ignores an error frame with another, and the turn hangs for five minutes."""
    with pytest.raises(ValueError, match="400"):
        Refused("m", status=status)


@pytest.mark.parametrize("status", [400, 499, 500, 599])
def test_all_errors_of_http_are_allowed(status: int) -> None:
    """The operator's choice."""
    assert Refused("m", status=status).status == status


def test_excerpts() -> None:
    """What a peer sent is repeated in errors only up to a length."""
    assert excerpt("x" * 256) == "x" * 256
    assert excerpt("x" * 257) == "x" * 256 + "..."
    assert excerpt("abc", 2) == "ab..."
    assert WireError("m", param="x" * 1000).param == "x" * 256 + "..."


def test_texts_of_operators_can_always_be_sent() -> None:
    """A name out of a header may hold lone surrogates; the error must not fail by that."""
    error = Refused("no \udcff \u00e9", code="c\ud800", type="t\ud800", param="p\ud800")
    told = json.loads(encode_error(error))["error"]
    assert told == {"message": "no ? \u00e9", "code": "c?", "type": "t?", "param": "p?"}
