"""Steering without a socket: what a submission is, what the client must bring, and what the session decides."""

import json
from collections.abc import Iterable
from itertools import count
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseSteerRequiredInput
from pydantic import TypeAdapter

from ws_responses.errors import Unavailable
from ws_responses.limits import Limits
from ws_responses.protocol.actions import Action, Actions, Close, EndEarly, Send, StartTurn, TellSteer
from ws_responses.protocol.calls import START, after_output, output_head
from ws_responses.protocol.pending_steers import pending
from ws_responses.protocol.session import Session
from ws_responses.protocol.steering import Ending, read_items, required_input
from ws_responses.protocol.submissions import SubmissionRefused
from ws_responses.protocol.turns import Turn
from ws_responses.testing.builder import CALL_KINDS, CallKind, ResponseBuilder

REQUIRED: TypeAdapter[Any] = TypeAdapter(ResponseSteerRequiredInput)
STUB = {"type": "function_call_output", "call_id": "c1", "name": "f"}
DONE = Ending("completed", continuable=True)
WAITS = Ending("completed", continuable=True, required=[STUB])


def call_of(kind: CallKind) -> dict[str, Any]:
    """A finished call as an app sends it."""
    builder = ResponseBuilder({})
    item: dict[str, Any] = [event for event in builder.tool_call("look", kind=kind) if "item" in event][-1]["item"]
    return item


def stubs(*items: dict[str, Any]) -> list[dict[str, str]]:
    output = [json.dumps(item).encode() for item in items]
    return required_input(after_output(START, map(output_head, output)), output)


@pytest.mark.parametrize("kind", CALL_KINDS)
def test_each_kind_of_call_has_its_stub(kind: CallKind) -> None:
    """The client fills it and sends it back: a member that is missing, or one too many, is refused then."""
    call = call_of(kind)
    (stub,) = stubs({"type": "message", "role": "assistant"}, call)
    key = call["id"] if kind == "mcp_approval" else call["call_id"]
    assert key in stub.values()
    assert set(stub) - {"type", "call_id", "approval_request_id", "name", "execution"} == set()
    assert ("name" in stub) == (kind == "function")
    if kind != "local_shell":  # which the SDK's type has not
        assert REQUIRED.validate_python(stub).model_dump() == stub


def test_what_need_not_be_answered_is_not_asked_for() -> None:
    """A call that the model did not finish, and one whose output the service has made itself."""
    call = call_of("function")
    assert not stubs({**call, "status": "incomplete"})
    assert not stubs(call, {"type": "function_call_output", "call_id": call["call_id"], "output": "x"})


@pytest.mark.parametrize(
    "given",
    [
        [],
        None,
        7,
        {},
        ["x"],
        [{"role": "assistant", "content": "x"}],
        [{"role": "user"}],
        [{"role": "user", "content": 7}],
        [{"role": "user", "content": "x", "id": "msg_1"}],
        [{"role": "user", "content": [{"type": "output_text", "text": "x"}]}],
        [{"role": "user", "content": ["x"]}],
        [{"role": "user", "content": "x"}, {"type": "function_call_output", "call_id": "c", "output": "x"}],
    ],
)
def test_only_messages_of_the_user_steer(given: Any) -> None:
    """Guide: no other roles, no tool outputs, no other members."""
    with pytest.raises(SubmissionRefused) as refused:
        read_items(msgspec.json.decode(frame_of(given), type=dict[str, msgspec.Raw]))
    assert refused.value.code == "invalid_input"


def test_messages_are_taken_byte_exact() -> None:
    """What the decoder changes is a prompt that misses its cache."""
    spelled = '{ "role":"user" , "content":[{"type":"input_image","image_url":"data:\\u00e9"} ]}'
    members = msgspec.json.decode(f'{{"input":[{spelled}, {spelled}]}}', type=dict[str, msgspec.Raw])
    assert read_items(members).decode() == f"{spelled},{spelled}"


def frame_of(given: Any, **more: Any) -> str:
    return json.dumps({"type": "response.steer", "previous_response_id": "resp_1", "input": given, **more})


# -- the session ---------------------------------------------------------------------------------------------------------


def a_session(**limits: Any) -> Session:
    ids, steers = count(1), count(1)
    return Session(
        Limits(**limits), now=0.0, turn_ids=lambda: f"turn_{next(ids)}", steer_ids=lambda: f"steer_{next(steers)}"
    )


def create(session: Session, **members: Any) -> Actions:
    return session.frame_received(json.dumps({"type": "response.create", "model": "m", **members}), 1.0)


def started(actions: Iterable[Action]) -> Turn:
    (turn,) = [action.turn for action in actions if isinstance(action, StartTurn)]
    return turn


def begin(session: Session, turn: Turn, response_id: str = "resp_1") -> list[tuple[str, Any]]:
    turn.inherited = {"model": msgspec.Raw(b'"m"')}
    return told(session.turn_event(turn, response_id))


