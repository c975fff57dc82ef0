"""What a backend yields comes out as the API's items and events, whatever the pieces were."""

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.schema import assert_turn
from tests.engine.service import (
    COMMENTARY,
    END,
    FINAL,
    REASONING,
    STOP,
    LetterRenderer,
    ScriptedService,
    Step,
    kinds,
    last,
    letters,
    said,
    socket_to,
)
from ws_responses.backends import Delta, Finish, ToolCallDelta, Usage
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.engine.items import MAX_ITEMS

TOOLS = [
    {"type": "function", "name": "find", "parameters": {"type": "object"}},
    {"type": "custom", "name": "patch"},
    {"type": "namespace", "name": "files", "description": "d", "tools": [{"type": "function", "name": "read"}]},
    {"type": "namespace", "name": "notes", "description": "d", "tools": [{"type": "custom", "name": "write"}]},
]
CREATE = {"model": "m", "input": "hi", "tools": TOOLS}


def call(index: int, name: str | None = None, arguments: str = "", call_id: str | None = None) -> Delta:
    return Delta(tool_calls=(ToolCallDelta(index=index, id=call_id, name=name, arguments=arguments),))


async def answered(*steps: Step, **body: Any) -> list[dict[str, Any]]:
    """The events of a turn that a backend for chat messages answers so."""
    service = ScriptedService()
    service.will(steps)
    async with socket_to(ResponsesEngine(service)) as ws:
        return await ws.turn({**CREATE, **body})


async def test_text_comes_as_the_api_has_it() -> None:
    events = await answered(*said("Hel", "lo"))
    assert_turn(events)
    assert kinds(events) == [
        "created",
        "in_progress",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    assert last(events)["status"] == "completed"
    assert last(events)["completed_at"] >= last(events)["created_at"]
    assert "phase" not in last(events)["output"][0]


async def test_all_kinds_of_output_come_as_items_in_their_order() -> None:
    events = await answered(
        Delta(reasoning="Hm"),
        Delta(reasoning="m."),
        Delta(text="I look."),
        call(0, "find", '{"a":', "call_0"),
        call(0, arguments="1}"),
        call(1, "find", "{}", "call_1"),
        Delta(text="Done. "),
        Delta(refusal="But not "),
        Delta(refusal="that."),
        STOP,
    )
    assert_turn(events)
    output = last(events)["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call", "message"]
    assert output[0]["content"] == [{"type": "reasoning_text", "text": "Hmm."}]
    assert output[0]["summary"] == []
    assert [(one["call_id"], one["arguments"]) for one in output[2:4]] == [("call_0", '{"a":1}'), ("call_1", "{}")]
    assert [part["type"] for part in output[4]["content"]] == ["output_text", "refusal"], "one message holds both"


async def test_one_delta_may_hold_all_of_it() -> None:
    calls = (ToolCallDelta(index=0, name="find", arguments="{}"), ToolCallDelta(index=1, name="find", arguments="{}"))
    events = await answered(
        Delta(reasoning="r", text="t", refusal="no", tool_calls=calls, finish="stop", usage=Usage())
    )
    assert_turn(events)
    assert [item["type"] for item in last(events)["output"]] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]


async def test_calls_get_back_the_names_and_kinds_that_the_client_knows() -> None:
    """Codex finds no tool by a name with its namespace in it, and runs no custom tool by a function call."""
    events = await answered(
        call(0, "files__read", '{"p":1}'),
        call(1, "patch", '{"input":"*** Begin\\n'),
        call(1, arguments="+\\u00e9\\ud83d"),
        call(1, arguments='\\ude00"}'),
        call(2, "notes__write", "as it is"),
        call(3, "unheard_of", "{}"),
        STOP,
    )
    assert_turn(events)
    output = last(events)["output"]
    assert [(one["type"], one["name"], one.get("namespace")) for one in output] == [
        ("function_call", "read", "files"),
        ("custom_tool_call", "patch", None),
        ("custom_tool_call", "write", "notes"),
        ("function_call", "unheard_of", None),
    ]
    assert output[1]["input"] == "*** Begin\n+é😀"
    assert output[2]["input"] == "as it is", "arguments of another shape are the input"


@pytest.mark.parametrize(
    "then", [None, Delta(reasoning="r"), Delta(text="t"), Delta(refusal="no"), call(1, "find", "{}")]
)
@pytest.mark.parametrize(("arguments", "text"), [("as it is", "as it is"), ('{"input":"a\\ud83d', "a\ufffd")])
async def test_what_was_held_back_of_a_custom_tools_input_belongs_to_it(
    then: Delta | None, arguments: str, text: str
) -> None:
    events = await answered(call(0, "patch", arguments), *([] if then is None else [then]), STOP)
    assert_turn(events)
    assert last(events)["output"][0]["input"] == text


