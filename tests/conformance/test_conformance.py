"""Our suite passes servers that are right, and each check fails one that is wrong."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import require

require("websockets")
require("uvicorn")

from tests.conformance.broken import FAULTS, Broken, engine_app, served  # noqa: E402
from tests.shell import by_bearer  # noqa: E402
from ws_responses import Limits, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware  # noqa: E402
from ws_responses._types import Message, Receive, Scope, Send  # noqa: E402
from ws_responses.backends import Delta  # noqa: E402
from ws_responses.conformance.check import Result, Target  # noqa: E402
from ws_responses.conformance.running import all_checks, run_checks  # noqa: E402
from ws_responses.testing import ScriptedApp  # noqa: E402
from ws_responses.testing.backends import ScriptedBackend  # noqa: E402

KEY = "key-1"
SILENT = 0.3
"""Patience where a fault is that nothing comes."""


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


def outcomes(results: list[Result]) -> dict[str, tuple[str, str | None]]:
    return {result.name: (result.outcome, result.reason) for result in results if result.outcome != "pass"}


def target(url: str, **options: Any) -> Target:
    return Target(**({"url": url, "api_key": KEY, "fields": {"model": "m"}} | options))


class TestRightServers:
    @pytest.mark.slow
    async def test_the_engine(self) -> None:
        async with served(engine_app(authorize=by_bearer({KEY: None}))) as url:
            results = await run_checks(target(url))

        assert outcomes(results) == {}
        assert {result.name for result in results} == {c.name for c in all_checks() if "openai" in c.profiles}

    async def test_the_engine_by_open_responses(self) -> None:
        async with served(engine_app("open-responses", authorize=by_bearer({KEY: None}))) as url:
            results = await run_checks(target(url, profile="open-responses"))

        assert outcomes(results) == {}
        assert {result.name for result in results} == {c.name for c in all_checks() if "open-responses" in c.profiles}

    @pytest.mark.slow
    async def test_a_wrapped_app(self) -> None:
        async with served(ResponsesWebSocketMiddleware(ScriptedApp(auth=KEY))) as url:
            assert outcomes(await run_checks(target(url))) == {}

    async def test_a_wrapped_app_by_open_responses(self) -> None:
        app = ResponsesWebSocketMiddleware(ScriptedApp(auth=KEY), profile="open-responses")
        async with served(app) as url:
            assert outcomes(await run_checks(target(url, profile="open-responses"))) == {}

    @pytest.mark.slow
    async def test_the_demo(self) -> None:
        require("fastapi")
        from ws_responses.demo import server

        async with served(server()) as url:
            results = await run_checks(target(url, api_key=None))

        assert outcomes(results) == {
            "wrong-key": ("skip", "no --api-key was given"),
            "stored": ("skip", "nothing is stored beyond the socket"),
            "compaction": ("skip", "there is no /responses/compact (404)"),
        }

    async def test_a_server_that_only_does_what_it_must(self) -> None:
        """What a server may leave out is no failure."""
        app = Broken(engine_app(store=None))
        async with served(app) as url:
            results = await run_checks(target(f"{url}?fault=no-compact", api_key=None), only={"stored", "compaction"})

        assert [result.outcome for result in results] == ["skip", "skip"]

    async def test_a_server_that_knows_no_steering(self) -> None:
        """It is newer than sockets are: who answers that there is no such event is right."""
        app = Broken(engine_app())
        async with served(app) as url:
            results = await run_checks(target(f"{url}?fault=no-steering"), only={"steer-unknown", "steer"})

        assert [result.outcome for result in results] == ["skip", "skip"]

    async def test_a_response_that_thinks_is_steered(self) -> None:
        """Without this the check would only ever see responses that end before they can be steered."""
        backend = ScriptedBackend()
        backend.will_answer([Delta(reasoning="hm"), Delta(text="five"), Delta(finish="stop")], hold_after=1)
        app = ResponsesApp(ResponsesEngine(backend), authorize="open")

        async def held(scope: Scope, receive: Receive, send: Send) -> None:
            async def until_steered() -> Message:
                message = await receive()
                if "response.steer" in str(message.get("text")):
                    asyncio.get_running_loop().call_soon(backend.release)
                return message

            await app(scope, until_steered, send)

        async with served(held) as url:
            results = await run_checks(target(url), only={"steer"})

        assert [result.outcome for result in results] == ["pass"]
        assert len(backend.generations) == 2


WRONG: list[tuple[str, str, str]] = [
    ("upgrade", "closed", "the upgrade is answered by 403"),
    ("wrong-key", "none", "not by an error"),
    ("response", "binary", "binary"),
    ("response", "sse", "event stream"),
    ("response", "no-json", "no JSON"),
    ("response", "a-list", "no 'type'"),
    ("response", "no-type", "no 'type'"),
    ("response", "no-created", "begins with 'response.in_progress'"),
    ("response", "no-numbers", "is None"),
    ("response", "same-numbers", "goes from 0 to 0"),
    ("response", "late-numbers", "begins with 1"),
    ("response", "twice-created", "0.5"),
    ("response", "other-id", "'response.id' changes"),
    ("response", "wrong-status", "'response.status'"),
    ("response", "empty-output", "the terminal 'output'"),
    ("response", "no-output", "no list"),
    ("response", "never-added", "never added"),
    ("response", "never-ends", "nothing came"),
    ("response", "labelled", "nothing came"),
    ("response", "closed", "403"),
    ("items", "no-items", "a turn failed"),
    ("sequential", "same-ids", "two responses have the id"),
    ("sequential", "closing-after", "closed the socket: 1011"),
    ("queue", "refusing", "a turn failed: response_already_in_flight"),
    ("queue", "shuffled", "out of order"),
    ("queue", "same-ids", "same id"),
    ("many-creates", "losing", "nothing came"),
    ("many-creates", "refusing", "creates fail"),
    ("stream-field", "no-stream", "a turn failed"),
    ("processed", "processed-is-unknown", "a turn failed"),
    ("warm-up", "generates", "a warm-up has output"),
    ("client-leaves", "third-closed", "403"),
    ("frame-limit", "overwhelmed", "closed by 1011"),
    ("continuation", "forgetful", "previous_response_not_found"),
    ("continuation", "other-parent", "'response.previous_response_id'"),
    ("continuation", "same-ids", "a turn failed: previous_response_not_found"),
    ("null-parent", "null-is-wrong", "a turn failed"),
    ("not-found", "no-chains", "'response.previous_response_id' is None"),
    ("not-found", "other-code", "the code is 'not_found'"),
    ("not-found", "no-param", "'error.param' is None"),
    ("not-found", "other-status", "the status is 404"),
    ("not-found", "no-status", "the 'status' of an error frame"),
    ("not-found", "null-code", "'error.code'"),
    ("not-found", "no-message", "'error.message'"),
    ("not-found", "flat-error", "no object 'error'"),
    ("not-found", "huffy", "closed the socket"),
    ("reconnect", "no-chains", "'response.previous_response_id' is None"),
    ("stored", "unstored", "a turn failed: gone"),
    ("unknown-call", "any-call", "is taken"),
    ("unknown-call", "huffy", "closed the socket"),
    ("eviction", "any-call", "is taken"),
    ("eviction", "forgiving", "the code is None"),
    ("refusal-evicts-nothing", "huffy", "closed the socket"),
    ("conversation", "both", "not by an error"),
    ("compaction", "compact-fails", "answered by 500"),
    ("compaction", "compact-is-a-response", "'response'"),
    ("compaction", "compact-gives-no-item", "no compaction item"),
    ("compaction", "compact-gives-nothing", "no list"),
    ("compaction", "compact-is-refused", "a turn failed: invalid_compaction"),
    ("lane-label", "no-labels", "nothing came"),
    ("lane-label", "no-last-label", "nothing came"),
    ("lanes-at-once", "one-lane-at-a-time", "a turn failed"),
    ("lane-order", "shuffled", "answers"),
    ("fork", "no-forks", "previous_response_not_found"),
    ("fork-keeps-parent", "forks-evict", "previous_response_not_found"),
    ("fork-keeps-parent", "any-call", "is taken"),
    ("lane-name", "any-name", "not by an error"),
    ("lane-name", "labels-errors", "bears a 'stream_id'"),
    ("steer-unknown", "steers-swallowed", "nothing came"),
    ("steer-unknown", "steers-not-returned", "'steer.input' comes back as None"),
    ("steer-unknown", "steers-of-another", "'resp_other'"),
    ("steer-unknown", "steer-code", "the code is 'gone'"),
    ("steer-unknown", "steer-without-code", "'error.type' of a steer that failed is None"),
    ("steer", "steers-forgotten", "nothing came"),
    ("steer", "steers-swallowed", "nothing came"),
    ("bad-json", "touchy", "closed the socket"),
    ("bad-json", "huffy", "closed the socket"),
    ("bad-json", "other-status", "refused by 404"),
    ("unknown-event", "deaf", "nothing came"),
    ("unknown-event", "null-code", "'error.code'"),
    ("wrong-types", "no-param", "'error.param' is None"),
    ("background", "no-background", "not by an error"),
    ("faults-in-a-turn", "touchy", "closed the socket"),
    ("faults-in-a-turn", "null-code", "'error.code'"),
]

STRICT: list[tuple[str, str, str]] = [
    ("response", "poor", "'response.temperature'"),
    ("response", "true-number", "'response.top_logprobs'"),
    ("response", "reasoning", "no event of Open Responses"),
    ("response", "unknown", "no event of Open Responses"),
]


@pytest.fixture(scope="module")
async def wrong_url() -> AsyncIterator[str]:
    async with served(Broken(engine_app(tenant=lambda _: "t"))) as url:
        yield url


async def the_only(url: str, check: str, *, silent: bool, **options: Any) -> Result:
    (result,) = await run_checks(target(url, timeout_s=SILENT if silent else 20.0, **options), only={check})
    return result


class TestWrongServers:
    @pytest.mark.parametrize(("check", "fault", "reason"), WRONG, ids=[f"{c}-{f}" for c, f, _ in WRONG])
    async def test_fail(self, wrong_url: str, check: str, fault: str, reason: str) -> None:
        """Without this a check could be one that no server fails."""
        url = f"{wrong_url}?fault={fault}"
        result = await the_only(url, check, silent="nothing came" in reason)

        assert result.outcome == "fail"
        assert reason in str(result.reason)

    @pytest.mark.parametrize(("check", "fault", "reason"), STRICT, ids=[f for _, f, _ in STRICT])
    async def test_fail_by_open_responses(self, wrong_url: str, check: str, fault: str, reason: str) -> None:
        url = f"{wrong_url}?fault={fault}"
        strict = await the_only(url, check, silent=False, profile="open-responses")
        assert strict.outcome == "fail"
        assert reason in str(strict.reason)
        if fault in {"poor", "true-number"}:
            assert (await the_only(url, check, silent=False)).outcome == "pass"

    async def test_lanes_where_there_should_be_none(self, wrong_url: str) -> None:
        result = await the_only(wrong_url, "no-lanes", silent=False, profile="open-responses")
        assert (result.outcome, "bears the 'stream_id'" in str(result.reason)) == ("fail", True)

    async def test_a_second_error_is_taken_for_the_next_answer(self, wrong_url: str) -> None:
        result = await the_only(f"{wrong_url}?fault=two-errors", "bad-json", silent=False)
        assert result.outcome == "fail"

    @pytest.mark.parametrize(("lanes", "reason"), [(8, "websocket_stream_limit_reached"), (64, "not by an error")])
    async def test_another_number_of_lanes(self, lanes: int, reason: str) -> None:
        async with served(engine_app(limits=Limits(max_lanes=lanes))) as url:
            result = await the_only(url, "lane-limit", silent=False)

        assert result.outcome == "fail"
        assert reason in str(result.reason)

    async def test_nobody_at_all(self) -> None:
        """Without this each of the checks would wait for a server that is not there."""
        results = await run_checks(target("ws://127.0.0.1:9/v1/responses"))
        assert [(result.name, result.outcome) for result in results] == [("upgrade", "fail")]
        assert str(results[0].reason).startswith("cannot connect")


def test_every_check_is_failed_by_some_server() -> None:
    failed = {check for check, _, _ in WRONG} | {"no-lanes", "lane-limit"}
    assert failed == {check.name for check in all_checks()}


def test_every_fault_is_used() -> None:
    used = {fault for _, fault, _ in WRONG + STRICT} | {"two-errors", "no-steering"}
    assert set(FAULTS) <= used
