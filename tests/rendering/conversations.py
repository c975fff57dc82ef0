"""Hypothesis strategies for what renderers are given: items, conversations, their cut into turns, tools, settings."""

import functools
import json
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ws_responses.rendering.renderer import RenderSettings, Tool, ToolSet

Item: TypeAlias = dict[str, Any]

SPECIAL_TEXTS: Final = (
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|channel|>",
    "<|constrain|>",
    "<|return|>",
    "<|call|>",
    "<|startoftext|>",
    "<|endoftext|>",
    "<|reserved_200013|>",
    "<|im_start|>",
    "<|im_end|>",
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
)
"""How control tokens of the formats are spelled; in content they are text."""

_PIECES: Final = (
    "a",
    "The cache holds it.",
    " ",
    "  \n",
    "\r\n",
    "\t",
    '{"path": "src/a.py"}',
    "functions.find to=assistant",
    "final",
    "assistant\n",
    "é",
    "e\u0301",
    "漢字",
    "🙂",
    "👩‍👩‍👧",
    "𝄞",
    "\x00",
    "\ufeff",
    "\u2028",
    "12345",
    "'s",
    "\\",
    '"',
    *SPECIAL_TEXTS,
)
_NAMES: Final = ("find", "run_tests", "apply-patch", "get.weather", "python", "x1", "_hidden")
_NAMESPACES: Final = ("files", "web_2")


@functools.cache
def texts(max_size: int = 4) -> SearchStrategy[str]:
    """Texts with blanks, control tokens spelled out, and characters of several tokens."""
    pieces = st.lists(st.sampled_from(_PIECES), max_size=max_size).map("".join)
    return st.one_of(pieces, pieces, pieces, st.text(max_size=max_size))


# -- items ---------------------------------------------------------------------------------------------------------------


def _text_parts(kind: str, max_size: int = 2) -> SearchStrategy[list[Item]]:
    return st.lists(st.fixed_dictionaries({"type": st.just(kind), "text": texts()}), max_size=max_size)


@functools.cache
def input_messages() -> SearchStrategy[Item]:
    """Messages of user, system and developer, with content as a string or as parts."""
    return st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "user", "user", "system", "developer"]),
            "content": st.one_of(texts(), _text_parts("input_text")),
        },
        optional={"type": st.just("message"), "id": st.just("msg_1")},
    )


def assistant_messages(phases: Sequence[str | None] = (None, "commentary", "final_answer")) -> SearchStrategy[Item]:
    """Messages of the assistant: text, refusals, or content as a string.

    Args:
        phases: Which of them have; None for no ``phase``.
    """
    output = st.fixed_dictionaries({"type": st.just("output_text"), "text": texts(), "annotations": st.just([])})
    refusal = st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts()})
    return st.builds(
        _with_phase,
        st.fixed_dictionaries(
            {
                "type": st.just("message"),
                "role": st.just("assistant"),
                "content": st.one_of(texts(), st.lists(st.one_of(output, refusal), max_size=2)),
            },
            optional={"id": st.just("msg_2"), "status": st.sampled_from(["completed", "incomplete"])},
        ),
        st.sampled_from(list(phases)),
    )


def _with_phase(item: Item, phase: str | None) -> Item:
    return item if phase is None else {**item, "phase": phase}


@functools.cache
def reasoning_items() -> SearchStrategy[Item]:
    """Reasoning as such, as summaries, encrypted, or several of these."""
    return st.fixed_dictionaries(
        {"type": st.just("reasoning"), "id": st.just("rs_1"), "summary": _text_parts("summary_text", 2)},
        optional={
            "content": st.one_of(st.none(), _text_parts("reasoning_text", 2)),
            "encrypted_content": st.one_of(st.none(), st.just("gAAAAB")),
        },
    )


@st.composite
def calls(draw: DrawFn, call_id: str) -> Item:
    """Draw a call of a function or of a custom tool, in a namespace or not."""
    custom = draw(st.integers(0, 3)) == 0
    item: Item = {
        "type": "custom_tool_call" if custom else "function_call",
        "id": f"item_of_{call_id}",
        "call_id": call_id,
        "name": draw(st.sampled_from(_NAMES)),
        "input" if custom else "arguments": draw(texts()),
    }
    if draw(st.integers(0, 3)) == 0:
        item["namespace"] = draw(st.sampled_from(_NAMESPACES))
    return item


@st.composite
def answers(draw: DrawFn, call: Item) -> Item:
    """Draw the output item that answers a call."""
    return {
        "type": f"{call['type']}_output",
        "call_id": call["call_id"],
        "output": draw(st.one_of(texts(), _text_parts("input_text"))),
    }


# -- conversations -------------------------------------------------------------------------------------------------------


@st.composite
def conversations(
    draw: DrawFn, *, max_steps: int = 8, phases: Sequence[str | None] = (None, "commentary", "final_answer")
) -> list[Item]:
    """Draw the items of a conversation; each call is answered later, once, in any order.

    Args:
        draw: Given by Hypothesis.
        max_steps: Most messages, reasonings and groups of calls.
        phases: Of assistant messages.
    """
    items: list[Item] = []
    for step in range(draw(st.integers(0, max_steps))):
        kind = draw(st.sampled_from(["input", "assistant", "assistant", "reasoning", "reasoning", "calls", "calls"]))
        if kind == "calls":
            items += draw(_call_groups(step))
        elif kind == "input":
            items.append(draw(input_messages()))
        else:
            items.append(draw(reasoning_items() if kind == "reasoning" else assistant_messages(phases)))
    return items


