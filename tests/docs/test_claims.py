"""What the pages promise and no other test proves."""

from typing import Any

import pytest

from tests.shell import KEY, Shell, code_of, create, id_of, kinds
from ws_responses import CurrentTurn
from ws_responses.instrumentation import FrameRefused, TurnFinished, TurnStarted
from ws_responses.testing import ScriptedApp, steps


async def test_an_input_that_prepare_gives_replaces_ours() -> None:
    """Without this an app gets two members `input`, and reads the one that was to be replaced."""
    app = ScriptedApp()
    other = [{"type": "message", "role": "user", "content": "other"}]

    def prepare(body: dict[str, Any], turn: CurrentTurn) -> None:
        body["input"] = other

    async with Shell(app, prepare=prepare).socket() as ws:
        first = await ws.turn(create("hi"))
        await ws.turn(create([{"role": "user", "content": "more"}], previous_response_id=id_of(first)))

    assert [request.input for request in app.requests] == [other, other]
    assert [request.raw.count(b'"input":') for request in app.requests] == [1, 1]


async def test_numbers_beyond_range_are_judged_at_the_top_only() -> None:
    """Without this the security page would promise a check that nobody makes, or hide one that somebody does."""
    app = ScriptedApp()
    item = '{"role":"user","content":"hi","weight":1e999}'
    async with Shell(app).socket() as ws:
        await ws.send_text(f'{{"type":"response.create","model":"m","input":[{item}]}}')
        inside = await ws.collect()
        await ws.send_text('{"type":"response.create","model":"m","temperature":1e999,"input":"hi"}')
        (top,) = await ws.collect()

    assert inside[-1]["type"] == "response.completed"
    assert item.encode() in app.requests[0].raw
    assert (top["status"], code_of(top), top["error"]["param"]) == (400, "invalid_request", "temperature")


async def test_where_prepare_reads_the_members_numbers_beyond_range_are_refused() -> None:
    """Without this such a number looks like a fault of ours, with a traceback for each."""
    async with Shell(ScriptedApp(), prepare=lambda body, turn: None).socket() as ws:
        await ws.send_text('{"type":"response.create","model":"m","input":"hi","metadata":{"weight":1e999}}')
        (error,) = await ws.collect()

    assert (error["status"], code_of(error), error["error"]["param"]) == (400, "invalid_request", "metadata")


@pytest.mark.parametrize(("store", "answer"), [(True, "response.completed"), (False, "error")])
async def test_a_stored_parent_resolves_again_after_a_turn_that_failed(store: bool, answer: str) -> None:
    """Without this clients of stored chains would pay for each 429 by their whole history."""
    app = ScriptedApp()
    app.script([steps.text("one")], [steps.status(429)], [steps.text("two")])
    async with Shell(app).socket(KEY) as ws:
        first = await ws.turn(create(store=store))
        more = create("more", store=store, previous_response_id=id_of(first))
        (failure,) = await ws.turn(more)
        again = await ws.turn(more)

    assert failure["status"] == 429
    assert again[-1]["type"] == answer


async def test_a_turn_that_ends_after_its_client_has_gone_can_be_continued() -> None:
    """Without this a turn that was paid for to its end would be lost all the same."""
    app = ScriptedApp()
    app.script([steps.response_id("resp_late"), steps.text("one", deltas=2)])
    shell = Shell(app, on_disconnect=30)
    async with shell.socket(KEY, max_unread=1) as ws:
        await ws.send_json(create())
        await ws.receive_json()
        await ws.close()
    async with shell.socket(KEY) as ws:
        events = await ws.turn(create("more", previous_response_id="resp_late"))

    assert events[-1]["type"] == "response.completed"
    assert shell.facts.outcomes[0] == ("completed", None)


async def test_turns_without_a_start_or_an_end() -> None:
    """Without this a bill made from facts would count turns that nobody ran, or none at all."""
    app = ScriptedApp(listen=True)
    app.script([steps.stall()])
    shell = Shell(app)
    async with shell.socket() as ws:
        (unknown,) = await ws.turn(create(previous_response_id="resp_unknown"))
        await ws.send_json(create())
        await ws.send_json(create("waits"))
        await ws.wait_received()

    assert code_of(unknown) == "previous_response_not_found"
    assert len(shell.facts.of(TurnStarted)) == 1
    assert shell.facts.outcomes == [("error", "previous_response_not_found"), ("gone", None)]
    assert len(shell.facts.of(TurnFinished)) == 2
    assert shell.facts.of(FrameRefused) == []


async def test_draining_tells_creates_that_wait_and_that_come_later() -> None:
    """Without this a client would wait for turns that never start."""
    app = ScriptedApp(listen=True)
    app.script([steps.stall()])
    shell = Shell(app, limits={"age_grace_s": 60})
    async with shell.socket(max_unread=None) as ws:
        await ws.send_json(create())
        await ws.send_json(create("waits"))
        await ws.wait_received()
        assert await shell.middleware.drain(0) is False
        await ws.send_json(create("late"))
        await ws.wait_received()
        await shell.clock.advance(60)
        code = await ws.wait_closed()
        events = [await ws.receive_json() for _ in range(ws.unread)]
    async with shell.socket() as ws:
        denial = ws.denial

    assert [code_of(event) for event in events if event["type"] == "error"] == ["server_is_overloaded"] * 3
    assert kinds(events) == ["error"] * 3
    assert code == 1012
    assert denial is not None
    assert (denial.status, denial.header(b"retry-after")) == (503, b"1")
