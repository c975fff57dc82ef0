"""Delivers the records of turns beside the next turns: in order along a chain, again and again, and never into nothing.

A record is *delivered* when the hook has returned, *reported* when it has been given up and ``on_undelivered`` and the log know.
Every record that was submitted becomes one of both, exactly once from here; the hook may get it more than once.
"""

import logging
import random
from collections.abc import Callable, Coroutine
from inspect import isawaitable
from typing import Any, Final

import anyio
import msgspec

from ws_responses.cancellation import was_cancelled
from ws_responses.clock import Clock
from ws_responses.errors import LocalProtocolError
from ws_responses.flag import Flag
from ws_responses.settlement.options import Settlement
from ws_responses.settlement.record import (
    SettlementLag,
    TurnRecord,
    Undeliverable,
    Undelivered,
)

logger: Final = logging.getLogger("ws_responses.settlement")

Spawn = Callable[[Callable[[], Coroutine[Any, Any, None]]], object]
"""Starts a task: ``TaskGroup.start_soon``, or the connection's own."""


class Delivery:
    """A record on its way.

    Attributes:
        record: The record.
        done: It is delivered or reported.
        error: Why it was given up; None if it was delivered, or is on its way.
    """

    __slots__ = ("done", "error", "parent", "record", "scope", "submitted_at", "task")

    def __init__(self, record: TurnRecord, parent: "Delivery | None", submitted_at: float) -> None:
        self.record = record
        self.parent = parent
        self.submitted_at = submitted_at
        self.done = Flag()
        self.error: Exception | None = None
        self.scope: anyio.CancelScope | None = None
        self.task: object = None
        """What ``spawn`` returned: on asyncio a task lives only as long as somebody holds it."""


