"""Which calls wait for the client: each kind, each way to answer it rightly or wrongly."""

import json
import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_responses.errors import InvalidRequest, ToolCallNotFound, ToolOutputMissing, WireError
from ws_responses.protocol.calls import (
    START,
    UNKNOWN_BASE,
    CallState,
    after_input,
    after_output,
    input_head,
    output_head,
    require_answers,
)
from ws_responses.protocol.items import CALLS, ItemHead
from ws_responses.testing.builder import CALL_KINDS, CallKind
from ws_responses.testing.strategies import answer_to, calls, items

Item = dict[str, Any]

WORDS = {
    "function_call": "function call",
    "custom_tool_call": "custom tool call",
    "computer_call": "computer call",
    "shell_call": "shell call",
    "local_shell_call": "local shell call",
    "apply_patch_call": "apply patch call",
    "tool_search_call": "tool search call",
    "mcp_approval_request": "MCP approval request",
}
"""What the client executes itself: the API reference's list (design, validator)."""


def heads(*given_items: Item) -> list[ItemHead]:
    return [input_head(json.dumps(item).encode(), index) for index, item in enumerate(given_items)]


def outputs(*made: Item) -> list[ItemHead]:
    return [output_head(json.dumps(item).encode()) for item in made]


def after(*made: Item) -> CallState:
    """State after a first response with these items."""
    return after_output(START, outputs(*made))


def a_call(kind: CallKind, name: str = "c1") -> Item:
    """The call, as small as it may be."""
    if kind == "mcp_approval":
        return {"type": "mcp_approval_request", "id": name}
    if kind == "tool_search":
        return {"type": "tool_search_call", "call_id": name, "execution": "client"}
    types: dict[str, str] = {"function": "function_call", "custom": "custom_tool_call"}
    return {"type": types.get(kind, f"{kind}_call"), "call_id": name}


def test_all_kinds_are_known() -> None:
    """A kind that is missing here is orphaned in a long conversation (B100)."""
    assert {call: pairing.words for call, pairing in CALLS.items()} == WORDS
    assert {a_call(kind)["type"] for kind in CALL_KINDS} == set(WORDS)


