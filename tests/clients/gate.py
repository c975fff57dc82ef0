"""Holds a client's tool until the test has done what it wants to do meanwhile."""

import os
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

WAIT_S = 20
_LOOK_S = 0.02


class Gate:
    """A pipe at which the tool of `recovery_app` waits.

    Args:
        folder: Where the client runs its tools.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "gate"
        os.mkfifo(self._path)

    def reached(self) -> "OpenGate":
        """Return when the tool waits."""
        # Opening a pipe for writing waits for who reads it. The next call gets another pipe: this one has a reader until it ends.
        pipe = os.open(self._path, os.O_WRONLY)
        self._path.unlink()
        os.mkfifo(self._path)
        return OpenGate(pipe)


class OpenGate:
    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def open(self, output: str) -> None:
        """Let the tool end, with this as its output."""
        os.write(self._pipe, output.encode())
        os.close(self._pipe)


def run_held(
    run: Callable[[], subprocess.CompletedProcess[str]],
    gate: Gate,
    *,
    meanwhile: Callable[[], object] = lambda: None,
    output: str,
    tools: int = 1,
) -> subprocess.CompletedProcess[str]:
    """Run a client, and do something while its first tool runs.

    Args:
        run: Runs it to its end.
        gate: Where its tools wait.
        meanwhile: What is done.
        output: What each tool gives.
        tools: How many it runs.
    """
    with ThreadPoolExecutor(1) as threads:
        running = threads.submit(run)
        tool = gate.reached()
        meanwhile()
        tool.open(output)
        for _ in range(1, tools):
            gate.reached().open(output)
        return running.result()


def wait_until(holds: Callable[[], bool]) -> None:
    """Return as soon as something holds."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(_LOOK_S)
