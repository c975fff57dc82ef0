"""How an app's call ends that is ended from outside: its generators closed by who runs them, its failures told apart from its end."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from tests.shell import KEY, Client, Shell, code_of, create, kinds
from tests.test_connection import GRACE, START, sse
from ws_responses import CurrentTurn, Handshake, Principal, ResponsesWebSocketMiddleware
from ws_responses._types import Message, Receive, Scope, Send
from ws_responses.errors import StoreError
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, settle
from ws_responses.upstreams.base import Emit

# -- generators ---------------------------------------------------------------------------------------------------------


class Streams:
    """An app that streams what a generator yields, in bursts, as frameworks do: they leave the closing of it to chance.

    Args:
        listens: It cancels its stream when it hears of the disconnect (Starlette), or never listens (Falcon, Sanic).
    """

    def __init__(self, *, listens: bool) -> None:
        self._listens = listens
        self.running: set[int] = set()
        self.in_order: list[bool] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send(START)
        if not self._listens:
            await self._stream(send, scope["state"]["ws_responses.turn"].lane)
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._stream, send, scope["state"]["ws_responses.turn"].lane)
            await receive()
            tasks.cancel_scope.cancel()

    async def _stream(self, send: Send, lane: str) -> None:
        me = anyio.get_current_task().id
        self.running.add(me)
        try:
            async for message in self._messages(lane):
                await send(message)
        finally:
            self.running.discard(me)

    async def _messages(self, lane: str) -> AsyncGenerator[Message]:
        try:
            yield sse("created", response_id=f"resp_{lane}")
            for number in range(60):
                if not number % 3:
                    await checkpoint()
                event = f'data: {{"type":"response.custom","sequence_number":{number + 1}}}\n\n'
                yield {"type": "http.response.body", "body": event.encode(), "more_body": True}
            await anyio.sleep_forever()
        finally:
            self.in_order.append(anyio.get_current_task().id in self.running)


async def leaves(ws: Client, shell: Shell) -> None:
    await ws.close()
    await shell.clock.advance(GRACE)


async def is_sent_away(ws: Client, shell: Shell) -> None:
    for connection in list(shell.middleware.registry.connections):
        connection.disconnect("revoked")
    await shell.clock.advance(10 + GRACE)  # the close waits for the client to read


async def never_reads(ws: Client, shell: Shell) -> None:
    await shell.clock.advance(60 + 60 / 4 + GRACE)


@pytest.mark.parametrize("listens", [True, False])
@pytest.mark.parametrize("lanes", [1, 4])
@pytest.mark.parametrize("end", [leaves, is_sent_away, never_reads])
async def test_a_generator_is_closed_by_who_runs_it(
    end: Callable[[Client, Shell], Awaitable[None]], lanes: int, listens: bool
) -> None:
    """Held up by a slow client when it is ended, in its `send`: an exception there would leave the generator to the garbage
    collector, which closes it in a task and a context of its own (no open transaction ends in there), with a warning on trio."""
    app = Streams(listens=listens)
    shell = Shell(app, probe=False)
    async with shell.socket(max_unread=4) as ws:
        for lane in range(lanes):
            await ws.send_json(create(stream_id=f"lane-{lane}"))
        await ws.wait_blocked()
        await settle()
        await end(ws, shell)
        await settle()
        assert app.in_order == [True] * lanes


async def test_a_generator_that_goes_on_is_closed_by_who_runs_it() -> None:
    """Not held up at all, but always on its way when the operator ends the connection."""
    app = Streams(listens=True)
    shell = Shell(app, probe=False)
    async with shell.socket(max_unread=None) as ws:
        await ws.send_json(create(stream_id="a"))
        await ws.receive_json()
        await is_sent_away(ws, shell)
        await settle()
    assert app.in_order == [True]


# -- failures while it is ended -----------------------------------------------------------------------------------------


async def fails_when_it_ends() -> None:
    try:
        await anyio.sleep_forever()
    finally:
        raise ConnectionError("the model's socket was closed already")


async def nursery(*_: Any) -> None:
    """Trio raises one group of both: the cancellation, and the failure."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fails_when_it_ends)
        tasks.start_soon(anyio.sleep_forever)


class Upstream:
    """One that is no wrapped app."""

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        if turn.lane == "bad":
            await nursery()
        await ScriptedUpstream.run(turn, emit)


class ScriptedUpstream:
    """Answers at once."""

    @staticmethod
    async def run(turn: CurrentTurn, emit: Emit) -> None:
        response = f'"response":{{"id":"{turn.response_id}","status":"completed","output":[]}}'
        await emit.event(f'{{"type":"response.completed","sequence_number":0,{response}}}'.encode())


async def is_bad(scope: Scope, receive: Receive, send: Send) -> None:
    """A wrapped app that ends so on one lane."""
    if scope["state"]["ws_responses.turn"].lane == "bad":
        await nursery()
    await ScriptedApp()(scope, receive, send)


