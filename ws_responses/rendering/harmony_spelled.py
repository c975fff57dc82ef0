"""Control tokens out of text, for a backend that tells no ids but spells these tokens out."""

import re
from typing import Final

from ws_responses.rendering.harmony_tokens import SPELLED, HarmonyTokens

_SPELLED: Final = re.compile("(" + "|".join(map(re.escape, SPELLED)) + ")")
_LONGEST: Final = max(map(len, SPELLED))


class SpelledTokens:
    """Turns text into ids, control tokens included, however the text is cut.

    Text cannot tell a control token from its spelling: an answer that quotes ``<|end|>`` ends there. Ids can.

    Args:
        tokens: Of the vocabulary.
    """

    def __init__(self, tokens: HarmonyTokens) -> None:
        self._tokens = tokens
        self._held = ""

    def feed(self, text: str) -> list[int]:
        """Return the ids of what is certain: a beginning of a control token is held back."""
        text = self._held + text
        at = text.rfind("<", -_LONGEST)
        self._held = text[at:] if at >= 0 and _is_beginning(text[at:]) else ""
        return self._ids(text.removesuffix(self._held))

    def end(self) -> list[int]:
        """Return the ids of what was held back."""
        held, self._held = self._held, ""
        return self._ids(held)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = []
        for piece in _SPELLED.split(text):
            ids += (SPELLED[piece],) if piece in SPELLED else self._tokens.encode(piece)
        return ids


def _is_beginning(text: str) -> bool:
    return any(len(text) < len(spelled) and spelled.startswith(text) for spelled in SPELLED)
