"""Compaction within a turn: a conversation that has become long is replaced by a summary of it before it is answered.

What goes on is the first instructions, the summary, and the newest steps as they were, whole: a call with its output, reasoning
with what it led to.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from msgspec import Struct

from ws_responses.backends import Usage
from ws_responses.engine.events import EventWriter, encode
from ws_responses.engine.generation import Caller, Opened, close
from ws_responses.engine.items import random_id
from ws_responses.engine.plan import Plan
from ws_responses.engine.planning import Planner
from ws_responses.engine.sealing import Seal, Window
from ws_responses.engine.summary import Summariser
from ws_responses.engine.truncating import starts_of
from ws_responses.protocol import events
from ws_responses.protocol.items import COMPACTION
from ws_responses.upstreams.base import CurrentTurn

COMPACTING: Final = "response.compaction.compacting"
"""Type of the event between the beginning and the end of a compaction item."""

DEFAULT_SHARE: Final = 0.8
"""Part of the context window above which a conversation is compacted where the request names no threshold."""

BYTES_PER_TOKEN: Final = 4
"""By which the tokens of chat messages are estimated: nobody counts them before the service does."""

TAIL_BYTES: Final = 64 * 1024
"""What may stay as it is from the last user's message on; of a longer one the last step alone."""

MAX_KEPT_BYTES: Final = 1024 * 1024
"""What may stay as it is in all: a conversation whose last step is longer is not compacted."""


class Parts(NamedTuple):
    """A conversation, taken apart.

    Attributes:
        before: The first instructions.
        after: The newest steps.
    """

    before: list[bytes]
    after: list[bytes]


def is_due(turn: CurrentTurn, plan: Plan) -> bool:
    """Whether a turn's conversation is to be compacted before it is answered."""
    wanted = plan.draft.request.compaction
    if wanted is None:
        return False
    threshold = wanted.compact_threshold
    if threshold is None:
        window = plan.route.context_window
        if window is None:
            return False
        threshold = int(window * DEFAULT_SHARE)
    return _tokens(turn, plan) >= threshold


def _tokens(turn: CurrentTurn, plan: Plan) -> int:
    """Return the tokens of a turn's prompt; of chat messages an estimate."""
    counted = plan.prompt_tokens
    if counted is not None:
        return counted
    older = 0 if turn.parent is None or turn.base else turn.parent.history_bytes
    beside = len(plan.draft.request.instructions or "") + len(plan.draft.tools_echo)
    return (older + len(turn.encoded_delta) + beside) // BYTES_PER_TOKEN


def parts_of(items: Sequence[bytes]) -> Parts | None:
    """Return what of a conversation is to stay as it is; None if nothing would be left to be replaced.

    Args:
        items: All of it, as a model sees it, calls answered.
    """
    lead, starts = starts_of(items)
    before = list(items[:lead])
    room = MAX_KEPT_BYTES - sum(map(len, before))
    by_user = [start.at for start in starts if start.by_user][-1:]
    last = [start.at for start in starts][-1:]
    for at, most in [*((at, TAIL_BYTES) for at in by_user), *((at, MAX_KEPT_BYTES) for at in last)]:
        after = list(items[at:])
        if sum(map(len, after)) <= min(most, room):
            return Parts(before, after)
    return None


class Compacted(Struct, frozen=True):
    """A turn whose conversation was compacted.

    Attributes:
        plan: How it goes on.
        item: The compaction item, encoded.
        usage: Of the summary; with nothing in it if that is unknown.
    """

    plan: Plan
    item: bytes
    usage: Usage


class TurnCompaction:
    """Compacts the conversation of one turn.

    Args:
        turn: The turn.
        plan: Its plan so far.
        planner: Plans.
        caller: Asks the backend.
        seal: Makes the item.
        alive: Called for each sign of life.
    """

    def __init__(
        self, turn: CurrentTurn, plan: Plan, planner: Planner, caller: Caller, seal: Seal, alive: Callable[[], None]
    ) -> None:
        self._turn = turn
        self._plan = plan
        self._planner = planner
        self._seal = seal
        self._parts: Parts | None = parts_of(seal.readable([*turn.history(), *plan.draft.items]))
        self._caller = caller
        self._alive = alive
        self._summariser: Summariser
        self._opened: Opened | None = None

    async def open(self) -> bool:
        """Begin; return whether there is something to compact. The caller closes it.

        Raises:
            WireError: The backend failed for good.
        """
        if self._parts is None:
            return False
        self._summariser = Summariser(self._planner.plan_summary(self._plan), self._caller, self._alive)
        self._opened = await self._summariser.open()
        return True

    async def close(self) -> None:
        """End what was begun."""
        if self._opened is not None:
            await close(self._opened.deltas)

    async def tell(self, writer: EventWriter) -> Compacted:
        """Write the item's events as the summary is made.

        Raises:
            WireError: The backend broke off, or cannot go on with what is left.
        """
        assert self._opened is not None
        assert self._parts is not None
        item_id = random_id("cmp")
        begun = {"id": item_id, "type": COMPACTION, "encrypted_content": ""}
        await writer.write(events.ITEM_ADDED, b'"output_index":0,"item":' + encode(begun))
        await writer.write(COMPACTING, b'"item_id":%b,"output_index":0' % encode(item_id))
        summary = await self._summariser.read(self._opened)
        item = self._seal.item(item_id, Window(self._parts.before, summary.text, self._parts.after))
        plan = await self._planner.replan_compacted(self._turn, self._plan, item)
        await writer.write(events.ITEM_DONE, b'"output_index":0,"item":' + item)
        return Compacted(plan, item, summary.usage or Usage())
