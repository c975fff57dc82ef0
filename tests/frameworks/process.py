"""uvicorn in a process of its own, with the apps of one framework."""

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, Self

from tests.frameworks.matrix import cell
from tests.frameworks.source import PATH
from tests.servers import process
from tests.servers.client import PATIENCE_S, Client
from tests.servers.process import ROOT

HARNESS: Final = "tests.frameworks.harness:app"


class Server(process.Server):
    """A running server; a context manager.

    Args:
        framework: What it serves.
        folder: Where its log is written.
        app: Where uvicorn finds the app: `module:name`.
        python: The interpreter, for what is installed elsewhere.
        env: Further environment variables.

    Attributes:
        framework: As given.
        tasks: The number of tasks of each kind in the process when it began.
    """

    def __init__(
        self,
        framework: str,
        folder: Path,
        *,
        app: str = HARNESS,
        python: str = sys.executable,
        env: dict[str, str] | None = None,
    ) -> None:
        super().__init__("uvicorn-sansio", folder)
        self.framework = framework
        self._app = app
        self._python = python
        self._env = {"FRAMEWORK": framework, **(env or {})}

    def __enter__(self) -> Self:
        super().__enter__()
        self.tasks = self.ask("tasks")
        return self

    def _start(self, fd: int) -> "subprocess.Popen[bytes]":
        with self._log.open("wb") as output:
            return subprocess.Popen(
                [self._python, "-m", "uvicorn", "--fd", str(fd), "--no-access-log", self._app],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=(fd,),
                env={**os.environ, "PYTHONUNBUFFERED": "1", **self._env},
            )

    def connect(self, name: str = "none", **options: Any) -> Client:
        """Open a socket of the app of this name (`harness.py`); `path` is that of the route."""
        options["headers"] = [("x-app", name), *options.get("headers", ())]
        return Client(self.port, options.pop("path", PATH), **options)

    def shows(self, row: str, observed: object) -> None:
        """Hold what was seen against the table of the support page."""
        expected = cell(row, self.framework)
        assert str(observed) in expected.split(" or "), (
            f"{self.framework}, {row}: {observed!s} was seen, the page says {expected}"
        )

    def post(
        self, body: dict[str, Any], name: str = "none", path: str = PATH, **headers: str
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Send a create request over HTTP; return status, headers and body of the answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            text = json.dumps({"model": "m", "input": "hi", **body})
            connection.request("POST", path, text, {"content-type": "application/json", "x-app": name, **headers})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()
