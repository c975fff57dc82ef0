"""Settlement from a client's frame to the books: nobody waits, nothing is lost, for a wrapped app and for the engine."""

from decimal import Decimal
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.rooms import KINDS, USAGE, WAYS, Books, Heard, House, Kind, Way, next_id
from tests.shell import code_of, create, id_of, kinds
from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses._types import Receive, Scope, Send
from ws_responses.backends import Accepts, Delta, Usage
from ws_responses.engine.generation import Retry
from ws_responses.failover import FailoverRouter
from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.pricing import Price
from ws_responses.quota import QuotaExceeded, QuotaRequest
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.routing import Route
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import FakeClock, MemorySocket, settle
from ws_responses.testing.backends import Fault, ScriptedBackend

every_kind = pytest.mark.parametrize("kind", KINDS)
every_way = pytest.mark.parametrize("way", WAYS)


class SlowBooks(Books):
    """Books that take their time, by the clock of the house."""

    clock: FakeClock
    seconds = 2.0

    async def __call__(self, record: TurnRecord) -> None:
        with self.clock.move_on_after(self.seconds):
            await anyio.sleep_forever()
        await super().__call__(record)


def slow_house(kind: Kind, **options: Any) -> tuple[House, SlowBooks]:
    books = SlowBooks()
    house = House(kind, settlement=books.settlement(**options))
    books.clock = house.clock
    return house, books


async def run_chain(house: House, ws: MemorySocket, turns: int) -> list[str]:
    """Run turns that continue each other; return the ids of their responses."""
    ids: list[str] = []
    for _ in range(turns):
        house.say("Fine.")
        then = {"previous_response_id": ids[-1]} if ids else {}
        ids.append(await next_id(ws, create(**then)))
    return ids


# -- nobody waits ----------------------------------------------------------------------------------------------------------


@every_kind
async def test_no_turn_waits_for_a_slow_hook(kind: Kind) -> None:
    """Time stands still until all turns are over: had one of them waited for two seconds, it would wait for ever."""
    house, books = slow_house(kind)
    async with house.socket() as ws:
        ids = await run_chain(house, ws, 11)
        assert (house.clock.now(), books.records) == (0.0, [])
        assert house.middleware.unsettled == 11
        await house.clock.advance(2.0)
        assert [record.response_id for record in books.records] == ids[:1], "one after the other along the chain"
        await house.clock.advance(8.0)
        assert house.middleware.unsettled_s == 10.0
        await house.clock.advance(12.0)
    assert [record.response_id for record in books.records] == ids
    assert (books.lost, house.middleware.unsettled) == ([], 0)


@every_kind
async def test_the_first_event_of_the_next_turn_comes_as_early_as_without_a_hook(kind: Kind) -> None:
    """Half a second of a billing service in each turn is what this is for."""
    came: dict[str, list[float]] = {}
    for hook in ("none", "500 ms"):
        house, books = slow_house(kind)
        books.seconds = 0.5
        if hook == "none":
            house = House(kind)
        came[hook] = []
        async with house.socket() as ws:
            parent = (await run_chain(house, ws, 1))[0]
            house.say("Fine.")
            await ws.send_json(create(previous_response_id=parent))
            while (await ws.receive_json())["type"] != "response.completed":
                came[hook].append(house.clock.now())
            await house.clock.advance(1.0)
    assert came["none"] == came["500 ms"]
    assert set(came["none"]) == {0.0}


@every_kind
@pytest.mark.parametrize("on_lag", ["proceed", "refuse"])
async def test_a_turn_whose_chain_lags_waits_so_long_and_no_longer(kind: Kind, on_lag: Any) -> None:
    house, books = slow_house(kind, max_unsettled=3, lag_wait_s=1.0, on_lag=on_lag, attempt_timeout_s=100.0)
    books.seconds = 60.0
    async with house.socket() as ws:
        ids = await run_chain(house, ws, 3)
        house.say("Fine.")
        await ws.send_json(create(previous_response_id=ids[-1]))
        await house.clock.advance(0.9)
        assert house.ran == 3
        await house.clock.advance(0.1)
        last = (await ws.collect())[-1]
        await house.clock.advance(240)
    assert last["type"] == ("response.completed" if on_lag == "proceed" else "error")
    if on_lag == "refuse":
        assert (last["status"], code_of(last)) == (429, "settlement_lag")
    assert len(books.records) + len(books.lost) == (4 if on_lag == "proceed" else 3)


