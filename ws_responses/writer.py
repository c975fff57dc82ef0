"""Writing to one socket: one frame at a time, first come first served, with no task switch while nobody blocks.

A frame is written by running the server's ``send`` up to its first suspension. It rarely suspends; then the write has
happened when ``write`` returns, and what is awaited is an object that is done. Only a write that blocks (the client
reads slowly) holds the socket, and others wait behind it in order.
"""

import logging
from collections.abc import Awaitable, Callable, Generator
from typing import Any

import anyio
from anyio.lowlevel import checkpoint

from ws_responses._types import Message, Send
from ws_responses.instrumentation.raised import log_raised

logger = logging.getLogger("ws_responses.connection")

_YIELD_EVERY = 128
"""Frames after which a task that never blocks lets others run: about a millisecond on a busy machine. Each time costs some ten frames'
worth of event loop, and a flush of what the server has gathered."""

_STEPS = 3
"""Rounds of the loop from the end of a blocked write to the next step of who waited for it, and one more."""

_ROUNDS = 1000
"""Rounds that writes get to end that were given up: a server's ``send`` may do some work when it is cancelled, or ignore it."""


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

    __slots__ = ("_pending", "_scope", "_steps", "_writer")

    def __init__(
        self, writer: "Writer", scope: anyio.CancelScope, steps: Generator[Any, Any, Any], pending: Any
    ) -> None:
        self._writer = writer
        self._scope = scope
        self._steps = steps
        self._pending = pending

    def __await__(self) -> Generator[Any, Any, None]:
        writer = self._writer
        try:
            with self._scope:
                yield from self._rest()
        except Exception as error:  # noqa: BLE001 - see Writer.lost
            writer.lost(error)
        finally:
            writer.release()

    def _rest(self) -> Generator[Any, Any, None]:
        pending, steps = self._pending, self._steps
        try:
            while True:
                try:
                    value = yield pending
                except BaseException as error:  # cancellation and all else belongs to the server's send
                    if not hasattr(steps, "throw"):
                        raise  # as `yield from` has it (PEP 380): the awaitables of granian cannot take it
                    pending = steps.throw(error)
                else:
                    pending = next(steps) if value is None else steps.send(value)
        except StopIteration:
            return


