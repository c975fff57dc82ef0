"""Errors of an app, in whatever shape they come, as one kind of wire error."""

import codecs
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import msgspec

from ws_responses.errors import UpstreamError, WireError
from ws_responses.protocol.events import encode
from ws_responses.protocol.text import mended
from ws_responses.upstreams.sse import SSEDecoder

Headers = Iterable[tuple[bytes, bytes]]

KEPT_HEADERS: Final = ("retry-after", "retry-after-ms", "x-request-id", "x-should-retry")
KEPT_HEADER_PREFIXES: Final = ("x-ratelimit-", "x-codex-", "openai-")
MAX_MESSAGE_CHARS: Final = 1000

_BY_STATUS: Final[dict[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("invalid_request_error", "invalid_api_key"),
    402: ("insufficient_quota", "insufficient_quota"),
    403: ("invalid_request_error", "permission_denied"),
    404: ("invalid_request_error", "not_found"),
    413: ("invalid_request_error", "request_too_large"),
    422: ("invalid_request_error", "invalid_request"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
    503: ("server_error", "server_is_overloaded"),
}

_STATUS_BY_CODE: Final[dict[str, int]] = {
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "previous_response_not_found": 400,
    "server_is_overloaded": 503,
    "slow_down": 429,
}

_MARKUP: Final = re.compile(r"<\s*(!doctype|html|head|body|h1|title|p|pre)\b", re.IGNORECASE)
_TRACEBACK: Final = "Traceback (most recent call last)"
_STATUS: Final = re.compile(r"[45]\d\d")
_FIELD_NAME: Final = re.compile(r"[A-Za-z0-9-]+")
_FIELD_VALUE: Final = re.compile(r"[!-~]([ -~]*[!-~])?")
_ABSENT: Final = frozenset({"", "None", "null"})
"""Texts that stand for nothing (LiteLLM writes ``"param": "None"``)."""

_OUR_MEMBERS: Final = frozenset(
    {"type", "code", "message", "param", "headers", "sequence_number", "stream_id", "status", "status_code", "error"}
)
"""Members of an app's error that have a place of their own on the wire; others are passed on."""


def kept_headers(headers: Headers) -> dict[str, str]:
    """Return the response headers that a client can use: retry-after, rate limits, request ids."""
    kept: dict[str, str] = {}
    for name, value in headers:
        key = bytes(name).decode("latin-1").lower()
        if _is_kept(key):
            kept[key] = bytes(value).decode("latin-1")
    return kept


def _is_kept(name: str) -> bool:
    return name in KEPT_HEADERS or name.startswith(KEPT_HEADER_PREFIXES)


def decode_answer(body: bytes | msgspec.Raw) -> Any:
    """Decode JSON of an app; None if it is none, or cannot be read."""
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def error_from_answer(status: int, headers: Headers, body: bytes) -> WireError:
    """Return the wire error for an HTTP answer that is not 2xx (or not what it should be).

    Takes OpenAI's shape, FastAPI's ``detail``, bare ``message`` objects, an event stream with an error event, plain text
    and markup; markup and tracebacks are never passed on.
    """
    headers = list(headers)
    if not 400 <= status <= 599:
        return UpstreamError(f"The app answered with status {status}, where a response was expected.")
    kept = kept_headers(headers)
    text = mended(body)
    content = decode_answer(text)
    if content is None:
        content = _error_event(text)
    if content is None:
        return _from_text(status, _plain_text(text), kept)
    if isinstance(content, str):
        return _from_text(status, content, kept)
    return _from_object(status, content, kept)


def _from_object(status: int, content: Any, headers: Mapping[str, str]) -> WireError:
    error = _object(content)
    detail = error.get("detail")
    inner = _object(detail)
    for candidate in (error.get("error"), inner.get("error"), _messaged(inner)):
        if isinstance(candidate, dict):
            return error_from_object(_object(candidate), status=status, headers=headers)
    if detail is not None:
        message, param = _detail(detail)
        return _from_text(status, message, headers, param=param)
    return error_from_object(_messaged(error) or {}, status=status, headers=headers)


def _messaged(error: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an error without the usual envelope, with its text as ``message``; None if it has no text."""
    for name in ("message", "error", "title"):
        if isinstance(error.get(name), str):
            return {**error, "message": error[name]}
    return None


def error_from_event(event: Mapping[str, Any]) -> WireError:
    """Return the wire error for an ``error`` event inside a stream, in any of its three shapes."""
    body = event.get("error")
    status = _status(event.get("status")) or _status(event.get("status_code"))
    kept = _told_headers(event.get("headers"))
    return error_from_object(_object(body) or _messaged(event) or event, status=status, headers=kept)


def says_not_found(error: WireError, response_id: str) -> bool:
    """Whether an error says of a response that it is not there, as apps do that have no code of their own for it (vLLM, OGX)."""
    return error.status == 404 and error.code == _BY_STATUS[404][1] and response_id in error.message


def failure_code(event: bytes) -> str | None:
    """Return the error code of a ``response.failed`` event, None if it names none."""
    match msgspec.json.decode(event):
        case {"response": {"error": {"code": str(code)}}}:
            return code
        case _:
            return None


def error_from_object(body: Mapping[str, Any], *, status: int | None, headers: Mapping[str, str]) -> WireError:
    """Return the wire error for an OpenAI-style error object; what it lacks is derived from the status or the code."""
    code = _given(body.get("code"))
    if status is None:
        # Some servers put an HTTP status into ``code``, as a string (OGX).
        status = _status(code) or _STATUS_BY_CODE.get(code or "")
    kind = _given(body.get("type"))
    if kind == "error":
        kind = None  # the type of a flat event
    if status is None:
        status = 400 if kind == "invalid_request_error" else 500
    default_type, default_code = _defaults(status)
    return UpstreamError(
        _public(body.get("message")) or f"The app answered with an error (status {status}).",
        status=status,
        type=kind or default_type,
        code=default_code if code is None or _status(code) else code,
        param=_given(body.get("param")),
        headers={**_told_headers(body.get("headers")), **headers},
        extra={name: value for name, value in body.items() if name not in _OUR_MEMBERS and _is_public(value)},
    )


def _from_text(status: int, message: str | None, headers: Mapping[str, str], *, param: str | None = None) -> WireError:
    kind, code = _defaults(status)
    text = _public(message) or f"The app answered with an error (status {status})."
    return UpstreamError(text, status=status, type=kind, code=code, param=param, headers=headers)


def _defaults(status: int) -> tuple[str, str]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ("invalid_request_error", "invalid_request") if status < 500 else ("server_error", "server_error")


# --- what an app's error may hold ---------------------------------------------------------------------------------------


def _object(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[object]:
    return cast("list[object]", value) if isinstance(value, list) else []


def _given(value: Any) -> str | None:
    if type(value) is int:
        return str(value)
    return value if isinstance(value, str) and value not in _ABSENT else None


def _status(value: Any) -> int | None:
    text = _given(value)
    return int(text) if text is not None and _STATUS.fullmatch(text) else None


def _told_headers(value: Any) -> dict[str, str]:
    """Return headers that stand in JSON, as far as they can be headers of an HTTP answer as well.

    JSON spells what no header may hold: a line end would begin another header, or the body.
    """
    told: dict[str, str] = {}
    for name, one in _object(value).items():
        text = one if isinstance(one, str) else encode(one).decode() if isinstance(one, int | float) else ""
        if _is_kept(name.lower()) and _FIELD_NAME.fullmatch(name) and _FIELD_VALUE.fullmatch(text):
            told[name.lower()] = text
    return told


def _detail(detail: Any) -> tuple[str | None, str | None]:
    """FastAPI's ``detail``: a text, or a list of pydantic findings with ``loc`` and ``msg``."""
    if isinstance(detail, str):
        return detail, None
    findings = _list(detail)
    first = _object(findings[0]) if findings else {}
    where = [part for part in _list(first.get("loc")) if part != "body"]
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")
    message = first.get("msg")
    if not isinstance(message, str):
        return "The app refused the request.", path or None
    return (f"{path}: {message}" if path else message), path or None


def _error_event(body: bytes) -> Any:
    """Return the first event of an answer that is an event stream in spite of its status."""
    for event in SSEDecoder(max_event_bytes=len(body) + 1).feed(body + b"\n\n"):
        content = decode_answer(event)
        if isinstance(content, dict):
            members = _object(content)
            return members if isinstance(members.get("error"), dict) else {"error": members}
    return None


def _plain_text(body: bytes) -> str | None:
    cut = body[: 4 * MAX_MESSAGE_CHARS]
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(cut).strip()
    if "\ufffd" in text or _MARKUP.search(text):
        return None
    return text if all(character.isprintable() or character in "\r\n\t" for character in text) else None


def _public(message: Any) -> str | None:
    """Return a message as it may be shown: no traceback, and no longer than it need be."""
    if not isinstance(message, str) or message.strip() in _ABSENT or _TRACEBACK in message:
        return None
    return message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + "..."


def _is_public(value: Any) -> bool:
    return _TRACEBACK.encode() not in encode(value)
