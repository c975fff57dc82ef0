"""Rollouts without a socket: what may be appended, and what the session decides."""

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

import pytest

from ws_responses.errors import Unavailable
from ws_responses.limits import Limits
from ws_responses.protocol.actions import (
    AbortTurn,
    Action,
    Actions,
    Close,
    DropTurn,
    ResumeTurn,
    Send,
    StartTurn,
    TurnQueued,
)
from ws_responses.protocol.calls import START, UNKNOWN_BASE, CallState, after_output, output_head
from ws_responses.protocol.phases import TurnPhase
from ws_responses.protocol.session import Session
from ws_responses.protocol.turns import Turn

CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "x"}
OTHER = {"type": "function_call_output", "call_id": "c2", "output": "x"}
WORDS = {"type": "message", "role": "user", "content": "Hurry."}


def calls_of(*items: dict[str, Any], before: CallState = START) -> CallState:
    return after_output(before, [output_head(json.dumps(item).encode()) for item in items])


def a_session(*, appends: bool = True, lanes: bool = True, **limits: Any) -> Session:
    ids = count(1)
    return Session(Limits(**limits), now=0.0, turn_ids=lambda: f"turn_{next(ids)}", appends=appends, lanes=lanes)


def create(session: Session, **members: Any) -> Actions:
    return session.frame_received(json.dumps({"type": "response.create", "model": "m", **members}), 1.0)


def append(session: Session, *items: Any, now: Any = 2.0, **members: Any) -> Actions:
    frame = {"type": "response.append", "input": list(items), **members}
    return session.frame_received(json.dumps(frame), now)


def started(actions: Iterable[Action]) -> Turn:
    (turn,) = [action.turn for action in actions if isinstance(action, StartTurn)]
    return turn


def begin(session: Session, **members: Any) -> Turn:
    turn = started(create(session, **members))
    session.turn_event(turn, f"resp_{turn.id}")
    return turn


def blocked(session: Session, *calls: dict[str, Any], now: float = 1.0, **members: Any) -> Turn:
    turn = begin(session, **members)
    session.turn_blocked(turn, calls_of(*(calls or (CALL,))), now)
    return turn


def error_in(actions: Actions) -> dict[str, Any]:
    (sent,) = actions
    assert isinstance(sent, Send)
    frame: dict[str, Any] = json.loads(sent.frame)
    assert frame["type"] == "error"
    return frame


def code_in(actions: Actions) -> tuple[str, str | None]:
    error = error_in(actions)["error"]
    return error["code"], error["param"]


def test_an_append_resumes_the_rollout_of_its_lane_and_brings_the_items_byte_exact() -> None:
    """It has no id: the lane says which response is meant."""
    session = a_session()
    blocked(session)
    other = blocked(session, stream_id="a")
    frame = '{"type":"response.append","stream_id":"a","input":[ { "output":"\\u00e9","type":"function_call_output" ,"call_id":"c1"}]}'

    (resumed,) = session.frame_received(frame, 2.0)

    assert isinstance(resumed, ResumeTurn)
    assert resumed.turn is other
    assert resumed.appended is not None
    assert resumed.appended.items == b'{ "output":"\\u00e9","type":"function_call_output" ,"call_id":"c1"}'
    assert resumed.appended.calls == START
    assert (other.phase, other.blocked) == (TurnPhase.STREAMING, None)


def test_messages_may_come_beside_the_outputs() -> None:
    """That is how a rollout is steered."""
    session = a_session()
    blocked(session)
    assert isinstance(append(session, OUTPUT, WORDS)[0], ResumeTurn)


def test_without_prototype_mode_an_append_is_an_unknown_event() -> None:
    """As any server answers it today."""
    session = a_session(appends=False)
    begin(session)
    assert code_in(append(session, OUTPUT)) == ("unknown_event_type", "type")