async def test_a_call_without_arguments_has_an_empty_object() -> None:
    """Clients read the arguments as JSON; an empty text is none."""
    events = await answered(call(0, "find"), STOP)
    assert_turn(events)
    assert last(events)["output"][0]["arguments"] == "{}"


async def test_ids_of_calls_are_the_services_if_they_can_name_a_call() -> None:
    events = await answered(
        call(0, "find", "{}", "same"), call(1, "find", "{}", "same"), call(2, "find", "{}", ""), STOP
    )
    ids = [item["call_id"] for item in last(events)["output"]]
    assert ids[0] == "same"
    assert len(set(ids)) == 3, "two calls of one response are never confused"
    assert all(one.startswith("call_") for one in ids[1:])


async def test_an_answer_of_nothing_is_an_empty_message() -> None:
    """An empty output makes some clients ask again and again."""
    events = await answered(STOP)
    assert_turn(events)
    assert last(events)["output"][0]["content"][0]["text"] == ""


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")])
async def test_an_answer_that_is_cut_short_is_incomplete(finish: Finish, reason: str) -> None:
    events = await answered(Delta(reasoning="r"), Delta(text="Once upon"), Delta(finish=finish, usage=Usage()))
    assert_turn(events)
    assert events[-1]["type"] == "response.incomplete"
    assert last(events)["incomplete_details"] == {"reason": reason}
    assert last(events)["completed_at"] is None
    assert [item["status"] for item in last(events)["output"]] == ["completed", "incomplete"]


async def test_a_call_that_is_cut_short_stays_as_it_is_and_needs_no_answer() -> None:
    service = ScriptedService()
    service.will([call(0, "find", '{"a":'), Delta(finish="length", usage=Usage())])
    async with socket_to(ResponsesEngine(service)) as ws:
        events = await ws.turn(CREATE)
        assert_turn(events)
        assert (last(events)["output"][0]["arguments"], last(events)["output"][0]["status"]) == ('{"a":', "incomplete")
        events = await ws.turn({**CREATE, "previous_response_id": last(events)["id"]})
    assert events[-1]["type"] == "response.completed"


async def test_without_parallel_calls_the_answer_ends_before_the_second() -> None:
    service = ScriptedService()
    service.will([call(0, "find", "{}"), call(1, "find", "{}"), anyio.Event()])
    async with socket_to(ResponsesEngine(service)) as ws:
        events = await ws.turn({**CREATE, "parallel_tool_calls": False})
        await ws.settle()
    assert_turn(events)
    assert events[-1]["type"] == "response.completed"
    assert len(last(events)["output"]) == 1
    assert service.running == 0, "the rest is not sampled"


async def test_encrypted_reasoning_is_null_since_there_is_no_key() -> None:
    plain = await answered(Delta(reasoning="r"), STOP)
    asked = await answered(Delta(reasoning="r"), STOP, include=["reasoning.encrypted_content"])
    assert_turn(asked)
    assert "encrypted_content" not in last(plain)["output"][0]
    assert last(asked)["output"][0]["encrypted_content"] is None


async def test_phases_are_messages_of_their_own() -> None:
    """Codex shows commentary as such, and wants it back as such."""
    ids = [REASONING, *letters("Hm"), END, COMMENTARY, *letters("I look"), FINAL, *letters("Yes"), END]
    service = ScriptedService("tokens", returns_ids=True)
    service.will([Delta(token_ids=ids), STOP])
    async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
        events = await ws.turn(CREATE)
    assert_turn(events)
    output = last(events)["output"]
    assert [(item["type"], item.get("phase")) for item in output] == [
        ("reasoning", None),
        ("message", "commentary"),
        ("message", "final_answer"),
    ]


async def test_what_no_json_can_hold_is_replaced_and_the_sums_still_hold() -> None:
    events = await answered(Delta(text="a\ud83d"), Delta(text="\ude00b"), Delta(reasoning="\udc00"), STOP)
    assert_turn(events)
    assert last(events)["output"][0]["content"][0]["text"] == "a\ufffd\ufffdb"


# --- usage ----------------------------------------------------------------------------------------------------------


async def test_usage_is_the_services() -> None:
    events = await answered(Delta(text="x"), Delta(usage=Usage(input_tokens=1, output_tokens=1)), STOP)
    assert last(events)["usage"] == {
        "input_tokens": 5,
        "input_tokens_details": {"cached_tokens": 2, "cache_write_tokens": 0},
        "output_tokens": 3,
        "output_tokens_details": {"reasoning_tokens": 1},
        "total_tokens": 8,
    }, "what was told last counts"


async def test_usage_that_comes_after_the_end_is_waited_for() -> None:
    events = await answered(Delta(text="x"), Delta(finish="stop"), Delta(usage=Usage(input_tokens=7, output_tokens=1)))
    assert last(events)["usage"]["total_tokens"] == 8


@pytest.mark.parametrize("usage", [None, Usage(), Usage(input_tokens=3), Usage(output_tokens=3)])
async def test_unknown_usage_is_null(usage: Usage | None) -> None:
    events = await answered(Delta(text="x"), Delta(finish="stop", usage=usage))
    assert_turn(events)
    assert last(events)["usage"] is None


