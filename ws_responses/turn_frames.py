"""What is written of a turn: the frames of its response, in the order of their numbers, and what is told of steers among them."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from anyio.lowlevel import checkpoint

from ws_responses.protocol.actions import Actions, TellSteer
from ws_responses.protocol.turns import Turn
from ws_responses.upstreams.repair import TurnStream

if TYPE_CHECKING:
    from ws_responses.connection import Connection

_YIELD_EVERY = 64
"""Events that are not written after which an app that never waits lets others run: no write does that for them."""


def _not_plain(_: bytes) -> None:
    """Stand in for the stream's ``plain`` when the turn is over."""


async def _discard(_: bytes) -> None:
    """Stand in for the writer when the turn is over."""


class TurnFrames:
    """Writes the frames of one turn.

    Args:
        connection: Whose turn it is.
        turn: Its protocol state.
        stream: Its events.
        repaired: Takes the events that lack something, or are more than a delta.

    Attributes:
        write: Begins to write a frame; await the result at once, in the same task.
        numbered: There are frames that are numbered and not written.
    """

    __slots__ = ("_connection", "_plain", "_repaired", "_skipped", "_stream", "_turn", "_untold", "numbered", "write")

    def __init__(
        self, connection: "Connection", turn: Turn, stream: TurnStream, repaired: Callable[[bytes], Awaitable[None]]
    ) -> None:
        self._connection = connection
        self._turn = turn
        self._stream = stream
        self._plain: Callable[[bytes], bytes | None] = stream.plain
        self._repaired = repaired
        self._skipped = 0
        self._untold: list[TellSteer] = []
        self.write: Callable[[bytes], Awaitable[None]] = connection.writer.write
        self.numbered = False

    def relay(self, payload: bytes) -> Awaitable[None]:
        """Take an event that is not a delta like the one before it."""
        frame = self._plain(payload)
        return self._repaired(payload) if frame is None else self.write(frame)

    def seal(self) -> None:
        """Let nothing more be written of the response."""
        self._stream.seal()
        self._plain = _not_plain
        self.write = _discard

    def let_go(self) -> None:
        """Lead nowhere any more: the history would wait for the garbage collector."""
        self._repaired = _discard

    # -- with nobody to listen ---------------------------------------------------------------------------------------

    def mute(self) -> None:
        """Write nothing more, but take all events."""
        self._stream.seal()
        self.write = self.skip

    async def skip(self, _: bytes) -> None:
        """Take an event that is not written; let others run now and then, since no write does."""
        self._skipped += 1
        if not self._skipped % _YIELD_EVERY:
            await checkpoint()

    # -- frames of ours ----------------------------------------------------------------------------------------------

    async def keep_alive(self) -> None:
        """Send a sign of life, unless frames that are numbered already wait to be written: they are one."""
        if self.numbered:
            return
        frame = self._stream.keep_alive()
        if frame is not None:
            await self.write(frame)

    def tell(self, action: TellSteer) -> None:
        """Write an event about a steer among those of the response.

        Numbers go up in the order of the frames: it waits while there are frames that are numbered and not written.
        """
        if self.numbered or self._untold:
            self._untold.append(action)
        else:
            self._connection.outbox.put_first(self._stream.steer_event(action.kind, action.members))

    def tell_rest(self) -> None:
        """Write what has waited: all numbered frames are written."""
        self.numbered = False
        untold, self._untold = self._untold, []
        for action in untold:
            self._connection.outbox.put_first(self._stream.steer_event(action.kind, action.members))

    async def close(self, write: Callable[[bytes], Awaitable[None]], frame: bytes | None, actions: Actions) -> None:
        """Write the closing event, and carry out what else is to be done.

        Args:
            write: As it was before the frames were sealed.
            frame: The event; None if the client is told nothing.
            actions: What the session wants now that the turn has ended.
        """
        if frame is None or self._untold or any(type(action) is TellSteer for action in actions):
            self.post_last(frame, actions)
        else:
            # The write is begun before anything else may write on this lane, and awaited after the next turn was started.
            written = write(frame)
            self._connection.perform(actions)
            await written

    def post_last(self, frame: bytes | None, actions: Actions) -> None:
        """Queue the closing event, and right behind it what is to be told of steers; carry out what else is to be done."""
        if frame is not None:
            self._connection.outbox.put_first(frame)
        own = [action for action in actions if type(action) is TellSteer and action.turn is self._turn]
        self._untold += own
        self.tell_rest()
        self._connection.perform([action for action in actions if action not in own] if own else actions)