@pytest.mark.parametrize("kind", CALL_KINDS)
class TestEachKind:
    def test_its_answer_closes_it(self, kind: CallKind) -> None:
        """The next generating turn answers it, once."""
        call = a_call(kind)
        state = after(call)
        with pytest.raises(ToolOutputMissing):
            require_answers(state)
        answered = after_input(state, heads(answer_to(call)))
        require_answers(answered)
        assert answered == START

    def test_it_may_be_made_and_answered_in_one_input(self, kind: CallKind) -> None:
        """A client without a parent sends the whole conversation."""
        call = a_call(kind)
        assert after_input(START, heads(call, answer_to(call))) == START
        assert after_input(START, heads(call)) == after(call)

    def test_an_answer_before_its_call_is_none(self, kind: CallKind) -> None:
        """The model would see an output that answers nothing yet."""
        call = a_call(kind)
        with pytest.raises(ToolCallNotFound):
            after_input(START, heads(answer_to(call), call))

    def test_a_second_answer_is_refused(self, kind: CallKind) -> None:
        """In the same turn or in a later one; ``param`` says which."""
        call = a_call(kind)
        member = "approval_request_id" if kind == "mcp_approval" else "call_id"
        with pytest.raises(ToolCallNotFound) as refused:
            after_input(after(call), heads({"role": "user"}, answer_to(call), answer_to(call)))
        assert refused.value.param == f"input[2].{member}"
        answered = after_input(after(call), heads(answer_to(call)))
        with pytest.raises(ToolCallNotFound) as refused:
            after_input(answered, heads(answer_to(call)))
        assert refused.value.param == f"input[0].{member}"

    def test_an_unknown_call_is_refused(self, kind: CallKind) -> None:
        """With the documented text, which clients match, and the code that we add to it."""
        with pytest.raises(ToolCallNotFound) as refused:
            after_input(after(a_call(kind)), heads(answer_to(a_call(kind, "c2"))))
        error = refused.value
        words = WORDS[a_call(kind)["type"]]
        assert error.message == f"No tool call found for {words} output with call_id c2."
        assert (error.status, error.type, error.code, error.ran) == (
            400,
            "invalid_request_error",
            "tool_call_not_found",
            True,
        )

    def test_a_missing_answer_is_refused(self, kind: CallKind) -> None:
        """With the documented text."""
        with pytest.raises(ToolOutputMissing) as refused:
            require_answers(after(a_call(kind)))
        error = refused.value
        assert error.message == f"No tool output found for {WORDS[a_call(kind)['type']]} c1."
        assert (error.status, error.type, error.code, error.param, error.ran) == (
            400,
            "invalid_request_error",
            "tool_output_missing",
            "input",
            True,
        )

    @pytest.mark.parametrize("other", CALL_KINDS)
    def test_only_an_answer_of_its_kind_counts(self, kind: CallKind, other: CallKind) -> None:
        """The same id under another type is another call."""
        if kind == other:
            return
        with pytest.raises(ToolCallNotFound):
            after_input(after(a_call(kind)), heads(answer_to(a_call(other))))

    def test_calls_of_all_kinds_may_share_an_id(self, kind: CallKind) -> None:
        """Ids are told apart by kind, so that one answer does not close two calls."""
        state = after(*[a_call(each) for each in CALL_KINDS])
        left = after_input(state, heads(answer_to(a_call(kind))))
        assert len(left.open) == len(CALL_KINDS) - 1

    def test_an_answer_that_names_nothing_is_refused(self, kind: CallKind) -> None:
        """Also where unknown calls are the app's business: it could not even ask."""
        answer = answer_to(a_call(kind))
        member = "approval_request_id" if kind == "mcp_approval" else "call_id"
        for value in ({}, {member: None}, {member: ""}):
            nameless = {name: each for name, each in answer.items() if name != member} | value
            for state in (START, UNKNOWN_BASE):
                with pytest.raises(InvalidRequest) as refused:
                    after_input(state, heads({"role": "user"}, nameless))
                assert refused.value.param == f"input[1].{member}"
                assert "missing" in refused.value.message

    def test_on_an_unknown_base_unknown_answers_pass(self, kind: CallKind) -> None:
        """After a compaction, or with ``conversation``, the call may be one that we never saw."""
        assert after_input(UNKNOWN_BASE, heads(answer_to(a_call(kind)))) == UNKNOWN_BASE

    def test_hosted_tools_answer_their_own_calls(self, kind: CallKind) -> None:
        """A call and its output in one response are nothing for the client to do."""
        call = a_call(kind)
        assert after(call, answer_to(call)) == START
        assert after(answer_to(call)) == START

    @given(data=st.data())
    def test_it_is_read_as_clients_send_it(self, kind: CallKind, data: st.DataObject) -> None:
        """With all its other members, in any order."""
        call = data.draw(calls(kinds=[kind]))
        answer = answer_to(call, by_item_id=data.draw(st.booleans()))
        shuffled = dict(data.draw(st.permutations(list(answer.items()))))
        assert after_input(after(call), heads(shuffled)) == START


def test_the_oldest_missing_answer_is_named() -> None:
    """One error names one call; the first is the one that the client looks for first."""
    state = after(a_call("shell", "s1"), a_call("function", "f1"))
    with pytest.raises(ToolOutputMissing, match="shell call s1"):
        require_answers(state)
    with pytest.raises(ToolOutputMissing, match="function call f1"):
        require_answers(after_input(state, heads(answer_to(a_call("shell", "s1")))))


