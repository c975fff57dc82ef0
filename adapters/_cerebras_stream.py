"""Reads the answers of Cerebras: bytes in, deltas out, without any I/O."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from ws_responses.adapters._chunks import DONE, Chunk, ChunkReader, CompletionChoice
from ws_responses.adapters._joining import joined, json_list
from ws_responses.backends import Delta
from ws_responses.upstreams.sse import SSEDecoder, usual_events

# --- chunks -----------------------------------------------------------------------------------------------------------


class _Choice(CompletionChoice, gc=False):
    token_ids: list[int] | None = msgspec.field(default=None, name="tokens")


_DECODER: Final = msgspec.json.Decoder(Chunk[_Choice])


class TokenReader(ChunkReader):
    """Reads the chunks of completions, with the ids where Cerebras has them.

    Whether ``usage`` counts what has no id here (an end of sequence) is not known, so that it says nothing on lost ids.

    Args:
        expects_ids: Ids were asked for: text without them is a loss.
        stop_ids: Ids at which sampling ends. The service knows the model's own only; at others the answer is cut here.

    Attributes:
        cut: The service goes on where the answer has ended.
    """

    __slots__ = ("_expects_ids", "_stop_ids", "_stopped", "cut")

    list_decoder = msgspec.json.Decoder(list[Chunk[_Choice]])

    def __init__(self, *, expects_ids: bool, stop_ids: tuple[int, ...]) -> None:
        super().__init__()
        self._expects_ids = expects_ids
        self._stop_ids = frozenset(stop_ids)
        self._stopped = False
        self.cut = False

    def read(self, event: bytes) -> Delta | None:
        if self.cut:
            return None
        choice = self.choice_of(_DECODER, event)
        if choice is None:
            return None
        if choice.finish_reason is not None:
            self.finished(choice.finish_reason, event)
        return self._sampled(choice.text or "", choice.token_ids or ())

    def together(self, choices: list[_Choice]) -> Delta | None:
        ids: list[int] = []
        for choice in choices:
            if not choice.token_ids or choice.finish_reason is not None:
                return None
            ids += choice.token_ids
        if self._stopped or not self._stop_ids.isdisjoint(ids):
            return None
        return Delta(text="".join([choice.text or "" for choice in choices]), token_ids=ids)

    def _sampled(self, text: str, ids: Sequence[int]) -> Delta | None:
        if not text and not ids:
            return None
        if self._stopped:
            # Until now the service might have ended the answer by itself, and told its usage.
            self.finish = "stop"
            self.cut = True
            return None
        if not self._stop_ids.isdisjoint(ids):
            self._stopped = True
            ids = ids[: 1 + next(place for place, one in enumerate(ids) if one in self._stop_ids)]
        return Delta(text=text, token_ids=ids, ids_lost=self._expects_ids and not ids)


# --- bodies -----------------------------------------------------------------------------------------------------------


class AnswerReader:
    """Reads the body of one answer.

    Args:
        chunks: Reads its chunks.
        max_event_bytes: Bound on an event.
        joins: Neighbours of one kind that come together are one delta.
    """

    __slots__ = ("_chunks", "_ended", "_joins", "_max_event_bytes", "_sse", "_whole")

    def __init__(self, chunks: ChunkReader, max_event_bytes: int, *, joins: bool = False) -> None:
        self._chunks = chunks
        self._joins = joins
        self._max_event_bytes = max_event_bytes
        self._sse = SSEDecoder(max_event_bytes=max_event_bytes)
        self._whole = True
        self._ended = False

    @property
    def cut(self) -> bool:
        """Whether the service goes on where the answer has ended."""
        return isinstance(self._chunks, TokenReader) and self._chunks.cut

    @property
    def done(self) -> bool:
        """Whether nothing more belongs to the answer."""
        return self._ended or self.cut

    @property
    def sampled(self) -> bool:
        """Whether the service has said why sampling ended: the answer is whole then, even if its body is cut off."""
        return self._chunks.finish is not None

    def feed(self, body: bytes) -> Iterable[Delta]:
        """Take the next bytes of the body, cut anywhere, and yield what they complete.

        Raises:
            WireError: The service reports a failure, or sends what cannot be read. All before it has been yielded.
        """
        if not self._joins:
            return self._each(body)
        delta = self._together(body)
        return joined(self._each(body)) if delta is None else (delta,)

    def _together(self, body: bytes) -> Delta | None:
        """Return what the next bytes add, if all their chunks are pieces of one kind, as most are; else do nothing."""
        if self._ended or not self._whole or len(body) > self._max_event_bytes:
            return None
        listed = json_list(body)
        return None if listed is None else self._chunks.read_list(*listed)

    def _each(self, body: bytes) -> Iterator[Delta]:
        if self._ended:
            return
        # Most of what arrives is whole events: no detour by the decoder, unless that holds a part of one.
        events = usual_events(body) if self._whole and len(body) <= self._max_event_bytes else None
        if events is None:
            events = self._sse.feed(body)
            self._whole = not self._sse.pending
        for event in events:
            if event == DONE:
                self._ended = True
                return
            delta = self._chunks.read(event)
            if delta is not None:
                yield delta

    def end(self) -> Delta:
        """Return the last delta: why sampling ended, and what was used.

        Raises:
            StreamTruncated: The body ended before the service said that it is the end.
        """
        return self._chunks.end(done=self._ended)
