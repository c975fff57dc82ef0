"""A store whose writes a test holds, lets go and breaks."""

from collections.abc import Sequence

import anyio

from ws_responses.state.budget import Ledger
from ws_responses.state.node import Record
from ws_responses.state.store import InProcessStore, StoreKey


class SharedStore:
    """A store outside of the process, as far as the middleware can tell; writes wait while it is held.

    Attributes:
        go: What writes wait for.
        fault: What it raises when it is asked.
        takes_late: It does a write before it waits, so that only the answer is late.
        asked: How many writes were asked for.
        ids: What it has.
    """

    def __init__(self) -> None:
        self._store = InProcessStore(Ledger(1 << 30, 1 << 30), lambda: 0.0)
        self.go = anyio.Event()
        self.go.set()
        self.fault: Exception | None = None
        self.takes_late = False
        self.asked = 0
        self.ids: set[str] = set()

    def hold(self) -> None:
        self.go = anyio.Event()

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        self.asked += 1
        if self.takes_late:
            await self._append(key, record, parent, ttl_s)
        await self.go.wait()
        if self.fault is not None:
            raise self.fault
        await self._append(key, record, parent, ttl_s)

    async def _append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        await self._store.append(key, record, parent, ttl_s)
        self.ids.add(key.response_id)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        if self.fault is not None:
            raise self.fault
        return await self._store.load(key)

    async def delete(self, key: StoreKey) -> None:
        await self._store.delete(key)
        self.ids.discard(key.response_id)

    async def aclose(self) -> None:
        await self._store.aclose()

    def __len__(self) -> int:
        return len(self._store)
