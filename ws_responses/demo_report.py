"""The demo's tables: both loops side by side."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from ws_responses.demo_loop import Loop, Turn


@dataclass(frozen=True)
class Column:
    """What is told of each model call, for both loops.

    Attributes:
        title: Its head.
        of: Gives the number.
        form: How it is written.
        summary: Makes one number of all calls.
    """

    title: str
    of: Callable[[Turn], float]
    form: str
    summary: Callable[[Iterable[float]], float] = sum


SENT = Column("bytes sent", lambda turn: turn.sent, ",")
FIRST = Column("first output, ms", lambda turn: turn.first_s * 1e3, ".1f", median)
TOTAL = Column("total, ms", lambda turn: turn.total_s * 1e3, ".1f")
COMPUTED = Column("tokens computed", lambda turn: (turn.prompt or 0) - (turn.cached or 0), ",")


def table(http: Loop, ws: Loop, columns: Sequence[Column]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield (" " * 6 + "".join(f"{column.title:^22}" for column in columns)).rstrip()
    yield "call" + f"  {'HTTP':>10}{'socket':>10}" * len(columns)
    for number, turns in enumerate(zip(http.turns, ws.turns, strict=True), 1):
        yield _row(f"{number}", columns, [[column.of(turn) for turn in turns] for column in columns])
    sums = [[column.summary(map(column.of, loop.turns)) for loop in (http, ws)] for column in columns]
    medians = ", ".join(column.title for column in columns if column.summary is median)
    yield _row("all", columns, sums) + (f"    ({medians}: median)" if medians else "")


def _row(name: str, columns: Sequence[Column], pairs: Sequence[Sequence[float]]) -> str:
    cells = (
        f"  {first:>10{column.form}}{second:>10{column.form}}"
        for column, (first, second) in zip(columns, pairs, strict=True)
    )
    return f"{name:>4}" + "".join(cells)
