"""Answers with tags: the same pieces however the answer was cut, from text or from ids; what is no tag stays text."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.rendering.vocabularies import TAGS, plain, tagged
from ws_responses.rendering.renderer import OutputPiece, Tool, ToolSet
from ws_responses.rendering.tagged_text import Begun, TagParser, TextSource
from ws_responses.rendering.tokenizer import TiktokenTokenizer

TOOLS = ToolSet(tools=(Tool(kind="function", name="find"), Tool(kind="custom", name="patch")), raw=b"")

CALL = '<tool_call>\n{"name": "find", "arguments": {"q": "a"}}\n</tool_call>'

FRAGMENTS = st.sampled_from(
    [
        *TAGS[:4],
        "<",
        "<tool",
        "</think",
        "\n",
        "  ",
        "a",
        "Ok. ",
        "é🙂漢",
        " " * 70,
        "{",
        "}",
        '"',
        CALL,
        '{"name": "find", "arguments": {"q": "</tool_call>"}}',
        '{"name": "patch", "arguments": {"input": "x\\n\\u00e9"}}',
        '{"arguments": {"q": 1}, "name": "find"}',
        '{"name": "find", "arguments": "{\\"q\\": 1}"}',
        '{"name": "patch", "arguments": "free"}',
        '{"name": "find", "parameters": {}}',
        '{"name": "find"}',
    ]
)
ANSWERS = st.lists(FRAGMENTS, max_size=8).map("".join)
CUTS = st.lists(st.sampled_from([1, 1, 2, 3, 7, 40]), min_size=1, max_size=4)


def source(tokenizer: TiktokenTokenizer | None = None) -> TextSource:
    known = tokenizer or tagged()
    tags = {known.special(tag): tag for tag in TAGS} if known.name == tagged().name else {}
    return TextSource(known, tags, (known.special("<|im_end|>"),))


def joined(pieces: Iterable[OutputPiece]) -> list[tuple[Any, ...]]:
    """Return pieces with those that follow each other and belong together made one."""
    whole: list[tuple[Any, ...]] = []
    for piece in pieces:
        if whole and piece.name is None and whole[-1][0] == piece.kind and whole[-1][3] == piece.call:
            kind, name, text, call = whole.pop()
            whole.append((kind, name, text + piece.text, call))
        else:
            whole.append((piece.kind, piece.name, piece.text, piece.call))
    return whole


def read(parts: Iterable[tuple[Sequence[int], str]], parser: TagParser) -> list[tuple[Any, ...]]:
    pieces = [piece for ids, text in parts for piece in parser.feed(ids, text)]
    return joined([*pieces, *parser.end()])


def cut(whole: Any, sizes: Sequence[int]) -> list[Any]:
    parts: list[Any] = []
    while len(whole):
        size = sizes[len(parts) % len(sizes)]
        parts.append(whole[:size])
        whole = whole[size:]
    return parts


def of_text(answer: str, sizes: Sequence[int], *, tools: ToolSet | None = TOOLS, begun: Begun = "text") -> Any:
    return read([((), part) for part in cut(answer, sizes)], TagParser(tools, source(), begun))


def of_ids(ids: Sequence[int], sizes: Sequence[int], tokenizer: TiktokenTokenizer) -> Any:
    return read([(part, "") for part in cut(ids, sizes)], TagParser(TOOLS, source(tokenizer)))


# -- what an answer says -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "pieces"),
    [
        ("Hello.", [("text", None, "Hello.", 0)]),
        ("  \n Hello. \n", [("text", None, "  \n Hello. \n", 0)]),
        (
            "<think>\nhm\n</think>\n\nHello.",
            [("reasoning", None, "hm", 0), ("text", None, "Hello.", 0)],
        ),
        (f"Let me see.\n{CALL}", [("text", None, "Let me see.", 0), ("call", "find", '{"q": "a"}', 0)]),
        (
            f"{CALL}\n{CALL}",
            [("call", "find", '{"q": "a"}', 0), ("call", "find", '{"q": "a"}', 1)],
        ),
        (
            '<tool_call>\n{"name": "patch", "arguments": {"input": "*** \\"x\\"\\n"}}\n</tool_call>',
            [("call", "patch", '*** "x"\n', 0)],
        ),
        (
            '<tool_call>{"name": "find", "arguments": "{\\"q\\": 1}"}</tool_call>',
            [("call", "find", '{"q": 1}', 0)],
        ),
        ('<tool_call>{"arguments": {"q": 1}, "name": "find"}</tool_call>', [("call", "find", '{"q": 1}', 0)]),
        ('<tool_call>{"name": "find"}</tool_call>', [("call", "find", "{}", 0)]),
        (
            '<tool_call>{"name": "find", "arguments": {"q": "</tool_call>"}}</tool_call> Done.',
            [("call", "find", '{"q": "</tool_call>"}', 0), ("text", None, "Done.", 0)],
        ),
        ('<tool_call>\n{"name": "find", "arguments": {"q": 1', [("call", "find", '{"q": 1', 0)]),
        ('<tool_call>\n{"name": "find", "argum', [("text", None, '<tool_call>\n{"name": "find", "argum', 0)]),
        ('<tool_call>{"name": "patch", "arguments": {"x": 1', [("call", "patch", '{"x": 1', 0)]),
        ("<tool_call>none</tool_call>", [("text", None, "<tool_call>none</tool_call>", 0)]),
        ("a \n<tool_call>none", [("text", None, "a \n<tool_call>none", 0)]),
        (f"a{' ' * 70}{CALL}", [("text", None, f"a{' ' * 6}", 0), ("call", "find", '{"q": "a"}', 0)]),
        ("The tag <think> begins a thought.", [("text", None, "The tag <think> begins a thought.", 0)]),
        ("a < b, <to", [("text", None, "a < b, <to", 0)]),
        ("<think>\nnever closed ", [("reasoning", None, "never closed ", 0)]),
        (
            f"{CALL}<think>more</think>Then.",
            [("call", "find", '{"q": "a"}', 0), ("reasoning", None, "more", 0), ("text", None, "Then.", 0)],
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 10_000])
def test_what_an_answer_says(answer: str, pieces: list[tuple[Any, ...]], size: int) -> None:
    assert of_text(answer, [size]) == pieces


def test_without_tools_a_call_is_text() -> None:
    """Without this a client that offered no tool would be told of a call."""
    assert of_text(CALL, [4], tools=None) == [("text", None, CALL, 0)]


@pytest.mark.parametrize("size", [1, 10_000])
def test_an_answer_may_begin_within_a_tag(size: int) -> None:
    assert of_text("hm\n</think>\nHi", [size], begun="reasoning") == [
        ("reasoning", None, "hm", 0),
        ("text", None, "Hi", 0),
    ]
    assert of_text('{"name": "find", "arguments": {}}', [size], begun="call") == [("call", "find", "{}", 0)]


def test_arguments_go_on_before_the_call_ends() -> None:
    """Without this a long call would reach the client in one piece at its end."""
    parser = TagParser(TOOLS, source())

    assert joined(parser.feed((), '<tool_call>\n{"name": "find", "arguments": {"q": "ab')) == [
        ("call", "find", '{"q": "ab', 0)
    ]
    assert joined(parser.feed((), "cd")) == [("call", None, "cd", 0)]


def test_plain_text_is_never_held_back() -> None:
    """Without this the client would lag behind the model by a token."""
    parser = TagParser(TOOLS, source())

    for word in ("Hello", ", wor", "ld.", " x"):
        assert joined(parser.feed((), word)) == [("text", None, word, 0)]


# -- cuts ----------------------------------------------------------------------------------------------------------------


@given(
    answer=ANSWERS,
    sizes=CUTS,
    tools=st.sampled_from([TOOLS, TOOLS, None]),
    begun=st.sampled_from(["text", "text", "reasoning", "call"]),
)
@example("<think>a</think>" + " " * 70 + "<tool_call>", [1], TOOLS, "text")
def test_any_cut_gives_the_same_pieces(answer: str, sizes: list[int], tools: ToolSet | None, begun: Begun) -> None:
    """Without this what a client gets would depend on how the network cut the answer."""
    if tools is None and begun == "call":
        begun = "text"

    assert of_text(answer, sizes, tools=tools, begun=begun) == of_text(answer, [100_000], tools=tools, begun=begun)


@given(answer=st.text(st.sampled_from("ab <\n{}é"), max_size=30), sizes=CUTS)
def test_an_answer_without_tags_is_passed_on_as_it_is(answer: str, sizes: list[int]) -> None:
    """Without this blanks, or what looks like the beginning of a tag, could be lost."""
    assert "".join(text for _, _, text, _ in of_text(answer, sizes)) == answer


# -- ids and text --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [plain(), tagged()], ids=["plain", "tagged"])
@given(answer=ANSWERS, sizes=CUTS)
def test_ids_say_what_the_text_says(tokenizer: TiktokenTokenizer, answer: str, sizes: list[int]) -> None:
    """Without this a backend that tells ids only would give other answers."""
    ids = tokenizer._encoding.encode(answer, allowed_special="all")
    end = tokenizer.special("<|im_end|>")

    assert of_ids([*ids, end], sizes, tokenizer) == of_text(answer, [100_000])


@given(answer=ANSWERS)
def test_ids_beside_text_change_nothing(answer: str) -> None:
    """Without this a backend that tells both would have its text said twice."""
    tokenizer = tagged()
    ids = tokenizer._encoding.encode(answer, allowed_special="all")
    parts = [([token], tokenizer.decode([token]).decode("utf-8", "replace")) for token in ids]

    assert read(parts, TagParser(TOOLS, source())) == of_text("".join(text for _, text in parts), [100_000])


def test_text_counts_where_ids_were_lost() -> None:
    """Without this a backend that tells one id of a character's three would garble it."""
    tokenizer = tagged()
    lost = tokenizer.encode("漢字🙂")[-1:]

    for before, ids, kind in (
        ("Hi ", tokenizer.encode("Hi ")[:1], "text"),
        ("", [tokenizer.special("<think>")], "reasoning"),
    ):
        assert read([(ids, before), (lost, "🙂")], TagParser(TOOLS, source())) == [(kind, None, f"{before}🙂", 0)]


