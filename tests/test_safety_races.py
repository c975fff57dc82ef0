"""Upstream, classifiers and client at any speeds: in order, judged before it leaves, one end, and nobody waits for ever."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.safety_room import (
    ABOUT,
    Scripted,
    Turn,
    blocking,
    builder,
    decoded,
    encoded,
    kinds,
    options,
    snapshot_texts,
    texts_of,
)
from ws_responses.clock import MonotonicClock
from ws_responses.errors import StreamTruncated
from ws_responses.safety import (
    Carried,
    Downstream,
    Guard,
    Judge,
    OutputGate,
    Piece,
    Safety,
    SafetyInput,
    SafetyState,
    TermClassifier,
    Verdict,
)

BAD = "bad word"
PENDING = SafetyInput(stage="input", pieces=(Piece(text="the input"),), about=ABOUT)


async def pause(times: int) -> None:
    for _ in range(times):
        await checkpoint()


class Pace:
    """How often each of several steps lets others run first."""

    def __init__(self, steps: Sequence[int]) -> None:
        self._steps = steps
        self._at = 0

    async def step(self) -> None:
        self._at += 1
        await pause(self._steps[self._at % len(self._steps)])


@dataclass
class Plan:
    """One run."""

    texts: list[tuple[str, int]]
    upstream: list[int]
    classifier: list[int]
    client: list[int]
    window_chars: int
    max_held_bytes: int
    hold_back_chars: int
    beside: bool
    quick_too: bool
    end: str
    leaves_after: int | None


class Slow(Scripted):
    """A classifier at its own pace, which notes what it has let pass."""

    def __init__(self, pace: Pace) -> None:
        super().__init__(blocking(BAD))
        self._pace = pace
        self.passed = ""

    async def classify(self, delta: SafetyInput, state: Carried, /) -> Verdict:
        await self._pace.step()
        verdict = await super().classify(delta, state)
        if verdict.action == "allow" and delta.stage == "output":
            self.passed += delta.new_text
        return verdict


class Client(Turn):
    """A turn whose client reads at its own pace, and may leave."""

    def __init__(self, pace: Pace, classifier: Slow, leaves_after: int | None) -> None:
        super().__init__()
        self._pace = pace
        self._classifier = classifier
        self._leaves_after = leaves_after
        self.writing = 0

    async def event(self, payload: bytes, /) -> None:
        self.writing += 1
        assert self.writing == 1, "two events are on their way at once"
        await self._pace.step()
        if not self.gone:
            self.payloads.append(payload)
        self.gone |= self._leaves_after is not None and len(self.payloads) >= self._leaves_after
        self.writing -= 1
        for text in texts_of(decoded(self.payloads)).values():
            assert text.replace(" ", "") in self._classifier.passed.replace(" ", "").replace("\n", ""), "left unjudged"


PACE = st.lists(st.integers(0, 4), min_size=1, max_size=4)
PLANS = st.builds(
    Plan,
    texts=st.lists(
        st.tuples(
            st.sampled_from(["some good words here. ", f"oh a {BAD} there. ", "x", "short. "]), st.integers(1, 8)
        ),
        min_size=1,
        max_size=3,
    ),
    upstream=PACE,
    classifier=PACE,
    client=PACE,
    window_chars=st.sampled_from([1, 8, 100]),
    max_held_bytes=st.sampled_from([1, 2000, 1 << 20]),
    hold_back_chars=st.sampled_from([0, 6]),
    beside=st.booleans(),
    quick_too=st.booleans(),
    end=st.sampled_from(["completes", "raises", "stops"]),
    leaves_after=st.sampled_from([None, None, None, 1, 5, 9]),
)


async def run(plan: Plan) -> None:
    build = builder()
    events: list[Any] = [*build.start()]
    for text, deltas in plan.texts:
        events += build.message(text, deltas=deltas)
    if plan.end == "completes":
        events += build.complete()
    stream = encoded(events)
    classifier = Slow(Pace(plan.classifier))
    client = Client(Pace(plan.client), classifier, plan.leaves_after)
    classifiers: list[Any] = [classifier, TermClassifier([BAD])] if plan.quick_too else [classifier]
    gate = OutputGate(
        options(
            window_chars=plan.window_chars, max_held_bytes=plan.max_held_bytes, hold_back_chars=plan.hold_back_chars
        ),
        ABOUT,
        None if plan.beside else SafetyState(),
    )
    guard = Guard(Judge(Safety(*classifiers), MonotonicClock()), gate, client, stop=client.stop)
    pace = Pace(plan.upstream)

    async def answer(emit: Downstream) -> None:
        for payload in stream:
            await pace.step()
            if emit.ended:
                return
            await emit.event(payload)
        if plan.end == "raises":
            raise StreamTruncated

    raised = False
    with anyio.fail_after(20):
        try:
            await guard.run(answer, PENDING if plan.beside else None, SafetyState())
        except StreamTruncated:
            raised = True

    if client.gone:
        return
    bad = any(BAD in text for text, _ in plan.texts)
    assert client.errors == []
    assert (kinds(client.payloads)[-1:] == ["incomplete"]) is bad
    if bad:
        *sent, closing = client.payloads
        assert sent == stream[: len(sent)]
        assert client.stops == 1
        assert not raised
        texts = [text for text in snapshot_texts(json.loads(closing)["response"]) if text]
        assert texts == list(texts_of(decoded(sent)).values())
        assert BAD not in json.dumps(decoded(client.payloads))
    else:
        assert client.payloads == stream
        assert raised is (plan.end == "raises")
        assert client.stops == 0


@given(plan=PLANS)
@settings(max_examples=100, deadline=None)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_whoever_is_faster_the_client_gets_what_passed(backend: str, plan: Plan) -> None:
    """Each of the three waits for the others in turn: a lost wake-up shows as a run that does not end."""
    anyio.run(run, plan, backend=backend)
