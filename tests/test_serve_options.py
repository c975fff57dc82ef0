"""The command line of `serve`: what it makes of it, and what it says to what it cannot follow."""

import argparse
import importlib.util
import inspect
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.chat.command import chat_parser
from ws_responses.command_line import UsageError
from ws_responses.serve import arguments, command, sidecar
from ws_responses.serve.chains import describe
from ws_responses.serve.channel import receive_options, send_options
from ws_responses.serve.options import ServeOptions, parse

UPSTREAM = ("--upstream", "http://localhost:8000/v1")


def parsed(*arguments: str, **environment: str) -> ServeOptions:
    return parse([*UPSTREAM, *arguments], environment)


def test_without_a_word_it_serves_this_machine_only() -> None:
    """Without this a first try could open a model to the world."""
    options = parsed()

    assert (options.listen.host, options.listen.port, options.listen.keys) == ("127.0.0.1", 8080, ())
    assert options.listen.open is False
    assert options.source.upstream == UPSTREAM[1]
    assert options.mode.paths == ("/v1/responses",)
    assert options.mode.limits == Limits(age_grace_s=30.0)


def test_keys_come_from_the_environment_so_that_ps_does_not_show_them() -> None:
    """Without this every user of the machine could read the keys."""
    assert parsed(WS_RESPONSES_API_KEY="one, two,,one").listen.keys == ("one", "two")
    assert parsed("--api-key", "three", "--api-key", "four", WS_RESPONSES_API_KEY="one").listen.keys == (
        "three",
        "four",
    )
    assert parsed(WS_RESPONSES_API_KEY=" ").listen.keys == ()
    assert parsed(WS_RESPONSES_UPSTREAM_API_KEY="up").source.api_key == "up"
    assert parsed("--upstream-api-key", "other", WS_RESPONSES_UPSTREAM_API_KEY="up").source.api_key == "other"


def test_limits_are_named_as_in_the_reference() -> None:
    """Without this a bound could not be changed without writing Python."""
    options = parsed(
        *("--limit", "max_frame_bytes=1000", "--limit", "idle_timeout_s=none", "--limit", "event_timeout_s=1.5"),
        *("--max-connections", "7", "--grace", "5", "--upstream-timeout", "900"),
    )

    assert options.source.timeout_s == 900
    assert options.mode.limits == Limits(
        max_frame_bytes=1000,
        idle_timeout_s=None,
        first_event_timeout_s=900.0,
        event_timeout_s=1.5,
        max_connections=7,
        age_grace_s=5.0,
    )


def test_several_workers_share_a_store_or_are_told_that_they_do_not() -> None:
    """Without this every other reconnect would find nothing of its own, and nobody would know why."""
    alone = parsed()
    shared = parsed("--workers", "3", "--store-fails", "closed", "--durable", WS_RESPONSES_STORE="redis://:pw@host:1/2")
    each = parsed("--workers", "3", "--store", "memory", WS_RESPONSES_STORE="redis://host")

    assert (alone.workers, alone.chains.store, describe(alone.chains, 1)) == (1, None, None)
    assert (shared.workers, shared.chains.store) == (3, "redis://:pw@host:1/2")
    assert (shared.chains.fails_closed, shared.chains.durable) == (True, True)
    assert describe(shared.chains, 3) == "in Redis at host:1"
    assert each.chains.store is None
    assert describe(each.chains, 3) == "in the memory of each worker: no other one knows them"


def test_the_key_of_tenants_is_drawn_unless_it_is_given() -> None:
    """Without this hosts could not agree on one, or a default would let anybody reckon whose chains are whose."""
    first, second = parsed(), parsed()
    given = [parsed(WS_RESPONSES_TENANT_KEY="0123456789abcdef").chains for _ in range(2)]

    assert first.chains.tenant_key != second.chains.tenant_key
    assert given[0] == given[1]
    assert given[0].tenant_key == b"0123456789abcdef"
    assert len(given[0].compaction_key) == 32
    with pytest.raises(UsageError, match="WS_RESPONSES_TENANT_KEY must have at least 16 characters") as caught:
        parsed(WS_RESPONSES_TENANT_KEY="0123456789")
    assert "0123" not in str(caught.value)


def test_workers_are_told_all_of_the_options() -> None:
    """Without this an option could be lost on the way to a worker, or a new one could not be told at all."""
    options = parsed(
        *("--workers", "2", "--store", "sqlite:f", "--on-disconnect", "1.5", "--limit", "idle_timeout_s=none"),
        *("--allowed-origin", "*", "--api-key", "k", "--upstream-header", "a: b", "--path", "/a", "--path", "/b"),
        *(
            "--steering",
            "interrupt",
            "--prototype",
            "--keepalive",
            "3",
            "--worker-timeout",
            "none",
            "--drop-field",
            "a",
        ),
    )
    ours, theirs = socket.socketpair()
    with ours, theirs:
        send_options(ours, options)
        assert receive_options(theirs) == options
        ours.close()
        with pytest.raises(EOFError):
            receive_options(theirs)


