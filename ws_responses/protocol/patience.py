"""Time limits of a running turn: how long its upstream may be silent, and how long it may wait for its client."""

from ws_responses.errors import UpstreamTimeout
from ws_responses.limits import Limits
from ws_responses.protocol.actions import NOTHING, AbortTurn, Actions, KeepAlive, ResumeTurn
from ws_responses.protocol.turns import Turn


def look_every_s(limits: Limits, keepalive_s: float | None) -> float:
    """Return how often the upstream's silence is to be looked at while a turn runs.

    Events bear no time stamp (that would cost a clock reading each): a look sees that some came since the last one. Four
    looks in a span keep the error below a quarter of it.
    """
    spans = (limits.first_event_timeout_s, limits.event_timeout_s, keepalive_s)
    return min((span / 4 for span in spans if span is not None), default=float("inf"))


def watch(turn: Turn, limits: Limits, keepalive_s: float | None, now: float) -> Actions:
    """Look at a running turn."""
    if turn.blocked is not None:
        patience = limits.blocked_timeout_s
        if patience is None or now < turn.blocked.since + patience:
            return NOTHING
        turn.resume(now)
        return (ResumeTurn(turn, None),)
    if turn.heard != turn.seen:
        turn.seen = turn.heard
        turn.heard_at = now
        return NOTHING
    patience = _patience(turn, limits)
    if patience is not None and now >= turn.heard_at + patience:
        what = "sent no event" if turn.heard else "did not answer"
        return (AbortTurn(turn, UpstreamTimeout(f"The upstream {what} for {patience:g} s.")),)
    if keepalive_s is not None and now >= _quiet_since(turn) + keepalive_s:
        turn.kept_alive_at = now
        return (KeepAlive(turn),)
    return NOTHING


def deadline(turn: Turn, limits: Limits, keepalive_s: float | None) -> float:
    """Return when :func:`watch` has something to do if nothing comes until then (``inf``: never)."""
    if turn.blocked is not None:
        spans: tuple[tuple[float, float | None], ...] = ((turn.blocked.since, limits.blocked_timeout_s),)
    else:
        spans = ((turn.heard_at, _patience(turn, limits)), (_quiet_since(turn), keepalive_s))
    return min((base + span for base, span in spans if span is not None), default=float("inf"))


def _patience(turn: Turn, limits: Limits) -> float | None:
    return limits.event_timeout_s if turn.heard else limits.first_event_timeout_s


def _quiet_since(turn: Turn) -> float:
    return max(turn.heard_at, turn.kept_alive_at)
