"""WebSocket mode for an HTTP server elsewhere: the middleware around the proxy, the server under uvicorn on a real port."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.adapters.proxy_servers import running
from tests.adapters.proxy_upstream import Arrival, Call, serving
from tests.conftest import require
from tests.shell import KEY, OTHER_KEY, Shell, answer, code_of, create, id_of, kinds, text_of, types_of
from ws_responses.testing import ScriptedApp, steps

require("aiohttp")
require("uvicorn")

from ws_responses.adapters.proxy import ProxyApp  # noqa: E402 - needs aiohttp


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


class Sidecar:
    """An upstream server, and the middleware around its proxy."""

    def __init__(self, upstream: ScriptedApp, url: str, **options: Any) -> None:
        self.upstream = upstream
        self.proxy = ProxyApp(url)
        self.shell = Shell(self.proxy, **options)


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[ScriptedApp, str]]:
    app = ScriptedApp(listen=True)
    async with running(app) as url:
        yield app, url


@pytest.fixture
async def sidecar(upstream: tuple[ScriptedApp, str]) -> AsyncIterator[Sidecar]:
    sidecar = Sidecar(*upstream)
    yield sidecar
    await sidecar.proxy.aclose()


async def test_a_chain_over_the_socket_becomes_stateless_posts(sidecar: Sidecar) -> None:
    """Without this WebSocket mode would need an upstream that knows `previous_response_id`."""
    async with sidecar.shell.socket(KEY) as ws:
        first = await ws.turn(create("hi"))
        second = await ws.turn(create([{"role": "user", "content": "more"}], previous_response_id=id_of(first)))

    assert kinds(second)[-1] == "completed"
    requests = sidecar.upstream.requests
    assert [[item.get("role") for item in each.input] for each in requests] == [["user"], ["user", "assistant", "user"]]
    assert all("previous_response_id" not in each.body and each.body["stream"] for each in requests)
    assert [request.header(b"authorization") for request in sidecar.upstream.requests] == [KEY[1]] * 2


async def test_tool_calls_are_answered_over_the_socket(sidecar: Sidecar) -> None:
    """Without this an agent loop would stop at its first tool."""
    sidecar.upstream.script([steps.tool_call("look", {"a": 1}, call_id="call_1")], [steps.text("seen")])
    async with sidecar.shell.socket() as ws:
        first = await ws.turn(create("hi"))
        second = await ws.turn(create([answer("call_1")], previous_response_id=id_of(first)))

    assert text_of(second[-1]) == "seen"
    assert types_of(sidecar.upstream.requests[1].body) == ["user", "function_call", "function_call_output"]


async def test_in_forward_mode_the_upstream_resolves_its_own_ids() -> None:
    """Without this a server that keeps state would be sent the whole conversation."""
    app = ScriptedApp(stateful=True)
    async with running(app) as url:
        sidecar = Sidecar(app, url, history="forward")
        async with sidecar.shell.socket(KEY) as ws:
            first = await ws.turn(create("hi"))
            await ws.turn(create("more", previous_response_id=id_of(first)))
        stored = await Call(sidecar.proxy, "GET", f"/v1/responses/{id_of(first)}").run()
        deleted = await Call(sidecar.proxy, "DELETE", f"/v1/responses/{id_of(first)}").run()
        again = await Call(sidecar.proxy, "GET", f"/v1/responses/{id_of(first)}").run()
        await sidecar.proxy.aclose()

    assert app.requests[1].body["previous_response_id"] == id_of(first)
    assert json.loads(stored.body)["id"] == id_of(first)
    assert (stored.status, deleted.status, again.status) == (200, 200, 404)


async def test_a_deleted_id_is_dropped_here_too(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a user's wish to delete would leave the conversation in the sidecar."""
    app = ScriptedApp(stateful=True)
    async with running(app) as url:
        sidecar = Sidecar(app, url)
        async with sidecar.shell.socket(KEY) as ws:
            first = await ws.turn(create("hi"))
            delete = Call(sidecar.shell.middleware, "DELETE", f"/v1/responses/{id_of(first)}", headers=[KEY])
            assert (await delete.run()).status == 200
            (refused,) = await ws.turn(create("more", previous_response_id=id_of(first)))
        await sidecar.proxy.aclose()

    assert code_of(refused) == "previous_response_not_found"


async def test_the_upstream_s_refusal_is_told_at_the_upgrade(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a client with a bad key would get a socket of which no turn works."""
    app = ScriptedApp(auth="key-1")
    async with running(app) as url:
        sidecar = Sidecar(app, url)
        async with sidecar.shell.socket(OTHER_KEY) as refused:
            assert refused.denial is not None
            assert refused.denial.status == 401
        async with sidecar.shell.socket(KEY) as ws:
            events = await ws.turn(create("hi"))
        await sidecar.proxy.aclose()

    assert kinds(events)[-1] == "completed"


async def test_an_error_of_the_upstream_is_an_error_frame(sidecar: Sidecar) -> None:
    """Without this a client would not know when to try again."""
    sidecar.upstream.script([steps.status(429, headers=[(b"retry-after", b"7")])])
    async with sidecar.shell.socket() as ws:
        (error,) = await ws.turn(create("hi"))

    assert error["status"] == 429
    assert error["headers"]["retry-after"] == "7"


async def test_an_upstream_that_went_away_is_an_error_frame_and_its_return_is_noticed() -> None:
    """Without this a restart of the upstream would cost all clients their sockets."""
    async with serving() as gone:
        url = gone.url
    app = ProxyApp(url)
    async with Shell(app).socket() as ws:
        (error,) = await ws.turn(create("hi"))
        port = int(url.split(":")[2].partition("/")[0])
        back = await asyncio.start_server(respond, "127.0.0.1", port)
        events = await ws.turn(create("hi"))
        back.close()
    await app.aclose()

    assert (error["status"], code_of(error)) == (502, "upstream_unreachable")
    assert text_of(events[-1]) == "back"


async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one request by a response object."""
    await reader.readuntil(b"\r\n\r\n")
    part = {"type": "output_text", "text": "back", "annotations": []}
    item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}
    body = json.dumps({"id": "resp_1", "object": "response", "status": "completed", "output": [item]}).encode()
    writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n" + body)
    writer.close()


async def test_a_stream_that_is_cut_off_fails_the_turn() -> None:
    """Without this half an answer would be kept as a whole one."""
    created = {"type": "response.created", "sequence_number": 0, "response": {"id": "resp_1", "status": "in_progress"}}

    async def handler(arrival: Arrival) -> None:
        if arrival.line.startswith("GET"):
            await arrival.answer(status=b"405 Method Not Allowed")
            return
        await arrival.body()
        event = b"data: " + json.dumps(created).encode() + b"\n\n"
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        await arrival.write(head, b"%x\r\n" % len(event), event, b"\r\n")
        arrival.writer.close()

    async with serving(handler) as wire:
        app = ProxyApp(wire.url)
        async with Shell(app).socket() as ws:
            events = await ws.turn(create("hi"))
        await app.aclose()

    assert kinds(events)[-1] == "failed"
    assert code_of(events[-1]) == "upstream_stream_truncated"


async def test_a_client_that_leaves_stops_the_upstream(sidecar: Sidecar) -> None:
    """Without this a model would go on for nobody."""
    sidecar.upstream.script([steps.text("one", finish=False), steps.stall()])
    async with sidecar.shell.socket() as ws:
        await ws.send_json(create("hi"))
        await sidecar.upstream.wait_events(2)
        await ws.abort()
        await sidecar.upstream.wait_idle()

    assert sidecar.upstream.disconnected == 1