@every_kind
async def test_turns_that_are_refused_for_the_lag_do_not_add_to_it(kind: Kind) -> None:
    """A client that tries again and again would fill the books' queue with turns that never ran, and those that did be lost."""
    house, books = slow_house(kind, max_unsettled=1, on_lag="refuse", max_pending=3, attempt_timeout_s=100.0)
    books.seconds = 60.0
    async with house.socket() as ws:
        (first,) = await run_chain(house, ws, 1)
        for _ in range(10):
            (event,) = await ws.turn(create(previous_response_id=first))
            assert code_of(event) == "settlement_lag"
        assert house.middleware.unsettled == 1
        await house.clock.advance(60.0)
        house.say("Fine.")
        assert (await ws.turn(create(previous_response_id=first)))[-1]["type"] == "response.completed"
        await house.clock.advance(60.0)
    assert [record.outcome for record in books.records] == ["completed"] * 2
    assert not books.lost


@every_kind
async def test_a_turn_whose_chain_lags_goes_on_as_soon_as_it_may(kind: Kind) -> None:
    house, books = slow_house(kind, max_unsettled=1, lag_wait_s=5.0, on_lag="refuse")
    async with house.socket() as ws:
        (first,) = await run_chain(house, ws, 1)
        house.say("Fine.")
        await ws.send_json(create(previous_response_id=first))
        await house.clock.advance(2.0)
        assert (await ws.collect())[-1]["type"] == "response.completed"
        assert house.clock.now() == 2.0
        await house.clock.advance(2.0)
    assert len(books.records) == 2


@every_kind
async def test_the_quota_is_asked_when_the_turn_before_has_been_counted(kind: Kind) -> None:
    """As the page shows it: asked before that wait, a slow hook would let each turn pass that the one before it has used up."""
    books = Books()
    books.gate = anyio.Event()

    def quota(_: QuotaRequest) -> None:
        if books.records:
            raise QuotaExceeded

    house = House(kind, quota=quota, settlement=books.settlement(max_unsettled=1, lag_wait_s=5.0))
    house.say("One.")
    async with house.socket() as ws:
        parent = await next_id(ws, create())
        await ws.send_json(create(previous_response_id=parent))
        await settle()
        books.gate.set()
        (refusal,) = await ws.collect()
    assert code_of(refusal) == "rate_limit_exceeded"
    assert house.ran == 1


@every_kind
async def test_a_client_that_leaves_while_its_turn_waits_for_the_books_never_runs(kind: Kind) -> None:
    house, books = slow_house(kind, max_unsettled=1, lag_wait_s=50.0)
    books.seconds = 8.0
    async with house.socket() as ws:
        (first,) = await run_chain(house, ws, 1)
        await ws.send_json(create(previous_response_id=first))
        await house.clock.advance(1.0)
        await ws.abort()
        await house.clock.advance(20.0)
        await ws.wait_returned()
    assert house.ran == 1
    assert [(record.outcome, record.ran) for record in (*books.records, *books.lost)] == [
        ("completed", True),
        ("gone", False),
    ]


# -- nothing is lost -----------------------------------------------------------------------------------------------------------


@every_kind
async def test_a_hook_that_fails_twice_gets_each_record_again_and_in_order(kind: Kind) -> None:
    books = Books()
    books.fault = lambda record: OSError() if books.tries.count(record.turn_id) < 3 else None
    house = House(kind, settlement=books.settlement(backoff_s=1.0))
    async with house.socket() as ws:
        ids = await run_chain(house, ws, 10)
        assert house.clock.now() == 0.0
        await house.clock.advance(10 * 3.0)
    assert [record.response_id for record in books.records] == ids
    turns = [record.turn_id for record in books.records]
    assert books.tries == [turn for turn in turns for _ in range(3)], (
        "the same key each time, and the next when it is done"
    )
    assert books.lost == []


@every_kind
async def test_a_hook_that_hangs_loses_nothing_without_a_word(kind: Kind) -> None:
    house, books = slow_house(kind, attempts=2, attempt_timeout_s=1.0, backoff_s=0.0, drain_timeout_s=3.0)
    books.seconds = 1e6
    async with house.socket() as ws:
        ids = await run_chain(house, ws, 4)
        await house.clock.advance(2.0)
        assert [record.response_id for record in books.lost] == ids[:1]
        await ws.close()
        await house.clock.advance(3.0)
        await ws.wait_returned()
    assert [record.response_id for record in books.lost] == ids
    assert (books.records, house.middleware.unsettled) == ([], 0)


