"""What a conversation rendered by a template keeps: its messages, and where its text can be gone on from.

A turn's input adds a link that ends at a control token (a *border*), and one more for what follows that (a *tail*), which the
next turn replaces. An *answer* has a link of its own: what the template makes of it shows with the next turn only.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from sys import getsizeof
from typing import Any, Final, Literal

import msgspec

from ws_responses.rendering.chat_messages import ChatMessage, Stage
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import ToolSet

_decode_messages = msgspec.json.Decoder(list[dict[str, Any]]).decode

_DIGEST_BYTES: Final = 16


class Frame:
    """What stands around all messages of a conversation; shared by its links.

    Attributes:
        tools: Of the settings.
        variables: Of the template.
        size: Bytes that it takes, about.
    """

    __slots__ = ("size", "tools", "variables")

    def __init__(self, tools: ToolSet | None, variables: Mapping[str, Any]) -> None:
        self.tools = tools
        self.variables = variables
        self.size = 0 if tools is None else _MEMORY_FACTOR * len(msgspec.json.encode(variables))


_MEMORY_FACTOR: Final = 12
"""Bytes that decoded JSON takes for each byte of its text."""


Kind = Literal["border", "tail", "answer"]
"""Of a link: see the module."""


class Notes:
    """A link's notes.

    Args:
        frame: Of the conversation.
        messages: All of them up to here.
        keep: How many of these the links before hold.
        stage: Of the last message.
        border: Characters of the text up to the last border.
        digest: Of the text up to there.
        kind: Of the link.
        is_root: The link is the first one, and pays for the frame.

    Attributes:
        count: Messages up to here.
        own: The link's own messages: encoded, joined by commas.
    """

    __slots__ = ("border", "count", "digest", "frame", "is_root", "keep", "kind", "own", "stage")

    def __init__(
        self,
        frame: Frame,
        messages: Sequence[ChatMessage],
        keep: int,
        *,
        stage: Stage,
        border: int,
        digest: bytes,
        kind: Kind = "border",
        is_root: bool = False,
    ) -> None:
        self.frame = frame
        self.own = msgspec.json.encode(messages[keep:])[1:-1]
        self.keep = keep
        self.count = len(messages)
        self.stage: Stage = stage
        self.border = border
        self.digest = digest
        self.kind: Kind = kind
        self.is_root = is_root

    def __sizeof__(self) -> int:
        size = object.__sizeof__(self) + getsizeof(self.own) + getsizeof(self.digest)
        return size + self.frame.size if self.is_root else size


def digest_of(text: str) -> bytes:
    """Return the digest of a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def notes_of(state: Rendered) -> Notes:
    """Return the notes of a state."""
    notes: Notes = state.memo
    return notes


def messages_of(state: Rendered) -> list[ChatMessage]:
    """Return the messages of a conversation, in template form."""
    messages: list[ChatMessage] = []
    for link in reversed(list(_links(state))):
        notes = notes_of(link)
        del messages[notes.keep :]
        messages += _decode_messages(b"[" + notes.own + b"]")
    return messages


def border_link(state: Rendered, text: str) -> Rendered:
    """Return the newest border of a state up to which a text is the same."""
    borders = (link for link in _links(state) if notes_of(link).kind == "border")
    newest = next(borders)
    notes = notes_of(newest)
    if digest_of(text[: notes.border]) == notes.digest:
        return newest
    older = list(borders)
    same = older.pop() if older else newest
    read = 0
    hasher = blake2b(digest_size=_DIGEST_BYTES)
    for link in reversed(older):
        notes = notes_of(link)
        hasher.update(text[read : notes.border].encode("utf-8", "surrogatepass"))
        read = notes.border
        if hasher.copy().digest() != notes.digest:
            break
        same = link
    return same


def answers_of(state: Rendered) -> list[Rendered]:
    """Return the answers behind the newest border, newest first."""
    answers: list[Rendered] = []
    for link in _links(without_tail(state)):
        if notes_of(link).kind != "answer":
            break
        answers.append(link)
    return answers


def append(
    link: Rendered,
    head: Sequence[int],
    tail: Sequence[int],
    *,
    messages: Sequence[ChatMessage],
    unchanged: int,
    stage: Stage,
    text: str,
    border: int,
) -> Rendered:
    """Return a state that goes on from a border or an answer.

    Args:
        link: That link.
        head: Ids up to the text's last control token; empty if there is none behind the link.
        tail: Ids behind it.
        messages: All of them.
        unchanged: How many of these are as they were.
        stage: Of the last one.
        text: The whole text.
        border: Where its last control token ends.
    """
    before = notes_of(link)
    keep = min(before.count, unchanged)
    if head:
        digest = digest_of(text[:border])
        notes = Notes(before.frame, messages, keep, stage=stage, border=border, digest=digest)
        link = link.with_tokens(head, notes)
        before, keep = notes, len(messages)
        if not tail:
            return link
    notes = Notes(before.frame, messages, keep, stage=stage, border=before.border, digest=before.digest, kind="tail")
    return _with_ids(link, tail, notes)


def with_answer(link: Rendered, ids: Sequence[int], messages: Sequence[ChatMessage]) -> Rendered:
    """Return a state that goes on from a border or an answer by another answer, the last of these messages."""
    before = notes_of(link)
    notes = Notes(
        before.frame,
        messages,
        min(before.count, len(messages) - 1),
        stage=None,
        border=before.border,
        digest=before.digest,
        kind="answer",
    )
    return _with_ids(link, ids, notes)


def without_tail(state: Rendered) -> Rendered:
    """Return a state without what follows its last border or answer."""
    return state.before if notes_of(state).kind == "tail" and state.before is not None else state


def _with_ids(link: Rendered, ids: Sequence[int], notes: Notes) -> Rendered:
    """Return a new link, even without ids: its notes must not take the place of those before."""
    if ids:
        return link.with_tokens(ids, notes)
    return Rendered(link, array("I"), b"", link.form, link.place, notes)


def _links(state: Rendered) -> Iterator[Rendered]:
    link: Rendered | None = state
    while link is not None:
        yield link
        link = link.before
