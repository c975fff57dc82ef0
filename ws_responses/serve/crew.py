"""Which worker processes there should be: decides, and does nothing by itself. Neither processes nor time are seen here."""

from collections.abc import Sequence
from enum import Enum, auto
from typing import Final, NamedTuple

FIRST_WAIT_S: Final = 1.0
"""Before a worker is started anew that did not come up; doubled each time: what is broken seldom mends at once."""
LONGEST_WAIT_S: Final = 30.0


class Start(NamedTuple):
    """Start a worker with this number; then tell ``started`` or ``ended``."""

    worker: int


class Stop(NamedTuple):
    """Let a worker end its turns; then tell ``ended``."""

    worker: int


class Kill(NamedTuple):
    """End a worker at once; then tell ``ended``."""

    worker: int


class Wait(NamedTuple):
    """Call ``waited`` after so many seconds."""

    seconds: float


class Over(NamedTuple):
    """There is nothing left to do: end with this code."""

    code: int


Order = Start | Stop | Kill | Wait | Over
Orders = Sequence[Order]


class Phase(Enum):
    """What a worker does."""

    STARTING = auto()
    SERVING = auto()
    ENDING = auto()


class Crew:
    """So many workers that serve: one that dies is replaced, and all are, one after the other, when that is asked for.

    Args:
        size: How many.

    Attributes:
        phases: What each one that lives does, by its number.
    """

    def __init__(self, size: int) -> None:
        self.phases: dict[int, Phase] = {}
        self._size = size
        self._next = 1
        self._succeeds: dict[int, int] = {}
        """By a worker that starts, the one that ends when it serves."""
        self._old: list[int] = []
        """Those that are to be replaced, and are not yet."""
        self._leaving: int | None = None
        self._wait_s = FIRST_WAIT_S
        self._waiting = False
        self._code: int | None = None

    def begin(self) -> Orders:
        """Start the first worker; the others follow when it serves, so that a fault is told once."""
        return self._start()

    @property
    def stopping(self) -> bool:
        """Whether it has been told to stop, or has nobody left who could serve."""
        return self._code is not None

    @property
    def serving(self) -> int:
        """How many serve."""
        return sum(phase is Phase.SERVING for phase in self.phases.values())

    @property
    def settled(self) -> bool:
        """Whether nobody is starting."""
        return Phase.STARTING not in self.phases.values()

    def started(self, worker: int) -> Orders:
        """Note that a worker serves."""
        if self.phases.get(worker) is not Phase.STARTING:
            return ()  # told to end meanwhile
        self.phases[worker] = Phase.SERVING
        self._wait_s = FIRST_WAIT_S
        old = self._succeeds.pop(worker, None)
        if old is not None and self.phases.get(old) is Phase.SERVING:
            self.phases[old] = Phase.ENDING
            self._leaving = old
            return (Stop(old), *self._fill())
        return (*self._fill(), *self._go_on())

    def ended(self, worker: int, code: int) -> Orders:
        """Note that a worker is no more.

        Args:
            worker: Its number.
            code: Its exit code.
        """
        phase = self.phases.pop(worker)
        if self._code is not None:
            return () if self.phases else (Over(self._code),)
        if worker == self._leaving:
            self._leaving = None
        if worker in self._old:
            self._old.remove(worker)  # what comes in its place is new
        # A successor has a place of its own from now on.
        self._succeeds = {new: old for new, old in self._succeeds.items() if old != worker}
        if phase is Phase.STARTING:
            return self._failed(worker, code)
        return (*self._fill(), *self._go_on())

    def waited(self) -> Orders:
        """Note that the time of ``Wait`` has passed."""
        self._waiting = False
        return () if self.stopping else self._fill()

    def restart(self) -> Orders:
        """Replace all workers that serve, one after the other: the new one first."""
        if self.stopping:
            return ()
        going = self._succeeds.values()
        self._old = [
            worker for worker, phase in self.phases.items() if phase is not Phase.ENDING and worker not in going
        ]
        return self._go_on()

    def stop(self) -> Orders:
        """Let all end their turns, and nobody come."""
        return self._stop(0)

    def force(self) -> Orders:
        """Let all end at once."""
        self._code = 1
        self.phases = dict.fromkeys(self.phases, Phase.ENDING)
        return tuple(map(Kill, self.phases)) if self.phases else (Over(1),)

    # -- how ---------------------------------------------------------------------------------------------------------

    def _stop(self, code: int) -> Orders:
        if self.stopping:
            return ()
        self._code = code
        orders: list[Order] = []
        for worker, phase in self.phases.items():
            if phase is not Phase.ENDING:
                orders.append(Kill(worker) if phase is Phase.STARTING else Stop(worker))
                self.phases[worker] = Phase.ENDING
        return orders if self.phases else (Over(code),)

    def _start(self, succeeds: int | None = None) -> Orders:
        worker = self._next
        self._next += 1
        self.phases[worker] = Phase.STARTING
        if succeeds is not None:
            self._succeeds[worker] = succeeds
        return (Start(worker),)

    def _fill(self) -> Orders:
        """Start whoever lacks; a successor takes its place only when it serves."""
        if self._waiting:
            return ()
        staying = sum(phase is not Phase.ENDING for phase in self.phases.values()) - len(self._succeeds)
        return tuple(order for _ in range(self._size - staying) for order in self._start())

    def _go_on(self) -> Orders:
        """Begin with the next replacement, if none is on its way."""
        if self._succeeds or self._leaving is not None or self._waiting:
            return ()
        old = next((worker for worker in self._old if self.phases[worker] is Phase.SERVING), None)
        if old is None:
            return ()
        self._old.remove(old)
        return self._start(succeeds=old)

    def _failed(self, worker: int, code: int) -> Orders:
        """Go on without a worker that did not come up: with those that serve, or not at all."""
        self._succeeds.pop(worker, None)
        self._old.clear()  # a restart would replace what works by what does not
        if not self.serving and self.settled:
            return self._stop(code if code > 0 else 1)  # negative: the signal that ended it
        if self._waiting or self._size <= sum(phase is not Phase.ENDING for phase in self.phases.values()):
            return ()
        wait_s, self._wait_s = self._wait_s, min(2 * self._wait_s, LONGEST_WAIT_S)
        self._waiting = True
        return (Wait(wait_s),)
