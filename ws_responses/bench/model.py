"""How long an agent's loop takes, computed from what was measured: a small model, the same for both ways.

A turn takes, until its first event: a round trip, what the API does (measured for conversations of several lengths, in between
by a straight line), and what the backend does until its first token. Then come the other tokens, at the backend's rate. A loop of
n tool calls is n + 1 turns; each adds an answer and a tool's output to the conversation. Over a socket the first turn brings the
whole conversation, as each one does over HTTP, and opening the socket takes a round trip more than opening a connection.

What favours the socket and is left out: the time that 400 kB take on a real network (at 100 Mbit/s that is 32 ms, and more where a
connection that has idled begins slowly), what a client spends on encoding them, and that a conversation which is rendered anew
need not hit the backend's cache. What favours HTTP and is left out: time in tools, which is the same for both.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final, Literal

Way = Literal["socket", "http"]

CALLS: Final = (20, 50)
RATES: Final = (65, 1_000, 4_000)
TOKENS: Final = (5_000, 50_000, 200_000)
ROUND_TRIPS_MS: Final = (0, 20, 80)

LOOP_BAR: Final = 0.40
"""Share of a loop's time that the socket saves, in the vendor's post."""

FIRST_BAR: Final = 0.45
"""Share of the time to the first token, likewise."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop.

    Attributes:
        calls: Tools called, one after the other.
        rate: Tokens per second of the backend.
        tokens: Of the conversation at its beginning.
        round_trip_ms: Between client and server.
    """

    calls: int
    rate: int
    tokens: int
    round_trip_ms: int

    def __str__(self) -> str:
        return f"{self.calls} calls, {self.rate:,} tokens/s, {self.tokens:,} tokens, {self.round_trip_ms} ms away"


@dataclass(frozen=True, slots=True)
class Line:
    """A quantity by length of the conversation; straight lines between what was measured, and beyond.

    Attributes:
        points: Tokens and seconds, at least two, the shortest first.
    """

    points: Sequence[tuple[int, float]]

    def at(self, tokens: int) -> float:
        """Return it for a conversation of this length."""
        index = bisect_right(self.points, tokens, key=lambda point: point[0])
        index = min(max(index, 1), len(self.points) - 1)
        (x0, y0), (x1, y1) = self.points[index - 1 : index + 1]
        return y0 + (y1 - y0) * (tokens - x0) / (x1 - x0)


@dataclass(frozen=True, slots=True)
class Costs:
    """What was measured, and what is given.

    Attributes:
        socket: Seconds of the API until the first event of a turn over the socket.
        http: The same over HTTP.
        backend_first_s: Seconds of the backend until its first token.
        answer_tokens: Tokens of an answer.
        added_tokens: Tokens by which a turn makes the conversation longer.
    """

    socket: Line
    http: Line
    backend_first_s: float
    answer_tokens: int
    added_tokens: int

    def first_s(self, loop: Loop, way: Way, turn: int) -> float:
        """Return the time from a turn's request to its first event."""
        tokens = loop.tokens + turn * self.added_tokens
        line = self.socket if way == "socket" and turn else self.http
        return loop.round_trip_ms / 1e3 + line.at(tokens) + self.backend_first_s

    def loop_s(self, loop: Loop, way: Way) -> float:
        """Return the time of a loop, from the opening of its connection on."""
        turns = loop.calls + 1
        firsts = sum(self.first_s(loop, way, turn) for turn in range(turns))
        opening = (2 if way == "socket" else 1) * loop.round_trip_ms / 1e3
        return opening + firsts + turns * (self.answer_tokens - 1) / loop.rate


@dataclass(frozen=True, slots=True)
class Saving:
    """What the socket saves of a loop's time, and of the mean time to the first token of its turns; as shares.

    Attributes:
        loop: Which one.
        time: Of the loop.
        first: To the first token.
    """

    loop: Loop
    time: float
    first: float

    @classmethod
    def of(cls, loop: Loop, costs: Costs) -> "Saving":
        """Compute it."""
        turns = range(loop.calls + 1)
        first: dict[Way, float] = {}
        for way in ("socket", "http"):
            first[way] = sum(costs.first_s(loop, way, turn) for turn in turns)
        return cls(
            loop=loop,
            time=1 - costs.loop_s(loop, "socket") / costs.loop_s(loop, "http"),
            first=1 - first["socket"] / first["http"],
        )


def savings(costs: Costs) -> list[Saving]:
    """Compute the whole table."""
    points = product(CALLS, RATES, TOKENS, ROUND_TRIPS_MS)
    return [Saving.of(Loop(calls, rate, tokens, ms), costs) for calls, rate, tokens, ms in points]


def table(found: Sequence[Saving]) -> str:
    """Return the savings as text: loop time / time to the first token, in percent; what the post says is reached is marked."""
    by_loop = {saving.loop: saving for saving in found}
    reached = f"* the post's {LOOP_BAR:.0%} / {FIRST_BAR:.0%} is reached"
    lines = [f"saved by the socket, % of the loop's time / % of the time to the first token ({reached}):"]
    columns = [(rate, tokens) for rate in RATES for tokens in TOKENS]
    lines.append(" " * 24 + "".join(f"{f'{rate:,} tokens/s':<36}" for rate in RATES).rstrip())
    lines.append(
        f"{'calls, round trip':<24}" + "".join(f"{f'{tokens // 1000}k':<12}" for _, tokens in columns).rstrip()
    )
    for calls, ms in product(CALLS, ROUND_TRIPS_MS):
        cells = [_cell(by_loop[Loop(calls, rate, tokens, ms)]) for rate, tokens in columns]
        lines.append(f"{f'{calls} calls, {ms} ms':<24}" + "".join(f"{cell:<12}" for cell in cells).rstrip())
    return "\n".join(lines)


def _cell(saving: Saving) -> str:
    time = f"{saving.time * 100:.0f}{'*' if saving.time >= LOOP_BAR else ''}"
    return f"{time}/{saving.first * 100:.0f}{'*' if saving.first >= FIRST_BAR else ''}"
