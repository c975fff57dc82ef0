"""A backend that is down, slow, cut off or talks nonsense: the client is told, nothing stays behind, the next turn is fine."""

from collections.abc import AsyncGenerator
from typing import Any

import anyio
import pytest

from tests.engine.schema import assert_turn
from tests.engine.service import STOP, ScriptedService, Step, kinds, last, said, socket_to
from ws_responses.backend_errors import unreachable
from ws_responses.backends import Delta, ToolCallDelta, Usage
from ws_responses.clock import Clock
from ws_responses.engine.engine import Announce, ResponsesEngine
from ws_responses.engine.generation import Retry, close, retry_after_s
from ws_responses.errors import ConfigurationError, UpstreamError, WireError
from ws_responses.limits import Limits
from ws_responses.testing.clock import FakeClock, settle

CREATE = {"model": "m", "input": "hi"}
ONCE = Retry(attempts=1)


def busy(retry_after: str | None = None, **headers: str) -> UpstreamError:
    if retry_after is not None:
        headers["retry-after"] = retry_after
    return UpstreamError("Too busy.", status=503, code="server_is_overloaded", headers=headers)


async def told(*steps: Step, announce: Announce = "at_once") -> list[dict[str, Any]]:
    """The events of a turn that goes wrong so, on an engine that asks once; the next turn must be fine."""
    service = ScriptedService()
    service.will(steps)
    async with socket_to(ResponsesEngine(service, retry=ONCE, announce=announce)) as ws:
        events = await ws.turn(CREATE)
        assert_turn(await ws.turn(CREATE))
    assert service.running == 0
    return events


async def test_a_failure_after_the_response_was_announced_is_a_failed_response() -> None:
    events = await told(unreachable())
    assert kinds(events) == ["created", "in_progress", "failed"]
    assert last(events)["error"] == {"code": "upstream_unreachable", "message": "The backend cannot be reached."}
    assert last(events)["status"] == "failed"
    assert last(events)["output"] == []


async def test_retry_after_is_told_in_words_where_there_are_no_headers() -> None:
    """Codex reads it out of the message of a failed response."""
    events = await told(busy("7"))
    assert last(events)["error"]["message"] == "Too busy. Please try again in 7s."


async def test_by_default_a_response_is_announced_with_its_output() -> None:
    """Most clients wait for status and retry-after, and some know no ``response.failed``."""
    service = ScriptedService()
    service.will([busy("7")])
    async with socket_to(ResponsesEngine(service, retry=ONCE)) as ws:
        (error,) = await ws.turn(CREATE)
    assert (error["type"], error["headers"]) == ("error", {"retry-after": "7"})


async def test_announced_with_its_output_a_response_that_never_began_is_an_error() -> None:
    """With its status and headers: some clients wait for ever for anything but an error or a completed response."""
    events = await told(busy("7"), announce="with_output")
    assert [(event["type"], event["status"]) for event in events] == [("error", 503)]
    assert events[0]["headers"] == {"retry-after": "7"}
    assert events[0]["error"]["message"] == "Too busy."
    assert_turn(await told(*said("x"), announce="with_output"))


async def test_a_failure_in_the_middle_keeps_what_was_finished() -> None:
    events = await told(Delta(reasoning="Hm"), Delta(text="Yes, b"), busy())
    assert kinds(events)[-1] == "failed"
    assert [item["type"] for item in last(events)["output"]] == ["reasoning"]


@pytest.mark.parametrize("steps", [[], [Delta(text="Yes, b")], [Delta(usage=Usage())]])
async def test_an_answer_without_an_end_is_a_failure(steps: list[Step]) -> None:
    events = await told(*steps)
    assert last(events)["error"]["code"] == "upstream_stream_truncated"


async def test_a_fault_of_an_adapter_is_a_failure_and_says_nothing_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    events = await told(Delta(text="x"), KeyError("secret"))
    assert last(events)["error"]["code"] == "server_error"
    assert "secret" not in last(events)["error"]["message"]
    assert "secret" in caplog.text, "the operator finds it in the log"


async def test_a_slow_backend_is_ended_by_the_connections_limits() -> None:
    clock = FakeClock()
    service = ScriptedService()
    service.will([Delta(text="x"), anyio.Event()])
    limits = Limits(event_timeout_s=30)
    async with socket_to(ResponsesEngine(service), clock=clock, limits=limits) as ws:
        await ws.send_json({"type": "response.create", **CREATE})
        await service.entered.wait()
        await settle()
        await clock.advance(40)
        events = await ws.collect()
        assert last(events)["error"]["code"] == "upstream_timeout"
        await settle()
        assert service.running == 0
        assert_turn(await ws.turn(CREATE))


async def test_signs_of_life_keep_a_slow_backend_going() -> None:
    clock = FakeClock()
    service = ScriptedService()
    first, second = anyio.Event(), anyio.Event()
    service.will([Delta(), first, Delta(), second, *said("x")])
    async with socket_to(ResponsesEngine(service), clock=clock, limits=Limits(event_timeout_s=30)) as ws:
        await ws.send_json({"type": "response.create", **CREATE})
        await service.entered.wait()
        for step in (first, second):
            await clock.advance(20)
            step.set()
            await settle()
        await clock.advance(20)
        assert_turn(await ws.collect())


