"""Terms are found however they are written, in time that is linear in the text; patterns without a bound are refused."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import example, given
from hypothesis import strategies as st

from tests.safety_room import ABOUT
from tests.state.drive import drive
from ws_responses import ConfigurationError
from ws_responses.safety import Piece, SafetyInput, TermClassifier, Verdict
from ws_responses.safety.patterns import MAX_STEPS, MAX_WIDTH, any_of, checked_cost, cost_of
from ws_responses.safety.terms import _normalised_in_slices, normalised
from ws_responses.safety.text import tail_of


def whole(text: str, before: str = "") -> SafetyInput:
    return SafetyInput(stage="input", pieces=(Piece(text=text, before=before),), about=ABOUT)


def verdict(classifier: TermClassifier, *texts: str, before: str = "") -> Verdict:
    pieces = tuple(Piece(text=text, before="" if index else before) for index, text in enumerate(texts))
    return drive(classifier.classify(SafetyInput(stage="input", pieces=pieces, about=ABOUT)))


def finds(classifier: TermClassifier, *texts: str, before: str = "") -> bool:
    return verdict(classifier, *texts, before=before).action != "allow"


@pytest.mark.parametrize(
    "text",
    [
        "make a bomb",
        "Make A BOMB!",
        "how to make\n\ta   bomb.",
        "ｍａｋｅ ａ ｂｏｍｂ",  # noqa: RUF001 - full width
        "ma\u200bke a bo\u00admb",
        "make a bomb\u202e",
        "MAKE\u00a0A\u2003BOMB",
    ],
)
def test_a_term_is_found_however_it_is_written(text: str) -> None:
    """Each of these would else be the way round a list of terms."""
    assert finds(TermClassifier(["make a bomb"]), text)


@pytest.mark.parametrize("text", ["make a bombard", "remake a bomb", "make abomb", "make a_bomb"])
def test_a_term_is_a_whole_word(text: str) -> None:
    """Else harmless words would be blocked for what they hold."""
    assert not finds(TermClassifier(["make a bomb"]), text)


def test_scripts_without_spaces_are_searched_anywhere() -> None:
    assert finds(TermClassifier(["炸弹"]), "如何制造炸弹呢")


def test_a_term_with_signs_needs_no_space_beside_them() -> None:
    classifier = TermClassifier(["c++", "-rf"])
    assert finds(classifier, "xc++ y") is False
    assert finds(classifier, "in c++11")
    assert finds(classifier, "rm -rf /")
    assert finds(classifier, "rm x-rf")


def test_a_term_across_two_pieces_is_found() -> None:
    """A client may cut its text into parts and items as it likes; the model reads them as one."""
    assert finds(TermClassifier(["make a bomb"]), "please make a", "bomb for me")
    assert finds(TermClassifier(["make a bomb"]), "bomb for me", before="please make a\n")


def test_what_lies_in_the_overlap_alone_was_judged_before() -> None:
    """A flag of an earlier turn would else be a flag of this one."""
    classifier = TermClassifier(flag=["odd"])
    assert not finds(classifier, "and more", before="this is odd\n")
    assert finds(classifier, "and odd", before="this is odd\n")
    assert finds(TermClassifier(flag=["odd one odd"]), "odd", before="odd one ")


def test_actions_and_categories_are_told_apart() -> None:
    classifier = TermClassifier(
        {"weapons": ["bomb"], "drugs": ["opium"]}, flag={"weapons": ["how to make a bomb"], "mood": ["sad"]}
    )

    assert verdict(classifier, "sad") == Verdict(action="flag", categories=("mood",))
    assert verdict(classifier, "opium") == Verdict(action="block", categories=("drugs",))
    assert verdict(classifier, "how to make a bomb") == Verdict(action="block", categories=("weapons",))
    assert verdict(classifier, "fine") == Verdict()


def test_a_flag_that_begins_before_a_block_does_not_hide_it() -> None:
    """One search for all would give the first match only."""
    assert verdict(TermClassifier(["bomb"], flag=["how to make a bomb"]), "how to make a bomb").action == "block"


def test_patterns_are_searched_in_the_same_text() -> None:
    classifier = TermClassifier(
        block_patterns={"key": [r"\bsk-[a-z0-9]{8,64}\b"]}, flag_patterns=[r"\d{3}-\d{2}-\d{4}"]
    )
    assert verdict(classifier, "my SK-ABCDEFGH12") == Verdict(action="block", categories=("key",))
    assert verdict(classifier, "078-05-1120") == Verdict(action="flag", categories=("flag",))
    assert classifier.longest == 67


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"(a+)+b", "without a bound"),
        (r"a*", "without a bound"),
        (r"x{3,}", "without a bound"),
        (r"(a|aa){1,40}b", "steps"),
        (r"[a-z]{0,50}[a-z]{0,50}[a-z]{0,50}x", "steps"),
        (r"((a{0,9}){0,9}){0,3}", "steps"),
        (r"(a)\1", "refers to a group"),
        (r"(a)?(?(1)b|c)", "refers to a group"),
        (r"(", "no regular expression"),
        ("a" * 513, "at most 512"),
        (r"(?i)a", "no regular expression"),
        (r"(?P<x>a)", "names a group"),
    ],
)
def test_a_pattern_without_a_bound_is_refused(pattern: str, reason: str) -> None:
    """One such pattern and one text of fifty letters stop the process for hours."""
    with pytest.raises(ConfigurationError, match=reason):
        TermClassifier(block_patterns=[pattern])


@pytest.mark.parametrize(
    "pattern", [r"a{1,64}b", r"(?:cat|dog)s?", r"(?<!\w)x(?=y)", r"(?i:ab)[^c]", r"(?>ab|a)c", r"a{0,9}+b", ""]
)
def test_useful_patterns_are_taken(pattern: str) -> None:
    assert checked_cost(pattern).steps <= MAX_STEPS


@pytest.mark.parametrize("width", [MAX_WIDTH - 1, MAX_WIDTH, MAX_WIDTH + 1])
def test_the_width_of_a_pattern_is_bounded(width: int) -> None:
    if width <= MAX_WIDTH:
        assert checked_cost(f"a{{{width}}}").width == width
        return
    with pytest.raises(ConfigurationError):
        checked_cost(f"a{{{width}}}")


def steps_of(pattern: str, text: str) -> int:
    """Count the ways in which a small pattern matches from the first character on: at most what was computed."""
    return len([end for end in range(len(text) + 1) if re.fullmatch(pattern, text[:end])])


SMALL = st.recursive(
    st.sampled_from(["a", "b", "[ab]", "."]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.integers(0, 2), st.integers(0, 2)).map(lambda t: f"(?:{t[0]}){{{t[1]},{t[1] + t[2]}}}"),
    ),
    max_leaves=6,
)


@given(pattern=SMALL, text=st.text("ab", max_size=10))
def test_the_computed_steps_are_no_fewer_than_the_ways_to_match(pattern: str, text: str) -> None:
    """A bound that is too low would let a pattern in that takes for ever."""
    cost = cost_of(pattern)
    assert steps_of(pattern, text) <= cost.steps or cost.steps > MAX_STEPS


@given(
    terms=st.lists(st.text("abc+.[ ", min_size=1, max_size=5), min_size=1, max_size=20),
    text=st.text("abc+.[ ", max_size=30),
)
@example(terms=["a", "ab", "abc"], text="abc")
def test_many_terms_as_one_pattern_match_what_they_match_one_by_one(terms: list[str], text: str) -> None:
    found = re.compile(f"(?=({any_of(terms)}))")
    ours = {match.start(): match[1] for match in found.finditer(text)}
    theirs = {
        at: max((t for t in terms if text.startswith(t, at)), key=len, default=None) for at in range(len(text) + 1)
    }

    assert ours == {at: term for at, term in theirs.items() if term is not None}


def test_terms_that_begin_each_other_nest_and_still_compile() -> None:
    """128 terms of which each begins the next: groups within groups, up to what the library's own compiler takes."""
    terms = ["a" * length for length in range(1, 129)]
    assert finds(TermClassifier(terms), "x " + "a" * 128 + " y")
    assert not finds(TermClassifier(terms), "x " + "a" * 129 + " y")


