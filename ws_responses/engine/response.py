"""The response objects of one turn: the request repeated, and what became of it."""

import time
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from ws_responses.backends import Usage
from ws_responses.engine.events import encode
from ws_responses.upstreams.base import CurrentTurn

IncompleteReason = Literal["max_output_tokens", "content_filter", "steered"]

_IN_PROGRESS: Final = b'"status":"in_progress","completed_at":null,"error":null,"incomplete_details":null,"usage":null'


class ResponseObjects:
    """Encodes the response objects of one turn.

    Args:
        turn: The turn.
        model: Its model.
        echo: Members of the request that are repeated, encoded.
        tools: The tools, as they are repeated.
        service_tier: As asked; None if the request named none.
        now: Seconds since the epoch.
    """

    __slots__ = ("_head", "_service_tier")

    def __init__(
        self,
        turn: CurrentTurn,
        *,
        model: str,
        echo: Mapping[str, bytes],
        tools: bytes,
        service_tier: str | None,
        now: int | None = None,
    ) -> None:
        members = {
            "id": encode(turn.response_id),
            "object": b'"response"',
            "created_at": b"%d" % (int(time.time()) if now is None else now),
            "background": b"false",
            "previous_response_id": encode(turn.previous_response_id),
            "store": encode(turn.may_store),
            **echo,
            "model": encode(model),
            "tools": tools,
        }
        self._head = b"{" + b"".join(b'"%b":%b,' % (name.encode(), value) for name, value in members.items())
        self._service_tier = service_tier or "default"

    def in_progress(self) -> bytes:
        """Return the member ``response`` of the events before the first item."""
        return b'"response":%b%b,"service_tier":%b,"output":[]}' % (
            self._head,
            _IN_PROGRESS,
            encode(self._service_tier),
        )

    def closed(self, reason: IncompleteReason | None, usage: bytes, service_tier: str | None) -> bytes:
        """Return the object as it is in the end, without its output.

        Args:
            reason: Why it is incomplete; None if it is completed.
            usage: Encoded.
            service_tier: What the service says it used; None if it says nothing.
        """
        status, completed_at, details = b"completed", b"%d" % int(time.time()), b"null"
        if reason is not None:
            status, completed_at, details = b"incomplete", b"null", encode({"reason": reason})
        return (
            b'%b"status":"%b","completed_at":%b,"error":null,"incomplete_details":%b,"usage":%b,"service_tier":%b}'
            % (self._head, status, completed_at, details, usage, encode(service_tier or self._service_tier))
        )


def with_output(closed: bytes, items: Sequence[bytes]) -> bytes:
    """Return the member ``response`` of the closing event: an object of :meth:`ResponseObjects.closed`, and its output."""
    return b'"response":%b,"output":[%b]}' % (closed[:-1], b",".join(items))


def added_usage(usage: Usage | None, more: Usage, input_tokens: int | None, output_tokens: int | None) -> Usage:
    """Return a usage together with that of another generation of the same turn; what one of them does not tell is unknown.

    Args:
        usage: What the service told last.
        more: Of the other generation.
        input_tokens: What we have counted ourselves, where the service tells nothing; None if we have not.
        output_tokens: Likewise.
    """
    known = usage or Usage()
    return Usage(
        input_tokens=_sum(input_tokens if known.input_tokens is None else known.input_tokens, more.input_tokens),
        output_tokens=_sum(output_tokens if known.output_tokens is None else known.output_tokens, more.output_tokens),
        cached_tokens=(known.cached_tokens or 0) + (more.cached_tokens or 0),
        reasoning_tokens=(known.reasoning_tokens or 0) + (more.reasoning_tokens or 0),
    )


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def usage_object(usage: Usage | None, input_tokens: int | None, output_tokens: int | None) -> bytes:
    """Return ``usage``, encoded; null unless tokens in and out are known.

    The schema has numbers only: what a service does not tell of caching and reasoning is 0 there.

    Args:
        usage: What the service told last.
        input_tokens: What we have counted ourselves, where it tells nothing; None if we have not.
        output_tokens: Likewise.
    """
    known = usage or Usage()
    tokens_in = input_tokens if known.input_tokens is None else known.input_tokens
    tokens_out = output_tokens if known.output_tokens is None else known.output_tokens
    if tokens_in is None or tokens_out is None:
        return b"null"
    return encode(
        {
            "input_tokens": tokens_in,
            "input_tokens_details": {"cached_tokens": known.cached_tokens or 0, "cache_write_tokens": 0},
            "output_tokens": tokens_out,
            "output_tokens_details": {"reasoning_tokens": known.reasoning_tokens or 0},
            "total_tokens": tokens_in + tokens_out,
        }
    )
