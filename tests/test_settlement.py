"""One record of each turn, delivered in order along its chain, or reported: never into nothing."""

import asyncio
import json
import logging
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shell import ours
from ws_responses import ConfigurationError, LocalProtocolError
from ws_responses.errors import Refused, Unavailable
from ws_responses.quota import QuotaExceeded, QuotaRequest, ask_quota
from ws_responses.settlement import (
    Settlement,
    SettlementLag,
    Settler,
    Settling,
    TurnRecord,
    TurnUsage,
    Undeliverable,
    Undelivered,
    read_usage,
)
from ws_responses.testing import FakeClock, settle


def record(turn_id: str, parent: str | None = None, *, response: str | None = "", tenant: str = "t") -> TurnRecord:
    """A record of a turn; its response is called like the turn."""
    return TurnRecord(
        turn_id=turn_id,
        outcome="completed" if response is not None else "failed",
        tenant=tenant,
        started_at=0.0,
        duration_s=1.0,
        response_id=response if response is None or response else f"r-{turn_id}",
        parent_id=None if parent is None else f"r-{parent}",
    )


class Sink:
    """A hook that does as it is told, and keeps what it has taken."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.taken: list[str] = []
        self.failures: dict[str, list[Exception]] = {}
        self.gates: dict[str, anyio.Event] = {}

    async def __call__(self, record: TurnRecord) -> None:
        self.calls.append(record.turn_id)
        gate = self.gates.get(record.turn_id)
        if gate is not None:
            await gate.wait()
        failures = self.failures.get(record.turn_id)
        if failures:
            raise failures.pop(0)
        self.taken.append(record.turn_id)


class Books:
    """A settler, its clock, its sink, and what it has given up."""

    def __init__(self, **options: Any) -> None:
        self.sink = Sink()
        self.clock = FakeClock()
        self.reported: list[tuple[str, Exception]] = []
        options.setdefault("on_undelivered", lambda record, error: self.reported.append((record.turn_id, error)))
        self.settler = Settler(Settlement(options.pop("hook", self.sink), **options), self.clock, chance=lambda: 0.0)

    @property
    def given_up(self) -> list[str]:
        return [turn_id for turn_id, _ in self.reported]


async def test_a_record_is_delivered_once_if_all_is_well() -> None:
    books = Books()
    async with anyio.create_task_group() as tasks:
        delivery = books.settler.submit(record("a"), tasks.start_soon)
        assert (books.settler.pending, books.settler.unsettled("t", "r-a")) == (1, 1)
        await settle()
        assert (books.sink.taken, books.reported, delivery.error) == (["a"], [], None)
    assert (books.settler.pending, books.settler.unsettled("t", "r-a")) == (0, 0)
    assert (books.settler.delivered, books.settler.undelivered) == (1, 0)


async def test_a_chain_is_settled_in_order_and_others_do_not_wait_for_it() -> None:
    """A bill that has the second turn and not the first is wrong in between; a stuck chain must not stop the rest."""
    books = Books()
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for turn_id, parent in (("a", None), ("b", "a"), ("c", "b"), ("fork", "a"), ("x", None)):
            books.settler.submit(record(turn_id, parent), tasks.start_soon)
        await settle()
        assert sorted(books.sink.calls) == ["a", "x"]
        assert books.settler.unsettled("t", "r-c") == 3
        books.sink.gates["a"].set()
    assert books.sink.taken.index("a") < books.sink.taken.index("b") < books.sink.taken.index("c")
    assert books.sink.taken.index("a") < books.sink.taken.index("fork")


async def test_tenants_with_the_same_ids_do_not_wait_for_each_other() -> None:
    """Ids are the app's: two tenants may have equal ones."""
    books = Books()
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a", tenant="one"), tasks.start_soon)
        books.settler.submit(record("b", "a", tenant="two"), tasks.start_soon)
        await settle()
        assert books.sink.taken == ["b"]
        books.sink.gates["a"].set()


