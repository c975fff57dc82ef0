"""P1: CPU of the server per delta, drop-in over a raw ASGI app and the engine, beside a bare sender of the same frames.

Each frame is one write, whoever sends it, and what that costs depends on the reader: a client that has read all and sleeps must be
woken, for several microseconds. How often that happens depends on how busy the machine is, and need not be the same for both sides. So
there are two clients: one that reads what comes, as all do, and one that reads nothing until all is written, which never needs to be
woken: there is least to hide what we add.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, Self

from ws_responses.bench.client import Socket, create_frame
from ws_responses.bench.results import Row, Sample, in_turn
from ws_responses.bench.server import CpuTime, Server
from ws_responses.bench.streams import events_of

_LATE_DELTAS: Final = 4_000
"""0.9 MB: what a connection can hold between two processes of a machine."""


class Relay:
    """P1.

    Args:
        quick: Measure less.
    """

    name = "P1"

    def __init__(self, *, quick: bool) -> None:
        self._deltas = 4_000 if quick else 20_000
        self._turns = 2 if quick else 3
        turn = f"a turn of {self._deltas:,} deltas, beside a bare sender"
        late = f"the same, {_LATE_DELTAS:,} deltas that the client reads when all are written"
        self.rows = (
            Row("P1.relay", f"relay of {turn}", "us CPU/event", 1.4),
            Row("P1.engine", f"engine: {turn}", "us CPU/event", 1.6),
            Row("P1.relay.late", f"relay: {late}", "us CPU/event", 1.4),
            Row("P1.engine.late", f"engine: {late}", "us CPU/event", 1.6),
        )
        self._stack = ExitStack()
        self._floor = Server("bare")
        self._relay = Server("plain")
        self._engine = Server("engine")

    async def __aenter__(self) -> Self:
        """Start the servers."""
        for server in (self._floor, self._relay, self._engine):
            self._stack.enter_context(server)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        self._stack.close()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run some turns on each."""
        legs = {"floor": self._floor, "relay": self._relay, "engine": self._engine}
        us = {name: await self._us_per_event(legs[name]) for name in in_turn(legs, number)}
        late = {name: await self._us_per_event(legs[name], late=True) for name in in_turn(legs, number)}
        return {
            **{f"P1.{name}": Sample(us[name], us["floor"]) for name in ("relay", "engine")},
            **{f"P1.{name}.late": Sample(late[name], late["floor"]) for name in ("relay", "engine")},
        }

    async def _us_per_event(self, server: Server, *, late: bool = False) -> float:
        deltas = _LATE_DELTAS if late else self._deltas
        events = events_of(deltas)
        create = create_frame(f"deltas-{deltas}")
        # A socket for each turn: the ready frames bear the same response id each time, which one socket has only once.
        sockets = [await Socket.connect(server.url) for _ in range(self._turns)]
        async with CpuTime(server) as cpu:
            for socket in sockets:
                await socket.turn(create, events, late=late)
        for socket in sockets:
            await socket.close()
        return cpu.seconds / (events * self._turns) * 1e6