def test_a_call_that_the_model_did_not_finish_may_be_left() -> None:
    """Its arguments are cut off; but an answer to it is welcome."""
    call = {**a_call("function"), "status": "incomplete"}
    state = after(call)
    require_answers(state)
    assert after_input(state, heads(answer_to(call))) == START
    for status in ("completed", "in_progress", None):
        with pytest.raises(ToolOutputMissing):
            require_answers(after({**call, "status": status}))


def test_tool_search_of_the_server_is_nothing_for_the_client() -> None:
    """Only ``execution: "client"`` is; the server's own output may come back in a full history."""
    call: Item = {"type": "tool_search_call", "call_id": None, "execution": "server"}
    output: Item = {"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []}
    assert after(call, output) == START
    assert after({**call, "call_id": "x", "execution": None}) == START
    assert after_input(START, heads(call, output)) == START


def test_a_tool_search_output_is_the_clients_unless_it_says_otherwise() -> None:
    """A client that leaves ``execution`` out still answers its call."""
    state = after(a_call("tool_search"))
    assert after_input(state, heads({"type": "tool_search_output", "call_id": "c1", "tools": []})) == START
    with pytest.raises(ToolCallNotFound):
        after_input(START, heads({"type": "tool_search_output", "call_id": "c1", "tools": []}))


def test_a_local_shell_answer_may_name_its_call_by_id() -> None:
    """The reference has ``id``, Codex and the SDKs ``call_id``; with both, the latter counts (Codex gives each item an id)."""
    state = after(a_call("local_shell"))
    assert after_input(state, heads({"type": "local_shell_call_output", "id": "c1"})) == START
    assert after_input(state, heads({"type": "local_shell_call_output", "id": "own", "call_id": "c1"})) == START
    with pytest.raises(ToolCallNotFound):
        after_input(state, heads({"type": "local_shell_call_output", "id": "c1", "call_id": "own"}))
    with pytest.raises(InvalidRequest):
        after_input(after(a_call("function")), heads({"type": "function_call_output", "id": "c1"}))


@pytest.mark.parametrize("kind", [kind for kind in CALL_KINDS if kind not in ("mcp_approval", "tool_search")])
def test_a_call_in_the_input_needs_a_name(kind: CallKind) -> None:
    """Its answer could never be told from another's; a call with an item id only is named by that."""
    call = a_call(kind)
    nameless = {"type": call["type"]}
    with pytest.raises(InvalidRequest) as refused:
        after_input(START, heads({"role": "user"}, nameless))
    assert refused.value.param == "input[1].call_id"
    assert after_input(START, heads({**nameless, "id": "c1"})) == after(call)
    assert after_output(START, outputs(nameless)) == START


def test_an_approval_request_in_the_input_needs_its_id() -> None:
    """It is named by ``id``, not by ``call_id``."""
    with pytest.raises(InvalidRequest) as refused:
        after_input(START, heads({"type": "mcp_approval_request", "call_id": "c1"}))
    assert refused.value.param == "input[0].id"


# -- bases ---------------------------------------------------------------------------------------------------------------

COMPACTION: Item = {"type": "compaction", "encrypted_content": "x"}


def test_a_compaction_closes_what_was_open_and_hides_what_was_made() -> None:
    """Rule 9: a new base. What was compacted may hold calls that we never saw."""
    call, other = a_call("function"), a_call("function", "c2")
    state = after_input(after(call), heads(COMPACTION))
    assert state == UNKNOWN_BASE
    assert after_output(after(call), outputs(COMPACTION)) == UNKNOWN_BASE
    assert after_input(state, heads(answer_to(call))) == UNKNOWN_BASE
    made = after_output(state, outputs(other))
    with pytest.raises(ToolOutputMissing, match="c2"):
        require_answers(made)
    assert after_input(made, heads(answer_to(other), answer_to(call))) == UNKNOWN_BASE


def test_calls_after_a_compaction_in_the_same_input_count() -> None:
    """Order decides."""
    call = a_call("function")
    assert after_input(START, heads(call, COMPACTION)) == UNKNOWN_BASE
    with pytest.raises(ToolOutputMissing):
        require_answers(after_input(START, heads(COMPACTION, call)))


def test_a_reference_hides_one_item_but_closes_nothing() -> None:
    """It may point at a call; the calls that we know must still be answered."""
    call = a_call("function")
    state = after_input(after(call), heads({"type": "item_reference", "id": "msg_1"}))
    assert not state.known
    assert after_input(state, heads(answer_to(a_call("shell", "elsewhere")))) == state
    with pytest.raises(ToolOutputMissing):
        require_answers(state)


def test_a_reference_in_the_output_changes_nothing() -> None:
    """The upstream names what it knows; nothing is asked of the client."""
    assert after({"type": "item_reference", "id": "msg_1"}) == START


# -- items that are none -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["7", '"text"', "null", "[]", "true", "1e999", "-1"])
def test_an_item_is_an_object(value: str) -> None:
    """The path says which one."""
    with pytest.raises(InvalidRequest) as refused:
        input_head(value.encode(), 3)
    assert (refused.value.param, refused.value.status) == ("input[3]", 400)
    assert output_head(value.encode()) == ItemHead()


@pytest.mark.parametrize(
    ("item", "param"),
    [
        ({}, "input[2].type"),
        ({"content": "x"}, "input[2].type"),
        ({"type": None}, "input[2].type"),
        ({"type": 7}, "input[2].type"),
        ({"type": 7, "role": "user"}, "input[2].type"),
        ({"role": 7}, "input[2].role"),
        ({"type": "message", "role": []}, "input[2].role"),
        ({"type": "function_call_output", "call_id": 7}, "input[2].call_id"),
        ({"type": "function_call", "call_id": {"x": "`$.y`"}}, "input[2].call_id"),
        ({"type": "mcp_approval_response", "approval_request_id": True}, "input[2].approval_request_id"),
        ({"type": "tool_search_output", "execution": 1}, "input[2].execution"),
        ({"type": "item_reference", "id": 1}, "input[2].id"),
    ],
)
def test_wrong_members_are_named_by_their_path(item: Item, param: str) -> None:
    """A client with a hundred items in its input must be told which one."""
    with pytest.raises(InvalidRequest) as refused:
        input_head(json.dumps(item).encode(), 2)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "x"},
        {"type": None, "role": "user", "content": "x"},
        {"type": "message", "role": "user"},
        {"type": "made_up"},
        {"type": "made_up", "id": 7, "call_id": [], "status": {}},
        {"type": "web_search_call", "id": 7, "status": None},
        {"type": "slug:item_output", "call_id": 7},
        {"type": "reasoning", "status": 1},
    ],
)
def test_other_items_pass_whatever_they_hold(item: Item) -> None:
    """Unknown types are the app's business, and so are members that pair nothing."""
    assert after_input(START, heads(item)) == START
    assert after(item) == START


