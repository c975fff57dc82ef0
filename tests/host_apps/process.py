"""uvicorn with one wrapped third-party app, in the app's own environment."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests.host_apps.matrix import App
from tests.servers import process
from tests.servers.client import PATIENCE_S, Client
from tests.servers.process import ROOT

PATH: Final = "/v1/responses"


class Server(process.Server):
    """A running server; a context manager.

    Args:
        app: What it serves.
        folder: Where its log is written.
        python: The interpreter of its environment.

    Attributes:
        app: As given.
    """

    def __init__(self, app: App, folder: Path, python: str) -> None:
        super().__init__("uvicorn-sansio", folder)
        self._folder = folder
        self.app = app
        self._python = python

    def _start(self, fd: int) -> "subprocess.Popen[bytes]":
        chat = {"OPENAI_BASE_URL_INTERNAL": f"http://127.0.0.1:{self.port}/chat", "OPENAI_API_KEY": "none"}
        wrapped = {"HOST_APP": self.app.name, "INNER_PATH": self.app.path}
        with self._log.open("wb") as output:
            return subprocess.Popen(
                [self._python, "-m", "uvicorn", "--fd", str(fd), "--no-access-log", "tests.host_apps.harness:app"],
                cwd=self._folder,  # some write logs where they run
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(fd,),
                env={**os.environ, **chat, **wrapped, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
            )

    def connect(self, name: str = "replay", **options: Any) -> Client:
        """Open a socket of the app in a history mode."""
        return Client(self.port, PATH, headers=[("x-app", name)], **options)

    @contextmanager
    def request(self, body: bytes) -> Iterator[socket.socket]:
        """Send a create request over HTTP, give the connection, and reset it at the end."""
        head = f"POST {self.app.path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            yield connection
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
