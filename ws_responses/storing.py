"""Writes to a store that may be slow: in the order of the turns, by a task of their own, so that no turn waits for them."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import anyio
from anyio.abc import TaskGroup

from ws_responses.instrumentation import Reporter, StoreFailed
from ws_responses.state.node import ResponseNode
from ws_responses.stored_chains import StoredChains

Operation: TypeAlias = Literal["append", "delete"]


class StoreQueue:
    """Nodes of one connection that are to be stored, or to be taken back; made when there is a first one.

    Args:
        chains: Writes them.
        reporter: Is told what is not written.
        tasks: Where the task that writes runs.
        on_idle: Is called when all is written.

    Attributes:
        busy: Something waits, or is being written.
    """

    __slots__ = ("_chains", "_on_idle", "_reporter", "_scope", "_tasks", "_work", "_written", "busy")

    def __init__(self, chains: StoredChains, reporter: Reporter, tasks: TaskGroup, on_idle: Callable[[], None]) -> None:
        self._chains = chains
        self._reporter = reporter
        self._tasks = tasks
        self._on_idle = on_idle
        self._work: list[tuple[Operation, ResponseNode]] = []
        self._written: anyio.Event | None = None
        self._scope: anyio.CancelScope | None = None
        self.busy = False

    def put(self, node: ResponseNode) -> None:
        """Queue a node."""
        self._put("append", node)

    def take_back(self, node: ResponseNode) -> None:
        """Queue the deletion of a node that the store may have, or may get yet from a write that was given up."""
        self._put("delete", node)

    def _put(self, operation: Operation, node: ResponseNode) -> None:
        self._work.append((operation, node))
        if not self.busy:
            self.busy = True
            self._tasks.start_soon(self._write)

    async def wait(self) -> None:
        """Return when all is written."""
        if self.busy:
            if self._written is None:
                self._written = anyio.Event()
            await self._written.wait()

    def give_up(self) -> None:
        """Write nothing more; what is left is reported as not stored."""
        if self._scope is not None:
            self._scope.cancel()

    async def _write(self) -> None:
        with anyio.CancelScope(shield=True) as self._scope:
            while self._work:
                operation, node = self._work[0]
                if operation == "append":
                    await self._chains.append(node)
                else:
                    await self._chains.delete(node.tenant, node.id)
                del self._work[0]
        for operation, _ in self._work:
            self._reporter.report(StoreFailed(operation=operation, error="the connection ended"))
        self._work.clear()
        self.busy = False
        if self._written is not None:
            self._written.set()
            self._written = None
        self._on_idle()