def test_names_of_tools_are_not_judged() -> None:
    """They pair nothing; the app knows its tools."""
    call = {**a_call("function"), "name": 7}
    assert after_input(START, heads(call, answer_to(call))) == START


@pytest.mark.parametrize("kind", CALL_KINDS)
@pytest.mark.parametrize("member", ["status", "role", "execution", "id"])
def test_a_call_counts_whatever_else_the_app_gets_wrong(kind: CallKind, member: str) -> None:
    """If it did not, the client's answer would be refused as one to an unknown call."""
    call = a_call(kind)
    if member in call:
        return
    assert len(after({**call, member: 7}).open) == 1


def test_duplicate_members_count_as_the_last_says() -> None:
    """As in the app's own decoder."""
    item = b'{"type":"message","role":7,"type":"function_call_output","call_id":"x","call_id":"c1","role":null}'
    assert after_input(after(a_call("function")), [input_head(item, 0)]) == START


def test_long_ids_are_not_repeated_in_errors() -> None:
    """The refusal must be small whatever provoked it."""
    huge = "x" * 1_000_000
    with pytest.raises(ToolCallNotFound) as refused:
        after_input(START, heads(answer_to(a_call("function", huge))))
    assert len(refused.value.message) < 500
    with pytest.raises(ToolOutputMissing) as missing:
        require_answers(after(a_call("function", huge)))
    assert len(missing.value.message) < 500


