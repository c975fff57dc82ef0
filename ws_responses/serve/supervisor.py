"""Starts the worker processes, and hands signals on to them.

uvicorn has a supervisor of its own, which does not fit: it runs its own server class, so that nothing is drained; it takes no
signal while it waits for a worker to end, so that neither SIGTERM during a rolling restart nor a second Ctrl-C is heard; and
it hands the app over by pickling it.
"""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Final

from ws_responses.serve.channel import receive_beat, receive_started, send_options
from ws_responses.serve.crew import Crew, Kill, Order, Orders, Over, Phase, Start, Stop, Wait
from ws_responses.serve.options import ServeOptions
from ws_responses.serve.pulse import Pulse

logger = logging.getLogger("ws_responses.serve")

_START_S: Final = 300.0
"""What a worker may take to come up: models are loaded from slow disks, but one that hangs must not hold up a restart."""
_MARGIN_S: Final = 15.0
"""What a worker gets beyond the grace of its turns, to close what it holds."""
_DUMP_S: Final = 1.0
"""What a worker that hangs gets to write its stacks before it is killed."""


class _Worker:
    """A process.

    Attributes:
        process: The process.
        timer: Kills it when it takes too long; None if it may take its time.
        pulse: Looks whether it does anything; None before it serves, and where nobody looks.
    """

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.timer: asyncio.TimerHandle | None = None
        self.pulse: Pulse | None = None

    def limit(self, seconds: float | None) -> None:
        """Kill it after so many seconds from now."""
        if self.timer is not None:
            self.timer.cancel()
        loop = asyncio.get_running_loop()
        self.timer = None if seconds is None else loop.call_later(seconds, self.kill)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives."""
        if self.process.returncode is None:
            self.process.send_signal(number)

    def pulse_stops(self) -> None:
        """Look no more whether it does anything: it has its time to end."""
        if self.pulse is not None:
            self.pulse.stop()

    def kill(self) -> None:
        """End it."""
        self.send(signal.SIGKILL)


class Supervisor:
    """Carries out what a crew decides.

    Args:
        options: What each worker is to do.
        listener: Where they listen, all of them on this one socket: a connection that waits in it belongs to nobody yet, and
            is taken by whoever is there.
        tell: Is given the report of the first worker, once all serve.
    """

    def __init__(self, options: ServeOptions, listener: socket.socket, tell: Callable[[str], None]) -> None:
        self._options = options
        self._listener = listener
        self._tell: Callable[[str], None] | None = tell
        self._report = ""
        self._crew = Crew(options.workers)
        self._workers: dict[int, _Worker] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_terminal = os.isatty(0)
        self._over: asyncio.Future[int]

    async def run(self) -> int:
        """Serve until a signal comes; return the exit code."""
        loop = asyncio.get_running_loop()
        self._over = loop.create_future()
        handlers = {signal.SIGTERM: self._stop, signal.SIGINT: self._interrupt, signal.SIGHUP: self._restart}
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            self._carry_out(self._crew.begin())
            return await self._over
        finally:
            self._carry_out(self._crew.force())
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for number in handlers:
                loop.remove_signal_handler(number)

    # -- signals -----------------------------------------------------------------------------------------------------

    def _stop(self) -> None:
        logger.info("stopping: turns that run have %g s", self._options.listen.grace_s)
        # The workers close theirs: with the last one nobody listens, and clients go elsewhere.
        self._listener.close()
        self._carry_out(self._crew.stop())

    def _interrupt(self) -> None:
        if self._crew.stopping:
            self._carry_out(self._crew.force())
        else:
            self._stop()

    def _restart(self) -> None:
        if self._has_terminal and not os.isatty(0):
            self._stop()  # nobody asks for anything: the terminal has been closed
            return
        logger.info("restarting the workers, one after the other")
        self._carry_out(self._crew.restart())

    # -- orders ------------------------------------------------------------------------------------------------------

    def _carry_out(self, orders: Orders) -> None:
        for order in orders:
            self._do(order)
        if self._tell is not None and self._crew.serving and self._crew.settled:
            tell, self._tell = self._tell, None
            tell(self._report)

    def _do(self, order: Order) -> None:
        match order:
            case Start(number):
                task = asyncio.create_task(self._attend(number))
                self._tasks.add(task)
                task.add_done_callback(self._attended)
            case Stop(number):
                self._workers[number].pulse_stops()
                self._workers[number].send(signal.SIGTERM)
                self._workers[number].limit(self._options.listen.grace_s + _MARGIN_S)
            case Kill(number):
                if number in self._workers:
                    self._workers[number].kill()
            case Wait(seconds):
                logger.error("a worker did not come up; the next try is in %g s", seconds)
                asyncio.get_running_loop().call_later(seconds, lambda: self._carry_out(self._crew.waited()))
            case Over(code):
                if not self._over.done():
                    self._over.set_result(code)

    def _attended(self, task: asyncio.Task[None]) -> None:
        """End with a fault of ours: nobody would hear of the end of that worker."""
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._over.done():
            self._over.set_exception(error)

    async def _attend(self, number: int) -> None:
        """Start a worker, and tell the crew what becomes of it."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                try:
                    process = await self._spawn(theirs)
                except OSError as error:
                    logger.error("worker %d cannot be started: %s", number, error.strerror)  # noqa: TRY400 - no fault of ours
                    self._carry_out(self._crew.ended(number, 1))
                    return
            worker = self._workers[number] = _Worker(process)
            if self._crew.phases[number] is Phase.ENDING:
                worker.kill()  # told to end before it was there
            worker.limit(_START_S)
            try:
                send_options(ours, self._options)
                ours.settimeout(0)
                report = await receive_started(ours)
            except OSError:
                report = ""  # it is gone already
            if report:
                self._report = self._report or report
                worker.limit(None)
                logger.info("worker %d serves (process %d)", number, process.pid)
                self._carry_out(self._crew.started(number))
            code = await self._watch(ours, number, worker) if report else await process.wait()
        worker.limit(None)
        del self._workers[number]
        if self._crew.phases[number] is not Phase.ENDING:
            logger.error("worker %d (process %d) has ended: %s", number, process.pid, _meaning(code))
        self._carry_out(self._crew.ended(number, code))

    async def _watch(self, channel: socket.socket, number: int, worker: _Worker) -> int:
        """Look whether a worker that serves does anything, until it is no more; return its exit code."""
        patience_s = self._options.worker_timeout_s
        if patience_s is None or self._crew.phases[number] is not Phase.SERVING:
            return await worker.process.wait()
        later = asyncio.get_running_loop().call_later
        worker.pulse = Pulse(patience_s, later, lambda: self._replace(number, worker, patience_s))
        listening = asyncio.create_task(_hear(channel, worker.pulse))
        try:
            return await worker.process.wait()
        finally:
            worker.pulse.stop()
            listening.cancel()
            await asyncio.wait([listening])

    def _replace(self, number: int, worker: _Worker, patience_s: float) -> None:
        """End a worker that lives and does nothing: when it has gone, another one takes its place."""
        logger.error(
            "worker %d (process %d) has done nothing for %g s: it writes down where it hangs, and is replaced",
            number,
            worker.process.pid,
            patience_s,
        )
        worker.send(signal.SIGUSR1)
        worker.limit(_DUMP_S)

    async def _spawn(self, channel: socket.socket) -> asyncio.subprocess.Process:
        descriptors = (self._listener.fileno(), channel.fileno())
        return await asyncio.create_subprocess_exec(
            *_command(map(str, descriptors)),
            stdin=subprocess.DEVNULL,
            pass_fds=descriptors,
            # Ctrl-C of a terminal goes to all of a process group: the workers are to hear of it from here only.
            process_group=0,
        )


async def _hear(channel: socket.socket, pulse: Pulse) -> None:
    while await receive_beat(channel):
        pulse.beat()


def _command(arguments: Iterable[str]) -> list[str]:
    return [sys.executable, "-m", "ws_responses.serve.worker", *arguments]


def _meaning(code: int) -> str:
    """Return an exit code in words."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"