@every_kind
@every_way
async def test_no_end_is_told_that_is_not_in_the_books(kind: Kind, way: Way) -> None:
    """With ``before_terminal``: what the client has seen the end of was paid for, whatever happens to the process then."""
    books = Books()
    written_down = books.gate = anyio.Event()
    house = House(kind, settlement=books.settlement(before_terminal=True))
    house.say("Fine.", pieces=2)
    answers: list[Heard] = []

    async def ask() -> None:
        answers.append(await house.ask(way))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await house.wait_ran(1)
        await settle()
        assert (len(books.tries), answers) == (1, [])
        written_down.set()
    assert answers[0].text == "Fine."
    assert books.outcomes == ["completed"]


async def test_an_app_that_says_more_while_its_end_is_written_down_is_settled_once() -> None:
    """Its end waits for the books; a second task of it may go on meanwhile, and tell another end."""
    books = Books()
    written_down = books.gate = anyio.Event()
    house = House("app", settlement=books.settlement(before_terminal=True))
    more_said = anyio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        await receive()
        headers = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

        async def tell(kind: str) -> None:
            event = '{"type":"response.%s","response":{"id":"resp_1","object":"response","output":[]}}' % kind  # noqa: UP031
            await send({"type": "http.response.body", "body": f"data: {event}\n\n".encode(), "more_body": True})

        await tell("created")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(tell, "completed")
            while not books.tries:
                await checkpoint()
            for kind in ("in_progress", "completed", "failed"):
                await tell(kind)
            more_said.set()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    house.middleware.app = app
    async with house.socket() as ws:
        await ws.send_json(create())
        with anyio.fail_after(5):
            await more_said.wait()
        written_down.set()
        events = await ws.collect()
        await settle()
        assert ws.unread == 0
    assert kinds(events) == ["created", "completed"]
    assert books.outcomes == ["completed"]


# -- what a record tells of an engine's turn -----------------------------------------------------------------------------------

KNOWN = Usage(input_tokens=7, output_tokens=1)


@every_way
@pytest.mark.parametrize("told", [True, False])
async def test_of_a_turn_that_is_left_the_books_have_what_was_known(way: Way, told: bool) -> None:
    """A bill without it would be zero for who hangs up in time."""
    books = Books()
    house = House("engine", settlement=books.settlement())
    deltas = [Delta(text="Once upon a time", usage=KNOWN if told else None), Delta(finish="stop", usage=KNOWN)]
    house.backend.will_answer(deltas, hold_after=1)
    if way == "socket":
        async with house.socket() as ws:
            await ws.send_json(create())
            await house.wait_ran(1)
            await settle()
            await ws.abort()
            await house.clock.advance(1)
            await ws.wait_returned()
    else:
        async with house.post(stream=way == "stream") as post:
            await house.wait_ran(1)
            await settle()
            post.leave()
            await house.clock.advance(1)
            await settle()
            assert post.returned
    (record,) = books.records
    assert (record.outcome, record.ran) == ("gone", True)
    assert house.was_stopped(0)
    if told:
        assert record.usage is not None
        assert (record.usage.partial, record.usage.input_tokens, record.usage.output_tokens) == (True, 7, 1)
    elif record.usage is not None:
        assert (record.usage.partial, record.usage.input_tokens, record.usage.output_tokens) == (True, None, None)


async def test_a_failed_backend_leaves_what_was_known() -> None:
    books = Books()
    house = House("engine", settlement=books.settlement())
    house.backend.will_fail(Fault.CUT, after=[Delta(text="Half", usage=KNOWN)])
    async with house.socket() as ws:
        events = await ws.turn(create())
    assert kinds(events)[-1] == "failed"
    (record,) = books.records
    assert (record.outcome, record.ran) == ("failed", True)
    assert record.usage is not None
    assert (record.usage.partial, record.usage.input_tokens) == (True, 7)


async def test_the_record_names_the_backend_that_answered_and_a_chain_goes_where_one_does() -> None:
    """A backend dies before a turn's first output, then in the middle of one: the bills say who served what."""
    books = Books()
    first, second = ScriptedBackend(text="first"), ScriptedBackend(text="second")
    routes = [
        Route(model="m", backend=backend, backend_model="m", renderer=ChatRenderer(), name=name)
        for name, backend in (("first", first), ("second", second))
    ]
    router = FailoverRouter({"m": routes}, failures=1, clock=FakeClock())
    engine = ResponsesEngine(router=router, retry=Retry(attempts=1))
    app = ResponsesApp(engine, authorize="open", settlement=Settlement(books))
    async with MemorySocket(app) as ws:
        one = await ws.turn(create())
        first.will_fail(Fault.UNREACHABLE)
        two = await ws.turn(create(previous_response_id=id_of(one)))
        second.will_fail(Fault.CUT, after=[Delta(text="Half")])
        three = await ws.turn(create(previous_response_id=id_of(two)))
        four = await ws.turn(create())
    ends = [events[-1]["type"].removeprefix("response.") for events in (one, two, three, four)]
    assert ends == ["completed", "completed", "failed", "completed"]
    assert [(record.outcome, record.route) for record in books.records] == [
        ("completed", "first"),
        ("completed", "second"),
        ("failed", "second"),
        ("completed", "first"),
    ]


