"""What is kept of a response: the record (its content) and the node (the record in its chain)."""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from sys import getsizeof
from typing import Final, Protocol

from msgspec import Struct

from ws_responses.protocol.calls import CallState
from ws_responses.protocol.items import split_items
from ws_responses.protocol.withheld import withheld
from ws_responses.state.budget import Budget
from ws_responses.state.interning import Interned

RECORD_BYTES: Final = 672
"""Charged for a record beside its items and strings: record, node, cache entries; measured on 64-bit CPython."""

STORED_BYTES: Final = 640
"""The same for what the in-process store adds, a branch of its own included."""

SAMPLED_BYTES: Final = 160
"""Charged for sampled ids beside four bytes for each: the objects that hold them."""


class Sampled(Struct, frozen=True, gc=False):
    """Token ids that were sampled for a response's output, in order.

    Attributes:
        vocabulary: Names the format and the vocabulary that they belong to (a renderer's name).
        packed: Four bytes each, in the machine's order.
    """

    vocabulary: str
    packed: bytes

    __repr__ = withheld

    @classmethod
    def of(cls, vocabulary: str, ids: Iterable[int]) -> "Sampled":
        """Pack ids."""
        return cls(vocabulary, array("I", ids).tobytes())

    @property
    def ids(self) -> "array[int]":
        """The ids, in one copy."""
        return array("I", self.packed)


class Record(Struct, frozen=True, kw_only=True, gc=False):
    """The immutable content of one response. Gives its bytes back to the budgets when the last holder is gone.

    Attributes:
        id: Response id, as the client knows it.
        parent_id: The response that it continues, or None.
        model: As the frame said.
        store: Whether it may be stored.
        items: Input items, then output items, as they came, joined by commas.
        output_at: Offset in ``items`` where the output begins.
        history_at: Offset in ``items`` where what later turns see begins (above 0 after a compaction in the output).
        base: Nothing older than this record is joined.
        calls: What the validator carries on.
        generated: False for a warm-up.
        status: ``completed`` or ``incomplete``.
        sampled: Token ids that the upstream sampled for the output, if it told us.
        response: The response object without its output, encoded; None where the upstream keeps its own.
        known_to_app: The app itself stored this response (history mode "forward").
        app_parent_id: What the response continues, if only the app knows that (history mode "forward").
        app_id: What the app calls it, if that is not ``id``.
        part: It is not the end of its response, but of a step of it (a rollout): the response goes on in the record that follows.
            Nobody knows its id.
        safety: What the safety room carries on, encoded, for whoever loads the record; None if it was not judged, or is not stored.
        size: Bytes charged.
        budgets: Where.
    """

    id: str
    parent_id: str | None
    model: str | None
    store: bool
    items: bytes
    output_at: int
    history_at: int
    base: bool
    calls: CallState
    generated: bool
    status: str
    sampled: Sampled | None = None
    response: bytes | None = None
    known_to_app: bool = False
    app_parent_id: str | None = None
    app_id: str | None = None
    part: bool = False
    safety: bytes | None = None
    size: int = 0
    budgets: tuple[Budget, ...] = ()

    __repr__ = withheld

    def __del__(self) -> None:
        for budget in self.budgets:
            budget.used -= self.size

    def input_items(self) -> list[bytes]:
        """Return the items that the client sent with this turn, byte-exact."""
        return split_items(self.items[: self.output_at].removesuffix(b","))

    def output_items(self) -> list[bytes]:
        """Return the items that the upstream answered with, byte-exact."""
        return split_items(self.items[self.output_at :])


def whole_output(records: Sequence[Record]) -> bytes:
    """Return the output of the response that a chain ends with, its items joined by commas: of all steps of a rollout.

    Args:
        records: The chain, root (or newest base) first.
    """
    steps = [records[-1]]
    for record in reversed(records[:-1]):
        if not record.part:
            break
        steps.append(record)
    return b",".join(output for record in reversed(steps) if (output := record.items[record.output_at :]))


