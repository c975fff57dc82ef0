"""Answers that are no event stream: JSON objects made into one, and every kind of error made into one wire error."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from ws_responses.errors import UpstreamError, WireError

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

_MARKUP = re.compile(r"<\s*(!doctype|html|head|body|h1|title|p|pre)\b", re.IGNORECASE)


def kept_headers(headers: Headers) -> dict[str, str]:
    """Return the response headers that a client can use: retry-after, rate limits, request ids."""
    kept = {}
    for name, value in headers:
        key = bytes(name).decode("latin-1").lower()
        if key in KEPT_HEADERS or key.startswith(KEPT_HEADER_PREFIXES):
            kept[key] = bytes(value).decode("latin-1")
    return kept


def _defaults(status: int) -> tuple[str, str]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    return ("invalid_request_error", "invalid_request") if status < 500 else ("server_error", "server_error")


def error_from_answer(status: int, headers: Headers, body: bytes) -> WireError:
    """Return the wire error for an HTTP answer that is not 2xx (or not what it should be).

    Takes OpenAI's shape, FastAPI's ``detail``, bare ``message`` objects, plain text and markup; markup is never passed on.
    """
    headers = list(headers)
    if status < 400:
        return UpstreamError(f"The app answered with status {status}, where a response was expected.")
    kept = kept_headers(headers)
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _wire_error(status, _plain_text(body) or f"The app answered with status {status}.", headers=kept)
    if isinstance(content, dict):
        if isinstance(content.get("error"), dict):
            return error_from_object(content["error"], status=status, headers=kept)
        if isinstance(content.get("detail"), dict) and isinstance(content["detail"].get("error"), dict):
            return error_from_object(content["detail"]["error"], status=status, headers=kept)
        if "detail" in content:
            message, param = _detail(content["detail"])
            return _wire_error(status, message, param=param, headers=kept)
        text = content.get("error", content.get("message", content.get("title")))
        if isinstance(text, str) and text:
            return _wire_error(status, text, headers=kept)
    if isinstance(content, str) and content:
        return _wire_error(status, content, headers=kept)
    return _wire_error(status, f"The app answered with status {status}.", headers=kept)


def error_from_event(event: Mapping[str, Any]) -> WireError:
    """Return the wire error for an ``error`` event inside a stream, in any of its three shapes."""
    body = event.get("error")
    status = event.get("status", event.get("status_code"))
    if not isinstance(status, int) or isinstance(status, bool) or not 400 <= status <= 599:
        status = None
    headers = event.get("headers")
    kept = {str(k).lower(): str(v) for k, v in headers.items()} if isinstance(headers, dict) else {}
    return error_from_object(body if isinstance(body, dict) else event, status=status, headers=kept)


def error_from_object(body: Mapping[str, Any], *, status: int | None, headers: Mapping[str, str]) -> WireError:
    """Return the wire error for an OpenAI-style error object; what it lacks is derived from the status or the code."""
    code = body.get("code")
    if isinstance(code, int) and not isinstance(code, bool):
        code = str(code)
    if status is None and isinstance(code, str):
        # Some servers put an HTTP status into ``code``, as a string (OGX).
        status = int(code) if re.fullmatch(r"[45]\d\d", code) else _STATUS_BY_CODE.get(code)
    kind = body.get("type")
    if kind == "error" or not isinstance(kind, str):
        kind = None
    if status is None:
        status = 400 if kind == "invalid_request_error" else 500
    default_type, default_code = _defaults(status)
    if isinstance(code, str) and re.fullmatch(r"[45]\d\d", code):
        code = None
    message = body.get("message")
    param = body.get("param")
    extra = {
        name: value
        for name, value in body.items()
        if name not in {"type", "code", "message", "param", "headers", "sequence_number", "stream_id", "status"}
    }
    own = body.get("headers")
    if isinstance(own, dict):
        headers = {**{str(k).lower(): str(v) for k, v in own.items()}, **headers}
    return UpstreamError(
        _clip(message) if isinstance(message, str) and message else f"The app reported an error (status {status}).",
        status=status,
        type=kind or default_type,
        code=code if isinstance(code, str) and code else default_code,
        param=param if isinstance(param, str) else None,
        headers=headers,
        extra=extra,
    )


def _wire_error(status: int, message: str, *, param: str | None = None, headers: Mapping[str, str]) -> WireError:
    kind, code = _defaults(status)
    return UpstreamError(_clip(message), status=status, type=kind, code=code, param=param, headers=headers)


def _detail(detail: Any) -> tuple[str, str | None]:
    """FastAPI's ``detail``: a text, or a list of pydantic findings with ``loc`` and ``msg``."""
    if isinstance(detail, str):
        return detail, None
    if isinstance(detail, list) and detail and isinstance(detail[0], dict):
        first = detail[0]
        where = [part for part in first.get("loc", ()) if part != "body"] if isinstance(first.get("loc"), list) else []
        path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in where).removeprefix(".")
        message = first.get("msg")
        return (f"{path}: {message}" if path else str(message)), path or None
    if isinstance(detail, dict) and isinstance(detail.get("message"), str):
        return detail["message"], None
    return "The app refused the request.", None


