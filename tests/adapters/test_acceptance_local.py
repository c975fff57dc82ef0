"""A long chain on the real model: what each turn costs does not grow with what came before it."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.adapters.proxy_servers import running
from tests.adapters.test_local_engine import Event, Site, cached, seen
from tests.conftest import require
from ws_responses import ResponsesApp
from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
from ws_responses.adapters.llama_cpp import LlamaCppBackend
from ws_responses.adapters.local_model import LocalModel
from ws_responses.engine import ResponsesEngine
from ws_responses.rendering.chatml import ChatMLRenderer

for package in ("tiktoken", "websockets", "starlette", "uvicorn"):
    require(package)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

TURNS = 50
LOST = {
    "emoji": "\U0001f642\U0001f389",
    "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "chinese": "\u6f22\u5b57\u9f98",
    "script": "\U00010400\U00010401",
}
"""Texts of which the model's vocabulary has no token of their own."""


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The adapter is asyncio's."""
    return "asyncio"


@pytest.fixture
async def site(local_model: LocalModel) -> AsyncIterator[Site]:
    backend = LlamaCppBackend(local_model.base_url, api_key=local_model.api_key)
    engine = ResponsesEngine(backend, renderer=ChatMLRenderer(GgufTokenizer(local_model.path)), models=["local"])
    app = ResponsesApp(engine, authorize="open")
    async with running(app) as base_url:
        yield Site(engine, base_url)
    await app.aclose()


async def test_fifty_turns_over_a_socket_are_computed_once(site: Site) -> None:
    """What the model computes, and what the client sends, is what is new: turn 50 like turn 2."""
    computed: list[int] = []
    sent: list[int] = []
    async with site.socket() as client:
        response = await client.turn("Count.", max_output_tokens=8)
        for number in range(1, TURNS):
            before = response
            response = await client.turn(f"And {number % 10}?", before, max_output_tokens=8)
            assert cached(response) >= seen(before)
            computed.append(response["usage"]["input_tokens"] - cached(response))
            sent.append(client.sent)

    assert max(computed) <= min(computed) + 8
    assert max(sent) == min(sent)
    assert response["usage"]["input_tokens"] > 15 * max(computed)
    assert site.engine.counts.ids_lost == 0


async def test_a_reconnect_after_a_warm_up_and_a_fork_computes_what_is_new(site: Site) -> None:
    async with site.socket() as client:
        rules = [{"role": "developer", "content": "The file is long, and nobody has read it. " * 6}]
        warm = await client.turn(rules, generate=False, store=True)
        first = await client.turn("What is it like?", warm, store=True)
        fork = await client.turn("Who wrote it?", warm, store=True, stream_id="fork")
    async with site.socket() as client:
        again = await client.turn("Why?", fork, store=True)
        other = await client.turn("Why?", first, store=True)

    beginning = first["usage"]["input_tokens"] - 16
    assert cached(first) >= beginning
    assert cached(fork) >= beginning
    assert cached(again) >= seen(fork)
    # The fork went on in the slot of the first: what both have in common is still there.
    assert cached(other) >= beginning


@pytest.mark.parametrize("mood", LOST.values(), ids=LOST)
async def test_ids_that_the_server_does_not_tell_are_noticed(site: Site, mood: str) -> None:
    """The text reaches the client whole, and the next prompt is that of the text: half a character in it would be another."""
    members: dict[str, Any] = {"max_output_tokens": 400, "text": {"format": _says(mood)}, "store": True}
    async with site.socket() as client:
        first = await client.turn("Your mood?", **members)
        assert _said(first) == mood
        assert site.engine.counts.ids_lost == 1
        second = await client.turn("And now?", first, **members)
        # A history that is sent again holds the same text, and gives the same prompt.
        items = [
            {"role": "user", "content": "Your mood?"},
            {"role": "assistant", "content": first["output"][0]["content"][0]["text"]},
            {"role": "user", "content": "And now?"},
        ]
        whole = await client.turn(items, **members)
    assert _said(second) == _said(whole) == mood
    assert second["usage"]["input_tokens"] == whole["usage"]["input_tokens"]


def _said(response: Event) -> str:
    mood: str = json.loads(response["output"][0]["content"][0]["text"])["mood"]
    return mood


def _says(mood: str) -> dict[str, Any]:
    schema = {
        "type": "object",
        "properties": {"mood": {"const": mood}},
        "required": ["mood"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "name": "mood", "schema": schema}
