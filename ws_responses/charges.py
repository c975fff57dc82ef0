"""What a connection keeps for its client, and who is charged for it."""

from functools import partial

from ws_responses.errors import Refused
from ws_responses.limits import Limits
from ws_responses.state.budget import Budget, Ledger
from ws_responses.state.cache import ConnectionCache
from ws_responses.state.interning import Interner


class Charges:
    """The budgets of one connection, and what is interned for it.

    Args:
        ledger: The budgets of the process and of its tenants.
        tenant: Who owns the chains.
        cache: The nodes of the connection.
        limits: How much it may keep.

    Attributes:
        proven: The app has accepted something of this client.
    """

    __slots__ = (
        "_account",
        "_alone",
        "_budget",
        "_cache",
        "_interner",
        "_ledger",
        "_max_warm_up_bytes",
        "_stored",
        "_warm_up_bytes",
        "proven",
    )

    def __init__(self, ledger: Ledger, tenant: str, cache: ConnectionCache, limits: Limits) -> None:
        self.proven = False
        self._ledger = ledger
        self._account = ledger.account(tenant)
        self._cache = cache
        self._budget = Budget(limits.max_connection_bytes)
        self._interner: Interner | None = None
        self._max_warm_up_bytes = limits.max_warmup_bytes
        self._warm_up_bytes = 0
        # All records of a connection share two tuples.
        self._alone: tuple[Budget, ...] | None = None
        self._stored: tuple[Budget, ...] | None = None

    def open(self) -> None:
        """Let the tenant's other connections push out nodes of this one."""
        self._account.caches.add(self._cache)

    def clear(self) -> None:
        """Give all back at once: what is not stored is gone."""
        self._cache.clear()
        if self._interner is not None:
            self._interner.clear()
        self._account.caches.discard(self._cache)

    def reserve(self, size: int, *, stored: bool) -> tuple[Budget, ...] | None:
        """Charge a new record; what is stored is the tenant's, the rest this connection's as well."""
        own = None if stored else self._budget
        charged = self._ledger.reserve(size, own, self._cache, self._account)
        if charged is None:
            return None
        if stored:
            self._stored = self._stored or charged
            return self._stored
        self._alone = self._alone or charged
        return self._alone

    @property
    def interner(self) -> Interner:
        """What comes with every turn and is kept once; made with the first turn, since an idle connection needs none."""
        if self._interner is None:
            self._interner = Interner(
                partial(self._ledger.reserve, own=self._budget, cache=self._cache, tenant=self._account)
            )
        return self._interner

    def count_warm_up(self, size: int) -> None:
        """Bound what an unproven client may make us keep.

        Raises:
            Refused: Too much, before the app has accepted anything of this connection.
        """
        if self.proven:
            return
        if self._warm_up_bytes + size > self._max_warm_up_bytes:
            raise Refused(
                f"Warm-ups may hold {self._max_warm_up_bytes} bytes before the first generated response of a "
                "connection.",
                status=413,
                code="warm_up_too_large",
                param="input",
            )
        self._warm_up_bytes += size
