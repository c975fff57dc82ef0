"""P12: the first event of a turn while a slow hook settles those before it, beside the same without a hook, on real servers.

The turns of all servers alternate. What two servers without a hook differ by is the noise.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack, ExitStack
from statistics import median
from time import perf_counter
from typing import Final, Self

import msgspec

from ws_responses.bench.apps import HOOK_S
from ws_responses.bench.client import Socket
from ws_responses.bench.results import Row, Sample, in_turn
from ws_responses.bench.server import Server
from ws_responses.protocol.events import encode

_SERVERS: Final = {"none": "plain", "again": "plain", "hook": "settled", "waits": "settled-first"}
"""By leg: the same app without a hook, twice; with one; and with one for which the end of each turn waits."""

_ONCE: Final = "waits"
_FRAMES: Final = 2


class _Response(msgspec.Struct):
    id: str


class _Closing(msgspec.Struct):
    response: _Response


_decode = msgspec.json.Decoder(_Closing).decode


class _Chain:
    """A conversation of short turns on a socket of its own.

    Args:
        socket: To the server.
    """

    def __init__(self, socket: Socket) -> None:
        self._socket = socket
        self._parent: str | None = None

    async def turn(self) -> tuple[float, float]:
        """Run the next turn; return the seconds to its first event and to its end."""
        frame = {"type": "response.create", "model": f"short-{_FRAMES}", "store": False, "input": "Go on."}
        payload = encode(frame if self._parent is None else {**frame, "previous_response_id": self._parent})
        begin = perf_counter()
        closing = await self._socket.turn(payload, _FRAMES)
        ended_s = perf_counter() - begin
        self._parent = _decode(closing).response.id
        return self._socket.first_s, ended_s


class Settled:
    """P12.

    Args:
        quick: Measure less.
    """

    name = "P12"

    def __init__(self, *, quick: bool) -> None:
        self._turns = 60 if quick else 200
        ms = f"{HOOK_S * 1e3:.0f} ms"
        self.rows = (
            Row("P12.settled", f"first event of the next turn: a hook of {ms}, beside none", "us", 1.25),
            Row("P12.noise", "the noise of that: no hook, beside none", "us", None),
            Row("P12.waits", f"end of a turn that waits for its record, beside {ms}", "ms", None),
        )
        self._children = ExitStack()
        self._servers = {leg: Server(app) for leg, app in _SERVERS.items()}

    async def __aenter__(self) -> Self:
        """Start the servers."""
        for server in self._servers.values():
            self._children.enter_context(server)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        self._children.close()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run a chain on each, turn by turn in alternation; only the first turn of one has nothing to settle before it."""
        first_us: dict[str, list[float]] = {leg: [] for leg in _SERVERS if leg != _ONCE}
        async with AsyncExitStack() as stack:
            chains: dict[str, _Chain] = {}
            for leg, server in self._servers.items():
                socket = await Socket.connect(server.url)
                stack.push_async_callback(socket.close)
                chains[leg] = _Chain(socket)
                await chains[leg].turn()
            for turn in range(self._turns):
                for leg in in_turn(first_us, number + turn):
                    first_us[leg].append((await chains[leg].turn())[0] * 1e6)
            _, ended_s = await chains[_ONCE].turn()
        us = {leg: median(times) for leg, times in first_us.items()}
        return {
            "P12.settled": Sample(us["hook"], us["none"]),
            "P12.noise": Sample(us["again"], us["none"]),
            "P12.waits": Sample(ended_s * 1e3, HOOK_S * 1e3),
        }