def _plain_text(body: bytes) -> str | None:
    try:
        text = body[: 4 * MAX_MESSAGE_CHARS].decode().strip()
    except UnicodeDecodeError:
        return None
    if not text or _MARKUP.search(text) or "Traceback (most recent call last)" in text:
        return None
    return text if text.isprintable() or "\n" in text else None


def _clip(message: str) -> str:
    return message if len(message) <= MAX_MESSAGE_CHARS else message[:MAX_MESSAGE_CHARS] + "..."


# --- a whole response as a stream -----------------------------------------------------------------------------------

_TERMINAL_BY_STATUS: Final = {
    "failed": "response.failed",
    "incomplete": "response.incomplete",
    "cancelled": "response.failed",
}


def response_object(body: bytes) -> dict[str, Any]:
    """Return the response object of a JSON answer.

    Raises:
        UpstreamError: It is no such object.
    """
    try:
        response = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UpstreamError("The app's answer is neither an event stream nor JSON.") from None
    if isinstance(response, dict) and isinstance(response.get("error"), dict) and "output" not in response:
        raise error_from_object(response["error"], status=None, headers={})
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise UpstreamError("The app's answer is not a response object.")
    return response


def as_events(response: dict[str, Any], clock: Callable[[], float] = time.time) -> Iterator[dict[str, Any]]:
    """Yield the events of a response that came whole, in the usual order; numbers are left to the repairs.

    Args:
        response: The response object.
        clock: Unix time, for a missing ``created_at``.
    """
    response.setdefault("object", "response")
    response.setdefault("created_at", int(clock()))
    status = response.setdefault("status", "completed")
    early = {**response, "status": "in_progress", "output": [], "usage": None, "error": None}
    if "completed_at" in early:
        early["completed_at"] = None
    yield {"type": "response.created", "response": early}
    yield {"type": "response.in_progress", "response": early}
    for index, item in enumerate(response["output"]):
        if isinstance(item, dict):
            yield from item_events(item, index)
    yield {"type": _TERMINAL_BY_STATUS.get(status, "response.completed"), "response": response}


def item_events(item: dict[str, Any], index: int) -> Iterator[dict[str, Any]]:
    """Yield the events of one finished output item."""
    at = {"item_id": item.get("id"), "output_index": index}
    kind = item.get("type")
    begun = {**item, "status": "in_progress"} if "status" in item else dict(item)
    parts: list[Any] = []
    if kind == "message" and isinstance(item.get("content"), list):
        parts, begun["content"] = item["content"], []
    elif kind == "function_call":
        begun["arguments"] = ""
    elif kind == "custom_tool_call":
        begun["input"] = ""
    yield {"type": "response.output_item.added", "output_index": index, "item": begun}
    for number, part in enumerate(parts):
        if isinstance(part, dict):
            yield from _part_events(part, {**at, "content_index": number})
    if kind == "function_call":
        text = item.get("arguments", "")
        yield {"type": "response.function_call_arguments.delta", **at, "delta": text}
        yield {"type": "response.function_call_arguments.done", **at, "arguments": text}
    elif kind == "custom_tool_call":
        text = item.get("input", "")
        yield {"type": "response.custom_tool_call_input.delta", **at, "delta": text}
        yield {"type": "response.custom_tool_call_input.done", **at, "input": text}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _part_events(part: dict[str, Any], at: dict[str, Any]) -> Iterator[dict[str, Any]]:
    kind = part.get("type")
    member = {"output_text": "text", "refusal": "refusal"}.get(kind or "")
    yield {
        "type": "response.content_part.added",
        **at,
        "part": {**part, member: ""} if member else part,
    }
    if member:
        logprobs = {"logprobs": part.get("logprobs") or []} if kind == "output_text" else {}
        text = part.get(member, "")
        yield {"type": f"response.{kind}.delta", **at, "delta": text, **logprobs}
        yield {"type": f"response.{kind}.done", **at, member: text, **logprobs}
    yield {"type": "response.content_part.done", **at, "part": part}
