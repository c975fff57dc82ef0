"""Writing to one socket: one frame at a time, first come first served, with no task switch while nobody blocks.

A frame is written by running the server's ``send`` up to its first suspension. It rarely suspends; then the write has
happened when ``write`` returns, and what is awaited is an object that is done. Only a write that blocks (the client
reads slowly) holds the socket, and others wait behind it in order.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from ws_responses._types import Message, Send

_YIELD_EVERY = 64
"""Frames after which a task that never blocks lets others run (about half a millisecond)."""


class _Done:
    """An awaitable that is done."""

    __slots__ = ()

    def __await__(self) -> Generator[Any, Any, None]:
        return _DONE_ITERATOR  # type: ignore[return-value] # an exhausted iterator ends an await at once


_DONE_ITERATOR = iter(())
DONE = _Done()
_ENDED: Any = object()
"""What ``next`` gives for a ``send`` that did not suspend."""


class _Blocked:
    """The rest of a write that was begun and suspended."""

    __slots__ = ("_pending", "_steps", "_writer")

    def __init__(self, writer: "Writer", steps: Generator[Any, Any, Any], pending: Any) -> None:
        self._writer = writer
        self._steps = steps
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, None]:
        pending, steps = self._pending, self._steps
        try:
            while True:
                try:
                    value = yield pending
                except BaseException as error:  # noqa: BLE001 - cancellation and all else belongs to the server's send
                    pending = steps.throw(error)
                else:
                    pending = steps.send(value)
        except StopIteration:
            return
        except OSError:
            self._writer.closed = True
        finally:
            self._writer.release()


class Writer:
    """Serialises the frames of a connection.

    Args:
        send: The server's ``send``.
        now: Clock reading, for the time that a blocked write has lasted.

    Attributes:
        blocked_since: When the write that blocks was begun; None if none does.
        closed: Nothing is written any more.
    """

    __slots__ = ("_busy", "_credit", "_now", "_send", "_waiters", "blocked_since", "closed")

    def __init__(self, send: Send, now: Callable[[], float]) -> None:
        self._send = send
        self._now = now
        self._busy = False
        self._waiters: deque[anyio.Event] = deque()
        self._credit = _YIELD_EVERY
        self.blocked_since: float | None = None
        self.closed = False

    def write(self, frame: bytes) -> Awaitable[None]:
        """Begin to write a text frame; await the result at once, in the same task.

        Raises:
            UnicodeDecodeError: The frame is not UTF-8.
        """
        self._credit -= 1
        if self._busy or self._credit < 0 or self.closed:
            return self._write_in_turn(frame)
        # As _begin does, without the calls: this is the hot path. A coroutine that ends at its first step costs no exception
        # in next() with a default.
        steps = self._send({"type": "websocket.send", "text": frame.decode()}).__await__()
        try:
            pending = next(steps, _ENDED)
        except OSError:
            self.closed = True
            return DONE
        return DONE if pending is _ENDED else self._suspend(steps, pending)

    async def close(self, code: int, reason: str) -> None:
        """Write the close frame, after all that waits; nothing follows it."""
        await self._write_owned({"type": "websocket.close", "code": code, "reason": reason})

    def release(self) -> None:
        """Give the socket to the writer that waits longest; it stays busy if there is one, so that nobody jumps ahead."""
        self.blocked_since = None
        self._credit = _YIELD_EVERY
        if self._waiters:
            self._waiters.popleft().set()
        else:
            self._busy = False

    async def _write_in_turn(self, frame: bytes) -> None:
        text = frame.decode()
        if self._credit < 0:
            self._credit = _YIELD_EVERY
            await checkpoint()
        await self._write_owned({"type": "websocket.send", "text": text})

    async def _write_owned(self, message: Message) -> None:
        await self._acquire()
        rest = self._begin(message)
        if rest is None:
            self.release()
        else:
            await rest

    async def _acquire(self) -> None:
        if not self._busy:
            self._busy = True
            return
        turn = anyio.Event()
        self._waiters.append(turn)
        try:
            await turn.wait()
        except BaseException:
            if turn.is_set():
                self.release()  # it was given to us; hand it on
            else:
                self._waiters.remove(turn)
            raise

    def _begin(self, message: Message) -> Awaitable[None] | None:
        """Run ``send`` up to its first suspension; return the rest, None if there is none."""
        if self.closed:
            return None
        if message["type"] == "websocket.close":
            self.closed = True
        steps = self._send(message).__await__()
        try:
            pending = next(steps, _ENDED)
        except OSError:
            # The client has gone (uvicorn says so by an OSError); the reader will see the disconnect.
            self.closed = True
            return None
        return None if pending is _ENDED else self._suspend(steps, pending)

    def _suspend(self, steps: Generator[Any, Any, Any], pending: Any) -> Awaitable[None]:
        self._busy = True
        self.blocked_since = self._now()
        return _Blocked(self, steps, pending)