# --- nobody listens -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [[anyio.Event()], [Delta(text="x"), anyio.Event()]], ids=["before", "within"])
async def test_a_client_that_leaves_ends_the_generation_at_once(steps: list[Step]) -> None:
    clock = FakeClock()  # so no grace ends, and no cancellation comes
    service = ScriptedService()
    service.will([anyio.Event() if isinstance(step, anyio.Event) else step for step in steps])
    async with socket_to(ResponsesEngine(service), clock=clock) as ws:
        await ws.send_json({"type": "response.create", **CREATE})
        await service.entered.wait()
        await ws.abort()
        await settle()
        assert service.running == 0
        await clock.advance(30)


async def test_a_client_that_reads_slowly_holds_the_backend_up_and_leaves_nothing_behind() -> None:
    service = ScriptedService()
    service.will([*(Delta(text="x") for _ in range(1000)), STOP])
    clock = FakeClock()
    async with socket_to(ResponsesEngine(service), clock=clock, max_unread=8) as ws:
        await ws.send_json({"type": "response.create", **CREATE})
        await ws.wait_blocked()
        assert (service.running, ws.unread < 16) == (1, True)
        await ws.abort()
        await settle()
        assert service.running == 0
        await clock.advance(30)


async def test_an_answer_that_is_complete_lets_the_generation_come_to_its_end() -> None:
    """Only then its connection serves the next one."""
    service = ScriptedService()
    late = anyio.Event()
    service.will([*said("x"), late])
    async with socket_to(ResponsesEngine(service)) as ws:
        assert_turn(await ws.turn(CREATE))
        assert service.exhausted == 0, "the client does not wait for it"
        late.set()
        await ws.settle()
        assert service.exhausted == 1


async def test_a_generation_that_raises_when_it_is_closed_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    async def bad() -> AsyncGenerator[Delta]:
        try:
            yield Delta(text="x")
        finally:
            raise RuntimeError("no")

    generation = bad()
    async for _ in generation:
        break
    await close(generation)
    assert "raised when it was closed" in caplog.text


# --- again ----------------------------------------------------------------------------------------------------------


async def asked(service: ScriptedService, clock: Clock, **retry: Any) -> list[dict[str, Any]]:
    engine = ResponsesEngine(service, retry=Retry(**retry), clock=clock, announce="at_once")
    async with socket_to(engine) as ws:
        return await ws.turn(CREATE)


async def test_a_backend_is_asked_again_while_nothing_was_sampled() -> None:
    service = ScriptedService()
    service.will([busy()], [Delta(usage=Usage()), busy("0")], said("x"))
    events = await asked(service, FakeClock(), first_s=0)
    assert_turn(events)
    assert len(service.prompts) == 3
    assert service.prompts[0] is service.prompts[1], "nothing is rendered twice"


@pytest.mark.parametrize(
    "output",
    [
        Delta(text="x"),
        Delta(reasoning="x"),
        Delta(refusal="x"),
        Delta(token_ids=[1]),
        Delta(tool_calls=(ToolCallDelta(index=0, name="f"),)),
    ],
)
async def test_nothing_is_asked_again_after_the_first_output(output: Delta) -> None:
    service = ScriptedService()
    service.will([output, busy()])
    events = await asked(service, FakeClock(), first_s=0)
    assert events[-1]["type"] == "response.failed"
    assert len(service.prompts) == 1


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (busy(), 3),
        (busy("2"), 3),
        (busy("60"), 1),
        (busy(**{"retry-after-ms": "60000"}), 1),
        (busy(**{"x-should-retry": "false"}), 1),
        (UpstreamError("no", status=400), 1),
        (UpstreamError("paid?", status=429, code="insufficient_quota"), 1),
        (UpstreamError("slow", status=429, code="rate_limit_exceeded"), 3),
    ],
)
async def test_what_helps_is_asked_again_and_nothing_else(error: WireError, times: int) -> None:
    service = ScriptedService()
    service.will(*([error] for _ in range(times)))
    events: list[dict[str, Any]] = []
    clock = FakeClock()

    async def run() -> None:
        events.extend(await asked(service, clock, max_s=5))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(times):
            await settle()
            await clock.advance(5)
    assert len(service.prompts) == times
    assert events[-1]["type"] == "response.failed"


async def test_the_waits_are_bounded_in_all() -> None:
    service = ScriptedService()
    service.will(*([busy("4")] for _ in range(9)))
    clock = FakeClock()
    events: list[dict[str, Any]] = []

    async def run() -> None:
        events.extend(await asked(service, clock, attempts=9, total_s=10))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        for _ in range(3):
            await settle()
            await clock.advance(4)
    assert len(service.prompts) == 3, "at 0, 4 and 8 seconds; 12 would be too late"
    assert events[-1]["type"] == "response.failed"


def test_waits_double_and_are_spread() -> None:
    retry = Retry(attempts=5, first_s=1, max_s=6)
    assert [retry.wait_s(attempt, busy(), 0) for attempt in range(1, 6)] == [1, 2, 4, 6, None]
    assert retry.wait_s(1, busy(), 1) == 0.5
    assert retry.wait_s(1, busy("3"), 0) == 3
    assert retry.wait_s(3, busy("3"), 0) == 4
    assert retry.wait_s(1, busy("6"), 0) == 6
    assert retry.wait_s(1, busy("7"), 0) is None, "the client is told, and may wait by itself"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "x", "retry-after": "1"}, 1),
    ],
)
def test_what_a_service_says_of_retrying_is_read(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_s(busy(**headers)) == seconds


@pytest.mark.parametrize("wrong", [{"attempts": 0}, {"first_s": -1}, {"max_s": -1}, {"total_s": -1}])
def test_a_retry_that_makes_no_sense_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Retry(**wrong)
