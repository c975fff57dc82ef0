"""How an answer begins and ends, and what ``tool_choice`` makes of its beginning."""

import json
from typing import Any

import pytest

from tests.rendering import oracle
from tests.rendering.gpt_oss import TOKENS, spelled, told
from ws_responses.errors import UpstreamError
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.harmony_tokens import FIRST_SPECIAL
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import (
    AUTO,
    Answer,
    CannotRender,
    OutputPiece,
    RenderSettings,
    Tool,
    ToolChoice,
    ToolSet,
)

SCHEMA: dict[str, Any] = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
FIND = Tool(kind="function", name="find", namespace="files", parameters=SCHEMA)
RUN = Tool(kind="function", name="run")
PATCH = Tool(kind="custom", name="patch")
RENDERER = HarmonyRenderer()


def answer_of(choice: ToolChoice, *tools: Tool) -> tuple[Rendered, Answer]:
    told_settings = RenderSettings(tools=ToolSet(tools=tools, raw=b"[1]") if tools else None)
    state = RENDERER.begin(told_settings, "json")
    return state, RENDERER.answer(state, choice, told_settings)


def begun(state: Rendered, answer: Answer) -> str:
    """Return what the answer's prompt adds to the state."""
    return told(answer.prompt.ids().tolist()[state.end :])


@pytest.mark.parametrize("choice", [AUTO, ToolChoice(mode="none"), ToolChoice(mode="auto", names=("run",))])
def test_a_free_answer_begins_as_the_assistant(choice: ToolChoice) -> None:
    """That no tool be called cannot be held to: it is asked for like any other answer."""
    state, answer = answer_of(choice, FIND, RUN)

    assert begun(state, answer) == "<|start|>assistant"
    assert (answer.prefill, answer.schema) == ((), None)


def test_sampling_ends_where_the_library_says() -> None:
    _, answer = answer_of(AUTO)

    assert set(answer.stop_ids) == set(oracle.encoding().stop_tokens_for_assistant_actions())


@pytest.mark.parametrize(
    ("choice", "tools", "begin", "schema"),
    [
        (
            ToolChoice(mode="required", names=("files__find",)),
            (FIND, RUN),
            "<|channel|>commentary to=functions.files__find <|constrain|>json<|message|>",
            SCHEMA,
        ),
        (
            ToolChoice(mode="required"),
            (RUN,),
            "<|channel|>commentary to=functions.run <|constrain|>json<|message|>",
            {"type": "object"},
        ),
        (ToolChoice(mode="required"), (PATCH,), "<|channel|>commentary to=functions.patch<|message|>", None),
        (ToolChoice(mode="required"), (FIND, RUN), "<|channel|>commentary to=functions", None),
        (
            ToolChoice(mode="required", names=("run", "patch")),
            (FIND, RUN, PATCH),
            "<|channel|>commentary to=functions",
            None,
        ),
    ],
)
def test_a_demanded_call_has_begun(choice: ToolChoice, tools: tuple[Tool, ...], begin: str, schema: Any) -> None:
    """Without the beginning the model may as well talk; without the schema its arguments may be anything."""
    state, answer = answer_of(choice, *tools)

    assert begun(state, answer) == f"<|start|>assistant{begin}"
    assert told(list(answer.prefill)) == begin
    assert (None if answer.schema is None else json.loads(answer.schema)) == schema


@pytest.mark.parametrize("name", ["get_weather", "files__find", "a", "_x", "9lives", "Search", "apply-patch", "x.y"])
def test_a_beginning_is_cut_where_the_model_cuts_it(name: str) -> None:
    """The ids of the beginning are those of the whole header's first part: the model never saw it cut elsewhere."""
    whole = spelled(f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>")
    some = TOKENS.sampled_some_call()

    assert TOKENS.sampled_call(name, json=True) == whole
    assert whole[: len(some)] == some


@pytest.mark.parametrize(
    ("choice", "tools"),
    [
        (ToolChoice(mode="required"), ()),
        (ToolChoice(mode="required", names=("other",)), (FIND,)),
        (ToolChoice(mode="required", names=("files__find", "other")), (FIND,)),
    ],
)
def test_a_call_that_cannot_be_made_cannot_be_demanded(choice: ToolChoice, tools: tuple[Tool, ...]) -> None:
    with pytest.raises(CannotRender) as caught:
        answer_of(choice, *tools)

    assert caught.value.param == "tool_choice"


def test_a_forced_call_is_kept_with_its_beginning() -> None:
    """The prefill counts as sampled: the next prompt holds one whole call."""
    state, answer = answer_of(ToolChoice(mode="required"), RUN)
    rest = spelled('{"a":1}<|call|>')

    after = RENDERER.answered(state, [*answer.prefill, *rest])
    assert after.ids().tolist() == [*answer.prompt.ids().tolist(), *rest]
    assert [*answer.parser.feed(rest, ""), *answer.parser.end()] == [
        OutputPiece(kind="call", name="run"),
        OutputPiece(kind="call", text='{"a":1}'),
    ]


def test_a_constrained_answer_that_just_stops_is_a_call_nevertheless() -> None:
    """A grammar leaves no room for ``<|call|>`` behind the JSON; a history has it."""
    state, answer = answer_of(ToolChoice(mode="required"), RUN)

    after = RENDERER.answered(state, [*answer.prefill, *spelled("{}")])
    assert told(after.ids().tolist()).endswith("to=functions.run <|constrain|>json<|message|>{}<|call|>")


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_a_call_beyond_the_choice_is_the_backends_fault(mode: Any) -> None:
    """The prompt cannot keep a tool from being called; what the client did not allow does not reach it."""
    _, answer = answer_of(ToolChoice(mode=mode, names=("run", "patch")), FIND, RUN, PATCH)
    header = spelled("<|channel|>commentary to=functions.files__find<|message|>")

    with pytest.raises(UpstreamError):
        answer.parser.feed(header[len(answer.prefill) :], "")


def test_a_bare_name_is_a_call_if_the_tool_is_offered() -> None:
    _, answer = answer_of(AUTO, RUN)

    pieces = answer.parser.feed(spelled("<|channel|>commentary to=run<|message|>{}<|call|>"), "")
    assert pieces[0].name == "run"


def test_the_prompt_has_the_encoded_form_of_its_state() -> None:
    state, answer = answer_of(ToolChoice(mode="required"), RUN)

    assert json.loads(answer.prompt.json_ids()) == answer.prompt.ids().tolist()
    assert answer.prompt.before is state
    assert sum(token >= FIRST_SPECIAL for token in answer.prompt.own_ids) == 4
