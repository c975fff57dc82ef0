"""P7: an agent's loop in launched form (a create for each tool output) beside prototype mode (one response, and appends).

Both run the same loop on the same code, call by call in turn, in process: the CPU from the frame with a tool's output to the end of
all that it causes.
"""

import asyncio
from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import median
from time import thread_time
from typing import Any, Final, Literal, Self, get_args

from ws_responses import Limits, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.bench.engine import CallBackend
from ws_responses.bench.inprocess import Peer, ToolApp, ToolCalled, decode_closing, decode_item
from ws_responses.bench.loop import SHELL, ToolOutputs
from ws_responses.bench.results import Details, Outcome, Row, Sample, in_turn
from ws_responses.protocol.events import encode
from ws_responses.rendering.harmony import HarmonyRenderer

Form = Literal["launched", "prototype"]
Case = Literal["engine", "engine20k", "app"]

_WORDS: Final[dict[Case, str]] = {
    "engine": "engine: CPU of a tool call, launched form beside prototype mode",
    "engine20k": "the same where the client sends 20 kB of instructions and tools each time",
    "app": "wrapped app (replay): the same, without these",
}
_BARS: Final[dict[Case, float | None]] = {"engine": 1.05, "engine20k": None, "app": 1.05}
_OUTPUT_BYTES: Final = 1_600
"""Size of a tool's output: 400 tokens."""

_LOOSE_ENDS: Final = 12
"""Rounds of the loop after a closing event in which tasks end."""

_COPIES: Final = 24
"""Tools of a client that sends many: some 14 kB, and 6 kB of instructions."""


class _Agent(Peer):
    """An agent's loop in one of both forms."""

    def __init__(self, app: ASGIApp, form: Form, settings: bytes) -> None:
        super().__init__(app)
        self._form = form
        self._settings = settings
        self._outputs = ToolOutputs()
        self._last = ToolCalled("", [])

    async def call(self) -> float:
        """Bring the output of the last tool call, and get the next one; return the CPU seconds."""
        frame = self._frame()
        begin = thread_time()
        closing = await self.exchange(frame)
        for _ in range(_LOOSE_ENDS):
            await asyncio.sleep(0)
        took = thread_time() - begin
        self._last = decode_closing(closing).response
        return took

    def _frame(self) -> bytes:
        text = self._outputs.next(_OUTPUT_BYTES)
        if not self._last.id:
            item: dict[str, Any] = {"type": "message", "role": "user", "content": text}
            return b'{"type":"response.create",%b"input":[%b]}' % (self._settings, encode(item))
        call_id = decode_item(self._last.output[-1]).call_id
        output = encode({"type": "function_call_output", "call_id": call_id, "output": text})
        if self._form == "prototype":
            return b'{"type":"response.append","input":[%b]}' % output
        parent = self._last.id.encode()
        return b'{"type":"response.create",%b"previous_response_id":"%b","input":[%b]}' % (
            self._settings,
            parent,
            output,
        )


def _app(case: Case, form: Form) -> ASGIApp:
    limits = Limits(max_rollout_appends=10_000)
    if case == "app":
        return ResponsesWebSocketMiddleware(ToolApp(), prototype=form == "prototype", limits=limits)
    engine = ResponsesEngine(CallBackend(), renderer=HarmonyRenderer())
    return ResponsesApp(engine, authorize="open", prototype=form == "prototype", limits=limits)


def _settings(case: Case) -> bytes:
    settings: dict[str, Any] = {"model": "bench", "store": False}
    if case == "engine20k":
        settings["instructions"] = ToolOutputs().next(6_000)
        settings["tools"] = [{**SHELL, "name": f"{SHELL['name']}{n or ''}"} for n in range(_COPIES)]
    return encode(settings)[1:-1] + b","


class Rollout:
    """P7.

    Args:
        quick: Measure less.
    """

    name = "P7"

    def __init__(self, *, quick: bool) -> None:
        self._calls = 12 if quick else 60
        self.rows = tuple(Row(f"P7.{case}", _WORDS[case], "us", _BARS[case]) for case in get_args(Case))
        self._apps: dict[Case, dict[Form, ASGIApp]] = {}
        self._pairs: dict[Case, list[tuple[float, float]]] = {case: [] for case in get_args(Case)}

    async def __aenter__(self) -> Self:
        """Make the apps."""
        self._apps = {case: {form: _app(case, form) for form in get_args(Form)} for case in get_args(Case)}
        return self

    async def __aexit__(self, *_: object) -> None:
        """Do nothing."""

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run a loop in both forms, call by call in turn."""
        samples: dict[str, Sample] = {}
        for case in get_args(Case):
            pairs = await self._run(case, number)
            if number >= 0:
                self._pairs[case] += pairs
            samples[f"P7.{case}"] = Sample(
                median(one for one, _ in pairs) * 1e6, median(other for _, other in pairs) * 1e6
            )
        return samples

    async def _run(self, case: Case, number: int) -> list[tuple[float, float]]:
        """Return the CPU seconds of each call but the first: in launched form, in prototype mode."""
        settings = _settings(case)
        pairs: list[tuple[float, float]] = []
        async with (
            _Agent(self._apps[case]["launched"], "launched", settings) as launched,
            _Agent(self._apps[case]["prototype"], "prototype", settings) as prototype,
        ):
            agents: dict[Form, _Agent] = {"launched": launched, "prototype": prototype}
            for call in range(self._calls + 1):
                took = {form: await agents[form].call() for form in in_turn(agents, number + call)}
                if call:
                    pairs.append((took["launched"], took["prototype"]))
        return pairs

    def details(self, outcomes: Mapping[str, Outcome]) -> Details:
        """Tell how sure the ratios are."""
        del outcomes
        data: dict[str, Any] = {}
        lines: list[str] = []
        for case, pairs in self._pairs.items():
            ratios = [one / other for one, other in pairs]
            low, high = interval(ratios)
            data[case] = {"pairs": len(ratios), "median": median(ratios), "interval": [low, high]}
            lines.append(
                f"P7.{case}: {median(ratios):.3f}x, 95 % interval {low:.3f}-{high:.3f}, {len(ratios)} pairs of calls"
            )
        return Details(name="rollout", text="\n".join(lines), data=data, draw=None)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of the median of the values' distribution, whatever that is: by the ranks (sign test).

    Args:
        values: At least one.
    """
    ranked = sorted(values)
    count = len(ranked)
    half = 1.96 * sqrt(count) / 2
    low, high = int((count - 1) / 2 - half), int((count - 1) / 2 + half + 1)
    return ranked[max(0, low)], ranked[min(count - 1, high)]
