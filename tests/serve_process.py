"""`python -m ws_responses serve`: as a user runs it, in a process of its own, and the same in the event loop of a test."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from ws_responses.serve import command
from ws_responses.serve.options import parse
from ws_responses.serve.report import report
from ws_responses.serve.server import Server, listen, resolve

PATIENCE_S = 30.0


class Here:
    """A server in this event loop.

    Attributes:
        server: uvicorn; ``handle_exit`` is what a signal calls.
        report: What it would say about itself.
        url: Base URL of its HTTP API.
        socket_url: URL of its socket.
    """

    def __init__(self, server: Server, report: str) -> None:
        self.server = server
        self.report = report
        self.socket_url, self.url = _urls(report)


def _urls(report: str) -> tuple[str, str]:
    found = re.search(r"^  socket +(wss?)(://\S+:\d+)(\S+)", report, re.MULTILINE)
    assert found is not None, report
    return found[1] + found[2] + found[3], found[1].replace("ws", "http") + found[2] + "/v1"


@asynccontextmanager
async def serve_here(*arguments: str, **environment: str) -> AsyncIterator[Here]:
    """Start a server in this event loop; end it, if the test has not."""
    options = parse(["--port", "0", *arguments], environment)
    family, address = resolve(options.listen.host, options.listen.port)
    with listen(family, address) as listener:
        served = command._served(options)
        server = command._server(options, served, listener, lambda _, __: None)
        running = asyncio.create_task(server._serve([listener]))
        try:
            yield Here(server, report(options, served, *listener.getsockname()[:2]))
        finally:
            if not server.draining:
                server.handle_exit(signal.SIGTERM, None)
            with anyio.fail_after(PATIENCE_S):
                await running


class Served:
    """A running server.

    Attributes:
        report: What it has said about itself.
        url: Base URL of its HTTP API.
        socket_url: URL of its socket.
    """

    def __init__(self, process: asyncio.subprocess.Process, report: str) -> None:
        self.process = process
        self.report = report
        self.socket_url, self.url = _urls(report)
        self._log = ""

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    async def ended(self) -> int:
        """Wait for its end; return the exit code."""
        with anyio.fail_after(PATIENCE_S):
            assert self.process.stderr is not None
            self._log += (await self.process.stderr.read()).decode()
            return await self.process.wait()

    async def rest(self) -> str:
        """What it has said after the report, once it has ended."""
        assert self.process.stdout is not None
        return (await self.process.stdout.read()).decode()

    @property
    def log(self) -> str:
        """What it has logged, once it has ended."""
        return self._log


@asynccontextmanager
async def serve(*arguments: str, **environment: str) -> AsyncIterator[Served]:
    """Start a server; end it, if the test has not.

    Args:
        arguments: Of the command line, without ``--port``.
        environment: Variables that it gets.
    """
    async with serve_at(None, *arguments, **environment) as served:
        yield served


@asynccontextmanager
async def serve_at(stdin: int | None, *arguments: str, **environment: str) -> AsyncIterator[Served]:
    """The same, with a standard input of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WS_RESPONSES_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ws_responses", "serve", "--port", "0", *arguments),
        stdin=stdin,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=inherited | environment,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    report = b""
    try:
        with anyio.fail_after(PATIENCE_S):
            while b"websocat" not in report:
                line = await process.stdout.readline()
                if not line:
                    raise AssertionError(f"it did not start:\n{(await process.stderr.read()).decode()}")
                report += line
        served = Served(process, report.decode())
        yield served
        if process.returncode is None:
            served.signal(signal.SIGTERM)
            assert await served.ended() == 0, served.log
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