class Settler:
    """Delivers the records of a process.

    Args:
        settlement: The options.
        clock: Of all time limits.
        chance: Gives a number from 0 to 1, for the waits.

    Attributes:
        delivered: Records delivered so far.
        undelivered: Records given up so far.
    """

    def __init__(self, settlement: Settlement, clock: Clock, *, chance: Callable[[], float] = random.random) -> None:
        self.settlement = settlement
        self.delivered = 0
        self.undelivered = 0
        self._clock = clock
        self._chance = chance
        self._pending: dict[str, Delivery] = {}
        self._by_response: dict[tuple[str, str], Delivery] = {}

    # -- what waits --------------------------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Number of records that are neither delivered nor given up."""
        return len(self._pending)

    @property
    def oldest_s(self) -> float:
        """How long the oldest of these has waited; 0 if there is none."""
        oldest = next(iter(self._pending.values()), None)
        return 0.0 if oldest is None else self._clock.now() - oldest.submitted_at

    def unsettled(self, tenant: str, response_id: str | None) -> int:
        """Return how many records of a chain are unsettled, up to and with that of a response."""
        return len(self._chain(tenant, response_id))

    def _chain(self, tenant: str, response_id: str | None) -> list[Delivery]:
        """Return the unsettled deliveries of a chain, newest first: settled ones are all older."""
        at = None if response_id is None else self._by_response.get((tenant, response_id))
        chain: list[Delivery] = []
        while at is not None:
            chain.append(at)
            at = at.parent
        return chain

    async def admit(self, tenant: str, parent_id: str | None) -> None:
        """Hold up a turn whose chain has too many unsettled records. Call it before the turn runs.

        Raises:
            SettlementLag: They are still too many, and the policy is to refuse.
        """
        most = self.settlement.max_unsettled
        chain = self._chain(tenant, parent_id)
        if len(chain) < most:
            return
        if self.settlement.lag_wait_s:
            with self._clock.move_on_after(self.settlement.lag_wait_s):
                while len(chain) >= most:
                    # The oldest is the next to be settled.
                    await chain[-1].done.event.wait()
                    chain = self._chain(tenant, parent_id)
        if len(chain) >= most and self.settlement.on_lag == "refuse":
            raise SettlementLag(len(chain))

    # -- deliveries --------------------------------------------------------------------------------------------------

    def submit(self, record: TurnRecord, spawn: Spawn) -> Delivery:
        """Take a record; it is delivered by a task of its own.

        Args:
            record: Of a turn that is over. One for each turn.
            spawn: Starts that task. Whoever gives it has to :meth:`drain` before the tasks can run no more.

        Raises:
            LocalProtocolError: There is a record of this turn on its way.
        """
        if record.turn_id in self._pending:
            raise LocalProtocolError(f"turn {record.turn_id} is settled twice")
        parent_key = None if record.parent_id is None else (record.tenant, record.parent_id)
        parent = None if parent_key is None else self._by_response.get(parent_key)
        delivery = Delivery(record, parent, self._clock.now())
        if len(self._pending) >= self.settlement.max_pending:
            self._end(delivery, Undelivered(f"{self.settlement.max_pending} records wait already"))
            return delivery
        self._pending[record.turn_id] = delivery
        if record.response_id is not None:
            self._by_response[record.tenant, record.response_id] = delivery
        delivery.task = spawn(lambda: self._deliver(delivery))
        return delivery

    async def wait(self, delivery: Delivery) -> bool:
        """Wait for a delivery before the terminal event goes out; return whether it is delivered."""
        seconds = self.settlement.terminal_timeout_s
        with self._clock.move_on_after(seconds):
            await delivery.done.event.wait()
        if not delivery.done.is_set():
            logger.warning("turn %s: not settled within %g s; its end goes out", delivery.record.turn_id, seconds)
        return delivery.done.is_set() and delivery.error is None

    async def drain(self, deliveries: list[Delivery], timeout_s: float | None = None) -> list[TurnRecord]:
        """Wait for deliveries, but not for long; what is left then is given up. Call it in a shielded scope.

        Args:
            deliveries: Whose task can soon run no more.
            timeout_s: Time for all of them; None for that of the options.

        Returns:
            The records that could not be delivered; ``on_undelivered`` has been told of each.
        """
        limit = self.settlement.drain_timeout_s if timeout_s is None else timeout_s
        with self._clock.move_on_after(limit):
            for delivery in deliveries:
                await delivery.done.event.wait()
        left = [delivery for delivery in deliveries if not delivery.done.is_set()]
        for delivery in left:
            self._end(delivery, Undelivered(f"the connection ended, and {limit:g} s were not enough"))
            if delivery.scope is not None:
                delivery.scope.cancel()
        return [delivery.record for delivery in deliveries if delivery.error is not None]

    async def _deliver(self, delivery: Delivery) -> None:
        error: Exception | None = Undelivered("its task was cancelled")
        try:
            # Shielded: a server that ends the socket must not end this; ``drain`` does, in its time.
            with anyio.CancelScope(shield=True) as delivery.scope:
                if delivery.parent is not None:
                    await delivery.parent.done.event.wait()
                    delivery.parent = None
                error = await self._attempts(delivery)
        finally:
            self._end(delivery, error)

    async def _attempts(self, delivery: Delivery) -> Exception | None:
        """Return None when the record is delivered, or why it is given up."""
        settlement, record = self.settlement, delivery.record
        wait_s = settlement.backoff_s
        for attempt in range(1, settlement.attempts + 1):
            if delivery.done.is_set():
                return delivery.error  # it was given up: nobody may deliver what was reported
            error = await self._attempt(record)
            if error is None:
                return None
            level = logging.WARNING if attempt == 1 else logging.DEBUG
            # The text of an error may hold an address with its password.
            logger.log(level, "turn %s: settling failed (%d): %s", record.turn_id, attempt, type(error).__name__)
            if isinstance(error, Undeliverable) or attempt == settlement.attempts:
                return error
            with self._clock.move_on_after(min(wait_s, settlement.max_backoff_s) * (1 - self._chance() / 2)):
                await anyio.sleep_forever()
            wait_s *= 2
        raise AssertionError("there is at least one attempt")

    async def _attempt(self, record: TurnRecord) -> Exception | None:
        settled = False
        try:
            with self._clock.move_on_after(self.settlement.attempt_timeout_s):
                answer: object = self.settlement.hook(record)
                if isawaitable(answer):
                    await answer
                settled = True
        except Exception as error:  # noqa: BLE001 - whatever a hook raises means that the record is not there
            return error
        except anyio.get_cancelled_exc_class():
            if was_cancelled():
                raise
            return Undelivered("the hook was cancelled")
        return None if settled else Undelivered("the hook was late")

    def _end(self, delivery: Delivery, error: Exception | None) -> None:
        """Note that a record is delivered or given up; only the first word counts."""
        if delivery.done.is_set():
            return
        record = delivery.record
        delivery.error = error
        delivery.parent = delivery.task = None
        if self._pending.get(record.turn_id) is delivery:
            del self._pending[record.turn_id]
        key = (record.tenant, record.response_id or "")
        if self._by_response.get(key) is delivery:
            del self._by_response[key]
        if error is None:
            self.delivered += 1
        else:
            self.undelivered += 1
            self._report(record, error)
        delivery.done.set()

    def _report(self, record: TurnRecord, error: Exception) -> None:
        # The record itself, so that the log is enough to bill by: it holds no content.
        text = msgspec.json.encode(record).decode()
        logger.error("turn %s was not settled (%s): %s", record.turn_id, type(error).__name__, text)
        if self.settlement.on_undelivered is not None:
            try:
                self.settlement.on_undelivered(record, error)
            except Exception:
                logger.exception("on_undelivered raised for turn %s", record.turn_id)
