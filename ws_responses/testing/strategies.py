"""Hypothesis strategies for the wire: frames, items, conversations, event streams, SSE bytes.

All draw from small pools of names, so that ids meet each other, and shrink to short, plain values.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from ws_responses.testing.builder import CALL_KINDS, CallKind, Event, ResponseBuilder, counting_ids, numbered

__all__ = [
    "FLAWS",
    "ConversationTurn",
    "Flaw",
    "SSEStream",
    "answer_to",
    "calls",
    "client_frames",
    "conversations",
    "create_bodies",
    "event_streams",
    "history",
    "items",
    "json_values",
    "sse_bytes",
]

Item: TypeAlias = dict[str, Any]
Flaw: TypeAlias = Literal["missing", "unknown", "duplicate", "other_kind"]
FLAWS: tuple[Flaw, ...] = ("missing", "unknown", "duplicate", "other_kind")
"""What may be wrong with the answers to calls."""

_HOSTED_CALLS = ("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "mcp_call")

# Characters that upset parsers: line ends that are none in SSE, other planes, JSON escapes, a NUL, a BOM.
_ODD_CHARACTERS = '\x00\t\n\r\x0b\x0c\x1c\x85\u2028\u2029\ufeff"\\/é𝄞'


@functools.cache
def texts(max_size: int = 12) -> SearchStrategy[str]:
    """Short texts with odd characters; no lone surrogates."""
    plain = st.characters(codec="utf-8", max_codepoint=0x2FFF)
    return st.text(st.one_of(st.sampled_from("ab "), st.sampled_from(_ODD_CHARACTERS), plain), max_size=max_size)


def json_values(*, max_leaves: int = 8, surrogates: bool = False) -> SearchStrategy[Any]:
    """Any JSON value, numbers finite.

    Args:
        max_leaves: how big.
        surrogates: also texts with lone surrogates, which JSON can only escape.
    """
    text = st.one_of(texts(), st.sampled_from(["\ud800", "a\udfff"])) if surrogates else texts()
    numbers = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False))
    return st.recursive(
        st.one_of(st.none(), st.booleans(), numbers, text),
        lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(text, inner, max_size=4)),
        max_leaves=max_leaves,
    )


# -- items ----------------------------------------------------------------------------------------


@functools.cache
def _names() -> SearchStrategy[str]:
    return st.sampled_from(["call_1", "call_2", "call_3"])


def calls(call_ids: SearchStrategy[str] | None = None, kinds: Sequence[CallKind] = CALL_KINDS) -> SearchStrategy[Item]:
    """Calls that the client has to answer, of all kinds."""

    def build(kind: CallKind, call_id: str) -> Item:
        builder = ResponseBuilder({}, id_factory=counting_ids())
        (item,) = [
            event["item"]
            for event in builder.tool_call("tool", call_id=call_id, kind=kind)
            if event["type"] == "response.output_item.done"
        ]
        # The item id is as good as the call id: unique in a conversation if that is.
        return {**item, "id": call_id if kind == "mcp_approval" else f"item_of_{call_id}"}

    return st.builds(build, st.sampled_from(kinds), _names() if call_ids is None else call_ids)


def answer_to(call: Mapping[str, Any], *, output: Any = "done", by_item_id: bool = False) -> Item:
    """Return the output item that answers a call.

    Args:
        call: the call.
        output: the output, where its kind has a free one.
        by_item_id: a local shell call's answer names its call by `id`, as the API reference has
            it, instead of by `call_id`, as clients do.
    """
    kind = call["type"]
    if kind == "mcp_approval_request":
        return {"type": "mcp_approval_response", "approval_request_id": call["id"], "approve": True}
    named: Item = {"call_id": call["call_id"]}
    if kind == "local_shell_call" and by_item_id:
        named = {"id": call["call_id"]}
    if kind == "tool_search_call":
        return {"type": "tool_search_output", **named, "execution": "client", "tools": []}
    if kind == "computer_call":
        picture = {"type": "computer_screenshot", "image_url": "data:image/png;base64,AA=="}
        return {"type": "computer_call_output", **named, "output": picture}
    if kind == "shell_call":
        ran = {"stdout": output, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
        return {"type": "shell_call_output", **named, "output": [ran]}
    if kind == "apply_patch_call":
        return {"type": "apply_patch_call_output", **named, "status": "completed", "output": output}
    return {"type": f"{kind}_output", **named, "output": output}


@functools.cache
def _messages() -> SearchStrategy[Item]:
    parts = st.one_of(
        st.fixed_dictionaries({"type": st.just("input_text"), "text": texts()}),
        st.just({"type": "input_image", "image_url": "data:image/png;base64,AA==", "detail": "auto"}),
        st.just({"type": "input_file", "filename": "a.txt", "file_data": "data:text/plain;base64,AA=="}),
    )
    return st.fixed_dictionaries(
        {
            "role": st.sampled_from(["user", "system", "developer", "assistant"]),
            "content": st.one_of(texts(), st.lists(parts, max_size=3)),
        },
        optional={"type": st.just("message")},
    )


@functools.cache
def _output_messages() -> SearchStrategy[Item]:
    part = st.fixed_dictionaries(
        {"type": st.just("output_text"), "text": texts(), "annotations": st.just([]), "logprobs": st.just([])}
    )
    refusal = st.fixed_dictionaries({"type": st.just("refusal"), "refusal": texts()})
    return st.fixed_dictionaries(
        {
            "type": st.just("message"),
            "id": st.sampled_from(["msg_1", "msg_2"]),
            "role": st.just("assistant"),
            "status": st.sampled_from(["completed", "incomplete"]),
            "content": st.lists(st.one_of(part, refusal), max_size=2),
        },
        optional={"phase": st.sampled_from(["commentary", "final_answer"])},
    )


@functools.cache
def _reasoning() -> SearchStrategy[Item]:
    summary = st.fixed_dictionaries({"type": st.just("summary_text"), "text": texts()})
    return st.fixed_dictionaries(
        {"type": st.just("reasoning"), "id": st.just("rs_1"), "summary": st.lists(summary, max_size=2)},
        optional={"encrypted_content": st.one_of(st.none(), texts())},
    )


@functools.cache
def _hosted() -> SearchStrategy[Item]:
    mcp = {"server_label": "mcp", "name": "tool", "arguments": "{}"}
    return st.one_of(
        st.fixed_dictionaries(
            {"type": st.sampled_from(_HOSTED_CALLS), "id": st.just("hosted_1"), "status": st.just("completed")}
        ),
        st.just({"type": "mcp_call", "id": "mcp_1", **mcp, "output": "x"}),
        st.just({"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "mcp", "tools": []}),
        st.just({"type": "tool_search_call", "id": "ts_1", "call_id": None, "execution": "server", "arguments": {}}),
        st.just({"type": "tool_search_output", "call_id": None, "execution": "server", "tools": []}),
        st.just({"type": "program", "id": "prog_1", "call_id": "program_1", "code": "1", "fingerprint": "f"}),
        st.just({"type": "program_output", "id": "po_1", "call_id": "program_1", "result": "1", "status": "completed"}),
    )


@functools.cache
def _bases() -> SearchStrategy[Item]:
    return st.sampled_from(
        [
            {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"},
            {"type": "compaction_trigger"},
            {"type": "item_reference", "id": "msg_1"},
            {"type": "additional_tools", "role": "developer", "tools": []},
        ]
    )


def _typed(extra: dict[str, Any], kind: str) -> dict[str, Any]:
    return {**extra, "type": kind}


@functools.cache
def _unknown_items() -> SearchStrategy[Item]:
    return st.builds(
        _typed,
        st.dictionaries(st.sampled_from(["id", "call_id", "x"]), json_values(max_leaves=3), max_size=3),
        st.sampled_from(["made_up", "made_up_output", "slug:item"]),
    )


def items(*, call_ids: SearchStrategy[str] | None = None, bases: bool = True) -> SearchStrategy[Item]:
    """Input items of every kind, unknown ones too; calls and outputs share a small pool of names.

    Args:
        call_ids: the names.
        bases: also compaction items, item references and others that change what comes before.
    """
    one_call = calls(call_ids)
    kinds = [
        _messages(),
        _output_messages(),
        _reasoning(),
        one_call,
        st.builds(answer_to, one_call, output=texts(), by_item_id=st.booleans()),
        _hosted(),
        _unknown_items(),
    ]
    return st.one_of(*kinds, *([_bases()] if bases else []))


# -- conversations --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ConversationTurn:
    """One turn.

    Attributes:
        parent: index of the turn that it continues; None for a first turn.
        input: the new items.
        output: what the model gives; empty for a turn with a flaw.
        flaw: what is wrong with the answers in `input`; None if they are right.
    """

    parent: int | None
    input: list[Item]
    output: list[Item]
    flaw: Flaw | None = None

    @property
    def calls(self) -> list[Item]:
        """The calls in the output that the client has to answer."""
        return [item for item in self.output if _is_client_call(item)]


def history(turns: Sequence[ConversationTurn], index: int) -> list[Item]:
    """Return all items up to and including the input of a turn: what a request without a parent holds."""
    turn = turns[index]
    if turn.parent is None:
        return list(turn.input)
    parent = turns[turn.parent]
    return [*history(turns, turn.parent), *parent.output, *turn.input]


@st.composite
def conversations(
    draw: DrawFn, *, max_turns: int = 6, flaws: bool = True, forks: bool = False
) -> list[ConversationTurn]:
    """Draw chains of turns in which the client answers calls, rightly or wrongly.

    Args:
        draw: given by Hypothesis.
        max_turns: how long.
        flaws: whether answers may be wrong; the turn after a wrong one continues from the same parent.
        forks: whether a turn may continue any earlier good turn, or none, instead of the latest.
    """
    turns: list[ConversationTurn] = []
    for number in range(draw(st.integers(1, max_turns))):
        good = [index for index, turn in enumerate(turns) if turn.flaw is None]
        parent = good[-1] if good else None
        if forks:
            parent = draw(st.sampled_from([*reversed(good), None]))
        due = turns[parent].calls if parent is not None else []
        flaw = draw(st.one_of(st.none(), st.sampled_from(FLAWS))) if flaws else None
        answers = [answer_to(call, output=draw(texts())) for call in due]
        answers = draw(st.permutations(answers))
        answers, flaw = _spoiled(answers, due, flaw)
        said = draw(st.lists(_messages(), min_size=0 if answers else 1, max_size=2))
        turns.append(ConversationTurn(parent, [*answers, *said], [] if flaw else draw(_model_output(number)), flaw))
    return turns


def _spoiled(answers: list[Item], due: list[Item], flaw: Flaw | None) -> tuple[list[Item], Flaw | None]:
    """Put the flaw into the answers; without any, only an unknown call can be answered."""
    if flaw == "unknown":
        return [*answers, {"type": "function_call_output", "call_id": "call_unknown", "output": ""}], flaw
    if flaw is None or not due:
        return answers, None
    if flaw == "missing":
        return answers[1:], flaw
    if flaw == "duplicate":
        return [*answers, answers[0]], flaw
    first = answers[0]
    name = first.get("call_id", first.get("approval_request_id"))
    other = "custom_tool_call_output" if first["type"] == "function_call_output" else "function_call_output"
    return [{"type": other, "call_id": name, "output": ""}, *answers[1:]], flaw


@functools.cache
def _output_items() -> SearchStrategy[list[Item]]:
    kinds = st.one_of(calls(st.just("")), _output_messages(), _reasoning(), _hosted())
    return st.lists(kinds, max_size=4)


@st.composite
def _model_output(draw: DrawFn, number: int) -> list[Item]:
    made = draw(_output_items())
    output: list[Item] = []
    for position, item in enumerate(made):
        name = f"{number}_{position}"
        renamed = {**item, "id": f"item_{name}"}
        if _is_client_call(item) and item["type"] != "mcp_approval_request":
            renamed["call_id"] = f"call_{name}"
        output.append(renamed)
    return output


def _is_client_call(item: Mapping[str, Any]) -> bool:
    kind = item["type"]
    if kind == "tool_search_call":
        return item.get("execution") == "client"
    return kind == "mcp_approval_request" or (kind.endswith("_call") and "call_id" in item)


# -- what a client sends --------------------------------------------------------------------------


@functools.cache
def create_bodies() -> SearchStrategy[dict[str, Any]]:
    """Valid bodies of `response.create`, any mix of fields."""
    tools: list[dict[str, Any]] = [
        {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}},
        {"type": "function", "name": "g"},
        {"type": "custom", "name": "c"},
        {"type": "web_search"},
        {"type": "local_shell"},
    ]
    return st.fixed_dictionaries(
        {"model": st.sampled_from(["m", "n"])},
        optional={
            "input": st.one_of(texts(), st.lists(items(), max_size=4)),
            "instructions": st.one_of(st.none(), texts()),
            "previous_response_id": st.one_of(st.none(), st.sampled_from(["resp_1", "resp_missing"])),
            "tools": st.lists(st.sampled_from(tools), max_size=3),
            "tool_choice": st.sampled_from(["none", "auto", "required", {"type": "function", "name": "f"}]),
            "parallel_tool_calls": st.booleans(),
            "max_tool_calls": st.integers(1, 9),
            "max_output_tokens": st.integers(16, 99),
            "store": st.one_of(st.none(), st.booleans()),
            "stream": st.booleans(),
            "generate": st.booleans(),
            "stream_id": st.sampled_from(["a", "b.c-d_e", "x" * 256]),
            "include": st.lists(st.sampled_from(["reasoning.encrypted_content", "message.output_text.logprobs"])),
            "reasoning": st.fixed_dictionaries({"effort": st.sampled_from(["none", "low", "high"])}),
            "text": st.just({"format": {"type": "text"}, "verbosity": "low"}),
            "temperature": st.floats(0, 2),
            "top_p": st.floats(0, 1),
            "truncation": st.sampled_from(["auto", "disabled"]),
            "metadata": st.dictionaries(texts(8), texts(), max_size=3),
            "prompt_cache_key": texts(),
            "service_tier": st.sampled_from(["auto", "default", "flex"]),
            "user": texts(),
            "background": st.just(value=False),
            "client_metadata": st.dictionaries(texts(8), texts(), max_size=2),
        },
    )


def _create(body: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.create", **body}


def _wrapped(body: dict[str, Any], *, flat_too: bool) -> dict[str, Any]:
    return {**_create(body if flat_too else {}), "response": body}


@functools.cache
def _wrong_types() -> SearchStrategy[dict[str, Any]]:
    """Creates in which one field has any value at all."""
    fields = ["model", "input", "previous_response_id", "tools", "store", "generate", "stream_id", "metadata", "type"]

    def spoil(body: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
        return {**_create(body), name: value}

    return st.builds(
        spoil,
        create_bodies(),
        st.sampled_from(fields),
        json_values(max_leaves=4, surrogates=True),
    )


@functools.cache
def _other_events() -> SearchStrategy[dict[str, Any]]:
    return st.one_of(
        st.fixed_dictionaries({"type": st.just("response.processed"), "response_id": st.just("resp_1")}),
        st.fixed_dictionaries({"type": st.just("response.append"), "input": st.lists(items(), max_size=2)}),
        st.builds(_wrapped, create_bodies(), flat_too=st.booleans()),
        st.builds(
            _steer,
            st.sampled_from(["resp_1", "resp_2", "", None]),
            st.one_of(texts(20), st.lists(items(), max_size=2), st.builds(_user_messages, texts(20)), json_values()),
            st.sampled_from([{}, {}, {}, {"stream_id": "a"}, {"model": "m"}]),
        ),
        st.builds(
            _inject,
            st.sampled_from(["resp_1", "resp_2", "", None]),
            st.one_of(st.lists(items(), max_size=2), json_values(max_leaves=2)),
            st.sampled_from([{}, {}, {}, {"stream_id": "a"}]),
        ),
        st.builds(
            _cancel,
            st.sampled_from(["resp_1", "resp_2", None, ""]),
            st.sampled_from([{}, {}, {"stream_id": "a"}, {"stream_id": None}, {"event_id": "e"}]),
        ),
        st.builds(
            _typed,
            st.dictionaries(texts(8), json_values(), max_size=3),
            st.one_of(texts(), st.sampled_from(["response.creat", "session.update", "response.done"])),
        ),
    )


def _steer(target: str | None, given: Any, more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.steer", "previous_response_id": target, "input": given, **more}


def _inject(target: str | None, given: Any, more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.inject", "response_id": target, "input": given, **more}


def _cancel(response_id: str | None, more: dict[str, Any]) -> dict[str, Any]:
    return {"type": "response.cancel", **({} if response_id is None else {"response_id": response_id}), **more}


def _user_messages(text: str) -> list[dict[str, Any]]:
    return [
        {"role": "user", "content": text},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
    ]


_MALFORMED = (
    "",
    " ",
    "\ufeff{}",
    "{",
    "[]",
    "null",
    "7",
    '"response.create"',
    "{}",
    '{"type":7}',
    '{"type":"response.create"',
    '{"type":"response.create"}x',
    '{"type":"response.create","input":NaN}',
    '{"type":"response.create","temperature":1e999}',
    '{"type":"response.create","model":"a","model":"b"}',
    '{"type":"response.create","input":"\\ud800"}',
    '{"type":"response.create","input":' + "[" * 5000 + "]" * 5000 + "}",
    "event: response.create\ndata: {}\n\n",
)


def client_frames(*, valid_only: bool = False) -> SearchStrategy[str]:
    """Text frames as clients send them: valid creates, wrong types, unknown and legacy events, broken JSON.

    Args:
        valid_only: only valid creates.
    """
    valid = create_bodies().map(_create)
    if valid_only:
        return _encoded(valid)
    broken = st.one_of(st.sampled_from(_MALFORMED), texts(40), json_values().map(json.dumps))
    cut = st.builds(_cut, _encoded(valid), st.integers(0, 400))
    return st.one_of(_encoded(valid), _encoded(_wrong_types()), _encoded(_other_events()), broken, cut)


def _cut(frame: str, at: int) -> str:
    return frame[: at % (len(frame) + 1)]


def _encoded(values: SearchStrategy[dict[str, Any]]) -> SearchStrategy[str]:
    def encode(value: dict[str, Any], indent: int | None, order: bool) -> str:  # noqa: FBT001 - drawn
        return json.dumps(value, indent=indent, sort_keys=order)

    return st.builds(encode, values, st.sampled_from([None, None, 1]), st.booleans())


# -- what an app sends ----------------------------------------------------------------------------

_Part: TypeAlias = Callable[[ResponseBuilder], Iterator[Event]]


@functools.cache
def _parts() -> SearchStrategy[_Part]:
    pieces = st.integers(1, 5)

    def message(text: str, deltas: int) -> _Part:
        return lambda builder: builder.message(text, deltas=deltas)

    def reasoning(text: str, deltas: int) -> _Part:
        return lambda builder: builder.reasoning(text, deltas=deltas)

    def call(kind: CallKind, arguments: dict[str, Any], deltas: int) -> _Part:
        # Of the other kinds, the arguments have a fixed form: take the example.
        free = arguments if kind in {"function", "tool_search"} else None
        return lambda builder: builder.tool_call("tool", free, kind=kind, deltas=deltas)

    def item(value: Item) -> _Part:
        return lambda builder: builder.item(value)

    objects = st.dictionaries(texts(4), json_values(max_leaves=3), max_size=3)
    return st.one_of(
        st.builds(message, texts(30), pieces),
        st.builds(reasoning, texts(30), pieces),
        st.builds(call, st.sampled_from(CALL_KINDS), objects, pieces),
        st.builds(item, st.one_of(_hosted(), _unknown_items())),
    )


@st.composite
def event_streams(
    draw: DrawFn, *, ends: Sequence[str] = ("completed", "failed", "incomplete"), max_items: int = 4
) -> list[Event]:
    """Draw the events of one response, in legal order, numbered from 0.

    Args:
        draw: given by Hypothesis.
        ends: the terminal events to choose from.
        max_items: how many output items.
    """
    builder = ResponseBuilder({"model": "m", "input": draw(texts())}, id_factory=counting_ids(), created_at=1)
    events = list(builder.start())
    for part in draw(st.lists(_parts(), max_size=max_items)):
        events += part(builder)
    end = draw(st.sampled_from(list(ends)))
    events += {"completed": builder.complete, "failed": builder.fail, "incomplete": builder.incomplete}[end]()
    return list(numbered(events))


@dataclass(frozen=True, slots=True)
class SSEStream:
    """A body, and what it says.

    Attributes:
        events: the events in it.
        chunks: the body in pieces; cut anywhere, some empty.
    """

    events: list[Event]
    chunks: list[bytes]

    @property
    def body(self) -> bytes:
        """The whole body."""
        return b"".join(self.chunks)


@st.composite
def sse_bytes(
    draw: DrawFn,
    events: SearchStrategy[list[Event]] | None = None,
    *,
    done_marker: bool = False,
    unfinished: bool = True,
) -> SSEStream:
    """Draw a body with these events, in any form that the specification of SSE allows.

    Line ends (LF, CRLF, CR), `event:`, `id:` and `retry:` lines, comments, blocks without data, a
    value with or without a space before it, JSON over several lines, escaped or not: all as drawn. Bodies are cut between any two bytes.

    Args:
        draw: given by Hypothesis.
        events: the events; by default `event_streams()`.
        done_marker: whether `[DONE]` follows.
        unfinished: whether the last blank line, or also the line end before it, may be missing,
            as in many apps.
    """
    drawn = draw(event_streams() if events is None else events)
    blocks = [draw(_blocks(event)) for event in drawn]
    if done_marker:
        blocks.append("data: [DONE]\n\n")
    text = "".join(blocks)
    for _ in range(draw(st.integers(0, 2)) if unfinished else 0):
        text = text.removesuffix("\n").removesuffix("\r") if text.endswith("\r\n") else text[:-1]
    body = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(body)), max_size=12)))
    borders = [0, *cuts, len(body)]
    return SSEStream(drawn, [body[a:b] for a, b in itertools.pairwise(borders)])


@st.composite
def _blocks(draw: DrawFn, event: Event) -> str:
    """Write one event, perhaps after a block that is none. Line ends change between blocks only: CR, LF is one."""
    end = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    space = draw(st.sampled_from([" ", ""]))
    text = json.dumps(event, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1])))
    lines = [f"data:{space}{line}" for line in text.split("\n")]
    kind = event["type"]
    before = [f"event: {kind}", f"id:{space}7", "retry: 10", ": ping", ":", "unknown: x", "id"]
    others = draw(st.lists(st.sampled_from(before), max_size=2))
    lines[:0] = others
    if draw(st.booleans()):
        lines.insert(draw(st.integers(0, len(lines))), f"event:{space}{kind}")
    idle = draw(st.sampled_from(["", "", f": ping{end}{end}", f"event: {kind}{end}{end}"]))
    return idle + end.join([*lines, "", ""])
