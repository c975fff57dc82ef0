"""P5: what one fast connection takes of the server: 4,000 chunks a second from Cerebras to a client's socket, one by one."""

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final, Self

from ws_responses.bench.client import Socket, create_frame
from ws_responses.bench.results import Row, Sample, Unexpected, in_turn
from ws_responses.bench.server import Child, CpuTime, Server
from ws_responses.bench.service import MODEL, text_of
from ws_responses.protocol.events import encode

_RATE: Final = 4_000
_NO_PACE: Final = 1_000_000
_UNIT: Final = "% of a core"

_GATHERED: Final = ""
_SINGLE: Final = "single."
_QUEUED: Final = "queued."
_WAYS: Final = {
    _GATHERED: "as it comes",
    _SINGLE: "each chunk by itself (gather_s=0)",
    _QUEUED: "chunks that have queued up, as on a busy server",
}
_KINDS: Final = {"tokens": "ids in and out", "chat": "chat messages"}
_RELAY: Final = "relay"
_BAR: Final = 10


class Pace:
    """P5.

    Args:
        quick: Measure less.
    """

    name = "P5"

    def __init__(self, *, quick: bool) -> None:
        self._chunks = _RATE // 2 if quick else 2 * _RATE
        self._text = text_of(self._chunks)
        of = f"{_RATE:,} chunks a second from Cerebras to a socket"
        self.rows = tuple(
            Row(f"P5.{way}{kind}", f"{of}: {words}, {how}", _UNIT, None if way else _BAR, "value")
            for way, how in _WAYS.items()
            for kind, words in _KINDS.items()
        )
        self._stack = ExitStack()
        self._servers: dict[str, Server] = {}

    async def __aenter__(self) -> Self:
        """Start the services and their servers."""
        paced, queued = (
            self._stack.enter_context(Child("ws_responses.bench.service", str(rate), str(self._chunks)))
            for rate in (_RATE, _NO_PACE)
        )
        for way, service in ((_GATHERED, paced), (_SINGLE, paced), (_QUEUED, queued)):
            for kind in _KINDS:
                self._serve(way + kind, f"{way}{kind}", service)
        self._serve(_RELAY, _RELAY, paced)
        self._serve(_QUEUED + _RELAY, _RELAY, queued)
        return self

    def _serve(self, name: str, app: str, service: Child) -> None:
        server = Server(f"{app.removeprefix(_QUEUED)}@http://127.0.0.1:{service.port}")
        self._servers[name] = self._stack.enter_context(server)

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        self._stack.close()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run a turn on each."""
        shares = {name: await self._share(name) for name in in_turn(self._servers, number)}
        return {
            f"P5.{way}{kind}": Sample(shares[way + kind], shares[(_QUEUED if way == _QUEUED else "") + _RELAY])
            for way in _WAYS
            for kind in _KINDS
        }

    async def _share(self, name: str) -> float:
        """Return the share of a core that a turn takes of a server at full pace, in percent."""
        server = self._servers[name]
        socket = await Socket.connect(server.url)
        async with CpuTime(server) as cpu:
            closing = await socket.turn(create_frame(MODEL))
        await socket.close()
        if not name.endswith(_RELAY) and encode(self._text) not in closing:
            raise Unexpected(f"{name}: the answer is not what the service said")
        # A service that is late on a busy machine does not make it less.
        return cpu.seconds / self._chunks * _RATE * 100
