"""The whole way with a real model: a client's socket, uvicorn, the app, the engine, ChatML, llama.cpp, and back.

What is asserted is what the server computed and what it had: never how long it took.
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest
from anyio import to_thread

from tests.adapters.llama_server import LlamaServer
from tests.adapters.proxy_servers import running
from tests.conftest import require
from ws_responses import ResponsesApp
from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
from ws_responses.adapters.llama_cpp import LlamaCppBackend
from ws_responses.adapters.local_model import LocalModel
from ws_responses.engine import ResponsesEngine
from ws_responses.rendering.chatml import ChatMLRenderer

for package in ("tiktoken", "websockets", "starlette", "uvicorn"):
    require(package)

from websockets.asyncio.client import ClientConnection, connect  # noqa: E402 - the package is optional

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]  # a busy machine reads a prompt slowly

Event = dict[str, Any]

KEY = {"authorization": "Bearer somebody"}
WHOLE = 400
"""Tokens, enough for every answer that a schema of these tests lets through: how many blanks a model puts in differs by processor."""
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}
INSTRUCTIONS = "You are a careful engineer. You answer in one short sentence, and you say so if you do not know."
LOOK = {
    "type": "function",
    "name": "look",
    "description": "Looks at a file.",
    "parameters": {
        "type": "object",
        "properties": {"path": {"enum": ["a.py", "b.py", "c.py"]}},
        "required": ["path"],
        "additionalProperties": False,
    },
}
WAIT = {
    "type": "function",
    "name": "wait",
    "description": "Waits for some minutes.",
    "parameters": {
        "type": "object",
        "properties": {"minutes": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["minutes"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The adapter is asyncio's."""
    return "asyncio"


class Site:
    """An engine on the local model, served by uvicorn."""

    def __init__(self, engine: ResponsesEngine, base_url: str) -> None:
        self.engine = engine
        self.base_url = base_url

    @asynccontextmanager
    async def socket(self) -> AsyncIterator["Client"]:
        url = f"{self.base_url.replace('http', 'ws')}/responses"
        async with connect(url, additional_headers=KEY, max_size=None, proxy=None) as connection:
            yield Client(connection)


