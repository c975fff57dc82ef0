"""Reads what a gpt-oss model samples: control tokens into pieces of text, reasoning and calls.

=====================  ===================================================================================================
channel, recipient     piece
=====================  ===================================================================================================
``functions.<name>``   a call of that tool, on whatever channel
``analysis``           reasoning
``commentary``         text, phase ``commentary``: a preamble that the user may see
``final``, or none     text, phase ``final_answer``; whatever recipient stands there is no tool
=====================  ===================================================================================================

A tool is also called by its bare name, if it is offered. Any other recipient (``python``, ``browser.search``: tools that the
model was trained on, and that are not offered here), another channel, another role, or ids between two messages are nonsense.
It agrees with ``StreamableParser`` of openai-harmony where that reads a stream well, and needs no second vocabulary in memory.
"""

import codecs
from collections.abc import Container, Iterable, Sequence
from enum import Enum, auto
from typing import Final

from ws_responses.errors import UpstreamError
from ws_responses.rendering.harmony_sampled import Header, read_header
from ws_responses.rendering.harmony_spelled import SpelledTokens
from ws_responses.rendering.harmony_tokens import (
    ANSWER_ENDS,
    FIRST_SPECIAL,
    MESSAGE,
    MESSAGE_ENDS,
    START,
    HarmonyTokens,
)
from ws_responses.rendering.renderer import OutputPiece

MAX_HEADER_IDS: Final = 256
"""Ids of a header: several times those of the longest names that a tool may have."""

REASONING: Final = OutputPiece(kind="reasoning")
COMMENTARY: Final = OutputPiece(kind="text", phase="commentary")
FINAL: Final = OutputPiece(kind="text", phase="final_answer")

_CHANNELS: Final = {"analysis": REASONING, "commentary": COMMENTARY, "final": FINAL, None: FINAL}


class _Place(Enum):
    HEADER = auto()
    CONTENT = auto()
    BETWEEN = auto()
    OVER = auto()


class HarmonyParser:
    """Reads one answer, of which ``<|start|>assistant`` is in the prompt.

    Args:
        tokens: Of the vocabulary.
        prefill: Ids at the end of the prompt that belong to the answer; they must not be fed again.
        offered: Wire names of the tools that the request offers.
        allowed: Wire names that may be called; None for any.
    """

    def __init__(
        self,
        tokens: HarmonyTokens,
        prefill: Sequence[int] = (),
        *,
        offered: Container[str] = (),
        allowed: Container[str] | None = None,
    ) -> None:
        self._tokens = tokens
        self._decode = tokens.encoding.decode_bytes
        self._offered = offered
        self._allowed = allowed
        self._place = _Place.HEADER
        self._header: list[int] = []
        self._calls = 0
        self._content = FINAL
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._spelled: SpelledTokens | None = None
        self._pieces: list[OutputPiece] = []
        self._read(prefill)

    def feed(self, token_ids: Sequence[int], text: str) -> Sequence[OutputPiece]:
        """Take what was sampled next.

        Args:
            token_ids: Ids; empty if the backend tells none.
            text: Read only without ids; it must then have the control tokens in it, spelled out.

        Raises:
            UpstreamError: It is no answer in this format.
        """
        if token_ids:
            highest = max(token_ids)
            if min(token_ids) < 0 or highest >= self._tokens.size:
                raise _nonsense("An id is not in the vocabulary.")
            if highest < FIRST_SPECIAL and self._place is _Place.CONTENT:
                self._add_text(token_ids)  # the hot path
            else:
                self._read(token_ids)
        elif text:
            if self._spelled is None:
                self._spelled = SpelledTokens(self._tokens)
            self._read(self._spelled.feed(text))
        return self._take_pieces()

    def end(self) -> Sequence[OutputPiece]:
        """Take the end of the answer; it may be cut off anywhere.

        Raises:
            UpstreamError: As for :meth:`feed`, for what was held back.
        """
        if self._spelled is not None:
            self._read(self._spelled.end())
        if self._place is _Place.CONTENT:
            self._add_text((), final=True)
        return self._take_pieces()

    def _take_pieces(self) -> list[OutputPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _read(self, ids: Iterable[int]) -> None:
        text: list[int] = []
        for token in ids:
            if self._place is _Place.CONTENT and token not in MESSAGE_ENDS:
                text.append(token)
                continue
            if text:
                self._add_text(text)
                text = []
            self._control(token)
        if text:
            self._add_text(text)

    def _control(self, token: int) -> None:
        """Take an id outside of content, or one that ends it."""
        place = self._place
        if place is _Place.OVER:
            return  # a service that does not stop there: what it adds is no part of the answer
        if place is _Place.CONTENT:
            self._add_text((), final=True)
            self._place = _Place.OVER if token in ANSWER_ENDS else _Place.BETWEEN
        elif place is _Place.HEADER and token == MESSAGE:
            self._open(read_header(self._tokens.decode(self._header)))
            self._place = _Place.CONTENT
        elif place is _Place.HEADER and token not in MESSAGE_ENDS and token != START:
            self._header.append(token)
            if len(self._header) > MAX_HEADER_IDS:
                raise _nonsense("A message has no end of its header.")
        elif token in ANSWER_ENDS and (place is _Place.BETWEEN or not self._header):
            self._place = _Place.OVER
        elif place is _Place.BETWEEN and token == START:
            self._header = []
            self._place = _Place.HEADER
        else:
            raise _nonsense("A control token stands where none may be.")

    def _open(self, header: Header) -> None:
        """Begin a message."""
        if header.role not in {"", "assistant"}:
            raise _nonsense("It speaks in another role than the assistant's.")
        recipient = header.recipient
        if header.tool is not None:
            self._open_call(header.tool)
        elif recipient is not None and recipient in self._offered:
            self._open_call(recipient)
        elif header.channel not in _CHANNELS:
            raise _nonsense("A message is on a channel that the format does not have.")
        elif recipient is not None and header.channel != "final":
            raise _nonsense("It calls a tool that was not offered.")
        else:
            self._content = _CHANNELS[header.channel]

    def _open_call(self, name: str) -> None:
        if self._allowed is not None and name not in self._allowed:
            raise _nonsense("It calls a tool that 'tool_choice' does not allow.")
        self._pieces.append(OutputPiece(kind="call", call=self._calls, name=name))
        self._content = OutputPiece(kind="call", call=self._calls)
        self._calls += 1

    def _add_text(self, ids: Sequence[int], *, final: bool = False) -> None:
        text = self._utf8.decode(self._decode(ids) if ids else b"", final)
        if text:
            like = self._content
            self._pieces.append(OutputPiece(kind=like.kind, text=text, call=like.call, phase=like.phase))


def _nonsense(what: str) -> UpstreamError:
    return UpstreamError(f"The backend's answer cannot be read. {what}")
