"""What P7 says of its ratios, and that both its sides run the same loop."""

import asyncio
from collections.abc import Mapping

import pytest

from tests.conftest import require
from ws_responses.bench.command import PACKAGES
from ws_responses.bench.results import Sample
from ws_responses.bench.rollout import Rollout, interval


@pytest.mark.parametrize(("count", "expected"), [(1, (0, 0)), (5, (0, 4)), (25, (7, 17)), (100, (39, 60))])
def test_the_interval_is_that_of_the_ranks(count: int, expected: tuple[float, float]) -> None:
    """With 25 values the median is between the 8th and the 18th with 95.7 % (binomial); an outlier moves nothing."""
    values = [float(value) for value in range(count)]
    assert interval(values[::-1]) == expected
    if count >= 25:
        assert interval([*values[:-1], 1e9]) == expected


def test_both_forms_run_the_same_loop() -> None:
    """Else one side would be measured at less work: each frame is answered by the next call, and timed in both forms."""
    for package in PACKAGES:
        require(package)
    benchmark = Rollout(quick=True)
    benchmark._calls = 2

    async def measure() -> Mapping[str, Sample]:
        async with benchmark:
            return await benchmark.round(0)

    samples = asyncio.run(measure())
    assert samples.keys() == {row.key for row in benchmark.rows}
    assert {len(pairs) for pairs in benchmark._pairs.values()} == {2}
    assert "95 % interval" in benchmark.details({}).text