class Client:
    """One socket; counts what it sends."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.sent = 0

    async def send(self, frame: Mapping[str, Any]) -> None:
        text = json.dumps({"type": "response.create", **frame})
        self.sent = len(text)
        await self._connection.send(text)

    async def events(self) -> AsyncIterator[Event]:
        async for frame in self._connection:
            yield json.loads(frame)

    async def turn(self, content: str | list[Any], after: Event | None = None, /, **members: Any) -> Event:
        """Take one turn; return its response."""
        await self.send(body(content, after, **members))
        async for event in self.events():
            if event["type"] in TERMINAL:
                assert event["type"] != "error", event
                response: Event = event["response"]
                return response
        raise AssertionError("the socket was closed within a turn")


def body(content: str | list[Any], after: Event | None = None, /, **members: Any) -> Event:
    parent = {} if after is None else {"previous_response_id": after["id"]}
    return {
        "model": "local",
        "instructions": INSTRUCTIONS,
        "input": content,
        "temperature": 0,
        "max_output_tokens": 24,
        "store": False,
        **parent,
        **members,
    }


def cached(response: Event) -> int:
    tokens: int = response["usage"]["input_tokens_details"]["cached_tokens"]
    return tokens


def seen(response: Event) -> int:
    """Return the tokens of a turn that the model has computed: the last one sampled was never given to it."""
    total: int = response["usage"]["total_tokens"]
    return total - 1


@pytest.fixture
async def site(local_model: LocalModel) -> AsyncIterator[Site]:
    backend = LlamaCppBackend(local_model.base_url, api_key=local_model.api_key)
    engine = ResponsesEngine(backend, renderer=ChatMLRenderer(GgufTokenizer(local_model.path)), models=["local"])
    app = ResponsesApp(engine, authorize="open")
    async with running(app) as base_url:
        yield Site(engine, base_url)
    await app.aclose()


@pytest.fixture
def server(local_model: LocalModel) -> Iterator[LlamaServer]:
    server = LlamaServer(local_model)
    yield server
    server.close()


async def test_each_turn_computes_what_it_adds(site: Site) -> None:
    """The claim of the whole: the history is neither sent, nor rendered, nor computed again."""
    async with site.socket() as client:
        response = await client.turn("What does a cache do?")
        first_sent = client.sent
        for question in ("And a socket?", "And a token?", "And a lane?", "And a fork?"):
            before = response
            response = await client.turn(question, before)
            assert cached(response) >= seen(before)
            assert response["usage"]["input_tokens"] > before["usage"]["total_tokens"]
            assert client.sent < first_sent + 100
    assert site.engine.counts.ids_lost == 0


async def test_a_warm_up_has_the_model_read_the_prompt(site: Site) -> None:
    async with site.socket() as client:
        warm = await client.turn([{"role": "developer", "content": "The file is long. " * 8}], generate=False)
        response = await client.turn("What is it like?", warm)

    assert (warm["output"], warm["usage"]["output_tokens"]) == ([], 0)
    # All but the question, and what surrounds it.
    assert cached(response) >= response["usage"]["input_tokens"] - 16


async def test_forks_on_two_lanes_go_on_from_what_they_share(site: Site) -> None:
    async with site.socket() as client:
        trunk = await client.turn("Name a colour.")
        for lane, question in (("left", "Why this one?"), ("right", "Name another one.")):
            await client.send(body(question, trunk, stream_id=lane))
        ends: dict[str, Event] = {}
        async for event in client.events():
            if event["type"] in TERMINAL:
                ends[event["stream_id"]] = event["response"]
            if len(ends) == 2:
                break
        again = await client.turn("Are you sure?", ends["left"], stream_id="left")
        late = await client.turn("What was it?", trunk, stream_id="late")

    assert all(end["previous_response_id"] == trunk["id"] for end in ends.values())
    # One takes the slot that holds the trunk; the other one runs beside it in a slot that does not.
    assert max(map(cached, ends.values())) >= seen(trunk)
    assert cached(again) >= seen(ends["left"])
    # By now both slots have gone on from the trunk: what they have in common with it is still there.
    assert cached(late) >= seen(trunk)


async def test_a_new_socket_goes_on_with_what_was_sampled(site: Site) -> None:
    """The store keeps the sampled ids: rendered anew from the records, the prompt is the same to the last token."""
    async with site.socket() as client:
        first = await client.turn("What does a cache do?", store=True)
        kept = await client.turn("And a socket?", first, store=True)
    async with site.socket() as client:
        response = await client.turn("And a token?", kept, store=True)

    assert cached(response) >= seen(kept)


async def test_a_loop_of_forced_calls(site: Site) -> None:
    """Each call is begun for the model and held to the schema of the tool: what is kept of it must fit to what was sampled."""
    async with site.socket() as client:
        response = await client.turn(
            "Look at the files.", tools=[LOOK, WAIT], tool_choice="required", max_output_tokens=WHOLE
        )
        for choice in ("required", {"type": "function", "name": "wait"}, {"type": "function", "name": "look"}):
            (call,) = response["output"]
            assert call["type"] == "function_call"
            arguments = json.loads(call["arguments"])
            assert (
                arguments["path"] in {"a.py", "b.py", "c.py"}
                if call["name"] == "look"
                else 1 <= arguments["minutes"] <= 9
            )
            output = [{"type": "function_call_output", "call_id": call["call_id"], "output": "all is well"}]
            before = response
            response = await client.turn(
                output, before, tools=[LOOK, WAIT], tool_choice=choice, max_output_tokens=WHOLE
            )
            # The end of the call is written here, where the model was stopped by the schema.
            assert cached(response) >= seen(before) - 4
        assert response["output"][0]["name"] == "look"


async def test_an_answer_is_held_to_a_schema(site: Site) -> None:
    schema = {
        "type": "object",
        "properties": {"colour": {"enum": ["red", "green"]}, "sure": {"type": "boolean"}},
        "required": ["colour", "sure"],
        "additionalProperties": False,
    }
    text = {"format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True}}
    async with site.socket() as client:
        response = await client.turn("Name a colour.", text=text, max_output_tokens=WHOLE)

    answer = json.loads(response["output"][0]["content"][0]["text"])
    assert answer["colour"] in {"red", "green"}
    assert isinstance(answer["sure"], bool)


async def test_a_turn_whose_ids_were_lost_goes_on_by_its_text(site: Site) -> None:
    """The server tells one id of a character that takes several: half of them in the next prompt would be another text."""
    schema = {"type": "object", "properties": {"mood": {"const": "\U0001f642\U0001f389"}}, "required": ["mood"]}
    text = {"format": {"type": "json_schema", "name": "mood", "schema": {**schema, "additionalProperties": False}}}
    async with site.socket() as client:
        first = await client.turn("Your mood?", text=text, max_output_tokens=WHOLE)
        assert json.loads(first["output"][0]["content"][0]["text"]) == {"mood": "\U0001f642\U0001f389"}
        assert site.engine.counts.ids_lost == 1
        second = await client.turn("And now?", first, text=text, max_output_tokens=WHOLE)
        third = await client.turn("Now?", second, text=text, max_output_tokens=WHOLE)

    # What came before the answer is cached all the same.
    assert cached(second) >= first["usage"]["input_tokens"] - 1
    assert cached(third) >= second["usage"]["input_tokens"] - 1
    assert third["output"][0]["content"][0]["text"]


async def test_http_with_the_whole_history_is_answered_by_the_same_code(site: Site) -> None:
    """A client's fallback: it sends more, and is served alike."""
    async with httpx.AsyncClient(timeout=60) as http:
        answer = await http.post(f"{site.base_url}/responses", json=body("What does a cache do?"), headers=KEY)
        first = answer.json()
        history = [
            {"role": "user", "content": "What does a cache do?"},
            *first["output"],
            {"role": "user", "content": "Why?"},
        ]
        second = (await http.post(f"{site.base_url}/responses", json=body(history), headers=KEY)).json()

    async with site.socket() as client:
        start = await client.turn("What does a cache do?")
        end = await client.turn("Why?", start)
    assert [part["text"] for part in start["output"][0]["content"]] == [
        part["text"] for part in first["output"][0]["content"]
    ]
    assert second["usage"]["input_tokens"] == end["usage"]["input_tokens"]
    assert second["output"][0]["content"] == end["output"][0]["content"]


async def test_a_client_that_hangs_up_frees_the_model(site: Site, server: LlamaServer) -> None:
    before = await to_thread.run_sync(server.sampled)
    endless = {"type": "object", "properties": {"n": {"type": "array", "items": {"type": "integer"}, "minItems": 900}}}
    text = {
        "format": {
            "type": "json_schema",
            "name": "n",
            "schema": {**endless, "required": ["n"], "additionalProperties": False},
        }
    }
    async with site.socket() as client:
        await client.send(body("Count.", text=text, max_output_tokens=1_500))
        async for event in client.events():
            if event["type"] == "response.output_text.delta":
                break
    while await to_thread.run_sync(server.processing):
        await anyio.lowlevel.checkpoint()

    assert await to_thread.run_sync(server.sampled) - before < 1_000


async def test_a_conversation_that_is_too_long_is_told(site: Site) -> None:
    async with site.socket() as client:
        await client.send(body("word " * 3_000))
        event = await anext(client.events())

    assert (event["type"], event["status"], event["error"]["code"]) == ("error", 400, "context_length_exceeded")
