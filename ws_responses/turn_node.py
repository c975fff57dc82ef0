"""Step 7 of a turn: the node of its response, charged to whoever keeps it."""

from sys import intern
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ws_responses.instrumentation import NodeDropped
from ws_responses.state.node import Record, ResponseNode, record_bytes
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.turn_end import TurnEnd
from ws_responses.validation import CallState, check_output

if TYPE_CHECKING:
    from ws_responses.connection import Connection
    from ws_responses.safety import SafetyTurn


class NodeMaker:
    """Makes the nodes of one turn: of its response, or of each part of a rollout.

    Args:
        connection: Whose turn it is.
        info: The turn.
        parent: What it continues.
        calls: Those that are open after its input.
        safety: What judges it; None if nothing does.
    """

    def __init__(
        self,
        connection: "Connection",
        info: CurrentTurn,
        parent: ResponseNode | None,
        calls: CallState,
        safety: "SafetyTurn | None",
    ) -> None:
        self._connection = connection
        self._info = info
        self._parent = parent
        self._calls = calls
        self._safety = safety

    def make(self, end: TurnEnd, *, part: bool, shares: bool) -> ResponseNode | None:
        """Return a node; None if the budgets have no room for it.

        Args:
            end: How the upstream ended the turn.
            part: It is the node of a part.
            shares: What comes with every turn is kept once for all of them, already.
        """
        connection, info = self._connection, self._info
        if connection.registry.parts.tokens is not None:
            connection.registry.parts.tokens.keep(info, end.items)
        record = self._charged(self._record(end, part=part))
        if record is None:
            return None
        if not shares:
            info.share(connection.charges.interner)
        return ResponseNode(
            record,
            self._parent,
            tenant=connection.tenant,
            lane=info.lane,
            tools=info.interned_tools,
            instructions=info.interned_instructions,
            kept=info.kept,
            route=info.route,
            safety=None if self._safety is None else self._safety.state,
        )

    def _record(self, end: TurnEnd, *, part: bool) -> Record:
        connection, info, parent = self._connection, self._info, self._parent
        create, delta = info.create, info.encoded_delta
        output = b",".join(end.items)
        items = delta + b"," + output if delta and output else delta or output
        output_at = len(items) - len(output)
        base_at = end.base_at
        store = may_be_stored(info, parent)
        base = info.base or base_at is not None
        return Record(
            id=end.response_id,
            parent_id=parent.id if parent is not None else None,
            model=None if create.model is None else intern(create.model),  # one string for all turns of a chain
            store=store,
            items=items,
            output_at=output_at,
            history_at=0 if base_at is None else output_at + sum(len(item) + 1 for item in end.items[:base_at]),
            base=base,
            calls=check_output(self._calls, end.items),
            generated=not create.warm_up,
            status=intern(end.status),
            sampled=info.sampled,
            response=info.response if info.may_store and not part else None,
            known_to_app=self._app_keeps(own_id=end.own_id),
            app_parent_id=create.previous_response_id if parent is None and not base else None,
            app_id=end.app_id,
            part=part,
            safety=self._stored_safety() if store and connection.stores else None,
        )

    def _app_keeps(self, *, own_id: bool) -> bool:
        """Whether the app itself produced and stored the response, so that its id can be forwarded."""
        connection, info = self._connection, self._info
        # What was not judged the app was not to store; of what was blocked it may have stored all.
        differs = info.unjudged or is_blocked(self._safety)
        keeps = connection.history == "forward" and connection.settings.app_store == "keep"
        return keeps and own_id and info.create.stored and not differs

    def _stored_safety(self) -> bytes | None:
        safety = self._connection.registry.parts.safety
        return None if safety is None or self._safety is None else safety.stored(self._safety)

    def _charged(self, record: Record) -> Record | None:
        """Return a record as it is charged; None if the budgets have no room for it."""
        connection, parent, kept = self._connection, self._parent, self._info.kept
        stored = record.store and connection.stores
        size = record_bytes(record, None if parent is None else parent.record, stored=stored)
        if kept is not None:
            size += kept.bytes_since(None if parent is None else parent.kept)
        if self._safety is not None:
            size += self._safety.state.size
        budgets = connection.charges.reserve(size, stored=stored)
        if budgets is None:
            connection.reporter.report(NodeDropped(connection_id=connection.id, response_id=record.id, size=size))
            return None
        return replace(record, size=size, budgets=budgets)


def may_be_stored(info: CurrentTurn, parent: ResponseNode | None) -> bool:
    """Whether the client lets a response be stored.

    On top of what was not to be stored nothing is: the store would hold a chain without its beginning.

    Args:
        info: Its turn.
        parent: What it continues.
    """
    return info.create.stored and (parent is None or parent.record.store)


def is_blocked(safety: "SafetyTurn | None") -> bool:
    """Whether a classifier has blocked the answer of a turn."""
    judgement = None if safety is None else safety.judgement
    return judgement is not None and judgement.blocked
