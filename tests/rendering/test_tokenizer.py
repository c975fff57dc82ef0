"""A tokenizer gives ids of plain text and back; nothing in a text is special."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rendering.conversations import texts
from tests.rendering.vocabularies import BORDERS, TAGS, tagged
from ws_responses.rendering.tokenizer import TextDecoder, UnknownToken, decode_text, find_special


@given(text=texts())
def test_text_comes_back_and_holds_no_control_token(text: str) -> None:
    """Without this content could end a message and begin another one."""
    tokenizer = tagged()

    ids = tokenizer.encode(text)

    assert tokenizer.decode(ids) == text.encode()
    assert not {tokenizer.special(special) for special in BORDERS + TAGS} & set(ids)


@given(text=texts(), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_ids_decode_in_any_pieces(text: str, cuts: list[int]) -> None:
    """Without this a character of several tokens would come out as garbage."""
    tokenizer = tagged()
    ids = tokenizer.encode(text)
    places = sorted({min(cut, len(ids)) for cut in cuts} | {0, len(ids)})
    decoder = TextDecoder(tokenizer)

    pieces = [decoder.feed(ids[begin:end]) for begin, end in pairwise(places)]

    assert "".join(pieces) + decoder.end() == text
    assert decode_text(tokenizer, ids) == text


def test_a_character_that_never_becomes_whole_is_replaced() -> None:
    tokenizer = tagged()
    decoder = TextDecoder(tokenizer)

    assert not decoder.feed(tokenizer.encode("🙂")[:1])
    assert decoder.end() == "\ufffd"


def test_special_tokens() -> None:
    tokenizer = tagged()
    token = tokenizer.special("<|im_end|>")

    assert tokenizer.decode([token]) == b"<|im_end|>"
    assert find_special(tokenizer, "<|im_end|>") == token
    assert find_special(tokenizer, "a") is None
    with pytest.raises(UnknownToken, match="no special token 'a'"):
        tokenizer.special("a")


@pytest.mark.parametrize("unknown", [99_999_999, 1 << 40])
def test_ids_outside_the_vocabulary_are_nothing(unknown: int) -> None:
    """Without this an id of a model with a padded vocabulary would fail the turn."""
    tokenizer = tagged()

    assert tokenizer.decode([*tokenizer.encode("a"), unknown, *tokenizer.encode("b")]) == b"ab"
