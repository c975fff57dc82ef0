"""``response.cancel``: an extension of ours, off by default; OpenAI's endpoint has no such event.

It stops one response, by its id, or all that runs and waits on a lane. What is stopped is told by its own closing event.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from ws_responses.errors import MalformedFrame
from ws_responses.protocol.events import MAX_ID_CHARS

CANCEL: Final = "response.cancel"

_MEMBERS: Final = frozenset({"type", "response_id", "stream_id"})
_decode_str = msgspec.json.Decoder(str).decode


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
    try:
        response_id = _decode_str(members["response_id"])
    except msgspec.ValidationError:
        response_id = ""
    if not 0 < len(response_id) <= MAX_ID_CHARS:
        raise MalformedFrame(
            "The field 'response_id' must be the id of a response; leave it out to cancel a lane.",
            param="response_id",
            code="invalid_request",
        )
    return response_id
