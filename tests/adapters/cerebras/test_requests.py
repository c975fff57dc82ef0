"""Cerebras by the real SDK, against a loopback service: what is asked, and what comes back."""

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.adapters.cerebras.fake import (
    DONE,
    KEY,
    LAST,
    LAST_TOKENS,
    MODEL,
    ROLE,
    USAGE,
    answer,
    chat,
    chat_prompt,
    completion,
    params,
    said,
    sse,
    stream,
    text_of,
    token_prompt,
)
from tests.conftest import require
from ws_responses.backends import ChatPrompt, Delta, TokenPrompt, Usage
from ws_responses.errors import ConfigurationError, UpstreamError
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.services import HOLD, HttpAnswer, LoopbackService, recut

require("cerebras")

from cerebras.cloud.sdk import AsyncCerebras, DefaultAioHttpClient  # noqa: E402 - see require

from ws_responses.adapters._cerebras_request import JSON, ONE_PIECE_BYTES, Body, evenly_strict  # noqa: E402
from ws_responses.adapters.cerebras import CerebrasBackend  # noqa: E402

TOOL = b'{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{}}}}'


@pytest.fixture
def options() -> dict[str, Any]:
    """Each chunk is a delta, whenever it comes."""
    return {"gather_s": 0.0}


async def ask(
    service: LoopbackService, prompt: ChatPrompt | TokenPrompt | None = None, *, options: Any = None, **asked: Any
) -> dict[str, Any]:
    """Return the body of the request that a generation makes."""
    backend = CerebrasBackend(api_key=KEY, base_url=service.url, **(options or {}))
    prompt = prompt or chat_prompt()
    service.script(stream([LAST_TOKENS if isinstance(prompt, TokenPrompt) else LAST, DONE]))
    async for _ in backend.generate(prompt, params(**asked)):
        pass
    await backend.aclose()
    body: dict[str, Any] = service.requests[-1].decoded()
    return body


# --- chat completions -------------------------------------------------------------------------------------------------


async def test_a_conversation_and_its_answer(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(answer("Hel", "lo"))
    deltas = [delta async for delta in backend.generate(chat_prompt("hi", "there"), params())]

    assert deltas == [
        Delta(text="Hel"),
        Delta(text="lo"),
        Delta(finish="stop", usage=Usage(input_tokens=100, cached_tokens=64, output_tokens=7, reasoning_tokens=3)),
    ]
    (request,) = service.requests
    assert (request.method, request.path) == ("POST", "/v1/chat/completions")
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["accept-encoding"] == "identity"
    assert request.decoded() == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "reasoning_format": "parsed",
        "messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": "there"}],
    }


async def test_all_that_can_be_asked_of_chat(service: LoopbackService) -> None:
    schema = b'{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object"}}}'
    prompt = chat_prompt(
        tools=b"[" + TOOL + b"]",
        tool_choice=b'{"type":"function","function":{"name":"f"}}',
        parallel_tool_calls=False,
        response_format=schema,
    )
    body = await ask(
        service,
        prompt,
        max_tokens=9,
        temperature=0.0,
        top_p=0.5,
        reasoning_effort="high",
        service_tier="flex",
        prompt_cache_key="k",
        user="u",
        session="s",
    )

    assert {
        name: value for name, value in body.items() if name not in {"model", "stream", "stream_options", "messages"}
    } == {
        "max_completion_tokens": 9,
        "temperature": 0.0,
        "top_p": 0.5,
        "reasoning_effort": "high",
        "reasoning_format": "parsed",
        "service_tier": "flex",
        "prompt_cache_key": "k",
        "user": "u",
        "tools": [json.loads(TOOL)],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "parallel_tool_calls": False,
        "response_format": json.loads(schema),
    }


async def test_what_needs_tools_is_not_asked_without_them(service: LoopbackService) -> None:
    """Services refuse a choice among no tools."""
    body = await ask(service, chat_prompt(tool_choice=b'"auto"', parallel_tool_calls=True))
    assert body.keys().isdisjoint({"tools", "tool_choice", "parallel_tool_calls"})


