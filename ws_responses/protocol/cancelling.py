"""``response.cancel``: an extension of ours, off by default; OpenAI's endpoint has no such event.

It stops one response, by its id, or all that runs and waits on a lane. What is stopped is told by its own closing event.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Raw

from ws_responses.errors import MalformedFrame, NothingToCancel, ResponseCancelled
from ws_responses.protocol.actions import AbortTurn, Actions
from ws_responses.protocol.frames import read_id
from ws_responses.protocol.lanes import Lanes

CANCEL: Final = "response.cancel"

_MEMBERS: Final = frozenset({"type", "response_id", "stream_id"})


def cancelled_id(members: Mapping[str, Raw]) -> str | None:
    """Return the id of the response that a frame cancels; None if it means a lane.

    Raises:
        MalformedFrame: It has other members (a misspelt id would stop a whole lane), or its id is none.
    """
    for name in members:
        if name not in _MEMBERS:
            raise MalformedFrame(
                f"The event takes 'response_id' and 'stream_id' only, not {name[:64]!r}.",
                param=name,
                code="invalid_request",
            )
    if "response_id" not in members:
        return None
    return read_id(members, "response_id", hint="; leave it out to cancel a lane")


def cancel(lanes: Lanes, members: Mapping[str, Raw], lane_name: str | None) -> Actions:
    """Stop a response, or all that runs and waits on a lane; each is told by its own closing event.

    Args:
        lanes: Of the connection.
        members: Of the frame.
        lane_name: Its lane.

    Raises:
        MalformedFrame: See :func:`cancelled_id`.
        NothingToCancel: There is nothing of that.
    """
    response_id = cancelled_id(members)
    if response_id is None:
        return _cancel_lane(lanes, lane_name)
    turn, lane = lanes.find(response_id)
    if lane is None or ("stream_id" in members and lane.name != lane_name):
        raise NothingToCancel("The response is not available on this WebSocket connection.", param="response_id")
    if turn is None:
        code = "response_already_completed" if lane.completed else "response_not_active"
        raise NothingToCancel("The response is over.", param="response_id", code=code, status=409)
    return (AbortTurn(turn, ResponseCancelled()),)


def _cancel_lane(lanes: Lanes, name: str | None) -> Actions:
    lane = lanes.by_name.get(name)
    if lane is None or (lane.running is None and not lane.queue):
        raise NothingToCancel("Nothing runs or waits on this lane.", code="response_not_active", status=409)
    # The queue first: the end of the running turn would start the next one.
    running, dropped = lane.running, lanes.drop_queued(ResponseCancelled(), (lane,))
    return dropped if running is None else (AbortTurn(running, ResponseCancelled()), *dropped)
