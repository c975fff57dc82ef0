"""The command line of the checks: what it prints, and how it ends."""

import importlib.util
import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.conftest import require

require("websockets")
require("uvicorn")

from tests.conformance.broken import Broken, engine_app, served  # noqa: E402
from tests.shell import by_bearer  # noqa: E402
from ws_responses.__main__ import main  # noqa: E402
from ws_responses.conformance import command  # noqa: E402

KEY = "key-1"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(scope="module")
async def url() -> AsyncIterator[str]:
    async with served(Broken(engine_app(authorize=by_bearer({KEY: None})))) as socket_url:
        yield socket_url


async def run(*arguments: str) -> int:
    """Run it as from a shell; it starts an event loop of its own."""
    return await anyio.to_thread.run_sync(main, ["conformance", *arguments])


async def test_a_table_of_what_was_checked(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WS_RESPONSES_API_KEY", KEY)
    code = await run(url, "--model", "m", "--only", "response", "--only", "not-found")
    lines = capsys.readouterr().out.splitlines()

    assert code == 0
    assert [line.split()[:2] for line in lines[:2]] == [["ok", "response"], ["ok", "not-found"]]
    assert lines[2] == "2 passed, 0 failed, 0 skipped"


async def test_a_failure_says_why_and_ends_with_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without this a build would go on with a server that is wrong."""
    code = await run(
        f"{url}?fault=other-code", "--api-key", KEY, "--model", "m", "--only", "response", "--only", "not-found"
    )
    lines = capsys.readouterr().out.splitlines()

    assert code == 1
    assert lines[1].split()[:2] == ["FAIL", "not-found"]
    assert lines[2].strip() == "the code is 'not_found', not 'previous_response_not_found'"
    assert lines[-1] == "1 passed, 1 failed, 0 skipped"
    assert KEY not in "".join(lines)


async def test_a_skip_says_why_and_is_no_failure(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = await run(f"{url}?fault=no-compact", "--api-key", KEY, "--model", "m", "--only", "compaction")
    lines = capsys.readouterr().out.splitlines()

    assert (code, lines[0].split()[:2]) == (0, ["skip", "compaction"])
    assert lines[1].strip() == "there is no /responses/compact (404)"


async def test_one_json_object_for_programs(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = await run(url, "--api-key", KEY, "--model", "m", "--only", "response", "--json")
    told = json.loads(capsys.readouterr().out)

    assert code == 0
    assert (told["url"], told["profile"]) == (url, "openai")
    assert told["counts"] == {"pass": 1, "fail": 0, "skip": 0}
    (check,) = told["checks"]
    assert check.keys() == {"name", "statement", "outcome", "reason", "seconds"}
    assert (check["name"], check["outcome"], check["reason"]) == ("response", "pass", None)


async def test_a_base_url_will_do(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    base = url.replace("ws://", "http://").removesuffix("/responses")
    assert await run(base, "--api-key", KEY, "--model", "m", "--only", "response") == 0
    assert "1 passed" in capsys.readouterr().out


async def test_members_for_each_create(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without this a server that needs a member, or whose model thinks for minutes, could not be checked."""
    field = 'text={"format":{"type":"other"}}'
    assert await run(url, "--api-key", KEY, "--model", "m", "--only", "response", "--field", field) == 1
    assert "text.format" in capsys.readouterr().out


def test_a_list_of_all_checks(capsys: pytest.CaptureFixture[str]) -> None:
    from ws_responses.conformance.running import all_checks

    assert main(["conformance", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [check.name for check in all_checks()]
    assert any(line.endswith("(open-responses only)") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "needs the URL"),
        (["ftp://host"], "the URL must be like"),
        (["ws://h/v1", "--only", "nothing"], "there is no check 'nothing'"),
        (["ws://h/v1", "--only", "no-lanes"], "no check named is one of the profile 'openai'"),
        (["ws://h/v1", "--profile", "other"], "invalid choice"),
        (["ws://h/v1", "--field", "x"], "--field takes NAME=JSON"),
        (["ws://h/v1", "--timeout", "0"], "number of seconds"),
        (["ws://h/v1", "--what"], "unrecognized"),
    ],
)
def test_a_wrong_command_line_ends_with_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["conformance", *arguments]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert reason in told.err


def test_without_websockets_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(command, "find_spec", lambda name: None if name == "websockets" else found(name))
    assert main(["conformance", "ws://h/v1"]) == 2
    assert "pip install" in capsys.readouterr().err