PRICE = Price(input=Decimal(2), cached_input=Decimal("0.5"), output=Decimal(8))


async def test_a_record_tells_what_its_turn_has_cost_by_the_price_of_its_route() -> None:
    """Else whoever bills would have to know by which price a turn ran that has gone elsewhere, or ran before it changed."""
    books, told = Books(), list[Fact]()
    backends = [ScriptedBackend(text="Fine.", accepts=Accepts(kinds=frozenset({"chat"}))) for _ in range(2)]
    routes = [
        Route(model="m", backend=backend, backend_model="m", renderer=ChatRenderer(), name=name, price=price)
        for backend, name, price in zip(backends, ("priced", "unpriced"), (PRICE, None), strict=True)
    ]
    router = FailoverRouter({"m": routes}, failures=1, clock=FakeClock())
    engine = ResponsesEngine(router=router, retry=Retry(attempts=1))
    app = ResponsesApp(engine, authorize="open", settlement=Settlement(books), hooks=[told.append])
    backends[0].will_answer([Delta(text="Fine."), Delta(finish="stop", usage=USAGE)])
    async with MemorySocket(app) as ws:
        one = await ws.turn(create())
        backends[0].will_answer([Delta(text="Fine."), Delta(finish="stop")])
        two = await ws.turn(create(previous_response_id=id_of(one)))
        backends[0].will_fail(Fault.UNREACHABLE)
        await ws.turn(create(previous_response_id=id_of(two)))
    first, unused, elsewhere = books.records
    assert (first.price, first.cost) == (PRICE, Decimal("0.000031"))
    assert (unused.price, unused.cost) == (PRICE, None), "what was used is unknown, and is not 0"
    assert (elsewhere.route, elsewhere.price, elsewhere.cost) == ("unpriced", None, None)
    finished = [fact for fact in told if isinstance(fact, TurnFinished)]
    assert [(fact.route, fact.route_reused) for fact in finished] == [
        ("priced", None),
        ("priced", True),
        ("unpriced", False),
    ]


@pytest.mark.parametrize("told", [True, False])
async def test_a_warm_up_that_made_the_backend_work_has_run(told: bool) -> None:
    """It cost something, what the backend has told of it: its response says 0 tokens, and a bill by that would be wrong."""
    books = Books()
    house = House("engine", settlement=books.settlement())
    if not told:
        house.backend.will_fail(Fault.UNREACHABLE)
    async with house.socket() as ws:
        await ws.turn(create(generate=False))
    (record,) = books.records
    assert (record.outcome, record.ran) == ("warm_up", True)
    if told:
        assert record.usage is not None
        assert (record.usage.partial, record.usage.output_tokens) == (False, 0)
        assert record.usage.input_tokens
    else:
        assert record.usage is None
    assert house.backend.generations[0].kind == "prefill"


@every_kind
async def test_a_turn_that_a_time_limit_ends_leaves_its_record(kind: Kind) -> None:
    books = Books()
    house = House(kind, limits={"event_timeout_s": 10.0}, settlement=books.settlement())
    house.say("Once upon a time", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create())
        await house.wait_ran(1)
        await house.clock.advance(13)
        events = await ws.collect()
        await house.clock.advance(1)
    assert kinds(events)[-1] == "failed"
    (record,) = books.records
    assert (record.outcome, record.ran, record.code) == ("aborted", True, events[-1]["response"]["error"]["code"])


@every_kind
async def test_a_turn_that_the_shutdown_ends_leaves_its_record(kind: Kind) -> None:
    books = Books()
    house = House(kind, limits={"age_grace_s": 5.0}, settlement=books.settlement())
    house.say("Once upon a time", then_wait=True)
    async with house.socket() as ws:
        await ws.send_json(create())
        await house.wait_ran(1)
        await settle()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(house.middleware.drain)
            await house.clock.advance(6)
            await ws.close()
            await house.clock.advance(1)
    (record,) = books.records
    assert (record.outcome, record.ran) == ("drained", True)