class Writer:
    """Serialises the frames of a connection.

    Args:
        send: The server's ``send``.
        now: Clock reading, for the time that a blocked write has lasted.

    Attributes:
        blocked_since: When the write that blocks was begun; None if none does.
        closed: Nothing is written any more, a close frame aside.
    """

    __slots__ = ("_busy", "_credit", "_finished", "_now", "_send", "_wait", "_waiters", "blocked_since", "closed")

    def __init__(self, send: Send, now: Callable[[], float]) -> None:
        self._send = send
        self._now = now
        self._busy = False
        self._waiters: list[anyio.Event] = []
        self._credit = _YIELD_EVERY
        self._wait: anyio.CancelScope | None = None
        self._finished = False
        self.blocked_since: float | None = None
        self.closed = False

    def write(self, frame: bytes) -> Awaitable[None]:
        """Begin to write a text frame; await the result at once, in the same task.

        Raises:
            UnicodeDecodeError: The frame is not UTF-8.
        """
        return self.write_text(frame.decode())

    def write_text(self, text: str) -> Awaitable[None]:
        """Begin to write a text frame; await the result at once, in the same task."""
        self._credit -= 1
        if self._busy or self._credit < 0 or self.closed:
            return self._write_in_turn(text)
        # As _begin does, without the calls: this is the hot path. A coroutine that ends at its first step costs no exception
        # in next() with a default.
        message: Message = {"type": "websocket.send", "text": text}
        try:
            steps = self._send(message).__await__()
            pending = next(steps, _ENDED)
        except Exception as error:  # noqa: BLE001 - see lost
            self.lost(error)
            return DONE
        return DONE if pending is _ENDED else self._suspend(steps, pending)

    def place(self) -> anyio.Event | None:
        """Take the next place in the queue at once, for a frame that another task is to write by :meth:`write_at`."""
        if not self._busy:
            self._busy = True
            return None
        place = anyio.Event()
        self._waiters.append(place)
        return place

    async def write_at(self, place: anyio.Event | None, frame: bytes) -> None:
        """Write a text frame at a place that was taken for it."""
        await self._write_owned({"type": "websocket.send", "text": frame.decode()}, place)

    def mark(self) -> anyio.Event | None:
        """Mark the end of the queue, for :meth:`reach`; None if nothing is being written or waits."""
        return self.place() if self._busy else None

    async def reach(self, mark: anyio.Event) -> None:
        """Return when all that came before the mark is written."""
        await self._arrive(mark)
        self.release()

    async def close(self, code: int, reason: str) -> None:
        """Write the close frame, after all that waits; nothing follows it."""
        await self._write_owned({"type": "websocket.close", "code": code, "reason": reason}, self.place())

    def cut_off(self) -> None:
        """Give up on a client that does not read: what blocks ends, what waits is dropped, only a close is still written."""
        self.closed = True
        if self._wait is not None:
            self._wait.cancel()

    def finish(self) -> None:
        """Write nothing any more, not even a close: the client has gone."""
        self._finished = True
        self.cut_off()

    async def let_go(self) -> None:
        """Return when those whose writes have just been given up have gone on to where they wait next.

        An app that is cancelled in its ``send`` leaves its generator to the garbage collector, which closes it in a task
        and a context of its own; an app that is cancelled in its generator does not.
        """
        for _ in range(_ROUNDS):
            if not (self.closed and self._busy):
                break
            await checkpoint()
        for _ in range(_STEPS):
            await checkpoint()

    def lost(self, error: Exception) -> None:
        """Take what the server's ``send`` raised: an ``OSError`` if the client has gone (uvicorn); the reader will see it.

        Anything else is no fault of the app whose event it was, and the socket is of no use either way. It need not be a
        fault at all: daphne raises a ``RuntimeError`` of autobahn's while a client leaves.
        """
        self.closed = True
        if not isinstance(error, OSError):
            logger.warning("the server's send raised %s", type(error).__name__)
            log_raised(logger, logging.DEBUG, "the server's send raised", error=error, private=True)

    def release(self) -> None:
        """Give the socket to the writer that waits longest; it stays busy if there is one, so that nobody jumps ahead."""
        self.blocked_since = None
        self._wait = None
        if self._waiters:
            self._waiters.pop(0).set()
        else:
            self._busy = False

    async def _write_in_turn(self, text: str) -> None:
        tired = self._credit < 0
        if not self.closed:
            # Nothing may come between here and the place in the queue: what a lane writes next must come after this.
            await self._write_owned({"type": "websocket.send", "text": text}, self.place())
        if tired:
            self._credit = _YIELD_EVERY
            await checkpoint()

    async def _write_owned(self, message: Message, place: anyio.Event | None) -> None:
        if place is not None:
            await self._arrive(place)
        rest = self._begin(message)
        if rest is None:
            self.release()
        else:
            await rest

    async def _arrive(self, place: anyio.Event) -> None:
        try:
            await place.wait()
        except BaseException:
            if place.is_set():
                self.release()  # it was given to us; hand it on
            else:
                self._waiters.remove(place)
            raise

    def _begin(self, message: Message) -> Awaitable[None] | None:
        """Run ``send`` up to its first suspension; return the rest, None if there is none."""
        closing = message["type"] == "websocket.close"
        if self._finished or (self.closed and not closing):
            return None
        if closing:
            self._finished = self.closed = True
        try:
            steps = self._send(message).__await__()
            pending = next(steps, _ENDED)
        except Exception as error:  # noqa: BLE001 - see lost
            if closing and message["code"] < 3000 and not isinstance(error, OSError):
                # daphne (autobahn) writes no code but 1000 and those from 3000 on: 1012 becomes 4012 there.
                self._finished = False
                return self._begin({**message, "code": message["code"] + 3000})
            self.lost(error)
            return None
        return None if pending is _ENDED else self._suspend(steps, pending)

    def _suspend(self, steps: Generator[Any, Any, Any], pending: Any) -> Awaitable[None]:
        self._busy = True
        self._credit = _YIELD_EVERY  # others run meanwhile
        self._wait = anyio.CancelScope()
        self.blocked_since = self._now()
        return _Blocked(self, self._wait, steps, pending)
