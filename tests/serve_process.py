"""`python -m ws_responses serve` as a user runs it: a process of its own, on a free port."""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

PATIENCE_S = 30.0


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
        found = re.search(r"^  socket +(wss?)(://\S+:\d+)(\S+)", report, re.MULTILINE)
        assert found is not None, report
        self.socket_url = found[1] + found[2] + found[3]
        self.url = found[1].replace("ws", "http") + found[2] + "/v1"
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
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WS_RESPONSES_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ws_responses", "serve", "--port", "0", *arguments),
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
