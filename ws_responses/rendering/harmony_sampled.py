"""What a model samples: how its messages begin, and what a history keeps of them.

Source: harmony guide, "Message format", "Receiving tool calls" and the note on ``<|return|>``.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ws_responses.rendering.harmony_state import Addition
from ws_responses.rendering.harmony_tokens import (
    ANSWER_ENDS,
    CALL,
    END,
    FIRST_SPECIAL,
    MESSAGE,
    MESSAGE_ENDS,
    START,
    HarmonyTokens,
)
from ws_responses.rendering.harmony_tools import NAMESPACE

_ROLE: Final = re.compile(r"[^\s<]*")
_CHANNEL: Final = re.compile(r"<\|channel\|>([^\s<]*)")
_RECIPIENT: Final = re.compile(r"(?:^|\s)to=([^\s<]+)")
_NOBODY: Final = frozenset({None, "all", "user", "assistant"})
_PREFIX: Final = f"{NAMESPACE}."


class Header(NamedTuple):
    """What stands before a message's content.

    Attributes:
        role: Who speaks; empty if the header leaves it out, as that of an answer's first message does.
        channel: None if it names none.
        recipient: Whom it is for; None if it is for the user.
    """

    role: str
    channel: str | None
    recipient: str | None

    @property
    def tool(self) -> str | None:
        """Wire name of the tool that is called; None if it is no call of a tool in ``functions``."""
        recipient = self.recipient or ""
        return recipient.removeprefix(_PREFIX) or None if recipient.startswith(_PREFIX) else None


def read_header(text: str) -> Header:
    """Return what a header says: the recipient may stand before the channel or behind it."""
    role = _ROLE.match(text)
    channel = _CHANNEL.search(text)
    found = _RECIPIENT.search(text)
    recipient = None if found is None or found[1] in _NOBODY else found[1]
    word = "" if role is None or role[0].startswith("to=") else role[0]
    return Header(role=word, channel=None if channel is None else channel[1], recipient=recipient)


def add_sampled(addition: Addition, sampled: Sequence[int], tokens: HarmonyTokens) -> None:
    """Add an answer as it was sampled behind ``<|start|>assistant``.

    Its ids stay as they are, up to its end: what follows the first ``<|return|>`` or ``<|call|>`` is no part of it. Only the
    end is made that of a history: ``<|end|>`` in place of ``<|return|>``, and where none came (the answer was cut off, or the
    service keeps the token to itself), ``<|call|>`` for a call and ``<|end|>`` for any other message.

    Args:
        addition: Where to; empty.
        sampled: Ids.
        tokens: Of the vocabulary.
    """
    answer = _answer(sampled)
    if not answer:
        return
    ids = addition.ids
    ids += tokens.begin_answer
    ids += answer
    names: list[str] = []
    begin, header = _mark_messages(addition, names, tokens)
    if header is None and begin >= 0:  # cut off in a header
        ids.append(MESSAGE)
        header = read_header(tokens.decode(ids[begin + 1 : -1]))
    if header is not None:
        ids.append(CALL if header.recipient else END)
        _mark(addition, begin, header, names, len(ids))
    addition.open_sampled(names)


def _answer(sampled: Sequence[int]) -> list[int]:
    """Return the ids that belong to an answer, without a token that only ends the sampling."""
    end = next((at for at, token in enumerate(sampled) if token in ANSWER_ENDS), len(sampled))
    called = end < len(sampled) and sampled[end] == CALL
    return list(sampled[: end + 1 if called else end])


def _mark_messages(addition: Addition, names: list[str], tokens: HarmonyTokens) -> tuple[int, Header | None]:
    """Note all messages that have an end.

    Returns:
        Where a message without an end begins (-1 if there is none), and its header, if that is whole.
    """
    begin = -1
    header: Header | None = None
    for at, token in [(at, token) for at, token in enumerate(addition.ids) if token >= FIRST_SPECIAL]:
        if header is not None:
            if token in MESSAGE_ENDS:
                _mark(addition, begin, header, names, at + 1)
                begin, header = -1, None
        elif token == START:
            begin = at
        elif token == MESSAGE and begin >= 0:
            header = read_header(tokens.decode(addition.ids[begin + 1 : at]))
    return begin, header


def _mark(addition: Addition, begin: int, header: Header, names: list[str], end: int) -> None:
    addition.mark_assistant(begin, end, header.channel)
    if header.tool is not None:
        names.append(header.tool)
