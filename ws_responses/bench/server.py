"""A server in a process of its own, and what it costs: CPU time and memory of that process.

``python -m ws_responses.bench.server FD TARGET`` is the server's side.
"""

import asyncio
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from typing import IO, Self

import psutil

from ws_responses.bench.results import Unexpected

_HOST = "127.0.0.1"
_SETTLE_S = 0.02
_HAS_PROCESS_CLOCKS = platform.system() == "Linux"


def _clock_of(pid: int) -> int:
    """Return the id of another process's CPU clock (Linux, ``MAKE_PROCESS_CPUCLOCK`` with ``CPUCLOCK_SCHED``)."""
    return (~pid << 3) | 2


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process: by its CPU clock where there is one (nanoseconds), else in ticks."""
    if _HAS_PROCESS_CLOCKS:
        return time.clock_gettime(_clock_of(pid))
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    return int(psutil.Process(pid).memory_info().rss)


class Child:
    """A process that runs a module of this package on a listening socket; a context manager.

    Args:
        module: Is run with the socket's descriptor and the arguments.
        arguments: The rest.
    """

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._arguments = arguments
        self._process: subprocess.Popen[bytes]
        self._log: IO[bytes]
        self.port = 0

    def __enter__(self) -> Self:
        """Start it. Clients may connect at once: the socket listens already, and they wait in its backlog."""
        self._log = tempfile.TemporaryFile()
        with socket.create_server((_HOST, 0), backlog=2048) as listener:
            self.port = listener.getsockname()[1]
            command = [sys.executable, "-m", self._module, str(listener.fileno()), *self._arguments]
            # A fixed seed: sets and dicts of strings lie in memory in the same way in every process.
            environment = {**os.environ, "PYTHONHASHSEED": "0"}
            self._process = subprocess.Popen(
                command, pass_fds=(listener.fileno(),), env=environment, stdout=self._log, stderr=self._log
            )
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """End it.

        Raises:
            Unexpected: It raised, at whatever time; what was measured is worth nothing.
        """
        self._stop()
        with self._log as log:
            log.seek(0)
            said = log.read().decode(errors="replace").strip()
        if "Traceback" in said:
            name = " ".join((self._module.rpartition(".")[2], *self._arguments))
            raise Unexpected(f"the process '{name}' said: {said.rpartition(chr(10))[2]}") from error

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return _HOST, self.port

    @property
    def pid(self) -> int:
        """Id of its process."""
        return self._process.pid

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used."""
        return cpu_seconds(self.pid)

    def resident_bytes(self) -> int:
        """Return its resident memory."""
        return resident_bytes(self.pid)


class Server(Child):
    """uvicorn (uvloop, httptools, websockets-sansio) with one of the benchmark apps.

    Args:
        target: Name of the app, see :func:`ws_responses.bench.apps.target`.
    """

    def __init__(self, target: str) -> None:
        super().__init__("ws_responses.bench.server", target)

    @property
    def url(self) -> str:
        """URL of its socket."""
        return f"ws://{_HOST}:{self.port}/v1/responses"


class CpuTime:
    """The CPU time that a server spends within an ``async with``, and right after it.

    Attributes:
        seconds: The result.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self.seconds = 0.0

    async def __aenter__(self) -> Self:
        """Begin, when what was before has settled."""
        await asyncio.sleep(_SETTLE_S)
        self.seconds = -self._server.cpu_seconds()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End; what the server does after its last answer counts."""
        await asyncio.sleep(_SETTLE_S)
        self.seconds += self._server.cpu_seconds()


def serve(descriptor: int, target: str) -> None:
    """Serve an app on a listening socket that was handed down."""
    import uvicorn

    from ws_responses.bench import apps

    config = uvicorn.Config(
        apps.target(target),
        loop="uvloop",
        http="httptools",
        ws="websockets-sansio",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=1,
        timeout_keep_alive=600,
    )
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=descriptor)])


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
