"""P3: from the frame to the app (or the backend), with a long history and with a short one.

Nothing on this way waits, so it is timed by the CPU clock of the thread: where the machine is idle that is the time that passes,
and where it is busy the others' share does not count.
"""

import ctypes
import platform
from collections.abc import Mapping
from contextlib import AsyncExitStack
from statistics import median
from time import thread_time
from typing import Final, Literal, Self, get_args

from ws_responses.bench.engine import EngineConversation
from ws_responses.bench.inprocess import Conversation
from ws_responses.bench.results import Row, Sample

_Wrapped = Literal["forward", "turn", "replay"]
_Mode = Literal[_Wrapped, "engine"]

_TURNS: Final = {"1M": 1_000, "1k": 1}
"""Turns of a history of that many tokens, four bytes each; the engine counts its tokens."""

_TOKENS: Final = {"1M": 1_000_000, "1k": 1_000}

_TURN_BYTES: Final = 4_000
_DELTA_BYTES: Final = 1_600
"""Size of the tool output that a measured turn brings: 400 tokens."""

_SCRUB: Final = 1 << 25

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Of ``mallopt``, in glibc's malloc.h."""


class Latency:
    """P3.

    Args:
        quick: Measure less.
    """

    name = "P3"

    def __init__(self, *, quick: bool) -> None:
        self._samples = {"forward": 40, "turn": 40, "engine": 40, "replay": 12}
        if quick:
            self._samples = {mode: count * 5 // 12 for mode, count in self._samples.items()}
        self.rows = (
            Row("P3.forward", "forward: frame to app at 1M tokens, beside 1k tokens", "us", 1.2),
            Row("P3.turn", "turn: frame to app at 1M tokens, beside 1k tokens", "us", 1.2),
            Row("P3.engine", "engine: frame to generate() at 1M tokens, beside 1k tokens", "us", 1.2),
            Row("P3.replay", "replay: what 1M tokens add to that, beside one copy of the body", "us", 2.0),
        )
        self._stack = AsyncExitStack()
        self._body = self._other = self._sink = bytearray()
        self._conversations: dict[_Mode, dict[str, Conversation]] = {}

    async def __aenter__(self) -> Self:
        """Have the conversations."""
        _keep_freed_memory()
        # All memory here is written to: pages that never were are one and the same page of zeros.
        self._other, self._sink = bytearray(b"x" * _SCRUB), bytearray(b"x" * _SCRUB)
        for mode in get_args(_Wrapped):
            self._conversations[mode] = {}
            for size, turns in _TURNS.items():
                # Only what the app has stored is forwarded.
                conversation = Conversation.with_app(mode, store=mode == "forward")
                await self._stack.enter_async_context(conversation)
                await conversation.grow(turns, _TURN_BYTES)
                self._conversations[mode][size] = conversation
        self._body = bytearray(b"x" * self._conversations["replay"]["1M"].item_bytes)
        self._conversations["engine"] = {size: await self._with_engine(tokens) for size, tokens in _TOKENS.items()}
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self._stack.aclose()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run turns that all continue the same history, by turns on the long and the short one."""
        del number  # both alternate from turn to turn
        samples: dict[str, Sample] = {}
        for mode in ("forward", "turn", "engine"):
            long_us, short_us, _ = await self._measure(mode)
            samples[f"P3.{mode}"] = Sample(long_us, short_us)
        long_us, short_us, copy_us = await self._measure("replay")
        samples["P3.replay"] = Sample(long_us - short_us, copy_us)
        return samples

    async def _with_engine(self, tokens: int) -> Conversation:
        conversation = await self._stack.enter_async_context(EngineConversation())
        while conversation.tokens < tokens:
            await conversation.grow(1, _TURN_BYTES)
        return conversation

    async def _measure(self, mode: _Mode) -> tuple[float, float, float]:
        """Return medians in microseconds: with the long history, with the short one, and of a copy of the long body."""
        conversations = self._conversations[mode]
        times: dict[str, list[float]] = {"1M": [], "1k": [], "copy": []}
        for _ in range(self._samples[mode]):
            for size, conversation in conversations.items():
                if mode == "replay":
                    self._scrub()
                times[size].append(await conversation.turn(_DELTA_BYTES))
            if mode == "replay":
                self._scrub()
                times["copy"].append(_copy_seconds(self._body))
        return (
            median(times["1M"]) * 1e6,
            median(times["1k"]) * 1e6,
            median(times["copy"] or [0.0]) * 1e6,
        )

    def _scrub(self) -> None:
        """Fill the caches near the core with other memory: a server with many conversations has none of them at hand."""
        self._sink[:] = self._other


def _keep_freed_memory() -> None:
    """Make glibc keep what is freed: page faults would come now on the one side, now on the other, and cost more than both."""
    if platform.libc_ver()[0] != "glibc":
        return
    mallopt = ctypes.CDLL(None).mallopt
    mallopt(_M_MMAP_THRESHOLD, 1 << 25)
    mallopt(_M_TRIM_THRESHOLD, 1 << 30)


def _copy_seconds(source: bytearray) -> float:
    """Return the time of one copy."""
    begin = thread_time()
    copy = bytes(source)
    seconds = thread_time() - begin
    del copy  # not before the time is taken: giving memory back is no part of a copy
    return seconds
