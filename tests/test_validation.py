"""The verdict on a turn's new items is the verdict on the whole conversation."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_responses.errors import InvalidRequest, ToolCallNotFound, ToolOutputMissing, WireError
from ws_responses.protocol.creates import ResponseCreate, parse_create
from ws_responses.protocol.frames import decode_members, lane_of
from ws_responses.testing.strategies import ConversationTurn, answer_to, conversations, history
from ws_responses.validation import (
    START,
    UNKNOWN_BASE,
    CallState,
    OpenCalls,
    check_input,
    check_output,
    heads_of,
    starts_base,
)

Item = dict[str, Any]

CALL: Item = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
ANSWER: Item = {"type": "function_call_output", "call_id": "c1", "output": "x"}
USER: Item = {"role": "user", "content": "x"}
UNKNOWN: Item = {"type": "function_call_output", "call_id": "unknown", "output": "x"}
OPEN = check_output(START, [json.dumps(CALL).encode()])


def create(given_input: Any, **members: Any) -> ResponseCreate:
    frame = {"type": "response.create", "model": "m", "input": given_input, **members}
    decoded = decode_members(json.dumps(frame))
    return parse_create(decoded, lane_of(decoded), 0)


def check(
    parent: CallState | None,
    *given_items: Item,
    base_known: bool = True,
    open_calls: OpenCalls = "check",
    **members: Any,
) -> CallState:
    frame = create(list(given_items), **members)
    return check_input(frame, parent, heads_of(frame.items()), base_known=base_known, open_calls=open_calls)


# -- the whole conversation ----------------------------------------------------------------------------------------------

NAMES = {"mcp_approval_request": ("id", "mcp_approval_response", "approval_request_id")}


def naive(items: Sequence[Item]) -> str | None:
    """Judge a whole conversation by looking back from each answer, and forward from each call."""
    for at, item in enumerate(items):
        calls = [call for call in items[:at] if answers(item, call)]
        if is_answer(item):
            earlier = [other for other in items[:at] if is_answer(other) and name_of(other) == name_of(item)]
            if len(calls) != 1 or any(other["type"] == item["type"] for other in earlier):
                return "tool_call_not_found"
    for at, call in enumerate(items):
        if is_call(call) and not any(answers(item, call) for item in items[at:]):
            return "tool_output_missing"
    return None


def is_call(item: Item) -> bool:
    if item["type"] == "tool_search_call":
        return item.get("execution") == "client"
    return item["type"] == "mcp_approval_request" or (item["type"].endswith("_call") and "call_id" in item)


def is_answer(item: Item) -> bool:
    if item["type"] == "tool_search_output":
        return item.get("execution") == "client"
    return item["type"] == "mcp_approval_response" or (
        item["type"].endswith("_output") and item["type"] != "program_output" and "call_id" in item
    )


def name_of(answer: Item) -> Any:
    return answer.get("approval_request_id", answer.get("call_id"))


def answers(item: Item, call: Item) -> bool:
    if not (is_answer(item) and is_call(call)):
        return False
    name = call["id"] if call["type"] == "mcp_approval_request" else call["call_id"]
    expected = answer_to(call)["type"]
    return bool(item["type"] == expected and name_of(item) == name)


def outcome(run: Any) -> tuple[str | None, str | None, CallState | None]:
    try:
        return None, None, run()
    except WireError as error:
        return error.code, error.message, None


@given(conversations(forks=True))
def test_the_incremental_verdict_is_the_verdict_on_the_whole(turns: list[ConversationTurn]) -> None:
    """Otherwise a conversation's fate depends on how it was cut into frames, and on whether it was resumed."""
    states: list[CallState] = []
    for index, turn in enumerate(turns):
        parent = None if turn.parent is None else states[turn.parent]
        whole = history(turns, index)
        code, message, state = outcome(lambda turn=turn, parent=parent: check(parent, *turn.input))
        at_once_code, at_once_message, at_once = outcome(lambda whole=whole: check(None, *whole))
        typed = [{"type": "message", **item} for item in whole]
        assert code == at_once_code == naive(typed)
        if message is not None:
            assert message == at_once_message
        assert state == at_once
        assert (
            code
            == {
                None: None,
                "missing": "tool_output_missing",
                "unknown": "tool_call_not_found",
                "duplicate": "tool_call_not_found",
                "other_kind": "tool_call_not_found",
            }[turn.flaw]
        )
        states.append(START if state is None else check_output(state, [json.dumps(x).encode() for x in turn.output]))


@given(conversations(forks=True))
def test_apps_that_judge_themselves_get_everything(turns: list[ConversationTurn]) -> None:
    """With ``open_calls="app"`` no answer is refused; the state is carried all the same."""
    states: list[CallState] = []
    for turn in turns:
        parent = None if turn.parent is None else states[turn.parent]
        state = check(parent, *turn.input, open_calls="app")
        assert not state.known
        states.append(check_output(state, [json.dumps(item).encode() for item in turn.output]))
        if turn.flaw is None and not turn.calls:
            assert states[-1] == UNKNOWN_BASE


