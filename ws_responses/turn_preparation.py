"""The steps of a turn before its upstream answers: admitted, its parent found, its delta checked and judged, routed, rendered."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ws_responses.errors import InvalidStoreTransition, WireError
from ws_responses.protocol.turns import Turn
from ws_responses.state.node import ResponseNode
from ws_responses.turn_admission import TurnAdmission
from ws_responses.turn_input import inherited_body, read_input
from ws_responses.turn_node import NodeMaker, is_blocked
from ws_responses.turn_parent import TurnParent
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.turn_end import TurnEnd
from ws_responses.validation import CallState

if TYPE_CHECKING:
    from ws_responses.connection import Connection
    from ws_responses.safety import SafetyTurn


class TurnPreparation:
    """Prepares one turn, and holds what its node will need.

    Args:
        connection: Whose turn it is.
        turn: Its protocol state.

    Attributes:
        admission: Whether it may run now.
        origin: The parent that is kept while it runs.
        parent: What it continues: the same, or the last part of its own rollout.
        calls: Those that are open after its input.
        safety: What judges it; None if nothing does.
    """

    __slots__ = ("_connection", "_shares", "_turn", "admission", "calls", "origin", "parent", "safety")

    def __init__(self, connection: "Connection", turn: Turn) -> None:
        self._connection = connection
        self._turn = turn
        self._shares = False
        self.admission = TurnAdmission(connection, turn.create)
        self.origin = TurnParent(connection)
        self.parent: ResponseNode | None = None
        self.calls: CallState | None = None
        self.safety: SafetyTurn | None = None

    async def run(self, info: CurrentTurn, has_ended: Callable[[], bool]) -> None:
        """Return when the upstream may be called, or the turn has been aborted.

        Args:
            info: The turn, which is told what is found.
            has_ended: Whether the turn was aborted.

        Raises:
            WireError: It must not run, or its input is not valid.
        """
        await self.admission.admit(info, has_ended)
        if has_ended():
            return
        await self._find_parent(info, has_ended)
        if has_ended():
            return
        self._validate(info)
        for step in (self.judge, self._route, self.render):
            await step(info)
            if has_ended():
                return

    async def _find_parent(self, info: CurrentTurn, has_ended: Callable[[], bool]) -> None:
        """Step 1: connection cache, store, not found."""
        parent = await self.origin.find(self._turn)
        if parent is None or has_ended():
            return
        self.origin.hold(parent)
        self.parent = info.parent = parent
        if info.create.store is True and not parent.record.store:
            raise InvalidStoreTransition(parent.id)

    def _validate(self, info: CurrentTurn) -> None:
        """Step 2: the delta, with what the parent's state carries; what is kept of the frame is copied here."""
        connection, create = self._connection, info.create
        # Until the app has accepted something of this client, nothing that it sends may push out what others keep.
        self._shares = connection.charges.proven or create.warm_up
        self.calls = read_input(connection, info, self.parent, shares=self._shares)
        # A rollout is not steered: what is appended may hold messages.
        if connection.steering is not None and not info.is_rollout:
            self._turn.inherited = inherited_body(info)
        create.array_input = None

    async def judge(self, info: CurrentTurn) -> None:
        """Step 3: the delta, before inference or beside it."""
        safety = self._connection.registry.parts.safety
        if safety is None:
            return
        self.safety = safety.begin(info, self.safety)
        await safety.judge(self.safety, info, self.parent)

    async def _route(self, info: CurrentTurn) -> None:
        """Step 4 for a wrapped app, which heeds it or not; the engine routes by itself."""
        routes = self._connection.registry.parts.routes
        if routes is not None:
            await routes.resolve(info, self.parent)

    def tell_router(self, info: CurrentTurn, error: WireError | None) -> None:
        """Tell the router of a wrapped app how its route did.

        Args:
            info: The turn, which ran.
            error: What the app ended the turn by; None if it has answered.
        """
        routes = self._connection.registry.parts.routes
        if routes is not None and not is_blocked(self.safety):
            routes.tell(info, error)

    async def render(self, info: CurrentTurn) -> None:
        """Step 5 for a wrapped app; the engine renders by itself."""
        tokens = self._connection.registry.parts.tokens
        if tokens is not None:
            await tokens.render(info)

    def make_node(self, info: CurrentTurn, end: TurnEnd, *, part: bool = False) -> ResponseNode | None:
        """Return the node of the turn, or of a part of it; None if the budgets have no room for it."""
        assert self.calls is not None
        maker = NodeMaker(self._connection, info, self.parent, self.calls, self.safety)
        return maker.make(end, part=part, shares=self._shares)

    def give_back(self) -> None:
        """Hold nothing any more: the turn has ended."""
        self.origin.let_go()
        self.admission.give_back()
