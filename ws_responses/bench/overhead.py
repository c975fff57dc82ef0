"""P6: what the API adds to a turn of the engine, over a socket and over HTTP with the whole conversation.

And what that makes of an agent's loop: computed for many loops, and run for some.
"""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import asdict
from statistics import median
from time import perf_counter
from typing import Final, Self, get_args

from ws_responses.bench import picture
from ws_responses.bench.agents import Agent, Connection, HttpAgent, SocketAgent, history
from ws_responses.bench.client import HttpConnection, Socket
from ws_responses.bench.engine import model
from ws_responses.bench.model import Costs, Line, Loop, Way, savings, table
from ws_responses.bench.parts import PARTS, LocalHttp, LocalSocket
from ws_responses.bench.results import Details, Outcome, Row, Sample, Unexpected, in_turn
from ws_responses.bench.server import Child, Server

_SIZES: Final = (5_000, 50_000, 100_000, 200_000)
_JUDGED: Final = 100_000
_CLASSIFIERS: Final = (1, 10)
"""Milliseconds for 100 kB."""

_BACKEND_FIRST_MS: Final = 30
"""Of the backend until its first token, when its cache holds all but what is new; the same for both."""

_LOOPS: Final = (Loop(20, 4_000, 50_000, 0), Loop(20, 1_000, 200_000, 20))
_QUICK_LOOPS: Final = (Loop(3, 4_000, 50_000, 0), Loop(3, 1_000, 200_000, 20))
_WAYS: Final[tuple[Way, ...]] = get_args(Way)
_RUN_IN: Final = (0, 1)
"""Rounds in which loops are run: they take seconds, and vary little."""


class _Pair:
    """The same conversation over both ways.

    Args:
        socket: To the engine.
        http: To the same.

    Attributes:
        tokens: Of the prompt of each turn that is measured.
        added_tokens: By a turn.
        answer_tokens: Of an answer.
    """

    def __init__(self, socket: Connection, http: Connection) -> None:
        self._agents: Mapping[str, Agent] = {"socket": SocketAgent(socket), "http": HttpAgent(http)}
        self.tokens = self.added_tokens = self.answer_tokens = 0

    async def begin(self, tokens: int) -> Self:
        """Bring the conversation, and go on from there.

        Raises:
            Unexpected: The prompts are not of the same length, about: what was sampled may be other tokens when it is rendered.
        """
        for agent in self._agents.values():
            await agent.begin(history(tokens), model())
            begun = agent.tokens
            await agent.go_on(model())
            self.added_tokens = agent.tokens - begun
            self.tokens = agent.tokens + self.added_tokens
            self.answer_tokens = agent.answer_tokens
        lengths = {way: agent.tokens for way, agent in self._agents.items()}
        if max(lengths.values()) > 1.01 * min(lengths.values()):
            raise Unexpected(f"the prompts have different lengths: {lengths}")
        return self

    async def first_ms(self, turns: int, number: int) -> Sample:
        """Return the time to the first event of turns that all continue the same conversation: over the socket, over HTTP."""
        times: dict[str, list[float]] = {way: [] for way in self._agents}
        for _ in range(turns):
            for way in in_turn(self._agents, number):
                await self._agents[way].go_on(model(), keep=False)
                times[way].append(self._agents[way].first_s)
        return Sample(median(times["socket"]) * 1e3, median(times["http"]) * 1e3)


