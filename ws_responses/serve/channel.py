"""What a supervisor and a worker tell each other, over a socket pair: options one way, "started" the other, and then beats.

Either end sees when the other process is no more: the socket is closed with it.
"""

import asyncio
import socket
from contextlib import suppress
from typing import Final

import msgspec

from ws_responses.serve.options import ServeOptions

_SIZE_BYTES: Final = 4


def send_options(channel: socket.socket, options: ServeOptions) -> None:
    """Tell a worker what to do; so keys stand neither on its command line nor in its environment."""
    _send(channel, msgspec.msgpack.encode(options))


def _send(channel: socket.socket, message: bytes) -> None:
    channel.sendall(len(message).to_bytes(_SIZE_BYTES, "big") + message)


def receive_options(channel: socket.socket) -> ServeOptions:
    """Return what this worker is to do.

    Raises:
        EOFError: The supervisor is gone.
    """
    size = int.from_bytes(_exactly(channel, _SIZE_BYTES), "big")
    return msgspec.msgpack.decode(_exactly(channel, size), type=ServeOptions)


def _exactly(channel: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        piece = channel.recv(count - len(received))
        if not piece:
            raise EOFError
        received += piece
    return received


def send_started(channel: socket.socket, report: str) -> None:
    """Tell the supervisor that this worker serves, and what it would say of that."""
    _send(channel, report.encode())
    channel.settimeout(0)


async def receive_started(channel: socket.socket) -> str:
    """Wait until a worker serves; return its report, empty if it has ended before."""
    size = int.from_bytes(await _exactly_soon(channel, _SIZE_BYTES), "big")
    return (await _exactly_soon(channel, size)).decode()


async def _exactly_soon(channel: socket.socket, count: int) -> bytes:
    """Return so many bytes; nothing if the other end is closed before."""
    loop = asyncio.get_running_loop()
    received = b""
    while len(received) < count:
        piece = await loop.sock_recv(channel, count - len(received))
        if not piece:
            return b""
        received += piece
    return received


def send_beat(channel: socket.socket) -> None:
    """Tell the supervisor that this worker's loop turns. If it does not read, or is gone, that is told elsewhere."""
    with suppress(OSError):
        channel.send(b".")


async def receive_beat(channel: socket.socket) -> bool:
    """Wait for a sign of life of a worker; return whether there was one: none will come any more."""
    try:
        return bool(await asyncio.get_running_loop().sock_recv(channel, 4096))
    except OSError:
        return False
