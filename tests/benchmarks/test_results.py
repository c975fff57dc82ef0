"""How rounds become one number, and when that number is good enough."""

import pytest

from ws_responses.bench.results import Outcome, Row, Sample, in_turn


def outcome(row: Row, *samples: tuple[float, float]) -> Outcome:
    return Outcome(row, [Sample(value, floor) for value, floor in samples])


RATIO = Row("X.ratio", "a ratio", "us", bar=1.5)
GAIN = Row("X.gain", "a gain", "us", bar=10, compare="gain")
VALUE = Row("X.value", "a value", "%", bar=10, compare="value")
DIFFERENCE = Row("X.difference", "a difference", "KiB", bar=8, compare="difference")


def test_ratio_is_the_median_of_the_rounds_own_ratios() -> None:
    """Else a minute in which the machine is slow, for both sides alike, would move the result."""
    slow_in_one_round = outcome(RATIO, (12, 10), (1200, 1000), (13, 10))

    assert slow_in_one_round.compared == pytest.approx(1.2)
    assert slow_in_one_round.value == 13
    assert slow_in_one_round.floor == 10


def test_difference_is_judged_in_the_unit_of_its_row() -> None:
    """Else the memory of an idle connection would be judged as a ratio to the server's."""
    assert outcome(DIFFERENCE, (27, 19), (26, 19), (29, 19)).compared == 8


def test_gain_is_to_be_at_least_its_bar() -> None:
    """Else what is a hundred times faster would be reported as above its bar."""
    enough, too_little = outcome(GAIN, (1, 10)), outcome(GAIN, (1, 9.9))

    assert [enough.compared, too_little.compared] == [10, 9.9]
    assert [enough.ok, too_little.ok] == [True, False]
    assert too_little.share == pytest.approx(10 / 9.9)


def test_value_is_judged_by_itself() -> None:
    """Else the share of a core that something takes would be divided by another one's."""
    assert outcome(VALUE, (9, 1)).compared == 9
    assert [outcome(VALUE, (9, 1)).ok, outcome(VALUE, (11, 20)).ok] == [True, False]


def test_bar_may_be_met_exactly_but_not_be_passed() -> None:
    """Else a result right at the bar would be reported as missed, or one above as good."""
    at_the_bar, above = outcome(RATIO, (15, 10)), outcome(RATIO, (15.1, 10))

    assert [at_the_bar.ok, above.ok] == [True, False]


def test_row_without_a_bar_is_never_missed() -> None:
    """Else a row that only helps to read the others would fail a check."""
    assert outcome(Row("X.plain", "no bar", "us", bar=None), (1000, 1)).ok


def test_spread_is_the_quartiles_and_of_few_rounds_the_extremes() -> None:
    """Else a reader could not tell a steady number from a lucky one."""
    many = outcome(RATIO, *((value, 1) for value in (1, 2, 3, 4, 5)))
    few = outcome(RATIO, (1, 1), (9, 1))

    assert [*many.spread, *few.spread] == [2, 4, 1, 9]


def test_legs_change_places_from_round_to_round() -> None:
    """Else what always runs second would always find the caches of the first."""
    assert in_turn(["a", "b"], 0) == ["a", "b"]
    assert in_turn(["a", "b"], 1) == ["b", "a"]
