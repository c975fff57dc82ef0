"""Reads one call as models of the Hermes and Qwen kind write it: ``<tool_call>{"name": ..., "arguments": ...}</tool_call>``."""

import re
from collections.abc import Callable
from typing import Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.rendering.json_text import InputReader, StringReader, ValueEnd, input_of, unescape
from ws_responses.rendering.renderer import OutputPiece, ToolSet

CALL_OPEN: Final = "<tool_call>"
CALL_CLOSE: Final = "</tool_call>"

_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*"((?:[^"\\]|\\.)*)"\s*,\s*"arguments"\s*:\s*(?=\S)', re.DOTALL)
_HEAD_CHARACTERS: Final = 1024
"""Where a call must have begun in the usual order; if it has not, it is held until it is whole."""

_TAIL: Final = re.compile(r"[\s}]*")


class _Whole(Struct):
    name: str
    arguments: Raw = Raw()
    parameters: Raw = Raw()


_whole = msgspec.json.Decoder(_Whole).decode
_string = msgspec.json.Decoder(str).decode


class CallReader:
    """Reads one call, from behind its opening tag on: its arguments go on as soon as its name is known.

    Args:
        tools: What may be called: tells which tools take free text.
        number: Which call of the answer.

    Attributes:
        ended: The call is over; ``rest`` came behind it.
        failed: It was none; ``rest`` is its text.
        rest: See above.
    """

    __slots__ = ("_end", "_flush", "_held", "_number", "_pieces", "_read", "_step", "_tools", "ended", "failed", "rest")

    def __init__(self, tools: ToolSet | None, number: int) -> None:
        self._tools = tools
        self._number = number
        self._held = ""
        self._pieces: list[str] = []
        self._end: ValueEnd | None = None
        self._step: Callable[[str], list[OutputPiece]] = self._head
        self._read: Callable[[str], str] = str
        self._flush: Callable[[], str] = str
        self.ended = False
        self.failed = False
        self.rest = ""

    def feed(self, text: str) -> list[OutputPiece]:
        """Take the next piece of text."""
        return self._step(text)

    def end(self) -> list[OutputPiece]:
        """Take the end of the answer: what came so far is all that there is of the call."""
        if self._step == self._tail:
            pieces: list[OutputPiece] = []
        elif self._step == self._arguments:
            pieces = self._piece(self._flush())
        else:
            pieces = self._as_whole("".join((self._held, *self._pieces)), "")
        self.ended = not self.failed
        return pieces

    # -- the beginning -----------------------------------------------------------------------------------------------

    def _head(self, text: str) -> list[OutputPiece]:
        self._held += text
        held = self._held
        match = _HEAD.match(held, 0, _HEAD_CHARACTERS)
        if match is not None:
            return self._begin(match)
        body = held.lstrip()
        if not body:
            return []
        if body[0] != "{":
            return self._fail(held)
        if len(held) >= _HEAD_CHARACTERS:
            return self._begin_whole(held)
        end = ValueEnd().feed(body)
        return [] if end < 0 else self._begin_whole(held)

    def _begin(self, match: re.Match[str]) -> list[OutputPiece]:
        name = unescape(match[1])
        tool = None if self._tools is None else self._tools.find(name)
        value = self._held[match.end() :]
        quoted = value[0] == '"'
        self._end = ValueEnd()
        if quoted:
            string = StringReader()
            self._read, self._flush = string.feed, string.end
        elif tool is not None and tool.kind == "custom":
            given = InputReader()
            self._read, self._flush = given.feed, given.end
        self._held = ""
        self._step = self._arguments
        begun = OutputPiece(kind="call", call=self._number, name=name)
        if not quoted:
            return [begun, *self._arguments(value)]
        self._end.feed('"')
        return [begun, *self._arguments(value[1:])]

    # -- in the usual order: passed on -------------------------------------------------------------------------------

    def _arguments(self, text: str) -> list[OutputPiece]:
        assert self._end is not None
        end = self._end.feed(text)
        if end < 0:
            return self._piece(self._read(text))
        pieces = self._piece(self._read(text[:end]) + self._flush())
        self._step = self._tail
        return pieces + self._tail(text[end:])

    def _piece(self, text: str) -> list[OutputPiece]:
        return [OutputPiece(kind="call", text=text, call=self._number)] if text else []

    def _tail(self, text: str) -> list[OutputPiece]:
        self._held += text
        match = _TAIL.match(self._held)
        self._held = rest = self._held[match.end() :] if match else self._held
        if CALL_CLOSE.startswith(rest) and rest != CALL_CLOSE:
            return []
        self.ended = True
        self.rest = rest.removeprefix(CALL_CLOSE)
        return []

    # -- in another order: held until it is whole --------------------------------------------------------------------

    def _begin_whole(self, held: str) -> list[OutputPiece]:
        blank = len(held) - len(held.lstrip())
        self._held = held[:blank]
        self._end = ValueEnd()
        self._step = self._collect
        return self._collect(held[blank:])

    def _collect(self, text: str) -> list[OutputPiece]:
        assert self._end is not None
        end = self._end.feed(text)
        if end < 0:
            self._pieces.append(text)
            return []
        return self._as_whole("".join((self._held, *self._pieces, text[:end])), text[end:])

    def _as_whole(self, body: str, rest: str) -> list[OutputPiece]:
        try:
            whole = _whole(body)
        except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
            return self._fail(body + rest)
        raw = bytes(whole.arguments) or bytes(whole.parameters) or b"{}"
        tool = None if self._tools is None else self._tools.find(whole.name)
        arguments = _string(raw) if raw.startswith(b'"') else raw.decode()
        if tool is not None and tool.kind == "custom":
            arguments = input_of(arguments)
        self._held = ""
        self._step = self._tail
        return [OutputPiece(kind="call", text=arguments, call=self._number, name=whole.name), *self._tail(rest)]

    def _fail(self, text: str) -> list[OutputPiece]:
        self.failed = True
        self.rest = text
        return []
