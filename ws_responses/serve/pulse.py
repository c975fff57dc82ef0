"""Whether a worker that lives does anything: its event loop beats, and the supervisor looks whether it does."""

from collections.abc import Callable
from typing import Any, Final, Protocol

_LOOKS: Final = 4
"""How many looks in a row must find silence. They are counted, and no clock is read: a supervisor that was stopped itself (by a
debugger, or a machine without a processor to spare) looks once when it goes on, and finds the beats that have come meanwhile."""
_BEATS: Final = 2
"""Beats between two looks: one that is late is not missed."""


class Timer(Protocol):
    """What a loop gives for a call in the future."""

    def cancel(self) -> None:
        """Do not call."""


Later = Callable[[float, Callable[[], None]], Timer]
"""Calls a function after so many seconds (``call_later`` of an event loop)."""


class Pulse:
    """Looks whether beats come.

    Args:
        patience_s: Seconds without a beat that a worker may be busy for. Longer silence is found within another quarter of it.
        later: Calls its looks.
        silent: Is called once, when no beat has come for so long.
    """

    def __init__(self, patience_s: float, later: Later, silent: Callable[[], None]) -> None:
        self._every_s = patience_s / _LOOKS
        self._later = later
        self._silent = silent
        self._missed = 0
        self._timer: Timer = later(self._every_s, self._look)

    def beat(self) -> None:
        """Note a sign of life."""
        self._missed = 0

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        # The first of them may come right after a beat: only the time between looks is silence for sure.
        if self._missed == _LOOKS:
            self._silent()
            return
        self._missed += 1
        self._timer = self._later(self._every_s, self._look)


def keep_beating(
    patience_s: float, later: Callable[[float, Callable[[], None]], Any], beat: Callable[[], None]
) -> None:
    """Beat, as long as the loop turns, often enough for a ``Pulse`` of that patience."""

    def again() -> None:
        beat()
        later(patience_s / (_LOOKS * _BEATS), again)

    again()
