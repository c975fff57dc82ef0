"""What is settled: one record of each turn, however it ended."""

from collections.abc import Awaitable, Callable
from decimal import Decimal
from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from ws_responses.errors import Refused, WSResponsesError
from ws_responses.pricing import Price

Outcome = Literal["completed", "incomplete", "failed", "blocked", "refused", "gone", "aborted", "drained", "warm_up"]
"""How a turn ended.

``completed``, ``incomplete``, ``failed``: by the terminal event of that name. ``blocked``: by a verdict, on its input or output.
``refused``: by an error before ``response.created``. ``gone``: its client left. ``aborted``: by a limit or the operator.
``drained``: by the shutdown. ``warm_up``: a turn that generates nothing, answered."""

OUTCOMES: Final[tuple[Outcome, ...]] = (
    "completed",
    "incomplete",
    "failed",
    "blocked",
    "refused",
    "gone",
    "aborted",
    "drained",
    "warm_up",
)

_MAX_RAW_CHARS: Final = 4096
"""Longest raw usage that a record keeps; the API's has some 300."""

_decode = msgspec.json.Decoder().decode


class TurnUsage(Struct, frozen=True, kw_only=True):
    """What a turn used, as its upstream told; None where it did not, never 0 for unknown.

    Attributes:
        input_tokens: Of the input.
        cached_tokens: Of these, how many came from a cache.
        output_tokens: Sampled, reasoning included.
        reasoning_tokens: Of these, how many were reasoning.
        total_tokens: As told.
        partial: What was known when the turn was cut off; more may have been used.
        raw: The usage object as JSON, for what a service counts beside these; None if it is longer than 4096 characters.
    """

    input_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    reasoning_tokens: int | None = None
    total_tokens: int | None = None
    partial: bool = False
    raw: str | None = None


class TurnRecord(Struct, frozen=True, kw_only=True):
    """One turn, for bills and books. It holds no content.

    Attributes:
        turn_id: Our id of the turn: the idempotency key. A record may come more than once, always with this and the same content.
        outcome: See :data:`Outcome`.
        tenant: Who owns the chain.
        principal_id: Who asked, as ``authorize`` said; None without it.
        model: As the request named it: the client's word, unchecked unless the turn ran.
        route: Name of the route that served it; None if it never got that far, or the app chose by itself.
        response_id: None if there was no response.
        parent_id: The response that it continued; None without one.
        lane: ``stream_id``; None for the default lane, and over HTTP.
        code: Error code, if it ended by an error.
        ran: The upstream was called: only then may it have cost something.
        usage: None if it is unknown.
        price: What the tokens of its route cost, as its router said when the turn ran; None if that is unknown.
        verdict: "allow", "flag" or "block"; None if nothing was judged.
        flags: ``classifier:category`` of what was flagged or blocked.
        started_at: Seconds since the epoch.
        first_event_s: From the start to the first event; None if there was none.
        duration_s: From the start to the end.
        input_bytes: Of the request.
        events: Events of the response.
        transport: "socket" or "http".
    """

    turn_id: str
    outcome: Outcome
    tenant: str
    started_at: float
    duration_s: float
    principal_id: str | None = None
    model: str | None = None
    route: str | None = None
    response_id: str | None = None
    parent_id: str | None = None
    lane: str | None = None
    code: str | None = None
    ran: bool = False
    usage: TurnUsage | None = None
    price: Price | None = None
    verdict: Literal["allow", "flag", "block"] | None = None
    flags: tuple[str, ...] = ()
    first_event_s: float | None = None
    input_bytes: int = 0
    events: int = 0
    transport: Literal["socket", "http"] = "socket"

    @property
    def cost(self) -> Decimal | None:
        """What the turn has cost, in ``price.currency``; None unless its price and its usage are known.

        Of a turn that was cut off (``usage.partial``) it is the cost of what was known.
        """
        return None if self.price is None or self.usage is None else self.price.cost_of(self.usage)


SettlementHook = Callable[[TurnRecord], Awaitable[None]]
"""Takes a record to where it belongs; returns when it is safe there. Raising means that it may be tried again."""

OnUndelivered = Callable[[TurnRecord, Exception], None]
"""Is told what could not be delivered: the last chance to write it down. Called in the event loop: be quick."""


class Undeliverable(WSResponsesError):
    """Raised by a hook for a record that it will never take: it is not tried again."""


class Undelivered(WSResponsesError):
    """A record was given up, for this reason."""


class SettlementLag(Refused):
    """Too many turns of this chain are not settled yet."""

    status = 429
    type = "rate_limit_error"
    code = "settlement_lag"

    def __init__(self, unsettled: int) -> None:
        super().__init__(
            f"{unsettled} turns of this conversation have not been accounted for yet. Try again.",
            headers={"retry-after": "1"},
        )


def read_usage(raw: bytes | None, *, partial: bool = False) -> TurnUsage | None:
    """Return what a ``usage`` object tells, as the Responses API has it; None if there is none.

    Args:
        raw: Raw JSON.
        partial: The turn was cut off.
    """
    if raw is None:
        return None
    try:
        usage = _members(_decode(raw))
    except (msgspec.DecodeError, RecursionError):
        return None
    if not usage:
        return None
    given = _members(usage.get("input_tokens_details"))
    sampled = _members(usage.get("output_tokens_details"))
    return TurnUsage(
        input_tokens=_count(usage.get("input_tokens")),
        cached_tokens=_count(given.get("cached_tokens")),
        output_tokens=_count(usage.get("output_tokens")),
        reasoning_tokens=_count(sampled.get("reasoning_tokens")),
        total_tokens=_count(usage.get("total_tokens")),
        partial=partial,
        raw=raw.decode("utf-8", "replace") if len(raw) <= _MAX_RAW_CHARS else None,
    )


def _members(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _count(value: Any) -> int | None:
    return value if type(value) is int and value >= 0 else None
