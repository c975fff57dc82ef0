"""`python -m ws_responses chat` as it is run: by a script, and at a terminal."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.conftest import require
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.chat import command
from ws_responses.testing import ScriptedApp, steps

require("websockets")
require("uvicorn")

from tests.adapters.proxy_servers import running  # noqa: E402

PATIENCE_S = 30.0


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def served() -> AsyncIterator[tuple[ScriptedApp, str]]:
    app = ScriptedApp(listen=True, timeout=PATIENCE_S)
    async with running(ResponsesWebSocketMiddleware(app)) as url:
        yield app, url


@asynccontextmanager
async def chat(
    *arguments: str, stdin: int = PIPE, stdout: int = PIPE, stderr: int = PIPE
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start the command; kill it, if it has not ended by then."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("WS_RESPONSES_")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "ws_responses", "chat", *arguments),
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=inherited | {"WS_RESPONSES_API_KEY": "key-1", "TERM": "dumb", "LC_ALL": "C", "PYTHONUTF8": "0"},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def talk(process: asyncio.subprocess.Process, lines: str = "") -> tuple[str, str]:
    """Type the lines and the end of the input; return what was written to both outputs."""
    with anyio.fail_after(PATIENCE_S):
        out, err = await process.communicate(lines.encode())
    return (out or b"").decode(errors="replace"), err.decode(errors="replace")


async def test_a_script_pipes_lines_in_and_reads_answers(served: tuple[ScriptedApp, str]) -> None:
    """Without this it could only be used by hand."""
    app, url = served
    app.script([steps.text("Hello.")], [steps.text("Ünïcode.")])
    fields = ("--model", "m", "--instructions", "Be short.", "--field", "temperature=0.5", "--field", 'user="u"')
    async with chat(url, *fields) as process:
        out, err = await talk(process, "hi\nmore")

    assert process.returncode == 0, err
    assert out.splitlines()[0] == "Hello."
    assert len(out.splitlines()) == 2  # a terminal that knows no umlauts is no reason to fail
    body = app.requests[0].body
    assert {name: body[name] for name in ("model", "instructions", "temperature", "user")} == {
        "model": "m",
        "instructions": "Be short.",
        "temperature": 0.5,
        "user": "u",
    }
    assert app.requests[0].header(b"authorization") == b"Bearer key-1"
    assert len(app.requests[1].input) == 3


async def test_a_script_reads_an_answer_of_any_length(served: tuple[ScriptedApp, str]) -> None:
    """Without this a script might hang on an answer that is longer than what the socket and the pipes between take at once."""
    app, url = served
    app.script(*[[steps.text("abcdefgh" * 1000, deltas=1000)]] * 2)
    async with chat(url) as process:
        out, err = await talk(process, "go on\n" * 2)

    assert process.returncode == 0, err
    assert out.split() == ["abcdefgh" * 1000] * 2


async def test_ctrl_c_ends_a_script(served: tuple[ScriptedApp, str]) -> None:
    """Without this a script could only be killed, and its turn would go on."""
    app, url = served
    app.script([steps.text("one", finish=False), steps.stall()])
    async with chat(url) as process:
        assert process.stdin is not None
        process.stdin.write(b"hi\n")
        await app.wait_events(3)
        process.send_signal(signal.SIGINT)
        _, err = await talk(process)
        await app.wait_idle()

    assert process.returncode == 130
    assert "Traceback" not in err
    assert [request.outcome for request in app.requests] == ["disconnected"]


async def test_a_reader_that_leaves_is_no_traceback(served: tuple[ScriptedApp, str]) -> None:
    """Without this `chat ... | head -1` would end in a page of text."""
    _, url = served
    reading, writing = os.pipe()
    os.close(reading)
    async with chat(url, stdout=writing) as process:
        os.close(writing)
        _, err = await talk(process, "hi\n")

    assert process.returncode == 1
    assert "Traceback" not in err
    assert "Broken" not in err


class Terminal:
    """The other end of a terminal: what its user sees and types."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._seen = ""
        os.set_blocking(fd, False)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    async def see(self, text: str) -> None:
        """Wait until this is shown, after what was seen before."""
        with anyio.fail_after(PATIENCE_S):
            while text not in self._seen:
                await anyio.wait_readable(self._fd)
                self._seen += os.read(self._fd, 1 << 16).decode(errors="replace")
        self._seen = self._seen.partition(text)[2]


