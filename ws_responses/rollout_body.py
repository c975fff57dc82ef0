"""What each further step of a rollout is asked: what its create was, less what it had."""

from collections.abc import Mapping

import msgspec
from msgspec import Raw
from msgspec.structs import replace

from ws_responses.protocol.tool_choice import relaxed
from ws_responses.upstreams.base import CurrentTurn

_decode_bound = msgspec.json.Decoder(int).decode


def next_turn(last: CurrentTurn, body: dict[str, Raw], items: bytes) -> CurrentTurn:
    """Return the turn of the next step, without its parent.

    Args:
        last: That of the step which is over.
        body: As :func:`next_body` gave it.
        items: What was appended, encoded and joined by commas.
    """
    create = replace(
        last.create,
        body=body,
        array_input=None,
        text_input=None,
        has_input=True,
        size=last.create.size + len(items),
    )
    turn = CurrentTurn(last.id, create, last.tenant, last.principal)
    turn.encoded_delta = items
    turn.is_rollout, turn.injects = True, last.injects
    turn.interned_tools, turn.interned_instructions = last.interned_tools, last.interned_instructions
    turn.response_id = last.response_id
    turn.route, turn.route_reused = last.route, last.route_reused
    turn.profile, turn.may_store = last.profile, last.may_store
    turn.suspended, last.suspended = last.suspended, None
    return turn


def next_body(body: Mapping[str, Raw], room: int | None) -> dict[str, Raw]:
    """Return the members of the create as they hold for the next step.

    Args:
        body: Of the create.
        room: How many tokens may still be sampled; None if that is not bounded.
    """
    left = dict(body)
    if "tool_choice" in left:
        left["tool_choice"] = Raw(relaxed(bytes(left["tool_choice"])))
    if room is not None:
        left["max_output_tokens"] = Raw(b"%d" % room)
    return left


def bound_in(raw: Raw | None) -> int | None:
    """Return the bound on tokens that a create names; None if it names none."""
    if raw is None:
        return None
    try:
        return _decode_bound(raw)
    except msgspec.ValidationError:
        return None  # the upstream judges what it alone understands
