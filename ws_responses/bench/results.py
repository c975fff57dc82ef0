"""What a benchmark measures, how rounds become one number, and whether that is good enough."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Final, Literal, Protocol, TypeVar, runtime_checkable

_Name = TypeVar("_Name", bound=str)

Compare = Literal["ratio", "gain", "difference", "value"]


class Unexpected(Exception):
    """What is measured did not answer as it should: a failure must not look fast."""


@dataclass(frozen=True, slots=True)
class Row:
    """One number of the report.

    Attributes:
        key: Its name in the code and in the JSON, such as "P1.relay".
        title: What is measured.
        unit: Of value and floor.
        bar: What it may be at most, and a gain at least; None for a row that only helps to read the others.
        compare: The value divided by the floor ("ratio"), the floor divided by the value ("gain"), the value less the floor
            ("difference"), or the value by itself ("value").
    """

    key: str
    title: str
    unit: str
    bar: float | None
    compare: Compare = "ratio"


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
    def share(self) -> float | None:
        """Share of the bar that is used up: at most 1 if the bar is kept; None if there is none."""
        return self.share_of(self.compared)

    def share_of(self, compared: float) -> float | None:
        """Return the share of the bar that a number would use up."""
        bar = self.row.bar
        if bar is None:
            return None
        return bar / compared if self.row.compare == "gain" else compared / bar

    @property
    def ok(self) -> bool:
        """Whether the bar is kept, if there is one."""
        return self.share is None or self.share <= 1

    def _rounds(self) -> list[float]:
        return [_COMPARE[self.row.compare](sample) for sample in self.samples]


_COMPARE: Final[dict[Compare, Callable[[Sample], float]]] = {
    "ratio": lambda sample: sample.value / sample.floor,
    "gain": lambda sample: sample.floor / sample.value,
    "difference": lambda sample: sample.value - sample.floor,
    "value": lambda sample: sample.value,
}


def compared_text(row: Row, compared: float) -> str:
    """Return a row's number as it is printed."""
    return f"{compared:+.2f}" if row.compare == "difference" else f"{digits(compared)}{sign(row)}"


def sign(row: Row) -> str:
    """Return what stands behind a row's number and its bar."""
    return "x" if row.compare in ("ratio", "gain") else ""


def digits(value: float) -> str:
    """Return a number with as many digits as say something."""
    return f"{value:.2f}" if abs(value) < 100 else f"{value:,.0f}"


def in_turn(legs: Iterable[_Name], number: int) -> list[_Name]:
    """Return the names of the legs of a round, in reverse in odd rounds: none always comes first."""
    names = list(legs)
    return names if number % 2 == 0 else names[::-1]


@dataclass(frozen=True, slots=True)
class Details:
    """What a benchmark says beside its rows.

    Attributes:
        name: Of the picture and of the member in the JSON.
        text: For the terminal.
        data: For the JSON.
        draw: Draws a picture by ``matplotlib.pyplot``, and returns the figure; None for no picture.
    """

    name: str
    text: str
    data: Any
    draw: Callable[[Any], Any] | None


@runtime_checkable
class Detailed(Protocol):
    """A benchmark that says more than its rows."""

    def details(self, outcomes: Mapping[str, Outcome]) -> Details:
        """Return it, from the outcomes by key of the row."""
        ...


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
