"""What a scripted backend says, and how a model's format writes it."""

import re
from collections.abc import Callable, Iterator
from typing import Final

import msgspec
from msgspec import Struct

from ws_responses.backends import Delta, Finish, ToolCallDelta
from ws_responses.rendering.tokenizer import Tokenizer, UnknownToken

__all__ = ["CHATML", "HARMONY", "PLAIN", "Call", "Markup", "Said", "chat_deltas", "token_deltas"]


class Call(Struct, frozen=True):
    """A call of a tool.

    Attributes:
        name: As the prompt names it.
        arguments: JSON, or free text for a custom tool.
    """

    name: str
    arguments: str = "{}"


class Said(Struct, frozen=True, kw_only=True):
    """One answer; what is empty is left out.

    Attributes:
        reasoning: Comes first.
        text: Comes next.
        refusal: Instead of a text.
        calls: Come last.
        finish: Why it ends; None for what follows from the rest.
    """

    reasoning: str = ""
    text: str = ""
    refusal: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish | None = None

    @property
    def end(self) -> Finish:
        """Why it ends."""
        return self.finish or ("tool_calls" if self.calls else "stop")


class Markup(Struct, frozen=True, kw_only=True):
    """A model's format, as far as a scripted backend writes and reads it.

    Attributes:
        write: Returns what a model samples for an answer, special tokens as their text.
        start: Special token that every message of a prompt begins with; None if prompts are not looked at.
        user: How a user's message goes on after it.
        outputs: How the messages of tool outputs go on after it.
    """

    write: Callable[[Said], str]
    start: str | None = None
    user: str = ""
    outputs: tuple[str, ...] = ()


def _plain(said: Said) -> str:
    return said.text or said.refusal


def _harmony(said: Said) -> str:
    messages: list[str] = []
    if said.reasoning:
        messages.append(f"<|channel|>analysis<|message|>{said.reasoning}<|end|>")
    if text := said.text or said.refusal:
        channel, end = ("commentary", "<|end|>") if said.calls else ("final", "<|return|>")
        messages.append(f"<|channel|>{channel}<|message|>{text}{end}")
    messages += [
        # As gpt-oss samples it; openai-harmony renders the recipient before the channel.
        f"<|channel|>commentary to=functions.{call.name} <|constrain|>json<|message|>{call.arguments}<|call|>"
        for call in said.calls[:1]  # a call ends the answer
    ]
    return "<|start|>assistant".join(messages)


def _chatml(said: Said) -> str:
    parts = [f"<think>\n{said.reasoning}\n</think>\n\n"] if said.reasoning else []
    parts.append(said.text or said.refusal)
    for number, call in enumerate(said.calls):
        name = msgspec.json.encode(call.name).decode()
        joint = "\n" if number or said.text else ""
        parts.append(f'{joint}<tool_call>\n{{"name": {name}, "arguments": {call.arguments}}}\n</tool_call>')
    return "".join(parts) + "<|im_end|>"


PLAIN: Final = Markup(write=_plain)
"""Text and nothing else."""

HARMONY: Final = Markup(write=_harmony, start="<|start|>", user="user", outputs=("functions.",))
"""The format of gpt-oss, from behind ``<|start|>assistant`` on."""

CHATML: Final = Markup(write=_chatml, start="<|im_start|>", user="user\n", outputs=("tool\n", "user\n<tool_response>"))
"""ChatML with calls as Hermes and Qwen write them, from behind ``<|im_start|>assistant`` and its line end on."""

_PIECE: Final = re.compile(r"<\|[a-z_]+\|>|</?[a-z_]+>|\s*[^\s<]+|\s+|<")
_SPECIAL: Final = re.compile(r"<\|[a-z_]+\|>")


def chat_deltas(said: Said, piece: int | None, call_id: str) -> Iterator[Delta]:
    """Yield an answer to a chat prompt, without its end.

    Args:
        said: The answer.
        piece: Characters of one delta; None for a word each.
        call_id: Beginning of the ids of its calls.
    """
    for part in _cut(said.reasoning, piece):
        yield Delta(reasoning=part)
    for part in _cut(said.text, piece):
        yield Delta(text=part)
    for part in _cut(said.refusal, piece):
        yield Delta(refusal=part)
    for index, call in enumerate(said.calls):
        yield Delta(tool_calls=(ToolCallDelta(index=index, id=f"{call_id}_{index}", name=call.name),))
        for part in _cut(call.arguments, piece):
            yield Delta(tool_calls=(ToolCallDelta(index=index, arguments=part),))


def token_deltas(said: Said, piece: int | None, markup: Markup, tokenizer: Tokenizer | None) -> Iterator[Delta]:
    """Yield an answer to a token prompt, without its end.

    Every piece is encoded by itself, so that the ids are some of that text, but seldom those that encoding the whole gives: as
    with a real model.

    Args:
        said: The answer.
        piece: Characters of one delta; None for a word each. Special tokens always have one of their own.
        markup: Writes the answer.
        tokenizer: Makes the ids; None for text only.
    """
    for part in _PIECE.findall(markup.write(said)):
        special = _SPECIAL.fullmatch(part) is not None
        for text in [part] if special else _cut(part, piece):
            if tokenizer is None:
                yield Delta(text=text)
            else:
                # As servers do it: special tokens have no text.
                yield Delta(text="" if special else text, token_ids=_ids(tokenizer, text))


def _ids(tokenizer: Tokenizer, text: str) -> list[int]:
    if text.startswith("<"):
        try:
            return [tokenizer.special(text)]
        except UnknownToken:
            return list(tokenizer.encode(text))
    return list(tokenizer.encode(text))


def _cut(text: str, piece: int | None) -> list[str]:
    if piece is None:
        return _PIECE.findall(text)
    return [text[at : at + piece] for at in range(0, len(text), piece)]
