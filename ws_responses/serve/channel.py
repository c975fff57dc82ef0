"""What a supervisor and a worker tell each other, over a socket pair: options one way, "started" the other.

Either end sees when the other process is no more: the socket is closed with it.
"""

import asyncio
import socket
from typing import Final

import msgspec

from ws_responses.serve.options import ServeOptions

_SIZE_BYTES: Final = 4


def send_options(channel: socket.socket, options: ServeOptions) -> None:
    """Tell a worker what to do; so keys stand neither on its command line nor in its environment."""
    message = msgspec.msgpack.encode(options)
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
    channel.sendall(report.encode())
    channel.shutdown(socket.SHUT_WR)


async def receive_started(channel: socket.socket) -> str:
    """Wait until a worker serves; return its report, empty if it has ended before."""
    loop = asyncio.get_running_loop()
    report = b""
    while piece := await loop.sock_recv(channel, 65536):
        report += piece
    return report.decode()
