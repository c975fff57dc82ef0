"""Real Redis and Valkey servers for tests: on a socket file of their own, with nothing kept on disk."""

import shutil
import signal
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
from tests.ports import free_port

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


class RedisCluster:
    """Several servers, each with its part of the slots: keys of two tenants may lie on two of them.

    Args:
        kind: Which program.
        nodes: How many servers.
    """

    def __init__(self, kind: Kind = "redis", nodes: int = 3) -> None:
        self._ports = [free_port() for _ in range(nodes)]
        self.nodes = [
            RedisServer(
                kind,
                {"cluster-enabled": "yes", "cluster-port": str(free_port()), "cluster-node-timeout": "500"},
                port=port,
            )
            for port in self._ports
        ]
        self.url = f"redis://127.0.0.1:{self._ports[0]}"

    def __enter__(self) -> Self:
        for node in self.nodes:
            node.start()
        buses = [int(node._options["cluster-port"]) for node in self.nodes]
        share = -(-16384 // len(self.nodes))
        for place, node in enumerate(self.nodes):
            with node.client() as client:
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", place * share, min((place + 1) * share, 16384) - 1)
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", place + 1)
                if place:
                    client.execute_command("CLUSTER", "MEET", "127.0.0.1", self._ports[0], buses[0])
        self.settle()
        return self

    def settle(self) -> None:
        """Return when all nodes know all slots."""
        until = time.monotonic() + 30
        for node in self.nodes:
            with node.client() as client:
                while b"cluster_state:ok" not in (state := client.execute_command("CLUSTER", "INFO")) or (
                    f"cluster_known_nodes:{len(self.nodes)}".encode() not in state
                ):
                    assert time.monotonic() < until, "the cluster does not come together"
                    time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for node in self.nodes:
            node.__exit__(kind, error, traceback)


class RedisTime:
    """Lets time pass for all keys of the store: their lives, and the times that branches hold, become shorter."""

    def __init__(self, *servers: RedisServer) -> None:
        self._servers = servers

    async def advance(self, seconds: float) -> None:
        """Move on."""
        for server in self._servers:
            self._advance(server, seconds)

    def _advance(self, server: RedisServer, seconds: float) -> None:
        with server.client() as client:
            for key in client.scan_iter(count=1000):
                left = client.pttl(key) - round(seconds * 1000)
                if b":b:" in key and left > 0:
                    client.hincrby(key, "p", -round(seconds * 1000))
                client.pexpire(key, max(left, 0))
