"""What a benchmark measures, how rounds become one number, and whether that is good enough."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Literal, Protocol


class Unexpected(Exception):
    """What is measured did not answer as it should: a failure must not look fast."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number of the report.

    Attributes:
        key: Its name in the code and in the JSON, such as "P1.relay".
        title: What is measured.
        unit: Of value and floor.
        bar: What it may be at most; None for a row that only helps to read the others.
        compare: The value divided by the floor, or less the floor.
    """

    key: str
    title: str
    unit: str
    bar: float | None
    compare: Literal["ratio", "difference"] = "ratio"


@dataclass(frozen=True, slots=True)
class Sample:
    """What one round gave for one row.

    Attributes:
        value: Ours.
        floor: What it is compared with, of the same round.
    """

    value: float
    floor: float


@dataclass(slots=True)
class Outcome:
    """All rounds of one row."""

    row: Row
    samples: list[Sample] = field(default_factory=list[Sample])

    @property
    def value(self) -> float:
        """Median of the values."""
        return median(sample.value for sample in self.samples)

    @property
    def floor(self) -> float:
        """Median of the floors."""
        return median(sample.floor for sample in self.samples)

    @property
    def compared(self) -> float:
        """Median of the rounds' own ratios (or differences): what slows both legs of a round does not count."""
        return median(self._rounds())

    @property
    def spread(self) -> tuple[float, float]:
        """Quartiles of the same; with less than four rounds the extremes."""
        rounds = self._rounds()
        if len(rounds) < 4:
            return min(rounds), max(rounds)
        low, _, high = quantiles(rounds, n=4, method="inclusive")
        return low, high

    @property
    def ok(self) -> bool:
        """Whether the bar is kept, if there is one."""
        return self.row.bar is None or self.compared <= self.row.bar

    def _rounds(self) -> list[float]:
        if self.row.compare == "ratio":
            return [sample.value / sample.floor for sample in self.samples]
        return [sample.value - sample.floor for sample in self.samples]


def in_turn(legs: Iterable[str], number: int) -> list[str]:
    """Return the names of the legs of a round, in reverse in odd rounds: none always comes first."""
    names = list(legs)
    return names if number % 2 == 0 else names[::-1]


class Benchmark(AbstractAsyncContextManager["Benchmark"], Protocol):
    """Something that is measured in rounds; entered before the first, left after the last.

    Attributes:
        name: "P1" and so on.
    """

    name: str

    @property
    def rows(self) -> Sequence[Row]:
        """What each round gives."""
        ...

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Measure ours and the floor once, in the order of :func:`in_turn`; return samples by key of the row."""
        ...
