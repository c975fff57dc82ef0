"""WebSocket mode for a server that is not ours: llama.cpp's own ``/v1/responses``, with a real model behind it.

It refuses ``previous_response_id``, and its events have no ``sequence_number``, ``output_index`` and ``content_index``.
"""

import json
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.adapters.proxy_upstream import Call
from tests.conftest import require
from tests.shell import Shell, answer, create, id_of, kinds, text_of

require("aiohttp")

from ws_responses.adapters.local_model import LocalModel  # noqa: E402 - needs its package
from ws_responses.adapters.proxy import ProxyApp  # noqa: E402 - needs aiohttp

STOP_S = 4.0
"""Far less than the answer would take, far more than the 20 ms in which the server notices."""
SHORT = {"max_output_tokens": 24, "temperature": 0}


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def proxy(local_model: LocalModel) -> AsyncIterator[ProxyApp]:
    app = ProxyApp(f"{local_model.base_url}/v1", api_key=local_model.api_key)
    yield app
    await app.aclose()


async def test_the_server_alone_refuses_a_chain(proxy: ProxyApp) -> None:
    """Without this the other tests would prove nothing: the server might have learnt it meanwhile."""
    body = json.dumps({"model": "m", "input": "hi", "previous_response_id": "resp_1", **SHORT}).encode()
    call = await Call(proxy, body=body, headers=[(b"content-type", b"application/json")]).run()

    assert call.status == 400
    assert b"previous_response_id" in call.body


async def test_a_chain_is_continued_and_its_events_lack_nothing(proxy: ProxyApp) -> None:
    """Without this a client of WebSocket mode could not use the server at all."""
    async with Shell(proxy, complete_response=True).socket() as ws:
        first = await ws.turn(create("My name is Ada. Say hello to me.", **SHORT))
        second = await ws.turn(create("What is my name?", previous_response_id=id_of(first), **SHORT))

    assert kinds(first)[-1] == kinds(second)[-1] == "completed"
    assert [event["sequence_number"] for event in second] == list(range(len(second)))
    assert all(event["output_index"] == 0 for event in second if "delta" in event)
    assert all(event["content_index"] == 0 for event in second if "delta" in event)
    assert second[-1]["response"]["previous_response_id"] == id_of(first)
    assert text_of(second[-1])
    used = [event["response"]["usage"] for event in (first[-1], second[-1])]
    assert used[1]["input_tokens"] > used[0]["input_tokens"] + used[0]["output_tokens"]
    assert used[1]["input_tokens_details"]["cached_tokens"] >= used[0]["input_tokens"] - 1


async def test_turn_after_turn_no_connection_is_lost(proxy: ProxyApp) -> None:
    """Without this one turn of four would fail: the server closes connections that it promised to keep."""
    previous = None
    outcomes = []
    async with Shell(proxy).socket() as ws:
        for number in range(8):
            turn = create(f"Say {number}", previous_response_id=previous, max_output_tokens=2)
            events = await ws.turn(turn)
            outcomes.append(kinds(events)[-1])
            previous = id_of(events)

    assert set(outcomes) <= {"completed", "incomplete"}


async def test_a_tool_call_made_elsewhere_is_answered(proxy: ProxyApp) -> None:
    """Without this an agent loop would end at the server's own idea of a function call."""
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "arguments": "{}"}
    asked = {"type": "message", "role": "user", "content": "How is the weather?"}
    async with Shell(proxy).socket() as ws:
        events = await ws.turn(create([asked, call, answer("call_1", "It rains.")], **SHORT))

    assert kinds(events)[-1] == "completed"
    assert text_of(events[-1])


async def test_a_client_that_leaves_frees_the_model(proxy: ProxyApp, local_model: LocalModel) -> None:
    """Without this the model would write to the end of its context for nobody, and others would wait for it."""
    async with Shell(proxy).socket() as ws:
        await ws.send_json(create("Count from one to a million, slowly.", max_output_tokens=1500))
        while (await ws.receive_json())["type"] != "response.output_text.delta":
            pass
        await ws.abort()
    slots = ProxyApp(local_model.base_url, prefix="", api_key=local_model.api_key)
    busy = True
    with anyio.fail_after(STOP_S):
        while busy:
            call = await Call(slots, "GET", "/slots").run()
            busy = any(slot["is_processing"] for slot in json.loads(call.body))
    await slots.aclose()
