"""A real ASGI server in a process of its own, on a real port, with the app of `apps.py`."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlencode

from tests.servers.client import PATIENCE_S, Client
from tests.servers.matrix import cell

ROOT: Final = Path(__file__).parents[2]
APP: Final = "tests.servers.apps:app"
START_S: Final = 30.0
STOP_S: Final = 15.0
_POLL_S: Final = 0.01

_UVICORN: Final = ("uvicorn", "--fd", "{fd}", "--ws-ping-interval", "2", "--ws-ping-timeout", "2")
_HYPERCORN: Final = ("hypercorn", "--bind", "fd://{fd}", "--websocket-ping-interval", "2")

# {fd} is a listening socket that is handed down, {port} its port, for the one that takes none. Pings as often as they go:
# whatever disturbs them shows. The loops differ so that both are met; with uvloop, which uvicorn[standard] brings, `auto`.
COMMANDS: Final[dict[str, tuple[str, ...]]] = {
    "uvicorn-sansio": (*_UVICORN, "--ws", "websockets-sansio"),
    "uvicorn-wsproto": (*_UVICORN, "--ws", "wsproto", "--loop", "asyncio"),
    "uvicorn-websockets": (*_UVICORN, "--ws", "websockets"),
    "hypercorn-asyncio": (*_HYPERCORN, "--worker-class", "asyncio"),
    "hypercorn-trio": (*_HYPERCORN, "--worker-class", "trio"),
    "granian": ("granian", "--interface", "asgi", "--port", "{port}"),
    "daphne": ("daphne", "--fd", "{fd}", "--ping-interval", "2", "--ping-timeout", "2"),
}

# What no server may log, whatever its clients do.
_COMPLAINT: Final = re.compile(r"ERROR|CRITICAL|Traceback|was never awaited|took too long|destroyed but")


class Server:
    """A running server; a context manager.

    Args:
        name: One of `COMMANDS`.
        folder: Where its log is written.
        options: Further arguments; the last of the same name counts.

    Attributes:
        name: As given.
        port: Where it listens.
        process: What was started; some servers do their work in a child of it.
    """

    start_s: float = START_S
    """Seconds that its start may take."""

    def __init__(self, name: str, folder: Path, *options: str) -> None:
        self.name = name
        self.port = 0
        self._options = options
        self._log = folder / f"{name}.log"
        self._read = 0
        self._tolerated: list[str] = []
        self.process: subprocess.Popen[bytes]

    @property
    def family(self) -> str:
        """The server without its variant."""
        return self.name.partition("-")[0]

    # -- life ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0), backlog=1024) as listener:
            # Connections inherit it. asyncio would set it, but does not know that a socket handed down is a TCP one.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.port = listener.getsockname()[1]
            if "{port}" in COMMANDS[self.name]:
                listener.close()
            self.process = self._start(listener.fileno())
        try:
            self.until(self._answers, "serves", self.start_s)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> int:
        """End it as an operator does; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"{self.name} did not end in {STOP_S} s:\n{self.log}") from None

    def _start(self, fd: int) -> "subprocess.Popen[bytes]":
        arguments = [each.format(fd=fd, port=self.port) for each in (*COMMANDS[self.name], *self._options)]
        with self._log.open("wb") as output:
            return subprocess.Popen(
                [sys.executable, "-m", *arguments, APP],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=() if fd < 0 else (fd,),
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def _answers(self) -> bool:
        try:
            return bool(self.ask("gauges"))
        except OSError:
            assert self.process.poll() is None, f"{self.name} did not start:\n{self.log}"
            return False

    # -- clients -------------------------------------------------------------------------------------------------------

    def connect(self, name: str = "plain", **options: Any) -> Client:
        """Open a socket of the middleware of this name."""
        return Client(self.port, "/v1/responses" if name == "plain" else f"/{name}/v1/responses", **options)

    def ask(self, action: str, **query: str) -> dict[str, Any]:
        """Look into the app, or pull one of its levers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("GET", f"/control/{action}?{urlencode(query)}")
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()

    def until(self, condition: Callable[[], object], what: str, within: float = PATIENCE_S) -> float:
        """Wait until something is so; return the seconds that it took."""
        begin = time.monotonic()
        while not condition():
            if time.monotonic() > begin + within:
                raise AssertionError(f"not within {within} s: {self.name} {what}")
            time.sleep(_POLL_S)
        return time.monotonic() - begin

    def until_known(self, key: str) -> None:
        """Wait until the app has got the turn of this key."""
        self.until(lambda: self.ask("turn", key=key)["known"], f"calls the app for {key}")

    def until_over(self, key: str, within: float = PATIENCE_S) -> tuple[str, int]:
        """Wait until the app's call of a turn has ended; return how it ended, and the number of events sent."""
        self.until(lambda: self.ask("turn", key=key)["outcome"], f"ends the app's call for {key}", within)
        turn = self.ask("turn", key=key)
        return turn["outcome"], turn["events"]

    def until_quiet(self, key: str, for_s: float = 0.5) -> int:
        """Wait until the app sends no more events although its call goes on; return their number."""
        seen, since = 0, time.monotonic()

        def quiet() -> bool:
            nonlocal seen, since
            events = self.ask("turn", key=key)["events"]
            if events != seen:
                seen, since = events, time.monotonic()
            return seen > 0 and time.monotonic() > since + for_s

        self.until(quiet, f"pauses the app for {key}")
        return seen

    def until_empty(self, within: float = PATIENCE_S) -> None:
        """Wait until nothing is open and nothing runs."""
        self.until(lambda: not any(self.ask("gauges").values()), f"has nothing open: {self.ask('gauges')}", within)

    # -- what is seen --------------------------------------------------------------------------------------------------

    def shows(self, row: str, observed: object) -> None:
        """Hold what was seen against the table of the support page."""
        expected = cell(row, self.name)
        assert str(observed) in expected.split(" or "), (
            f"{self.name}, {row}: {observed!s} was seen, the page says {expected}"
        )

    @property
    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def tolerate(self, *patterns: str) -> None:
        """Let the server complain of what the test does."""
        self._tolerated += patterns

    def complaints(self) -> list[str]:
        """Return what it has complained of since the last call, but for what was to be tolerated since then."""
        new = self.log[self._read :]
        self._read += len(new)
        tolerated, self._tolerated = self._tolerated, []
        lines = [line for line in new.splitlines() if _COMPLAINT.search(line)]
        if any(not any(re.search(pattern, line) for pattern in tolerated) for line in lines):
            return new.splitlines()
        return []
