"""Runs the clients' programs: in a home of their own, with no environment but what they need, no network but this machine,
and for a bounded time.
"""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HERE = Path(__file__).parent
MODULES = HERE / "node_modules"
TIMEOUT_S = 50

# Nobody listens there, and nobody without root may: who heeds a proxy gets nowhere.
_NOWHERE = "http://127.0.0.1:1"
_LOOPBACK_ONLY = HERE / "loopback_only.mjs"

Command = Sequence[str | Path]


def installed(package: str) -> bool:
    """Whether setup.sh has installed a package of npm."""
    return (MODULES / package / "package.json").exists()


def environment(home: Path, **values: str) -> dict[str, str]:
    """The environment of a program: nothing of the caller's, so no proxies and no real keys."""
    proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), _NOWHERE)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "NO_COLOR": "1",
        "NODE_OPTIONS": f"--import={_LOOPBACK_ONLY.as_uri()}",
        **proxies,
        "NO_PROXY": "127.0.0.1,localhost",
        "no_proxy": "127.0.0.1,localhost",
        **values,
    }


def start(command: Command, *, home: Path, env: dict[str, str], **streams: Any) -> subprocess.Popen[str]:
    # A session of its own: a launcher starts the real program, and both must end (see `kill`).
    return subprocess.Popen(command, cwd=home, env=env, text=True, start_new_session=True, **streams)


def kill(process: subprocess.Popen[str]) -> None:
    """End a program and what it has started: they are a process group."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def run(command: Command, *, home: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without input."""
    pipe = subprocess.PIPE
    with start(command, home=home, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe) as process:
        try:
            output, errors = process.communicate(timeout=TIMEOUT_S)
        except BaseException:
            kill(process)
            raise
    _check_stayed_here(errors)
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


class Script:
    """A script of this folder for Node, which prints lines of JSON and may wait for lines of input.

    Args:
        name: Its file.
        arguments: What it is given.
        home: A new folder for it.
    """

    def __init__(self, name: str | Path, *arguments: str, home: Path) -> None:
        self._command: Command = ("node", HERE / name, *arguments)
        self._home = home
        self._errors = home / "stderr.log"

    def __enter__(self) -> Self:
        self._home.mkdir()
        pipe = subprocess.PIPE
        with self._errors.open("w") as errors:
            self._process = start(
                self._command, home=self._home, env=environment(self._home), stdin=pipe, stdout=pipe, stderr=errors
            )
        # Ends a read that would wait for ever: the pipe closes with the process.
        self._watchdog = threading.Timer(TIMEOUT_S, kill, [self._process])
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        kill(self._process)
        with self._process:  # closes the pipes
            self._watchdog.cancel()
        if error is not None:
            error.add_note(f"The script's standard error stream:\n{self.errors}")
            return
        _check_stayed_here(self.errors)

    @property
    def errors(self) -> str:
        return self._errors.read_text(encoding="utf-8")

    def read(self) -> Any:
        """The next line that it prints."""
        for line in self.lines():
            return line
        raise AssertionError("the script has ended")

    def lines(self) -> Iterator[Any]:
        """All that it prints from here to its end, which must be a good one."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)
        assert self._process.wait() == 0, self.errors

    def go_on(self) -> None:
        """Let it go on where it waits for a line of input."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()


def _check_stayed_here(errors: str) -> None:
    assert "loopback only: " not in errors, errors
