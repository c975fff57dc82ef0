"""The backends for OpenAI's endpoints, against a real server that has them: llama.cpp with a small model."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest

from tests.adapters.llama_server import LlamaServer
from ws_responses.adapters.chat_completions import ChatCompletionsBackend
from ws_responses.adapters.completions import CompletionsBackend
from ws_responses.adapters.local_model import LocalModel
from ws_responses.backends import ChatPrompt, GenerateParams, TokenPrompt
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.backend_conformance import generated


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def chat(local_model: LocalModel) -> AsyncIterator[ChatCompletionsBackend]:
    backend = ChatCompletionsBackend(f"{local_model.base_url}/v1", api_key=local_model.api_key)
    yield backend
    await backend.aclose()


def asked(content: str) -> ChatPrompt:
    return ChatPrompt(rendered=Rendered.of_messages([msgspec.json.encode({"role": "user", "content": content})]))


async def test_a_conversation_is_served_and_its_beginning_cached(
    chat: ChatCompletionsBackend, local_model: LocalModel
) -> None:
    """The server closes its connections behind our back; no turn may fail for it."""
    params = GenerateParams(model=local_model.name, max_tokens=4, temperature=0.0)
    results = [await generated(chat.generate(asked("Say hello, please."), params)) for _ in range(4)]

    assert [result.error for result in results] == [None] * 4
    assert {result.text for result in results} == {results[0].text}
    assert results[0].text
    first, *others = (result.usage for result in results)
    assert first is not None
    assert first.input_tokens is not None
    assert first.output_tokens == 4
    for usage in others:
        assert usage is not None
        assert usage.cached_tokens == first.input_tokens - 1  # the last token is always read


async def test_a_warm_up_fills_the_cache(chat: ChatCompletionsBackend, local_model: LocalModel) -> None:
    prompt, params = asked("Name a colour of the sea."), GenerateParams(model=local_model.name, max_tokens=2)
    read = await chat.prefill(prompt, params)
    usage = (await generated(chat.generate(prompt, params))).usage

    assert read is not None
    assert read.input_tokens is not None
    assert usage is not None
    assert usage.cached_tokens == read.input_tokens - 1


async def test_a_cancelled_generation_frees_its_slot(chat: ChatCompletionsBackend, local_model: LocalModel) -> None:
    server = LlamaServer(local_model)
    with anyio.fail_after(30):
        async with aclosing(
            chat.generate(asked("Count to a thousand."), GenerateParams(model=local_model.name, max_tokens=1000))
        ) as deltas:
            await anext(deltas)
        while server.processing():
            await anyio.lowlevel.checkpoint()
    server.close()


@pytest.mark.parametrize(
    ("key", "content", "told"),
    [
        ("wrong", "hi", (502, "upstream_authentication_error")),
        (None, "word " * 3000, (400, "context_length_exceeded")),
    ],
)
async def test_its_refusals_are_understood(
    local_model: LocalModel, key: str | None, content: str, told: tuple[int, str]
) -> None:
    backend = ChatCompletionsBackend(f"{local_model.base_url}/v1", api_key=key or local_model.api_key)
    error = (await generated(backend.generate(asked(content), GenerateParams(model=local_model.name)))).error
    await backend.aclose()

    assert error is not None
    assert (error.status, error.code) == told
    assert local_model.api_key not in str(error)


async def test_a_prompt_of_ids(local_model: LocalModel) -> None:
    backend = CompletionsBackend(f"{local_model.base_url}/v1", server="openai", api_key=local_model.api_key)
    server = LlamaServer(local_model)
    ids = server.ids_of("The capital of France is")
    server.close()
    prompt = TokenPrompt(rendered=Rendered.of_tokens(ids, backend.accepts.form))
    params = GenerateParams(model=local_model.name, max_tokens=2, temperature=0.0)
    result = await generated(backend.generate(prompt, params))
    await backend.aclose()

    assert result.error is None
    assert "Paris" in result.text
    assert result.usage is not None
    assert result.usage.input_tokens == len(ids)
