"""P2: CPU of one server for the same turns of the same app, over the socket and over HTTP with server-sent events.

Two rows have no bar: they show a bare sender of the same frames beside the same HTTP, which is the server's own share of what
a socket costs; no app over the socket can cost less.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack
from typing import Final, Self

from ws_responses.bench.client import HttpConnection, Socket, create_frame, http_body
from ws_responses.bench.results import Row, Sample, in_turn
from ws_responses.bench.server import CpuTime, Server
from ws_responses.bench.streams import events_of

_APPS: Final = {"plain": "plain ASGI app", "fastapi": "FastAPI app"}
_SHORT: Final = {1: "its terminal event alone", 2: "created and completed"}
_BARE: Final = 2
"""The short turn that the bare sender runs: both frames of a short turn."""


class Twin:
    """P2.

    Args:
        quick: Measure less.
    """

    name = "P2"

    def __init__(self, *, quick: bool) -> None:
        self._deltas = 4_000 if quick else 20_000
        self._short_turns = 300 if quick else 1_000
        self.rows = (
            *(
                Row(f"P2.event.{app}", f"{words}: relay of {self._deltas:,} deltas, beside HTTP", "us CPU/event", 1.4)
                for app, words in _APPS.items()
            ),
            *(
                Row(f"P2.turn{events}.{app}", f"{words}: a turn of {what}, beside HTTP", "us CPU/turn", 1.0)
                for app, words in _APPS.items()
                for events, what in _SHORT.items()
            ),
            Row(
                "P2.event.bare",
                "no app: the same frames by a bare sender, beside HTTP of the plain app",
                "us CPU/event",
                None,
            ),
            Row(
                f"P2.turn{_BARE}.bare",
                f"no app: {_SHORT[_BARE]} by a bare sender, beside the same",
                "us CPU/turn",
                None,
            ),
        )
        self._stack = ExitStack()
        self._servers = {app: Server(app) for app in _APPS}
        self._bare = Server("bare")

    async def __aenter__(self) -> Self:
        """Start the servers."""
        for server in (*self._servers.values(), self._bare):
            self._stack.enter_context(server)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        self._stack.close()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run long and short turns on each app, in both ways."""
        samples: dict[str, Sample] = {}
        events = events_of(self._deltas)
        for app, server in self._servers.items():
            used = await _both(server, f"deltas-{self._deltas}", number, turns=1, frames=events, events=events)
            samples[f"P2.event.{app}"] = Sample(used["ws"] / events, used["http"] / events)
            for short in _SHORT:
                used = await _both(server, f"short-{short}", number, turns=self._short_turns, frames=2, events=short)
                samples[f"P2.turn{short}.{app}"] = Sample(used["ws"], used["http"])
        bare = await _over_socket(self._bare, f"deltas-{self._deltas}", turns=1, frames=events)
        samples["P2.event.bare"] = Sample(bare / events, samples["P2.event.plain"].floor)
        bare = await _over_socket(self._bare, f"short-{_BARE}", turns=self._short_turns, frames=_BARE)
        samples[f"P2.turn{_BARE}.bare"] = Sample(bare, samples[f"P2.turn{_BARE}.plain"].floor)
        return samples


async def _both(
    server: Server, model: str, number: int, *, turns: int, frames: int, events: int
) -> Mapping[str, float]:
    """Return the CPU of one turn, in microseconds, over the socket and over HTTP.

    Args:
        server: Serves the app.
        model: What it answers.
        number: Of the round.
        turns: How many turns, one after the other on one connection.
        frames: How many frames one has on the socket; what an app leaves out is put in there.
        events: How many events it has over HTTP.
    """
    legs = {
        "http": lambda: _over_http(server, model, turns=turns, events=events),
        "ws": lambda: _over_socket(server, model, turns=turns, frames=frames),
    }
    return {name: await legs[name]() for name in in_turn(legs, number)}


async def _over_socket(server: Server, model: str, *, turns: int, frames: int) -> float:
    socket = await Socket.connect(server.url)
    create = create_frame(model)
    used = await _us_per_turn(server, lambda: socket.turn(create, frames), turns)
    await socket.close()
    return used


async def _over_http(server: Server, model: str, *, turns: int, events: int) -> float:
    connection = await HttpConnection.connect(server.address)
    body = http_body(model)
    used = await _us_per_turn(server, lambda: connection.turn(body, events), turns)
    connection.close()
    return used


async def _us_per_turn(server: Server, turn: Callable[[], Awaitable[object]], turns: int) -> float:
    async with CpuTime(server) as cpu:
        for _ in range(turns):
            await turn()
    return cpu.seconds / turns * 1e6
