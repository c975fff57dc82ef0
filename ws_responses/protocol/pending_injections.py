"""What becomes of injections: they wait in their response until it has all that it waits for, or go back to the client.

What an injection is, and what is told of it, stands in :mod:`ws_responses.protocol.injecting`.
"""

from collections.abc import Iterable, Mapping

from msgspec import Raw
from msgspec.structs import replace

from ws_responses.limits import Limits
from ws_responses.protocol import injecting
from ws_responses.protocol.actions import NOTHING, Action, Actions, ResumeTurn, Send, TellSteer
from ws_responses.protocol.events import encode_error
from ws_responses.protocol.injecting import Injection
from ws_responses.protocol.lanes import Lanes
from ws_responses.protocol.rollout import Appended
from ws_responses.protocol.submissions import RefusalCode, SubmissionRefused
from ws_responses.protocol.turns import Lane, Turn


def pending_bytes(turns: Iterable[Turn]) -> int:
    """Return the bytes of what waits in the responses of turns."""
    return sum(len(injection.given) for turn in turns for injection in turn.injections)


def take(lanes: Lanes, members: Mapping[str, Raw], limits: Limits, now: float) -> Actions:
    """Take a ``response.inject``.

    Raises:
        MalformedFrame: It is nothing that could be given back.
    """
    injection = injecting.read_injection(members)
    turn, lane = lanes.find(injection.target)
    try:
        takes = _taker(turn, lane)
        _inject(takes, lanes, limits, injection)
    except SubmissionRefused as error:
        name = None if lane is None else lane.name
        if len(injection.given) > limits.max_pending_steer_bytes:
            # Not given back: who floods us would be flooded.
            return (Send(encode_error(error, stream_id=name)),)
        return (Send(injecting.refusal(error, injection, stream_id=name)),)
    return _commit(takes, now)


def look_again(turn: Turn, lanes: Lanes, limits: Limits, now: float) -> Actions:
    """Judge what came before a response waited for it, now that its calls are known."""
    early, turn.injections = turn.injections, ()
    told: list[Action] = []
    for injection in early:
        try:
            _inject(turn, lanes, limits, injection)
        except SubmissionRefused as error:
            told.append(TellSteer(turn, injecting.FAILED, injecting.returned(error, injection)))
    return (*told, *_commit(turn, now))


def give_back(turn: Turn) -> Actions:
    """Give back what waited in a response that is over."""
    injections, turn.injections = turn.injections, ()
    error = SubmissionRefused("response_already_completed", "The response ended before it could take the input.")
    return [TellSteer(turn, injecting.FAILED, injecting.returned(error, injection)) for injection in injections]


def _taker(turn: Turn | None, lane: Lane | None) -> Turn:
    """Return the turn whose response takes injections, of what runs, or has run last, on a lane.

    Raises:
        SubmissionRefused: None.
    """
    if turn is None:
        code: RefusalCode = "response_not_found" if lane is None else "response_already_completed"
        raise SubmissionRefused(code, "No response of that id is active on this WebSocket connection.")
    if not turn.injects:
        raise SubmissionRefused("response_not_found", "The response of that id takes no input while it is active.")
    return turn


def _inject(turn: Turn, lanes: Lanes, limits: Limits, injection: Injection) -> None:
    """Let a submission wait in the response that it is for.

    Raises:
        SubmissionRefused: It cannot.
    """
    size = pending_bytes(lanes.running) + len(injection.given)
    if len(turn.injections) >= limits.max_queued_creates or size > limits.max_queued_bytes:
        raise SubmissionRefused("websocket_queue_full", "Too much input waits for responses of this connection.")
    items = injecting.items_of(injection)
    if turn.blocked is not None:
        turn.blocked = replace(turn.blocked, calls=injecting.answered(turn.blocked.calls, items))
    turn.injections += (injection,)


def _commit(turn: Turn, now: float) -> Actions:
    """Let a response go on that has all it waits for: all of that is committed at once, or none of it."""
    blocked, injections = turn.blocked, turn.injections
    if blocked is None or not injections or any(call.required for call in blocked.calls.open):
        return NOTHING
    turn.injections = ()
    told = [TellSteer(turn, injecting.CREATED, injecting.taken(injection)) for injection in injections]
    items = b",".join(injection.given[1:-1] for injection in injections)
    turn.resume(now)
    return (*told, ResumeTurn(turn, Appended(items, blocked.calls)))
