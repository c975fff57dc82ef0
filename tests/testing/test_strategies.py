"""What the strategies draw is what they say, and every kind of it does come up."""

import contextlib
import json
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from ws_responses.testing import ModelError, ScriptedModel
from ws_responses.testing.builder import CALL_KINDS
from ws_responses.testing.strategies import (
    FLAWS,
    ConversationTurn,
    SSEStream,
    answer_to,
    calls,
    client_frames,
    conversations,
    create_bodies,
    event_streams,
    history,
    items,
    json_values,
    sse_bytes,
)

SDK_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SEARCH = settings(
    max_examples=2000,
    database=None,
    derandomize=True,
    phases=[Phase.generate],  # the first hit will do
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def decoded(frame: str) -> Any:
    try:
        return json.loads(frame)
    except (ValueError, RecursionError):
        return None


@given(client_frames())
def test_frames_can_be_sent(frame: str) -> None:
    frame.encode()


@given(client_frames(valid_only=True))
def test_valid_frames_are_creates(frame: str) -> None:
    assert json.loads(frame)["type"] == "response.create"


@pytest.mark.parametrize(
    "pattern",
    [
        r"^$",
        r'"type": ?7',
        r'"response\.append"',
        r'"response\.creat"',
        r'"response": \{"model"',
        r'"stream_id"',
        r'"generate": false',
        r"NaN",
        r"\[{100}",
        r'"(model|input)": (\d|true|null)',
    ],
)
def test_odd_frames_come_up(pattern: str) -> None:
    find(client_frames(), lambda frame: re.search(pattern, frame) is not None, settings=SEARCH)


@given(json_values(surrogates=True))
def test_json_values_survive_json(value: Any) -> None:
    assert json.loads(json.dumps(value)) == value


@pytest.mark.parametrize(
    "kind",
    [
        "message",
        "reasoning",
        "function_call",
        "local_shell_call_output",
        "mcp_approval_response",
        "compaction",
        "web_search_call",
        "program",
        "item_reference",
        "tool_search_output",
        "made_up_output",
    ],
)
def test_items_of_each_kind_come_up(kind: str) -> None:
    find(items(), lambda item: item.get("type") == kind, settings=SEARCH)


@given(st.lists(items(bases=False)))
def test_items_without_bases(drawn: list[dict[str, Any]]) -> None:
    assert not {"compaction", "item_reference"} & {item.get("type") for item in drawn}


def test_calls_and_answers_can_be_linked() -> None:
    def linked(drawn: list[dict[str, Any]]) -> bool:
        first, second = drawn
        return second == answer_to(first, output=second.get("output", "done")) and second["type"].endswith("_output")

    find(st.tuples(items(), items()).map(list).filter(lambda pair: "call_id" in pair[0]), linked, settings=SEARCH)


@pytest.mark.parametrize("kind", CALL_KINDS)
@given(data=st.data())
def test_an_answer_names_its_call(kind: Any, data: st.DataObject) -> None:
    call = data.draw(calls(kinds=[kind]))
    by_item_id = data.draw(st.booleans())
    answer = answer_to(call, by_item_id=by_item_id)
    if kind == "mcp_approval":
        assert answer["approval_request_id"] == call["id"]
    else:
        assert answer["id" if kind == "local_shell" and by_item_id else "call_id"] == call["call_id"]
    ScriptedModel().events({"input": [call, answer]})


@given(conversations(flaws=False, forks=True))
def test_right_conversations_answer_each_call_once(turns: list[ConversationTurn]) -> None:
    for index, turn in enumerate(turns):
        assert turn.flaw is None
        ScriptedModel().events({"input": history(turns, index)})
        answered = [item.get("call_id", item.get("approval_request_id")) for item in turn.input]
        due = [] if turn.parent is None else turns[turn.parent].calls
        wanted = [call["id"] if call["type"] == "mcp_approval_request" else call["call_id"] for call in due]
        assert sorted(filter(None, answered)) == sorted(wanted)


@given(conversations())
def test_a_flawed_turn_has_no_output_and_is_not_continued(turns: list[ConversationTurn]) -> None:
    for turn in turns:
        assert turn.input
        assert turn.flaw is None or turn.output == []
        assert turn.parent is None or turns[turn.parent].flaw is None


@given(conversations(max_turns=3))
def test_unknown_calls_are_unknown(turns: list[ConversationTurn]) -> None:
    for index, turn in enumerate(turns):
        if turn.flaw == "unknown":
            with pytest.raises(ModelError):
                ScriptedModel().events({"input": history(turns, index)})


@pytest.mark.parametrize("flaw", FLAWS)
def test_each_flaw_comes_up(flaw: str) -> None:
    find(conversations(), lambda turns: any(turn.flaw == flaw for turn in turns), settings=SEARCH)


def test_forks_come_up() -> None:
    find(conversations(forks=True), lambda turns: [turn.parent for turn in turns[-2:]] == [0, 0], settings=SEARCH)


@given(event_streams())
def test_event_streams_are_in_order(events: list[dict[str, Any]]) -> None:
    types = [event["type"].removeprefix("response.") for event in events]
    assert types[:2] == ["created", "in_progress"]
    assert types[-1] in {"completed", "failed", "incomplete"}
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done


@given(event_streams())
@settings(max_examples=20)
def test_the_sdk_accepts_them(events: list[dict[str, Any]]) -> None:
    for event in events:
        if "item" not in event and "response" not in event:  # unknown item types are not in its union
            SDK_EVENT.validate_python(event)


@given(create_bodies())
def test_bodies_are_answered(body: dict[str, Any]) -> None:
    try:
        events = list(ScriptedModel().events(body))
    except ModelError:
        return
    assert events[-1]["type"] == "response.completed"


@given(client_frames())
def test_the_model_answers_or_refuses_whatever_is_an_object(frame: str) -> None:
    body = decoded(frame)
    if isinstance(body, dict):
        with contextlib.suppress(ModelError):
            assert list(ScriptedModel().events(body))[-1]["type"] == "response.completed"


def parsed(body: bytes) -> list[str]:
    """The data of each event: the specification's grammar, over the whole body at once."""
    blocks: list[list[str]] = [[]]
    for line in re.split("\r\n|\r|\n", body.decode()):
        if line:
            blocks[-1].append(line)
        else:
            blocks.append([])
    data = [[re.sub("^data: ?", "", line) for line in block if line.startswith("data:")] for block in blocks]
    return ["\n".join(lines) for lines in data if lines]


@given(sse_bytes())
def test_bodies_hold_their_events(stream: SSEStream) -> None:
    assert [json.loads(data) for data in parsed(stream.body)] == stream.events


@given(sse_bytes(st.just([{"type": "x"}]), done_marker=True, unfinished=False))
def test_done_marker_and_whole_last_block(stream: SSEStream) -> None:
    assert parsed(stream.body)[-1] == "[DONE]"
    assert stream.body.endswith(b"\n\n")


@pytest.mark.parametrize(
    "pattern",
    [
        rb"\r\n\r\n",
        rb"[^\n]\r[^\n]",
        rb"^: ping",
        rb"data:[^ ]",
        rb"\ndata: *\n?",
        rb"[^\r\n]$",
        rb"\}[\r\n]$",
        rb"id: ?7",
    ],
)
def test_forms_come_up(pattern: bytes) -> None:
    strategy = sse_bytes(st.just([{"type": "x", "n": 1}]))
    find(strategy, lambda stream: re.search(pattern, stream.body) is not None, settings=SEARCH)


def test_cuts_between_cr_and_lf_and_in_a_character_come_up() -> None:
    strategy = sse_bytes(st.just([{"type": "x", "delta": "é"}]))

    def cut(stream: SSEStream, before: bytes, after: bytes) -> bool:
        pairs = zip(stream.chunks, stream.chunks[1:], strict=False)
        return any(a.endswith(before) and b.startswith(after) for a, b in pairs)

    find(strategy, lambda stream: cut(stream, b"\r", b"\n"), settings=SEARCH)
    find(strategy, lambda stream: cut(stream, b"\xc3", b"\xa9"), settings=SEARCH)