class Overhead:
    """P6.

    Args:
        quick: Measure less.
    """

    name = "P6"

    def __init__(self, *, quick: bool) -> None:
        self._turns = 3 if quick else 6
        self._loops = _QUICK_LOOPS if quick else _LOOPS
        self._run_in = _RUN_IN[:1] if quick else _RUN_IN
        judged = f"{_JUDGED:,} tokens"
        self.rows = (
            Row(f"P6.at{_JUDGED}", f"time to the first event at {judged}: socket, beside HTTP", "ms", 10, "gain"),
            *(
                Row(f"P6.at{tokens}", f"the same at {tokens:,} tokens", "ms", None, "gain")
                for tokens in _SIZES
                if tokens != _JUDGED
            ),
            *(
                Row(f"P6.classifier{ms}", f"at {judged}, with a classifier of {ms} ms per 100 kB", "ms", None, "gain")
                for ms in _CLASSIFIERS
            ),
            *(
                Row(f"P6.part.{part}", f"CPU of that, without a classifier: {words}", "us", None, "gain")
                for part, words in PARTS.items()
            ),
            *(
                Row(f"P6.run.{way}{number}", f"{words}, {loop}: run, beside computed", "s", None)
                for number, loop in enumerate(self._loops)
                for way, words in (("socket", "socket"), ("http", "HTTP"))
            ),
        )
        self._stack = AsyncExitStack()
        self._children = ExitStack()
        self._server = Server("agents")
        self._pairs: dict[str, _Pair] = {}
        self._local: Mapping[str, LocalSocket | LocalHttp] = {}
        self._local_pair: _Pair
        self._delays: dict[int, Child] = {}

    async def __aenter__(self) -> Self:
        """Start the servers, and bring the conversations."""
        self._children.enter_context(self._server)
        for tokens in _SIZES:
            self._pairs[f"P6.at{tokens}"] = await self._pair(self._server, tokens)
        for ms in _CLASSIFIERS:
            server = self._children.enter_context(Server(f"agents-{ms}"))
            self._pairs[f"P6.classifier{ms}"] = await self._pair(server, _JUDGED)
        for ms in {loop.round_trip_ms for loop in self._loops} - {0}:
            delay = Child("ws_responses.bench.delay", str(self._server.port), str(ms / 2e3))
            self._delays[ms] = self._children.enter_context(delay)
        socket = await self._stack.enter_async_context(LocalSocket())
        http = LocalHttp()
        self._local = {"socket": socket, "http": http}
        self._local_pair = await _Pair(socket, http).begin(_JUDGED)
        return self

    async def __aexit__(self, *_: object) -> None:
        """End them."""
        await self._stack.aclose()
        self._children.close()

    async def _pair(self, server: Server, tokens: int) -> _Pair:
        socket = await Socket.connect(server.url)
        self._stack.push_async_callback(socket.close)
        http = await HttpConnection.connect(server.address)
        self._stack.callback(http.close)
        return await _Pair(socket, http).begin(tokens)

    async def round(self, number: int) -> Mapping[str, Sample]:
        """Run turns that all continue the same conversation, by turns over both ways; and some loops."""
        samples = {key: await pair.first_ms(self._turns, number) for key, pair in self._pairs.items()}
        if number in self._run_in:
            costs = self._costs({key: (sample.value, sample.floor) for key, sample in samples.items()})
            for at, loop in enumerate(self._loops):
                for way in in_turn(_WAYS, number):
                    took = await self._run(loop, way)
                    samples[f"P6.run.{way}{at}"] = Sample(took, costs.loop_s(loop, way))
        return {**samples, **await self._parts(number)}

    def details(self, outcomes: Mapping[str, Outcome]) -> Details:
        """Compute the table of loops from the medians."""
        costs = self._costs({key: (outcome.value, outcome.floor) for key, outcome in outcomes.items()})
        found = savings(costs)
        given = (
            f"computed from the times above; each answer has {costs.answer_tokens} tokens, each tool's output adds "
            f"{costs.added_tokens - costs.answer_tokens}; the backend takes {_BACKEND_FIRST_MS} ms to its first token"
        )
        return Details(
            name="loops",
            text=f"{table(found)}\n{given}",
            data=[
                {**asdict(saving.loop), "time_saved": saving.time, "first_token_time_saved": saving.first}
                for saving in found
            ],
            draw=lambda plt: picture.loops(plt, found),
        )

    def _costs(self, ms: Mapping[str, tuple[float, float]]) -> Costs:
        """Return what loops are computed from.

        Args:
            ms: Times to the first event, over the socket and over HTTP, by row.
        """
        points = [(self._pairs[f"P6.at{size}"].tokens, *ms[f"P6.at{size}"]) for size in _SIZES]
        judged = self._pairs[f"P6.at{_JUDGED}"]
        return Costs(
            socket=Line([(tokens, socket / 1e3) for tokens, socket, _ in points]),
            http=Line([(tokens, http / 1e3) for tokens, _, http in points]),
            backend_first_s=_BACKEND_FIRST_MS / 1e3,
            answer_tokens=judged.answer_tokens,
            added_tokens=judged.added_tokens,
        )

    async def _parts(self, number: int) -> Mapping[str, Sample]:
        """Return what the parts of a turn take, in microseconds."""
        us: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}
        for _ in range(self._turns):
            await self._local_pair.first_ms(1, number)
            socket, http = self._local["socket"].engine.parts(), self._local["http"].engine.parts()
            for part in PARTS:
                us[part].append((socket[part] * 1e6, http[part] * 1e6))
        return {
            f"P6.part.{part}": Sample(median(one for one, _ in found), median(other for _, other in found))
            for part, found in us.items()
        }

    async def _run(self, loop: Loop, way: Way) -> float:
        """Run a loop for real; return the seconds that it takes."""
        address = (self._delays[loop.round_trip_ms] if loop.round_trip_ms else self._server).address
        name = model(rate=loop.rate, first_ms=_BACKEND_FIRST_MS)
        items = history(loop.tokens)
        begin = perf_counter()
        if way == "socket":
            socket = await Socket.connect(f"ws://{address[0]}:{address[1]}/v1/responses")
            await _loop(SocketAgent(socket), items, name, loop.calls)
            seconds = perf_counter() - begin
            await socket.close()
            return seconds
        http = await HttpConnection.connect(address)
        await _loop(HttpAgent(http), items, name, loop.calls)
        seconds = perf_counter() - begin
        http.close()
        return seconds


async def _loop(agent: Agent, items: Sequence[bytes], name: str, calls: int) -> None:
    await agent.begin(items, name)
    for _ in range(calls):
        await agent.go_on(name)
