"""Routes for wrapped apps: with ``router=`` each turn finds its model resolved, and the router hears how its routes do."""

from ws_responses.errors import WireError
from ws_responses.routers import tell_failed, tell_served
from ws_responses.routing import Route, Router
from ws_responses.state.node import ResponseNode
from ws_responses.upstreams.base import CurrentTurn


class WrappedRoutes:
    """Resolves the models of a wrapped app.

    Args:
        router: Knows them.
    """

    def __init__(self, router: Router) -> None:
        self._router = router

    async def resolve(self, turn: CurrentTurn, parent: ResponseNode | None) -> None:
        """Set ``turn.route``.

        Args:
            turn: The turn.
            parent: What it continues, whose route it keeps if that is still valid.

        Raises:
            WireError: There is no route.
        """
        before = parent.route if parent is not None and isinstance(parent.route, Route) else None
        turn.take_route(await self._router.resolve(turn.model, turn.tenant, before), before)

    def tell(self, turn: CurrentTurn, error: WireError | None) -> None:
        """Tell the router how the route of a turn did.

        Args:
            turn: The turn; nothing is told of one without a route.
            error: What the app ended it by; None if it has answered.
        """
        if turn.route is None:
            return
        if error is None:
            tell_served(self._router, turn.route)
        else:
            tell_failed(self._router, turn.route, error)
