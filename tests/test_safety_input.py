"""What is read of a turn's input: all text of what is new, once, wherever it hides."""

import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.safety_room import ABOUT
from ws_responses.errors import InvalidRequest
from ws_responses.protocol.items import CALLS
from ws_responses.safety import Piece, SafetyInput, SafetyState, TooManyTexts, read_input
from ws_responses.safety.text import MOST_LEVELS, GrowingText, split_word, squeezed, tail_of, unescaped
from ws_responses.safety.verdict import carried_bytes
from ws_responses.state.interning import Interned


def read(*items: Any, members: dict[str, Any] | None = None, state: SafetyState | None = None) -> SafetyInput | None:
    encoded = [json.dumps(item).encode() for item in items]
    raw = {name: json.dumps(value).encode() for name, value in (members or {}).items()}
    return read_input(encoded, members=raw, about=ABOUT, state=state).delta


def pieces(*items: Any, **rest: Any) -> list[Piece]:
    delta = read(*items, **rest)
    return [] if delta is None else list(delta.pieces)


USER = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "PSST"}]}


@pytest.mark.parametrize(
    ("item", "kind", "role", "path"),
    [
        ({"role": "user", "content": "PSST"}, "text", "user", "input[0].content"),
        (USER, "text", "user", "input[0].content[0].text"),
        (
            {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "PSST"}]},
            "refusal",
            "assistant",
            "input[0].content[0].refusal",
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "brand_new", "words": ["PSST"]}]},
            "text",
            "user",
            "input[0].content[0].words[0]",
        ),
        (
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "PSST"},
            "arguments",
            "assistant",
            "input[0].arguments",
        ),
        (
            {"type": "custom_tool_call", "call_id": "c", "name": "f", "input": "PSST"},
            "arguments",
            "assistant",
            "input[0].input",
        ),
        ({"type": "function_call_output", "call_id": "c", "output": "PSST"}, "tool_output", "tool", "input[0].output"),
        (
            {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "PSST"}]},
            "tool_output",
            "tool",
            "input[0].output[0].text",
        ),
        (
            {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "PSST", "stderr": ""}]},
            "tool_output",
            "tool",
            "input[0].output[0].stdout",
        ),
        (
            {"type": "shell_call", "call_id": "c", "action": {"commands": ["PSST"]}},
            "arguments",
            "assistant",
            "input[0].action.commands[0]",
        ),
        (
            {"type": "mcp_call", "id": "m", "arguments": "{}", "output": "PSST"},
            "tool_output",
            "assistant",
            "input[0].output",
        ),
        (
            {"type": "reasoning", "summary": [{"type": "summary_text", "text": "PSST"}]},
            "reasoning",
            "assistant",
            "input[0].summary[0].text",
        ),
        ({"type": "input_file", "filename": "PSST", "file_data": "aGk="}, "other", None, "input[0].filename"),
        ({"type": "not_yet_invented", "deep": [{"er": {"still": "PSST"}}]}, "other", None, "input[0].deep[0].er.still"),
    ],
)
def test_text_is_found_in_every_kind_of_item(item: Any, kind: str, role: str | None, path: str) -> None:
    """What is not read here reaches the model unjudged."""
    found = [piece for piece in pieces(item) if piece.text == "PSST"]
    assert [(piece.kind, piece.role, piece.path) for piece in found] == [(kind, role, path)]


@pytest.mark.parametrize("type_", sorted({pairing.output for pairing in CALLS.values()}))
def test_what_answers_a_call_is_a_tools_word(type_: str) -> None:
    (piece,) = pieces({"type": type_, "call_id": "c", "output": "PSST"})
    assert (piece.kind, piece.role) == ("tool_output", "tool")


@pytest.mark.parametrize(
    "item",
    [
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_image", "image_url": "data:image/png;base64,QUJD"}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_audio", "input_audio": {"data": "QUJD", "format": "mp3"}}],
        },
        {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_file", "file_data": "QUJD", "file_id": "file_1"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "QUJD"},
        {"type": "compaction", "id": "c_1", "encrypted_content": "QUJD"},
        {"type": "item_reference", "id": "msg_1"},
        {"type": "image_generation_call", "id": "ig_1", "status": "completed", "result": "QUJD"},
        {
            "type": "computer_call_output",
            "call_id": "c",
            "output": {"type": "computer_screenshot", "image_url": "data:QUJD"},
        },
    ],
)
def test_what_is_no_text_is_not_read(item: Any) -> None:
    """Megabytes of pictures and ciphers would be scanned for words, and sent to moderation services."""
    assert pieces(item) == []


def test_a_member_that_is_called_like_a_name_hides_no_text_inside() -> None:
    """In a schema, ``name`` and ``id`` are properties with descriptions."""
    tools = [
        {
            "type": "function",
            "name": "f",
            "parameters": {"properties": {"name": {"type": "string", "description": "PSST"}}},
        }
    ]
    assert [piece.text for piece in pieces(members={"tools": tools})] == ["PSST"]


