"""The life of a connection: what it may still do, and until when."""

from math import inf

from ws_responses.errors import LocalProtocolError
from ws_responses.limits import Limits
from ws_responses.protocol.closing import Retirement
from ws_responses.protocol.phases import SESSION_TABLE, SessionInput, SessionPhase


class Life:
    """Where a connection is in its life.

    Args:
        limits: The bounds.
        now: Present time.

    Attributes:
        phase: See :class:`SessionPhase`.
        retirement: Why it takes no more turns; None if it does.
        active_at: When something was last heard of it.
    """

    __slots__ = ("_limits", "_opened_at", "active_at", "phase", "retirement")

    def __init__(self, limits: Limits, now: float) -> None:
        self.phase = SessionPhase.OPEN
        self.retirement: Retirement | None = None
        self.active_at = now
        self._limits = limits
        self._opened_at = now

    def move(self, stimulus: SessionInput) -> None:
        """Change the phase by the table."""
        try:
            self.phase = SESSION_TABLE[self.phase][stimulus]
        except KeyError:
            raise LocalProtocolError(f"{stimulus.name} is illegal when {self.phase.name}") from None

    def retire(self, retirement: Retirement) -> None:
        """Take no more turns."""
        self.move(SessionInput.RETIRE)
        self.retirement = retirement

    @property
    def is_open(self) -> bool:
        """Whether it takes turns."""
        return self.phase is SessionPhase.OPEN

    @property
    def is_over(self) -> bool:
        """Whether nothing more is said on it."""
        return self.phase is SessionPhase.CLOSING or self.phase is SessionPhase.CLOSED

    def is_too_old(self, now: float) -> bool:
        """Whether it has to retire for its age."""
        age = self._limits.max_connection_age_s
        return self.retirement is None and age is not None and now >= self._opened_at + age

    def is_idle(self, now: float) -> bool:
        """Whether it has been quiet for too long; to be asked while no turn runs."""
        idle = self._limits.idle_timeout_s
        return self.is_open and idle is not None and now >= self.active_at + idle

    def deadline(self, *, busy: bool) -> float:
        """Return when age, grace or idleness end it (``inf``: never).

        Args:
            busy: A turn runs.
        """
        limits = self._limits
        end = inf
        if self.retirement is not None:
            end = self.retirement.deadline
        elif limits.max_connection_age_s is not None:
            end = self._opened_at + limits.max_connection_age_s
        if busy or limits.idle_timeout_s is None:
            return end
        return min(end, self.active_at + limits.idle_timeout_s)