async def test_tokens_that_we_have_counted_are_told_where_the_service_says_nothing() -> None:
    service = ScriptedService("tokens", returns_ids=True)
    service.will([Delta(token_ids=letters("Yes")), Delta(finish="stop")])
    async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
        events = await ws.turn({"model": "m", "input": "hi"})
    assert_turn(events)
    assert last(events)["usage"]["input_tokens"] == len(service.text())
    assert last(events)["usage"]["output_tokens"] == 3


async def test_the_service_tier_is_what_was_used() -> None:
    events = await answered(Delta(text="x", service_tier="flex"), STOP, service_tier="auto")
    assert [event["response"]["service_tier"] for event in events if "response" in event] == ["auto", "auto", "flex"]


# --- nonsense -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([call(0, None, "{}")], "without a name"),
        ([call(0, "find", "{}"), call(1, None, "{}")], "without a name"),
        ([call(1, "find", "{}"), call(0, "find", "{}")], "without a name"),
        ([call(0, "find", "{}"), Delta(text="x"), call(0, None, "{}")], "that was over"),
        ([call(index, "find", "{}") for index in range(MAX_ITEMS + 1)], "more than"),
    ],
)
async def test_calls_that_make_no_sense_fail_the_turn_and_not_the_next(steps: list[Step], words: str) -> None:
    service = ScriptedService()
    service.will([*steps, STOP])
    async with socket_to(ResponsesEngine(service)) as ws:
        events = await ws.turn(CREATE)
        assert events[-1]["type"] == "response.failed"
        assert words in last(events)["error"]["message"]
        assert_turn(await ws.turn(CREATE))
    assert service.running == 0


@pytest.mark.parametrize("wrong", [-1, 1 << 32, "7"])
async def test_ids_that_are_none_fail_the_turn_and_not_the_next(wrong: Any) -> None:
    service = ScriptedService("tokens", returns_ids=True)
    service.will([Delta(token_ids=[wrong]), STOP])
    async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
        events = await ws.turn(CREATE)
        assert last(events)["error"]["code"] == "upstream_invalid_output"
        assert_turn(await ws.turn(CREATE))


async def test_output_without_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ws_responses.engine.events.MAX_OUTPUT_CHARS", 10)
    assert (await answered(*said("12345", "67890")))[-1]["type"] == "response.completed"
    events = await answered(*said("12345", "67890", "x"))
    assert last(events)["error"]["code"] == "upstream_output_too_large"


# --- any split ------------------------------------------------------------------------------------------------------

Piece = tuple[str, str]

pieces = st.lists(
    st.one_of(
        st.tuples(st.just("text"), st.text(min_size=1)),
        st.tuples(st.just("reasoning"), st.text(min_size=1)),
        st.tuples(st.just("refusal"), st.text(min_size=1)),
        st.tuples(st.sampled_from(["find", "patch", "files__read"]), st.text()),
    ),
    max_size=6,
)


def spoken(kind: str, text: str) -> Delta:
    if kind == "text":
        return Delta(text=text)
    return Delta(reasoning=text) if kind == "reasoning" else Delta(refusal=text)


@st.composite
def splits(draw: st.DrawFn) -> tuple[list[Delta], list[Delta]]:
    """Draw an answer, each of its parts as one delta, and the same cut into any deltas."""
    whole: list[Delta] = []
    parts: list[Delta] = []
    calls = 0
    for kind, text in draw(pieces):
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
        cut = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        if kind in ("text", "reasoning", "refusal"):
            whole.append(spoken(kind, text))
            parts += [spoken(kind, piece) for piece in cut]
            continue
        arguments = json.dumps({"input": text}) if kind == "patch" and draw(st.booleans()) else text
        cuts = sorted(draw(st.lists(st.integers(0, len(arguments)), max_size=4)))
        whole.append(call(calls, kind, arguments, f"call_{calls}"))
        parts.append(call(calls, kind, "", f"call_{calls}"))
        parts += [call(calls, None, arguments[a:b]) for a, b in zip([0, *cuts], [*cuts, len(arguments)], strict=True)]
        calls += 1
    return whole, parts


def without_ids(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in last(events)["output"]]


@given(split=splits(), finish=st.sampled_from(["stop", "length", "tool_calls", "content_filter"]))
def test_any_split_of_an_answer_gives_the_same_items(split: tuple[list[Delta], list[Delta]], finish: Finish) -> None:
    """The text of the deltas is that of the items, with one closing event, wherever a service cuts."""

    async def run() -> None:
        end = Delta(finish=finish, usage=Usage(input_tokens=1, output_tokens=1))
        whole, parts = [await answered(*deltas, end) for deltas in split]
        assert_turn(whole)
        assert_turn(parts)
        assert without_ids(whole) == without_ids(parts)

    anyio.run(run)