async def test_what_fails_is_tried_again_after_growing_waits() -> None:
    books = Books(attempts=5, backoff_s=1.0, max_backoff_s=3.0)
    books.sink.failures["a"] = [RuntimeError()] * 4
    times: list[float] = []
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
        for _ in range(5):
            await settle()
            times.append(books.clock.now())
            if books.settler.pending:
                await books.clock.advance(books.clock.next_due - books.clock.now())
    assert times == [0.0, 1.0, 3.0, 6.0, 9.0]
    assert (books.sink.calls, books.sink.taken, books.reported) == (["a"] * 5, ["a"], [])


async def test_what_uses_up_its_attempts_is_reported_and_its_chain_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    books = Books(attempts=2, backoff_s=0.0)
    books.sink.failures["a"] = [RuntimeError("with the address"), OSError("password")]
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
        books.settler.submit(record("b", "a"), tasks.start_soon)
    assert [(turn_id, type(error)) for turn_id, error in books.reported] == [("a", OSError)]
    assert books.sink.taken == ["b"]
    last = [entry for entry in ours(caplog) if entry.levelno == logging.ERROR]
    assert json.loads(last[0].getMessage().partition("): ")[2])["turn_id"] == "a", "the log is enough to bill by"
    assert "password" not in caplog.text
    assert "address" not in caplog.text


async def test_a_hook_may_say_that_it_will_never_take_a_record() -> None:
    books = Books(attempts=5)
    books.sink.failures["a"] = [Undeliverable("no such customer")]
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
    assert (books.sink.calls, books.given_up) == (["a"], ["a"])


async def test_an_attempt_that_is_late_has_failed() -> None:
    books = Books(attempts=2, attempt_timeout_s=3.0, backoff_s=1.0)
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
        await books.clock.advance(6.9)
        assert (len(books.sink.calls), books.given_up) == (2, [])
        await books.clock.advance(0.1)
    assert books.given_up == ["a"]


async def test_waits_are_spread_by_chance() -> None:
    """Else all records that failed together come back together, and fail again."""
    waits: list[float] = []
    for chance in (0.0, 0.5, 1.0):
        books = Books(backoff_s=8.0)
        books.settler = Settler(books.settler.settlement, books.clock, chance=lambda chance=chance: chance)  # type: ignore[misc]
        books.sink.failures["a"] = [RuntimeError()]
        async with anyio.create_task_group() as tasks:
            books.settler.submit(record("a"), tasks.start_soon)
            await settle()
            waits.append(books.clock.next_due)
            await books.clock.advance(8.0)
    assert waits == [8.0, 6.0, 4.0]


async def test_a_hook_need_not_be_async() -> None:
    taken: list[str] = []
    books = Books(hook=lambda record: taken.append(record.turn_id))
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
    assert taken == ["a"]


async def test_a_turn_is_settled_once() -> None:
    books = Books()
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
        with pytest.raises(LocalProtocolError, match="twice"):
            books.settler.submit(record("a"), tasks.start_soon)
        books.sink.gates["a"].set()


async def test_on_undelivered_may_raise(caplog: pytest.LogCaptureFixture) -> None:
    """The record is in the log all the same, and its chain goes on."""

    def raising(record: TurnRecord, error: Exception) -> None:
        raise OSError

    books = Books(attempts=1, on_undelivered=raising)
    books.sink.failures["a"] = [RuntimeError()]
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
        books.settler.submit(record("b", "a"), tasks.start_soon)
    assert books.sink.taken == ["b"]
    assert "on_undelivered raised for turn a" in caplog.text


@pytest.mark.parametrize("waiting", [1, 2, 3])
async def test_what_waits_in_the_process_is_bounded(waiting: int) -> None:
    books = Books(max_pending=2)
    gate = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for number in range(waiting):
            books.sink.gates[str(number)] = gate
            books.settler.submit(record(str(number)), tasks.start_soon)
        await settle()
        assert books.given_up == (["2"] if waiting > 2 else [])
        assert books.settler.pending == min(waiting, 2)
        gate.set()


async def test_how_far_it_lags_can_be_seen() -> None:
    books = Books()
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        assert books.settler.oldest_s == 0.0
        books.settler.submit(record("a"), tasks.start_soon)
        await books.clock.advance(2.0)
        books.settler.submit(record("b", "a"), tasks.start_soon)
        await books.clock.advance(3.0)
        assert (books.settler.pending, books.settler.oldest_s) == (2, 5.0)
        books.sink.gates["a"].set()


