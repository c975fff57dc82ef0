"""What the tests of the safety room share: streams of events, classifiers that do as they are told, a turn that listens."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import anyio

from ws_responses.errors import WireError
from ws_responses.protocol import events
from ws_responses.safety import About, Carried, GateOptions, SafetyInput, Verdict
from ws_responses.testing import FakeClock
from ws_responses.testing.builder import Event, ResponseBuilder, counting_ids, numbered

ABOUT = About(turn_id="turn_1", tenant="t", model="m")


def options(**changes: Any) -> GateOptions:
    """Options of a gate; by default each text is a window."""
    values: dict[str, Any] = {
        "output": "windows",
        "window_chars": 1,
        "hold_back_chars": 0,
        "overlap_chars": 64,
        "max_held_bytes": 1 << 20,
        "max_output_bytes": 1 << 20,
    }
    return GateOptions(**{**values, **changes})


def builder() -> ResponseBuilder:
    """A response in the making, the same each time."""
    return ResponseBuilder({"model": "m"}, id_factory=counting_ids(), created_at=1)


def encoded(stream: Iterable[Event]) -> list[bytes]:
    """The events as an upstream gives them."""
    return [json.dumps(event).encode() for event in numbered(stream)]


def message_stream(text: str, *, deltas: int = 4) -> list[bytes]:
    """A whole answer of one message."""
    build = builder()
    return encoded([*build.start(), *build.message(text, deltas=deltas), *build.complete()])


def decoded(payloads: Iterable[bytes | str]) -> list[Event]:
    """Events, decoded."""
    return [json.loads(payload) for payload in payloads]


def kinds(payloads: Iterable[bytes | str]) -> list[str]:
    """Types of events, without the prefix."""
    return [event["type"].removeprefix("response.") for event in decoded(payloads)]


def texts_of(stream: Iterable[Event]) -> dict[tuple[int, str, int], str]:
    """The text that a client has from the deltas, by place."""
    texts: dict[tuple[int, str, int], str] = {}
    for event in stream:
        if event["type"].endswith(".delta"):
            index: int = event.get("content_index") or event.get("summary_index") or 0
            place = (event["output_index"], event["type"].split(".")[1], index)
            texts[place] = texts.get(place, "") + event["delta"]
    return texts


def snapshot_texts(response: Mapping[str, Any]) -> list[str]:
    """All texts of a response object's output, in order."""
    texts: list[str] = []
    for item in response["output"]:
        parts = [*item.get("content", ()), *item.get("summary", ())]
        texts += [part.get("text", part.get("refusal")) for part in parts]
        texts += [item[name] for name in ("arguments", "input") if name in item]
    return texts


class TimelessClock(FakeClock):
    """A clock without time, for classifiers that never wait: no event loop is needed."""

    def move_on_after(self, seconds: float) -> Any:
        return nullcontext()


class Scripted:
    """A classifier that answers by a function of the text, and keeps what it was given."""

    def __init__(self, answer: Callable[[str], Verdict] = lambda _: Verdict(), *, name: str = "scripted") -> None:
        self.name = name
        self.answer = answer
        self.deltas: list[SafetyInput] = []
        self.states: list[Carried] = []
        self.gate: anyio.Event | None = None
        """Waited for before each answer, if it is set."""

    async def classify(self, delta: SafetyInput, state: Carried, /) -> Verdict:
        self.deltas.append(delta)
        self.states.append(state)
        if self.gate is not None:
            await self.gate.wait()
        return self.answer(delta.text)

    @property
    def texts(self) -> list[str]:
        """The new text of each delta."""
        return [delta.new_text for delta in self.deltas]


def blocking(term: str) -> Callable[[str], Verdict]:
    """Blocks what holds a term."""
    return lambda text: Verdict(action="block", categories=("term",)) if term in text else Verdict()


class Turn:
    """The end of the line: takes what leaves, as a turn does."""

    def __init__(self) -> None:
        self.payloads: list[bytes | str] = []
        self.errors: list[WireError] = []
        self.lives = 0
        self.stops = 0
        self.on_abort: Callable[[], None] | None = None
        self.in_background = False
        self.reading: anyio.Event | None = None
        """Waited for by each write, if it is set: a client that does not read."""
        self.gone = False

    async def event(self, payload: bytes, /) -> None:
        await self._write(payload)

    async def delta(self, event: str, /) -> None:
        await self._write(event)

    async def _write(self, payload: bytes | str) -> None:
        if self.reading is not None:
            await self.reading.wait()
        assert not self.ended, "an event after the end"
        self.payloads.append(payload)

    def alive(self) -> None:
        self.lives += 1

    async def fail(self, error: WireError) -> None:
        assert not self.ended, "a second end"
        self.errors.append(error)

    def stop(self) -> None:
        self.stops += 1
        if self.on_abort is not None:
            self.on_abort()

    @property
    def ended(self) -> bool:
        done = bool(self.payloads) and decoded(self.payloads[-1:])[0]["type"] in (*events.TERMINAL, events.ERROR)
        return self.gone or done or bool(self.errors)
