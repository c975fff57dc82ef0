"""Metrics in Prometheus' text format, without a client library: a hook that counts, and a page for the scraper.

    metrics = PrometheusMetrics(models={"gpt-5"})
    app = ResponsesWebSocketMiddleware(app, hooks=[metrics], settlement=Settlement(metrics.counting(bill)))
    metrics.watch(app)
    metrics.watch_lag(lambda: (app.unsettled, app.unsettled_s))
    api.mount("/metrics", metrics.page)  # as your framework mounts an ASGI app

Labels have closed sets of values only: never ids; a model only if it is named beforehand, because clients choose that string.
"""

import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Final, Protocol

from ws_responses._types import Receive, Scope, Send
from ws_responses.instrumentation import (
    ConnectionClosed,
    ConnectionDenied,
    ConnectionOpened,
    Fact,
    FrameRefused,
    NodeDropped,
    StoreFailed,
    TurnFinished,
)
from ws_responses.settlement import OUTCOMES, SettlementHook, TurnRecord

__all__ = ["CONTENT_TYPE", "PrometheusMetrics", "Watched"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
"""Of the text format that every scraper reads."""

DURATIONS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""Bounds of the buckets in seconds: turns take from an instant to many minutes."""

OTHER: Final = "other"
"""Label of what is in no closed set."""

_TURN_STATUSES: Final = ("completed", "incomplete", "failed", "error", "aborted", "gone")
_TOKEN_KINDS: Final = ("input", "cached", "output", "reasoning")


class Watched(Protocol):
    """What is read at each scrape: a middleware has these."""

    @property
    def connections(self) -> int:
        """Open connections."""
        ...

    @property
    def running_turns(self) -> int:
        """Turns in flight."""
        ...

    @property
    def history_bytes(self) -> int:
        """Bytes of history kept."""
        ...


class _Counter:
    """A family of counters or gauges, by the values of its labels."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = (), kind: str = "counter") -> None:
        self.name = name
        self._head = f"# HELP {name} {text}\n# TYPE {name} {kind}\n"
        self._labels = labels
        self._values: dict[tuple[str, ...], float] = {} if labels else {(): 0}

    def add(self, *labels: str, amount: float = 1) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def lines(self) -> Iterable[str]:
        yield self._head
        for labels, value in sorted(self._values.items()):
            yield f"{self.name}{_labelled(zip(self._labels, labels, strict=True))} {_number(value)}\n"


class _Histogram:
    """A distribution of seconds."""

    def __init__(self, name: str, text: str) -> None:
        self._name = name
        self._head = f"# HELP {name} {text}\n# TYPE {name} histogram\n"
        self._counts = [0] * (len(DURATIONS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(DURATIONS, seconds)] += 1
        self._sum += seconds

    def lines(self) -> Iterable[str]:
        yield self._head
        total = 0
        for bound, count in zip((*map(str, DURATIONS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{self._name}_bucket{{le="{bound}"}} {total}\n'
        yield f"{self._name}_sum {_number(self._sum)}\n{self._name}_count {total}\n"


class PrometheusMetrics:
    """Counts what it is told, and shows it.

    It is a hook (``hooks=[metrics]``); :meth:`counting` wraps a settlement hook, :meth:`watch` names a middleware whose state is read
    at each scrape, and :attr:`page` is an ASGI app. One process each: with several workers let each be scraped by itself.

    Args:
        models: Models that get a label of their own; all others are "other".
    """

    def __init__(self, models: Iterable[str] = ()) -> None:
        self._models = frozenset(models)
        self._lock = threading.Lock()
        self._watched: list[Watched] = []
        self._lags: list[Callable[[], tuple[int, float]]] = []
        new = _Counter
        self._connections = new("ws_responses_connections_total", "Sockets, by what became of them.", ("outcome",))
        self._turns = new("ws_responses_turns_total", "Turns, by their end.", ("status", "model"))
        self._aborts = new("ws_responses_aborts_total", "Turns ended by a limit or the operator.", ("reason",))
        self._refused = new("ws_responses_frames_refused_total", "Frames answered by an error that became no turn.")
        self._events = new("ws_responses_events_sent_total", "Events of turns that are over.")
        self._dropped = new("ws_responses_responses_dropped_total", "Responses that fit no budget.")
        self._store = new("ws_responses_store_requests_total", "Failures of the store.", ("op", "result"))
        self._settled = new("ws_responses_settlements_total", "Attempts to settle a turn.", ("outcome", "result"))
        self._tokens = new("ws_responses_tokens_total", "Tokens of settled turns, as far as known.", ("kind", "model"))
        self._routes = new(
            "ws_responses_routes_total",
            "Turns that were routed: where the turn before on their chain was, elsewhere, or for the first time.",
            ("result",),
        )
        self._verdicts = new("ws_responses_verdicts_total", "Verdicts on settled turns.", ("verdict",))
        self._duration = _Histogram("ws_responses_turn_duration_seconds", "From a turn's start to its end.")
        self._first = _Histogram("ws_responses_time_to_first_event_seconds", "From a turn's start to its first event.")

    # -- what is counted ---------------------------------------------------------------------------------------------

    def __call__(self, fact: Fact) -> None:
        """Take a fact (the hook)."""
        with self._lock:
            self._count(fact)

    def _count(self, fact: Fact) -> None:
        if isinstance(fact, TurnFinished):
            self._count_turn(fact)
        elif isinstance(fact, ConnectionOpened):
            self._connections.add("opened")
        elif isinstance(fact, ConnectionDenied):
            self._connections.add("denied")
        elif isinstance(fact, ConnectionClosed):
            self._connections.add("closed_by_client" if fact.by_client else "closed_by_server")
        elif isinstance(fact, FrameRefused):
            self._refused.add()
        elif isinstance(fact, NodeDropped):
            self._dropped.add()
        elif isinstance(fact, StoreFailed):
            self._store.add(fact.operation, "failed")

    def _count_turn(self, fact: TurnFinished) -> None:
        status = fact.outcome if fact.outcome in _TURN_STATUSES else OTHER
        self._turns.add(status, self._model(fact.model))
        self._events.add(amount=fact.events)
        if fact.route is not None:
            self._routes.add({True: "reused", False: "changed", None: "first"}[fact.route_reused])
        self._duration.observe(fact.duration_s)
        if fact.first_event_s is not None:
            self._first.observe(fact.first_event_s)
        if fact.outcome == "aborted":
            # Codes are ours where a turn is aborted; an app's own never get here.
            self._aborts.add(fact.code or OTHER)

    def counting(self, hook: SettlementHook) -> SettlementHook:
        """Return a settlement hook that counts what ``hook`` takes, and what it fails to take."""

        async def settle(record: TurnRecord) -> None:
            outcome = record.outcome if record.outcome in OUTCOMES else OTHER
            result = "failed"
            try:
                answer: object = hook(record)
                if isawaitable(answer):
                    await answer
                result = "delivered"
            finally:
                with self._lock:
                    self._settled.add(outcome, result)
            with self._lock:
                self._count_record(record)

        return settle

    def _count_record(self, record: TurnRecord) -> None:
        if record.verdict is not None:
            self._verdicts.add(record.verdict)
        if record.usage is None:
            return
        model = self._model(record.model)
        for kind in _TOKEN_KINDS:
            tokens: int | None = getattr(record.usage, f"{kind}_tokens")
            if tokens is not None:
                self._tokens.add(kind, model, amount=tokens)

    def _model(self, model: str | None) -> str:
        return OTHER if model is None or model not in self._models else model

    # -- what is read at each scrape ---------------------------------------------------------------------------------

    def watch(self, app: Watched) -> None:
        """Show the open connections, running turns and kept bytes of a middleware; of several, their sums."""
        self._watched.append(app)

    def watch_lag(self, read: Callable[[], tuple[int, float]]) -> None:
        """Show how far settlement lags.

        Args:
            read: Returns the number of unsettled turns, and the seconds that the oldest of them has waited.
        """
        self._lags.append(read)

    def _gauges(self) -> Mapping[str, tuple[str, float]]:
        lags = [read() for read in self._lags]
        gauges: dict[str, tuple[str, float]] = {
            "ws_responses_connections": ("Open sockets.", sum(app.connections for app in self._watched)),
            "ws_responses_running_turns": ("Turns in flight.", sum(app.running_turns for app in self._watched)),
            "ws_responses_cache_bytes": ("Bytes of history kept.", sum(app.history_bytes for app in self._watched)),
        }
        if lags:
            gauges["ws_responses_settlement_lag"] = ("Turns not settled yet.", sum(count for count, _ in lags))
            gauges["ws_responses_settlement_lag_seconds"] = (
                "Time that the oldest of them has waited.",
                max(seconds for _, seconds in lags),
            )
        return gauges

    def render(self) -> str:
        """Return all metrics as text."""
        lines: list[str] = []
        for name, (text, value) in self._gauges().items():
            gauge = _Counter(name, text, kind="gauge")
            gauge.add(amount=value)
            lines += gauge.lines()
        with self._lock:
            for family in (
                self._connections,
                self._turns,
                self._aborts,
                self._refused,
                self._events,
                self._dropped,
                self._store,
                self._settled,
                self._tokens,
                self._routes,
                self._verdicts,
                self._duration,
                self._first,
            ):
                lines += family.lines()
        return "".join(lines)

    async def page(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the metrics (an ASGI app). Whoever may see them is yours to decide: mount it where only the scraper comes."""
        del receive
        if scope["type"] != "http":
            return
        body = self.render().encode()
        headers = [(b"content-type", CONTENT_TYPE.encode()), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


def _labelled(labels: Iterable[tuple[str, str]]) -> str:
    escaped = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{escaped}}}" if escaped else ""


def _number(value: float) -> str:
    """Return a number with all its digits: of a rounded counter the scraper sees no small steps."""
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(value: str) -> str:
    """Return a label's value as the text format has it."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
