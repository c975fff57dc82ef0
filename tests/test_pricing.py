"""What a turn has cost: exact, and unknown where a number of it is unknown."""

from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_settlement import record
from ws_responses import ConfigurationError
from ws_responses.pricing import Price
from ws_responses.settlement import TurnRecord, TurnUsage

PRICE = Price(input=Decimal("1.25"), cached_input=Decimal("0.125"), output=Decimal(10))
COUNTS = st.integers(0, 10**9)


def usage(given: int | None, cached: int | None, sampled: int | None) -> TurnUsage:
    return TurnUsage(input_tokens=given, cached_tokens=cached, output_tokens=sampled)


def test_cached_input_costs_its_own_price() -> None:
    """Else a long conversation, most of which comes from a cache, would be billed at many times what it costs."""
    cost = PRICE.cost_of(usage(1_000_000, 800_000, 1_000))
    assert cost == Decimal("0.25") + Decimal("0.1") + Decimal("0.01")


@pytest.mark.parametrize(
    "unknown", [usage(None, 0, 1), usage(1, None, 1), usage(1, 0, None), usage(1, 2, 1), TurnUsage()]
)
def test_a_cost_is_unknown_where_a_number_is(unknown: TurnUsage) -> None:
    """Else turns would be free, or billed for what nobody counted."""
    assert PRICE.cost_of(unknown) is None


def test_what_is_cached_need_not_be_known_where_it_has_no_price_of_its_own() -> None:
    """Many services do not tell it; without this none of their turns would have a cost."""
    flat = Price(input=Decimal(2), output=Decimal(4))
    same = Price(input=Decimal(2), cached_input=Decimal("2.0"), output=Decimal(4))
    assert flat.cost_of(usage(500_000, None, 250_000)) == same.cost_of(usage(500_000, None, 250_000)) == 2


@given(st.lists(st.tuples(COUNTS, COUNTS, COUNTS), min_size=1, max_size=20))
def test_costs_add_up(turns: list[tuple[int, int, int]]) -> None:
    """Else the bill of a month would differ from the sum of its turns: money is no float."""
    used = [usage(max(given, cached), cached, sampled) for given, cached, sampled in turns]
    costs = [PRICE.cost_of(one) for one in used]
    total = usage(
        *(sum(getattr(one, name) for one in used) for name in ("input_tokens", "cached_tokens", "output_tokens"))
    )
    assert sum(cost for cost in costs if cost is not None) == PRICE.cost_of(total)


@pytest.mark.parametrize(
    "wrong",
    [
        {"input": 1.25},
        {"output": 10},
        {"input": Decimal(-1)},
        {"cached_input": Decimal("NaN")},
        {"output": Decimal("Infinity")},
        {"input": None},
        {"currency": ""},
    ],
)
def test_wrong_prices_are_refused_at_once(wrong: dict[str, Any]) -> None:
    """Else the first bill would tell."""
    with pytest.raises(ConfigurationError):
        Price(**{"input": Decimal(1), "output": Decimal(1), **wrong})


def test_a_record_in_a_file_keeps_its_price_to_the_digit() -> None:
    """A price that passes through a float comes back as another one."""
    odd = Price(input=Decimal("0.10000000000000000001"), output=Decimal("1E-7"), currency="EUR")
    used = msgspec.structs.replace(record("a"), price=odd, usage=usage(3, 0, 1))
    back = msgspec.json.decode(msgspec.json.encode(used), type=TurnRecord)
    assert (back, back.cost) == (used, used.cost)
    assert b'"0.10000000000000000001"' in msgspec.json.encode(used)


@pytest.mark.parametrize("missing", ["price", "usage"])
def test_a_record_without_its_price_or_usage_has_no_cost(missing: str) -> None:
    """None, which a sum refuses; 0 would pass for free."""
    given: dict[str, Any] = {"price": PRICE, "usage": usage(1, 0, 1)} | {missing: None}
    assert msgspec.structs.replace(record("a"), **given).cost is None
