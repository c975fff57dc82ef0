"""The incremental validator: it reads the delta of a turn, with what the parent's state carries.

Its verdict equals the verdict on the whole conversation. What it does not judge, the app judges.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from msgspec import Raw

from ws_responses.protocol.calls import (
    START,
    UNKNOWN_BASE,
    CallState,
    after_input,
    after_output,
    input_head,
    output_head,
    require_answers,
)
from ws_responses.protocol.creates import ResponseCreate
from ws_responses.protocol.items import COMPACTION, ItemHead

OpenCalls = Literal["check", "app"]
"""Who judges unanswered and unknown calls: we, or the app."""


def heads_of(items: Sequence[Raw | bytes]) -> list[ItemHead]:
    """Return the heads of input items.

    Raises:
        InvalidRequest: One of them is no item; ``param`` is its path.
    """
    return [input_head(item, index) for index, item in enumerate(items)]


def starts_base(heads: Iterable[ItemHead]) -> bool:
    """Whether these items begin a new base: nothing older is joined."""
    return any(head.type == COMPACTION for head in heads)


def check_input(
    create: ResponseCreate,
    parent: CallState | None,
    heads: Sequence[ItemHead],
    *,
    base_known: bool = True,
    open_calls: OpenCalls = "check",
) -> CallState:
    """Judge a turn's input and return the state after it.

    Args:
        create: The frame.
        parent: State of the parent; None without one.
        heads: Of the input items.
        base_known: False if the chain begins with something that only the app knows.
        open_calls: "app" leaves the pairing of calls to the app; the state is carried all the same.

    Raises:
        ToolCallNotFound: An answer names no open call (``param`` is its path).
        ToolOutputMissing: A generating turn leaves a call unanswered.
        InvalidRequest: An item lacks what its kind needs.
    """
    state = START if parent is None else parent
    if state.known and (create.conversation or create.prompt or not base_known or open_calls == "app"):
        state = CallState(state.open, known=False) if state.open else UNKNOWN_BASE
    if not heads and not state.open:
        return state
    state = after_input(state, heads)
    if open_calls == "check" and not create.warm_up and not create.conversation:
        require_answers(state)
    return state


def check_output(state: CallState, items: Iterable[bytes]) -> CallState:
    """Return the state after the upstream's output items."""
    heads = [output_head(item) for item in items]
    return after_output(state, heads) if heads else state


__all__ = ["START", "UNKNOWN_BASE", "CallState", "OpenCalls", "check_input", "check_output", "heads_of", "starts_base"]
