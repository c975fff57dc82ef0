"""`serve --workers`: real processes on one listening socket, that die, are replaced, restarted and stopped."""

import asyncio
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncIterator, Generator
from contextlib import AsyncExitStack, suppress
from functools import partial
from operator import eq
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from tests.adapters.proxy_servers import running
from tests.conftest import require
from tests.ports import free_port
from tests.serve_process import PATIENCE_S, Served, serve, serve_at, serve_here
from tests.shell import create, id_of, kinds, text_of, types_of
from tests.worker_processes import (
    KEY,
    LOOK_S,
    connections_of,
    read_turn,
    socket_at,
    turn,
    turn_when_stored,
    until,
    worker_at,
    workers_of,
)
from ws_responses.testing import ScriptedApp, steps

for package in ("aiohttp", "uvicorn", "websockets"):
    require(package)

from websockets.asyncio.client import ClientConnection, connect  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

pytestmark = pytest.mark.servers

WITH_MEMORY = ("--backend", "scripted", "--workers", "2", "--store", "memory")


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[ScriptedApp, str]]:
    app = ScriptedApp(listen=True, timeout=PATIENCE_S)
    async with running(app) as url:
        yield app, url


@pytest.fixture(params=["sqlite", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Generator[str]:
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'chains.db'}"
        return
    from tests.adapters.redis_server import RedisServer

    with RedisServer("redis") as server:
        yield server.url


async def test_one_socket_two_processes_one_report(upstream: tuple[ScriptedApp, str], tmp_path: Path) -> None:
    """Without this there would be one process, or two that each tell the same, or clients that one of them never gets."""
    _, url = upstream
    async with serve("--upstream", url, "--workers", "2", "--store", f"sqlite:{tmp_path}/c", "--grace", "5") as served:
        first, second = workers_of(served.process.pid)
        async with AsyncExitStack() as sockets:
            for worker in (first, second):
                ws = await sockets.enter_async_context(
                    socket_at(served.socket_url, served.process.pid, partial(eq, worker))
                )
                assert kinds(await turn(ws, create("hi")))[-1] == "completed"
        served.signal(signal.SIGTERM)
        assert await served.ended() == 0
        rest = await served.rest()

    assert "workers    2 processes" in served.report
    assert f"chains     in the file {tmp_path}/c" in served.report
    assert rest == ""


async def test_a_chain_goes_on_at_the_worker_that_is_left_when_one_is_killed(
    upstream: tuple[ScriptedApp, str], store: str
) -> None:
    """kill -9 in the middle of a turn of a loop: it goes on from the last turn that was completed, elsewhere."""
    app, url = upstream
    release = anyio.Event()
    app.script(
        [steps.tool_call("look", call_id="call_1")],
        [steps.text("half", finish=False), steps.wait_for(release)],
        [steps.text("whole")],
        [steps.text("more")],
    )
    async with serve("--upstream", url, "--workers", "2", "--store", store) as served:
        pid = served.process.pid
        answer = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
        async with socket_at(served.socket_url, pid) as ws:
            parent = id_of(await turn(ws, create("question")))
            await ws.send(json.dumps(create([answer], previous_response_id=parent)))
            while json.loads(await ws.recv())["type"] != "response.output_text.delta":
                pass
            lost = worker_at(ws, pid)
            os.kill(lost, signal.SIGKILL)
            with pytest.raises(ConnectionClosed) as closed:
                await read_turn(ws)
        assert closed.value.rcvd is None, "no close frame: it was cut off"
        async with socket_at(served.socket_url, pid) as ws:
            assert worker_at(ws, pid) != lost
            again = await turn_when_stored(ws, create([answer], previous_response_id=parent))
            after = await turn(ws, create("thanks", previous_response_id=id_of(again)))
        await until(lambda: len(workers_of(pid)) == 2)
        release.set()

    assert [text_of(events[-1]) for events in (again, after)] == ["whole", "more"]
    assert types_of(app.requests[2].body) == ["user", "function_call", "function_call_output"]
    assert types_of(app.requests[3].body) == [
        *("user", "function_call", "function_call_output", "assistant"),
        "user",
    ]


@pytest.mark.parametrize("durable", [True, False])
async def test_with_durable_a_worker_that_is_killed_takes_no_turn_along_whose_end_was_seen(
    upstream: tuple[ScriptedApp, str], durable: bool
) -> None:
    """The store is slow, and the kill comes as soon as the terminal frame has: without the option that turn is lost."""
    from tests.adapters.redis_server import RedisServer

    app, url = upstream
    options = ("--workers", "2", *(["--durable"] if durable else []))
    with RedisServer("redis") as server, server.client() as control:
        async with serve("--upstream", url, *options, "--store", server.url) as served:
            pid = served.process.pid
            async with socket_at(served.socket_url, pid) as ws:
                parent = id_of(await turn(ws, create("one")))
                await until(lambda: control.dbsize() > 0)
                control.execute_command("CLIENT", "PAUSE", 60_000, "WRITE")
                await ws.send(json.dumps(create("two", previous_response_id=parent)))
                if durable:
                    await app.wait_requests(2)
                    await app.wait_idle()
                    control.execute_command("CLIENT", "UNPAUSE")
                last = id_of(await read_turn(ws))
                os.kill(worker_at(ws, pid), signal.SIGKILL)
                await ws.wait_closed()
            control.execute_command("CLIENT", "UNPAUSE")
            async with socket_at(served.socket_url, pid) as ws:
                end = (await turn(ws, create("three", previous_response_id=last)))[-1]

    assert end["type"] == ("response.completed" if durable else "error")
    assert len(app.requests[-1].input) == (5 if durable else 3)


async def test_the_other_worker_reads_a_chain_once(upstream: tuple[ScriptedApp, str]) -> None:
    """The first turn there loads it; the turns after it cost the store what is new, as they did where it began."""
    from tests.adapters.redis_server import RedisServer

    app, url = upstream
    with RedisServer("redis") as server, server.client() as control:
        async with serve("--upstream", url, "--workers", "2", "--durable", "--store", server.url) as served:
            pid = served.process.pid
            parent = None
            async with socket_at(served.socket_url, pid) as ws:
                for number in range(12):
                    parent = id_of(await turn(ws, create(f"{number}", previous_response_id=parent)))
                first = worker_at(ws, pid)
            out: list[int] = []
            async with socket_at(served.socket_url, pid, lambda at: at != first) as ws:
                for number in range(12, 16):
                    before = control.info("stats")["total_net_output_bytes"]
                    parent = id_of(await turn(ws, create(f"{number}", previous_response_id=parent)))
                    out.append(control.info("stats")["total_net_output_bytes"] - before)

    assert [len(request.input) for request in app.requests] == [2 * number + 1 for number in range(16)]
    assert out[0] > min(out) + 1000, "the chain"
    assert max(out[1:]) < min(out) + 1000, "its end"


async def test_the_limits_of_a_tenant_hold_over_all_workers(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this each further worker would give every tenant as much again."""
    from tests.adapters.redis_server import RedisServer

    _, url = upstream
    limit = ("--shared-limits", "--limit", "max_tenant_connections=1")
    with RedisServer("redis") as server:
        async with (
            serve("--upstream", url, "--workers", "2", "--store", server.url, *limit) as served,
            socket_at(served.socket_url, served.process.pid) as ws,
        ):
            statuses: list[int] = []
            for _ in range(8):  # some of them reach the other worker
                with pytest.raises(InvalidStatus) as refused:
                    await connect(served.socket_url, additional_headers=KEY)
                statuses.append(refused.value.response.status_code)
            other = {"Authorization": "Bearer another"}
            async with socket_at(served.socket_url, served.process.pid, headers=other) as theirs:
                assert kinds(await turn(theirs, create("hi")))[-1] == "completed"
            assert kinds(await turn(ws, create("hi")))[-1] == "completed"

    assert statuses == [429] * 8


async def test_a_later_run_with_the_same_key_goes_on(upstream: tuple[ScriptedApp, str], tmp_path: Path) -> None:
    """A deployment that starts anew on the same file finds what was stored; one with another key of tenants does not."""
    _, url = upstream
    options = ("--upstream", url, "--store", f"sqlite:{tmp_path}/c")
    parent = None
    ends: list[Any] = []
    for key in ("a key of sixteen characters", "a key of sixteen characters", "another one, of nobody here"):
        async with (
            serve_here(*options, WS_RESPONSES_TENANT_KEY=key) as served,
            connect(served.socket_url, additional_headers=KEY) as ws,
        ):
            ends.append((await turn(ws, create("hi", previous_response_id=parent)))[-1])
            parent = ends[0]["response"]["id"]
        assert "found by this run only" not in served.report

    assert [end["type"] for end in ends] == ["response.completed", "response.completed", "error"]


@pytest.mark.slow
async def test_a_restart_goes_from_worker_to_worker_while_turns_run(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a deployment would cut off turns, or refuse who comes meanwhile."""
    app, url = upstream
    release = anyio.Event()
    app.script(
        lambda body: (
            [steps.text("one", finish=False), steps.wait_for(release), steps.text("two")]
            if "long" in json.dumps(body["input"])
            else [steps.text("short")]
        )
    )
    async with serve("--upstream", url, "--workers", "2", "--store", "memory") as served, AsyncExitStack() as sockets:
        pid = served.process.pid
        old = workers_of(pid)
        long: list[Any] = []
        for worker in old:
            at_it = socket_at(served.socket_url, pid, partial(eq, worker))
            long.append(await sockets.enter_async_context(at_it))
            await long[-1].send(json.dumps(create("long")))
        await app.wait_requests(2)
        served.signal(signal.SIGHUP)
        # One has a successor and is still there: its turn runs.
        await until(lambda: len(workers_of(pid)) == 3)
        during = await sockets.enter_async_context(socket_at(served.socket_url, pid, lambda at: at not in old))
        short = await turn(during, create("short"))
        assert set(old) <= set(workers_of(pid)), "the other one waits for it"
        release.set()
        ends = [(await read_turn(ws))[-1] for ws in long]
        for ws in long:
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        await until(lambda: len(workers_of(pid)) == 2 and not set(old) & set(workers_of(pid)))
        assert kinds(await turn(during, create("short")))[-1] == "completed", "who came to a new one stays there"

    assert all("two" in text_of(end) for end in ends)
    assert text_of(short[-1]) == "short"


@pytest.mark.slow
async def test_nobody_is_refused_during_a_restart() -> None:
    """Without this clients would meet a closed port, or a worker that takes them only to send them away."""
    async with serve(*WITH_MEMORY) as served:
        pid = served.process.pid
        old = set(workers_of(pid))
        served.signal(signal.SIGHUP)
        ends: list[str] = []
        while old & set(workers_of(pid)):
            async with connect(served.socket_url) as ws:
                try:
                    end = (await turn(ws, create("hi", model="scripted")))[-1]
                    ends.append(end["error"]["code"] if end["type"] == "error" else end["type"])
                except ConnectionClosed as closed:
                    ends.append(str(closed.rcvd and closed.rcvd.code))
            await anyio.sleep(LOOK_S)
        # Some were open when their worker was told to end; those are told to connect again.
        assert set(ends) <= {"response.completed", "server_is_overloaded", "1012"}
        assert ends.count("response.completed") > len(ends) / 2


class Loop:
    """An agent as it should be: when its socket closes, or a turn is refused, it connects again and names its last response.

    Attributes:
        turns: How many were completed.
        again: How many frames it had to send once more.
    """

    def __init__(self, name: str) -> None:
        self.turns = self.again = 0
        self._headers = {"Authorization": f"Bearer {name}"}
        self._parent: str | None = None

    async def run(self, url: str, over: anyio.Event) -> None:
        while not over.is_set():
            with suppress(ConnectionClosed):
                async with connect(url, additional_headers=self._headers) as ws:
                    while not over.is_set():
                        await self._turn(ws)
                        await anyio.sleep(LOOK_S)

    async def _turn(self, ws: ClientConnection) -> None:
        self.again += 1
        end = (await turn(ws, create("go on", previous_response_id=self._parent)))[-1]
        if end["type"] == "response.completed":
            self.again -= 1
            self.turns += 1
            self._parent = id_of([end])
            assert f"answers {2 * self.turns - 1} input items" in text_of(end)
        else:
            assert end["error"]["code"] == "server_is_overloaded", end


def are_new(pid: int, old: set[int]) -> bool:
    """Whether all workers are others than those."""
    now = set(workers_of(pid))
    return len(now) == 2 and not old & now


def have_gone_on(loops: list[Loop], before: list[int]) -> bool:
    """Whether each has taken some more turns."""
    return all(loop.turns > turns + 3 for loop, turns in zip(loops, before, strict=True))


@pytest.mark.slow
async def test_in_a_rolling_restart_no_turn_is_lost_and_none_is_asked_twice(
    upstream: tuple[ScriptedApp, str], tmp_path: Path
) -> None:
    """Without this each deployment would cost clients turns, or operators the price of them."""
    app, url = upstream
    loops = [Loop(f"client-{number}") for number in range(8)]
    store = ("--store", f"sqlite:{tmp_path}/c", "--durable")
    over = anyio.Event()
    async with serve("--upstream", url, "--workers", "2", *store) as served, anyio.create_task_group() as tasks:
        pid = served.process.pid
        for loop in loops:
            tasks.start_soon(loop.run, served.socket_url, over)
        for _ in range(2):
            old = set(workers_of(pid))
            before = [loop.turns for loop in loops]
            served.signal(signal.SIGHUP)
            await until(partial(are_new, pid, old))
            await until(partial(have_gone_on, loops, before))
        over.set()
    turns, again = sum(loop.turns for loop in loops), [loop.again for loop in loops]
    print(f"{turns} turns of {len(loops)} clients over two restarts of two workers; frames sent again: {again}")

    assert len(app.requests) == turns
    assert max(again) <= 2 * 4, "refused once by each worker that ends, and then cut off"


@pytest.mark.slow
async def test_sigterm_lets_the_turns_of_all_workers_end(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this each deployment would cut off the turns of all clients but one worker's."""
    app, url = upstream
    release = anyio.Event()
    app.script(lambda _: [steps.text("one", finish=False), steps.wait_for(release), steps.text("two")])
    async with serve("--upstream", url, "--workers", "2", "--store", "memory") as served, AsyncExitStack() as sockets:
        pid = served.process.pid
        long: list[Any] = []
        for worker in workers_of(pid):
            at_it = socket_at(served.socket_url, pid, partial(eq, worker))
            long.append(await sockets.enter_async_context(at_it))
            await long[-1].send(json.dumps(create("long")))
        await app.wait_requests(2)
        served.signal(signal.SIGTERM)
        await until(lambda: not listens(served))
        release.set()
        ends = [(await read_turn(ws))[-1] for ws in long]
        assert await served.ended() == 0

    assert all("two" in text_of(end) for end in ends)


def listens(served: Served) -> bool:
    """Whether somebody does at the port."""
    port = int(served.url.removesuffix("/v1").rpartition(":")[2])
    processes = [served.process.pid, *workers_of(served.process.pid)]
    connections = [each for pid in processes for each in connections_of(pid)]
    return any(each.laddr.port == port and each.status == psutil.CONN_LISTEN for each in connections)


@pytest.mark.slow
async def test_a_second_ctrl_c_waits_for_no_worker(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a person would have to look for the processes to kill them."""
    app, url = upstream
    app.script([steps.text("one", finish=False), steps.stall()])
    async with serve("--upstream", url, "--workers", "2", "--store", "memory", "--grace", "600") as served:
        pid = served.process.pid
        async with socket_at(served.socket_url, pid) as ws:
            await ws.send(json.dumps(create("hi")))
            await app.wait_events(3)
            workers = workers_of(pid)
            served.signal(signal.SIGINT)
            await until(lambda: not listens(served))
            served.signal(signal.SIGINT)
            assert await served.ended() == 1
        assert not any(map(psutil.pid_exists, workers))


@pytest.mark.slow
async def test_workers_end_when_nobody_watches_over_them_any_more(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a supervisor that is killed would leave processes behind that hold the port for ever."""
    app, url = upstream
    release = anyio.Event()
    app.script([steps.text("one", finish=False), steps.wait_for(release), steps.text("two")])
    async with serve("--upstream", url, "--workers", "2", "--store", "memory") as served:
        pid = served.process.pid
        async with socket_at(served.socket_url, pid) as ws:
            await ws.send(json.dumps(create("hi")))
            await app.wait_events(3)
            workers = workers_of(pid)
            served.signal(signal.SIGKILL)
            release.set()
            assert "two" in text_of((await read_turn(ws))[-1])
        await until(lambda: not any(map(alive, workers)))
        await served.ended()


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--backend", "llama-cpp", "--gguf", "/nowhere"), "cannot read the model"),
        (("--upstream", "http://localhost:1/v1", "--ssl-certfile", "/nowhere"), "the certificate or its key"),
    ],
)
async def test_what_no_worker_can_do_is_said_once(options: tuple[str, ...], text: str) -> None:
    """Without this a typing error would be told by each worker, for ever."""
    with pytest.raises(AssertionError, match="it did not start") as failed:
        async with serve(*options, "--workers", "3", "--store", "memory"):
            pass

    assert str(failed.value).count(text) == 1
    assert "Traceback" not in str(failed.value)


@pytest.mark.slow
async def test_a_terminal_that_is_closed_ends_it() -> None:
    """Without this a closed window would be taken for the order to restart, and leave a server behind that nobody sees."""
    ours, theirs = pty.openpty()
    async with serve_at(theirs, *WITH_MEMORY) as served:
        os.close(theirs)
        os.close(ours)
        served.signal(signal.SIGHUP)
        assert await served.ended() == 0


async def test_it_serves_and_ends_although_nobody_reads_what_it_says() -> None:
    """Without this a report that cannot be written would leave a supervisor that waits for ever for a worker that has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    port = str(free_port())
    command = (sys.executable, "-m", "ws_responses", "serve", "--port", port, *WITH_MEMORY)
    process = await asyncio.create_subprocess_exec(*command, stdout=writer, stderr=asyncio.subprocess.DEVNULL)
    os.close(writer)
    await until(lambda: len(workers_of(process.pid)) == 2)
    for worker in workers_of(process.pid):  # once both serve there is something to say
        async with socket_at(f"ws://127.0.0.1:{port}/v1/responses", process.pid, partial(eq, worker)) as ws:
            await turn(ws, create("hi", model="scripted"))
    process.terminate()
    with anyio.fail_after(PATIENCE_S):
        await process.wait()


HANGS = """
import signal, time

def hangs_for_ever(number, frame):
    while True:
        time.sleep(1)

signal.signal(signal.SIGUSR2, hangs_for_ever)
"""


async def test_a_worker_that_hangs_says_where_and_is_replaced(tmp_path: Path) -> None:
    """One that lives, but whose event loop does not turn, would keep its clients for ever, and its place."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with serve(*WITH_MEMORY, "--worker-timeout", "2", PYTHONPATH=path) as served:
        pid = served.process.pid
        before = workers_of(pid)
        async with socket_at(served.socket_url, pid) as ws:
            hung = worker_at(ws, pid)
            os.kill(hung, signal.SIGUSR2)
            with pytest.raises(ConnectionClosed):
                await ws.recv()
        await until(lambda: len(workers_of(pid)) == 2 and hung not in workers_of(pid))
        async with socket_at(served.socket_url, pid, lambda worker: worker not in before) as ws:
            assert kinds(await turn(ws, create("hi", model="scripted")))[-1] == "completed"
        assert set(before) - {hung} <= set(workers_of(pid)), "the other one is left alone"
        served.signal(signal.SIGTERM)
        assert await served.ended() == 0
    assert f"(process {hung}) has done nothing for 2 s" in served.log
    assert "in hangs_for_ever" in served.log


async def test_who_does_not_want_it_has_no_worker_replaced_for_its_silence(tmp_path: Path) -> None:
    """`none`: for a debugger that holds a worker, say. SIGUSR1 shows where it is, and ends nothing."""
    (tmp_path / "sitecustomize.py").write_text(HANGS)
    path = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    async with serve(*WITH_MEMORY, "--worker-timeout", "none", PYTHONPATH=path) as served:
        pid = served.process.pid
        before = workers_of(pid)
        os.kill(before[0], signal.SIGUSR1)
        async with AsyncExitStack() as sockets:
            for worker in before:
                ws = await sockets.enter_async_context(socket_at(served.socket_url, pid, partial(eq, worker)))
                assert kinds(await turn(ws, create("hi", model="scripted")))[-1] == "completed"
        assert workers_of(pid) == before
        served.signal(signal.SIGTERM)
        assert await served.ended() == 0
    assert "Current thread" in served.log
    assert "done nothing" not in served.log
