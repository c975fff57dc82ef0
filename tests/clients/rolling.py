"""`python -m ws_responses serve` with two workers, in front of an app under `Server`; to be restarted while clients are in a loop."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from types import TracebackType
from typing import Literal, Self

import psutil

from tests.worker_processes import connections_of, workers_of

from .gate import wait_until
from .programs import TIMEOUT_S

How = Literal["restart", "crash"]


class Workers:
    """Two workers.

    Args:
        upstream: Base URL of what they ask.
        store: Where they keep chains.
    """

    def __init__(self, upstream: str, store: str) -> None:
        self._command = [sys.executable, "-m", "ws_responses", "serve", "--upstream", upstream, "--port", "0"]
        self._command += ["--workers", "2", "--store", store, "--durable", "--grace", "10"]

    def __enter__(self) -> Self:
        self._log = tempfile.TemporaryFile("w+")
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        # Ends a read that would wait for ever.
        watchdog = threading.Timer(TIMEOUT_S, self._process.kill)
        watchdog.start()
        assert self._process.stdout is not None
        report = ""
        while "websocat" not in report:
            line = self._process.stdout.readline()
            assert line, self.log
            report += line
        watchdog.cancel()
        found = re.search(r"^  HTTP +(http://127\.0\.0\.1:(\d+)/v1)", report, re.MULTILINE)
        assert found is not None
        self.base_url = found[1]
        self._port = int(found[2])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(TIMEOUT_S)
        finally:
            self._process.kill()
            assert self._process.stdout is not None
            self._process.stdout.close()
            log = self.log
            self._log.close()
        if error is not None:
            error.add_note(f"The workers' log:\n{log}")
            return
        assert code == 0
        assert "Traceback" not in log, log

    @property
    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def disturb(self, how: How) -> None:
        """Restart all workers, one after the other; or kill the one that holds a client's socket, and wait until it is replaced."""
        old = set(workers_of(self._process.pid))
        if how == "restart":
            self._process.send_signal(signal.SIGHUP)
            wait_until(lambda: not old & self._now())
        else:
            os.kill(self._holder(), signal.SIGKILL)
            wait_until(lambda: self._now() != old)
        wait_until(lambda: len(self._now()) == 2)

    def _now(self) -> set[int]:
        return set(workers_of(self._process.pid))

    def _holder(self) -> int:
        for worker in self._now():
            for each in connections_of(worker):
                if each.laddr.port == self._port and each.status == psutil.CONN_ESTABLISHED:
                    return worker
        raise AssertionError("no worker holds a socket")
