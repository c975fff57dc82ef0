"""The metrics: what is counted, under which labels, in a format that Prometheus' own parser reads."""

import re
from typing import Any

import anyio
import pytest

from tests.conftest import require
from tests.shell import Shell, create
from tests.test_settlement import record
from ws_responses.adapters.prometheus import CONTENT_TYPE, DURATIONS, PrometheusMetrics
from ws_responses.instrumentation import ConnectionDenied, NodeDropped, StoreFailed, TurnFinished
from ws_responses.settlement import Settlement, Settler, TurnRecord, TurnUsage
from ws_responses.testing import FakeClock, ScriptedApp, settle, steps

_LINE = re.compile(r"([a-z_]+)(?:\{([^}]*)\})? ([0-9.e+-]+)\Z")


def samples(metrics: PrometheusMetrics) -> dict[str, float]:
    """All samples by name and labels."""
    found: dict[str, float] = {}
    for line in metrics.render().splitlines():
        if not line.startswith("#"):
            match = _LINE.match(line)
            assert match is not None, line
            found[line.rpartition(" ")[0]] = float(match[3])
    return found


def finished(**changes: Any) -> TurnFinished:
    values: dict[str, Any] = dict.fromkeys(TurnFinished.__struct_fields__)
    values |= {"outcome": "completed", "events": 5, "duration_s": 0.2, "first_event_s": 0.07, "warm_up": False}
    return TurnFinished(**{**values, **changes})


async def test_a_middleware_is_counted() -> None:
    metrics = PrometheusMetrics(models=["m"])
    app = ScriptedApp()
    app.script([steps.text("Hello")], [steps.status(429)])
    shell = Shell(app, hooks=[metrics])
    metrics.watch(shell.middleware)
    async with shell.socket() as ws:
        await ws.turn(create())
        await ws.turn(create(model="made up by the client"))
        found = samples(metrics)
        assert found["ws_responses_connections"] == 1
        assert found["ws_responses_cache_bytes"] > 0
    found = samples(metrics)
    assert found["ws_responses_connections"] == 0
    assert found['ws_responses_connections_total{outcome="opened"}'] == 1
    assert found['ws_responses_connections_total{outcome="closed_by_client"}'] == 1
    assert found['ws_responses_turns_total{status="completed",model="m"}'] == 1
    assert found['ws_responses_turns_total{status="error",model="other"}'] == 1
    assert found["ws_responses_turn_duration_seconds_count"] == 2
    assert found["ws_responses_events_sent_total"] > 5
    assert "made up" not in metrics.render()


def test_facts_are_counted_under_closed_labels() -> None:
    metrics = PrometheusMetrics()
    metrics(ConnectionDenied(path="/v1/responses", status=401, code="invalid_api_key"))
    metrics(NodeDropped(connection_id="c", response_id="r", size=5))
    metrics(StoreFailed(operation="load", error="late"))
    metrics(finished(outcome="aborted", code="upstream_timeout"))
    metrics(finished(outcome="something new"))
    found = samples(metrics)
    assert found['ws_responses_connections_total{outcome="denied"}'] == 1
    assert found["ws_responses_responses_dropped_total"] == 1
    assert found['ws_responses_store_requests_total{op="load",result="failed"}'] == 1
    assert found['ws_responses_aborts_total{reason="upstream_timeout"}'] == 1
    assert found['ws_responses_turns_total{status="other",model="other"}'] == 1


def test_routes_are_counted_by_whether_they_were_reused() -> None:
    """How often a chain leaves its backend, and with it the backend's cache of its prompt, cannot be seen from outside."""
    metrics = PrometheusMetrics()
    for route, reused in (("a", None), ("a", True), ("a", True), ("b", False), (None, None)):
        metrics(finished(route=route, route_reused=reused))
    found = samples(metrics)
    counted = {
        result: found[f'ws_responses_routes_total{{result="{result}"}}'] for result in ("first", "reused", "changed")
    }
    assert counted == {"first": 1, "reused": 2, "changed": 1}