@given(conversations(forks=False, flaws=False), st.data())
def test_warm_ups_anywhere_change_no_verdict(turns: list[ConversationTurn], data: st.DataObject) -> None:
    """A warm-up may bring some of the answers, or all, or none."""
    state: CallState | None = None
    for turn in turns:
        at = data.draw(st.integers(0, len(turn.input)))
        warmed = check(state, *turn.input[:at], generate=False)
        direct = check(state, *turn.input)
        assert check(warmed, *turn.input[at:]) == direct
        state = check_output(direct, [json.dumps(item).encode() for item in turn.output])


# -- single rules --------------------------------------------------------------------------------------------------------


def test_a_generating_turn_must_answer() -> None:
    """Also one whose input is a string, empty, or absent."""
    assert check(OPEN, ANSWER) == START
    for given_input in ("text", [], None, [USER]):
        frame = create(given_input)
        with pytest.raises(ToolOutputMissing):
            check_input(frame, OPEN, heads_of(frame.items()))


@pytest.mark.parametrize("member", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}])
def test_a_warm_up_need_not_answer_but_must_not_answer_wrongly(member: dict[str, Any]) -> None:
    """It generates nothing, so that nothing is missing yet; but its items are kept for all that follows."""
    assert check(OPEN, USER, **member) == OPEN
    assert check(None, CALL, **member) == OPEN
    assert check(OPEN, ANSWER, **member) == START
    with pytest.raises(ToolCallNotFound):
        check(OPEN, UNKNOWN, **member)


@pytest.mark.parametrize("named", ["conv_1", {"id": "conv_1"}])
def test_a_conversation_is_the_apps(named: Any) -> None:
    """It may hold any calls, and the answers to ours."""
    assert check(None, CALL, USER, conversation=named) == CallState(OPEN.open, known=False)
    assert check(None, UNKNOWN, conversation=named) == UNKNOWN_BASE
    assert check(None, CALL, ANSWER, conversation=named) == UNKNOWN_BASE


def test_a_prompt_may_hold_calls_that_we_do_not_know() -> None:
    """But those that we know must be answered."""
    assert check(None, UNKNOWN, prompt={"id": "p"}) == UNKNOWN_BASE
    with pytest.raises(ToolOutputMissing):
        check(None, CALL, prompt={"id": "p"})
    with pytest.raises(ToolOutputMissing):
        check(OPEN, USER, prompt={"id": "p"})


@pytest.mark.parametrize("named", [{"conversation": None}, {"prompt": None}])
def test_null_is_absent(named: dict[str, Any]) -> None:
    """Clients send null for what they do not use."""
    with pytest.raises(ToolCallNotFound):
        check(None, UNKNOWN, **named)


def test_on_a_base_that_only_the_app_knows_its_calls_pass() -> None:
    """History mode "forward" with an id that was made over plain HTTP."""
    assert check(None, UNKNOWN, base_known=False) == UNKNOWN_BASE
    made = check_output(UNKNOWN_BASE, [json.dumps(CALL).encode()])
    with pytest.raises(ToolOutputMissing):
        check(made, USER, base_known=True)
    assert check(made, ANSWER, UNKNOWN) == UNKNOWN_BASE


@pytest.mark.parametrize(
    ("items", "base"),
    [
        ([], False),
        ([USER], False),
        ([{"type": "compaction_trigger"}], False),
        ([{"type": "item_reference", "id": "x"}], False),
        ([{"type": "compaction"}], True),
        ([USER, {"type": "compaction"}, USER], True),
    ],
)
def test_a_compaction_item_starts_a_base(items: list[Item], base: bool) -> None:
    """Rule 9; a trigger only asks for one."""
    assert starts_base(heads_of([json.dumps(item).encode() for item in items])) is base


def test_the_path_of_the_item_at_fault() -> None:
    """Counted in this turn's own input: that is what the client sent."""
    with pytest.raises(ToolCallNotFound) as refused:
        check(OPEN, USER, ANSWER, UNKNOWN)
    assert refused.value.param == "input[2].call_id"
    with pytest.raises(InvalidRequest) as wrong:
        heads_of([b"{}", b"7"])
    assert wrong.value.param == "input[0].type"


def test_a_refused_turn_leaves_the_parents_state_alone() -> None:
    """A retry is judged as the first try was."""
    before = (OPEN.open, OPEN.known)
    for bad in ([UNKNOWN], [ANSWER, ANSWER], [USER]):
        with pytest.raises(WireError):
            check(OPEN, *bad)
    assert (OPEN.open, OPEN.known) == before
    assert check(OPEN, ANSWER) == START


def test_items_after_the_answer_do_not_matter() -> None:
    """Answers may come in any order, among other items."""
    two = check_output(OPEN, [json.dumps({**CALL, "call_id": "c2"}).encode()])
    assert check(two, USER, {**ANSWER, "call_id": "c2"}, USER, ANSWER, USER) == START


def test_without_anything_open_nothing_is_walked() -> None:
    """The usual turn of a chat costs nothing here."""
    assert check_input(create([]), START, []) is START
    assert check_output(START, []) is START