@pytest.mark.parametrize(
    ("model", "effort", "expected"),
    [
        ("gpt-oss-120b", "minimal", "low"),
        ("gpt-oss-120b", "medium", "medium"),
        ("gpt-oss-120b", "xhigh", "high"),
        ("gpt-oss-120b", "none", "low"),
        ("zai-glm-4.7", "none", "none"),
        ("zai-glm-4.7", "of tomorrow", "of tomorrow"),
    ],
)
async def test_reasoning_efforts(service: LoopbackService, model: str, effort: str, expected: str) -> None:
    """Cerebras answers efforts that it does not know with a 400; Codex asks for some of them."""
    assert (await ask(service, model=model, reasoning_effort=effort))["reasoning_effort"] == expected


@pytest.mark.parametrize(
    ("tier", "expected"),
    [("priority", "priority"), ("flex", "flex"), ("auto", None), ("default", None), ("fast", None)],
)
async def test_service_tiers(service: LoopbackService, tier: str, expected: str | None) -> None:
    assert (await ask(service, service_tier=tier)).get("service_tier") == expected


async def test_thinking_is_kept_where_the_model_would_drop_it(service: LoopbackService) -> None:
    """Without this each turn of GLM changes the prompt's prefix, and its cache is lost."""
    assert (await ask(service, model="zai-glm-4.7"))["clear_thinking"] is False
    assert "clear_thinking" not in await ask(service, model="gpt-oss-120b")
    assert (await ask(service, options={"keep_thinking": ("gpt",)}, model="gpt-oss-120b"))["clear_thinking"] is False
    assert "clear_thinking" not in await ask(service, options={"keep_thinking": ()}, model="zai-glm-4.7")


async def test_a_conversation_names_its_cache_if_the_client_does_not(service: LoopbackService) -> None:
    assert (await ask(service, session="conversation-1"))["prompt_cache_key"] == "conversation-1"


async def test_further_members_win(service: LoopbackService) -> None:
    body = await ask(service, options={"extra_body": {"seed": 7, "stream_options": None, "reasoning_format": "hidden"}})
    assert (body["seed"], body["reasoning_format"]) == (7, "hidden")
    assert "stream_options" not in body


async def test_the_reasoning_format_may_be_left_to_the_model(service: LoopbackService) -> None:
    assert "reasoning_format" not in await ask(service, options={"reasoning_format": None})


async def test_kept_messages_reach_the_wire_byte_for_byte(service: LoopbackService, backend: CerebrasBackend) -> None:
    """Without this old messages would be encoded anew each turn, and could change under the service's prompt cache."""
    odd = b'{"role":"user",  "content":"\\u00e9 \xc3\xa9", "n":1.0}'
    prompt = ChatPrompt(rendered=Rendered.of_messages([odd]).with_messages([b'{"role":"tool"}']))
    service.script(answer())
    _ = [delta async for delta in backend.generate(prompt, params())]

    assert odd + b',{"role":"tool"}' in service.requests[0].body


class TestStrictTools:
    """Cerebras refuses tools of which only some are strict."""

    @staticmethod
    def tool(name: str, strict: bool | None = None) -> dict[str, Any]:
        function: dict[str, Any] = {"name": name, "parameters": {"properties": {"strict": {"type": "string"}}}}
        return {"type": "function", "function": function if strict is None else {**function, "strict": strict}}

    @pytest.mark.parametrize("strict", [True, False, None])
    def test_tools_that_agree_stay_as_they_are(self, strict: bool | None) -> None:
        tools = json.dumps([self.tool("a", strict), self.tool("b", strict)], indent=1).encode()
        assert evenly_strict(tools) is tools

    @pytest.mark.parametrize("other", [False, None])
    def test_of_a_mixture_none_is_strict(self, other: bool | None) -> None:
        tools = json.dumps([self.tool("a", True), self.tool("b", other)]).encode()
        assert json.loads(evenly_strict(tools)) == [self.tool("a"), self.tool("b")]

    async def test_that_is_what_is_sent(self, service: LoopbackService) -> None:
        tools = json.dumps([self.tool("a", True), self.tool("b")]).encode()
        assert (await ask(service, chat_prompt(tools=tools)))["tools"] == [self.tool("a"), self.tool("b")]


