"""Draining when a server that knows nothing of it is told to stop."""

import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
from anyio.abc import TaskStatus

__all__ = ["drain_at_sigterm"]


class Drainable(Protocol):
    """What can be drained: :class:`~ws_responses.ResponsesWebSocketMiddleware`, for one."""

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Let what runs end; return whether it has in time."""
        ...


@asynccontextmanager
async def drain_at_sigterm(app: Drainable, grace_s: float | None = None) -> AsyncGenerator[None]:
    """Let running turns end at SIGTERM, and only then let the server hear of it. For the lifespan of the wrapped app.

    Servers cut sockets off when they are told to stop, before the shutdown of the lifespan. The signal is taken from the server
    while this is open, the app is drained, and the signal is handed on. Ctrl-C still ends the server at once. In a thread that
    is not the main one (as in most test clients) no signals come, and this does nothing.

    Args:
        app: What is drained.
        grace_s: What running turns get, in seconds; None for the app's own ``Limits.age_grace_s``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    async with anyio.create_task_group() as tasks:
        await tasks.start(_drain_first, app, grace_s)
        yield
        tasks.cancel_scope.cancel()


async def _drain_first(app: Drainable, grace_s: float | None, *, task_status: TaskStatus[None]) -> None:
    servers_own = signal.getsignal(signal.SIGTERM)
    try:
        with anyio.open_signal_receiver(signal.SIGTERM) as signals:
            task_status.started()
            async for _ in signals:
                break
            await app.drain(grace_s)
    finally:
        signal.signal(signal.SIGTERM, servers_own)
    signal.raise_signal(signal.SIGTERM)
