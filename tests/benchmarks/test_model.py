"""The computed loops: what the model says for costs that can be reckoned by hand."""

import pytest

from ws_responses.bench.model import (
    CALLS,
    RATES,
    ROUND_TRIPS_MS,
    TOKENS,
    Costs,
    Line,
    Loop,
    Saving,
    savings,
    table,
)


def costs(socket: float = 0.001, http: float = 0.1) -> Costs:
    """Costs that do not depend on the length of the conversation."""
    return Costs(
        socket=Line([(0, socket), (1000, socket)]),
        http=Line([(0, http), (1000, http)]),
        backend_first_s=0.02,
        answer_tokens=101,
        added_tokens=500,
    )


@pytest.mark.parametrize(
    ("tokens", "seconds"), [(1000, 1.0), (2000, 2.0), (3000, 4.0), (1500, 1.5), (2500, 3.0), (500, 0.5), (4000, 6.0)]
)
def test_line_goes_through_what_was_measured_and_on(tokens: int, seconds: float) -> None:
    """Else a length between two that were measured, or beyond, would cost what another one does."""
    assert Line([(1000, 1.0), (2000, 2.0), (3000, 4.0)]).at(tokens) == pytest.approx(seconds)


def test_loop_is_the_sum_of_its_turns() -> None:
    """Else the table would show other loops than those it names; the terms are those of the module's text."""
    loop = Loop(calls=2, rate=1000, tokens=5000, round_trip_ms=40)
    turn = 0.04 + 0.02 + 100 / 1000

    assert costs().loop_s(loop, "http") == pytest.approx(0.04 + 3 * (turn + 0.1))
    assert costs().loop_s(loop, "socket") == pytest.approx(0.08 + 3 * turn + 0.1 + 2 * 0.001)


def test_conversation_grows_from_turn_to_turn() -> None:
    """Else fifty calls would cost fifty times the first one, which favours HTTP."""
    grown = Costs(
        socket=Line([(0, 0.0), (1000, 0.0)]),
        http=Line([(0, 0.0), (1000, 0.001)]),
        backend_first_s=0.0,
        answer_tokens=1,
        added_tokens=500,
    )
    loop = Loop(calls=2, rate=1000, tokens=1000, round_trip_ms=0)

    assert grown.loop_s(loop, "http") == pytest.approx(0.001 + 0.0015 + 0.002)
    assert grown.loop_s(loop, "socket") == pytest.approx(0.001)


def test_socket_that_costs_as_much_saves_nothing() -> None:
    """Else the model would favour the socket by itself; far away it loses the round trip of its upgrade."""
    same = costs(socket=0.01, http=0.01)

    near = Saving.of(Loop(20, 1000, 5000, 0), same)
    far = Saving.of(Loop(20, 1000, 5000, 80), same)

    assert near.time == near.first == pytest.approx(0)
    assert far.time < 0
    assert far.first == pytest.approx(0)


def test_saving_is_the_share_of_what_http_takes() -> None:
    """Else forty percent would mean something else than in the post."""
    loop = Loop(20, 4000, 5000, 0)
    saving = Saving.of(loop, costs())

    took = {"socket": costs().loop_s(loop, "socket"), "http": costs().loop_s(loop, "http")}
    assert saving.time == pytest.approx((took["http"] - took["socket"]) / took["http"])
    assert saving.first == pytest.approx(20 * 0.099 / (21 * 0.12))


def test_table_has_all_loops_and_marks_what_is_reached() -> None:
    """Else a loop in which the socket brings little could be left out unseen."""
    found = savings(costs())
    text = table(found)

    assert len(found) == len(CALLS) * len(RATES) * len(TOKENS) * len(ROUND_TRIPS_MS)
    lines = text.splitlines()[3:]
    cells = [cell for line in lines for cell in line.split("ms", 1)[1].split()]
    assert len(cells) == len(found)
    marked = sum(cell.split("/")[0].endswith("*") for cell in cells)
    assert marked == sum(saving.time >= 0.4 for saving in found)
    assert 0 < marked < len(found)
