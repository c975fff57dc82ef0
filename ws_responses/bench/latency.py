"""P3: from the frame to the app, with a long history and with a short one.

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

from ws_responses.bench.inprocess import Conversation
from ws_responses.bench.results import Row, Sample

Mode = Literal["forward", "turn", "replay"]

_TURNS: Final = {"1M": 1_000, "1k": 1}
"""Turns of a history of that many tokens, four bytes each."""

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
        self._samples = (
            {"forward": 40, "turn": 40, "replay": 12} if not quick else {"forward": 20, "turn": 20, "replay": 5}
        )
        self.rows = (
            Row("P3.forward", "forward: frame to app at 1M tokens, beside 1k tokens", "us", 1.2),
            Row("P3.turn", "turn: frame to app at 1M tokens, beside 1k tokens", "us", 1.2),
            Row("P3.replay", "replay: what 1M tokens add to that, beside one copy of the body", "us", 2.0),
        )
        self._stack = AsyncExitStack()
        self._body = self._other = self._sink = bytearray()
        self._conversations: dict[Mode, dict[str, Conversation]] = {}

    async def __aenter__(self) -> Self:
        """Have the conversations."""
        _keep_freed_memory()
        # All memory here is written to: pages that never were are one and the same page of zeros.
        self._body = bytearray(b"x" * (_TURNS["1M"] * _TURN_BYTES))
        self._other, self._sink = bytearray(b"x" * _SCRUB), bytearray(b"x" * _SCRUB)
        for mode in get_args(Mode):
            self._conversations[mode] = {}
            for size, turns in _TURNS.items():
                # Only what the app has stored is forwarded.
                conversation = Conversation(mode, store=mode == "forward")
                await self._stack.enter_async_context(conversation)
                await conversation.grow(turns, _TURN_BYTES)
                self._conversations[mode][size] = conversation
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disconnect."""
        await self._stack.aclose()

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run turns that all continue the same history, by turns on the long and the short one."""
        del number  # both alternate from turn to turn
        samples: dict[str, Sample] = {}
        for mode in ("forward", "turn"):
            long_us, short_us, _ = await self._measure(mode)
            samples[f"P3.{mode}"] = Sample(long_us, short_us)
        long_us, short_us, copy_us = await self._measure("replay")
        samples["P3.replay"] = Sample(long_us - short_us, copy_us)
        return samples

    async def _measure(self, mode: Mode) -> tuple[float, float, float]:
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
