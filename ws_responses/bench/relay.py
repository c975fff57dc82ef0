"""P1: CPU of the server per relayed delta, drop-in over a raw ASGI app, beside a bare sender of the same frames."""

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Self

from ws_responses.bench.client import Socket
from ws_responses.bench.results import Row, Sample
from ws_responses.bench.server import Server
from ws_responses.bench.streams import events_of
from ws_responses.protocol.events import encode

SETTLE_S = 0.02
"""What a server gets after the last event for what it does afterwards, before its CPU clock is read."""


class Relay:
    """P1.

    Args:
        quick: Measure less.
    """

    name = "P1"

    def __init__(self, *, quick: bool) -> None:
        self._deltas = 4_000 if quick else 20_000
        self._turns = 2 if quick else 3
        title = f"relay of a turn of {self._deltas:,} deltas, beside a bare sender"
        self.rows = (Row("P1.relay", title, "us CPU/event", 1.4),)
        self._stack = ExitStack()
        self._floor = Server("bare")
        self._ours = Server("plain")

    async def __aenter__(self) -> Self:
        """Start both servers."""
        self._stack.enter_context(self._floor)
        self._stack.enter_context(self._ours)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        self._stack.close()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run some turns on both."""
        legs = {"floor": self._floor, "ours": self._ours}
        us = {name: await self._us_per_event(legs[name]) for name in in_turn(legs, number)}
        return {"P1.relay": Sample(us["ours"], us["floor"])}

    async def _us_per_event(self, server: Server) -> float:
        events = events_of(self._deltas)
        create = encode(
            {"type": "response.create", "model": f"bench-{self._deltas}", "store": False, "input": "Write a novel."}
        )
        # A socket for each turn: the ready frames bear the same response id each time, which one socket has only once.
        sockets = [await Socket.connect(server.url) for _ in range(self._turns)]
        await asyncio.sleep(SETTLE_S)
        before = server.cpu_seconds()
        for socket in sockets:
            await socket.turn(create, events)
        await asyncio.sleep(SETTLE_S)
        used = server.cpu_seconds() - before
        for socket in sockets:
            await socket.close()
        return used / (events * self._turns) * 1e6


def in_turn(legs: Mapping[str, object], number: int) -> list[str]:
    """Return the names of the legs of a round, in reverse in odd rounds: neither always comes first."""
    names = list(legs)
    return names if number % 2 == 0 else names[::-1]
