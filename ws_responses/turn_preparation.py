"""The steps of a turn before its upstream answers: admitted, its parent found, its delta checked and judged, routed, rendered."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Raw

from ws_responses.errors import InvalidStoreTransition, WireError
from ws_responses.protocol.turns import Turn
from ws_responses.routers import tell_failed, tell_served
from ws_responses.routing import Route
from ws_responses.safety import About, SafetyState, SafetyTurn
from ws_responses.state.interning import Interned
from ws_responses.state.node import ResponseNode
from ws_responses.turn_admission import TurnAdmission
from ws_responses.turn_input import inherited_body, read_input
from ws_responses.turn_node import NodeMaker, is_blocked
from ws_responses.turn_parent import TurnParent
from ws_responses.upstreams.base import CurrentTurn
from ws_responses.upstreams.turn_end import TurnEnd
from ws_responses.validation import CallState
from ws_responses.wrapped_tokens import render_turn

if TYPE_CHECKING:
    from ws_responses.connection import Connection


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
        judge, parent = self._connection.registry.judge, self.parent
        if judge is None:
            return
        state = None
        if parent is not None:
            state = parent.safety if isinstance(parent.safety, SafetyState) else judge.load(parent.record.safety)
        about = About(
            turn_id=info.id,
            tenant=info.tenant,
            principal_id=None if info.principal is None else info.principal.id,
            model=info.model,
        )
        members: dict[str, Raw | Interned] = dict(info.create.body)
        kept = {"tools": info.interned_tools, "instructions": info.interned_instructions}
        members |= {name: interned for name, interned in kept.items() if interned is not None}
        self.safety = safety = SafetyTurn(judge, about, None if self.safety is None else self.safety.judgement)
        await safety.judge(
            info.delta,
            members=members,
            state=state,
            history=() if parent is None or state is not None else info.history(),
            at_once=info.warm_up,
        )
        info.judgement, info.flags, info.unjudged = safety.judgement, safety.state.flags, safety.beside

    async def _route(self, info: CurrentTurn) -> None:
        """Step 4 for a wrapped app, which heeds it or not; the engine routes by itself."""
        router = self._connection.settings.router
        if router is None:
            return
        parent = self.parent
        before = parent.route if parent is not None and isinstance(parent.route, Route) else None
        info.take_route(await router.resolve(info.model, info.tenant, before), before)

    def tell_router(self, info: CurrentTurn, error: WireError | None) -> None:
        """Tell the router of a wrapped app how its route did.

        Args:
            info: The turn, which ran.
            error: What the app ended the turn by; None if it has answered.
        """
        router, route = self._connection.settings.router, info.route
        if router is None or route is None or is_blocked(self.safety):
            return
        if error is None:
            tell_served(router, route)
        else:
            tell_failed(router, route, error)

    async def render(self, info: CurrentTurn) -> None:
        """Step 5 for a wrapped app; the engine renders by itself."""
        renderer = self._connection.settings.renderer
        if renderer is not None:
            await render_turn(renderer, info)

    def make_node(self, info: CurrentTurn, end: TurnEnd, *, part: bool = False) -> ResponseNode | None:
        """Return the node of the turn, or of a part of it; None if the budgets have no room for it."""
        assert self.calls is not None
        maker = NodeMaker(self._connection, info, self.parent, self.calls, self.safety)
        return maker.make(end, part=part, shares=self._shares)

    def give_back(self) -> None:
        """Hold nothing any more: the turn has ended."""
        self.origin.let_go()
        self.admission.give_back()
