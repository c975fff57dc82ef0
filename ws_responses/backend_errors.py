"""What a client is told when an inference service fails: one table for all adapters.

==================  ==========================================================================================================
the service         the client
==================  ==========================================================================================================
400, 422            the same, with the service's own ``code``, ``param`` and message; a prompt that is too long is always
                    400 ``context_length_exceeded``
401, 403, 407       502 ``upstream_authentication_error``: the service refused *our* key, which is no fault of the client's; its
                    message may quote the key, and stays here
402                 402 ``insufficient_quota``; its message speaks of the operator's account, and stays here
404                 404 ``model_not_found`` if it speaks of the model, else 502 ``upstream_error``: our base URL is wrong
408, 504            504 ``upstream_timeout``
409                 409 ``conflict``
413                 413 ``request_too_large``
429                 429 ``rate_limit_exceeded`` (or ``insufficient_quota``, ``slow_down``), retry-after passed on
503, 529            503 ``server_is_overloaded``, retry-after passed on
other 4xx           502 ``upstream_error``: the request was of our making
other 5xx           the same, ``server_error``
no connection       503 ``upstream_unreachable``
silence             504 ``upstream_timeout``
cut off             502 ``upstream_stream_truncated``
nonsense            502 ``upstream_error``
==================  ==========================================================================================================

An ``error`` event inside a stream is told like the answer with its status; without one it is a 500.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from ws_responses.errors import UpstreamError, UpstreamTimeout, WireError
from ws_responses.upstreams.answers import error_from_answer, error_from_event

logger = logging.getLogger("ws_responses.backend")

_OVERFLOW_CODES: Final = frozenset({"context_length_exceeded", "exceed_context_size_error"})
_OVERFLOW_WORDS: Final = (
    "maximum context length",  # OpenAI, vLLM, Cerebras, Fireworks
    "context size",  # llama.cpp
    "context window",
    "longer than the model's context length",  # SGLang
    "max_seq_len",  # TensorRT-LLM
)
_RATE_CODES: Final = frozenset({"rate_limit_exceeded", "insufficient_quota", "slow_down"})
"""Codes of a 429 that clients know; others become the first."""

_KEPT_HEADERS: Final = ("retry-after", "retry-after-ms", "x-should-retry", "x-request-id")
_RATE_LIMITS: Final = "x-ratelimit-"


def service_error(status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> WireError:
    """Return what the client is told of a service's HTTP answer that is none of a generation.

    Args:
        status: Of the answer. One outside of 400..599 is nonsense.
        headers: Of the answer, as they came.
        body: Of the answer, in any of the shapes that services use; bound it before.
    """
    if not 400 <= status <= 599:
        return nonsense(f"It answered with status {status}.")
    headers = list(headers)
    error = error_from_answer(status, headers, body)
    if error.message == error_from_answer(status, (), b"").message:
        error = _copy(error, message=f"The backend answered with an error (status {status}).")
    return _mapped(error)


def stream_error(event: Mapping[str, Any]) -> WireError:
    """Return what the client is told of an error inside a stream that began well.

    Args:
        event: The decoded event, with the error in a member ``error``, or flat.
    """
    error = error_from_event(event)
    if error.message == error_from_event({"status": error.status}).message:
        error = _copy(error, message="The backend failed while it sampled.")
    return _mapped(error)


def unreachable() -> WireError:
    """Return what the client is told when no connection to the service comes about, or it ends before the answer."""
    return UpstreamError("The backend cannot be reached.", status=503, code="upstream_unreachable")


def timed_out(what: str, seconds: float) -> WireError:
    """Return what the client is told when the service is silent for too long.

    Args:
        what: What did not come, for example "first event".
        seconds: How long it was waited for.
    """
    return UpstreamTimeout(f"The backend sent no {what} within {seconds:g} seconds.")


def nonsense(message: str) -> WireError:
    """Return what the client is told when the service's answer cannot be read.

    Args:
        message: One sentence on what came, without its content.
    """
    return UpstreamError(f"The backend's answer cannot be read. {message}")


def _mapped(error: WireError) -> WireError:
    match error.status:
        case 400 | 422:
            return _refused_request(error)
        case 401 | 403 | 407:
            logger.error("the backend refused our credentials (status %d)", error.status)
            return _copy(
                error,
                message="The server could not authenticate itself to its backend.",
                status=502,
                type="server_error",
                code="upstream_authentication_error",
                param=None,
            )
        case 402:
            logger.error("the backend wants to be paid (status 402)")
            return _copy(
                error,
                message="The server's quota with its backend is used up.",
                type="insufficient_quota",
                code="insufficient_quota",
                param=None,
            )
        case 404:
            return _not_found(error)
        case 408 | 504:
            return _copy(error, status=504, type="server_error", code="upstream_timeout")
        case 409:
            return _copy(error, type="conflict_error", code="conflict")
        case 413:
            return _copy(error, type="invalid_request_error", code="request_too_large")
        case 429:
            code = error.code if error.code in _RATE_CODES else "rate_limit_exceeded"
            kind = "insufficient_quota" if code == "insufficient_quota" else "rate_limit_error"
            return _copy(error, type=kind, code=code)
        case 503 | 529:
            return _copy(error, status=503, type="server_error", code="server_is_overloaded")
        case status if status < 500:
            return nonsense(f"It answered with status {status}.")
        case _:
            return _copy(error, type="server_error", code="server_error")


def _refused_request(error: WireError) -> WireError:
    words = error.message.lower()
    named = error.code in _OVERFLOW_CODES or error.type in _OVERFLOW_CODES
    if named or any(phrase in words for phrase in _OVERFLOW_WORDS):
        return _copy(error, status=400, type="invalid_request_error", code="context_length_exceeded")
    return _copy(error, type="invalid_request_error")


def _not_found(error: WireError) -> WireError:
    if error.code == "model_not_found" or error.param == "model" or "model" in error.message.lower():
        return _copy(error, type="invalid_request_error", code="model_not_found")
    return nonsense("It answered with status 404; its base URL may be wrong.")


_SAME: Final[Any] = object()


def _copy(
    error: WireError,
    *,
    message: str | None = None,
    status: int | None = None,
    type: str | None = None,  # noqa: A002 - the wire's own word
    code: str | None = None,
    param: str | None = _SAME,
) -> WireError:
    """Return the error with other members, and without headers and members that are the operator's affair."""
    kept = {name: value for name, value in error.headers.items() if _is_kept(name)}
    return UpstreamError(
        message or error.message,
        status=status or error.status,
        type=type or error.type,
        code=code or error.code,
        param=error.param if param is _SAME else param,
        headers=kept,
    )


def _is_kept(name: str) -> bool:
    return name in _KEPT_HEADERS or name.startswith(_RATE_LIMITS)
