"""A tokenizer over the vocabulary of a GGUF file: gives what llama.cpp gives, in this process, without asking the server.

Needs the package ``tiktoken``.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ws_responses import ConfigurationError
from ws_responses.adapters.gguf import Vocabulary, read_vocabulary
from ws_responses.extras import Extra
from ws_responses.rendering.tokenizer import UnknownToken
from ws_responses.rendering.vocabulary import encode_text

if TYPE_CHECKING:
    from tiktoken import Encoding

_CONTRACTION: Final = "'s|'t|'re|'ve|'m|'ll|'d"
_ANY_CASE: Final = "'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_WORDS: Final = {
    "gpt-2": rf"{_CONTRACTION}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
    # llama.cpp cuts out each digit first: space before one is at the end of a part.
    "smollm": rf"{_CONTRACTION}| ?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+|\s+(?![^\s\p{{N}}])|\s+",
    "qwen2": rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama-bpe": rf"{_ANY_CASE}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
}
"""Rule to the pattern of its words, as llama.cpp has it (``llm_tokenizer_bpe``)."""

_NORMAL: Final = 1
_SPECIAL: Final = (3, 4)
"""Kinds of tokens that stand for their own text: control tokens, and those that the makers of a model have added."""

_NO_ID: Final = -1


class GgufTokenizer:
    """Encodes text as llama.cpp does with the vocabulary of a GGUF file.

    What looks like a special token is encoded as plain text: content cannot forge the borders of messages. Bytes for which the
    vocabulary has no token are left out, as llama.cpp does (SmolLM2 has none for some control characters). Loading takes a
    quarter of a second; encoding 50 us for a kilobyte.

    Args:
        path: The GGUF file that the server has loaded.

    Attributes:
        name: Names the vocabulary; equal for files whose tokens and merges are equal.
        end_id: End of sequence; None if the file names none.

    Raises:
        ConfigurationError: The file cannot be read, its vocabulary is of another kind, or ``tiktoken`` is missing.
    """

    def __init__(self, path: Path | str) -> None:
        vocabulary = read_vocabulary(path)
        _check(vocabulary)
        self.name = f"{vocabulary.pre}-{_digest(vocabulary)}"
        self.end_id = vocabulary.end_id
        self._pieces = list(_pieces(vocabulary))
        self._specials = {
            text: index for index, text in enumerate(vocabulary.tokens) if vocabulary.kinds[index] in _SPECIAL
        }
        order = _order(vocabulary, self._pieces)
        self._encoding = _encoding(vocabulary, order)
        self._ids = list(order.values())

    def encode(self, text: str) -> list[int]:
        """Return the ids of text in which nothing is special."""
        ids = self._ids
        return [token for rank in encode_text(self._encoding, text) if (token := ids[rank]) != _NO_ID]

    def special(self, text: str) -> int:
        """Return the id of a special token.

        Raises:
            UnknownToken: There is none.
        """
        if text not in self._specials:
            raise UnknownToken(self.name, text)
        return self._specials[text]

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the text of ids in UTF-8; ids that the vocabulary does not have are nothing."""
        pieces = self._pieces
        return b"".join([pieces[token] for token in ids if token < len(pieces)])


def _check(vocabulary: Vocabulary) -> None:
    if vocabulary.model != "gpt2" or vocabulary.pre not in _WORDS:
        raise ConfigurationError(
            f"a vocabulary of kind {vocabulary.model!r} with the rule {vocabulary.pre!r} is not known; known are kind 'gpt2' "
            f"with the rules {', '.join(_WORDS)}"
        )
    if len(vocabulary.kinds) != len(vocabulary.tokens):
        raise ConfigurationError("the vocabulary does not give the kinds of all tokens")


def _digest(vocabulary: Vocabulary) -> str:
    return hashlib.sha256(msgspec.msgpack.encode((vocabulary.tokens, vocabulary.merges))).hexdigest()[:12]


def _pieces(vocabulary: Vocabulary) -> Iterator[bytes]:
    """Yield the bytes of each token."""
    byte_of = {character: byte for byte, character in enumerate(_byte_characters())}
    for text, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind == _NORMAL and not byte_of.keys() >= set(text):
            raise ConfigurationError(f"the vocabulary has a token {text!r} that cannot be written in bytes")
        yield bytes(map(byte_of.__getitem__, text)) if kind == _NORMAL else text.encode()


def _byte_characters() -> str:
    """Return the character by which a vocabulary writes each byte, as GPT-2 does: printable ones as they are."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return "".join(chr(byte if byte in printable else next(others)) for byte in range(0x100))


def _order(vocabulary: Vocabulary, pieces: list[bytes]) -> dict[bytes, int]:
    """Return the tokens that text is encoded to, the most urgent merge first, and before them all single bytes."""
    normal = {piece: index for index, piece in enumerate(pieces) if vocabulary.kinds[index] == _NORMAL}
    order = {bytes((byte,)): normal.get(bytes((byte,)), _NO_ID) for byte in range(0x100)}
    bytes_of = dict(zip(vocabulary.tokens, pieces, strict=True))
    for merge in vocabulary.merges:
        piece = bytes_of.get(merge.replace(" ", "", 1))
        if piece not in normal:
            raise ConfigurationError("the vocabulary has a merge without a token")
        order[piece] = normal[piece]  # a token of several merges keeps the place of its first
    if not normal.keys() <= order.keys():
        raise ConfigurationError("the vocabulary has tokens without a merge")
    return order


def _encoding(vocabulary: Vocabulary, order: dict[bytes, int]) -> "Encoding":
    with Extra("tokens"):
        from tiktoken import Encoding  # noqa: PLC0415 - an optional package
    ranks = {piece: rank for rank, piece in enumerate(order)}
    return Encoding(vocabulary.pre, pat_str=_WORDS[vocabulary.pre], mergeable_ranks=ranks, special_tokens={})