async def test_at_a_terminal_ctrl_c_stops_an_answer_and_the_chain_goes_on(served: tuple[ScriptedApp, str]) -> None:
    """Without this a long answer could only be stopped together with the conversation."""
    app, url = served
    app.script([steps.text("First.")], [steps.text("Second", finish=False), steps.stall()], [steps.text("Third.")])
    user, tty = os.openpty()
    try:
        async with chat(url, stdin=tty, stdout=tty, stderr=tty) as process:
            terminal = Terminal(user)
            await terminal.see("> ")
            terminal.type("one\n")
            await terminal.see("First.")
            await terminal.see("> ")
            terminal.type("two\n")
            await terminal.see("Second")
            process.send_signal(signal.SIGINT)
            await terminal.see("[stopped]")
            await terminal.see("> ")
            terminal.type("three\n")
            await terminal.see("Third.")
            await terminal.see("> ")
            process.send_signal(signal.SIGINT)  # at the prompt it does nothing
            terminal.type("\n/quit\n")
            with anyio.fail_after(PATIENCE_S):
                assert await process.wait() == 0
    finally:
        os.close(user)
        os.close(tty)
    await app.wait_idle()

    assert [request.outcome for request in app.requests] == ["finished", "disconnected", "finished"]
    said = [item["content"] for item in app.requests[2].input if item.get("role") == "user"]
    assert said == ["one", "three"]


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://h:1/v1", "ws://h:1/v1/responses"),
        ("https://h/v1/", "wss://h/v1/responses"),
        ("ws://h:1/v1/responses", "ws://h:1/v1/responses"),
        ("wss://h/codex/responses?x=1", "wss://h/codex/responses?x=1"),
        ("http://[::1]:8080/v1", "ws://[::1]:8080/v1/responses"),
    ],
)
def test_a_base_url_and_the_url_of_the_socket_mean_the_same(url: str, expected: str) -> None:
    """Without this the URL that works for an SDK would not work here."""
    assert command.socket_url(url) == expected


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: URL"),
        (["localhost:8080"], "the URL must be like http://host:8080/v1"),
        (["ftp://h/v1"], "the URL must be like http://host:8080/v1"),
        (["http://[::1/v1"], "the URL must be like http://host:8080/v1"),
        (["http://h/v1", "--field", "store"], "--field takes NAME=JSON (a text in quotation marks), not 'store'"),
        (["http://h/v1", "--field", "user=me"], "--field takes NAME=JSON (a text in quotation marks), not 'user=me'"),
        (["http://h/v1", "--field", "=1"], "--field takes NAME=JSON"),
        (["http://h/v1", "--timeout", "0"], "must be a number of seconds above 0, not '0'"),
        (["https://h/v1", "--ca", "/nowhere.pem"], "--ca /nowhere.pem: No such file"),
        (["http://h/v1", "extra"], "unrecognized arguments: extra"),
    ],
)
def test_what_cannot_be_followed_is_one_clear_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without this a mistake would end in a traceback."""
    assert command.main(arguments) == 2

    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("chat: ")
    assert text in first
    assert second == "chat: python -m ws_responses chat --help shows all options"


def test_without_websockets_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this a plain installation would answer `chat` by a traceback."""
    monkeypatch.setattr("ws_responses.chat.command.find_spec", lambda name: None)

    assert command.main(["http://h/v1"]) == 2
    assert "needs the package websockets: pip install 'ws-responses[serve]'" in capsys.readouterr().err
