"""The prototype: one response for all of a rollout, which waits for tool outputs in the middle instead of ending there.

When sampling blocks on calls of the client the response says so (``response.done``); the client brings their outputs
(``response.append``), and sampling goes on. What moves is decided by the session; here stands what an append is.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.errors import InvalidRequest, MalformedFrame
from ws_responses.protocol.calls import CallState, after_input, input_head, require_answers
from ws_responses.protocol.items import COMPACTION, ITEM_REFERENCE

APPEND: Final = "response.append"
DONE: Final = "response.done"

_MEMBERS: Final = frozenset({"type", "stream_id", "input"})
_REFUSED: Final = {
    COMPACTION: "begins a conversation anew: end the rollout, and send it by a 'response.create'",
    ITEM_REFERENCE: "only names another item: send that itself",
}
_decode_items = msgspec.json.Decoder(list[Raw]).decode


class RolloutNotFound(MalformedFrame):
    """An append on a lane without a rollout: there was none, it has ended, or its response takes ``response.inject`` instead."""

    code = "rollout_not_found"

    def __init__(self, *, injects: bool = False) -> None:
        super().__init__(
            "No response on this lane takes tool outputs by 'response.append': the one that runs takes them by "
            "'response.inject', as its create has asked for."
            if injects
            else "No response on this lane takes tool outputs by 'response.append': there is none, or it has ended. Send a "
            "'response.create'."
        )


class RolloutNotBlocked(MalformedFrame):
    """An append while the response of its lane is being sampled: nothing waits for it."""

    code = "rollout_not_blocked"

    def __init__(self) -> None:
        super().__init__("The response on this lane does not wait for tool outputs. Wait for its 'response.done'.")


class Blocked(Struct, frozen=True):
    """What a blocked rollout waits for.

    Attributes:
        calls: The calls that are open.
        checked: They must be answered, once each; else that is the app's to judge.
        since: When it blocked.
    """

    calls: CallState
    checked: bool
    since: float


class Appended(Struct, frozen=True):
    """What an append brings.

    Attributes:
        items: The items, encoded, joined by commas.
        calls: The state after them.
    """

    items: bytes
    calls: CallState


def read_append(members: Mapping[str, Raw], blocked: Blocked | None) -> Appended:
    """Return what an append brings to the rollout on its lane.

    Args:
        members: Of the frame.
        blocked: What the rollout waits for; None if it does not wait.

    Raises:
        RolloutNotBlocked: The rollout does not wait for it.
        MalformedFrame: It has other members, or its input is no array of items.
        InvalidRequest: An item cannot be appended, or a call is not answered, once each; ``param`` is the path.
    """
    if blocked is None:
        raise RolloutNotBlocked
    for name in members:
        if name not in _MEMBERS:
            raise MalformedFrame(
                f"The event takes 'stream_id' and 'input' only, not {name[:64]!r}: the rollout keeps its settings.",
                param=name,
                code="unknown_parameter",
            )
    items = _items_of(members)
    heads = [input_head(item, index) for index, item in enumerate(items)]
    for index, head in enumerate(heads):
        why = _REFUSED.get(head.type or "")
        if why is not None:
            path = f"input[{index}]"
            raise InvalidRequest(f"The item {path} cannot be appended, since it {why}.", param=f"{path}.type")
    calls = after_input(blocked.calls, heads)
    if blocked.checked:
        require_answers(calls)
    return Appended(b",".join(items), calls)


def _items_of(members: Mapping[str, Raw]) -> list[Raw]:
    raw = members.get("input", b"null")
    items = _decode_items(raw) if bytes(memoryview(raw)[:1]) == b"[" else []
    if not items:
        raise MalformedFrame(
            "The field 'input' must be a non-empty array of items.", param="input", code="invalid_request"
        )
    return items
