"""Ids of calls, each once on a chain: clients pair calls and outputs by them over the whole conversation.

Services that number the calls of each response (``call_0``) would give one name to calls of several turns.
"""

from collections.abc import Iterable
from sys import getsizeof
from typing import TYPE_CHECKING

from msgspec import Struct

from ws_responses.protocol.calls import output_head
from ws_responses.protocol.items import split_items
from ws_responses.upstreams.base import CurrentTurn

if TYPE_CHECKING:
    from ws_responses.state.node import ResponseNode


class CallIds(Struct, frozen=True):
    """The ids on a chain; what a turn adds is kept with it, and shared by all that goes on from it.

    Attributes:
        own: Of this turn, and of those before it that nobody has looked at.
        before: Of the turns before them.
    """

    own: frozenset[str]
    before: "CallIds | None" = None

    def __contains__(self, call_id: str) -> bool:
        ids: CallIds | None = self
        while ids is not None:
            if call_id in ids.own:
                return True
            ids = ids.before
        return False

    @property
    def size(self) -> int:
        """Bytes of memory of its own."""
        return _BYTES + getsizeof(self.own) + sum(map(getsizeof, self.own))


_BYTES = 64
"""The struct itself, with the garbage collector's part."""


class ChainCalls:
    """The ids of calls on the chain of a turn; looked up when the first one is in question, since most services give none.

    Args:
        turn: The turn; its own output is not looked at.
    """

    __slots__ = ("_ids", "_turn")

    def __init__(self, turn: CurrentTurn) -> None:
        self._turn = turn
        self._ids: CallIds | None = None

    def has(self, call_id: str) -> bool:
        """Whether a call or an output of the conversation bears the id."""
        if self._ids is None:
            self._ids = self._look()
        return call_id in self._ids

    def after(self, output: Iterable[bytes]) -> CallIds | None:
        """Return the ids with those of the turn's output; None if none was in question."""
        ids = self._ids
        return None if ids is None else CallIds(ids.own.union(_ids_in(output)), ids.before)

    def _look(self) -> CallIds:
        own = set(_ids_in(self._turn.delta))
        for node in reversed(self._turn.chain):
            known = _known(node)
            if known is not None:
                return CallIds(frozenset(own), known)
            own.update(_ids_in(split_items(node.record.items[node.record.history_at :])))
        return CallIds(frozenset(own))


def _known(node: "ResponseNode") -> CallIds | None:
    ids = getattr(node.kept, "call_ids", None)
    return ids if isinstance(ids, CallIds) else None


def _ids_in(items: Iterable[bytes]) -> Iterable[str]:
    return (head.call_id for head in map(output_head, items) if head.call_id)
