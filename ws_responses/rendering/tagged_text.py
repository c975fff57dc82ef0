"""Reads answers with tags in them: plain text, ``<think>``, ``<tool_call>``; the same pieces however the text was split."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Literal

from ws_responses.rendering.renderer import OutputPiece, ToolSet
from ws_responses.rendering.tagged_calls import CALL_OPEN, CallReader
from ws_responses.rendering.tokenizer import TextDecoder, Tokenizer

THINK_OPEN: Final = "<think>"
THINK_CLOSE: Final = "</think>"

MOST_BLANKS: Final = 64
"""Blanks next to a tag that are no part of what is said: more than that are text."""

Begun = Literal["text", "reasoning", "call"]
"""What an answer begins within: what its prefill has opened."""

_State = Callable[[str, list[OutputPiece]], str | None]


class TagParser:
    """Parser of one answer: an :class:`~ws_responses.rendering.renderer.OutputParser`.

    Reasoning is looked for at the beginning of the answer and behind a call, so that an answer may speak of the tag. A call
    that is none is text. Blanks next to tags are dropped; an answer without tags is passed on as it is.

    Args:
        tools: Tools that may be called; None passes ``<tool_call>`` on as text.
        source: Makes text of what is sampled.
        begun: What the prefill has opened; the prefill itself is not fed.
    """

    __slots__ = ("_blanks", "_calls", "_held", "_plain", "_reader", "_source", "_spoke", "_state", "_tools")

    def __init__(self, tools: ToolSet | None, source: "TextSource", begun: Begun = "text") -> None:
        self._tools = tools
        self._source = source
        self._held = ""
        self._blanks = ""
        self._calls = 0
        self._plain = begun == "text"
        self._spoke = False
        self._reader: CallReader | None = None
        self._state: _State = self._start
        if begun == "reasoning":
            self._state = self._reasoning
        elif begun == "call":
            self._open_call("")

    def feed(self, token_ids: Sequence[int], text: str) -> Sequence[OutputPiece]:
        """Take what was sampled next."""
        out: list[OutputPiece] = []
        self._run(self._source.feed(token_ids, text), out)
        return out

    def end(self) -> Sequence[OutputPiece]:
        """Take the end of the answer; return what was held back."""
        out: list[OutputPiece] = []
        self._run(self._source.end(), out)
        while self._reader is not None:
            out += self._reader.end()
            self._run(self._after_call(out, self._reader), out)
        if self._held:
            _say(out, "reasoning" if self._state == self._reasoning else "text", self._held)
            self._held = ""
        return out

    def _run(self, text: str | None, out: list[OutputPiece]) -> None:
        while text:
            text = self._state(text, out)

    # -- states: each takes text, says what is certain, and returns what is for the next state (None: it waits) -------

    def _start(self, text: str, _out: list[OutputPiece]) -> str | None:
        """Nothing was said since the beginning, or since a tag was closed."""
        text = self._held + text
        self._held = ""
        body = text.lstrip()
        blanks = len(text) - len(body)
        if blanks <= MOST_BLANKS or not self._plain:
            for tag in (THINK_OPEN, CALL_OPEN)[: 1 if self._tools is None else 2]:
                if body.startswith(tag):
                    return self._enter(tag, text[:blanks] if self._plain else "", body)
                if tag.startswith(body):
                    self._held = text if self._plain else body
                    return None
        self._state = self._text
        return text if self._plain else body

    def _enter(self, tag: str, blanks: str, body: str) -> str:
        if tag == CALL_OPEN:
            self._open_call(blanks)
        else:
            self._plain = self._spoke = False
            self._state = self._reasoning
        return body[len(tag) :]

    def _text(self, text: str, out: list[OutputPiece]) -> str | None:
        if self._tools is None:
            _say(out, "text", text)
            return None
        text = self._held + text
        at = text.find(CALL_OPEN)
        if at < 0:
            keep = _certain(text, CALL_OPEN)
            self._held = text[keep:]
            _say(out, "text", text[:keep])
            return None
        keep = _without_blanks(text, at)
        self._held = ""
        _say(out, "text", text[:keep])
        self._open_call(text[keep:at])
        return text[at + len(CALL_OPEN) :]

    def _reasoning(self, text: str, out: list[OutputPiece]) -> str | None:
        text = self._held + text
        if not self._spoke:
            text = text.lstrip()
        at = text.find(THINK_CLOSE)
        keep = _certain(text, THINK_CLOSE) if at < 0 else _without_blanks(text, at)
        self._spoke = self._spoke or keep > 0
        _say(out, "reasoning", text[:keep])
        if at < 0:
            self._held = text[keep:]
            return None
        self._held = ""
        self._plain = False
        self._state = self._start
        return text[at + len(THINK_CLOSE) :]

    def _call(self, text: str, out: list[OutputPiece]) -> str | None:
        assert self._reader is not None
        out += self._reader.feed(text)
        return self._after_call(out, self._reader)

    # -- calls -------------------------------------------------------------------------------------------------------

    def _open_call(self, blanks: str) -> None:
        self._blanks = blanks
        self._reader = CallReader(self._tools, self._calls)
        self._state = self._call

    def _after_call(self, out: list[OutputPiece], reader: CallReader) -> str | None:
        if reader.failed:
            self._reader = None
            _say(out, "text", self._blanks + CALL_OPEN)
            self._state = self._text
            return reader.rest
        if reader.ended:
            self._reader = None
            self._calls += 1
            self._plain = False
            self._state = self._start
            return reader.rest
        return None


def _say(out: list[OutputPiece], kind: Literal["text", "reasoning"], text: str) -> None:
    if text:
        out.append(OutputPiece(kind=kind, text=text))


def _without_blanks(text: str, end: int) -> int:
    """Return where the blanks before ``end`` begin, at most so many as belong to a tag."""
    return max(len(text[:end].rstrip()), end - MOST_BLANKS)


def _certain(text: str, tag: str) -> int:
    """Return how much of ``text`` is no part of a tag, nor of blanks before one."""
    at = text.rfind("<", max(0, len(text) - len(tag) + 1))
    end = at if at >= 0 and tag.startswith(text[at:]) else len(text)
    return _without_blanks(text, end)


# -- from ids to text ----------------------------------------------------------------------------------------------------


class TextSource:
    """The text of an answer, from what a backend tells of it: text, ids, or both.

    Text counts where there is any: a backend may lose ids of characters that take several. Where there is none, the ids are
    decoded. Tags that are tokens of their own, and that the backend leaves out of its text, are put back.

    Args:
        tokenizer: Whose ids they are.
        tags: Tags that are tokens of their own, by id.
        silent: Ids that say nothing (ends of answers).
    """

    __slots__ = ("_decoder", "_mode", "_silent", "_tags", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer, tags: Mapping[int, str], silent: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._tags = tags
        self._silent = silent
        self._decoder = TextDecoder(tokenizer)
        self._mode: Literal["text", "ids"] | None = None

    def feed(self, ids: Sequence[int], text: str) -> str:
        """Return the next piece of text."""
        if not ids:
            return text
        if self._mode == "text":
            return self._with_tags(ids, text)
        if text and self._mode is None:
            self._mode = "text"
            return self._with_tags(ids, text)
        return self._decoded(ids)

    def end(self) -> str:
        """Return what was held back of an unfinished character."""
        return self._decoder.end() if self._mode == "ids" else ""

    def _decoded(self, ids: Sequence[int]) -> str:
        """Return the text of ids, in a backend that has told no text yet."""
        spoken = [token for token in ids if token not in self._silent]
        text = self._decoder.feed(spoken)
        if self._mode is None and text and not all(token in self._tags for token in spoken):
            self._mode = "ids"
        return text

    def _with_tags(self, ids: Sequence[int], text: str) -> str:
        tags = [self._tags[token] for token in ids if token in self._tags] if self._tags else []
        if not tags or any(tag in text for tag in tags):
            return text
        if ids[0] in self._tags and len(tags) == 1:
            return tags[0] + text
        if all(token in self._tags or token in self._silent for token in ids[len(ids) - len(tags) :]):
            return text + "".join(tags)
        return TextDecoder(self._tokenizer).feed([token for token in ids if token not in self._silent])
