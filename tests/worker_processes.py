"""Which of several worker processes does what, seen from outside: by the kernel's tables."""

import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psutil
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from ws_responses.testing.socket import TERMINAL_TYPES

PATIENCE_S = 30.0
LOOK_S = 0.02
"""Between two looks at what other processes do: they need the processor meanwhile."""
KEY = {"Authorization": "Bearer mine"}


def workers_of(pid: int) -> list[int]:
    """The workers of a supervisor that live."""
    return [child.pid for child in psutil.Process(pid).children() if _is_worker(child)]


def _is_worker(process: psutil.Process) -> bool:
    try:
        # uvicorn's own supervisor has a child that is none.
        return process.status() != psutil.STATUS_ZOMBIE and "resource_tracker" not in " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return False


def connections_of(pid: int) -> list[Any]:
    """The TCP sockets of a process; none if it is no more."""
    try:
        return psutil.Process(pid).net_connections("tcp")
    except psutil.NoSuchProcess:
        return []


def worker_at(ws: ClientConnection, pid: int) -> int:
    """The worker that holds the other end of a socket."""
    ours = ws.local_address[1]
    for worker in workers_of(pid):
        if any(each.raddr[1:] == (ours,) for each in connections_of(worker)):
            return worker
    raise AssertionError("no worker holds this socket")


async def until(holds: Callable[[], bool]) -> None:
    """Return when something holds."""
    with anyio.fail_after(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody tells
            await anyio.sleep(LOOK_S)


@asynccontextmanager
async def socket_at(
    url: str, pid: int, accept: Callable[[int], bool] | None = None, headers: Mapping[str, str] = KEY
) -> AsyncGenerator[ClientConnection]:
    """A socket at a worker that suits: the kernel gives them out as it likes."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                ws = await connect(url, additional_headers=headers)
            except InvalidStatus:
                await anyio.sleep(LOOK_S)  # one that is about to end
                continue
            if accept is None or accept(worker_at(ws, pid)):
                break
            await ws.close()
    async with ws:
        yield ws


async def turn(ws: ClientConnection, frame: dict[str, Any]) -> list[Any]:
    """Send a frame; return the events of its turn."""
    await ws.send(json.dumps(frame))
    return await read_turn(ws)


async def read_turn(ws: ClientConnection) -> list[Any]:
    """Return the events of a turn, or what is left of them."""
    events: list[Any] = []
    with anyio.fail_after(PATIENCE_S):
        while not events or events[-1]["type"] not in TERMINAL_TYPES:
            events.append(json.loads(await ws.recv()))
    return events


async def turn_when_stored(ws: ClientConnection, frame: dict[str, Any]) -> list[Any]:
    """Take a turn whose parent may still be on its way to the store."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            events = await turn(ws, frame)
            if events[-1]["type"] != "error":
                return events
            assert events[-1]["error"]["code"] == "previous_response_not_found", events