def test_a_histogram_counts_each_observation_in_every_bucket_that_holds_it() -> None:
    metrics = PrometheusMetrics()
    for seconds in (0.05, 0.06, 1000.0):
        metrics(finished(duration_s=seconds, first_event_s=None))
    found = samples(metrics)
    name = "ws_responses_turn_duration_seconds"
    assert found[f'{name}_bucket{{le="0.05"}}'] == 1
    assert found[f'{name}_bucket{{le="0.1"}}'] == 2
    assert found[f'{name}_bucket{{le="{DURATIONS[-1]}"}}'] == 2
    assert found[f'{name}_bucket{{le="+Inf"}}'] == found[f"{name}_count"] == 3
    assert found[f"{name}_sum"] == pytest.approx(1000.11)
    assert found["ws_responses_time_to_first_event_seconds_count"] == 0


async def test_settlement_is_counted_with_its_failures_and_its_lag() -> None:
    taken: list[str] = []

    async def bill(record: TurnRecord) -> None:
        if not taken:
            taken.append("failed")
            raise RuntimeError
        taken.append(record.turn_id)

    metrics = PrometheusMetrics(models=["m"])
    clock = FakeClock()
    settler = Settler(Settlement(metrics.counting(bill), backoff_s=4.0), clock, chance=lambda: 0.0)
    metrics.watch_lag(lambda: (settler.pending, settler.oldest_s))
    usage = TurnUsage(input_tokens=10**9 + 1, output_tokens=7)
    used = type(record("a"))(
        **{name: getattr(record("a"), name) for name in TurnRecord.__struct_fields__}
        | {"usage": usage, "model": "m", "verdict": "flag"}
    )
    async with anyio.create_task_group() as tasks:
        settler.submit(used, tasks.start_soon)
        await settle()
        await clock.advance(3.0)
        found = samples(metrics)
        assert (found["ws_responses_settlement_lag"], found["ws_responses_settlement_lag_seconds"]) == (1, 3.0)
        await clock.advance(1.0)
    found = samples(metrics)
    assert found['ws_responses_settlements_total{outcome="completed",result="failed"}'] == 1
    assert found['ws_responses_settlements_total{outcome="completed",result="delivered"}'] == 1
    assert found["ws_responses_settlement_lag"] == 0
    assert found['ws_responses_tokens_total{kind="input",model="m"}'] == 10**9 + 1, "all digits"
    assert found['ws_responses_verdicts_total{verdict="flag"}'] == 1
    assert 'kind="cached"' not in metrics.render(), "unknown is not 0"


async def test_the_page_is_an_asgi_app() -> None:
    metrics = PrometheusMetrics()
    for method in ("GET", "HEAD"):
        sent: list[Any] = []

        async def send(message: Any, sent: list[Any] = sent) -> None:
            sent.append(message)

        await metrics.page({"type": "http", "method": method}, None, send)  # type: ignore[arg-type]
        headers = dict(sent[0]["headers"])
        assert (sent[0]["status"], headers[b"content-type"]) == (200, CONTENT_TYPE.encode())
        assert int(headers[b"content-length"]) == len(metrics.render().encode())
        assert bool(sent[1]["body"]) is (method == "GET")
    await metrics.page({"type": "lifespan"}, None, None)  # type: ignore[arg-type]


def test_prometheus_own_parser_reads_the_page() -> None:
    """A page that it does not read is a target that is down."""
    require("prometheus_client")
    from prometheus_client.parser import text_string_to_metric_families  # type: ignore[import-not-found, unused-ignore]

    metrics = PrometheusMetrics(models=['a "quoted" \\ name\n'])
    metrics(finished(model='a "quoted" \\ name\n'))
    families = list(text_string_to_metric_families(metrics.render()))
    kinds = {(family.name, family.type) for family in families}
    (turns,) = [family for family in families if family.name == "ws_responses_turns"]
    assert turns.samples[0].labels == {"status": "completed", "model": 'a "quoted" \\ name\n'}
    assert ("ws_responses_turn_duration_seconds", "histogram") in kinds
    # The parser leaves "_total" out of the names of counters.
    assert {("ws_responses_connections", "gauge"), ("ws_responses_connections", "counter")} <= kinds
    assert all(family.documentation for family in families)
