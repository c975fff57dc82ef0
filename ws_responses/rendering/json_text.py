"""JSON that a model writes, read piece by piece: where a value ends, what a string says, what a custom tool is given.

Models write JSON that is not quite right; what cannot be read is passed on as it is, and nothing here raises.
"""

import json
import re
from typing import Any, Final, cast

INPUT: Final = "input"
"""The one argument of a custom tool, where tools take JSON only."""

_OUTSIDE: Final = re.compile(r'[{}\[\]"<]')
_INSIDE: Final = re.compile(r'["\\]')
_SCALAR_END: Final = re.compile(r"[\s,}\]<]")


class ValueEnd:
    """Finds where a JSON value ends; must be fed from its first character on.

    ``<`` outside a string ends it too: no JSON has it there, and a tag that closes a call may come before the value is whole.
    """

    __slots__ = ("_depth", "_escaped", "_in_string", "_scalar")

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self._scalar: bool | None = None

    def feed(self, text: str) -> int:
        """Return the index behind the value's end, or -1 if it goes on."""
        if not text:
            return -1
        if self._scalar is None:
            self._scalar = text[0] not in '{["'
        if self._scalar:
            match = _SCALAR_END.search(text)
            return match.start() if match else -1
        return self._structure(text)

    def _structure(self, text: str) -> int:
        at = 0
        while True:
            if self._in_string:
                at = self._string(text, at)
                if at < 0:
                    return -1
                if not self._depth:
                    return at
            match = _OUTSIDE.search(text, at)
            if match is None:
                return -1
            at = match.end()
            found = match[0]
            if found == "<":
                return match.start()
            if found == '"':
                self._in_string = True
            elif found in "{[":
                self._depth += 1
            else:
                self._depth -= 1
                if self._depth <= 0:
                    return at

    def _string(self, text: str, at: int) -> int:
        """Return the index behind the string's end, or -1."""
        if self._escaped and at < len(text):
            self._escaped = False
            at += 1
        while match := _INSIDE.search(text, at):
            at = match.end()
            if match[0] == '"':
                self._in_string = False
                return at
            if at == len(text):
                self._escaped = True
                return -1
            at += 1
        return -1


_HIGH_SURROGATE: Final = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}$")
_BEGUN_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?$")


class StringReader:
    """Reads what a JSON string says, from behind its opening quote on.

    Attributes:
        ended: Its closing quote was read; what is fed later is ignored.
        rest: What came behind that in the same piece.
    """

    __slots__ = ("_held", "ended", "rest")

    def __init__(self) -> None:
        self._held = ""
        self.ended = False
        self.rest = ""

    def feed(self, text: str) -> str:
        """Return the text that is complete."""
        if self.ended:
            return ""
        held = self._held + text
        end = _closing_quote(held)
        if end < 0:
            keep = _complete(held)
            self._held = held[keep:]
            return unescape(held[:keep])
        self._held = ""
        self.ended = True
        self.rest = held[end + 1 :]
        return unescape(held[:end])

    def end(self) -> str:
        """Return what was held back of a string that never ended."""
        held, self._held = self._held, ""
        return unescape(held)


def _closing_quote(text: str) -> int:
    at = 0
    while match := _INSIDE.search(text, at):
        if match[0] == '"':
            return match.start()
        at = match.end() + 1
    return -1


def _complete(text: str) -> int:
    """Return how much of a string's text can be read without what comes next."""
    end = len(text)
    begun = _BEGUN_ESCAPE.search(text)
    if begun and _is_escape(text, begun.start()):
        end = begun.start()
    high = _HIGH_SURROGATE.search(text, max(0, end - 6), end)
    if high and _is_escape(text, high.start()):
        end = high.start()
    return end


def _is_escape(text: str, at: int) -> bool:
    """Whether the backslash there begins an escape, and is not escaped itself."""
    before = at
    while before and text[before - 1] == "\\":
        before -= 1
    return (at - before) % 2 == 0


_ESCAPE: Final = re.compile(r'\\(?:u([0-9a-fA-F]{4})|(["\\/bfnrt]))')
_SHORT_ESCAPES: Final = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


def unescape(text: str) -> str:
    """Return what the inside of a JSON string says; a lone surrogate is U+FFFD, and bad escapes stay as they are."""
    if "\\" not in text:
        return text
    said = _ESCAPE.sub(_said, text)
    if _SURROGATE.search(said) is None:
        return said
    return said.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _said(match: re.Match[str]) -> str:
    return chr(int(match[1], 16)) if match[1] else _SHORT_ESCAPES.get(match[2], match[2])


_INPUT_HEAD: Final = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')
_HEAD_CHARACTERS: Final = 256
"""Where arguments must have begun as expected; if they have not, they are kept till they are whole."""


class InputReader:
    """Reads the text for a custom tool out of the JSON arguments ``{"input": "..."}``, as they come.

    Chat completions and most models know tools with JSON arguments only; a custom tool is offered to them as a function with
    this one argument.
    """

    __slots__ = ("_held", "_pieces", "_string")

    def __init__(self) -> None:
        self._held = ""
        self._pieces: list[str] = []
        self._string: StringReader | None = None

    def feed(self, arguments: str) -> str:
        """Return the next piece of the tool's input."""
        if self._string is not None:
            return self._string.feed(arguments)
        if len(self._held) >= _HEAD_CHARACTERS:
            self._pieces.append(arguments)
            return ""
        self._held += arguments
        match = _INPUT_HEAD.match(self._held, 0, _HEAD_CHARACTERS)
        if match is None:
            return ""
        self._string = StringReader()
        return self._string.feed(self._held[match.end() :])

    def end(self) -> str:
        """Return what was held back; arguments of another shape are the input as they are."""
        if self._string is not None:
            return self._string.end()
        return input_of("".join((self._held, *self._pieces)))


def input_of(arguments: str) -> str:
    """Return the input of a custom tool from whole JSON arguments."""
    try:
        decoded: Any = json.loads(arguments, strict=False)
    except (ValueError, RecursionError):
        return arguments
    if isinstance(decoded, str):
        return decoded
    found = cast("dict[str, Any]", decoded).get(INPUT) if isinstance(decoded, dict) else None
    return found if isinstance(found, str) else arguments


def arguments_with(text: str) -> str:
    """Return the JSON arguments that stand for a custom tool's input."""
    return json.dumps({INPUT: text}, ensure_ascii=False)
