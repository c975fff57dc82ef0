"""A turn that generates nothing: its items are kept and can be continued."""

import time
from collections.abc import Iterator

from ws_responses.protocol import events
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.complete import warm_up_response


def warm_up_events(info: CurrentTurn, response_id: str) -> Iterator[bytes]:
    """Give the events of its response.

    Args:
        info: The turn.
        response_id: The response's id.
    """
    done = warm_up_response(info.create, response_id, int(time.time()))
    done["store"] = info.may_store
    begun = {**done, "status": "in_progress", "usage": None, "completed_at": None}
    for kind, response in ((events.CREATED, begun), (events.IN_PROGRESS, begun), (events.COMPLETED, done)):
        yield events.encode({"type": kind, "response": response})