def test_headers_for_the_upstream_keep_their_colons() -> None:
    """Without this a header such as a URL would be cut."""
    options = parsed("--upstream-header", "X-Url: http://a:1", "--upstream-header", "api-key:k")

    assert options.source.headers == {"X-Url": "http://a:1", "api-key": "k"}


PYTHON_ONLY = {
    *(
        "authorize",
        "clock",
        "handshake_headers",
        "hooks",
        "on_close",
        "prepare",
        "quota",
        "router",
        "safety",
        "settlement",
        "tenant",
    ),
    *("age_notice", "enabled", "guard_http", "keep_origin", "renderer", "upstream"),
}
"""Options of the middleware that a command line cannot say (functions and objects), or that `serve` decides by itself."""


def test_what_the_middleware_can_the_command_line_can(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this whoever serves from a shell would look in vain for what stands on the page of options."""
    passed: dict[str, object] = {}

    class Kept(ResponsesWebSocketMiddleware):
        def __init__(self, app: ASGIApp, **options: Any) -> None:
            passed.update(options)
            super().__init__(app, **options)

    monkeypatch.setattr(sidecar, "ResponsesWebSocketMiddleware", Kept)
    command._served(parsed())
    named = {name for name in inspect.signature(ResponsesWebSocketMiddleware).parameters if name != "app"}
    assert named - passed.keys() == PYTHON_ONLY
    asked = ("--drop-field", "a", "--drop-field", "b", "--steering", "interrupt", "--prototype", "--accept-cancel")
    command._served(parsed(*asked, "--accept-wrapped", "--keepalive", "5"))
    assert (passed["drop_fields"], passed["steering"], passed["prototype"]) == (("a", "b"), "interrupt", True)
    assert (passed["accept_cancel"], passed["accept_wrapped"], passed["keepalive_s"]) == (True, True, 5.0)
    command._served(parsed("--profile", "open-responses"))
    assert passed["profile"] == "open-responses"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "one of the arguments --upstream --backend is required"),
        ([*UPSTREAM, "--backend", "chat"], "not allowed with"),
        (["--backend", "openai"], "invalid choice: 'openai'"),
        ([*UPSTREAM, "--model", "m"], "--model goes with --backend only"),
        ([*UPSTREAM, "--renderer", "chat"], "--renderer goes with --backend only"),
        (["--backend", "scripted", "--upstream-header", "a: b"], "--upstream-header goes with --upstream only"),
        (["--backend", "scripted", "--history", "forward"], "--history goes with --upstream only"),
        (["--backend", "chat", "--renderer", "template"], "--renderer template and --template FILE go together"),
        (["--backend", "scripted", "--steering", "interrupt"], "--steering goes with --upstream only"),
        (["--backend", "scripted", "--drop-field", "a"], "--drop-field goes with --upstream only"),
        (["--backend", "chat", "--template", "f"], "--renderer template and --template FILE go together"),
        ([*UPSTREAM, "--port", "70000"], "--port: must be 0 to 65535, not '70000'"),
        ([*UPSTREAM, "--port", "-1"], "--port"),
        ([*UPSTREAM, "--hist", "replay"], "unrecognized arguments: --hist"),
        ([*UPSTREAM, "--history", "turn"], "invalid choice: 'turn'"),
        ([*UPSTREAM, "--limit", "max_frame_byte=1"], "did you mean max_frame_bytes?"),
        ([*UPSTREAM, "--limit", "zebra=1"], "there is no limit 'zebra'"),
        ([*UPSTREAM, "--limit", "max_lanes"], "--limit takes NAME=VALUE, not 'max_lanes'"),
        ([*UPSTREAM, "--limit", "max_lanes=many"], "the limit max_lanes must be a number or 'none', not 'many'"),
        ([*UPSTREAM, "--limit", "max_lanes=-1"], "max_lanes must be positive"),
        ([*UPSTREAM, "--limit", "max_frame_bytes=none"], "max_frame_bytes must be a number"),
        ([*UPSTREAM, "--max-connections", "0"], "must be a whole number above 0"),
        ([*UPSTREAM, "--grace", "nan"], "must be a number of seconds above 0"),
        ([*UPSTREAM, "--on-disconnect", "soon"], "must be a number of seconds above 0"),
        ([*UPSTREAM, "--open", "--api-key", "k"], "--open and --api-key contradict each other"),
        ([*UPSTREAM, "--ssl-keyfile", "k"], "--ssl-keyfile needs --ssl-certfile"),
        ([*UPSTREAM, "--upstream-header", "x"], "--upstream-header takes 'NAME: VALUE'"),
        ([*UPSTREAM, "--workers", "0"], "--workers: must be a whole number above 0"),
        ([*UPSTREAM, "--workers", "2"], "--workers 2 needs a store"),
        ([*UPSTREAM, "--store", "sqlite:"], "needs the name of a file"),
        ([*UPSTREAM, "--store", "sqlite::memory:"], "needs the name of a file"),
        ([*UPSTREAM, "--store", "chains.db"], "--store takes sqlite:FILE, redis://HOST:PORT/DB"),
        ([*UPSTREAM, "--store-fails", "closed"], "--store-fails goes with --store"),
        ([*UPSTREAM, "--store", "sqlite:f", "--shared-limits"], "--shared-limits goes with --store redis://"),
        ([*UPSTREAM, "--store", "memory", "--durable"], "--durable goes with --store"),
    ],
)
def test_what_cannot_be_followed_is_named(arguments: list[str], text: str) -> None:
    """Without this a person would have to guess what was wrong."""
    with pytest.raises(UsageError) as caught:
        parse(arguments, {})
    assert text in str(caught.value)


def test_open_contradicts_a_key_of_the_environment_too() -> None:
    """Without this a server that was meant to ask for keys would be open, or the other way round."""
    with pytest.raises(UsageError, match="--open and WS_RESPONSES_API_KEY contradict"):
        parsed("--open", WS_RESPONSES_API_KEY="k")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", "secret key"],
        ["--api-key", "secrét"],
        ["--upstream-header", "secret"],
        ["--store", "reddis://:secret@host"],
    ],
)
def test_a_key_that_is_wrong_is_not_repeated(arguments: list[str]) -> None:
    """Without this a typing error would put a key into a log."""
    with pytest.raises(UsageError) as caught:
        parsed(*arguments)
    assert "secr" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([*UPSTREAM, "--host", "0.0.0.0"], "say --open to let everybody in"),
        ([*UPSTREAM, "--host", "::"], "say --open to let everybody in"),
        (["--upstream", "localhost:8000"], "must be like http://host:8000/v1"),
        ([*UPSTREAM, "--path", "v1"], "a path must begin with '/'"),
        ([*UPSTREAM, "--allowed-origin", "example.com"], "https://example.com"),
        ([*UPSTREAM, "--host", "no such host"], "--host no such host: "),
        ([*UPSTREAM, "--ssl-certfile", "/nowhere.pem"], "the certificate or its key cannot be used: No such file"),
        ([*UPSTREAM, "--upstream-ca", "/nowhere.pem"], "--upstream-ca /nowhere.pem: No such file"),
    ],
)
def test_it_refuses_to_start_with_one_clear_line(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this a mistake would end in a traceback, or in a server that should not be there."""
    require("uvicorn")
    require("aiohttp")
    monkeypatch.delenv("WS_RESPONSES_API_KEY", raising=False)

    assert command.main([*arguments, "--port", "0"]) == 2

    captured = capsys.readouterr()
    first, second = captured.err.splitlines()
    assert first.startswith("serve: ")
    assert text in first
    assert second == "serve: python -m ws_responses serve --help shows all options"
    assert captured.out == ""


def test_a_port_in_use_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """Without this a second server would end in a traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert command.main([*UPSTREAM, "--port", str(port)]) == 2

    assert f"cannot listen on 127.0.0.1 port {port}: Address already in use" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named_with_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without this a plain installation would answer `serve` by a traceback."""
    find = importlib.util.find_spec
    monkeypatch.setattr("ws_responses.serve.command.find_spec", lambda name: None if name == "uvicorn" else find(name))

    assert command.main([*UPSTREAM]) == 2
    assert "needs uvicorn: pip install 'ws-responses[serve]'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["serve", "chat"])
def test_help_names_all_options(name: str) -> None:
    """Without this the help could break by a stray percent sign, and only its reader would know."""
    done = subprocess.run(
        [sys.executable, "-m", "ws_responses", name, "--help"], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 0, done.stderr
    assert "--api-key" in done.stdout
    assert f"usage: python -m ws_responses {name}" in done.stdout


@pytest.mark.parametrize(
    ("parser", "heading"), [(arguments.parser(), "## serve"), (chat_parser(), "## chat")], ids=["serve", "chat"]
)
def test_every_option_is_documented_with_its_default(parser: argparse.ArgumentParser, heading: str) -> None:
    """Without this an option could be added that nobody hears of."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    rows = {
        line.split("`")[1].split()[0]: line
        for line in page.partition(heading)[2].partition("\n## ")[0].splitlines()
        if line.startswith("| `--")
    }
    options = [action for action in parser._actions if action.option_strings and action.dest != "help"]

    assert set(rows) >= {action.option_strings[0] for action in options}
    for action in options:
        default = action.default
        if isinstance(default, (str, int, float)) and not isinstance(default, bool) and default != "":
            shown = f"{default:g}" if isinstance(default, float) else default
            assert str(shown) in rows[action.option_strings[0]].split("|")[2]


def test_how_long_a_worker_may_do_nothing_is_said_for_several_only() -> None:
    """Without this somebody with one process would believe that it is replaced when it hangs."""
    several = ("--workers", "2", "--store", "memory")
    assert parsed(*several).worker_timeout_s == 60
    assert parsed(*several, "--worker-timeout", "5").worker_timeout_s == 5
    assert parsed(*several, "--worker-timeout", "none").worker_timeout_s is None
    with pytest.raises(UsageError, match="--workers 2"):
        parsed("--worker-timeout", "5")
    for wrong in ("0", "-1", "soon"):
        with pytest.raises(UsageError, match="--worker-timeout"):
            parsed(*several, "--worker-timeout", wrong)
