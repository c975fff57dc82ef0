"""Vocabularies for tests of ChatML and templates: real ranks, with control tokens of our choice."""

import functools
from collections.abc import Sequence

import tiktoken

from ws_responses.rendering.tokenizer import TiktokenTokenizer
from ws_responses.rendering.vocabulary import load_encoding

BORDERS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@functools.cache
def encoding(specials: Sequence[str]) -> tiktoken.Encoding:
    """Return cl100k's ranks with these control tokens."""
    base = load_encoding("cl100k_base")
    return tiktoken.Encoding(
        f"test-{len(specials)}",
        pat_str=base._pat_str,
        mergeable_ranks=base._mergeable_ranks,
        special_tokens={text: 100_300 + number for number, text in enumerate(specials)},
    )


def plain() -> TiktokenTokenizer:
    """Return a vocabulary like SmolLM2's: the borders of messages are tokens, tags are text."""
    return TiktokenTokenizer(encoding(BORDERS))


def tagged() -> TiktokenTokenizer:
    """Return a vocabulary like Qwen's: tags are tokens too."""
    return TiktokenTokenizer(encoding(BORDERS + TAGS))


VOCABULARIES = {"plain": plain, "tagged": tagged}
