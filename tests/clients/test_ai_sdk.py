"""The AI SDK (`ai`, `@ai-sdk/openai`) over the transport of examples/ai-sdk, which is our own: the SDK itself has none."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require

from . import programs
from .gate import wait_until
from .programs import MODULES, Script, installed
from .recorder import Exchange
from .server import ROOT, Server
from .test_openai_agents import answer, assert_clean

require("node")
require("the AI SDK (tests/clients/setup.sh installs it)", present=installed("ai") and installed("@ai-sdk/openai"))

pytestmark = pytest.mark.clients

APPS = pytest.mark.parametrize("app", ["wrapped", "engine"])
ONE_LOOP = answer(items=3, outputs=1)
TWO_LOOPS = answer(items=7, outputs=2)

Serve = Callable[[str], Server]


def told(server: Server, scenario: str, folder: Path) -> list[Any]:
    with Script("ai_sdk.mjs", server.base_url, scenario, home=folder / "home") as script:
        return list(script.lines())


def assert_chained(socket: Exchange, *, turns: int) -> None:
    """Each turn but the first names the one before it, and sends one item: the user's message, or the tool's output."""
    assert_clean(socket, turns=turns)
    parents = [create.get("previous_response_id") for create in socket.creates]
    assert parents == [None, *(response["id"] for response in socket.finished[:-1])]
    assert [len(create["input"]) for create in socket.creates] == [1] * turns


def test_two_user_turns_with_their_tools_chain_over_one_socket(server: Server, tmp_path: Path) -> None:
    first, second = told(server, "loop", tmp_path)

    assert [first["text"], second["text"]] == [ONE_LOOP, TWO_LOOPS]
    assert first["deltas"] > 1
    assert first["finish"] == second["finish"] == "stop"
    assert second["cities"] == ["Paris"] * 2
    assert_chained(server.recording.only_socket, turns=4)


def test_calls_at_the_same_time_share_the_socket_by_lanes(server: Server, tmp_path: Path) -> None:
    answers = told(server, "lanes", tmp_path)

    assert [one["text"] for one in answers] == [ONE_LOOP] * 3
    socket = server.recording.only_socket
    assert_clean(socket, turns=6)
    assert {create.get("stream_id") for create in socket.creates} == {None, "lane-1", "lane-2"}


def test_an_error_has_its_status_and_leaves_the_socket_usable(server: Server, tmp_path: Path) -> None:
    failed, after = told(server, "error", tmp_path)

    (error,) = failed["errors"]
    assert (error["name"], error["status"]) == ("AI_APICallError", 400)
    assert "resp_unknown" in error["message"]
    assert after["text"] == ONE_LOOP
    assert len(server.recording.only_socket.creates) == 3


def test_an_abort_closes_the_socket_and_the_next_call_opens_another(server: Server, tmp_path: Path) -> None:
    aborted, after = told(server, "abort", tmp_path)

    assert aborted == {"aborted": True}
    assert after["text"] == ONE_LOOP
    assert [len(socket.creates) for socket in server.recording.sockets] == [1, 2]


@APPS
def test_a_call_after_a_restart_sends_the_whole_conversation(serve: Serve, tmp_path: Path, app: str) -> None:
    server = serve(app)
    with Script("ai_sdk.mjs", server.base_url, "reconnect", home=tmp_path / "home") as script:
        before = script.read()
        server.restart()
        script.go_on()
        (after,) = script.lines()

    assert before["text"] == ONE_LOOP
    assert after["text"] == answer(items=5, outputs=1)
    one, two = server.recording.sockets
    assert_chained(one, turns=2)
    assert_clean(two, turns=1)
    (create,) = two.creates
    assert create.get("previous_response_id") is None
    assert len(create["input"]) == 5


def test_a_lost_parent_is_replaced_by_the_whole_conversation(serve: Serve, tmp_path: Path) -> None:
    server = serve("wrapped_forgetful")
    first, second = told(server, "unstored", tmp_path)

    assert [first["text"], second["text"]] == [ONE_LOOP, TWO_LOOPS]
    socket = server.recording.only_socket
    assert [error["error"]["code"] for error in socket.errors] == ["previous_response_not_found"] * 3
    assert [len(create["input"]) for create in socket.creates] == [1, 1, 3, 1, 5, 1, 7]


@APPS
def test_a_socket_that_grows_too_old_between_calls_is_replaced(serve: Serve, tmp_path: Path, app: str) -> None:
    """By default after 60 minutes: a session of a whole day would else end in the middle."""
    server = serve(f"{app}_ageing")
    with Script("ai_sdk.mjs", server.base_url, "reconnect", home=tmp_path / "home") as script:
        before = script.read()
        wait_until(lambda: server.recording.sockets[0].close is not None)
        script.go_on()
        (after,) = script.lines()

    assert [before["text"], after["text"]] == [ONE_LOOP, answer(items=5, outputs=1)]
    old, new = server.recording.sockets
    assert old.close is not None
    assert old.close["code"] == 1001
    (create,) = new.creates
    assert create.get("previous_response_id") is None
    assert len(create["input"]) == 5


@pytest.mark.parametrize("scenario", ["loop", "unstored"])
def test_a_socket_that_is_cut_before_an_answer_costs_another_try(serve: Serve, tmp_path: Path, scenario: str) -> None:
    """The SDK tries again what has failed as a `fetch` fails. What was stored is named then; what was not is sent."""
    server = serve("wrapped_cut_off")
    first, second = told(server, scenario, tmp_path)

    assert [first["text"], second["text"]] == [ONE_LOOP, TWO_LOOPS]
    cut, rest = server.recording.sockets
    assert cut.close is not None
    assert cut.close["code"] == 1012
    assert_clean(rest, turns=3)
    again = rest.creates[0]
    assert (again.get("previous_response_id") is None) == (scenario == "unstored")
    assert len(again["input"]) == (3 if scenario == "unstored" else 1)


def test_a_turn_for_which_the_connection_is_too_old_goes_to_another_one(serve: Serve, tmp_path: Path) -> None:
    """The age has come while it ran, and nothing of its answer had."""
    server = serve("wrapped_too_old")
    first, second = told(server, "loop", tmp_path)

    assert [first["text"], second["text"]] == [ONE_LOOP, TWO_LOOPS]
    old, new = server.recording.sockets
    assert [error["error"]["code"] for error in old.errors] == ["websocket_connection_limit_reached"] * len(old.errors)
    assert old.errors
    assert len(new.finished) == 3


def test_it_goes_over_http_where_the_middleware_is_disabled(server_without_sockets: Server, tmp_path: Path) -> None:
    first, second = told(server_without_sockets, "loop", tmp_path)

    assert [first["text"], second["text"]] == [ONE_LOOP, TWO_LOOPS]
    assert [socket.status for socket in server_without_sockets.recording.sockets] == [426]
    assert [post.status for post in server_without_sockets.recording.posts] == [200] * 4


def test_the_example_runs(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "ai-sdk"
    shutil.copytree(ROOT / "examples" / "ai-sdk", folder, ignore=shutil.ignore_patterns("node_modules"))
    (folder / "node_modules").symlink_to(MODULES)
    command = ("node", "agent.mjs", server.base_url, "What is the weather in Paris?")
    result = programs.run(command, home=folder, env=programs.environment(folder))

    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == ONE_LOOP
    assert_chained(server.recording.only_socket, turns=2)