def test_an_item_that_is_too_deep_is_refused() -> None:
    """Without this a conversation could break by what one of its items holds."""
    deep = b'{"type":"message","role":"user","content":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    assert output_head(deep) == ItemHead()
    with pytest.raises(InvalidRequest) as refused:
        input_head(deep, 4)
    assert refused.value.param == "input[4]"


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="code in C has a stack of its own")
def test_an_item_that_is_too_deep_for_the_stack_is_refused() -> None:
    """How deep a decoder may go depends on where it is called; here it may be deeper than where the frame was read."""
    deep = b'{"type":"message","role":"user","content":' + b"[" * 500 + b"]" * 500 + b"}"
    assert input_head(deep, 0).type == output_head(deep).type == "message"

    def deeper(frames: int) -> None:
        if frames:
            deeper(frames - 1)
        else:
            assert output_head(deep) == ItemHead()
            input_head(deep, 4)

    limit = sys.getrecursionlimit()
    here = len(_stack())
    with pytest.raises((InvalidRequest, RecursionError)) as refused:
        deeper(limit - here - 400)
    assert isinstance(refused.value, InvalidRequest)
    assert refused.value.param == "input[4]"


def _stack() -> list[Any]:
    frame: Any = sys._getframe()
    frames = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return frames


# -- the state is a function of the items --------------------------------------------------------------------------------


def verdict(state: CallState, walked: list[ItemHead]) -> CallState | tuple[type[WireError], str, str | None]:
    try:
        return after_input(state, walked)
    except WireError as error:
        return type(error), error.message, error.param


def shifted(param: str | None, by: int) -> str | None:
    if param is None:
        return None
    index, _, rest = param.removeprefix("input[").partition("]")
    return f"input[{int(index) + by}]{rest}"


@given(st.lists(items(), max_size=10), st.lists(items(), max_size=4), st.integers(0, 10))
def test_walking_in_two_steps_is_walking_at_once(walked: list[Item], before: list[Item], at: int) -> None:
    """This is what lets a turn's check look at its new items only."""
    start = after_output(START, outputs(*before))
    all_heads = [input_head(json.dumps(item).encode(), index) for index, item in enumerate(walked)]
    first, rest = all_heads[:at], all_heads[at:]
    at_once = verdict(start, all_heads)
    halfway = verdict(start, first)
    if isinstance(halfway, tuple):
        assert at_once == halfway
        return
    in_steps = verdict(halfway, rest)
    if isinstance(in_steps, tuple):
        kind, message, param = in_steps
        path = shifted(param, len(first))
        assert at_once == (kind, message.replace(str(param), str(path)), path)
    else:
        assert at_once == in_steps


@given(st.lists(items(), max_size=8), st.integers(0, 8))
def test_output_walks_in_steps_too(made: list[Item], at: int) -> None:
    """And never refuses anything: the upstream has spoken."""
    whole = outputs(*made)
    assert after_output(after_output(START, whole[:at]), whole[at:]) == after_output(START, whole)


@given(st.lists(items(), max_size=8))
def test_unchanged_states_are_shared(made: list[Item]) -> None:
    """A chain of a thousand turns with nothing open keeps one state, not a thousand."""
    state = after_output(START, outputs(*made))
    assert after_output(state, outputs({"type": "message", "role": "assistant"})) is state
    assert after_input(state, heads({"role": "user"})) is state
    if not state.open:
        assert state is (START if state.known else UNKNOWN_BASE)
    assert msgspec.json.decode(msgspec.json.encode(state), type=CallState) == state
