"""uvicorn, told to end well: turns first, then the sockets, then the requests."""

import asyncio
import math
import signal
import socket
from collections.abc import Awaitable, Callable
from types import FrameType

import uvicorn

from ws_responses.command_line import UsageError

Drain = Callable[[float], Awaitable[object]]
"""Lets running turns end, for so many seconds at most, and closes the sockets."""


class Server(uvicorn.Server):
    """A server that drains at the first signal, and stops at once at a second Ctrl-C.

    uvicorn by itself closes all sockets as soon as it is told to stop, turns or no turns.

    Args:
        config: uvicorn's.
        drain: Ends the turns.
        grace_s: Time for the turns and the requests that run, in all.
        started: Called when it accepts connections.
        close: Closes what the lifespan of the app does not.

    Attributes:
        draining: A signal has come.
        forced: It did not wait for what was running.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        *,
        drain: Drain,
        grace_s: float,
        started: Callable[[], None],
        close: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(config)
        self._close = close
        self._drain = drain
        self._grace_s = grace_s
        self._tell_started = started
        self._loop: asyncio.AbstractEventLoop
        self._winding_down: asyncio.Task[None] | None = None
        self.draining = False
        self.forced = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start, and say so."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)
        if self.started:
            self._tell_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, and close what was opened."""
        await super().shutdown(sockets)
        if self._close is not None and not self.forced:
            await self._close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal. It is not raised again at the end, as uvicorn does: to have been asked to stop is no failure."""
        del frame
        if not self.started:
            self.should_exit = True
        elif not self.draining:
            self.draining = True
            self._loop.call_soon_threadsafe(self._begin_to_stop)
        elif sig == signal.SIGINT:
            self.forced = self.should_exit = self.force_exit = True

    def _begin_to_stop(self) -> None:
        self._winding_down = self._loop.create_task(self._wind_down())

    async def _wind_down(self) -> None:
        # New connections go to another process, if there is one, as soon as nobody listens here.
        for server in self.servers:
            server.close()
        begun = self._loop.time()
        try:
            await self._drain(self._grace_s)
        finally:
            left_s = self._grace_s - (self._loop.time() - begun)
            self.config.timeout_graceful_shutdown = max(1, math.ceil(left_s))
            self.should_exit = True


def resolve(host: str, port: int) -> tuple[socket.AddressFamily, tuple[str, int]]:
    """Return the address that a host's name stands for; the first of IP version 4, if there are several.

    Raises:
        UsageError: It stands for none.
    """
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise UsageError(f"--host {host}: {getattr(error, 'strerror', None) or 'no name of a host'}") from None
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return family, (str(address[0]), int(address[1]))


def listen(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    """Return a socket that listens at an address.

    Raises:
        UsageError: It cannot be had.
    """
    # With the protocol said: asyncio sets TCP_NODELAY only where it knows that it is TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Where a worker that is handed the listener cannot tell, what it accepts inherits this.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise UsageError(f"cannot listen on {address[0]} port {address[1]}: {error.strerror}") from None
    return listener
