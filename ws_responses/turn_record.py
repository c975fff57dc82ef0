"""The record of a turn that settlement is given, out of what the turn knows."""

import time
from typing import TYPE_CHECKING, Final, Literal

from ws_responses.settlement import Outcome, TurnRecord, read_usage
from ws_responses.upstreams.base import CurrentTurn

if TYPE_CHECKING:
    from ws_responses.safety import SafetyTurn

Transport = Literal["socket", "http"]

_OUTCOMES: Final[dict[str, Outcome]] = {
    "completed": "completed",
    "incomplete": "incomplete",
    "failed": "failed",
    "error": "refused",
    "aborted": "aborted",
    "gone": "gone",
}
"""Outcomes of a record by those of a ``TurnFinished``, the special ones aside."""

_CUT_OFF: Final = frozenset({"gone", "aborted"})


def turn_record(
    turn: CurrentTurn,
    safety: "SafetyTurn | None",
    *,
    outcome: str,
    code: str | None,
    usage: bytes | None,
    response_id: str | None,
    ran: bool,
    draining: bool,
    first_event_s: float | None,
    duration_s: float,
    events: int,
    transport: Transport,
) -> TurnRecord:
    """Return the record of a turn that is over.

    Args:
        turn: The turn.
        safety: Its safety; None if nothing is judged.
        outcome: As the hooks are told it.
        code: Error code, if it ended by an error.
        usage: Raw JSON of the usage; None takes what the upstream has told so far.
        response_id: As the client was told; None if it was told none.
        ran: The upstream was called.
        draining: The process shuts down.
        first_event_s: From the start to the first event; None if there was none.
        duration_s: From the start to the end.
        events: Events of the response.
        transport: How it came.
    """
    judgement = None if safety is None else safety.judgement
    return TurnRecord(
        turn_id=turn.id,
        outcome=_outcome(turn, outcome, blocked=judgement is not None and judgement.blocked, draining=draining),
        tenant=turn.tenant,
        principal_id=None if turn.principal is None else turn.principal.id,
        model=turn.model,
        route=None if turn.route is None else turn.route.name,
        response_id=response_id,
        parent_id=turn.previous_response_id,
        lane=turn.lane,
        code=code,
        ran=ran,
        price=None if turn.route is None else turn.route.price,
        # The response of a warm-up says 0, whatever the backend has read for it.
        usage=read_usage(_usage_so_far(turn))
        if turn.warm_up and ran
        else read_usage(usage or _usage_so_far(turn), partial=usage is None or outcome in _CUT_OFF),
        verdict=None if judgement is None else judgement.action,
        flags=() if judgement is None else judgement.categories,
        started_at=time.time() - duration_s,
        first_event_s=first_event_s,
        duration_s=duration_s,
        input_bytes=turn.create.size,
        events=events,
        transport=transport,
    )


def _usage_so_far(turn: CurrentTurn) -> bytes | None:
    return None if turn.usage_so_far is None else turn.usage_so_far()


def _outcome(turn: CurrentTurn, told: str, *, blocked: bool, draining: bool) -> Outcome:
    if blocked:
        return "blocked"
    if turn.warm_up and told == "completed":
        return "warm_up"
    if draining and told in _CUT_OFF:
        return "drained"
    return _OUTCOMES[told]
