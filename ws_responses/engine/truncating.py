"""Fitting a conversation into a context window (``truncation: "auto"``): what is oldest is left out.

Left out are whole steps: never a call without its output or an output without its call, never reasoning without what it led to.
Instructions, tools and the system or developer messages at the very beginning stay. The rest begins with a user's message if that
leaves out little more, or if the format cannot begin otherwise.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec import Struct

from ws_responses.protocol.calls import output_head
from ws_responses.protocol.items import CALLS, OUTPUTS, answered_key, call_key
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import CannotRender, Renderer

_LEADING_ROLES: Final = frozenset({"system", "developer"})


class Start(Struct):
    """Where the rest of a conversation may begin.

    Attributes:
        at: Index of its first item.
        by_user: That is a user's message.
        size: Tokens from there on, about.
    """

    at: int
    by_user: bool
    size: int = 0


def fitted(
    renderer: Renderer, beginning: Rendered, items: Sequence[bytes], fits: Callable[[Rendered], bool], budget: int
) -> Rendered | None:
    """Return a conversation without its oldest steps, rendered; None if not even the last step fits.

    Args:
        renderer: Of the conversation.
        beginning: What stands before its items.
        items: All of them, oldest first.
        fits: Whether a rendered conversation is short enough.
        budget: Tokens that it may have, about: from there on ``fits`` is asked.
    """
    lead, starts = starts_of(items)
    state = renderer.extend(beginning, items[:lead])
    users_only = False
    for start in _candidates(renderer, state, items, starts, budget - state.end):
        if users_only and not start.by_user:
            continue
        try:
            rest = renderer.extend(state, items[start.at :])
        except CannotRender:
            users_only = True
            continue
        if fits(rest):
            return rest
    return None


def starts_of(items: Sequence[bytes]) -> tuple[int, list[Start]]:
    """Return how many items at the beginning stay, and where the rest may begin, oldest first."""
    lead = 0
    starts: list[Start] = []
    waiting: set[str] = set()
    after_reasoning = False
    for index, item in enumerate(items):
        head = output_head(item)
        is_message = head.type in ("message", None)
        if index == lead and is_message and head.role in _LEADING_ROLES:
            lead += 1
            continue
        kind = head.type or ""
        if not waiting and not after_reasoning and kind not in OUTPUTS and index > lead:
            starts.append(Start(index, is_message and head.role == "user"))
        if kind in OUTPUTS:
            waiting.discard(answered_key(head) or "")
        elif kind in CALLS and head.status != "incomplete":
            waiting |= {key} if (key := call_key(head)) else set()
        after_reasoning = kind == "reasoning"
    return lead, starts


def _candidates(
    renderer: Renderer, state: Rendered, items: Sequence[bytes], starts: Sequence[Start], budget: int
) -> list[Start]:
    """Return the places from which the rest may fit, those that leave out least first.

    Each step is rendered by itself, from the newest on, until they are too many: what is far too old costs nothing.
    """
    within: list[Start] = []
    size = 0
    end = len(items)
    for start in reversed(starts):
        try:
            size += renderer.extend(state, items[start.at : end]).end - state.end
        except CannotRender:
            continue  # not by itself: it is counted with the step before it
        if size > budget and within:
            break
        start.size = size
        within.append(start)
        end = start.at
    # Walked from the newest on: of a user's message and what comes shortly before it, the message is the better beginning.
    kept: list[Start] = []
    for start in within:
        if start.by_user or not kept or not kept[-1].by_user or start.size > 2 * kept[-1].size:
            kept.append(start)
    kept.reverse()
    return kept
