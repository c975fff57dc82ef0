"""Runs the Codex CLI against a server."""

import itertools
import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import programs
from .programs import MODULES, TIMEOUT_S, kill

BINARY = MODULES / ".bin" / "codex"

# `danger-full-access`: the only command it is told to run is the scripted model's `echo`, and a sandbox would need
# rights that a CI container does not have. `supports_websockets` is off for custom providers unless it is said.
_CONFIG = """\
model = "fake-model"
model_provider = "under-test"
approval_policy = "never"
sandbox_mode = "danger-full-access"
check_for_update_on_startup = false

[analytics]
enabled = false

[model_providers.under-test]
name = "Under test"
base_url = "{base_url}"
wire_api = "responses"
env_key = "UNDER_TEST_KEY"
supports_websockets = true
request_max_retries = 0
stream_max_retries = {retries}
"""


class Codex:
    """The `codex` command with a fresh configuration.

    Args:
        home: A folder for its configuration and state; it is also where commands run.
        base_url: The server, without `/responses`.
        key: The bearer key that it sends.
        retries: How often it tries a turn again. It opens a socket anew without counting when that was closed between turns.
    """

    def __init__(self, home: Path, base_url: str, key: str = "k", *, retries: int = 0) -> None:
        self.home = home
        home.mkdir()
        (home / "config.toml").write_text(_CONFIG.format(base_url=base_url, retries=retries), encoding="utf-8")
        self.env = programs.environment(home, CODEX_HOME=str(home), UNDER_TEST_KEY=key)

    def start(self, *arguments: str, **streams: Any) -> subprocess.Popen[str]:
        return programs.start((BINARY, *arguments), home=self.home, env=self.env, **streams)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return programs.run((BINARY, *arguments), home=self.home, env=self.env)

    def exec(self, prompt: str) -> subprocess.CompletedProcess[str]:
        return self.run("exec", "--skip-git-repo-check", prompt)


class AppServer:
    """`codex app-server`: one process, driven by JSON-RPC on its standard streams, that takes several user turns."""

    def __init__(self, codex: Codex) -> None:
        self._codex = codex
        self._ids = itertools.count(1)
        self._unread: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = self._codex.start("app-server", stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL)
        # Ends a read that would wait for ever: the pipe closes with the process.
        self._watchdog = threading.Timer(TIMEOUT_S, kill, [self._process])
        self._watchdog.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._watchdog.cancel()
        kill(self._process)
        with self._process:  # closes the pipes
            pass

    def start_thread(self) -> str:
        self._call("initialize", clientInfo={"name": "tests", "title": "tests", "version": "0"})
        self._write({"method": "initialized"})
        thread: str = self._call("thread/start", cwd=str(self._codex.home))["thread"]["id"]
        return thread

    def turn(self, thread: str, text: str) -> tuple[str, list[str]]:
        """Takes one user turn; gives its status and what the agent said."""
        self._call("turn/start", threadId=thread, input=[{"type": "text", "text": text}])
        said = []
        for message in self._messages():
            params = message.get("params", {})
            if message.get("method") == "item/completed" and params["item"]["type"] == "agentMessage":
                said.append(params["item"]["text"])
            if message.get("method") == "turn/completed":
                return params["turn"]["status"], said
        raise AssertionError("codex app-server ended within a turn")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._write({"id": number, "method": method, "params": params})
        for message in self._lines():
            if message.get("id") == number and "method" not in message:
                assert "result" in message, message
                result: dict[str, Any] = message["result"]
                return result
            self._unread.append(message)
        raise AssertionError(f"codex app-server ended before it answered {method}")

    def _messages(self) -> Iterator[dict[str, Any]]:
        while self._unread:
            yield self._unread.pop(0)
        yield from self._lines()

    def _lines(self) -> Iterator[dict[str, Any]]:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            yield json.loads(line)

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message) + "\n")
        self._process.stdin.flush()