@pytest.mark.parametrize("lane", [None, "a"])
def test_an_append_without_a_rollout_says_so(lane: str | None) -> None:
    """On a lane that never was, and after the end: a client that comes too late learns how to go on."""
    session = a_session()
    named: dict[str, Any] = {} if lane is None else {"stream_id": lane}
    assert code_in(append(session, OUTPUT, **named)) == ("rollout_not_found", None)
    turn = blocked(session, **named)
    session.turn_ended(turn, 2.0)
    error = error_in(append(session, OUTPUT, **named))
    assert error["error"]["code"] == "rollout_not_found"
    assert error.get("stream_id") == lane
    assert "a" not in session.lanes.by_name or lane == "a", "an append takes no lane"


def test_an_append_to_what_is_being_sampled_is_refused() -> None:
    """Nothing waits for it; what it brings could not be placed."""
    session = a_session()
    turn = started(create(session))
    assert code_in(append(session, OUTPUT)) == ("rollout_not_blocked", None)
    session.turn_event(turn, "resp_1")
    assert code_in(append(session, OUTPUT)) == ("rollout_not_blocked", None)


BAD: list[tuple[list[Any] | Any, str, str | None]] = [
    ([], "invalid_request", "input"),
    ("text", "invalid_request", "input"),
    (None, "invalid_request", "input"),
    ({}, "invalid_request", "input"),
    (["x"], "invalid_request", "input[0]"),
    ([{}], "invalid_request", "input[0].type"),
    ([{"type": "function_call_output", "output": "x"}], "invalid_request", "input[0].call_id"),
    ([OTHER], "tool_call_not_found", "input[0].call_id"),
    ([OUTPUT, OTHER], "tool_call_not_found", "input[1].call_id"),
    ([OUTPUT, OUTPUT], "tool_call_not_found", "input[1].call_id"),
    ([WORDS], "tool_output_missing", "input"),
    ([OUTPUT, CALL], "tool_output_missing", "input"),
    ([{**OUTPUT, "type": "custom_tool_call_output"}], "tool_call_not_found", "input[0].call_id"),
    ([OUTPUT, {"type": "compaction", "encrypted_content": "x"}], "invalid_request", "input[1].type"),
    ([OUTPUT, {"type": "item_reference", "id": "msg_1"}], "invalid_request", "input[1].type"),
]


@pytest.mark.parametrize(("given", "code", "param"), BAD)
def test_after_a_bad_append_the_rollout_waits_on(given: Any, code: str, param: str | None) -> None:
    """The error names the fault by its path, and the next append may be right."""
    session = a_session()
    turn = blocked(session)
    frame = json.dumps({"type": "response.append", "input": given})

    assert code_in(session.frame_received(frame, 2.0)) == (code, param)
    assert turn.phase is TurnPhase.BLOCKED
    assert isinstance(append(session, OUTPUT)[0], ResumeTurn)


@pytest.mark.parametrize("name", ["previous_response_id", "response_id", "model", "tools"])
def test_an_append_has_no_other_members(name: str) -> None:
    """They would mean nothing: the rollout keeps its settings. Silence would let a client believe otherwise."""
    session = a_session()
    blocked(session)
    assert code_in(append(session, OUTPUT, **dict[str, Any]({name: "x"}))) == ("unknown_parameter", name)
    assert isinstance(append(session, OUTPUT)[0], ResumeTurn)


def test_all_calls_are_answered_by_one_append() -> None:
    """One of two is not enough, in whatever order."""
    session = a_session()
    blocked(session, CALL, {**CALL, "call_id": "c2"})
    assert code_in(append(session, OTHER)) == ("tool_output_missing", "input")
    assert isinstance(append(session, OTHER, OUTPUT)[0], ResumeTurn)


def test_where_the_app_judges_calls_it_judges_appends() -> None:
    """``open_calls="app"``: neither a missing nor an unknown answer is refused here."""
    session = a_session()
    for items in ([WORDS], [OTHER]):
        turn = begin(session)
        session.turn_blocked(turn, calls_of(CALL, before=UNKNOWN_BASE), 1.0, checked=False)
        assert isinstance(append(session, *items)[0], ResumeTurn)
        session.turn_ended(turn, 3.0)


