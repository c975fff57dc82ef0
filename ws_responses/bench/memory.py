"""P8: memory of an idle connection beside the bare server's own, and of a chain beside its items."""

import asyncio
import gc
import tracemalloc
from collections.abc import Callable, Mapping
from typing import Final, Self

from ws_responses.bench.client import Socket
from ws_responses.bench.engine import EngineConversation
from ws_responses.bench.inprocess import Conversation
from ws_responses.bench.results import Row, Sample, in_turn
from ws_responses.bench.server import Server

_CHAINS: Final = (100, 200, 400)
_QUICK_CHAINS: Final = (25, 50, 100)
_COUNTED_IN: Final = (0, 1)
"""Rounds in which chains are grown: what is counted object by object hardly varies."""

_TURN_BYTES: Final = 4_000
_AT_ONCE: Final = 50
_SETTLE_S: Final = 0.3
KIB: Final = 1024


class Memory:
    """P8.

    Args:
        quick: Measure less.
    """

    name = "P8"

    def __init__(self, *, quick: bool) -> None:
        self._sockets = 200 if quick else 2_000
        self._chains = _QUICK_CHAINS if quick else _CHAINS
        short, middle, long = self._chains
        self.rows = (
            Row(
                "P8.idle",
                f"an idle connection ({self._sockets:,} of them), less a bare server's",
                "KiB",
                8,
                "difference",
            ),
            Row("P8.idle.engine", "an idle connection to the engine, likewise", "KiB", 8, "difference"),
            *(
                Row(f"P8.chain{turns}", f"a chain of {turns} turns of 4 kB, beside its items", "kB", 1.2)
                for turns in self._chains
            ),
            Row(
                "P8.linear",
                f"a turn of a long chain ({middle}-{long}), beside one of a short ({short}-{middle})",
                "kB",
                1.05,
            ),
            *(
                Row(
                    f"P8.engine.chain{turns}",
                    f"engine: a chain of {turns} turns of 4 kB, beside items, ids and encoded ids",
                    "kB",
                    1.2,
                )
                for turns in self._chains
            ),
            Row("P8.engine.linear", "engine: a turn of a long chain, beside one of a short", "kB", 1.05),
        )

    async def __aenter__(self) -> Self:
        """Nothing is shared by rounds: memory that one leaves behind would be reused by the next."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left."""

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Open connections to new servers, and grow new chains."""
        legs = {"bare": "bare", "ours": "plain", "engine": "engine"}
        idle = {leg: await _idle_kib(legs[leg], self._sockets) for leg in in_turn(legs, number)}
        samples = {
            "P8.idle": Sample(idle["ours"], idle["bare"]),
            "P8.idle.engine": Sample(idle["engine"], idle["bare"]),
        }
        if number not in _COUNTED_IN:
            return samples
        return {
            **samples,
            **await self._grow("P8", lambda: Conversation.with_app("replay", store=False)),
            **await self._grow("P8.engine", EngineConversation),
        }

    async def _grow(self, name: str, connect: Callable[[], Conversation]) -> Mapping[str, Sample]:
        """Grow chains of all lengths on a connection of their own each."""
        samples: dict[str, Sample] = {}
        for turns in self._chains:
            samples[f"{name}.chain{turns}"] = await chain_kb(connect, turns)
        short, middle, long = self._chains
        kept = {turns: samples[f"{name}.chain{turns}"].value for turns in self._chains}
        samples[f"{name}.linear"] = Sample(
            (kept[long] - kept[middle]) / (long - middle), (kept[middle] - kept[short]) / (middle - short)
        )
        return samples


async def _idle_kib(target: str, sockets: int) -> float:
    """Return how much resident memory of a new server one idle connection takes; each client has its own key."""
    with Server(target) as server:
        await _open(server, "first", _AT_ONCE)  # what is loaded or made once
        await asyncio.sleep(_SETTLE_S)
        before = server.resident_bytes()
        for batch in range(sockets // _AT_ONCE):
            await _open(server, f"{batch}", _AT_ONCE)
        await asyncio.sleep(_SETTLE_S)
        return (server.resident_bytes() - before) / sockets / KIB


async def _open(server: Server, name: str, count: int) -> list[Socket]:
    """Open connections; the server's end closes them."""
    return await asyncio.gather(*(Socket.connect(server.url, f"sk-bench-{name}-{n}") for n in range(count)))


async def chain_kb(connect: Callable[[], Conversation], turns: int) -> Sample:
    """Return what a new chain keeps in memory while its connection idles, and what it must keep; in kB.

    Memory is counted object by object, by the interpreter's own account.
    """
    tracemalloc.start()
    try:
        async with connect() as conversation:
            await conversation.grow(1, _TURN_BYTES)  # what a connection makes once
            begun, before = conversation.content_bytes, _traced_bytes()
            await conversation.grow(turns, _TURN_BYTES)
            return Sample((_traced_bytes() - before) / 1e3, (conversation.content_bytes - begun) / 1e3)
    finally:
        tracemalloc.stop()


def _traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