def test_the_escapes_of_arguments_are_read() -> None:
    (piece,) = pieces(
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"x": "\\u0050SST\\n\\"q\\""}'}
    )
    assert piece.text == '{"x": "PSST\n"q""}'
    (piece,) = pieces({"type": "function_call_output", "call_id": "c", "output": "\\u0050"})
    assert piece.text == "\\u0050", "of what a tool gives, the model reads the escapes themselves"


def test_members_are_read_when_they_change_and_only_then() -> None:
    """Codex sends 20 kB of tools and instructions with each turn; instructions that change must not get past."""
    tools = Interned(b'[{"type":"function","name":"f","description":"one tool"}]')
    first = read_input([], members={"instructions": b'"be nice"', "tools": tools}, about=ABOUT, state=None)
    assert first.delta is not None
    assert [(piece.text, piece.kind, piece.path) for piece in first.delta.pieces] == [
        ("be nice", "setting", "instructions"),
        ("one tool", "setting", "tools[0].description"),
    ]

    same = read_input(
        [], members={"instructions": b'"be nice"', "tools": Interned(tools.raw)}, about=ABOUT, state=first.state
    )
    assert (same.delta, same.state) == (None, first.state)
    other = read_input([], members={"instructions": b'"be rude"', "tools": tools}, about=ABOUT, state=first.state)
    assert other.delta is not None
    assert other.delta.text == "be rude"
    without = read_input([], members={}, about=ABOUT, state=other.state)
    again = read_input([], members={"instructions": b'"be rude"'}, about=ABOUT, state=without.state)
    assert again.delta is None


def test_the_first_piece_comes_after_what_was_judged_before() -> None:
    delta = read(
        {"role": "user", "content": "one"}, {"role": "user", "content": "two"}, state=SafetyState(tail="so far")
    )
    assert delta is not None
    assert delta.text == "so far\none\ntwo"
    assert delta.new_text == "one\ntwo"


def test_a_history_that_nobody_has_judged_is_read_with_the_delta() -> None:
    """It may have come from a store, where anything may be."""
    reading = read_input(
        [b'{"role":"user","content":"new"}'],
        members={},
        about=ABOUT,
        state=None,
        history=[b'{"role":"user","content":"old"}'],
    )
    assert reading.delta is not None
    assert [(piece.path, piece.text) for piece in reading.delta.pieces] == [
        ("history[0].content", "old"),
        ("input[0].content", "new"),
    ]


@pytest.mark.parametrize(
    ("items", "members", "path"),
    [
        ([b'{"content":1e999}'], {}, "input[0]"),
        ([b"{}", b'{"content":"\\ud800 text"}'], {}, "input[1]"),
        ([], {"tools": b"[1e999]"}, "tools"),
        ([], {"instructions": b'"\\udfff"'}, "instructions"),
    ],
)
def test_what_cannot_be_read_is_refused_by_its_path(items: list[bytes], members: dict[str, bytes], path: str) -> None:
    """Passed on unread it would be passed on unjudged."""
    with pytest.raises(InvalidRequest) as caught:
        read_input(items, members=members, about=ABOUT, state=None)
    assert caught.value.param == path


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=20,
)


@given(item=st.dictionaries(st.text(max_size=3), JSON, max_size=4), secret=st.text("xyz", min_size=4, max_size=8))
def test_no_shape_of_an_item_hides_a_text(item: dict[str, Any], secret: str) -> None:
    item["zz"] = [{"k": secret}]
    assert any(secret in piece.text for piece in pieces(item))


def within(lists: int) -> bytes:
    """An object with a text within so many lists."""
    return b'{"a":' + b"[" * lists + b'"PSST"' + b"]" * lists + b"}"


@pytest.mark.parametrize("levels", [MOST_LEVELS - 1, MOST_LEVELS])
def test_a_deep_item_is_read_to_its_ground(levels: int) -> None:
    """Without this depth could be a way past the classifiers."""
    reading = read_input([within(levels - 1)], members={}, about=ABOUT, state=None)
    assert reading.delta is not None
    assert reading.delta.text == "PSST"


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 900])
def test_what_is_too_deep_is_refused(levels: int) -> None:
    """Without this 250 kB of JSON could hold up all connections for seconds: each of its texts has a place as long as it is deep.

    How deep the decoder goes depends on the Python: to 1000 levels up to 3.11, to ten times that on 3.13.
    """
    with pytest.raises(InvalidRequest) as of_item:
        read_input([within(levels - 1)], members={}, about=ABOUT, state=None)
    with pytest.raises(InvalidRequest) as of_member:
        read_input([], members={"tools": Raw(within(levels - 1))}, about=ABOUT, state=None)

    assert (of_item.value.param, of_member.value.param) == ("input[0]", "tools")


# -- text ----------------------------------------------------------------------------------------------------------------


