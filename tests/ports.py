"""Ports of this machine: one that nobody uses, and one that is listened to."""

import asyncio
import socket

import anyio

PATIENCE_S = 30.0
LOOK_S = 0.02


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def until_listened_to(port: int) -> None:
    """Return as soon as somebody can connect."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await anyio.sleep(LOOK_S)
            else:
                writer.close()
                return
