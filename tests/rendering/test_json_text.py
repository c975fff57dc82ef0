"""JSON of a model, read piece by piece: the same whatever the pieces are, right for right JSON, and never an error."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ws_responses.rendering.json_text import InputReader, StringReader, ValueEnd, arguments_with, input_of, unescape
from ws_responses.testing.strategies import json_values

ODD_TEXTS = st.text(st.sampled_from('ab"\\/\n\tué0😀{}<'), max_size=16)
LETTERS_OF_ESCAPES = st.text(st.sampled_from('\\ud83e"xn0/'), max_size=16)


def pieces_of(text: str, sizes: list[int]) -> list[str]:
    """Cut a text into pieces of these sizes, over and over."""
    pieces: list[str] = []
    while text:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[:size])
        text = text[size:]
    return pieces


SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@given(text=ODD_TEXTS, sizes=SIZES, escaped=st.booleans())
@example("😀", [6], True)
def test_a_string_says_what_was_written(text: str, sizes: list[int], escaped: bool) -> None:
    """Without this an escape on the border of two tokens would garble a tool's input."""
    written = json.dumps(text, ensure_ascii=escaped)[1:]
    reader = StringReader()

    said = "".join(map(reader.feed, pieces_of(written, sizes)))

    assert said == text
    assert reader.ended


@given(written=LETTERS_OF_ESCAPES, sizes=SIZES)
def test_bad_escapes_read_the_same_in_any_pieces(written: str, sizes: list[int]) -> None:
    """Without this what a client is streamed could differ from what a history has."""
    whole, parts = StringReader(), StringReader()

    assert "".join(map(parts.feed, pieces_of(written, sizes))) + parts.end() == whole.feed(written) + whole.end()
    assert parts.ended == whole.ended


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (r"\ud83d", "\ufffd"),
        (r"\udc00a", "\ufffda"),
        (r"\ud83d\u0041", "\ufffdA"),
        (r"\x\q", r"\x\q"),
        (r"\u12", r"\u12"),
        (r"a\\u0041", r"a\u0041"),
    ],
)
def test_what_is_no_escape_stays(written: str, said: str) -> None:
    assert unescape(written) == said


@example({"a": 'x"}\\', "b": "\\"}, "}", [1])
@given(value=json_values(), tail=st.sampled_from(["}", ", 1", "]", " </tool_call>", "\n"]), sizes=SIZES)
def test_the_end_of_a_value_is_found(value: object, tail: str, sizes: list[int]) -> None:
    """Without this arguments would run into what follows them, or end at a bracket inside a string."""
    written = json.dumps(value, ensure_ascii=False)
    finder = ValueEnd()
    read = 0

    for piece in pieces_of(written + tail, sizes):
        end = finder.feed(piece)
        if end >= 0:
            read += end
            break
        read += len(piece)

    assert read == len(written)


def test_a_tag_ends_a_value_that_is_not_whole() -> None:
    assert ValueEnd().feed('{"a": [1, "<"</tool_call>') == len('{"a": [1, "<"')


@given(text=ODD_TEXTS, sizes=SIZES, escaped=st.booleans())
def test_the_input_of_a_custom_tool_comes_out_of_its_arguments(text: str, sizes: list[int], escaped: bool) -> None:
    """Without this a custom tool would be given JSON, or pieces of it."""
    arguments = json.dumps({"input": text}, ensure_ascii=escaped)
    reader = InputReader()

    assert "".join(map(reader.feed, pieces_of(arguments, sizes))) + reader.end() == text
    assert input_of(arguments) == text
    assert input_of(arguments_with(text)) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('"just text"', "just text"),
        ("just text", "just text"),
        ('{"other": 1, "input": "x"}', "x"),
        ('{"input": 7}', '{"input": 7}'),
        ("", ""),
        ("[" * 5000, "[" * 5000),
        (" " * 300 + '{"input": "x"}', "x"),
    ],
)
def test_arguments_of_another_shape_are_the_input(arguments: str, text: str) -> None:
    for size in (1, len(arguments) or 1):
        reader = InputReader()
        pieces = pieces_of(arguments, [size])

        assert "".join(map(reader.feed, pieces)) + reader.end() == text


def test_what_follows_a_string_is_kept_apart() -> None:
    reader = StringReader()

    assert reader.feed('a", "b": 1') == "a"
    assert reader.rest == ', "b": 1'
    assert not reader.feed("more")
