"""Reading a fast stream in fewer, larger pieces.

To wake up for a packet costs more than all that is done with the token in it. So a stream that is faster than anybody can read is
not listened to for a moment after each piece: what comes meanwhile waits in the kernel, and comes at once then.

For asyncio only, because aiohttp is.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic
from typing import Final, Self

from ws_responses.extras import Extra

with Extra("cerebras"):
    import aiohttp
    import httpx

_FAST_S: Final = 0.003
"""Pieces that follow each other faster than this are worth being gathered: of slower ones there are few to wake up for."""

_SHARE: Final = 0.04
"""Of the time that an answer has taken so far: no gathering makes it longer by more. Who waits for a short call, waits for its end."""

_ENOUGH_BYTES: Final = 16 * 1024
"""A piece of which more is there already, as the transport cuts (``httpx_aiohttp``): what is read must not wait twice."""


class Gathered:
    """The pieces of a body, so that a fast one comes in fewer.

    Nothing is held up but what follows a piece that was there at once, or nearly: never the first one, nor those of a slower
    stream, nor what has queued up because its reader is slow. The longer an answer takes, the longer a piece may wait.

    Args:
        response: The answer.
        pieces: Its body.
        gather_s: Longest time that a piece waits.
        share: And what part of the time that the answer has taken so far.
        now: Clock reading.
        sleep: Lets so many seconds pass.
    """

    __slots__ = ("_answer", "_begun", "_came", "_gather_s", "_holds", "_now", "_pieces", "_share", "_sleep")

    def __init__(
        self,
        response: httpx.Response,
        pieces: AsyncIterator[bytes],
        gather_s: float,
        *,
        share: float = _SHARE,
        now: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._answer = answer_below(response)
        self._pieces = pieces
        self._gather_s = gather_s
        self._share = share
        self._now = now
        self._sleep = sleep
        self._begun: float | None = None
        self._came = 0.0
        self._holds = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        if self._holds:
            await self._hold()
        asked = self._now()
        piece = await anext(self._pieces)
        self._came = self._now()
        if self._begun is None:
            self._begun = self._came
        self._holds = self._came - asked < _FAST_S and len(piece) < _ENOUGH_BYTES
        return piece

    async def _hold(self) -> None:
        """Let more come, for the rest of the time since the last piece."""
        now = self._now()
        begun = now if self._begun is None else self._begun
        left = self._came + min(self._gather_s, (now - begun) * self._share) - now
        if left <= 0:
            return
        if self._answer is None:
            await self._sleep(left)
            return
        connection = self._answer.connection
        protocol = None if connection is None else connection.protocol
        if protocol is None or not protocol.connected:
            return  # the end is here already
        protocol.pause_reading()
        try:
            await self._sleep(left)
        finally:
            if protocol.connected:
                protocol.resume_reading()


def answer_below(response: httpx.Response) -> aiohttp.ClientResponse | None:
    """Return aiohttp's answer; None if it is another client's.

    httpx has no public way to it. Without it less is saved: the packets are taken one by one, and wait in this process.
    """
    stream = getattr(response.stream, "_stream", None)
    answer = getattr(stream, "_aiohttp_response", None)
    return answer if isinstance(answer, aiohttp.ClientResponse) else None
