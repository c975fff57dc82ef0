"""Real Redis and Valkey servers for tests: on a socket file of their own, with nothing kept on disk."""

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import redis

from tests.conftest import require

Kind = Literal["redis", "valkey"]


def program(kind: Kind) -> str:
    """The server's program: on the PATH, or where tests/adapters/setup.sh puts it. Skips (or fails in CI) without one."""
    name = f"{kind}-server"
    bundled = Path(sys.prefix) / kind / f"{kind}_embedded" / "bin" / name
    found = shutil.which(name) or (str(bundled) if bundled.is_file() else None)
    require(name, present=found is not None)
    assert found is not None
    return found


class RedisServer:
    """One server.

    Args:
        kind: Which program.
        options: Its configuration.
        port: A TCP port beside the socket file; 0 for none.
    """

    def __init__(self, kind: Kind = "redis", options: Mapping[str, str] | None = None, *, port: int = 0) -> None:
        self._program = program(kind)
        self._folder = Path(tempfile.mkdtemp(prefix="ws-redis-", dir="/tmp"))  # a socket's path must be short
        self._options = {"save": "", "appendonly": "no", "dir": str(self._folder), **(options or {})}
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._folder}/server.sock"

    def start(self) -> Self:
        """Start it, and wait until it answers."""
        options = [word for name, value in self._options.items() for word in (f"--{name}", value)]
        path = self.url.removeprefix("unix://")
        self._process = subprocess.Popen(
            [self._program, "--port", str(self._port), "--bind", "127.0.0.1", "--unixsocket", path, *options],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until = time.monotonic() + 20
        while True:
            with suppress(redis.ConnectionError, redis.BusyLoadingError), self.client() as client:
                client.ping()
                return self
            assert self._process.poll() is None, "the server has ended by itself"
            assert time.monotonic() < until, "the server does not answer"
            time.sleep(0.01)

    def client(self) -> Any:
        """A client of the test's own; untyped, since redis-py types each answer for both of its worlds."""
        return redis.Redis.from_url(self.url)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal: SIGSTOP makes it silent, SIGCONT lets it go on."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it without a word."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


class RedisTime:
    """Lets time pass for all keys of the store: their lives, and the times that branches hold, become shorter."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server

    async def advance(self, seconds: float) -> None:
        """Move on."""
        with self._server.client() as client:
            for key in client.scan_iter(count=1000):
                left = client.pttl(key) - round(seconds * 1000)
                if b":b:" in key and left > 0:
                    client.hincrby(key, "p", -round(seconds * 1000))
                client.pexpire(key, max(left, 0))


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
