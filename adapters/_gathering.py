"""Reading a fast stream in fewer, larger pieces.

To wake up for a packet costs more than all that is done with the token in it. So a stream that is faster than anybody can read is
not listened to for a moment after each piece: what comes meanwhile waits in the kernel, and comes at once then.

For asyncio only, because aiohttp is.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from time import monotonic
from typing import Final, Self

from ws_responses.backends import Delta, ToolCallDelta
from ws_responses.errors import WireError
from ws_responses.extras import Extra

with Extra("cerebras"):
    import aiohttp
    import httpx

_ENOUGH_BYTES: Final = 8 * 1024
"""A piece that is worth a wake-up of its own: whoever has got so much has more to read, and need not wait for it."""


class Gathered:
    """The pieces of a body, so that a fast one comes in fewer.

    Nothing is held up but what follows a piece that was there at once, or nearly: never the first one, nor those of a slower
    stream, nor what has queued up because its reader is slow.

    Args:
        response: The answer.
        pieces: Its body.
        gather_s: Longest time that a piece waits.
        now: Clock reading.
        sleep: Lets so many seconds pass.
    """

    __slots__ = ("_answer", "_came", "_gather_s", "_holds", "_now", "_pieces", "_sleep")

    def __init__(
        self,
        response: httpx.Response,
        pieces: AsyncIterator[bytes],
        gather_s: float,
        *,
        now: Callable[[], float] = monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._answer = answer_below(response)
        self._pieces = pieces
        self._gather_s = gather_s
        self._now = now
        self._sleep = sleep
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
        self._holds = self._came - asked < self._gather_s and len(piece) < _ENOUGH_BYTES
        return piece

    async def _hold(self) -> None:
        """Let more come, for the rest of the time since the last piece."""
        left = self._came + self._gather_s - self._now()
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


# --- what came together -----------------------------------------------------------------------------------------------


def joined(deltas: Iterable[Delta]) -> Iterator[Delta]:
    """Yield deltas that came together, neighbours of one kind as one.

    Raises:
        WireError: As ``deltas`` does; all before it has been yielded.
    """
    run: list[Delta] = []
    kind: str | int | None = None
    try:
        for delta in deltas:
            now = _kind(delta)
            if run and now != kind:
                yield _together(run, kind)
                run = []
            kind = now
            if now is None:
                yield delta
            else:
                run.append(delta)
    except WireError:
        if run:
            yield _together(run, kind)
        raise
    if run:
        yield _together(run, kind)


def _kind(delta: Delta) -> str | int | None:
    """Return what a delta is a piece of, the number of a call for its arguments; None if it is more than a piece."""
    if delta.finish or delta.usage or delta.service_tier or delta.ids_lost or delta.refusal:
        return None
    if delta.tool_calls:
        call = delta.tool_calls[0]
        alone = len(delta.tool_calls) == 1 and not (delta.text or delta.reasoning or delta.token_ids)
        return call.index if alone and not call.id and not call.name else None
    if delta.reasoning:
        return None if delta.text or delta.token_ids else "reasoning"
    # Where there are ids they are what is read.
    return "ids" if delta.token_ids else "text"


def _together(run: list[Delta], kind: str | int | None) -> Delta:
    if len(run) == 1:
        return run[0]
    if kind == "reasoning":
        return Delta(reasoning="".join([delta.reasoning for delta in run]))
    text = "".join([delta.text for delta in run])
    if kind == "text":
        return Delta(text=text)
    if kind == "ids":
        return Delta(text=text, token_ids=[one for delta in run for one in delta.token_ids])
    assert isinstance(kind, int)
    arguments = "".join([delta.tool_calls[0].arguments for delta in run])
    return Delta(tool_calls=(ToolCallDelta(index=kind, arguments=arguments),))
