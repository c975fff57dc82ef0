"""Text with control tokens in it: what is ours may hold some, what is content never does.

Text is encoded from one control token to the next: cut anywhere else, the parts could give other ids than the whole.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from ws_responses.rendering.tokenizer import Tokenizer, find_special

Piece: TypeAlias = str | int
"""Text in which nothing is special, or the id of a control token."""


def behind_last_control(pieces: Sequence[Piece]) -> int:
    """Return the index behind the last control token; 0 if there is none."""
    for at in range(len(pieces) - 1, -1, -1):
        if isinstance(pieces[at], int):
            return at + 1
    return 0


def joined(pieces: Iterable[Piece]) -> list[Piece]:
    """Return pieces with texts that follow each other joined."""
    whole: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and whole and isinstance(whole[-1], str):
            whole[-1] += piece
        elif piece != "":
            whole.append(piece)
    return whole


def behind(pieces: list[Piece], beginning: list[Piece]) -> list[Piece] | None:
    """Return what comes behind a beginning; None if ``pieces`` do not begin so."""
    last = len(beginning) - 1
    if last < 0:
        return pieces
    if len(pieces) <= last or pieces[:last] != beginning[:last]:
        return None
    one, other = pieces[last], beginning[last]
    if isinstance(one, str) and isinstance(other, str) and one.startswith(other):
        return [one[len(other) :], *pieces[last + 1 :]] if len(one) > len(other) else pieces[last + 1 :]
    return pieces[last + 1 :] if one == other else None


class MarkedEncoder:
    """Encodes text with control tokens.

    Args:
        tokenizer: The vocabulary.
        tags: Tags of the format, which may be tokens of their own; in a vocabulary that has none they are text.

    Attributes:
        tags: By id, those that are tokens of their own.
    """

    __slots__ = ("_encode", "_pattern", "_special", "tags")

    def __init__(self, tokenizer: Tokenizer, tags: Sequence[str]) -> None:
        known = {tag: token for tag in tags if (token := find_special(tokenizer, tag)) is not None}
        self._encode = tokenizer.encode
        self._special = known
        self._pattern = re.compile("|".join(f"({re.escape(tag)})" for tag in known)) if known else None
        self.tags = {token: tag for tag, token in known.items()}

    def marked(self, text: str) -> list[Piece]:
        """Return our own text as pieces: its tags become control tokens, where the vocabulary has them."""
        if self._pattern is None:
            return [text]
        pieces: list[Piece] = []
        at = 0
        for match in self._pattern.finditer(text):
            pieces += (text[at : match.start()], self._special[match[0]])
            at = match.end()
        pieces.append(text[at:])
        return [piece for piece in pieces if piece != ""]

    def encode(self, pieces: Iterable[Piece]) -> list[int]:
        """Return the ids of pieces; texts that follow each other are encoded as one."""
        ids: list[int] = []
        texts: list[str] = []
        for piece in pieces:
            if isinstance(piece, str):
                texts.append(piece)
                continue
            if texts:
                ids += self._encode("".join(texts))
                texts.clear()
            ids.append(piece)
        if texts:
            ids += self._encode("".join(texts))
        return ids
