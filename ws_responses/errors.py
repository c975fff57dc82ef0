"""One tree of exceptions.

``WSResponsesError``
    ``ConfigurationError``      wrong options, raised by constructors
        ``MissingExtra``        a package is not installed
    ``LocalProtocolError``      our caller misused the sans-IO session
    ``StoreError``              a response store failed
        ``RecordUnreadable``    what it holds is damaged, or not for us
    ``WireError``               something the client is told: knows ``status``, ``type``, ``code``, ``param``
        ``InvalidRequest``      400 and its documented relatives
        ``Refused``             authentication, authorisation, quota, queue: the turn never ran
        ``UpstreamError``       the wrapped app (or a backend) failed

Every wire error has a *string* ``code`` and a status of 400 or more, because clients drop error frames that lack either
(Codex ignores a frame without ``status``; Open Responses demands ``code``). Messages say what was expected and what
came, and hold no content, no key and nothing of a traceback.
"""

from collections.abc import Mapping
from typing import ClassVar


class WSResponsesError(Exception):
    """Base of all exceptions of this package."""


class ConfigurationError(WSResponsesError, ValueError):
    """An option of a constructor is wrong or contradicts another."""


class MissingExtra(ConfigurationError, ImportError):
    """A package that an optional part needs is not installed; the message has the command that installs it.

    Args:
        message: For people.
        name: The package.
    """

    def __init__(self, message: str, *, name: str | None = None) -> None:
        super().__init__(message)
        self.name = name


class LocalProtocolError(WSResponsesError, RuntimeError):
    """The caller of a sans-IO object broke its contract (a bug in the shell, never the peer's doing)."""


class StoreError(WSResponsesError):
    """A response store could not answer."""


class RecordUnreadable(StoreError):
    """What a store holds of a chain is damaged, sealed with another key, made by a newer version, or not what was asked for.

    Asking again would not help: it counts as not found, whatever the store does when it fails.
    """


def excerpt(text: str, limit: int = 256) -> str:
    """Return a peer's word as an error may repeat it: whole if it is of any sensible length, else its beginning."""
    return text if len(text) <= limit else text[:limit] + "..."


def _sendable(text: str) -> str:
    # An operator's text may come from a header or a path, with lone surrogates in it; UTF-8 has none.
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


class WireError(WSResponsesError):
    """A failure that the client is told, with its wire representation.

    Args:
        message: Text for the client.
        param: Path of the field at fault, for example ``input[2].call_id``.
        code: Overrides the class's string code, unless it is empty.
        status: Overrides the class's HTTP status (400..599).
        type: Overrides the class's error type.
        headers: Headers worth keeping, lower-case names (``retry-after``, rate limits).
        extra: Further members of the ``error`` object, kept from an app's own error body.

    Raises:
        ValueError: The status is none of an error: clients would take the frame for a success, or ignore it.
    """

    status: int = 500
    type: str = "server_error"
    code: str = "server_error"
    ran: ClassVar[bool] = True
    """Whether the turn had begun to run: only then a same-lane parent is evicted."""

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int | None = None,
        type: str | None = None,  # noqa: A002 - the wire's own word
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> None:
        message = _sendable(message)
        super().__init__(message)
        self.message = message
        self.param = None if param is None else excerpt(_sendable(param))
        if code:
            self.code = _sendable(code)
        if status is not None:
            if not 400 <= status <= 599:
                raise ValueError(f"the status of an error is 400..599, not {status!r}")
            self.status = status
        if type:
            self.type = _sendable(type)
        self.headers: Mapping[str, str] = headers or {}
        self.extra: Mapping[str, object] = extra or {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.status} {self.code}>"  # its message may be the app's, with content

    def __str__(self) -> str:
        where = f" at {self.param}" if self.param else ""
        return f"{self.status} {self.code}{where}: {self.message}"


def meaning_of(code: str | None) -> tuple[int, str]:
    """Return status and type of an error that is known by its code alone; those of a server's error for one that we do not know."""
    return _meanings(WireError).get(code or "", (WireError.status, WireError.type))


def _meanings(kind: type[WireError]) -> dict[str, tuple[int, str]]:
    known = {kind.code: (kind.status, kind.type)}
    for relative in kind.__subclasses__():
        known = _meanings(relative) | known
    return known


# --- 400: the frame or its references -------------------------------------------------------------------------------


class InvalidRequest(WireError):
    """The request is wrong."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_request"


class MalformedFrame(InvalidRequest):
    """The frame cannot be read or routed; it never became a turn."""

    code = "invalid_json"
    ran = False


class UnknownEvent(MalformedFrame):
    """The frame's ``type`` is not one that we serve."""

    code = "unknown_event_type"


class InvalidStreamId(MalformedFrame):
    """``stream_id`` is not 1..256 characters of ``[A-Za-z0-9_.-]`` (guide, multiplexing)."""

    code = "invalid_stream_id"

    def __init__(self) -> None:
        super().__init__(
            "The 'stream_id' field must be a non-empty string with at most 256 characters and may only contain "
            "letters, numbers, underscores, hyphens, and periods.",
            param="stream_id",
        )


class LanesNotServed(MalformedFrame):
    """A ``stream_id`` under the profile "open-responses", which has no lanes."""

    code = "invalid_stream_id"

    def __init__(self) -> None:
        super().__init__(
            "This endpoint serves one response at a time on a connection: leave out 'stream_id', and open further "
            "connections for what is to run at once.",
            param="stream_id",
        )


