"""What renderers need of a tokenizer, an incremental decoder, and a tokenizer over :mod:`tiktoken`."""

import codecs
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ws_responses.rendering.vocabulary import encode_text

if TYPE_CHECKING:
    from tiktoken import Encoding


class UnknownToken(LookupError):
    """The vocabulary has no special token of this text."""

    def __init__(self, tokenizer: str, text: str) -> None:
        super().__init__(f"the vocabulary of {tokenizer!r} has no special token {text!r}")


class Tokenizer(Protocol):
    """A vocabulary at work. Gives the same ids for the same text, whoever calls it, in any thread.

    Attributes:
        name: Names the vocabulary: ids of another one mean nothing here.
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - see the class

    def encode(self, text: str) -> Sequence[int]:
        """Return the ids of text in which nothing is special: what looks like a special token is text as well."""
        ...

    def special(self, text: str) -> int:
        """Return the id of a special token.

        Raises:
            UnknownToken: There is none.
        """
        ...

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the text of ids in UTF-8, special tokens as their own text.

        Whatever ``encode`` was given comes back as it was, but for bytes for which the vocabulary has no token. A single id may
        be a part of a character; an id that the vocabulary does not have is nothing.
        """
        ...


def find_special(tokenizer: Tokenizer, text: str) -> int | None:
    """Return the id of a special token; None if the vocabulary has none."""
    try:
        return tokenizer.special(text)
    except UnknownToken:
        return None


def decode_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return the text of ids; parts of a character at the ends become U+FFFD."""
    return tokenizer.decode(ids).decode("utf-8", "replace")


class TextDecoder:
    """Decodes ids as they come; holds back what is no whole character yet.

    Args:
        tokenizer: Whose ids they are.
    """

    __slots__ = ("_decode", "_utf8")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, ids: Sequence[int]) -> str:
        """Return the text that is complete with these ids."""
        return self._utf8.decode(self._decode(ids))

    def end(self) -> str:
        """Return what was held back: U+FFFD for a character that never became whole."""
        return self._utf8.decode(b"", final=True)


class TiktokenTokenizer:
    """A tokenizer over a :class:`tiktoken.Encoding`, with the special tokens that the encoding has.

    Args:
        encoding: The vocabulary; ``tiktoken.Encoding(..., special_tokens=...)`` makes one with other special tokens.
    """

    def __init__(self, encoding: "Encoding") -> None:
        self._encoding = encoding
        self.name = encoding.name

    def encode(self, text: str) -> list[int]:
        """Return the ids of text in which nothing is special."""
        return encode_text(self._encoding, text)

    def special(self, text: str) -> int:
        """Return the id of a special token.

        Raises:
            UnknownToken: There is none.
        """
        if text not in self._encoding.special_tokens_set:
            raise UnknownToken(self.name, text)
        return self._encoding.encode_single_token(text)

    def decode(self, ids: Sequence[int]) -> bytes:
        """Return the text of ids in UTF-8; ids that the vocabulary does not have are nothing."""
        try:
            return self._encoding.decode_bytes(ids)
        except (KeyError, OverflowError):
            return b"".join(map(self._decode_one, ids))

    def _decode_one(self, token: int) -> bytes:
        try:
            return self._encoding.decode_single_token_bytes(token)
        except (KeyError, OverflowError):
            return b""
