"""Runs an app under uvicorn in a process of its own, as its users would, with a recorder at the door."""

import http.client
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from . import recorder

ROOT = Path(__file__).parents[2]
READY_S = 30
STOP_S = 15

# What no server may log in these tests, whatever the client got.
_COMPLAINTS = ("ERROR", "CRITICAL", "Traceback (most recent call last)", "Exception ignored", "was never awaited")


class Server:
    """A running app. `base_url` is what clients are given, `recording` what they did.

    Args:
        app: Where uvicorn finds the app: `module:name`.
        folder: Where the log and the recording are written.
        env: Environment variables for the app.
        restarts: `restart` will be called. Who connects to a server that has failed then waits for the next one, in vain.
    """

    def __init__(self, app: str, folder: Path, *, env: dict[str, str] | None = None, restarts: bool = False) -> None:
        self._app = app
        self._env = env or {}
        self._restarts = restarts
        self._output = folder / "server.log"
        self._log = folder / "recording.jsonl"
        self.recording = recorder.Recording(self._log)
        self.port = 0

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8")

    def __enter__(self) -> Self:
        # The socket listens before the process runs and is handed over: the port is free for certain, and the first
        # connection waits in the backlog for as long as the start takes. So nothing has to be polled.
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Connections inherit it: the loop does not know that a socket handed down is a TCP one, and would not set it.
        self._listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port = self._listener.getsockname()[1]
        self._process = self._start()
        if not self._restarts:
            self._listener.close()
        try:
            self._wait_until_ready()
        except BaseException:
            self._end()
            self._listener.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()
        self._listener.close()
        if error is not None:
            error.add_note(f"The server's log:\n{self.output}")
            return
        assert not self._complaints(), f"The server complained:\n{self.output}"
        assert self._process.returncode in {0, -signal.SIGTERM}, f"exit status {self._process.returncode}"

    def restart(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End the process and start another one on the same port; who connects meanwhile waits until it is there."""
        self._process.send_signal(how)
        self._process.wait(STOP_S)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        listener = self._listener.fileno()
        command = [sys.executable, "-m", "uvicorn", "--fd", str(listener), "--timeout-graceful-shutdown", "5"]
        env = {**os.environ, **self._env, recorder.APP: self._app, recorder.LOG: str(self._log)}
        with self._output.open("ab") as output:
            return subprocess.Popen(
                [*command, "tests.clients.recorder:app"],
                cwd=ROOT,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[listener],
            )

    def _wait_until_ready(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=READY_S)
        try:
            connection.request("HEAD", "/")
            connection.getresponse()
        except OSError as error:
            error.add_note(f"The server did not start:\n{self.output}")
            raise
        finally:
            connection.close()

    def _complaints(self) -> list[str]:
        return [line for line in self.output.splitlines() if any(word in line for word in _COMPLAINTS)]

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
