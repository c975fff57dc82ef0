"""What frameworks do beside the handler: tasks that listen, and negotiation of the answer's type."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.shell import create, error_of
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import Message, Receive, Scope, Send
from ws_responses.testing import MemorySocket, settle

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}

Respond = Callable[[Send], Awaitable[None]]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Tasks that outlive their parent are asyncio's."""
    return "asyncio", {"use_uvloop": False}


class ListensApart:
    """An app that listens in a task of its own, as Quart, Django and Falcon do: nobody ends it with the request."""

    def __init__(self, respond: Respond) -> None:
        self._respond = respond
        self.listeners: list[asyncio.Task[None]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def listen() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass

        self.listeners.append(asyncio.create_task(listen()))
        await self._respond(send)

    @property
    def left(self) -> int:
        """Listeners that still wait."""
        return sum(not task.done() for task in self.listeners)


async def breaks(send: Send) -> None:
    await send(START)
    raise RuntimeError("the stream is broken")


async def returns(send: Send) -> None:
    await send(START)


async def waits(send: Send) -> None:
    await send(START)
    await asyncio.Event().wait()


@pytest.mark.parametrize("respond", [breaks, returns, waits])
async def test_listener_ends_with_its_turn(respond: Respond) -> None:
    """Without this a task that a framework leaves in `receive` waits for ever, with all that it holds."""
    app = ListensApart(respond)
    async with MemorySocket(ResponsesWebSocketMiddleware(app, probe=False)) as ws:
        await ws.send_json(create())
        await settle()
        if respond is not waits:
            assert error_of(await ws.receive_json())["code"]
            await settle()
            assert app.left == 0
    await settle()
    assert (len(app.listeners), app.left) == (1, 0)


@pytest.mark.parametrize("respond", [breaks, returns, waits])
async def test_listener_ends_with_the_probe(respond: Respond) -> None:
    """Without this each upgrade leaves a task behind, for as long as the process lives."""
    app = ListensApart(respond)
    async with MemorySocket(ResponsesWebSocketMiddleware(app)):
        pass
    await settle()
    assert (len(app.listeners), app.left) == (1, 0)


async def test_errors_of_an_app_that_negotiates() -> None:
    """Without this an app that looks at `Accept` gives its errors without a text (Falcon), or refuses (Django REST framework)."""

    async def negotiating(scope: Scope, receive: Receive, send: Send) -> None:
        accepts = b"application/json" in dict(scope["headers"])[b"accept"]
        status, body = (429, {"error": {"message": "Come back later."}}) if accepts else (406, None)
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": json.dumps(body).encode()})

    async with MemorySocket(ResponsesWebSocketMiddleware(negotiating, probe=False)) as ws:
        (event,) = await ws.turn(create())
    assert (event["status"], event["error"]["message"]) == (429, "Come back later.")