@given(text=st.text(max_size=40), cut=st.integers(0, 400))
def test_json_text_cut_anywhere_reads_as_the_whole(text: str, cut: int) -> None:
    """A window may end in an escape, or between the halves of a character."""
    written = json.dumps(text)
    first, rest = split_word(written[:cut], is_json=True)
    assert first + rest == written[:cut]
    assert unescaped(first) + unescaped(rest + written[cut:]) == unescaped(written) == f'"{text}"'


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("one two", "two"),
        ("one ", ""),
        ("", ""),
        ("x" * 63, "x" * 63),
        ("x" * 64, ""),
        ("a " + "x" * 62, "x" * 62),
        ("炸弹", "炸弹"),
    ],
)
def test_a_word_that_may_go_on_is_kept_for_later_unless_it_is_longer_than_any(text: str, rest: str) -> None:
    """Without the exception a text without a space would never be judged."""
    assert split_word(text) == (text[: len(text) - len(rest)], rest)


def test_a_long_run_of_escapes_is_cut_between_them() -> None:
    written = "\\u0041" * 40
    for cut in range(len(written)):
        first, rest = split_word(written[:cut], is_json=True)
        assert unescaped(first) + unescaped(rest + written[cut:]) == "A" * 40
        assert len(rest) < 64


@given(text=st.text(st.sampled_from("ab \n\t\u200b\u00a0\x1c"), max_size=60), chars=st.integers(0, 10))
def test_an_overlap_is_not_used_up_by_what_nobody_sees(text: str, chars: int) -> None:
    """Else a thousand spaces between two words would put them into windows that know nothing of each other."""
    tail = tail_of(text, chars)
    assert tail == (squeezed(text)[-chars:] if chars else "")
    assert "  " not in tail


def test_a_flood_of_spaces_does_not_hide_what_came_before_it() -> None:
    assert tail_of("make a" + " " * 10_000, 8) == " make a "[-7:]


@given(
    state=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text() | st.binary(), lambda inner: st.lists(inner).map(tuple)
    )
)
def test_a_carried_state_has_a_size(state: Any) -> None:
    assert carried_bytes(state) > 0


def test_the_size_of_a_safety_state_counts_what_it_holds() -> None:
    small = SafetyState()
    large = SafetyState(
        tail="x" * 1000, settings=(("tools", b"d" * 16),), carried=(("c", ("s" * 500,)),), flags=("c:" + "f" * 100,)
    )
    assert large.size - small.size > 1600


@given(st.lists(st.tuples(st.booleans(), st.text(max_size=3)), max_size=600))
def test_a_text_that_grows_is_its_pieces(pieces: list[tuple[bool, str]]) -> None:
    """However many there are: it is what later snapshots are compared with."""
    growing, plain = GrowingText(), ""
    for whole, text in pieces:
        if whole and text == "":
            growing.become("all")
            plain = "all"
        else:
            growing.add(text)
            plain += text
    assert str(growing) == plain


def with_texts(count: int) -> bytes:
    return b'{"type":"message","role":"user","content":[%b]}' % b",".join([b'"a"'] * count)


@pytest.mark.parametrize("texts", [9, 10, 11])
@pytest.mark.parametrize("shape", ["one item", "many items", "with a member"])
def test_the_texts_of_an_input_are_bounded(texts: int, shape: str) -> None:
    """A frame of 16 MB may hold four million strings: to read them one by one takes a gigabyte, and half a minute of everybody."""
    items, members = [with_texts(texts)], dict[str, bytes]()
    if shape == "many items":
        items = [with_texts(1)] * texts
    if shape == "with a member":
        items, members = [with_texts(texts - 4)], {"tools": b'["a","b","c","d"]'}
    if texts <= 10:
        reading = read_input(items, members=members, about=ABOUT, state=None, max_texts=10)
        assert reading.delta is not None
        assert len(reading.delta.pieces) == texts
        return
    with pytest.raises(TooManyTexts, match="10 texts") as caught:
        read_input(items, members=members, about=ABOUT, state=None, max_texts=10)
    assert caught.value.param == "input"


def test_a_history_that_nobody_has_judged_is_read_whatever_its_length() -> None:
    """Else a chain that was bounded turn by turn could not be continued where other classifiers judge."""
    older = [with_texts(8), with_texts(8)]
    reading = read_input([with_texts(1)], members={}, about=ABOUT, state=None, history=older, max_texts=10)
    assert reading.delta is not None
    assert len(reading.delta.pieces) == 17


def test_nothing_is_made_of_texts_beyond_the_bound() -> None:
    """Counting them must not take what reading them would: four hundred bytes each, beside the string."""
    item = with_texts(100_000)

    def read() -> None:
        with pytest.raises(TooManyTexts):
            read_input([item], members={}, about=ABOUT, state=None, max_texts=10)

    assert peak_of(read) < 1.5 * peak_of(lambda: msgspec.json.decode(item))


def peak_of(work: Callable[[], object]) -> int:
    """Bytes of memory that some work takes at most."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