# --- completions of token ids -----------------------------------------------------------------------------------------


async def test_ids_in_and_out(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(stream([completion("", [35644]), completion("", [200008, 1]), LAST_TOKENS, DONE]))
    deltas = [delta async for delta in backend.generate(token_prompt([200006, 17360, 200008]), params(max_tokens=5))]

    assert [list(delta.token_ids) for delta in deltas] == [[35644], [200008, 1], []]
    (request,) = service.requests
    assert (request.path, request.headers["content-type"]) == ("/v1/completions", "application/vnd.msgpack")
    assert request.decoded() == {
        "model": MODEL,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": 5,
        "return_raw_tokens": True,
        "prompt": [200006, 17360, 200008],
    }
    assert backend.accepts.form == "msgpack"
    assert backend.accepts.returns_ids


@pytest.mark.parametrize("count", [0, 15, 16, 65_535, 65_536])
async def test_any_number_of_ids(service: LoopbackService, count: int) -> None:
    """The heads of MessagePack's arrays differ by size."""
    ids = list(range(200_000, 200_000 + count))
    assert (await ask(service, token_prompt(ids)))["prompt"] == ids


async def test_any_number_of_members(service: LoopbackService) -> None:
    extra = {f"member_{number}": number for number in range(20)}
    body = await ask(service, token_prompt(), options={"extra_body": extra})
    assert body.items() >= extra.items()


async def test_ids_as_json_for_a_service_without_messagepack(service: LoopbackService) -> None:
    options = {"prompt_encoding": "json", "return_ids": False}
    body = await ask(service, token_prompt([1, 2], form="json"), options=options)

    assert (body["prompt"], service.requests[0].headers["content-type"]) == ([1, 2], "application/json")
    assert "return_raw_tokens" not in body
    accepts = CerebrasBackend(api_key=KEY, prompt_encoding="json", return_ids=False).accepts
    assert (accepts.form, accepts.returns_ids) == ("json", False)


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, ONE_PIECE_BYTES, 3_000_000])
async def test_a_body_of_any_size_has_its_length(service: LoopbackService, size: int) -> None:
    """Warnings are errors here: aiohttp warns of bodies above 1 MiB that come in one piece."""
    body = await ask(service, chat_prompt("x" * size))

    request = service.requests[-1]
    assert body["messages"][0]["content"] == "x" * size
    assert request.headers["content-length"] == str(len(request.body))
    assert "transfer-encoding" not in request.headers


async def test_a_large_body_is_not_copied() -> None:
    """Slices of what is kept, small enough to let others run in between."""
    head, array = b"x" * 10, b"y" * (2 * ONE_PIECE_BYTES + 5)
    written = [piece async for piece in Body([head, array], JSON)]

    assert b"".join(written) == head + array
    assert max(map(len, written)) == ONE_PIECE_BYTES
    assert all(memoryview(piece).obj in {head, array} for piece in written)
    assert [piece async for piece in Body([head, head], JSON)] == [head + head], "small ones go out in one packet"


