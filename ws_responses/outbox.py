"""Frames of our own (errors, closes) on their way to a client that may not be reading: written by tasks of their own."""

from anyio.abc import TaskGroup

from ws_responses.clock import Clock
from ws_responses.flag import Flag
from ws_responses.limits import Limits
from ws_responses.protocol.actions import Close
from ws_responses.protocol.closing import legal_close
from ws_responses.watchdog import Watchdog
from ws_responses.writer import Writer


class Outbox:
    """Our own frames of one connection, in order; made when there is a first one.

    Args:
        writer: Writes them.
        tasks: Where the tasks that write run.
        clock: Of the time limits.
        limits: How much may wait, and for how long.
        watchdog: Looks whether writes block.
        over: Is set when the connection is over.

    Attributes:
        size: Bytes that wait.
        close_sent: Code of the close frame, once it is on its way.
        close_written: It is written.
    """

    __slots__ = (
        "_clock",
        "_flushing",
        "_frames",
        "_limits",
        "_over",
        "_tasks",
        "_watchdog",
        "_writer",
        "close_sent",
        "close_written",
        "size",
    )

    def __init__(
        self, writer: Writer, tasks: TaskGroup, clock: Clock, limits: Limits, watchdog: Watchdog, over: Flag
    ) -> None:
        self._writer = writer
        self._tasks = tasks
        self._clock = clock
        self._limits = limits
        self._watchdog = watchdog
        self._over = over
        self._frames: list[bytes | Close] = []
        self._flushing = False
        self.size = 0
        self.close_sent: int | None = None
        self.close_written = Flag()

    def has_room(self, frame: bytes) -> bool:
        """Whether a frame may be put: only so many may wait for the client to read them."""
        return self.size + len(frame) <= self._limits.max_outgoing_bytes

    def put(self, frame: bytes | Close) -> None:
        """Queue a frame, to be written by a task of its own; nothing follows a close."""
        if isinstance(frame, bytes):
            self.size += len(frame)
        self._frames.append(frame)
        if not self._flushing:
            self._flushing = True
            self._tasks.start_soon(self._flush)
        self._look_at_writes()

    def put_first(self, frame: bytes) -> None:
        """Write a frame before all that is written from now on: the next turn of the lane starts at once."""
        self._tasks.start_soon(self._writer.write_at, self._writer.place(), frame)
        self._look_at_writes()

    def close(self, close: Close) -> None:
        """Queue a close, and see to it that the connection ends."""
        blocked_since, patience = self._writer.blocked_since, self._limits.send_timeout_s
        if blocked_since is not None and patience is not None and self._clock.now() >= blocked_since + patience:
            self._writer.cut_off()
        self.put(close)
        self._tasks.start_soon(self._give_up_on_close)

    def _look_at_writes(self) -> None:
        if self._limits.send_timeout_s is not None:
            self._watchdog.look_by(self._clock.now() + self._limits.send_timeout_s)

    async def _flush(self) -> None:
        while self._frames:
            frame = self._frames.pop(0)
            if isinstance(frame, Close):
                await self._close(frame)
                break
            self.size -= len(frame)
            await self._writer.write(frame)
        self._flushing = False

    async def _close(self, close: Close) -> None:
        code, reason = legal_close(close.code, close.reason)
        self.close_sent = code
        await self._writer.close(code, reason)
        self.close_written.set()

    async def _give_up_on_close(self) -> None:
        """End the ASGI call if the close cannot be written, or the peer does not answer it; the server does the rest."""
        patience = self._limits.close_timeout_s
        await self._clock.wait(patience, self.close_written.event)
        self._writer.cut_off()
        await self._clock.wait(patience, self._over.event)
        self._tasks.cancel_scope.cancel()
