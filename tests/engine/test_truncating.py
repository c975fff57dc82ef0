"""What does not fit into the context window is refused, or the oldest of it is left out, in whole steps."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.schema import assert_turn
from tests.engine.service import END, STOP, LetterRenderer, ScriptedService, last, letters, socket_to
from ws_responses.backends import Delta
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.engine.truncating import fitted
from ws_responses.protocol.calls import START, after_input, output_head
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import CannotRender, RenderSettings
from ws_responses.routing import SingleRouter
from ws_responses.testing.strategies import conversations, history

LINE = "x" * 20


def engine_with(window: int | None, service: ScriptedService) -> ResponsesEngine:
    return ResponsesEngine(router=SingleRouter(service, LetterRenderer(), context_window=window))


def said_by(role: str, text: str = LINE) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_the_window_takes_prompt_and_answer(more: int) -> None:
    service = ScriptedService("tokens", returns_ids=True)
    body = {"model": "m", "input": "hi", "max_output_tokens": 10}
    async with socket_to(engine_with(None, service)) as ws:
        await ws.turn(body)
    size = len(service.text())
    async with socket_to(engine_with(size + 10 - more, service)) as ws:
        events = await ws.turn(body)
        if more <= 0:
            assert_turn(events)
        else:
            assert (events[0]["status"], events[0]["error"]["code"]) == (400, "context_length_exceeded")
            assert events[0]["error"]["param"] == "input"
            assert f"has {size} tokens" in events[0]["error"]["message"]
            assert_turn(await ws.turn({**body, "input": "h"}))


async def test_a_chain_that_has_grown_too_long_goes_on_without_its_oldest_turns() -> None:
    service = ScriptedService("tokens", returns_ids=True)
    engine = engine_with(120, service)
    parent = None
    async with socket_to(engine) as ws:
        for number in range(8):
            service.will([Delta(token_ids=letters(f"answer {number}")), STOP])
            body = {"model": "m", "instructions": "Be brief.", "input": f"question {number}", "truncation": "auto"}
            events = await ws.turn({**body, "previous_response_id": parent})
            assert_turn(events)
            assert len(service.text()) < 120
            parent = last(events)["id"]
    assert service.text().startswith("Be brief.[]" + chr(END) + "u:question 4" + chr(END) + "a:answer 4")
    assert "question 7" in service.text()
    assert engine.counts.truncated == 3


async def test_what_fits_not_even_by_itself_is_refused() -> None:
    service = ScriptedService("tokens", returns_ids=True)
    async with socket_to(engine_with(50, service)) as ws:
        events = await ws.turn({"model": "m", "input": "x" * 60, "truncation": "auto"})
    assert events[0]["error"]["code"] == "context_length_exceeded"


async def test_without_truncation_a_chain_that_has_grown_too_long_is_refused() -> None:
    service = ScriptedService("tokens", returns_ids=True)
    async with socket_to(engine_with(50, service)) as ws:
        parent = last(await ws.turn({"model": "m", "input": LINE}))["id"]
        events = await ws.turn({"model": "m", "input": LINE, "previous_response_id": parent})
    assert events[0]["error"]["code"] == "context_length_exceeded"


# --- steps ----------------------------------------------------------------------------------------------------------


def cut(items: list[dict[str, Any]], budget: int, renderer: LetterRenderer | None = None) -> list[str] | None:
    """The items that are left, as ``LetterRenderer`` spells them."""
    renderer = renderer or LetterRenderer()
    beginning = renderer.begin(RenderSettings(), None)
    encoded = [json.dumps(item).encode() for item in items]
    state = fitted(renderer, beginning, encoded, lambda state: state.end <= budget, budget)
    return None if state is None else "".join(map(chr, state.ids())).split(chr(END))[1:-1]


def call(number: int, kind: str = "function") -> list[dict[str, Any]]:
    return [
        {"type": f"{kind}_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"},
        {"type": f"{kind}_call_output", "call_id": f"c{number}", "output": str(number)},
    ]


REASONING = {"type": "reasoning", "summary": []}


def test_messages_at_the_very_beginning_stay() -> None:
    items = [said_by("developer", "rules"), said_by("user", "old"), said_by("user", "new")]
    assert cut(items, 20) == ["d:rules", "u:new"]


def test_a_call_is_never_without_its_output_nor_reasoning_without_what_it_led_to() -> None:
    items = [said_by("user"), REASONING, *call(1), REASONING, *call(2), said_by("assistant", "ok")]
    assert cut(items, 30) == ["r:", "c:f {}", "o:2", "a:ok"]
    assert cut(items, 20) == ["a:ok"]
    assert cut(items, 5) is None


def test_calls_at_once_belong_together() -> None:
    (one, first), (two, second) = call(1), call(2)
    items = [said_by("user"), one, two, first, second, said_by("user", "so")]
    assert cut(items, 30) == ["c:f {}", "c:f {}", "o:1", "o:2", "u:so"]
    assert cut(items, 27) == ["u:so"]


def test_a_format_that_begins_with_a_user_gets_one() -> None:
    class Strict(LetterRenderer):
        """As templates are that want a user's message first."""

        def extend(self, state: Rendered, items: Any) -> Rendered:
            given = list(items)
            if state.before is None and given and output_head(given[0]).role != "user":
                raise CannotRender("a user's message comes first")
            return super().extend(state, given)

    items = [said_by("user", "1"), *call(1), *call(2), said_by("user", "2"), *call(3)]
    assert cut(items, 40) == ["c:f {}", "o:1", "c:f {}", "o:2", "u:2", "c:f {}", "o:3"]
    assert cut(items, 40, Strict()) == ["u:2", "c:f {}", "o:3"]


def test_the_rest_begins_with_a_users_message_if_that_leaves_out_little_more() -> None:
    items = [said_by("user", "1"), said_by("assistant", "2"), said_by("user", "3"), said_by("assistant", "4")]
    assert cut(items, 15) == ["u:3", "a:4"], "not with the answer to what was left out"
    items = [said_by("user", "1"), *call(1), *call(2), said_by("user", "2")]
    assert cut(items, 29) == ["c:f {}", "o:1", "c:f {}", "o:2", "u:2"], "an agent's loop is more than its last message"


@given(turns=conversations(flaws=False), data=st.data())
def test_what_is_left_is_the_end_of_the_conversation_and_its_calls_are_paired(turns: Any, data: st.DataObject) -> None:
    """An output without its call is refused by every service; so is a call without its output."""

    class Counting(LetterRenderer):
        """Takes any item: a token for each, which is its place."""

        def extend(self, state: Rendered, items: Any) -> Rendered:
            return state.with_tokens([encoded.index(item) for item in items])

    items = [item for item in history(turns, len(turns) - 1) if item.get("type") != "compaction"]
    encoded = [json.dumps({**item, "place": place}).encode() for place, item in enumerate(items)]
    renderer = Counting()
    beginning = Rendered.of_tokens([], None)
    budget = data.draw(st.integers(0, len(items) + 1))
    state = fitted(renderer, beginning, encoded, lambda state: state.end <= budget, budget)
    if state is None:
        return
    left = list(state.ids())
    assert len(left) <= budget
    lead = [place for place, at in enumerate(left) if place == at]
    tail = left[len(lead) :]
    assert tail == list(range(len(items) - len(tail), len(items))), "the newest items, without a gap"
    assert all(items[place].get("role") in ("system", "developer") for place in lead) or not tail
    heads = [output_head(encoded[place]) for place in left]
    open_before = after_input(START, [output_head(item) for item in encoded])
    assert after_input(START, heads).open == open_before.open
