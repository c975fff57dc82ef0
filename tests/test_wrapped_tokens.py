"""Tokens for wrapped apps: what `current_turn().tokens` gives, and what the next turn goes on from."""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.shell import Facts
from tests.test_history_modes import Handler, ask, connect, said
from ws_responses import ConfigurationError, CurrentTurn, ResponsesWebSocketMiddleware
from ws_responses.instrumentation import TurnFinished
from ws_responses.rendering.cache import render
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.rendering.tokenizer import UnknownToken
from ws_responses.testing import MemorySocket, ScriptedApp, steps
from ws_responses.upstreams.base import Emit

SPECIAL = {"<|im_start|>": 1000, "<|im_end|>": 1001}


class Bytes:
    """A vocabulary of single bytes."""

    name = "bytes"

    def encode(self, text: str) -> Sequence[int]:
        return list(text.encode())

    def special(self, text: str) -> int:
        if text not in SPECIAL:
            raise UnknownToken(self.name, text)
        return SPECIAL[text]

    def decode(self, ids: Sequence[int]) -> bytes:
        words = {number: text.encode() for text, number in SPECIAL.items()}
        return b"".join(words.get(each) or bytes((each,)) for each in ids)


def text_of(tokens: "array[int] | None") -> str:
    assert tokens is not None
    return Bytes().decode(tokens).decode()


RENDERER = ChatMLRenderer(Bytes())


def looking(look: Callable[[CurrentTurn], Any], *answers: str) -> Handler:
    app = ScriptedApp()
    app.script(*([steps.text(text)] for text in answers))
    return Handler(look, app)


async def test_each_turn_finds_its_prompt_and_goes_on_from_the_one_before() -> None:
    """Without it the app would tokenise the whole history in each turn."""

    def look(turn: CurrentTurn) -> Any:
        assert turn.rendering is not None
        return turn.rendering.hit, turn.rendering.rendered, text_of(turn.tokens)

    handler = looking(look, "A", "B")
    async with connect(handler, renderer=RENDERER) as ws:
        first = await ask(ws, input="1")
        await ask(ws, input="2", previous_response_id=first)
    (_, _, before), (hit, rendered, after) = handler.seen
    assert before == "<|im_start|>user\n1<|im_end|>"
    assert after == f"{before}\n<|im_start|>assistant\nA<|im_end|>\n<|im_start|>user\n2<|im_end|>"
    assert hit
    assert rendered < len(after) - len(before)


async def test_warm_equals_cold() -> None:
    def look(turn: CurrentTurn) -> Any:
        return turn, turn.tokens

    handler = looking(look, *"ABCD")
    async with connect(handler, renderer=RENDERER) as ws:
        parent = None
        for number in range(3):
            parent = await ask(ws, input=str(number), previous_response_id=parent)
        await ask(ws, input="fork", previous_response_id=parent, instructions="Be brief.")
    for turn, warm in handler.seen:
        for node in turn.chain:
            node.kept = None
        cold = await render(RENDERER, turn.rendering.key, turn.parent, turn.delta)
        assert cold.state.ids() == warm
        assert not cold.hit
    assert text_of(handler.seen[-1][1]).startswith("<|im_start|>system\nBe brief.")


async def test_ids_that_the_app_sampled_are_kept_as_they_were() -> None:
    """Rendered from its text the answer could have other ids, and the backend would lose its prefix."""
    sampled = [*b"an", *b"swer", SPECIAL["<|im_end|>"]]

    def look(turn: CurrentTurn) -> Any:
        turn.record_tokens(sampled)
        return list(turn.tokens or ())

    handler = looking(look, "another text", "B")
    async with connect(handler, renderer=RENDERER) as ws:
        first = await ask(ws, input="1")
        await ask(ws, input="2", previous_response_id=first)
        assert [node.record.sampled.vocabulary for node in handler.turns[-1].chain if node.record.sampled] == [
            RENDERER.name
        ]
    assert "answer<|im_end|>" in text_of(array("I", handler.seen[1]))
    assert "another text" not in text_of(array("I", handler.seen[1]))


async def test_a_warm_up_is_rendered_for_the_turn_after_it() -> None:
    handler = looking(lambda turn: turn.rendering, "A")
    async with connect(handler, renderer=RENDERER) as ws:
        warm_up = await ask(ws, input="long" * 100, generate=False)
        await ask(ws, input="2", previous_response_id=warm_up)
    (rendering,) = handler.seen
    assert rendering.hit
    assert rendering.rendered < 100


@pytest.mark.parametrize(
    "body",
    [
        {"input": [{"type": "item_reference", "id": "msg_1"}]},
        {"input": "1", "tools": [{"type": "function"}]},
        {"input": "1", "tools": "all"},
        {"input": "1", "text": {"format": {"type": 5}}},
        {"input": "1", "reasoning": {"effort": 3}},
    ],
)
async def test_what_has_no_form_is_the_apps_to_judge(body: dict[str, Any]) -> None:
    handler = looking(lambda turn: turn.tokens, "A", "B")
    async with connect(handler, renderer=RENDERER) as ws:
        first = await ask(ws, **body)
        await ask(ws, input=said("2"), previous_response_id=first)
    assert handler.seen[0] is None


async def test_hooks_are_told_what_was_rendered() -> None:
    facts = Facts()
    async with connect(looking(lambda _: None, "A", "B"), renderer=RENDERER, hooks=[facts]) as ws:
        first = await ask(ws, input="1")
        await ask(ws, input="2", previous_response_id=first)
    anew, continued = (fact.rendering for fact in facts.of(TurnFinished))
    assert anew is not None
    assert continued is not None
    assert (anew.hit, anew.rendered, anew.rewound) == (False, anew.total, 0)
    assert (continued.hit, continued.rewound) == (True, 0)
    assert continued.rendered < continued.total


async def test_without_a_renderer_there_are_no_tokens() -> None:
    handler = looking(lambda turn: turn.tokens, "A")
    async with connect(handler) as ws:
        await ask(ws, input="1")
    assert handler.seen == [None]


async def test_what_is_rendered_is_charged() -> None:
    """Else a client could fill the memory with tokens that no budget knows of."""

    async def size(**options: Any) -> int:
        middleware = ResponsesWebSocketMiddleware(looking(lambda _: None, "A"), probe=False, **options)
        async with MemorySocket(middleware, headers=[(b"authorization", b"Bearer k")]) as ws:
            await ask(ws, input="x" * 10_000)
            return middleware.history_bytes

    assert await size(renderer=RENDERER) >= await size() + 4 * 10_000


class Nobody:
    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        raise NotImplementedError


def test_an_upstream_renders_by_itself() -> None:
    with pytest.raises(ConfigurationError, match="renderer"):
        ResponsesWebSocketMiddleware(ScriptedApp(), upstream=Nobody(), authorize="open", renderer=RENDERER)


def test_with_an_upstream_somebody_must_judge_the_clients() -> None:
    with pytest.raises(ConfigurationError, match="authorize"):
        ResponsesWebSocketMiddleware(ScriptedApp(), upstream=Nobody())
