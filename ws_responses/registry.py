"""What the connections of one middleware share: budgets, store, counters, and the operator's reach to all of them."""

import inspect
import logging
import os
import secrets
import warnings
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Self, TypeVar

import anyio
from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from ws_responses.cancellation import no_cancellation_but_ours
from ws_responses.counters import Place, Places, TenantCounters
from ws_responses.errors import (
    ConnectionsExhausted,
    RecordUnreadable,
    Refused,
    StoreError,
    StoreUnavailable,
    Unauthorized,
    Unavailable,
)
from ws_responses.handshake import Handshake
from ws_responses.instrumentation import Reporter, StoreFailed
from ws_responses.safety import Judge
from ws_responses.settings import Settings
from ws_responses.settlement import Settler
from ws_responses.single_flight import SingleFlight
from ws_responses.state.budget import Ledger
from ws_responses.state.node import Record, ResponseNode, record_bytes
from ws_responses.state.store import InProcessStore, ResponseStore, StoreKey
from ws_responses.upstreams.base import Principal

if TYPE_CHECKING:
    from ws_responses.connection import Connection

logger = logging.getLogger("ws_responses.connection")
store_logger = logging.getLogger("ws_responses.store")

T = TypeVar("T")

_BLOCKED_IDS = 4096
"""Responses remembered that were blocked, by whose ids nothing may go on; about 1 MB."""

_LONELY = (
    "store= outlives this process, but without tenant_key= its clients are other tenants in every process: nobody will find what "
    "is stored. Give all processes the same tenant_key"
)

ANONYMOUS = "anonymous"
"""Tenant of all clients without credentials, with ``anonymous_tenant="shared"``."""


class Seat:
    """A place among the open connections: counted from before the costly checks on, and given back exactly once.

    Args:
        registry: Whose place.
    """

    __slots__ = ("_place", "_registry", "_taken")

    def __init__(self, registry: "Registry") -> None:
        self._registry = registry
        self._taken = False
        self._place: Place | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        ledger = self._registry.ledger
        if self._place is not None:
            self._place.give_back()
        if self._taken:
            ledger.connections -= 1
            self._registry.left()

    def take(self) -> None:
        """Take a place in the process.

        Raises:
            Unavailable: The process is draining.
            ConnectionsExhausted: There is none.
        """
        registry = self._registry
        self.confirm()
        limit = registry.settings.limits.max_connections
        if limit is not None and registry.ledger.connections >= limit:
            raise ConnectionsExhausted("Too many open connections to this server.", headers={"retry-after": "5"})
        registry.ledger.connections += 1
        self._taken = True

    async def take_for(self, guest: "Guest") -> None:
        """Take a place of a tenant.

        Raises:
            ConnectionsExhausted: There is none.
            Unavailable: Whether there is one cannot be told, and that is to be refused.
        """
        registry = self._registry
        limit = registry.settings.limits.max_tenant_connections
        if limit is None:
            return
        self._place = await registry.places.take("connections", guest.tenant, limit, alone=guest.anonymous)
        if self._place is None:
            raise ConnectionsExhausted("Too many open connections with this credential.", headers={"retry-after": "5"})

    def confirm(self) -> None:
        """Look once more whether connections are taken at all, after the checks have had their time.

        Raises:
            Unavailable: The process is draining.
        """
        if self._registry.draining:
            raise Unavailable("This server is shutting down. Connect again.", headers={"retry-after": "1"})


class Guest(Struct, frozen=True):
    """Who a client is that was let in.

    Attributes:
        tenant: Who owns its chains.
        anonymous: The tenant is this connection alone.
        principal: As ``authorize`` said.
    """

    tenant: str
    anonymous: bool
    principal: Principal | None


