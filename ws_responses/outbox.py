"""Frames of our own (errors, closes) on their way to a client that may not be reading: written by a task of their own."""

from anyio.abc import TaskGroup

from ws_responses.flag import Flag
from ws_responses.protocol.actions import Close
from ws_responses.protocol.closing import legal_close
from ws_responses.writer import Writer


class Outbox:
    """Our own frames of one connection, in order; made when there is a first one.

    Args:
        writer: Writes them.
        tasks: Where the task that writes runs.

    Attributes:
        size: Bytes that wait.
        close_sent: Code of the close frame, once it is on its way.
        close_written: It is written.
    """

    __slots__ = ("_flushing", "_frames", "_tasks", "_writer", "close_sent", "close_written", "size")

    def __init__(self, writer: Writer, tasks: TaskGroup) -> None:
        self._writer = writer
        self._tasks = tasks
        self._frames: list[bytes | Close] = []
        self._flushing = False
        self.size = 0
        self.close_sent: int | None = None
        self.close_written = Flag()

    def put(self, frame: bytes | Close) -> None:
        """Queue a frame; nothing follows a close."""
        if isinstance(frame, bytes):
            self.size += len(frame)
        self._frames.append(frame)
        if not self._flushing:
            self._flushing = True
            self._tasks.start_soon(self._flush)

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
