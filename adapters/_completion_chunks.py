"""Reads the chunks of completions, without any I/O."""

from typing import Final

import msgspec

from ws_responses.adapters._chunks import Chunk, ChunkReader, CompletionChoice
from ws_responses.backends import Delta

_DECODER: Final = msgspec.json.Decoder(Chunk[CompletionChoice])


class CompletionReader(ChunkReader):
    """Reads one generation.

    Args:
        expects_ids: Ids were asked for: text without them is a loss.
    """

    __slots__ = ("_count", "_expects_ids", "_lost")

    def __init__(self, *, expects_ids: bool) -> None:
        super().__init__()
        self._expects_ids = expects_ids
        self._count = 0
        self._lost = False

    def read(self, event: bytes) -> Delta | None:
        choice = self.choice_of(_DECODER, event)
        if choice is None:
            return None
        if choice.finish_reason is not None:
            self.finished(choice.finish_reason, event)
        text, ids = choice.text or "", choice.token_ids or ()
        if ids:
            self._count += len(ids)
            return Delta(text=text, token_ids=ids)
        if not text:
            return None
        self._lost = self._lost or self._expects_ids
        return Delta(text=text, ids_lost=self._expects_ids)

    def end(self, *, done: bool = False) -> Delta:
        delta = super().end(done=done)
        if not self._expects_ids or self._lost:
            return delta
        sampled = None if self.usage is None else self.usage.completion_tokens
        if sampled is None or sampled <= self._count:
            return delta
        return msgspec.structs.replace(delta, ids_lost=True)