@pytest.mark.parametrize("together", [False, True], ids=["token by token", "in one piece"])
def test_tags_that_the_backend_leaves_out_of_its_text_are_put_back(together: bool) -> None:
    """Without this thoughts and calls would be told as text."""
    tokenizer = tagged()
    answer = f"<think>hm</think>Hi {CALL}"
    ids = tokenizer._encoding.encode(answer, allowed_special="all")
    hidden = {tokenizer.special(tag) for tag in TAGS}
    parts = [([token], "" if token in hidden else tokenizer.decode([token]).decode()) for token in ids]
    if together:
        parts = [(ids, "".join(text for _, text in parts))]

    assert read(parts, TagParser(TOOLS, source())) == of_text(answer, [100_000])


@given(whole=ANSWERS.filter(bool), sizes=CUTS)
def test_hidden_tags_in_small_parts(whole: str, sizes: list[int]) -> None:
    """Without this a part that holds a tag and text would lose the order of the two."""
    tokenizer = tagged()
    ids = tokenizer._encoding.encode(whole, allowed_special="all")
    hidden = {tokenizer.special(tag) for tag in TAGS}
    parts = []
    for part in cut(ids, sizes):
        text = tokenizer.decode([token for token in part if token not in hidden])
        if tokenizer.decode(part).decode("utf-8", "replace").encode() != tokenizer.decode(part):
            return  # a character is cut here: the backend would hold it back
        parts.append((part, text.decode()))

    assert read(parts, TagParser(TOOLS, source())) == of_text(whole, [100_000])