@pytest.mark.parametrize(("size", "packed"), [(10, None), (5000, "gzip")])
async def test_large_bodies_may_be_compressed(service: LoopbackService, size: int, packed: str | None) -> None:
    options = {"gzip_above_bytes": 1000}
    for prompt in (chat_prompt("x" * size), token_prompt([1] * size)):
        body = await ask(service, prompt, options=options)
        request = service.requests[-1]
        assert request.headers.get("content-encoding") == packed
        assert len(body.get("prompt") or body["messages"][0]["content"]) == size
        assert len(request.body) < 1000


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 100])
async def test_pieces_of_any_size(service: LoopbackService, backend: CerebrasBackend, size: int) -> None:
    """Through real sockets; where a body is cut in every way is tested with the readers."""
    service.script(stream(recut(said("Hel", "l\u00f6", "!"), size), apart=True))
    deltas = [delta async for delta in backend.generate(chat_prompt(), params())]
    assert [delta.text for delta in deltas] == ["Hel", "l\u00f6", "!", ""]


async def test_many_events_in_one_piece(service: LoopbackService, backend: CerebrasBackend) -> None:
    words = [f" {number}" for number in range(2000)]
    service.script(stream([b"".join(said(*words))]))
    deltas = [delta async for delta in backend.generate(chat_prompt(), params())]
    assert [delta.text for delta in deltas[:-1]] == words


async def test_a_compressed_answer(service: LoopbackService, backend: CerebrasBackend) -> None:
    """Some proxies compress whatever they are told."""
    body = gzip.compress(b"".join(said("Hello")))
    service.script(stream([body[:40], body[40:]], headers=(("content-encoding", "gzip"),)))
    assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "Hello"


