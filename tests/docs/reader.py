"""Does what a page says, as a new user does it: from an empty folder, by the page alone.

What the reader does stands in the page itself, so that page and test cannot part:

- code below a paragraph with "Save this as `name`" is written to that file;
- a block that is set in is typed into the terminal, line by line; a line that starts a server leaves it running there;
- "second terminal" in the paragraph above a block opens another one, which knows nothing of the first;
- below a paragraph with "prints", it is what the last command must have printed.

``ws-responses`` comes from the built wheel in place of a package index, and ports are free ones in place of those of the page.
"""

import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tests.distributions import clean_environment

_SERVERS: Final = re.compile(r"\buvicorn \w+:|\bws_responses serve\b")
_BLOCK: Final = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$|((?:^    [^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_SAVED: Final = re.compile(r"Save this as `([^`]+)`")
_LISTENS: Final = re.compile(r"Uvicorn running on|websocat")
_STATE: Final = (". ", "cd ", "export ")
_READY_S: Final = 60
_COMMAND_S: Final = 240


@dataclass(frozen=True)
class Step:
    """Something that a page says.

    Attributes:
        above: The paragraph above it.
        text: What stands in the block.
        language: That of a fenced block; None for one that is set in.
    """

    above: str
    text: str
    language: str | None


def steps(page: Path, sections: Sequence[str] | None = None) -> Iterator[Step]:
    """The blocks of a page, in order; only those of some sections, if they are named ("" is what stands above the first)."""
    for part in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
        title = "" if part.startswith("# ") else part.partition("\n")[0]
        if sections is not None and title not in sections:
            continue
        end = 0
        for block in _BLOCK.finditer(part):
            above = part[end : block.start()].strip().rpartition("\n\n")[2]
            language, code, set_in = block.groups()
            text = code if set_in is None else re.sub(r"^    ", "", set_in, flags=re.MULTILINE)
            yield Step(above.replace("\n", " "), text, None if set_in else language)
            end = block.end()


@dataclass
class Reader:
    """Somebody who follows a page.

    Args:
        folder: Empty.
        wheel: What is installed as ``ws-responses``.
        ports: Free ports in place of those that the page names.
        env: Further variables.
        home: Where ``~`` is.

    Attributes:
        printed: What the last command printed.
        log: What the servers printed.
        done: What was typed.
    """

    folder: Path
    wheel: Path
    ports: Mapping[int, int]
    home: Path
    env: dict[str, str] = field(default_factory=dict[str, str])
    printed: str = ""
    log: str = ""
    done: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        constraint = self.folder.parent / f"{self.folder.name}-constraint.txt"
        constraint.write_text(f"ws-responses=={self.wheel.name.split('-')[1]}\n", encoding="utf-8")
        pip = {"PIP_CONSTRAINT": str(constraint), "PIP_FIND_LINKS": str(self.wheel.parent), "PIP_QUIET": "1"}
        self.env = clean_environment(**pip, PIP_DISABLE_PIP_VERSION_CHECK="1", PYTHONUNBUFFERED="1") | self.env
        self._terminal: list[str] = []
        self._servers: list[subprocess.Popen[str]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for server in self._servers:
            _end(server)
        if error is not None:
            error.add_note(f"The servers' log:\n{self.log}")

    def follow(self, page: Path, sections: Sequence[str] | None = None) -> None:
        """Do what the page says."""
        for step in steps(page, sections):
            saved = _SAVED.search(step.above)
            if saved is not None:
                self._save(saved[1], step.text)
            elif step.language in (None, "sh"):
                self._type(step)

    def _save(self, name: str, text: str) -> None:
        file = self.home / name[2:] if name.startswith("~/") else self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        kept = file.read_text(encoding="utf-8") if file.exists() else ""
        file.write_text(kept + self._with_ports(text), encoding="utf-8")

    def _type(self, step: Step) -> None:
        if "prints" in step.above:
            seen = self.printed + self.log
            missing = [line for line in self._with_ports(step.text).splitlines() if line.strip() not in seen]
            assert not missing, f"the page promises {missing}, but this was printed:\n{seen}"
            return
        if "second terminal" in step.above:
            self._terminal = []
        for line in self._with_ports(step.text).splitlines():
            self.done.append(line)
            if line.startswith(_STATE):
                self._terminal.append(line)
            elif _SERVERS.search(line):
                self._serve(line)
            else:
                self._run(line)

    def _with_ports(self, text: str) -> str:
        for named, free in self.ports.items():
            text = re.sub(rf"(?<=:){named}\b", str(free), text)
        return text

    def _shell(self, line: str) -> list[str]:
        return ["bash", "-e", "-c", "\n".join([*self._terminal, line])]

    def _run(self, line: str) -> None:
        run = subprocess.run(
            self._shell(line),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
        )
        self.printed = run.stdout
        assert run.returncode == 0, f"{line}\n{run.stdout}\n{run.stderr}"

    def _serve(self, line: str) -> None:
        port = self.ports[8080 if "ws_responses serve" in line else 8000]
        server = subprocess.Popen(
            self._shell(f"{line} --port {port}"),
            cwd=self.folder,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._servers.append(server)
        listens = threading.Event()
        threading.Thread(target=self._watch, args=(server, listens)).start()
        assert listens.wait(_READY_S), f"it does not serve: {line}\n{self.log}"
        assert server.poll() is None, f"it ended with {server.returncode}: {line}\n{self.log}"

    def _watch(self, server: "subprocess.Popen[str]", listens: threading.Event) -> None:
        assert server.stdout is not None
        with server.stdout:
            for line in server.stdout:
                self.log += line
                if _LISTENS.search(line):
                    listens.set()
        listens.set()  # not any more


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def _end(server: subprocess.Popen[str]) -> None:
    if server.poll() is None:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
