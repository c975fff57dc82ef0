"""The control tokens of the harmony format, and the words of its headers as tokens.

Text is encoded so that nothing in it is special: content can spell a control token, but never be one.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ws_responses.rendering.harmony_tools import NAMESPACE
from ws_responses.rendering.vocabulary import encode_text

if TYPE_CHECKING:
    from tiktoken import Encoding

RETURN: Final = 200002
CONSTRAIN: Final = 200003
CHANNEL: Final = 200005
START: Final = 200006
END: Final = 200007
MESSAGE: Final = 200008
CALL: Final = 200012
END_OF_TEXT: Final = 199999

SPELLED: Final = {
    "<|return|>": RETURN,
    "<|constrain|>": CONSTRAIN,
    "<|channel|>": CHANNEL,
    "<|start|>": START,
    "<|end|>": END,
    "<|message|>": MESSAGE,
    "<|call|>": CALL,
    "<|endoftext|>": END_OF_TEXT,
}
"""How a decoder that does not leave them out spells the tokens that mean something (harmony guide, special tokens)."""

FIRST_SPECIAL: Final = 199998
"""Lower ids are text."""

ANSWER_ENDS: Final = frozenset({RETURN, CALL, END_OF_TEXT})
"""After these the model has nothing more to say."""

MESSAGE_ENDS: Final = ANSWER_ENDS | {END}
"""With these a message ends."""

STOPS: Final = (RETURN, CALL)
"""At these sampling ends (harmony guide)."""


class HarmonyTokens:
    """Writes messages as tokens.

    Args:
        encoding: ``o200k_harmony``.
    """

    def __init__(self, encoding: "Encoding") -> None:
        self.encoding = encoding
        self.size = encoding.n_vocab
        encode = self.encode
        assistant = encode("assistant")
        self.begin_answer = [START, *assistant]
        self._assistant = self.begin_answer
        self._commentary = [CHANNEL, *encode("commentary")]
        self._json = [*encode(" "), CONSTRAIN, *encode("json"), MESSAGE]
        self._to_assistant = [*encode(" to=assistant"), *self._commentary, MESSAGE]
        self.system = [START, *encode("system"), MESSAGE]
        self.developer = [START, *encode("developer"), MESSAGE]
        self.user = [START, *encode("user"), MESSAGE]
        self.analysis = [*self._assistant, CHANNEL, *encode("analysis"), MESSAGE]
        self.commentary = [*self._assistant, *self._commentary, MESSAGE]
        self.final = [*self._assistant, CHANNEL, *encode("final"), MESSAGE]

    def encode(self, text: str) -> list[int]:
        """Return the ids of text in which nothing is special."""
        return encode_text(self.encoding, text)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids, control tokens as they are spelled; ids that do not exist are left out."""
        return self.encoding.decode([token for token in ids if 0 <= token < self.size])

    def call_header(self, name: str, *, json: bool) -> list[int]:
        """Return the header of a call, as openai-harmony writes it in a history.

        Args:
            name: The tool's wire name.
            json: Its argument is JSON.
        """
        recipient = self.encode(f" to={NAMESPACE}.{name}")
        return [*self._assistant, *recipient, *self._commentary, *(self._json if json else (MESSAGE,))]

    def output_header(self, name: str) -> list[int]:
        """Return the header of what a tool gave."""
        return [START, *self.encode(f"{NAMESPACE}.{name}"), *self._to_assistant]

    def sampled_call(self, name: str, *, json: bool) -> list[int]:
        """Return the beginning of an answer that calls a tool, as the model itself writes it."""
        if not json:
            return [CHANNEL, *self.encode(f"commentary to={NAMESPACE}.{name}"), MESSAGE]
        return [CHANNEL, *self.encode(f"commentary to={NAMESPACE}.{name} "), *self._json[1:]]

    def sampled_some_call(self) -> list[int]:
        """Return the beginning of an answer that calls some tool: what follows is ``.`` and its name.

        The text is cut where the pattern of the vocabulary cuts it as well, before whatever name.
        """
        return [CHANNEL, *self.encode(f"commentary to={NAMESPACE}")]