# -- limits and ends -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("over", "goes_on"), [(-1, False), (0, True), (1, True)])
def test_a_rollout_waits_so_long(over: int, goes_on: bool) -> None:
    """Then it ends as it is: a client that has gone silent must not hold a lane for ever, and loses nothing."""
    session = a_session(blocked_timeout_s=100.0, event_timeout_s=1.0, first_event_timeout_s=1.0, idle_timeout_s=5.0)
    turn = blocked(session, now=1.0)
    assert session.next_deadline() <= 101.0
    actions = session.tick(101.0 + over)
    assert list(actions) == ([ResumeTurn(turn, None)] if goes_on else [])
    assert (turn.phase is TurnPhase.STREAMING) == goes_on
    if goes_on:
        assert code_in(append(session, OUTPUT, now=103.0)) == ("rollout_not_blocked", None)


def test_time_that_a_rollout_waits_may_be_unbounded() -> None:
    """``None`` switches it off: then nothing but the connection's age ends it."""
    session = a_session(blocked_timeout_s=None, max_connection_age_s=None)
    blocked(session)
    assert not session.tick(1e9)


@pytest.mark.parametrize("over", [-1, 0, 1])
def test_a_rollout_waits_so_often(over: int) -> None:
    """One that goes on for ever keeps all its output for the one event at its end."""
    session = a_session(max_rollout_appends=3)
    turn = begin(session)
    for _ in range(3 + over):
        if not session.may_block(turn):
            break
        session.turn_blocked(turn, calls_of(CALL), 1.0)
        append(session, OUTPUT)
    assert session.may_block(turn) == (over < 0)
    assert turn.blocks == min(3, 3 + over)


def test_the_upstream_is_not_late_while_the_client_is_asked() -> None:
    """And its time begins anew when it is asked again."""
    session = a_session(event_timeout_s=8.0, first_event_timeout_s=8.0)
    turn = blocked(session)
    turn.heard = turn.seen = 1
    assert not session.tick(500.0)
    append(session, OUTPUT, now=501.0)
    assert not session.tick(508.0)
    assert any(isinstance(action, AbortTurn) for action in session.tick(509.5))


def test_a_connection_with_a_rollout_that_waits_is_not_idle() -> None:
    """Its client is at work."""
    session = a_session(idle_timeout_s=5.0)
    blocked(session)
    assert not any(isinstance(action, Close) for action in session.tick(100.0))


def test_a_create_waits_behind_the_rollout_of_its_lane_and_nowhere_else() -> None:
    """As behind any response that is not over."""
    session = a_session()
    turn = blocked(session)
    assert isinstance(create(session)[0], TurnQueued)
    assert isinstance(create(session, stream_id="a")[0], StartTurn)
    assert isinstance(append(session, OUTPUT)[0], ResumeTurn)
    assert isinstance(session.turn_ended(turn, 3.0)[0], StartTurn)


def test_a_rollout_that_waits_is_one_of_those_that_run() -> None:
    """So that an append never waits for anybody."""
    session = a_session(max_running_turns=1)
    turn = blocked(session)
    assert isinstance(create(session, stream_id="a")[0], TurnQueued)
    append(session, OUTPUT)
    assert isinstance(session.turn_ended(turn, 3.0)[0], StartTurn)


def test_a_connection_that_retires_lets_no_rollout_wait() -> None:
    """A drain must not wait for tools; what is there can be continued by a create elsewhere."""
    session = a_session()
    turn, other = blocked(session), begin(session, stream_id="a")
    create(session)
    actions = session.retire(2.0, error=Unavailable("x"), close_code=1012, reason="x", grace_s=60.0)
    assert [action for action in actions if isinstance(action, ResumeTurn)] == [ResumeTurn(turn, None)]
    assert any(isinstance(action, DropTurn) for action in actions)
    assert not session.may_block(other)
    (told,) = session.turn_ended(turn, 3.0)
    assert isinstance(told, Send), "the create behind it"
    assert isinstance(session.turn_ended(other, 3.0)[-1], Close)


def test_a_rollout_that_waits_is_ended_with_its_socket() -> None:
    """Also one that nobody samples for has something to give back."""
    session = a_session()
    turn = blocked(session)
    assert list(session.peer_gone()) == [AbortTurn(turn, None)]
    session.turn_ended(turn, 3.0)
