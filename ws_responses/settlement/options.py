"""How an operator wants turns to be settled."""

from math import isfinite
from typing import Literal, get_args

from ws_responses.errors import ConfigurationError
from ws_responses.settlement.record import OnUndelivered, SettlementHook

OnLag = Literal["proceed", "refuse"]
"""What happens to a turn whose chain has too many unsettled records."""


class Settlement:
    """How turns are settled.

    Args:
        hook: Takes each record.
        attempts: Tries for each record.
        attempt_timeout_s: Time of each.
        backoff_s: Wait after the first failure, doubled after each further one; a random part of up to a half is left out, so that
            a service that comes back is not met by all at once.
        max_backoff_s: Longest wait.
        on_undelivered: Is told what was given up, beside the log.
        max_unsettled: Records of one chain that may be unsettled before its next turn is held up.
        lag_wait_s: How long that turn waits for them.
        on_lag: What happens to it then: "proceed", or "refuse" by 429.
        before_terminal: Wait for the delivery before the client is given its terminal event, so that no turn is used that is not in
            the books. For sinks that are near and durable.
        terminal_timeout_s: Longest wait of that kind; after it the event goes out, and the delivery goes on behind it.
        drain_timeout_s: What unsettled records get when their connection ends.
        max_pending: Unsettled records of the process; beyond it, what comes is given up at once.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        hook: SettlementHook,
        *,
        attempts: int = 8,
        attempt_timeout_s: float = 10.0,
        backoff_s: float = 0.25,
        max_backoff_s: float = 30.0,
        on_undelivered: OnUndelivered | None = None,
        max_unsettled: int = 16,
        lag_wait_s: float = 0.0,
        on_lag: OnLag = "proceed",
        before_terminal: bool = False,
        terminal_timeout_s: float = 2.0,
        drain_timeout_s: float = 10.0,
        max_pending: int = 10_000,
    ) -> None:
        if not callable(hook):
            raise ConfigurationError(f"the settlement hook must be a function, not {type(hook).__name__}")
        if on_lag not in get_args(OnLag):
            raise ConfigurationError(f"on_lag must be 'proceed' or 'refuse', not {on_lag!r}")
        for name, count in (("attempts", attempts), ("max_unsettled", max_unsettled), ("max_pending", max_pending)):
            if type(count) is not int or count < 1:
                raise ConfigurationError(f"{name} must be a whole number of at least 1, not {count!r}")
        times = {
            "attempt_timeout_s": attempt_timeout_s,
            "backoff_s": backoff_s,
            "max_backoff_s": max_backoff_s,
            "lag_wait_s": lag_wait_s,
            "terminal_timeout_s": terminal_timeout_s,
            "drain_timeout_s": drain_timeout_s,
        }
        for name, seconds in times.items():
            positive = name in ("attempt_timeout_s", "terminal_timeout_s")
            if not isfinite(seconds) or seconds < 0 or (positive and seconds == 0):
                raise ConfigurationError(f"{name} must be a number of seconds, not {seconds!r}")
        self.hook = hook
        self.attempts = attempts
        self.attempt_timeout_s = attempt_timeout_s
        self.backoff_s = backoff_s
        self.max_backoff_s = max_backoff_s
        self.on_undelivered = on_undelivered
        self.max_unsettled = max_unsettled
        self.lag_wait_s = lag_wait_s
        self.on_lag: OnLag = on_lag
        self.before_terminal = before_terminal
        self.terminal_timeout_s = terminal_timeout_s
        self.drain_timeout_s = drain_timeout_s
        self.max_pending = max_pending