# -- lag -----------------------------------------------------------------------------------------------------------------


async def test_a_turn_passes_below_the_bound_and_is_refused_from_it_on() -> None:
    books = Books(max_unsettled=2, on_lag="refuse")
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await books.settler.admit("t", None)
        books.settler.submit(record("a"), tasks.start_soon)
        await books.settler.admit("t", "r-a")
        books.settler.submit(record("b", "a"), tasks.start_soon)
        with pytest.raises(SettlementLag) as caught:
            await books.settler.admit("t", "r-b")
        assert (caught.value.status, caught.value.code, caught.value.ran) == (429, "settlement_lag", False)
        assert caught.value.headers == {"retry-after": "1"}
        await books.settler.admit("other", "r-b")
        await books.settler.admit("t", "r-a")  # a fork from further up
        books.sink.gates["a"].set()
        await settle()
        await books.settler.admit("t", "r-b")


async def test_by_default_a_turn_proceeds_however_far_it_lags() -> None:
    books = Books(max_unsettled=1)
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
        await settle()
        await books.settler.admit("t", "r-a")
        books.sink.gates["a"].set()


@pytest.mark.parametrize("in_time", [True, False])
async def test_a_turn_may_wait_for_its_chain(in_time: bool) -> None:
    books = Books(max_unsettled=1, lag_wait_s=5.0, on_lag="refuse")
    books.sink.gates["a"] = anyio.Event()
    admitted: list[bool] = []

    async def admit() -> None:
        try:
            await books.settler.admit("t", "r-a")
        except SettlementLag:
            admitted.append(False)
        else:
            admitted.append(True)

    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
        tasks.start_soon(admit)
        await books.clock.advance(4.9)
        assert admitted == []
        if in_time:
            books.sink.gates["a"].set()
        await books.clock.advance(0.2)
        assert admitted == [in_time]
        books.sink.gates["a"].set()


# -- before the terminal event, and the end ----------------------------------------------------------------------------------


async def test_the_end_of_a_turn_may_wait_for_its_record() -> None:
    books = Books(before_terminal=True, terminal_timeout_s=2.0)
    books.sink.gates = {"a": anyio.Event(), "b": anyio.Event()}
    written: list[str] = []
    async with anyio.create_task_group() as tasks:
        settling = Settling(books.settler, tasks.start_soon)

        async def end(turn_id: str) -> None:
            await settling.settle(record(turn_id))
            written.append(turn_id)

        tasks.start_soon(end, "a")
        await settle()
        assert written == []
        books.sink.gates["a"].set()
        await settle()
        assert written == ["a"]
        tasks.start_soon(end, "b")
        await books.clock.advance(2.0)
        assert written == ["a", "b"], "the client does not wait for ever"
        assert books.sink.taken == ["a"]
        books.sink.gates["b"].set()
    assert books.sink.taken == ["a", "b"]


async def test_without_that_nobody_waits() -> None:
    books = Books()
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        settling = Settling(books.settler, tasks.start_soon)
        await settling.settle(record("a"))
        assert books.sink.taken == []
        books.sink.gates["a"].set()


async def test_a_connection_that_ends_waits_for_its_records_and_names_what_is_left() -> None:
    books = Books(drain_timeout_s=5.0, attempts=3, backoff_s=100.0)
    books.sink.gates = {"a": anyio.Event(), "stuck": anyio.Event()}
    books.sink.failures["fails"] = [RuntimeError()]
    left: list[str] = []
    async with anyio.create_task_group() as tasks:
        settling = Settling(books.settler, tasks.start_soon)
        for turn_id, parent in (("done", None), ("a", None), ("stuck", None), ("behind", "stuck"), ("fails", None)):
            settling.submit(record(turn_id, parent))

        async def drain() -> None:
            left.extend(record.turn_id for record in await settling.drain())

        tasks.start_soon(drain)
        await books.clock.advance(4.0)
        books.sink.gates["a"].set()
        await books.clock.advance(1.0)
    assert sorted(left) == sorted(books.given_up) == ["behind", "fails", "stuck"]
    assert sorted(books.sink.taken) == ["a", "done"]
    assert books.settler.pending == 0


