"""When the watchdog of a connection is to look at its time limits."""

from math import inf

from ws_responses.limits import Limits
from ws_responses.protocol.session import Session
from ws_responses.runs import Runs
from ws_responses.writer import Writer


def look_every_s(session: Session, limits: Limits) -> float:
    """Return how often to look while a turn runs."""
    send_s = limits.send_timeout_s
    return min(limits.trailing_timeout_s, session.look_every_s, inf if send_s is None else send_s / 4)


def next_look(session: Session, runs: Runs, writer: Writer, limits: Limits, now: float, *, busy_until: float) -> float:
    """Return when to look again.

    Args:
        session: Knows the deadlines of the protocol.
        runs: Know when they are to be ended.
        writer: Knows whether a write blocks.
        limits: How long things may take.
        now: The present time.
        busy_until: A look is wanted then at the latest, since a turn was begun.
    """
    next_end = runs.next_end
    at = min(session.next_deadline(), next_end)
    is_running = session.running or next_end < inf
    if is_running:
        at = min(at, now + limits.trailing_timeout_s)
    if limits.send_timeout_s is not None:
        if is_running:
            at = min(at, now + limits.send_timeout_s / 4)
        if writer.blocked_since is not None:
            at = min(at, writer.blocked_since + limits.send_timeout_s)
    if busy_until > now:
        # A chain of short turns would otherwise wake the watchdog for each of them, to find that it is over.
        at = min(at, busy_until)
    return max(at, now)
