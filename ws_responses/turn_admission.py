"""Whether a turn may run now: the operator's ``authorize``, what is not settled yet, the tenant's places, and the quota."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from ws_responses.counters import Place
from ws_responses.errors import TurnsExhausted
from ws_responses.protocol.creates import ResponseCreate
from ws_responses.quota import QuotaRequest, ask_quota
from ws_responses.settlement import SettlementLag
from ws_responses.upstreams.base import CurrentTurn

if TYPE_CHECKING:
    from ws_responses.connection import Connection


class TurnAdmission:
    """Admits one turn, and holds its place while it runs.

    Args:
        connection: Whose turn it is.
        create: Begins it.

    Attributes:
        held_up: Too much of its chain is not settled: it never ran, and has no record.
    """

    __slots__ = ("_connection", "_create", "_place", "held_up")

    def __init__(self, connection: "Connection", create: ResponseCreate) -> None:
        self._connection = connection
        self._create = create
        self._place: Place | None = None
        self.held_up = False

    async def admit(self, info: CurrentTurn, has_ended: Callable[[], bool]) -> None:
        """Return when the turn may run, or has ended meanwhile.

        In this order: who waits takes nobody's place, and the quota may count what has been settled meanwhile.

        Args:
            info: The turn; it is told the principal.
            has_ended: Whether the turn was aborted.

        Raises:
            Refused: It may not run.
        """
        for step in (self._authorize, self._wait_for_settlement, self._take_place, self._ask_quota):
            await step(info)
            if has_ended():
                self.give_back()
                return

    def give_back(self) -> None:
        """Give back what was taken; the next turn of the lane takes it."""
        if self._place is not None:
            self._place.give_back()

    async def _authorize(self, info: CurrentTurn) -> None:
        connection = self._connection
        if connection.settings.authorize is not None:
            info.principal = await connection.registry.admission.authorize_turn(
                connection.handshake, info.model, connection.tenant
            )

    async def _wait_for_settlement(self, info: CurrentTurn) -> None:
        """Hold up a chain of which too much is not settled."""
        del info
        settler = self._connection.registry.settler
        if settler is None:
            return
        try:
            await settler.admit(self._connection.tenant, self._create.previous_response_id)
        except SettlementLag:
            # It never ran. A record of it would wait behind those that are late, and so would those of all further tries.
            self.held_up = True
            raise

    async def _take_place(self, info: CurrentTurn) -> None:
        """Take one of the places that the tenant has for turns."""
        del info
        connection = self._connection
        limit = connection.limits.max_tenant_turns
        if limit is None:
            return
        places = connection.registry.places
        self._place = await places.take("turns", connection.tenant, limit, alone=connection.anonymous)
        if self._place is None:
            raise TurnsExhausted

    async def _ask_quota(self, info: CurrentTurn) -> None:
        connection, create = self._connection, self._create
        if connection.settings.quota is None:
            return
        request = QuotaRequest(
            turn_id=info.id,
            tenant=connection.tenant,
            principal_id=None if info.principal is None else info.principal.id,
            model=create.model,
            warm_up=create.warm_up,
            parent_id=create.previous_response_id,
            input_bytes=create.size,
        )
        limit = connection.limits.authorize_timeout_s
        await ask_quota(connection.settings.quota, request, clock=connection.clock, timeout_s=limit)
