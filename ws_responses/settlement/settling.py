"""What one connection has to settle."""

from ws_responses.settlement.record import TurnRecord
from ws_responses.settlement.settler import Delivery, Settler, Spawn


class Settling:
    """What one connection has to settle.

    Args:
        settler: Of the process.
        spawn: Starts a task of the connection.
    """

    __slots__ = ("_deliveries", "_look_at", "_settler", "_spawn")

    def __init__(self, settler: Settler, spawn: Spawn) -> None:
        self._settler = settler
        self._spawn = spawn
        self._deliveries: list[Delivery] = []
        self._look_at = 2 * settler.settlement.max_unsettled

    @property
    def before_terminal(self) -> bool:
        """Whether the terminal event waits for the record."""
        return self._settler.settlement.before_terminal

    def submit(self, record: TurnRecord) -> Delivery:
        """Take the record of a turn; does not wait."""
        if len(self._deliveries) >= self._look_at:
            self._deliveries = [delivery for delivery in self._deliveries if not delivery.done.is_set()]
            # Twice as many: where all lag, each turn would else look at all of them.
            self._look_at = 2 * max(len(self._deliveries), self._settler.settlement.max_unsettled)
        delivery = self._settler.submit(record, self._spawn)
        if not delivery.done.is_set():
            self._deliveries.append(delivery)
        return delivery

    async def settle(self, record: TurnRecord) -> None:
        """Take the record of a turn; with ``before_terminal`` return when it is delivered, or that has taken too long."""
        delivery = self.submit(record)
        if self.before_terminal and not delivery.done.is_set():
            await self._settler.wait(delivery)

    async def drain(self) -> list[TurnRecord]:
        """Wait for what is unsettled, in bounds; return what could not be delivered. Call it in a shielded scope."""
        deliveries, self._deliveries = self._deliveries, []
        return await self._settler.drain(deliveries)
