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
KEY: Final = "sk-5b0d4d2fd0a64f3c9a3bb1f2ce4c7d18"
"""The one that LiteLLM asks for; it starts with no weak one. The others ask for none."""


class Server(process.Server):
    """A running server; a context manager.

    Args:
        app: What it serves.
        folder: Where its log is written.
        python: The interpreter of its environment.

    Attributes:
        app: As given.
    """

    start_s = 120.0
    """The first start compiles what it imports, thousands of modules of some."""

    def __init__(self, app: App, folder: Path, python: str) -> None:
        super().__init__("uvicorn-sansio", folder)
        self._folder = folder
        self.app = app
        self._python = python

    def _start(self, fd: int) -> "subprocess.Popen[bytes]":
        wrapped = {"HOST_APP": self.app.name, "INNER_PATH": self.app.path, "LITELLM_MASTER_KEY": KEY}
        # What it compiles is kept for the next start, whatever is asked of the tests themselves.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        with self._log.open("wb") as output:
            return subprocess.Popen(
                [self._python, "-m", "uvicorn", "--fd", str(fd), "--no-access-log", "tests.host_apps.harness:app"],
                cwd=self._folder,  # some write logs where they run
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(fd,),
                env={**kept, **wrapped, "PYTHONUNBUFFERED": "1", "PYTHONPATH": str(ROOT)},
            )

    def connect(self, name: str = "replay", **options: Any) -> Client:
        """Open a socket of the app in a history mode."""
        return Client(self.port, PATH, key=KEY, headers=[("x-app", name)], **options)

    @contextmanager
    def request(self, body: bytes) -> Iterator[socket.socket]:
        """Send a create request over HTTP, give the connection, and reset it at the end."""
        head = (
            f"POST {self.app.path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {KEY}\r\n"
            "content-type: application/json\r\n"
        )
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as connection:
            connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            yield connection
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