class Registry:
    """Shared state of a middleware; made with it, without a running loop.

    Args:
        settings: The options.
        reporter: Where facts go.
        store: Keeps ``store: true`` chains; "memory" for the in-process one, None for none.
        tenant_key: Key of the hash that names tenants; give the same to all workers that share a store.
        counters: Counts the places of tenants over all nodes; None for this process alone.
    """

    def __init__(
        self,
        settings: Settings,
        reporter: Reporter,
        store: ResponseStore | str | None,
        tenant_key: bytes | None,
        counters: TenantCounters | None = None,
    ) -> None:
        self.settings = settings
        self.reporter = reporter
        self.ledger = Ledger(settings.limits.max_process_bytes, settings.limits.max_tenant_bytes)
        self.store: ResponseStore | None = (
            InProcessStore(self.ledger, settings.clock.now) if isinstance(store, str) else store
        )
        self.places = Places(
            counters,
            settings.clock,
            settings.limits.store_timeout_s,
            lambda error: reporter.report(StoreFailed(operation="count", error=error)),
        )
        self.judge = None if settings.safety is None else Judge(settings.safety, settings.clock)
        self.settler = None if settings.settlement is None else Settler(settings.settlement, settings.clock)
        self.connections: set[Connection] = set()
        self.draining = False
        self.deletions = 0
        self._blocked: LRUCache[tuple[str, str], None] = LRUCache(_BLOCKED_IDS)
        self._loads: SingleFlight[tuple[StoreKey, int], Sequence[Record]] = SingleFlight()
        self._tenant_key = tenant_key or secrets.token_bytes(32)
        self._is_lonely = tenant_key is None and self.store is not None and not self.store_is_local
        if self._is_lonely and settings.tenant is None and settings.authorize is None:
            warnings.warn(_LONELY, stacklevel=3)
        self._turns = count(1)
        self._random = ""
        self._random_at = 0
        self._turn_prefix = f"turn_{secrets.token_hex(6)}_"
        self._emptied: anyio.Event | None = None

    # -- ids ---------------------------------------------------------------------------------------------------------

    def new_id(self, kind: str) -> str:
        """Return an unguessable id."""
        if self._random_at == len(self._random):
            # One system call for many ids.
            self._random, self._random_at = os.urandom(2048).hex(), 0
        self._random_at += 32
        return f"{kind}_{self._random[self._random_at - 32 : self._random_at]}"

    def new_turn_id(self) -> str:
        """Return an id of a turn, unique over processes."""
        return f"{self._turn_prefix}{next(self._turns)}"

    def new_steer_id(self) -> str:
        """Return an unguessable id of a steer."""
        return self.new_id("steer")

    # -- connections -------------------------------------------------------------------------------------------------

    def seat(self) -> "Seat":
        """Return a place for one more connection, to be taken in a ``with`` block that lasts as long as it does."""
        return Seat(self)

    def add(self, connection: "Connection") -> None:
        """Note a connection, so that the operator reaches it."""
        self.connections.add(connection)

    def remove(self, connection: "Connection") -> None:
        """Note a connection no more."""
        self.connections.discard(connection)

    def left(self) -> None:
        """Tell who waits for it that all connections have ended (for ``Seat``)."""
        if self._emptied is not None and not self.ledger.connections:
            self._emptied.set()
            self._emptied = None

    def tenant_of(self, handshake: Handshake, principal_tenant: str | None) -> tuple[str, bool]:
        """Return who owns the chains of a connection, and whether that is the connection alone.

        Raises:
            Refused: The operator's ``tenant`` failed: nobody may come to own another's chains by that.
        """
        settings = self.settings
        named = principal_tenant
        if named is None and settings.tenant is not None:
            try:
                named = settings.tenant(handshake)
            except Refused:
                raise
            except Exception as error:
                logger.exception("tenant raised")
                raise Unavailable("Authorization failed.", headers={"retry-after": "1"}) from error
        if named is None:
            named = handshake.credentials_tenant(self._tenant_key)
            if named is not None and self._is_lonely:
                self._is_lonely = False
                store_logger.warning(_LONELY)
        if named is not None:
            return named, False
        if settings.anonymous_tenant == "shared":
            return ANONYMOUS, False
        return self.new_id("anonymous"), True

    async def authorize(self, handshake: Handshake, model: str | None) -> Principal | None:
        """Return what the operator's ``authorize`` says; None if there is none.

        Raises:
            Refused: It refused, raised, or took too long (503).
        """
        authorize = self.settings.authorize
        if authorize is None:
            return None
        principal: Principal | None = None
        answered = False
        try:
            with (
                no_cancellation_but_ours(),
                self.settings.clock.move_on_after(self.settings.limits.authorize_timeout_s),
            ):
                verdict = authorize(handshake, model)
                principal = await verdict if inspect.isawaitable(verdict) else verdict
                answered = True
        except Refused:
            raise
        except Exception as error:
            logger.exception("authorize raised")
            raise Unavailable("Authorization failed.", headers={"retry-after": "1"}) from error
        if not answered:
            raise Unavailable("Authorization took too long.", headers={"retry-after": "1"})
        if principal is None:
            raise Unauthorized("The credential is missing or not valid here.")
        return principal

    async def admit(self, handshake: Handshake, seat: Seat) -> Guest:
        """Judge a client at its first request, the cheap checks first.

        Raises:
            Refused: It is turned away.
        """
        seat.take()
        guest = await self.identify(handshake)
        await seat.take_for(guest)
        return guest

    async def identify(self, handshake: Handshake) -> Guest:
        """Return who a request belongs to.

        Raises:
            Refused: Nobody who may come in.
        """
        principal = await self.authorize(handshake, None)
        tenant, anonymous = self.tenant_of(handshake, principal.tenant if principal else None)
        return Guest(tenant=tenant, anonymous=anonymous, principal=principal)

    async def drain(self, timeout_s: float | None) -> bool:
        """Refuse new connections and turns, and wait for the open ones to end.

        Returns:
            Whether all have ended in time.
        """
        self.draining = True
        for connection in list(self.connections):
            connection.retire()
        with self.settings.clock.move_on_after(float("inf") if timeout_s is None else timeout_s):
            while self.ledger.connections:
                if self._emptied is None:
                    self._emptied = anyio.Event()
                await self._emptied.wait()
        return not self.ledger.connections

    def disconnect(self, tenant: str, reason: str) -> int:
        """End all connections of a tenant; return how many there were."""
        theirs = [connection for connection in self.connections if connection.tenant == tenant]
        for connection in theirs:
            connection.disconnect(reason)
        return len(theirs)

    def block(self, tenant: str, response_id: str) -> None:
        """Let a response whose output was blocked not be continued, also where the app itself knows it."""
        self._blocked[tenant, response_id] = None

    def is_blocked(self, tenant: str, response_id: str) -> bool:
        """Whether that is so; the oldest are forgotten."""
        return (tenant, response_id) in self._blocked

    # -- the store ---------------------------------------------------------------------------------------------------

    @property
    def store_is_local(self) -> bool:
        """Whether the store is the one of this process, which never waits for anything."""
        return isinstance(self.store, InProcessStore)

    async def append(self, node: ResponseNode) -> bool:
        """Write a node; return whether the store has it. A failure is reported."""
        assert self.store is not None
        key = StoreKey(node.tenant, node.id)
        parent = None if node.record.parent_id is None else StoreKey(node.tenant, node.record.parent_id)
        with suppress(StoreError):
            await self._ask("append", self.store.append(key, node.record, parent, self.settings.limits.store_ttl_s))
            return True
        return False

    async def load(self, connection: "Connection", response_id: str, lane: str | None) -> ResponseNode | None:
        """Return a stored node with its chain; None if there is none.

        Raises:
            StoreUnavailable: See ``stored``.
        """
        records = await self.stored(connection.tenant, response_id)
        node = connection.cache.get(response_id)
        if node is not None:
            return node  # another turn has loaded it meanwhile
        for record in records:
            known = connection.cache.get(record.id)
            if known is None:
                charged = self._charged(connection, record, None if node is None else node.record)
                if charged is None:
                    return None
                known = ResponseNode(charged, node, tenant=connection.tenant, lane=lane)
            node = known
        return node

    def _charged(self, connection: "Connection", record: Record, parent: Record | None) -> Record | None:
        if record.budgets:
            return record
        size = record_bytes(record, parent, stored=False)
        budgets = connection.reserve(size, stored=False)
        return None if budgets is None else replace(record, size=size, budgets=budgets)

    async def stored(self, tenant: str, response_id: str) -> Sequence[Record]:
        """Return the records of a stored chain, root (or newest base) first; empty if there is none.

        A store that fails or is late is a miss, unless it is one that fails closed.

        Raises:
            StoreUnavailable: It is, and did not answer.
        """
        store = self.store
        if store is None:
            return ()
        key = StoreKey(tenant, response_id)
        try:
            if self.store_is_local:
                return await self._ask("load", store.load(key))
            # Who asks after a deletion must not be given what was on its way before it.
            return await self._loads.run((key, self.deletions), lambda: self._ask("load", store.load(key)))
        except RecordUnreadable:
            return ()
        except StoreError:
            if getattr(store, "fails_closed", False):
                raise StoreUnavailable from None
            return ()

    async def forget(self, tenant: str, response_id: str) -> bool:
        """Drop an id everywhere here, because its owner deleted it; descendants stay.

        Returns:
            Whether the store has dropped it as well.
        """
        self.deletions += 1
        theirs = [connection for connection in self.connections if connection.tenant == tenant]
        for connection in theirs:
            connection.cache.discard(response_id)
        if self.store is None:
            return True
        with self.settings.clock.move_on_after(self.settings.limits.store_timeout_s):
            for connection in theirs:
                await connection.stored()  # else the store would be told to delete first, and to keep it then
        try:
            await self._ask("delete", self.store.delete(StoreKey(tenant, response_id)))
        except StoreError:
            return False
        finally:
            self.deletions += 1
        return True

    async def _ask(self, operation: str, work: Awaitable[T]) -> T:
        """Return what the store says.

        Raises:
            StoreError: It failed, or was late; that is reported.
        """
        answers: list[T] = []
        try:
            with no_cancellation_but_ours(), self.settings.clock.move_on_after(self.settings.limits.store_timeout_s):
                answers.append(await work)
        except Exception as error:
            # Never the turn's end. Only the kind is told: the text may hold an address with its password, or content.
            self.reporter.report(StoreFailed(operation=operation, error=type(error).__name__))
            store_logger.debug("store: %s failed", operation, exc_info=error)
            raise error if isinstance(error, StoreError) else StoreError(operation) from error
        if not answers:
            self.reporter.report(StoreFailed(operation=operation, error="late"))
            raise StoreError(f"{operation} took too long")
        return answers[0]