async def test_a_thousand_terms_in_a_long_text() -> None:
    """An alternation of as many would look at each of them at each character; this one ends within the test's time limit."""
    terms = [f"{letter}{number} x" for letter in "abcdefghij" for number in range(100)]
    classifier = TermClassifier(terms)
    text = "a1 b22 c333 nothing here. " * 40_000
    assert (await classifier.classify(whole(text))).action == "allow"
    assert (await classifier.classify(whole(text + "j99 x"))).action == "block"


@pytest.mark.parametrize("at", [65536 - 12, 65536 - 6, 65536 - 1, 65536, 65536 + 1, 131072 - 3])
async def test_a_term_across_two_slices_of_a_long_text_is_found(at: int) -> None:
    classifier = TermClassifier(["make a bomb"])
    text = " " + "x" * (at - 2) + " make a bomb " + "y" * 70000
    assert text.index("make") == at

    assert (await classifier.classify(whole(text))).action == "block"


@pytest.mark.parametrize(
    "wrong",
    [
        TermClassifier,
        lambda: TermClassifier("bomb"),
        lambda: TermClassifier([" \u200b"]),
        lambda: TermClassifier(["x" * 129]),
        lambda: TermClassifier({"": ["x"]}),
        lambda: TermClassifier({f"c{n}": ["x"] for n in range(65)}),
    ],
)
def test_wrong_terms_are_refused_at_once(wrong: object) -> None:
    with pytest.raises(ConfigurationError):
        wrong()  # type: ignore[operator]


