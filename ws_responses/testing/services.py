"""A loopback HTTP/1.1 service that answers byte for byte as a test says; the far end of backend adapters (asyncio).

    async with LoopbackService() as service:
        service.script(HttpAnswer(body=[first_event, CUT]))
        ...  # a client calls service.url
        assert service.connections == 1

Every piece of a body is one chunk of the chunked encoding: borders stand where the test puts them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from ws_responses.testing._signal import Signal
from ws_responses.testing._wire import Wire
from ws_responses.testing.exchange import CUT, HOLD, HttpAnswer, Piece, ServiceRequest, Step, recut

__all__ = ["CUT", "HOLD", "HttpAnswer", "LoopbackService", "Piece", "ServiceRequest", "Step", "recut"]


class LoopbackService:
    """Listens on a free port of 127.0.0.1 and answers as it is told; use it with ``async with``.

    Args:
        respond: Answers what no script answers; without it that is a 404.

    Attributes:
        url: ``http://127.0.0.1:port``.
        requests: All requests so far.
        connections: Number of connections so far.
        open: Number of connections now.
        releases: Number of releases so far.
        running: Number of requests that are being answered now.
        hung_up: Number of requests whose client left before its answer had ended.
    """

    def __init__(self, respond: Callable[[ServiceRequest], HttpAnswer] | None = None) -> None:
        self._respond = respond
        self._script: deque[HttpAnswer] = deque()
        self._server: asyncio.Server | None = None
        self._wires: set[Wire] = set()
        self._signal = Signal()
        self.releases = 0
        self.url = ""
        self.requests: list[ServiceRequest] = []
        self.connections = 0
        self.running = 0
        self.hung_up = 0

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Wire(self), "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shut()

    @property
    def open(self) -> int:
        """Number of connections now."""
        return len(self._wires)

    def script(self, *answers: HttpAnswer) -> None:
        """Answer the next requests so, in order."""
        self._script.extend(answers)

    def release(self) -> None:
        """Let all answers that have begun go on over one hold."""
        self.releases += 1
        self._signal.notify()

    def stop_listening(self) -> None:
        """Refuse who connects from now on, and drop who is connected."""
        if self._server is not None:
            self._server.close()
        for wire in list(self._wires):
            wire.drop()

    async def shut(self) -> None:
        """Listen no more and drop all connections; who connects then is refused."""
        if self._server is None:
            return
        self._server.close()
        tasks = [task for wire in list(self._wires) if (task := wire.drop()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()
        self._server = None

    async def wait_until(self, predicate: Callable[[], bool], seconds: float = 5.0) -> None:
        """Return as soon as ``predicate()`` holds; it is asked whenever something happened here.

        Raises:
            AssertionError: It does not within ``seconds``.
        """
        await self._signal.expect(predicate, seconds, self._complaint)

    def _complaint(self) -> str:
        return (
            f"not so, with {self.connections} connections ({self.open} open), {len(self.requests)} requests "
            f"({self.running} running, {self.hung_up} hung up)"
        )

    # -- for its connections -----------------------------------------------------------------------------------------

    def opened(self, wire: Wire) -> int:
        """Take note of a connection; return its number."""
        self._wires.add(wire)
        self.connections += 1
        self._signal.notify()
        return self.connections

    def closed(self, wire: Wire) -> None:
        """Take note of a connection's end."""
        self._wires.discard(wire)
        self._signal.notify()

    def begin(self, request: ServiceRequest) -> HttpAnswer:
        """Take a request; return its answer."""
        self.requests.append(request)
        self.running += 1
        self._signal.notify()
        if self._script:
            return self._script.popleft()
        if self._respond is not None:
            return self._respond(request)
        return HttpAnswer.json({"error": {"message": "Nothing is scripted."}}, status=404)

    def end(self, *, hung_up: bool) -> None:
        """Take note of an answer's end."""
        self.running -= 1
        self.hung_up += hung_up
        self._signal.notify()

    async def held(self, wire: Wire, releases: int) -> None:
        """Return after so many releases, or when the client has gone."""
        await self._signal.wait_until(lambda: self.releases >= releases or wire.gone)