async def test_another_connections_record_goes_on_after_the_one_before_it_was_given_up() -> None:
    """A chain may move to a new socket while its old one drains."""
    books = Books(drain_timeout_s=1.0)
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as old, anyio.create_task_group() as new:
        settling = Settling(books.settler, old.start_soon)
        settling.submit(record("a"))
        books.settler.submit(record("b", "a"), new.start_soon)
        old.start_soon(settling.drain)
        await books.clock.advance(1.0)
    assert (books.given_up, books.sink.taken) == (["a"], ["b"])


async def test_a_task_that_is_cancelled_reports_its_record() -> None:
    """On asyncio a server that stops cancels all tasks, whatever shields them."""
    books = Books()
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        delivery = books.settler.submit(record("a"), tasks.start_soon)
        await settle()
        assert delivery.scope is not None
        delivery.scope.cancel()
    assert [(turn_id, type(error)) for turn_id, error in books.reported] == [("a", Undelivered)]


async def test_a_cancelled_group_does_not_end_a_delivery_before_its_drain_does() -> None:
    books = Books(drain_timeout_s=5.0)
    books.sink.gates["a"] = anyio.Event()
    async with anyio.create_task_group() as tasks:
        settling = Settling(books.settler, tasks.start_soon)
        settling.submit(record("a"))
        await settle()
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            books.sink.gates["a"].set()
            await settling.drain()
    assert (books.sink.taken, books.reported) == (["a"], [])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_task_that_never_ran_is_reported_by_the_drain(anyio_backend: str) -> None:
    """A plain asyncio task that is cancelled before its first step runs nothing of itself, not even its ``finally``."""
    books = Books(drain_timeout_s=0.0)
    started: list[asyncio.Task[None]] = []
    settling = Settling(books.settler, lambda work: started.append(asyncio.get_running_loop().create_task(work())))
    settling.submit(record("a"))
    started[0].cancel()
    left = await settling.drain()
    assert [each.turn_id for each in left] == books.given_up == ["a"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_cancellation_that_the_hook_made_itself_is_a_failure(anyio_backend: str) -> None:
    tries: list[str] = []

    async def hook(record: TurnRecord) -> None:
        tries.append(record.turn_id)
        if len(tries) == 1:
            request = asyncio.get_running_loop().create_future()
            request.cancel()
            await request

    books = Books(hook=hook, backoff_s=0.0)
    async with anyio.create_task_group() as tasks:
        books.settler.submit(record("a"), tasks.start_soon)
    assert (tries, books.reported) == (["a", "a"], [])


async def test_a_connection_forgets_what_is_settled() -> None:
    """An hour of turns would else be kept until its end."""
    books = Books(max_unsettled=2)
    async with anyio.create_task_group() as tasks:
        settling = Settling(books.settler, tasks.start_soon)
        for number in range(100):
            settling.submit(record(str(number)))
            await settle()
        assert len(settling._deliveries) <= 4


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Settlement("hook"),  # type: ignore[arg-type]
        lambda: Settlement(Sink(), attempts=0),
        lambda: Settlement(Sink(), attempts=1.5),  # type: ignore[arg-type]
        lambda: Settlement(Sink(), max_unsettled=True),
        lambda: Settlement(Sink(), max_pending=0),
        lambda: Settlement(Sink(), on_lag="wait"),  # type: ignore[arg-type]
        lambda: Settlement(Sink(), attempt_timeout_s=0),
        lambda: Settlement(Sink(), backoff_s=-1),
        lambda: Settlement(Sink(), drain_timeout_s=float("inf")),
        lambda: Settlement(Sink(), lag_wait_s=float("nan")),
    ],
)
def test_wrong_options_are_refused_at_once(wrong: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError):
        wrong()


# -- usage -----------------------------------------------------------------------------------------------------------------


def test_usage_is_read_as_the_api_has_it() -> None:
    raw = json.dumps(
        {
            "input_tokens": 10,
            "input_tokens_details": {"cached_tokens": 4},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 15,
            "seconds_of_sound": 3,
        }
    ).encode()
    assert read_usage(raw) == TurnUsage(
        input_tokens=10, cached_tokens=4, output_tokens=5, reasoning_tokens=2, total_tokens=15, raw=raw.decode()
    )