@st.composite
def _call_groups(draw: DrawFn, step: int) -> list[Item]:
    made = [draw(calls(f"call_{step}_{number}")) for number in range(draw(st.sampled_from([1, 1, 1, 2, 3])))]
    if draw(st.integers(0, 4)) == 0:
        made.insert(1, draw(reasoning_items()))
    outputs = [draw(answers(call)) for call in draw(st.permutations(made)) if "call_id" in call]
    return [*made, *outputs]


@st.composite
def cuts(draw: DrawFn, items: Sequence[Item]) -> list[list[Item]]:
    """Draw a cut of items into turns; some may be empty."""
    places = sorted(draw(st.lists(st.integers(0, len(items)), max_size=5)))
    return [list(items[begin:end]) for begin, end in zip([0, *places], [*places, len(items)], strict=True)]


def encoded(items: Sequence[Item]) -> list[bytes]:
    """Return items as they come over the wire: every other one with blanks and escapes."""
    return [
        json.dumps(item, indent=1).encode() if index % 2 else msgspec.json.encode(item)
        for index, item in enumerate(items)
    ]


# -- tools and settings --------------------------------------------------------------------------------------------------


@functools.cache
def _values() -> SearchStrategy[Any]:
    # No floats of many digits: the library that judges us reads the last one wrong.
    numbers = st.one_of(
        st.integers(-(2**53), 2**53), st.sampled_from([0.5, -0.0, 1.0, 1e15, 1e16, 1e-5, 1e-7, 2.5e100])
    )
    plain = st.one_of(st.none(), st.booleans(), numbers, texts(2))
    return st.one_of(plain, st.lists(plain, max_size=2), st.dictionaries(texts(1), plain, max_size=2))


def _annotations() -> dict[str, SearchStrategy[Any]]:
    return {
        "description": texts(2),
        "title": texts(2),
        "default": _values(),
        "nullable": st.booleans(),
        "examples": st.lists(_values(), max_size=2),
    }


@functools.cache
def schemas() -> SearchStrategy[Item]:
    """JSON Schemas of a tool's arguments, odd ones too: unions, enums, defaults, nothing at all."""
    kinds = st.sampled_from(["string", "number", "integer", "boolean", "null", "odd"])
    plain = st.one_of(
        st.fixed_dictionaries({"type": kinds}, optional=_annotations()),
        st.fixed_dictionaries({"type": st.lists(kinds, max_size=3)}, optional=_annotations()),
        st.fixed_dictionaries(
            {"type": st.sampled_from(["string", "integer"]), "enum": st.lists(_values(), max_size=3)},
            optional=_annotations(),
        ),
        st.fixed_dictionaries({}, optional=_annotations()),
    )
    return st.recursive(plain, _compound, max_leaves=4)


def _compound(inner: SearchStrategy[Item]) -> SearchStrategy[Item]:
    properties = st.dictionaries(st.sampled_from(["path", "line", "a b", "élan", "<|end|>"]), inner, max_size=3)
    required = st.lists(st.one_of(st.sampled_from(["path", "line"]), st.just(1)), max_size=2)
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.just("object"), "properties": properties}, optional={"required": required, **_annotations()}
        ),
        st.fixed_dictionaries({"type": st.just("array")}, optional={"items": inner, **_annotations()}),
        st.fixed_dictionaries({"oneOf": st.lists(inner, max_size=3)}, optional=_annotations()),
    )


@st.composite
def tools(draw: DrawFn) -> Tool:
    """Draw a function or a custom tool."""
    name = draw(st.sampled_from(_NAMES))
    namespace = draw(st.sampled_from([None, None, None, *_NAMESPACES]))
    description = draw(st.one_of(st.none(), texts()))
    if draw(st.integers(0, 3)) == 0:
        grammar = draw(
            st.sampled_from(
                [
                    None,
                    {"type": "text"},
                    {"type": "grammar", "syntax": "lark", "definition": "start: WORD\nWORD: /[a-z]+/"},
                ]
            )
        )
        return Tool(kind="custom", name=name, namespace=namespace, description=description, grammar=grammar)
    parameters = draw(st.one_of(st.none(), schemas()))
    return Tool(kind="function", name=name, namespace=namespace, description=description, parameters=parameters)


@st.composite
def tool_sets(draw: DrawFn, *, min_size: int = 1) -> ToolSet:
    """Draw some tools of distinct names."""
    drawn = draw(st.lists(tools(), min_size=min_size, max_size=3, unique_by=lambda tool: tool.wire_name))
    return ToolSet(tools=tuple(drawn), raw=msgspec.json.encode([msgspec.to_builtins(tool) for tool in drawn]))


_FORMATS: Final = (
    {"type": "json_object"},
    {
        "type": "json_schema",
        "name": "shopping_list",
        "description": "What to buy.",
        "schema": {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "string"}}}},
        "strict": True,
    },
    {"type": "json_schema", "name": "any", "schema": {"description": "<|end|>é"}},
)


@functools.cache
def render_settings() -> SearchStrategy[RenderSettings]:
    """What stands before a conversation."""
    return st.builds(
        RenderSettings,
        instructions=st.one_of(st.none(), texts()),
        tools=st.one_of(st.none(), tool_sets(min_size=0)),
        reasoning_effort=st.sampled_from([None, "none", "minimal", "low", "medium", "high", "xhigh"]),
        response_format=st.one_of(st.none(), st.sampled_from(_FORMATS).map(msgspec.json.encode)),
    )
