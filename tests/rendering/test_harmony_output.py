"""The parser reads what the library's parser reads, piece by piece, and calls nonsense by its name."""

from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.rendering import oracle
from tests.rendering.gpt_oss import TOKENS, Sampled, answers, sampled_ids, spelled
from ws_responses.errors import UpstreamError
from ws_responses.rendering.harmony_output import MAX_HEADER_IDS, HarmonyParser
from ws_responses.rendering.harmony_tokens import END_OF_TEXT, SPELLED
from ws_responses.rendering.renderer import OutputPiece

Said = tuple[str, str | None, str]
"""Kind, with the phase or the tool's name, and text."""


def read(ids: Sequence[int], cuts: Sequence[int] = (), parser: HarmonyParser | None = None) -> list[OutputPiece]:
    """Return all pieces of an answer, fed in chunks that end at these places."""
    parser = parser or HarmonyParser(TOKENS)
    pieces: list[OutputPiece] = []
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        pieces += parser.feed(ids[begin:end], "of no account" if begin < end else "")
    return [*pieces, *parser.end()]


def joined(pieces: Sequence[OutputPiece]) -> list[Said]:
    """Return what pieces say, neighbours of a kind joined."""
    said: list[Said] = []
    last: tuple[str, str | None, int] | None = None
    for piece in pieces:
        place = (piece.kind, piece.phase, piece.call)
        if place != last:
            said.append((piece.kind, piece.name if piece.kind == "call" else piece.phase, ""))
        assert piece.name is None or place != last
        kind, name, text = said[-1]
        said[-1] = (kind, name, text + piece.text)
        last = place
    return said


def expected(messages: Sequence[oracle.Sampled]) -> list[Said]:
    """Return the same of the library's messages."""
    said: list[Said] = []
    for message in messages:
        name = (message.recipient or "").removeprefix("functions.")
        kind: Said = ("text", "commentary" if message.channel == "commentary" else "final_answer", message.text)
        if name:
            kind = ("call", name, message.text)
        elif message.channel == "analysis":
            kind = ("reasoning", None, message.text)
        if kind[0] != "call" and not kind[2]:
            continue
        if said and said[-1][:2] == kind[:2] and kind[0] != "call":
            said[-1] = (kind[0], kind[1], said[-1][2] + kind[2])
        else:
            said.append(kind)
    return said


@st.composite
def cut_answers(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    answer: list[Sampled] = draw(answers())
    ids = sampled_ids(answer, whole=draw(st.booleans()))
    return ids, sorted(draw(st.lists(st.integers(0, len(ids)), max_size=6)))


@given(cut_answers())
def test_it_reads_what_the_library_reads(drawn: tuple[list[int], list[int]]) -> None:
    """However the stream is cut; characters of several tokens come out whole. Without this an answer would differ by chunks."""
    ids, cuts = drawn

    assert joined(read(ids, cuts)) == expected(oracle.parsed(ids) if ids else [])


@given(cut_answers(), st.data())
def test_characters_are_never_told_in_parts(drawn: tuple[list[int], list[int]], data: st.DataObject) -> None:
    """One id per chunk: a piece that ended within a character would show U+FFFD twice."""
    ids, _ = drawn
    pieces = read(ids, range(len(ids)))

    text = "".join(message.text for message in (oracle.parsed(ids) if ids else []))
    assert "".join(piece.text for piece in pieces) == text
    assert all(piece.text or piece.name for piece in pieces)


@given(content=st.binary(max_size=12), whole=st.booleans(), data=st.data())
def test_bytes_that_are_no_text_are_replaced_as_the_library_does(
    content: bytes, whole: bool, data: st.DataObject
) -> None:
    """Also a character that was cut off at the end: the last piece tells it, as U+FFFD."""
    single = [TOKENS.encoding.encode_single_token(bytes([byte])) for byte in content]
    ids = [*spelled("<|channel|>final<|message|>"), *single, *(spelled("<|return|>") if whole else ())]
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=6)))

    assert joined(read(ids, cuts)) == expected(oracle.parsed(ids))