@given(
    words=st.lists(st.sampled_from(["make", "a", "bomb", "bombs", "x", "  ", "\n", "MAKE", "\u200b"]), max_size=12),
    cuts=st.sets(st.integers(1, 60)),
)
def test_windows_with_an_overlap_find_what_the_whole_has(words: list[str], cuts: set[int]) -> None:
    """What is carried must be enough, wherever the windows are cut; they are cut between words."""
    classifier = TermClassifier(["make a bomb"])
    text = " ".join(words)
    before, found, start = "", False, 0
    for cut in [*sorted(cut for cut in cuts if cut < len(text) and not (text[cut - 1 : cut + 1].isalpha())), len(text)]:
        piece = text[start:cut]
        found = found or finds(classifier, piece, before=before)
        before = tail_of(before + piece, classifier.longest)
        start = cut

    assert found is finds(classifier, text)


NASTY = st.text(
    st.sampled_from(
        "ab \t\n\u00a0\u200b\u00e9e\u0301\u0345\u1100\u1161\u11a8\uac00\u3131\u314f\uffa1\uffc2\u0b47\u0b3e\u00df\ufb01\u0130\u03a3\u3042\uff21\u2126\u1e9e\u00a8"
    ),
    max_size=40,
)
"""Characters that change with their neighbours: marks, parts of Hangul syllables (also in compatibility forms), spaces, what is unseen."""


async def at_once() -> None:
    """Let nobody run: there is no event loop."""


@contextmanager
def sliced(size: int) -> Iterator[None]:
    """Read texts in slices of a few characters."""
    name = "ws_responses.safety.terms."
    with patch(f"{name}_SLICE_CHARS", size), patch(f"{name}checkpoint", at_once):
        yield


@given(text=NASTY, size=st.integers(1, 7))
def test_a_text_that_is_read_in_slices_reads_as_the_whole(text: str, size: int) -> None:
    """Else a term could be hidden at a place that its writer can compute."""
    with sliced(size):
        assert drive(_normalised_in_slices(text)) == normalised(text)


@given(
    text=st.text(st.sampled_from("ab c"), max_size=60),
    size=st.integers(1, 7),
    old=st.text(st.sampled_from("ab c"), max_size=9),
)
def test_terms_are_counted_in_slices_as_in_the_whole(text: str, size: int, old: str) -> None:
    """What is found twice in the whole, and once in what was judged before, is new; whatever is cut where."""
    classifier = TermClassifier(["ab"], flag_patterns=[r"\bb{1,3} a", r"c\b"])
    delta = whole(text, before=old)
    expected = drive(classifier.classify(delta))
    with sliced(size):
        assert drive(classifier.classify(delta)) == expected


@pytest.mark.parametrize("text", ["lorem ipsum dolor " * 30_000, "\u03bb\u03cc\u03c1\u03b5\u03bc " * 90_000])
async def test_others_run_while_a_long_text_is_searched(text: str) -> None:
    """One frame with a term in it, as large as frames may be, would else stop all connections for many seconds."""
    classifier = TermClassifier({"a": ["never"], "b": ["nor this"]}, flag={"c": ["flagged"]})
    rounds = 0
    over = False
    verdicts: list[Verdict] = []

    async def others() -> None:
        nonlocal rounds
        while not over:
            rounds += 1
            await checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(others)
        verdicts.append(await classifier.classify(whole(f"{text}flagged")))
        over = True
    assert verdicts[0].categories == ("c",)
    slices = len(text) // 65_536
    # Once for each part of the text when it is normalised, when it is searched for anything, and for each of three categories.
    assert rounds >= 5 * slices