@pytest.mark.parametrize("raw", [None, b"null", b"{}", b"[]", b"5", b"{", b"\xff", b'{"a":1e999}'])
def test_no_usage_is_none_and_not_zero(raw: bytes | None) -> None:
    """Zero would be billed as nothing used."""
    assert read_usage(raw) is None


@given(
    value=st.one_of(
        st.none(),
        st.booleans(),
        st.floats(allow_nan=False, allow_infinity=False),
        st.text(),
        st.integers(max_value=-1),
        st.just([]),
        st.just({}),
    )
)
def test_a_count_that_is_none_is_unknown(value: Any) -> None:
    raw = json.dumps(
        {"input_tokens": value, "output_tokens_details": value, "total_tokens": 3}, allow_nan=False, default=str
    )
    usage = read_usage(raw.encode())
    assert usage is not None
    assert (usage.input_tokens, usage.reasoning_tokens, usage.total_tokens) == (None, None, 3)


@pytest.mark.parametrize("size", [4095, 4096, 4097])
def test_a_huge_usage_is_not_kept_as_it_came(size: int) -> None:
    raw = b'{"input_tokens":1,"x":"' + b"x" * (size - 25) + b'"}'
    assert len(raw) == size
    usage = read_usage(raw)
    assert usage is not None
    assert (usage.raw is None) is (size > 4096)


# -- quota -----------------------------------------------------------------------------------------------------------------

REQUEST = QuotaRequest(turn_id="turn_1", tenant="t", model="m")


async def test_a_quota_that_says_nothing_lets_the_turn_run() -> None:
    seen: list[QuotaRequest] = []

    async def later(request: QuotaRequest) -> None:
        seen.append(request)

    await ask_quota(seen.append, REQUEST, clock=FakeClock(), timeout_s=1.0)
    await ask_quota(later, REQUEST, clock=FakeClock(), timeout_s=1.0)
    assert seen == [REQUEST, REQUEST]


@pytest.mark.parametrize(("seconds", "header"), [(None, None), (0.2, "1"), (1.0, "1"), (1.1, "2"), (3600, "3600")])
async def test_a_quota_refuses_by_429_and_says_when_to_come_back(seconds: float | None, header: str | None) -> None:
    def quota(request: QuotaRequest) -> None:
        raise QuotaExceeded(retry_after_s=seconds)

    with pytest.raises(QuotaExceeded) as caught:
        await ask_quota(quota, REQUEST, clock=FakeClock(), timeout_s=1.0)
    assert (caught.value.status, caught.value.code, caught.value.ran) == (429, "rate_limit_exceeded", False)
    assert caught.value.headers.get("retry-after") == header


async def test_other_refusals_are_told_as_they_are() -> None:
    def quota(request: QuotaRequest) -> None:
        raise Refused("Pay first.", status=402, code="payment_required")

    with pytest.raises(Refused, match="Pay first"):
        await ask_quota(quota, REQUEST, clock=FakeClock(), timeout_s=1.0)


async def test_a_quota_that_fails_fails_closed(caplog: pytest.LogCaptureFixture) -> None:
    def quota(request: QuotaRequest) -> None:
        raise RuntimeError

    with pytest.raises(Unavailable) as caught:
        await ask_quota(quota, REQUEST, clock=FakeClock(), timeout_s=1.0)
    assert (caught.value.status, caught.value.headers) == (503, {"retry-after": "1"})
    assert "quota raised" in caplog.text


async def test_a_quota_that_is_late_fails_closed() -> None:
    clock = FakeClock()
    errors: list[Refused] = []

    async def quota(request: QuotaRequest) -> None:
        await anyio.sleep_forever()

    async def ask() -> None:
        try:
            await ask_quota(quota, REQUEST, clock=clock, timeout_s=2.0)
        except Refused as error:
            errors.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await clock.advance(1.9)
        assert errors == []
        await clock.advance(0.1)
    assert [error.status for error in errors] == [503]