def told(actions: Iterable[Action]) -> list[tuple[str, Any]]:
    """What is told of steers: the last word of the event, and the code or the input."""
    steers = [action for action in actions if isinstance(action, TellSteer)]
    return [
        (each.kind.rpartition(".")[2], each.members["error"]["code"] if "error" in each.members else None)
        for each in steers
    ]


def inputs(turn: Turn) -> list[Any]:
    return [json.loads(bytes(item))["content"] for item in turn.create.items()]


def test_a_create_that_carries_steers_and_fails_gives_them_back() -> None:
    """They were the client's before the create, and are the client's again."""
    session = a_session()
    first = started(create(session, input="a"))
    begin(session, first)
    assert [type(action) for action in session.frame_received(frame_of("x"), 1.0)] == [TellSteer, EndEarly]
    assert told(session.turn_ended(first, 2.0, WAITS)) == [("pending", None)]
    second = started(create(session, previous_response_id="resp_1", input="outputs"))
    assert inputs(second) == ["x", "outputs"]
    assert len(pending(session.lanes)) == 1
    assert told(session.turn_ended(second, 3.0)) == [("failed", "successor_creation_failed")]
    assert not pending(session.lanes)


def test_a_create_that_carries_steers_commits_them_when_its_response_begins() -> None:
    """What happens to it then is no affair of theirs."""
    session = a_session()
    first = started(create(session))
    begin(session, first)
    session.frame_received(frame_of("x"), 1.0)
    session.turn_ended(first, 2.0, WAITS)
    second = started(create(session, previous_response_id="resp_1"))
    assert not begin(session, second, "resp_2")
    assert not pending(session.lanes)
    assert not told(session.turn_ended(second, 3.0))


def test_a_fork_and_a_warm_up_take_no_steers() -> None:
    """They are for the lane's next response."""
    session = a_session()
    first = started(create(session))
    begin(session, first)
    session.frame_received(frame_of("x"), 1.0)
    session.turn_ended(first, 2.0, WAITS)
    fork = started(create(session, previous_response_id="resp_1", stream_id="other", input=[]))
    warm_up = started(create(session, previous_response_id="resp_1", generate=False, input=[]))
    assert inputs(fork) == inputs(warm_up) == []
    assert not begin(session, warm_up, "resp_2")
    session.turn_ended(warm_up, 3.0, DONE)
    assert inputs(started(create(session, previous_response_id="resp_1", input=[]))) == ["x"]


def test_a_connection_that_retires_gives_steers_back_before_its_close() -> None:
    """After the close nobody could."""
    session = a_session()
    first = started(create(session))
    begin(session, first)
    session.frame_received(frame_of("x"), 1.0)
    session.retire(2.0, error=Unavailable("down"), close_code=1012, reason="restart", grace_s=10.0)
    (refused,) = session.frame_received(frame_of("y"), 2.0)
    assert isinstance(refused, Send)
    assert json.loads(refused.frame)["error"]["code"] == "response_not_active"
    actions = session.turn_ended(first, 3.0, DONE)
    assert told(actions) == [("failed", "successor_creation_failed")]
    assert isinstance(actions[-1], Close)


def test_a_successor_is_counted_among_the_running() -> None:
    """Else a client could run more than may run, by steering."""
    session = a_session(max_running_turns=1)
    first = started(create(session))
    begin(session, first)
    create(session, stream_id="waits")
    session.frame_received(frame_of("x"), 1.0)
    actions = session.turn_ended(first, 2.0, DONE)
    successor = started(actions)
    assert (successor.automatic, successor.lane.name) == (True, None)
    assert started(session.turn_ended(successor, 3.0)).lane.name == "waits"


@pytest.mark.parametrize(("limit", "accepted"), [(1, 1), (2, 2), (3, 2)])
def test_so_many_may_be_pending(limit: int, accepted: int) -> None:
    """At n - 1, n and n + 1."""
    session = a_session(max_pending_steers=limit)
    begin(session, started(create(session)))
    answers = [session.frame_received(frame_of("x"), 1.0)[0] for _ in range(2)]
    assert [isinstance(answer, TellSteer) for answer in answers].count(True) == accepted


@pytest.mark.parametrize(("size", "kind"), [(9, TellSteer), (10, TellSteer), (11, Send)])
def test_so_many_bytes_may_be_pending(size: int, kind: type) -> None:
    """At n - 1, n and n + 1, quotes included."""
    session = a_session(max_pending_steer_bytes=10)
    begin(session, started(create(session)))
    assert type(session.frame_received(frame_of("x" * (size - 2)), 1.0)[0]) is kind


def test_a_target_is_named_and_its_input_is_there() -> None:
    """Without them there is nothing to give back: an error of the frame."""
    session = a_session()
    for frame, param in (
        ('{"type":"response.steer","input":"x"}', "previous_response_id"),
        ('{"type":"response.steer","previous_response_id":"","input":"x"}', "previous_response_id"),
        ('{"type":"response.steer","previous_response_id":"r"}', "input"),
    ):
        (refused,) = session.frame_received(frame, 1.0)
        assert isinstance(refused, Send)
        told = json.loads(refused.frame)
        assert (told["type"], told["error"]["param"]) == ("error", param)