class StreamLimitReached(MalformedFrame):
    """One distinct lane name too many for this connection (guide: 32 for the life of the connection)."""

    code = "websocket_stream_limit_reached"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"This WebSocket connection has reached its maximum number of distinct stream IDs ({limit}). Reuse an "
            "existing stream_id or open a new WebSocket connection.",
            param="stream_id",
        )


class FrameTooLarge(MalformedFrame):
    """A frame above the limit. The connection is closed with 1009; this is what its other turns are told before."""

    status = 413
    code = "websocket_message_too_big"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The connection was closed because a message had more than {limit} bytes.")


class ConnectionLimitReached(MalformedFrame):
    """The connection is too old for another turn (guide: 60 minutes)."""

    code = "websocket_connection_limit_reached"

    def __init__(self, max_age_s: float) -> None:
        minutes = f"{max_age_s / 60:g}"
        super().__init__(
            f"Responses websocket connection limit reached ({minutes} minutes). Create a new websocket connection to "
            "continue."
        )


class NothingToCancel(MalformedFrame):
    """A ``response.cancel`` for what does not run or wait on this connection; nothing is changed by it."""

    status = 404
    code = "response_not_found"


class ResponseCancelled(InvalidRequest):
    """What the client has cancelled itself (``accept_cancel=True``) before its ``response.created``."""

    status = 409
    code = "response_cancelled"
    ran = False

    def __init__(self) -> None:
        super().__init__("The response was cancelled by 'response.cancel'.")


class PreviousResponseNotFound(InvalidRequest):
    """The parent is unknown, foreign, expired, evicted or deleted: one answer for all, so that it tells nothing."""

    code = "previous_response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Previous response with id '{response_id}' not found.", param="previous_response_id")


class InvalidStoreTransition(InvalidRequest):
    """``store: true`` on top of a parent that was not to be stored."""

    code = "invalid_store_transition"

    def __init__(self, response_id: str) -> None:
        super().__init__(
            f"A response with store=true cannot continue response '{response_id}', which was created with "
            "store=false. Send store=false, or start a new chain.",
            param="store",
        )


class ToolCallNotFound(InvalidRequest):
    """A tool output answers no open call of the chain."""

    code = "tool_call_not_found"


class ToolOutputMissing(InvalidRequest):
    """A generating turn leaves a client-executed call unanswered."""

    code = "tool_output_missing"


class RequestTooLarge(InvalidRequest):
    """The request rebuilt from the chain is larger than the app is to be given.

    The app was not called, and the parent stays: the way out is to compact what it holds.
    """

    status = 413
    code = "request_too_large"
    ran = False

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"The request rebuilt from this conversation has {size} bytes, above the limit of {limit}. Compact the "
            "conversation or start a new chain.",
            param="input",
        )


class BodyTooSlow(InvalidRequest):
    """The body of a POST did not come in time.

    Args:
        limit_s: The time that it had.
        headers: Of the answer.
    """

    status = 408
    code = "request_timeout"
    ran = False

    def __init__(self, limit_s: float, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"The body of the request did not come within {limit_s:g} seconds.", headers=headers)


# --- refused: the turn never ran ------------------------------------------------------------------------------------


class Refused(WireError):
    """The turn was turned away before it ran."""

    status = 403
    type = "invalid_request_error"
    code = "permission_denied"
    ran = False


class Unauthorized(Refused):
    """No credential, or one that is not (or no longer) good."""

    status = 401
    code = "invalid_api_key"


class Forbidden(Refused):
    """A good credential that may not do this."""


class QueueFull(Refused):
    """Too many queued creates (count or bytes) on this connection."""

    status = 429
    type = "rate_limit_error"
    code = "websocket_queue_full"


class ConnectionsExhausted(Refused):
    """Too many connections, of the tenant or of the process."""

    status = 429
    type = "rate_limit_error"
    code = "websocket_connections_exhausted"


class TurnsExhausted(Refused):
    """Too many turns of the tenant run at once, over all of its connections."""

    status = 429
    type = "rate_limit_error"
    code = "too_many_turns"

    def __init__(self) -> None:
        super().__init__("Too many responses at once with this credential. Try again.", headers={"retry-after": "1"})


class Unavailable(Refused):
    """The process is draining or a check could not be made in time."""

    status = 503
    type = "server_error"
    code = "server_is_overloaded"


class StoreUnavailable(Unavailable):
    """The response store does not answer, and is one that fails closed: whether the parent exists is not known."""

    code = "store_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "The stored response cannot be reached at the moment. Try again.", headers={"retry-after": "1"}
        )


class ResponseNotStored(WireError):
    """With ``durable=True``: the response was made, but the store did not take it, so that it is not given out as a success.

    The turn ran, and its parent is evicted like that of any failed one: a client sends the whole conversation then.
    """

    status = 503
    code = "store_unavailable"

    def __init__(self) -> None:
        super().__init__(
            "The response could not be stored, which is required here. Try again.", headers={"retry-after": "1"}
        )


# --- the upstream ---------------------------------------------------------------------------------------------------


class UpstreamError(WireError):
    """The wrapped app or the backend failed."""

    status = 502
    code = "upstream_error"


class EventTooLarge(UpstreamError):
    """One event of the upstream exceeds the limit."""

    code = "upstream_event_too_large"

    def __init__(self, limit: int) -> None:
        super().__init__(f"The upstream sent an event of more than {limit} bytes.")


class StreamTruncated(UpstreamError):
    """The upstream's stream ended without a terminal event."""

    code = "upstream_stream_truncated"

    def __init__(self) -> None:
        super().__init__("The upstream ended its stream without a terminal event.")


class UpstreamTimeout(UpstreamError):
    """The upstream was silent for too long."""

    status = 504
    code = "upstream_timeout"
