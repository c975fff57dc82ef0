"""Reads what llama.cpp's ``/completion`` answers: events in, deltas out, without any I/O."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from ws_responses.backend_errors import nonsense, stream_error
from ws_responses.backends import Delta, Finish, Usage
from ws_responses.errors import StreamTruncated
from ws_responses.protocol.text import mended

FIELDS: Final = ["content", "tokens", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "timings"]
"""To be asked for in the last event, which else repeats the whole prompt as text."""


class _Timings(Struct, gc=False):
    cache_n: int | None = None


class Event(Struct, gc=False):
    """A piece of an answer, or all of one that is not streamed.

    Attributes:
        content: Text of these tokens.
        tokens: Their ids. Of a character that takes several tokens only the last one is told.
        stop: The last event.
        stop_type: Why sampling ended: ``eos``, ``word``, ``limit``, ``none``.
        tokens_predicted: Tokens sampled up to here.
        tokens_evaluated: Tokens of the prompt, cached ones included.
        timings: With the last event.
        error: The server gave up.
    """

    content: str = ""
    tokens: list[int] = []
    stop: bool = False
    stop_type: str | None = None
    tokens_predicted: int | None = None
    tokens_evaluated: int | None = None
    timings: _Timings | None = None
    error: Any = None

    def usage(self) -> Usage:
        """Return what is known of the usage."""
        return Usage(
            input_tokens=self.tokens_evaluated,
            cached_tokens=None if self.timings is None else self.timings.cache_n,
            output_tokens=self.tokens_predicted,
        )


_FINISHES: Final[dict[str | None, Finish]] = {"limit": "length"}
"""Why the server stopped; all else is the model's own end (``eos``, ``word``)."""

_decoder: Final = msgspec.json.Decoder(Event)


def decode(text: bytes) -> Event:
    """Decode an event.

    Raises:
        WireError: It cannot be read.
    """
    try:
        return _decoder.decode(text)
    except msgspec.DecodeError:
        pass
    try:
        return _decoder.decode(mended(text))
    except msgspec.DecodeError:
        raise nonsense("An event of its stream is malformed.") from None


class EventReader:
    """Reads one answer.

    Args:
        stop_ids: Ids at which it ends. The server knows the model's own only; at others it is ended here.

    Attributes:
        over: Nothing more is to be read.
        complete: The server has ended it by itself.
    """

    __slots__ = ("_last", "_predicted", "_stop_ids", "_stopped", "complete", "over")

    def __init__(self, stop_ids: tuple[int, ...]) -> None:
        self._stop_ids = frozenset(stop_ids)
        self._stopped = False
        self._predicted = 0
        self._last = Event()
        self.over = False
        self.complete = False

    def read(self, text: bytes) -> Delta | None:
        """Read one event; None if it carries no output.

        Raises:
            WireError: The server reports a failure, or sends what cannot be read.
        """
        if self.over:
            return None
        event = decode(text)
        if event.error is not None:
            raise stream_error({"error": event.error})
        if event.stop:
            self.over = self.complete = True
        elif self._stopped:
            self.over = True
            return None
        self._last = event
        lost = self._count(event)
        if not event.content and not event.tokens and not lost:
            return None
        self._stopped = not self._stop_ids.isdisjoint(event.tokens)
        return Delta(text=event.content, token_ids=event.tokens, ids_lost=lost)

    def _count(self, event: Event) -> bool:
        """Count what was sampled; tell whether ids are missing."""
        known = self._predicted + len(event.tokens)
        self._predicted = known if event.tokens_predicted is None else event.tokens_predicted
        return self._predicted > known

    def end(self) -> Delta:
        """Return the last delta: why sampling ended, and what was used.

        Raises:
            StreamTruncated: The stream ended before the server said why.
        """
        if not self.over:
            raise StreamTruncated
        finish = _FINISHES.get(self._last.stop_type, "stop")
        return Delta(finish=finish, usage=self._last.usage())
