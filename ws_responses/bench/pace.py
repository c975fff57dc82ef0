"""P5: what one fast connection takes of the server: 4,000 chunks a second from Cerebras to a client's socket, one by one."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, Self

from ws_responses.bench.client import Socket, create_frame
from ws_responses.bench.results import Row, Sample, in_turn
from ws_responses.bench.server import Child, CpuTime, Server
from ws_responses.bench.service import MODEL
from ws_responses.bench.streams import events_of

_RATE: Final = 4_000
_NO_PACE: Final = 1_000_000
_QUEUED: Final = "queued."
_UNIT: Final = "% of a core"
_RELAY_LACKS: Final = 3
"""Events that a turn has, less what the service sends beside its deltas."""


class Pace:
    """P5.

    Args:
        quick: Measure less.
    """

    name = "P5"

    def __init__(self, *, quick: bool) -> None:
        self._chunks = _RATE // 2 if quick else 3 * _RATE
        of = f"{_RATE:,} chunks a second from Cerebras to a socket"
        self.rows = (
            Row("P5.tokens", f"{of}, ids in and out, beside relaying them as they are", _UNIT, 10, "value"),
            Row("P5.chat", f"{of}, chat messages, beside the same", _UNIT, 10, "value"),
            Row(
                "P5.queued.tokens", "as many chunks that have queued up, as on a busy server, ids", _UNIT, None, "value"
            ),
            Row("P5.queued.chat", "as many chunks that have queued up, chat messages", _UNIT, None, "value"),
        )
        self._stack = ExitStack()
        self._servers: dict[str, Server] = {}

    async def __aenter__(self) -> Self:
        """Start the services and their servers."""
        for name, rate in (("", _RATE), (_QUEUED, _NO_PACE)):
            service = self._stack.enter_context(Child("ws_responses.bench.service", str(rate), str(self._chunks)))
            for kind in ("relay", "tokens", "chat"):
                server = Server(f"{kind}@http://127.0.0.1:{service.port}")
                self._servers[name + kind] = self._stack.enter_context(server)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        self._stack.close()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run a turn on each."""
        shares = {name: await self._share(name) for name in in_turn(self._servers, number)}
        return {
            f"P5.{pace}{kind}": Sample(shares[pace + kind], shares[f"{pace}relay"])
            for pace in ("", _QUEUED)
            for kind in ("tokens", "chat")
        }

    async def _share(self, name: str) -> float:
        """Return the share of a core that a turn takes of a server at full pace, in percent."""
        server = self._servers[name]
        frames = events_of(self._chunks) - (_RELAY_LACKS if name.endswith("relay") else 0)
        socket = await Socket.connect(server.url)
        async with CpuTime(server) as cpu:
            await socket.turn(create_frame(MODEL), frames)
        await socket.close()
        # A service that is late on a busy machine does not make it less.
        return cpu.seconds / self._chunks * _RATE * 100
