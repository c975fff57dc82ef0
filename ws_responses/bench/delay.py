"""A network between client and server: what is read on one side is written on the other half a round trip later.

Latency only: no loss, no bound on the bandwidth. ``python -m ws_responses.bench.delay FD PORT SECONDS`` runs it.
"""

import asyncio
import socket
import sys
from typing import cast


class _Half(asyncio.Protocol):
    """One of the two connections that belong together.

    Args:
        delay_s: Half a round trip.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_s = delay_s
        self._waiting: list[bytes] = []
        self.other: _Half | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        for data in self._waiting:
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        assert self.other is not None
        asyncio.get_running_loop().call_later(self._delay_s, self.other.write, data)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        if self.other is not None and self.other.transport is not None:
            self.other.transport.close()

    def write(self, data: bytes) -> None:
        """Write, or keep it until there is a connection."""
        if self.transport is None:
            self._waiting.append(data)
        elif not self.transport.is_closing():
            self.transport.write(data)


async def relay(listener: socket.socket, port: int, delay_s: float) -> None:
    """Relay connections to a port of this machine, for ever."""
    loop = asyncio.get_running_loop()
    opening: set[asyncio.Task[object]] = set()

    def accept() -> _Half:
        near, far = _Half(delay_s), _Half(delay_s)
        near.other, far.other = far, near
        task: asyncio.Task[object] = loop.create_task(loop.create_connection(lambda: far, "127.0.0.1", port))
        opening.add(task)
        task.add_done_callback(opening.discard)
        return near

    server = await loop.create_server(accept, sock=listener)
    await server.serve_forever()


if __name__ == "__main__":
    import uvloop

    descriptor, port, seconds = sys.argv[1:]
    uvloop.run(relay(socket.socket(fileno=int(descriptor)), int(port), float(seconds)))
