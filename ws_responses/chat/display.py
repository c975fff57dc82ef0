"""What a person sees: the answer on standard output, all else on standard error."""

import re
from collections.abc import Mapping
from typing import Any, Final, TextIO

from msgspec import Struct

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""A terminal obeys these: what a model says must not move its cursor, rename its window or worse."""
_DIM: Final = "\x1b[2m"
_RESET: Final = "\x1b[0m"


class TurnTimes(Struct):
    """When things happened in a turn, in seconds from its start.

    Attributes:
        first_s: The first event; None if there was none.
        total_s: The last.
    """

    first_s: float | None = None
    total_s: float = 0.0


class Display:
    """Where a conversation is shown.

    Args:
        out: Takes the answers, and nothing else: a script reads it.
        err: Takes everything else.
    """

    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._out = out
        self._err = err
        self._out_is_terminal = out.isatty()
        self._err_is_terminal = err.isatty()
        self._open: TextIO | None = None

    def text(self, delta: str) -> None:
        """Show a piece of the answer."""
        self._write(self._out, _CONTROLS.sub("", delta) if self._out_is_terminal else delta)

    def reasoning(self, delta: str) -> None:
        """Show a piece of the reasoning."""
        self._write(self._err, self._dimmed(delta))

    def end_line(self) -> None:
        """End the line that the last piece has begun."""
        if self._open is not None:
            self._open.write("\n")
            self._open.flush()
            self._open = None

    def note(self, text: str) -> None:
        """Show a remark."""
        self.end_line()
        self._err.write(self._dimmed(text) + "\n")
        self._err.flush()

    def error(self, text: str) -> None:
        """Show what went wrong."""
        self.end_line()
        self._err.write(f"error: {self._clean(text)}\n")
        self._err.flush()

    def call(self, item: Mapping[str, Any]) -> None:
        """Show a call that the model makes."""
        made = item.get("arguments") or item.get("input") or item.get("action") or ""
        self.note(f"[{item.get('type')}] {item.get('name') or ''}({made})")

    def summary(self, times: TurnTimes, usage: Mapping[str, Any] | None) -> None:
        """Show what a turn has cost."""
        first = "no event" if times.first_s is None else f"first event {times.first_s:.2f} s"
        self.note(f"[{first}, {times.total_s:.2f} s in all; {_tokens(usage)}]")

    def _write(self, stream: TextIO, text: str) -> None:
        if self._open is not None and self._open is not stream:
            self.end_line()
        stream.write(text)
        stream.flush()
        if text:
            self._open = stream

    def _dimmed(self, text: str) -> str:
        return f"{_DIM}{self._clean(text)}{_RESET}" if self._err_is_terminal else text

    def _clean(self, text: str) -> str:
        return _CONTROLS.sub("", text) if self._err_is_terminal else text


def _tokens(usage: Mapping[str, Any] | None) -> str:
    if not usage or usage.get("input_tokens") is None:
        return "tokens unknown"
    details: Mapping[str, Any] = usage.get("input_tokens_details") or {}
    cached = details.get("cached_tokens")
    of_cache = "" if cached is None else f" ({cached} cached)"
    return f"{usage['input_tokens']} tokens in{of_cache}, {usage.get('output_tokens')} out"
