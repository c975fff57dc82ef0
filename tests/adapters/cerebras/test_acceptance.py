"""Cerebras the whole way: a client's socket, uvicorn, the app, the engine, the SDK, and the service's end of the wire."""
# ruff: noqa: E402 - the package is optional

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from tests.adapters.cerebras.fake import DONE, KEY, LAST, MODEL, ROLE, answer, chat, stream
from tests.adapters.proxy_servers import running
from tests.conftest import require
from tests.shell import create, id_of
from ws_responses import ConfigurationError, ResponsesApp, ResponsesEngine, Unauthorized
from ws_responses.handshake import Handshake
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.testing.services import HOLD, LoopbackService
from ws_responses.upstreams.base import Principal

for package in ("cerebras", "websockets", "uvicorn", "starlette"):
    require(package)

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from ws_responses.adapters.cerebras import CerebrasBackend

Event = dict[str, Any]

ENDED_S = 0.5
"""Time in which a service must notice that nobody wants the rest (``Backend.generate``)."""


def judge(handshake: Handshake, model: str | None) -> Principal:
    del model
    if handshake.headers.get("authorization") != "Bearer client":
        raise Unauthorized("This key is not good here.")
    return Principal(id="client")


@asynccontextmanager
async def served(service: LoopbackService, authorize: Any = "open") -> AsyncIterator[str]:
    """Serve an engine with this service; yields the base URL."""
    engine = ResponsesEngine(
        CerebrasBackend(api_key=KEY, base_url=service.url), renderer=ChatRenderer(reasoning_field="reasoning")
    )
    app = ResponsesApp(engine, authorize=authorize)
    async with running(app) as base_url:
        yield base_url
    await app.aclose()


@asynccontextmanager
async def socket(base_url: str, key: str = "client") -> AsyncIterator[ClientConnection]:
    url = f"{base_url.replace('http', 'ws')}/responses"
    headers = {"authorization": f"Bearer {key}"}
    async with connect(url, additional_headers=headers, max_size=None, proxy=None) as connection:
        yield connection


async def turn(connection: ClientConnection, body: Event) -> list[Event]:
    await connection.send(json.dumps(body))
    events: list[Event] = []
    async for frame in connection:
        events.append(json.loads(frame))
        if events[-1]["type"] in {"response.completed", "response.incomplete", "response.failed", "error"}:
            break
    return events


async def test_five_turns_in_a_row_use_one_connection(service: LoopbackService) -> None:
    service.script(*(answer(f"Answer {number}.") for number in range(5)))
    async with served(service) as base_url, socket(base_url) as connection:
        parent = None
        for number in range(5):
            events = await turn(connection, create(f"{number}?", model=MODEL, previous_response_id=parent))
            assert events[-1]["type"] == "response.completed"
            parent = id_of(events)

    assert service.connections == 1
    roles = [message["role"] for message in service.requests[-1].decoded()["messages"]]
    assert roles == ["user", "assistant"] * 4 + ["user"]


@pytest.mark.parametrize("how", ["close", "cut"])
async def test_a_client_that_leaves_its_socket_ends_the_services_stream(service: LoopbackService, how: str) -> None:
    """Who leaves in the middle of an answer must not pay for its rest."""
    service.script(stream([ROLE, chat({"content": "a"}), HOLD, LAST, DONE]), answer("Hello."))
    async with served(service) as base_url:
        async with socket(base_url) as connection:
            await connection.send(json.dumps(create("Hi", model=MODEL)))
            async for frame in connection:
                if json.loads(frame)["type"] == "response.output_text.delta":
                    break
            if how == "cut":
                connection.transport.abort()
                await service.wait_until(lambda: service.hung_up == 1, seconds=ENDED_S)
        await service.wait_until(lambda: service.hung_up == 1 and service.running == 0, seconds=ENDED_S)
        async with socket(base_url) as connection:
            assert (await turn(connection, create("Hi", model=MODEL)))[-1]["type"] == "response.completed"


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_its_request_ends_the_services_stream(
    service: LoopbackService, streamed: bool
) -> None:
    service.script(stream([ROLE, chat({"content": "a"}), HOLD, LAST, DONE]))
    async with served(service) as base_url, anyio.create_task_group() as tasks:
        tasks.start_soon(_post, base_url, create("Hi", model=MODEL, stream=streamed))
        await service.wait_until(lambda: service.running == 1)
        tasks.cancel_scope.cancel()
        with anyio.CancelScope(shield=True):
            await service.wait_until(lambda: service.hung_up == 1, seconds=ENDED_S)


async def _post(base_url: str, body: Event) -> None:
    body.pop("type", None)
    async with httpx.AsyncClient() as http, http.stream("POST", f"{base_url}/responses", json=body) as answer:
        async for _ in answer.aiter_bytes():
            pass


async def test_who_may_come_in_is_said_by_the_operator(service: LoopbackService) -> None:
    """No app judges these turns: without the rule a server would sell its key's tokens to everybody."""
    with pytest.raises(ConfigurationError, match="authorize"):
        ResponsesApp(ResponsesEngine(CerebrasBackend(api_key=KEY, base_url=service.url)))

    service.script(answer("Hello."), answer("Hello."))
    async with served(service, judge) as base_url:
        with pytest.raises(InvalidStatus) as refused:
            async with socket(base_url, "stranger"):
                pass
        async with httpx.AsyncClient(base_url=base_url) as http:
            for method, path in (("POST", "/responses"), ("GET", "/responses/resp_1"), ("GET", "/models")):
                answered = await http.request(method, path, headers={"authorization": "Bearer stranger"}, json={})
                assert answered.status_code == 401
        async with socket(base_url) as connection:
            assert (await turn(connection, create("Hi", model=MODEL)))[-1]["type"] == "response.completed"

    assert refused.value.response.status_code == 401
    assert [request.headers["authorization"] for request in service.requests] == [f"Bearer {KEY}"]