@pytest.mark.parametrize("wrapped", [True, False])
async def test_a_failure_beside_a_cancellation_ends_its_turn_only(wrapped: bool) -> None:
    """Else it would go past all who wait for failures, and end the socket with all its turns."""
    clock = FakeClock()
    app = (
        ResponsesWebSocketMiddleware(is_bad, probe=False, clock=clock)
        if wrapped
        else ResponsesWebSocketMiddleware(ScriptedApp(), upstream=Upstream(), authorize="open", clock=clock)
    )
    async with MemorySocket(app) as ws:
        await ws.send_json(create(stream_id="bad"))
        await settle()
        await clock.advance(1000)  # it is silent for too long
        assert code_of(await ws.receive_json()) == "upstream_timeout"
        assert kinds(await ws.turn(create(stream_id="good")))[-1] == "completed"
        assert kinds(await ws.turn(create()))[-1] == "completed"
        assert app.running_turns == 0


async def test_an_app_that_fails_when_the_probe_ends_lets_the_client_in() -> None:
    """The probe is given up after its time; what comes of that is nobody's answer."""
    clock = FakeClock()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "GET":
            await nursery()
        await ScriptedApp()(scope, receive, send)

    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock), wait_handshake=False) as ws:
        await settle()
        await clock.advance(2)
        await ws.handshake()
        assert kinds(await ws.turn(create()))[-1] == "completed"


@pytest.mark.parametrize("status", [200, 401])
async def test_an_app_that_never_waits_holds_up_nobody_at_the_probe(status: int) -> None:
    """A stream without an end at the path of the socket, or a refusal without one: the event loop would stand still."""
    sent = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal sent
        if scope["method"] == "GET":
            await send({"type": "http.response.start", "status": status, "headers": []})
            while True:
                sent += 1
                await send({"type": "http.response.body", "body": b"", "more_body": True})
        await ScriptedApp()(scope, receive, send)

    clock = FakeClock()
    async with MemorySocket(ResponsesWebSocketMiddleware(app, clock=clock), wait_handshake=False) as ws:
        while status == 401 and not sent:
            await checkpoint()
        clock.jump(2)
        await ws.handshake()
        assert kinds(await ws.turn(create()))[-1] == "completed"


# -- cancellations that nobody asked for --------------------------------------------------------------------------------


ASYNCIO_ONLY = pytest.mark.parametrize("anyio_backend", ["asyncio"])
"""On trio there is no such thing."""


async def cancelled_by_itself(*_: Any, **__: Any) -> Any:
    """Wait for a task that something else has cancelled: a pool that was closed, for one."""
    task = asyncio.ensure_future(asyncio.Event().wait())
    task.cancel()
    await task


class Fragile:
    """A hook that ends so when it is asked for the second time: the upgrade is the first."""

    def __init__(self, fine: int) -> None:
        self._fine = fine

    async def __call__(self, *_: Any) -> Principal:
        self._fine -= 1
        if self._fine < 0:
            await cancelled_by_itself()
        return Principal(id="anna")


HOOKS: dict[str, Callable[[], dict[str, Any]]] = {
    "authorize": lambda: {"authorize": Fragile(1)},
    "quota": lambda: {"quota": Fragile(0)},
    "upstream": lambda: {"upstream": CancelledUpstream(), "authorize": "open"},
}


class CancelledUpstream:
    """An upstream whose backend ends so."""

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        await cancelled_by_itself()


@ASYNCIO_ONLY
@pytest.mark.parametrize("name", HOOKS)
async def test_what_a_turn_waits_for_is_cancelled_by_itself(name: str) -> None:
    """The client would wait for an answer for ever: to us it looks as if the turn had been ended."""
    options = HOOKS[name]()
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), **options), headers=[KEY]) as ws:
        for _ in range(2):
            (event,) = await ws.turn(create())
            assert (event["type"], event["status"]) == ("error", 500 if name == "upstream" else 503)


@ASYNCIO_ONLY
async def test_authorize_is_cancelled_by_itself_at_the_upgrade() -> None:
    async def authorize(_: Handshake, __: str | None) -> Principal:
        await cancelled_by_itself()
        raise AssertionError

    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), authorize=authorize)) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 503


class CancelledStore:
    """A store whose pool was closed under it."""

    append = load = delete = staticmethod(cancelled_by_itself)

    async def aclose(self) -> None:
        """Do nothing."""


@ASYNCIO_ONLY
async def test_a_store_that_is_cancelled_by_itself_has_failed() -> None:
    """Else nothing would be stored any more, and the end of the connection would wait for it."""
    clock = FakeClock()
    store: Any = CancelledStore()
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), store=store, tenant_key=b"k" * 32, clock=clock)
    async with MemorySocket(middleware, headers=[KEY]) as ws:
        for _ in range(2):
            assert kinds(await ws.turn(create(store=True)))[-1] == "completed"
        (event,) = await ws.turn(create(previous_response_id="resp_elsewhere"))
        assert code_of(event) == "previous_response_not_found"
        await ws.close()
        await settle()
        assert ws.returned
        with pytest.raises(StoreError):
            await middleware.registry.chains._ask("load", store.load())
