"""What becomes of steers: they wait in the response that they are for, and go on in a successor of it or back to the client.

None of them is lost but with the socket. What a steer is, and what is told of it, stands in :mod:`ws_responses.protocol.steering`.
"""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Raw

from ws_responses.errors import MalformedFrame, WireError
from ws_responses.limits import Limits
from ws_responses.protocol import steering
from ws_responses.protocol.actions import NOTHING, Actions, EndEarly, Send, StartTurn, TellSteer
from ws_responses.protocol.lanes import Lanes
from ws_responses.protocol.steering import Ending, Steer
from ws_responses.protocol.submissions import SubmissionRefused
from ws_responses.protocol.turns import Lane, Turn

_INACTIVE = "The response is no longer accepting steering input."


def pending(lanes: Lanes) -> list[Steer]:
    """Return the steers of a connection that are accepted and not committed."""
    in_turns = [steer for turn in lanes.running for steer in (*turn.carried, *turn.steers)]
    return in_turns + [steer for lane in lanes.by_name.values() for steer in lane.held]


def take(
    lanes: Lanes, members: Mapping[str, Raw], limits: Limits, steer_ids: Callable[[], str], *, retiring: bool
) -> Actions:
    """Take a ``response.steer``.

    Args:
        lanes: Of the connection.
        members: Of the frame.
        limits: The bounds.
        steer_ids: Makes ids of steers.
        retiring: The connection starts no successors any more.

    Raises:
        MalformedFrame: It is nothing that could be given back, or too large for that.
    """
    target, given = steering.target_of(members)
    if len(given) > limits.max_pending_steer_bytes:
        # Not given back: who floods us would be flooded.
        raise MalformedFrame(
            f"The field 'input' must have at most {limits.max_pending_steer_bytes} bytes.",
            param="input",
            code="request_too_large",
            status=413,
        )
    turn, lane = lanes.find(target)
    try:
        items = steering.read_items(members)
        steered = _steered(turn, lane, retiring=retiring)
        _check_room(lanes, limits, len(given))
    except SubmissionRefused as error:
        return (Send(steering.refusal(error, target, given, stream_id=None if lane is None else lane.name)),)
    steer = Steer(steer_ids(), target, given, items)
    steered.steers += (steer,)
    return (TellSteer(steered, steering.ACCEPTED, steering.about(steer)), EndEarly(steered))


def _steered(turn: Turn | None, lane: Lane | None, *, retiring: bool) -> Turn:
    """Return the turn that a submission for what runs, or has run last, on a lane may steer.

    Raises:
        SubmissionRefused: None.
    """
    if lane is None:
        raise SubmissionRefused(
            "response_not_found", "The target response is not available on this WebSocket connection."
        )
    if turn is None and lane.completed:
        message = "The response already completed and is no longer accepting steering input."
        raise SubmissionRefused("response_already_completed", message)
    if turn is None or retiring:
        raise SubmissionRefused("response_not_active", _INACTIVE)
    if turn.inherited is None:
        raise SubmissionRefused("steering_not_supported", "This response does not support steering.")
    return turn


def _check_room(lanes: Lanes, limits: Limits, size: int) -> None:
    waiting = pending(lanes)
    total = size + sum(len(steer.given) for steer in waiting)
    if len(waiting) >= limits.max_pending_steers or total > limits.max_pending_steer_bytes:
        message = "Too much steering input is pending on this connection."
        raise SubmissionRefused("too_many_pending_steers", message)


def begun(turn: Turn) -> Actions:
    """Commit what a turn carries, now that its response has begun; what its lane holds for another one goes back."""
    turn.carried = ()
    lane = turn.lane
    if not lane.held or turn.create.warm_up:
        return NOTHING
    held, lane.held = lane.held, ()
    message = "The response is no longer accepting steering input: its lane went on without it."
    return _give_back(turn, held, SubmissionRefused("response_not_active", message))


def settle(lanes: Lanes, turn: Turn, ending: Ending, now: float, *, retired: WireError | None) -> Actions:
    """Decide about the steers of a turn that is over: its successor starts, they wait for the client, or go back.

    Args:
        lanes: Of the connection, on which the turn runs no more.
        turn: The turn.
        ending: How its response has ended.
        now: Present time.
        retired: Why the connection starts no successors any more; None if it does.
    """
    carried, steers = turn.carried, turn.steers
    turn.carried = turn.steers = ()
    told = _give_back(turn, carried, _uncreated(ending.message))
    if not steers:
        return told
    if ending.status == "failed":
        return (*told, *_give_back(turn, steers, SubmissionRefused("response_not_active", _INACTIVE)))
    if retired is not None:
        return (*told, *_give_back(turn, steers, _uncreated(retired.message)))
    if not ending.continuable:
        return (*told, *_give_back(turn, steers, _uncreated(ending.message)))
    if ending.required:
        turn.lane.held = steers
        waiting = [TellSteer(turn, steering.PENDING, steering.waiting(steer, ending.required)) for steer in steers]
        return (*told, *waiting)
    return (*told, _succeed(lanes, turn, steers, now))


def _succeed(lanes: Lanes, turn: Turn, steers: Sequence[Steer], now: float) -> StartTurn:
    assert turn.inherited is not None
    assert turn.response_id is not None
    create = steering.successor(turn.create, turn.inherited, steers, turn.response_id)
    successor, start = lanes.succeed(turn, create, now)
    successor.carried = steers
    return start


def _uncreated(why: str) -> SubmissionRefused:
    return SubmissionRefused(
        "successor_creation_failed", f"The successor response could not be created. {why}".rstrip()
    )


def _give_back(turn: Turn, steers: Sequence[Steer], error: SubmissionRefused) -> Actions:
    return [
        TellSteer(turn, steering.FAILED, steering.returned(error, steer.target, steer.given, steer.id))
        for steer in steers
    ]
