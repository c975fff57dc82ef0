"""An app that drains at SIGTERM, under servers that know nothing of that."""

import asyncio
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.adapters.proxy_servers import running
from tests.ports import free_port, until_listened_to
from tests.shell import create, id_of, text_of
from tests.worker_processes import KEY, LOOK_S, PATIENCE_S, read_turn, socket_at, turn, until, workers_of
from ws_responses.signals import drain_at_sigterm
from ws_responses.testing import ScriptedApp, steps

ASYNCIO: Any = ("asyncio", {"use_uvloop": False})


class Drained:
    """Notes when it is drained, and takes as long as the test wants."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.release = anyio.Event()
        self.grace_s: float | None = None

    async def drain(self, timeout_s: float | None = None) -> bool:
        self.grace_s = timeout_s
        self.asked.set()
        await self.release.wait()
        return True


@pytest.fixture
def heard() -> Generator[list[int]]:
    """The signals that reach the server's own handler."""
    signals: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: signals.append(number))
    yield signals
    signal.signal(signal.SIGTERM, before)


async def test_the_server_hears_of_the_signal_when_all_has_ended(heard: list[int]) -> None:
    """Without this it would cut off the sockets while they are drained; or would never end."""
    app = Drained()
    async with drain_at_sigterm(app, 7.5):
        os.kill(os.getpid(), signal.SIGTERM)
        with anyio.fail_after(PATIENCE_S):
            await app.asked.wait()
        assert heard == []
        app.release.set()
        with anyio.fail_after(PATIENCE_S):
            while not heard:
                await anyio.lowlevel.checkpoint()

    assert heard == [signal.SIGTERM]
    assert app.grace_s == 7.5


async def test_a_server_that_ends_otherwise_has_its_handler_back(heard: list[int]) -> None:
    """Without this a lifespan that is over would swallow the signal for ever."""
    async with drain_at_sigterm(Drained()):
        pass
    signal.raise_signal(signal.SIGTERM)

    assert heard == [signal.SIGTERM]


def test_in_another_thread_it_does_nothing(heard: list[int]) -> None:
    """Without this no test client could run the lifespan: they run it in a thread, where no handler may be set."""
    ran: list[str] = []

    async def lifespan() -> None:
        async with drain_at_sigterm(Drained()):
            ran.append("inside")

    thread = threading.Thread(target=anyio.run, args=(lifespan,))
    thread.start()
    thread.join()

    assert ran == ["inside"]
    assert heard == []


@asynccontextmanager
async def uvicorn(
    app: str, *options: str, **environment: str
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, str]]:
    """Run an app; give the process, and the URL of its socket."""
    port = free_port()
    command = (sys.executable, "-m", "uvicorn", app, "--port", str(port), "--log-level", "warning", *options)
    process = await asyncio.create_subprocess_exec(*command, env=os.environ | environment)
    try:
        await until_listened_to(port)
        yield process, f"ws://127.0.0.1:{port}/v1/responses"
    finally:
        if process.returncode is None:
            process.terminate()
            with anyio.fail_after(PATIENCE_S):
                await process.wait()


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", [ASYNCIO], ids=["asyncio"])
@pytest.mark.parametrize("options", [(), ("--workers", "2")], ids=["alone", "workers"])
async def test_uvicorn_lets_turns_end(options: Sequence[str]) -> None:
    """Without this it closes all sockets when it is told to stop, whatever runs on them."""
    release = anyio.Event()
    upstream = ScriptedApp(timeout=PATIENCE_S)
    upstream.script(lambda _: [steps.text("one", finish=False), steps.wait_for(release), steps.text("two")])
    async with running(upstream) as url, uvicorn("tests.draining_app:app", *options, UPSTREAM=url) as (process, at):
        async with connect(at, additional_headers=KEY) as ws:
            await ws.send(json.dumps(create("hi")))
            await upstream.wait_events(3)
            process.terminate()
            await turned_away(at)
            release.set()
            end = (await read_turn(ws))[-1]
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
        with anyio.fail_after(PATIENCE_S):
            await process.wait()

    assert "two" in text_of(end)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


async def turned_away(url: str) -> None:
    """Wait until new sockets are turned away: then the signal has been taken."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                async with connect(url, additional_headers=KEY):
                    await anyio.sleep(LOOK_S)
            except (InvalidStatus, OSError):
                return


@pytest.mark.servers
@pytest.mark.slow
@pytest.mark.parametrize("anyio_backend", [ASYNCIO], ids=["asyncio"])
async def test_the_example_restarts_its_workers_and_loses_no_chain(tmp_path: Path) -> None:
    """uvicorn's own supervisor, at SIGHUP: a conversation goes on before, while and after all workers are replaced."""
    environment = {"CHAINS": str(tmp_path / "chains.db"), "TENANT_KEY": secrets.token_hex(32)}
    options = ("--workers", "2", "--timeout-worker-healthcheck", "30")  # the machine may be busy
    async with uvicorn("examples.workers_app:app", *options, **environment) as (process, at):
        await until(lambda: len(workers_of(process.pid)) == 2)
        old = set(workers_of(process.pid))
        parent: str | None = None
        turns = 0

        async def go_on() -> None:
            nonlocal parent, turns
            async with socket_at(at, process.pid) as ws:
                try:
                    end = (await turn(ws, create("go on", previous_response_id=parent)))[-1]
                except ConnectionClosed:
                    return  # its worker was told to end before it had the turn
            if end["type"] == "response.completed":
                parent, turns = id_of([end]), turns + 1
                assert f"This answers {2 * turns - 1} input items" in text_of(end)
            else:
                assert end["error"]["code"] == "server_is_overloaded", end

        await go_on()
        process.send_signal(signal.SIGHUP)
        while old & set(workers_of(process.pid)):
            await go_on()
            await anyio.sleep(LOOK_S)
        before = turns
        await go_on()
        assert turns == before + 1 > 2
