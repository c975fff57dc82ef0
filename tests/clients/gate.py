"""Holds a client's tool until the test has done what it wants to do meanwhile."""

import os
import time
from collections.abc import Callable
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
        # Opening a pipe for writing waits for who reads it.
        return OpenGate(os.open(self._path, os.O_WRONLY))


class OpenGate:
    def __init__(self, pipe: int) -> None:
        self._pipe = pipe

    def open(self, output: str) -> None:
        """Let the tool end, with this as its output."""
        os.write(self._pipe, output.encode())
        os.close(self._pipe)


def wait_until(holds: Callable[[], bool]) -> None:
    """Return as soon as something holds."""
    end = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end, "it does not come true"
        time.sleep(_LOOK_S)
