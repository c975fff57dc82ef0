"""The store as the turns of one connection use it."""

from functools import partial

from anyio.abc import TaskGroup

from ws_responses.charges import Charges
from ws_responses.instrumentation import Reporter
from ws_responses.runs import Runs
from ws_responses.state.cache import ConnectionCache
from ws_responses.state.node import ResponseNode
from ws_responses.stored_chains import StoredChains
from ws_responses.storing import StoreQueue


class StoreAccess:
    """Finds what is stored, and stores; made with the first turn that does.

    Args:
        chains: What is stored.
        cache: The nodes of the connection.
        charges: Is charged for what is found.
        runs: Waits for what is being written.
        tasks: Where the task that writes runs.
        reporter: Is told what is not written.
        tenant: Who owns the chains.
        durable: A turn waits for its node to be stored.
    """

    __slots__ = ("_cache", "_chains", "_charges", "_durable", "_reporter", "_runs", "_tasks", "_tenant")

    def __init__(
        self,
        chains: StoredChains,
        cache: ConnectionCache,
        charges: Charges,
        runs: Runs,
        tasks: TaskGroup,
        reporter: Reporter,
        *,
        tenant: str,
        durable: bool,
    ) -> None:
        self._chains = chains
        self._cache = cache
        self._charges = charges
        self._runs = runs
        self._tasks = tasks
        self._reporter = reporter
        self._tenant = tenant
        self._durable = durable

    async def resolve(self, response_id: str, lane: str | None) -> ResponseNode | None:
        """Return the node of an id; None if it is not stored."""
        charge = partial(self._charges.reserve, stored=False)
        return await self._chains.resolve(response_id, tenant=self._tenant, lane=lane, cache=self._cache, charge=charge)

    async def store(self, node: ResponseNode) -> bool:
        """Write a node, if it is to be stored.

        The store of this process is written before this returns. Any other one is written by a task of its own, in the
        order of the turns, so that no turn waits for it; unless the operator wants it (``durable``).

        Returns:
            Whether the turn may be told to have succeeded.
        """
        if not node.record.store:
            return True
        if self._chains.is_local:
            await self._chains.append(node)
            return True
        if self._durable:
            return await self._chains.append(node)
        self._queue.put(node)
        return True

    def take_back(self, node: ResponseNode) -> None:
        """Delete a node that the store may have already, by a task of its own."""
        if node.record.store:
            self._queue.take_back(node)

    async def written(self) -> None:
        """Return when what is to be stored has been written."""
        if self._runs.storing is not None:
            await self._runs.storing.wait()

    @property
    def _queue(self) -> StoreQueue:
        runs = self._runs
        if runs.storing is None:
            runs.storing = StoreQueue(self._chains, self._reporter, self._tasks, runs.look_whether_idle)
        return runs.storing