def record_bytes(record: Record, parent: Record | None, *, stored: bool) -> int:
    """Return what a record is to be charged: all that it keeps alive and its parent does not."""
    size = RECORD_BYTES + len(record.items) + getsizeof(record.id) + getsizeof(record.model)
    if record.history_at:
        size += len(record.items) - record.history_at  # what the history goes on from is kept as a piece of its own
    if parent is None or record.calls is not parent.calls:
        size += record.calls.size
    if record.sampled is not None:
        size += SAMPLED_BYTES + len(record.sampled.packed)
    if record.response is not None:
        size += getsizeof(record.response)
    size += sum(getsizeof(app_id) for app_id in (record.app_parent_id, record.app_id) if app_id is not None)
    if record.safety is not None:
        size += getsizeof(record.safety)
    return size + STORED_BYTES if stored else size


class Carried(Protocol):
    """What an upstream keeps of a turn for the next one; made anew from the records where it is missing."""

    def bytes_since(self, parent: "Carried | None") -> int:
        """Return the bytes of memory that this keeps alive and the parent's does not."""
        ...


class ResponseNode:
    """A record and its place: immutable after it is made, shared by all that continue it.

    Attributes:
        record: The content.
        parent: The node whose items are joined before its own; None for a first one and for a new base, which keeps
            nothing older alive.
        lane: Lane name on which this connection made it; False for a node that came from a store.
        tenant: Who owns it.
        end: Number of pieces of the joined history up to here.
        history_bytes: Bytes of the joined history up to here, commas included.
        tools: The frame's ``tools``, interned.
        instructions: The frame's ``instructions``, interned.
        kept: What is kept of the turn's work for the next one; None if there was none.
        route: What served the turn; None if nobody has routed it, and for one that came from a store.
        safety: What the safety room carries on; None if nobody has judged it here (``record.safety`` may tell).
    """

    __slots__ = (
        "_pieces",
        "end",
        "history_bytes",
        "instructions",
        "kept",
        "lane",
        "parent",
        "record",
        "route",
        "safety",
        "tenant",
        "tools",
    )

    def __init__(
        self,
        record: Record,
        parent: "ResponseNode | None",
        *,
        tenant: str,
        lane: str | bool | None = False,
        tools: Interned | None = None,
        instructions: Interned | None = None,
        kept: Carried | None = None,
        route: object = None,
        safety: object = None,
    ) -> None:
        self.record = record
        self.parent = parent = None if record.base else parent
        self.tenant = tenant
        self.lane = lane
        self.tools = tools
        self.instructions = instructions
        self.kept = kept
        self.route = route
        self.safety = safety
        piece = record.items[record.history_at :] if record.history_at else record.items
        if parent is None:
            self._pieces: list[bytes] = []
            self.history_bytes = len(piece)
        else:
            self._pieces = parent.pieces_to_extend()
            joint = 1 if piece and parent.history_bytes else 0
            self.history_bytes = parent.history_bytes + joint + len(piece)
        if piece:
            self._pieces.append(piece)
        self.end = len(self._pieces)

    def __del__(self) -> None:
        # Children hold their parents, so the newest piece of a line belongs to the node of it that goes first.
        if len(self._pieces) == self.end and self.end and self._owns_piece():
            self._pieces.pop()

    def _owns_piece(self) -> bool:
        return len(self.record.items) > self.record.history_at

    def pieces_to_extend(self) -> list[bytes]:
        """Return the list of pieces that a child appends its own to: this line's, or a copy if it forks off."""
        return self._pieces if len(self._pieces) == self.end else self._pieces[: self.end]

    def pieces(self, after: "ResponseNode | None" = None) -> list[bytes]:
        """Return the joined history as one piece per node that has items, oldest first.

        The pieces of a line lie in one list, next to each other: walking from node to node would miss the processor's
        cache at each step, which for a long history costs more than copying it.

        Args:
            after: An ancestor, not older than the newest base, whose pieces and all older ones are left out.
        """
        return self._pieces[0 if after is None else after.end : self.end]

    @property
    def id(self) -> str:
        """Response id."""
        return self.record.id

    def joined(self) -> Iterator["ResponseNode"]:
        """Yield the nodes whose items later turns see, newest first: up to the newest base."""
        node: ResponseNode | None = self
        while node is not None:
            yield node
            node = node.parent