@given(answers(canonical=True), st.data())
def test_text_alone_is_read_if_it_spells_the_control_tokens(answer: list[Sampled], data: st.DataObject) -> None:
    """However the text is cut, within a spelled control token too. What is quoted in the content is a control token then."""
    ids = sampled_ids(answer)
    if any(spelling in message.text for message in answer for spelling in SPELLED):
        return
    text = TOKENS.decode(ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parser = HarmonyParser(TOKENS)
    pieces: list[OutputPiece] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        pieces += parser.feed((), text[begin:end])
    pieces += parser.end()

    assert joined(pieces) == joined(read(ids))


def test_ids_and_text_may_take_turns() -> None:
    """A backend that loses the ids of one chunk tells its text."""
    parser = HarmonyParser(TOKENS)
    pieces = [
        *parser.feed(spelled("<|channel|>final<|message|>a"), "a"),
        *parser.feed((), "🙂"),
        *parser.feed(spelled("b<|return|>"), "b"),
        *parser.end(),
    ]

    assert joined(pieces) == [("text", "final_answer", "a🙂b")]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ("<|channel|>analysis<|message|>Hm.<|end|>", [("reasoning", None, "Hm.")]),
        ("<|channel|>commentary<|message|>Plan.<|end|>", [("text", "commentary", "Plan.")]),
        ("<|channel|>final<|message|>Hi.<|return|>", [("text", "final_answer", "Hi.")]),
        ("<|message|>Hi.<|return|>", [("text", "final_answer", "Hi.")]),
        ("<|channel|>final <|constrain|>json<|message|>{}<|return|>", [("text", "final_answer", "{}")]),
        ("<|channel|>commentary json<|message|>{}<|end|>", [("text", "commentary", "{}")]),
        ("<|channel|>commentary to=find <|constrain|>json<|message|>{}<|call|>", [("call", "find", "{}")]),
        ("<|channel|>analysis to=functions.find code<|message|>{}<|call|>", [("call", "find", "{}")]),
        (" to=functions.find<|channel|>commentary<|message|>{}<|call|>", [("call", "find", "{}")]),
        ("<|channel|>final to=user<|message|>Hi.<|return|>", [("text", "final_answer", "Hi.")]),
        ("<|channel|>final to=everyone<|message|>Hi.<|return|>", [("text", "final_answer", "Hi.")]),
        (
            "<|channel|>commentary to=functions.a<|message|>1<|call|><|start|>assistant<|channel|>final<|message|>2",
            [("call", "a", "1")],
        ),
        (
            "<|channel|>commentary to=functions.a<|message|>1<|end|><|start|>assistant to=functions.a<|message|>2<|call|>",
            [("call", "a", "1"), ("call", "a", "2")],
        ),
        ("<|channel|>final<|message|>A <|start|> in it.<|return|>", [("text", "final_answer", "A <|start|> in it.")]),
        ("<|channel|>final<|message|>Hi.<|endoftext|>", [("text", "final_answer", "Hi.")]),
        ("<|channel|>final<|message|>Hi.<|end|><|return|>", [("text", "final_answer", "Hi.")]),
        ("<|channel|>final<|message|>", []),
        ("<|channel|>fin", []),
        ("<|return|>", []),
        ("", []),
    ],
)
def test_what_a_message_is(answer: str, said: list[Said]) -> None:
    """The library takes the ``<|constrain|>json`` of a structured answer for a recipient; we do not."""
    assert joined(read(spelled(answer), parser=HarmonyParser(TOKENS, offered=("find",)))) == said


@pytest.mark.parametrize(
    "answer",
    [
        "<|channel|>commentary to=browser.search<|message|>{}<|call|>",
        "<|channel|>analysis to=python code<|message|>1<|call|>",
        "<|channel|>commentary to=functions.<|message|>{}<|call|>",
        "<|channel|>thoughts<|message|>x",
        "<|channel|><|message|>x",
        "<|channel|>analysis<|end|>",
        "<|channel|>analysis<|return|>",
        "<|channel|>analysis<|start|>assistant",
        "<|start|>assistant<|channel|>final<|message|>x",
        "user<|message|>x",
        "<|channel|>final<|message|>x<|end|>y",
        "<|channel|>final<|message|>x<|end|><|end|>",
        "<|channel|>final<|message|>x<|end|><|start|>functions.find to=assistant<|channel|>commentary<|message|>y",
        "<|channel|>final" + " final" * MAX_HEADER_IDS,
    ],
)
def test_nonsense_is_the_backends_fault(answer: str) -> None:
    """Without this an exception of the parser would look like a fault of ours, or the turn would never end."""
    with pytest.raises(UpstreamError, match=r"The backend's answer cannot be read\.") as caught:
        read(spelled(answer))

    assert caught.value.status == 502


@pytest.mark.parametrize("token", [-1, 201_088, 2**31, 2**40])
@pytest.mark.parametrize("before", ["", "<|channel|>final<|message|>", "<|channel|>final<|message|>x<|return|>"])
def test_ids_outside_of_the_vocabulary_are_nonsense(token: int, before: str) -> None:
    """Wherever they stand: the ids of an answer are kept, four bytes each."""
    with pytest.raises(UpstreamError):
        read([*spelled(before), token, *spelled("<|message|>")])


def test_text_without_control_tokens_is_nonsense() -> None:
    """A backend that neither tells ids nor spells control tokens out would else be read for ever as one header."""
    parser = HarmonyParser(TOKENS)
    with pytest.raises(UpstreamError):
        parser.feed((), "analysisThe user says hello. " * 100)


def _ids() -> st.SearchStrategy[int]:
    return st.one_of(
        st.sampled_from([*SPELLED.values(), *spelled("assistant commentary to=functions.x final analysis")]),
        st.sampled_from([END_OF_TEXT, 199_998, 200_000, 201_087]),
        st.integers(0, 201_087),
    )


@given(st.lists(_ids(), max_size=30), st.booleans())
@example([*spelled("<|channel|>final<|message|>"), *[TOKENS.encoding.encode_single_token(b"\xf0")] * 3], False)
def test_any_ids_are_read_or_refused(ids: list[int], one_by_one: bool) -> None:
    """Whatever a broken service sends: pieces, or an error that the client is told; and the same however it is cut."""

    def outcome(cuts: Sequence[int]) -> list[Said] | str:
        try:
            return joined(read(ids, cuts))
        except UpstreamError as error:
            return error.message

    assert outcome(range(len(ids))) == outcome(())


def test_a_forced_call_has_begun_already() -> None:
    """The engine feeds what is sampled after the prefill; the piece that names the tool must still come."""
    prefill = TOKENS.sampled_call("find", json=True)
    pieces = read(spelled('{"path": 1}<|call|>'), parser=HarmonyParser(TOKENS, prefill))

    assert pieces[0] == OutputPiece(kind="call", name="find")
    assert joined(pieces) == [("call", "find", '{"path": 1}')]


def test_a_call_that_is_not_allowed_is_refused() -> None:
    some = TOKENS.sampled_some_call()
    allowed = {"a", "b"}

    said = joined(read(spelled(".a<|message|>{}<|call|>"), parser=HarmonyParser(TOKENS, some, allowed=allowed)))
    assert said == [("call", "a", "{}")]
    with pytest.raises(UpstreamError, match="tool_choice"):
        read(spelled(".c<|message|>{}<|call|>"), parser=HarmonyParser(TOKENS, some, allowed=allowed))
