"""The calls of the upstream that run for a connection: started, ended from outside, and waited for."""

import contextvars
import logging
from collections.abc import Callable
from math import inf
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from ws_responses.clock import Clock
from ws_responses.errors import WireError
from ws_responses.flag import Flag
from ws_responses.limits import Limits
from ws_responses.protocol.turns import Turn
from ws_responses.spawn import Cancel, Spawner, Work
from ws_responses.storing import StoreQueue
from ws_responses.watchdog import Watchdog
from ws_responses.writer import Writer

logger = logging.getLogger("ws_responses.connection")


class Run(Protocol):
    """A call of the upstream: of a turn, or of one step of a rollout.

    Attributes:
        turn: Whose call it is.
        cancel: Asks its task to end.
        on_abort: See ``Emit``.
        in_background: See ``Emit``.
    """

    turn: Turn
    cancel: Cancel
    on_abort: Callable[[], None] | None
    in_background: bool

    async def run(self) -> None:
        """Run to its end; tell by ``Runs.over`` that this is so."""
        ...

    def abort(self, error: WireError | None) -> None:
        """End its turn from outside; does nothing if it has ended.

        Args:
            error: What the client is told; None if nobody listens.
        """
        ...

    def mute(self) -> None:
        """Let it run on with nobody to listen."""
        ...


class Runs:
    """All runs of one connection, and what they leave to be stored.

    Args:
        clock: Of the time limits.
        limits: How long is waited for an end.
        writer: Writes what they send.
        watchdog: Looks when a time limit is due.
        over: Is set when the connection is over.

    Attributes:
        storing: Writes of nodes that no turn waits for; None if there was none.
    """

    __slots__ = (
        "_clock",
        "_idle",
        "_limits",
        "_over",
        "_runs",
        "_spawner",
        "_tasks",
        "_watchdog",
        "_writer",
        "storing",
    )

    def __init__(self, clock: Clock, limits: Limits, writer: Writer, watchdog: Watchdog, over: Flag) -> None:
        self._clock = clock
        self._limits = limits
        self._writer = writer
        self._watchdog = watchdog
        self._over = over
        # When a run is ended whose closing event is written; inf until then. (An empty dict takes a quarter of an empty set.)
        self._runs: dict[Run, float] = {}
        self._idle: anyio.Event | None = None
        self._tasks: TaskGroup
        self._spawner: Spawner
        self.storing: StoreQueue | None = None

    def __len__(self) -> int:
        """Return how many run."""
        return len(self._runs)

    def open(self, tasks: TaskGroup) -> None:
        """Let runs be started, each in its own copy of the present context: nothing leaks from turn to turn."""
        self._tasks = tasks
        self._spawner = Spawner(tasks, contextvars.copy_context())

    def spawn(self, work: Work) -> Cancel:
        """Start other work of the connection soon; see ``Spawner``."""
        return self._spawner.spawn(work)

    def start(self, run: Run) -> None:
        """Start a run soon."""
        self._runs[run] = inf
        run.cancel = self._spawner.spawn(run.run)

    def over(self, run: Run) -> None:
        """Note that the task of a run ends (for the run)."""
        run.abort(None)
        run.on_abort = None  # it points back at the run: the history would wait for the garbage collector
        self._runs.pop(run, None)
        self.look_whether_idle()

    # -- one run -----------------------------------------------------------------------------------------------------

    def abort(self, run: Run, error: WireError | None) -> None:
        """End a turn, and ask its upstream to end.

        Args:
            run: Of the turn.
            error: What the client is told; None if nobody listens.
        """
        run.abort(error)
        # An event of the turn may still wait to be written. An app that stops takes it along, and the closing event would
        # come after a gap. Without one there is nothing to wait for.
        self._tasks.start_soon(self._stop, run, None if error is None else self._writer.mark())

    def stop(self, run: Run) -> None:
        """Ask the upstream of a turn (or a step) that is over to end, at once."""
        if run in self._runs:
            self.abort(run, None)

    def trail(self, run: Run) -> None:
        """Note that the closing event of a run is written: its app is to come to an end."""
        if run not in self._runs:
            return  # it has come to an end while that was written
        until = self._clock.now() + self._limits.trailing_timeout_s
        self._runs[run] = until
        self._watchdog.look_by(until)

    @property
    def next_end(self) -> float:
        """When the next of those is ended whose closing event is written; ``inf`` if there is none."""
        return min(self._runs.values(), default=inf)

    def end_trailing(self, now: float) -> None:
        """End those whose time is over."""
        for run, until in list(self._runs.items()):
            if now >= until:
                self._runs[run] = inf
                if run.in_background:
                    continue
                logger.debug("turn %s: the app keeps its body open after the terminal event", run.turn.id)
                self.abort(run, None)

    async def _stop(self, run: Run, mark: anyio.Event | None) -> None:
        if mark is not None:
            await self._writer.reach(mark)
        await self._writer.let_go()
        _tell_gone(run)
        await self._clock.wait(self._limits.disconnect_grace_s, self._over.event)
        if run in self._runs and not run.in_background:
            run.cancel()

    # -- all of them -------------------------------------------------------------------------------------------------

    async def run_out(self, seconds: float) -> None:
        """Let all run on with nobody to listen, but not for longer than ``seconds``."""
        for run in self._runs:
            run.mute()
        await self._wait(seconds)

    async def end(self) -> None:
        """End all: disconnect, grace, cancellation, bounded waits."""
        limits = self._limits
        for run in list(self._runs):
            _tell_gone(run)
        if any(not run.in_background for run in self._runs):
            await self._wait(limits.disconnect_grace_s, background=False)
        for run in self._runs:
            if not run.in_background:
                run.cancel()
        await self._wait(limits.abort_timeout_s, background=False)
        await self._wait(limits.background_timeout_s)
        if self.storing is not None:
            self.storing.give_up()
        self.cancel()
        await self._wait(limits.abort_timeout_s)

    def cancel(self) -> None:
        """Cancel all."""
        for run in self._runs:
            run.cancel()

    def look_whether_idle(self) -> None:
        """Let who waits for an end look whether it has come."""
        if self._idle is not None:
            self._idle.set()

    async def _wait(self, seconds: float, *, background: bool = True) -> None:
        """Wait until no call runs (or only background work does), but not for longer than ``seconds``."""
        with self._clock.move_on_after(seconds):
            while (background and self._is_storing()) or any(background or not run.in_background for run in self._runs):
                self._idle = anyio.Event()
                await self._idle.wait()
        self._idle = None

    def _is_storing(self) -> bool:
        return self.storing is not None and self.storing.busy


def _tell_gone(run: Run) -> None:
    run.abort(None)
    if run.on_abort is not None and not run.in_background:
        run.on_abort()
