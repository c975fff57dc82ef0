"""Failures of Cerebras, and of the SDK, as wire errors."""

import re
from typing import Final

from ws_responses.backend_errors import service_error, timed_out, unreachable
from ws_responses.backends import PromptNotAccepted
from ws_responses.errors import StreamTruncated, WireError
from ws_responses.extras import Extra

with Extra("cerebras"):
    import aiohttp
    import httpx
    from cerebras.cloud.sdk import APIConnectionError

LOST: Final = (APIConnectionError, httpx.HTTPError, httpx.StreamError, aiohttp.ClientError, OSError)
"""What a failing connection raises, before an answer and within one."""

_NOT_SERVED: Final = frozenset({404, 405, 415, 501})
"""Statuses that speak of the path, the model or the encoding, never of what a client asked for."""

_REFUSED: Final = frozenset({400, 422})
_OURS: Final = frozenset({"model", "prompt", "return_raw_tokens"})
"""Fields that are wrong by the way that was chosen (ids, and to this model), not by what a client asked for."""

_MODEL_CODES: Final = frozenset({"model_not_found", "model_not_supported", "unsupported_model", "unsupported_endpoint"})

_FIELD: Final = re.compile(r"\s*(?:body\.)?([a-z_]+)[\w.\[\]]*:")
"""Beginning of a message on a field: ``prompt.0: expected string``."""


def not_opened(error: Exception, silence_s: float | None) -> WireError:
    """Return the wire error for a connection that failed before the answer.

    Args:
        error: One of ``LOST``.
        silence_s: How long is waited.
    """
    return timed_out("answer", silence_s) if silence_s and _is_timeout(error) else unreachable()


def broken_off(error: Exception, silence_s: float | None) -> WireError:
    """Return the wire error for a connection that failed within the answer.

    Args:
        error: One of ``LOST``.
        silence_s: How long is waited.
    """
    return timed_out("further event", silence_s) if silence_s and _is_timeout(error) else StreamTruncated()


def refused(response: httpx.Response, *, tokens: bool) -> WireError:
    """Return the wire error for an answer that is none of a generation.

    Args:
        response: It.
        tokens: The prompt was of token ids: if the answer is about these as such, or of this model, it is a
            ``PromptNotAccepted``, which sends the engine the other way.
    """
    status = response.status_code
    error = service_error(status, response.headers.raw, response.content)
    if not tokens or not _is_about_ids(status, error):
        return error
    return PromptNotAccepted(f"The backend does not take token ids here (status {status}): {error.message}")


def _is_about_ids(status: int, error: WireError) -> bool:
    """Which answers Cerebras gives where it takes no ids is not documented; this is what can mean nothing else."""
    if status in _NOT_SERVED:
        return True
    if status not in _REFUSED or error.code == "context_length_exceeded":
        return False
    named = _FIELD.match(error.message)
    fields = {re.split(r"[.\[]", error.param or "")[0], named[1] if named else ""}
    return error.code in _MODEL_CODES or not fields.isdisjoint(_OURS)


def _is_timeout(error: BaseException | None) -> bool:
    # The transport calls every broken connection a timeout: what was behind it tells. A connection that does not come about
    # in time is none of the service's silence.
    while error is not None and not isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)):
        if isinstance(error, TimeoutError):
            return True
        error = error.__cause__
    return False
