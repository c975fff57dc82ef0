"""P11: the text that classifiers read and the items that the validator reads in one chain, over a socket and over HTTP.

Counted, not timed: the same conversation by both ways, on the same middleware. Over HTTP a client without a socket sends all of it
with each turn, so all of it is new each time.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final, Self
from unittest.mock import patch

from msgspec import Raw, Struct

from ws_responses import ResponsesWebSocketMiddleware, Safety, Verdict, turn_input, turn_node
from ws_responses._types import ASGIApp
from ws_responses.bench.agents import Agent, HttpAgent, SocketAgent
from ws_responses.bench.inprocess import Peer, ToolApp
from ws_responses.bench.parts import POST_SCOPE, Call
from ws_responses.bench.results import Details, Outcome, Row, Sample, Unexpected
from ws_responses.protocol.calls import CallState
from ws_responses.protocol.items import ItemHead
from ws_responses.safety import Carried, SafetyInput
from ws_responses.validation import check_output, heads_of

_TURNS: Final = 200
_QUICK_TURNS: Final = 40
_MODEL: Final = "bench"
_FIRST: Final = b'{"type":"message","role":"user","content":"Find out why the tests are slow."}'
_COUNTED_IN: Final = 0
"""Round in which it is counted: it comes out the same each time."""

_LINEAR: Final = 1.01
"""Bar of what is to be equal in both halves of a chain, but for its first turn: that has the settings, and no text before it."""


class Count(Struct, frozen=True):
    """What was read up to the end of a turn.

    Attributes:
        judged: Characters that a classifier was given, overlaps included.
        new: Those of them that were new to it.
        items: Items that the validator read.
    """

    judged: int = 0
    new: int = 0
    items: int = 0

    def since(self, before: "Count") -> "Count":
        """Return what was read since then."""
        return Count(self.judged - before.judged, self.new - before.new, self.items - before.items)


class _Counter:
    """A classifier that allows all, and counts."""

    name: Final = "counter"
    quick: Final = True

    def __init__(self) -> None:
        self.judged = self.new = 0

    async def classify(self, delta: SafetyInput, state: Carried, /) -> Verdict:
        del state
        self.judged += sum(len(piece.before) + len(piece.text) for piece in delta.pieces)
        self.new += sum(len(piece.text) for piece in delta.pieces)
        return Verdict()


class _Validated:
    """Counts the items that the validator reads, in the place of the two functions by which turns have it read; a context manager."""

    def __init__(self) -> None:
        self.items = 0
        self._places = ExitStack()

    def __enter__(self) -> Self:
        self._places.enter_context(patch.object(turn_input, "heads_of", self._input))
        self._places.enter_context(patch.object(turn_node, "check_output", self._output))
        return self

    def __exit__(self, *_: object) -> None:
        self._places.close()

    def _input(self, items: Sequence[Raw]) -> list[ItemHead]:
        self.items += len(items)
        return heads_of(items)

    def _output(self, state: CallState, items: Sequence[bytes]) -> CallState:
        self.items += len(items)
        return check_output(state, items)


class _LocalSocket(Peer):
    first_s = 0.0

    async def turn(self, payload: bytes) -> bytes:
        return (await self.exchange(payload)).encode()


class _LocalHttp:
    first_s = 0.0

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def turn(self, payload: bytes) -> bytes:
        """POST a body and return the answer.

        Raises:
            Unexpected: It is an error.
        """
        call = Call(payload, lambda: None)
        await self._app(POST_SCOPE, call.receive, call.send)
        if call.status != 200:
            raise Unexpected(call.answer[:400].decode(errors="replace"))
        return bytes(call.answer)


class Judged:
    """P11.

    Args:
        quick: Measure less.

    Attributes:
        counts: Of each way, what was read up to the end of each turn; the first one is the beginning.
    """

    name = "P11"

    def __init__(self, *, quick: bool) -> None:
        self._turns = turns = _QUICK_TURNS if quick else _TURNS
        self.counts: dict[str, list[Count]] = {}
        halves = f"in the second half of {turns} turns, beside the first"
        self.rows = (
            Row("P11.judged", f"socket: text judged {halves}", "chars", _LINEAR),
            Row("P11.judged.http", f"HTTP: text judged {halves}", "chars", None),
            Row(
                "P11.once", f"socket: new text judged in {turns} turns, beside one request with all of it", "chars", 1.0
            ),
            Row(
                "P11.items",
                f"socket: items validated in {turns} turns, beside one request with all of them",
                "items",
                1.0,
            ),
            Row("P11.saved", f"text judged in {turns} turns: socket, beside HTTP", "chars", turns / 4, "gain"),
        )

    async def __aenter__(self) -> Self:
        """Nothing is shared by rounds."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left."""

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run the conversation by both ways, once."""
        if number != _COUNTED_IN:
            return {}
        self.counts = {"socket": await self._by_socket(), "http": await self._by_http()}
        socket, http = self.counts["socket"], self.counts["http"]
        # The last request over HTTP has the whole conversation.
        whole = http[-1].since(http[-2])
        return {
            "P11.judged": _halves(socket),
            "P11.judged.http": _halves(http),
            "P11.once": Sample(socket[-1].new, whole.new),
            "P11.items": Sample(socket[-1].items, whole.items),
            "P11.saved": Sample(socket[-1].judged, http[-1].judged),
        }

    async def _by_socket(self) -> list[Count]:
        counter = _Counter()
        async with _LocalSocket(_guarded(counter)) as connection:
            return await self._counted(SocketAgent(connection), counter)

    async def _by_http(self) -> list[Count]:
        counter = _Counter()
        return await self._counted(HttpAgent(_LocalHttp(_guarded(counter))), counter)

    async def _counted(self, agent: Agent, counter: _Counter) -> list[Count]:
        counts = [Count()]
        with _Validated() as validated:
            for number in range(self._turns):
                if number:
                    await agent.go_on(_MODEL)
                else:
                    await agent.begin([_FIRST], _MODEL)
                counts.append(Count(counter.judged, counter.new, validated.items))
        return counts

    def details(self, outcomes: Mapping[str, Outcome]) -> Details:
        """Show how the counts grow."""
        del outcomes
        return Details(
            name="judged",
            text=_table(self.counts, self._turns),
            data={way: [[one.judged, one.new, one.items] for one in counts] for way, counts in self.counts.items()},
            draw=self._draw,
        )

    def _draw(self, plt: Any) -> Any:
        figure, (text, items) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
        for way, words, colour in (("http", "HTTP, whole conversation", "#c0504d"), ("socket", "socket", "#4c8c4a")):
            counts = self.counts[way]
            text.plot([one.judged / 1e6 for one in counts], color=colour, label=words)
            items.plot([one.items for one in counts], color=colour, label=words)
        text.set_ylabel("characters judged, in millions")
        items.set_ylabel("items validated")
        for axes in (text, items):
            axes.set_xlabel("turns of one conversation")
            axes.set_xlim(0, self._turns)
            axes.set_ylim(0)
            axes.legend(frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
        return figure


def _guarded(counter: _Counter) -> ASGIApp:
    return ResponsesWebSocketMiddleware(ToolApp(), safety=Safety(counter))


def _halves(counts: Sequence[Count]) -> Sample:
    middle = counts[len(counts) // 2]
    return Sample(counts[-1].since(middle).judged, middle.judged)


def _table(counts: Mapping[str, Sequence[Count]], turns: int) -> str:
    """Return the counts after some of the turns, as text."""
    lines = [f"{'turns':>8}  {'judged by socket':>18}  {'by HTTP':>14}  {'validated by socket':>20}  {'by HTTP':>10}"]
    for at in sorted({max(1, turns * part // 4) for part in range(5)}):
        socket, http = counts["socket"][at], counts["http"][at]
        lines.append(f"{at:>8}  {socket.judged:>18,}  {http.judged:>14,}  {socket.items:>20,}  {http.items:>10,}")
    return "\n".join([*lines, "characters given to a classifier, overlaps included, and items read by the validator"])