async def test_an_answer_that_is_no_stream(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(HttpAnswer(content_type="application/json", body=[b'{"choices":', HOLD]), answer("Hello"))
    with pytest.raises(UpstreamError, match="application/json"):
        await anext(backend.generate(chat_prompt(), params()))
    await service.wait_until(lambda: service.hung_up == 1)
    assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "Hello"


async def test_sdk_and_adapter_read_the_same(service: LoopbackService, backend: CerebrasBackend) -> None:
    """The SDK's own models are the oracle: text, reasoning, calls, usage and finish."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = [
        ROLE,
        chat({"reasoning": "hm"}),
        chat({"content": "a"}),
        chat({"tool_calls": [call]}),
        sse({"choices": []}),
        chat({}, "tool_calls", usage=USAGE),
        DONE,
    ]
    service.script(stream(body), stream(body))
    deltas = [delta async for delta in backend.generate(chat_prompt(), params())]

    async with AsyncCerebras(api_key=KEY, base_url=service.url, warm_tcp_connection=False) as client:
        theirs: Any = await client.chat.completions.create(model=MODEL, messages=[], stream=True)
        chunks = [chunk async for chunk in theirs]
    pieces = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert text_of(deltas) == "".join(piece.content or "" for piece in pieces)
    assert "".join(delta.reasoning for delta in deltas) == "".join(piece.reasoning or "" for piece in pieces)
    assert [(call.index, call.id, call.name, call.arguments) for delta in deltas for call in delta.tool_calls] == [
        (call.index, call.id, call.function.name, call.function.arguments)
        for piece in pieces
        for call in piece.tool_calls or ()
    ]
    usage = chunks[-1].usage
    assert deltas[-1].usage == Usage(
        input_tokens=usage.prompt_tokens,
        cached_tokens=usage.prompt_tokens_details.cached_tokens,
        output_tokens=usage.completion_tokens,
        reasoning_tokens=usage.completion_tokens_details.reasoning_tokens,
    )
    assert deltas[-1].finish == chunks[-1].choices[0].finish_reason


# --- warm-ups ---------------------------------------------------------------------------------------------------------


async def test_a_warm_up_opens_the_connection_of_the_next_turn(
    service: LoopbackService, backend: CerebrasBackend
) -> None:
    """Without this the first turn pays for it: two or three round trips."""
    service.script(HttpAnswer.json("ok"), answer("a"))
    assert await backend.prefill(chat_prompt(), params()) is None
    assert service.requests[0].path == "/v1/tcp_warming"
    assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "a"
    assert service.connections == 1


async def test_a_warm_up_that_fails_is_no_failure(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(HttpAnswer(status=500))
    assert await backend.prefill(chat_prompt(), params()) is None
    await service.shut()
    assert await backend.prefill(token_prompt(), params()) is None


@pytest.mark.parametrize("prompt", [chat_prompt(), token_prompt()])
async def test_a_warm_up_may_sample_one_token(service: LoopbackService, prompt: ChatPrompt | TokenPrompt) -> None:
    backend = CerebrasBackend(api_key=KEY, base_url=service.url, prefill_by_sampling=True)
    tokens = isinstance(prompt, TokenPrompt)
    service.script(stream([completion("", [1]), LAST_TOKENS, DONE] if tokens else said("x")))
    usage = await backend.prefill(prompt, params(max_tokens=100))
    await backend.aclose()

    assert usage is not None
    assert usage.cached_tokens == 64
    assert service.requests[0].decoded()["max_tokens" if tokens else "max_completion_tokens"] == 1


# --- options ----------------------------------------------------------------------------------------------------------


def test_a_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CEREBRAS_API_KEY", raising=False)
    with pytest.raises(ConfigurationError, match="CEREBRAS_API_KEY"):
        CerebrasBackend()


async def test_key_and_address_may_come_from_the_environment(
    service: LoopbackService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRAS_API_KEY", "csk-environment")
    monkeypatch.setenv("CEREBRAS_BASE_URL", service.url)
    service.script(answer("Hello"))
    backend = CerebrasBackend()
    assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "Hello"
    await backend.aclose()
    assert service.requests[0].headers["authorization"] == "Bearer csk-environment"


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
async def test_an_address_with_or_without_its_version(service: LoopbackService, suffix: str) -> None:
    backend = CerebrasBackend(api_key=KEY, base_url=f"{service.url}/gateway{suffix}")
    service.script(answer())
    _ = [delta async for delta in backend.generate(chat_prompt(), params())]
    await backend.aclose()
    assert service.requests[0].path == "/gateway/v1/chat/completions"


async def test_a_client_of_the_users_own(service: LoopbackService) -> None:
    client = AsyncCerebras(
        api_key="csk-own",
        base_url=service.url,
        default_headers={"queue_threshold": "500"},
        warm_tcp_connection=False,
        http_client=DefaultAioHttpClient(),
    )
    backend = CerebrasBackend(client=client)
    service.script(HttpAnswer(status=503), answer("Hello"))
    with pytest.raises(UpstreamError):
        await anext(backend.generate(chat_prompt(), params()))
    assert len(service.requests) == 1, "its retries are not used"
    assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "Hello"
    await backend.aclose()

    assert service.requests[1].headers["authorization"] == "Bearer csk-own"
    assert service.requests[1].headers["queue_threshold"] == "500"
    assert not client.is_closed()
    await client.close()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"api_key": "k", "client": AsyncCerebras(api_key="k", warm_tcp_connection=False)}, "api_key"),
        ({"base_url": "http://x", "client": AsyncCerebras(api_key="k", warm_tcp_connection=False)}, "base_url"),
        ({"api_key": "k", "reasoning_format": "loud"}, "reasoning_format"),
        ({"api_key": "k", "prompt_encoding": "xml"}, "prompt_encoding"),
        ({"api_key": "k", "extra_body": {"stream": False, "seed": 1}}, "stream"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        CerebrasBackend(**options)


def test_it_is_a_message_pack_array_that_is_spliced_in() -> None:
    """The rule that the body rests on: an open value at the end is one byte, which the array takes the place of."""
    assert msgspec.msgpack.encode({"a": 1, "prompt": None})[-1:] == b"\xc0"


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """Without this the user reads of a module that he has never heard of."""
    (tmp_path / "cerebras.py").write_text("raise ImportError('not installed')")
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import ws_responses.adapters.cerebras"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=30)
    assert "pip install 'ws-responses[cerebras]'" in done.stderr
