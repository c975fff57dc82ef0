"""The proxy, between a client that the test plays and a server on a real port that does to the byte what the test says."""

import asyncio
import gzip
import logging
import socket
import struct
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from tests.adapters.proxy_upstream import PATIENCE_S, Arrival, Call, WireServer, serving
from tests.conftest import require
from ws_responses import ConfigurationError
from ws_responses.testing import MemorySocket

require("aiohttp")

from ws_responses.adapters.proxy import ProxyApp  # noqa: E402 - needs aiohttp

EVENT = b'data: {"type":"response.created"}\n\n'
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def wire() -> AsyncIterator[WireServer]:
    async with serving() as server:
        yield server


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def ask(app: ProxyApp, *arguments: Any, **options: Any) -> Call:
    """One request, and the end of the proxy's connections."""
    try:
        return await Call(app, *arguments, **options).run()
    finally:
        await app.aclose()


# -- what goes to the upstream ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "line"),
    [
        ("POST", "/v1/responses", "POST /api/v2/responses HTTP/1.1"),
        (
            "GET",
            "/v1/responses/resp_1/input_items?limit=2&after=a%20b",
            "GET /api/v2/responses/resp_1/input_items?limit=2&after=a%20b HTTP/1.1",
        ),
        ("DELETE", "/v1/responses/resp_1", "DELETE /api/v2/responses/resp_1 HTTP/1.1"),
        ("GET", "/v1/models", "GET /api/v2/models HTTP/1.1"),
    ],
)
async def test_a_path_goes_below_the_base_url(wire: WireServer, method: str, path: str, line: str) -> None:
    """Without this a retrieve or a list of models would find nothing."""
    call = await ask(ProxyApp(f"http://127.0.0.1:{wire.port}/api/v2/"), method, path)

    assert call.status == 200
    assert wire.arrivals[0].line == line


async def test_a_path_stays_encoded_as_it_came_also_below_a_mount(wire: WireServer) -> None:
    """Without this `models/a%2Fb` would become another resource on its way."""
    scope = {"raw_path": b"/ai/v1/models/a%2Fb", "root_path": "/ai"}
    await ask(ProxyApp(wire.url), "GET", "/ai/v1/models/a/b", **scope)

    assert wire.arrivals[0].line == "GET /v1/models/a%2Fb HTTP/1.1"


async def test_a_raw_path_that_says_something_else_does_not_count(wire: WireServer) -> None:
    """Without this a path that an outer layer has judged or rewritten would be exchanged for another one."""
    await ask(ProxyApp(wire.url), "GET", "/v1/models", raw_path=b"/v1/files")

    assert wire.arrivals[0].line == "GET /v1/models HTTP/1.1"


async def test_headers_of_the_connection_stay_here_and_nothing_is_made_up(wire: WireServer) -> None:
    """Without this a proxy breaks the framing of its own connection, or lets clients claim to be somebody else."""
    headers = [
        (b"Host", b"public.example"),
        (b"Connection", b"close, X-Hop"),
        (b"x-hop", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"proxy-authorization", b"Basic x"),
        (b"upgrade", b"h2c"),
        (b"expect", b"100-continue"),
        (b"accept-encoding", b"gzip"),
        (b"x-forwarded-for", b"10.0.0.1"),
        (b"x-real-ip", b"10.0.0.1"),
        (b"forwarded", b"for=10.0.0.1"),
        (b"content-length", b"2"),
        (b"authorization", b"Bearer theirs"),
        (b"cookie", b"a=1"),
        (b"x-request-id", "é".encode()),
    ]
    await ask(ProxyApp(wire.url), body=b"{}", headers=headers)

    arrived = dict(wire.arrivals[0].headers)
    assert arrived.pop("via").startswith("1.1 ws-responses-")
    assert arrived == {
        "host": f"127.0.0.1:{wire.port}",
        "authorization": "Bearer theirs",
        "cookie": "a=1",
        "x-request-id": "é".encode().decode("latin-1"),
        "accept-encoding": "identity",
        "connection": "close",
        "content-length": "2",
    }


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"api_key": "ours"}, {"authorization": "Bearer ours"}),
        ({"credentials": "drop"}, {}),
        ({"credentials": "drop", "headers": {"Api-Key": "ours"}}, {"api-key": "ours"}),
        (
            {"headers": {"authorization": "Bearer ours"}},
            {"authorization": "Bearer ours", "api-key": "theirs", "cookie": "a=1"},
        ),
    ],
)
async def test_credentials_are_replaced_or_dropped(
    wire: WireServer, options: dict[str, Any], expected: dict[str, str]
) -> None:
    """Without this a client's key for the proxy would be handed to the upstream, or the upstream's be missing."""
    headers = [(b"authorization", b"Bearer theirs"), (b"api-key", b"theirs"), (b"cookie", b"a=1")]
    await ask(ProxyApp(wire.url, **options), headers=headers)

    arrived = wire.arrivals[0].headers
    assert {name: value for name, value in arrived if name in {"authorization", "api-key", "cookie"}} == expected


async def test_the_upstream_is_told_of_the_client_on_demand(wire: WireServer) -> None:
    """Without this limits per client address at the upstream would meet the proxy, or what a client has made up."""
    headers = [(b"host", b"public.example"), (b"x-forwarded-for", b"10.0.0.1"), (b"x-forwarded-port", b"1")]
    await ask(ProxyApp(wire.url, forwarded=True), headers=headers, scheme="https")

    arrived = {name: value for name, value in wire.arrivals[0].headers if name.startswith("x-forwarded")}
    assert arrived == {
        "x-forwarded-for": "192.0.2.7",
        "x-forwarded-host": "public.example",
        "x-forwarded-proto": "https",
    }


async def test_a_body_is_passed_on_while_it_comes() -> None:
    """Without this a large upload would be kept in memory as a whole."""
    first = asyncio.Event()
    seen = []

    async def handler(arrival: Arrival) -> None:
        seen.append(await arrival.chunk())
        first.set()
        seen.append(await arrival.body())
        await arrival.answer()

    async with serving(handler) as wire:
        app = ProxyApp(wire.url)
        call = Call(app, body=[b"one", None, b"two"])
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(call.run())
            await asyncio.wait_for(first.wait(), PATIENCE_S)
            call.go_on()
            await running
        await app.aclose()

    assert seen == [b"one", b"two"]
    assert wire.arrivals[0].header("transfer-encoding") == "chunked"
    assert call.status == 200


@pytest.mark.parametrize("parts", [[b"a" * 3_000_000], [b"a" * 1_500_000, b"a" * 1_500_000]])
async def test_a_large_body_keeps_its_length_and_is_cut_into_slices(parts: list[bytes]) -> None:
    """Without this an upstream that takes no chunked requests could not be used, and a large body would block the loop."""
    sizes = []

    async def handler(arrival: Arrival) -> None:
        sizes.append(len(await arrival.body()))
        await arrival.answer()

    async with serving(handler) as wire:
        await ask(ProxyApp(wire.url), body=parts, headers=[(b"content-length", b"3000000")])

    assert sizes == [3_000_000]
    assert wire.arrivals[0].header("content-length") == "3000000"
    assert wire.arrivals[0].header("transfer-encoding") is None


# -- what comes back -------------------------------------------------------------------------------------------------


async def test_an_answer_comes_as_it_is(wire: WireServer) -> None:
    """Without this a client would miss rate limits, or read a compressed body as text."""
    body = gzip.compress(b"{}")
    given = [b"content-encoding: gzip", b"retry-after: 3", b"set-cookie: a=1", b"set-cookie: b=2", b"x-request-id: r"]
    hop = [b"connection: keep-alive, x-hop", b"x-hop: 1", b"keep-alive: timeout=9", b"date: today", b"server: s"]
    wire.handler = lambda arrival: arrival.answer(body, *given, *hop, status=b"429 Too Many Requests")

    call = await ask(ProxyApp(wire.url))

    assert call.status == 429
    assert call.body == body
    assert call.complete
    assert call.headers == [
        (b"content-length", b"%d" % len(body)),
        *((name, value) for name, _, value in (line.partition(b": ") for line in given)),
    ]


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        ("HEAD", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n"),
        ("DELETE", b"HTTP/1.1 204 No Content\r\n\r\n"),
        ("GET", b"HTTP/1.1 304 Not Modified\r\n\r\n"),
        ("GET", b"HTTP/1.1 307 Temporary Redirect\r\nlocation: http://192.0.2.1/\r\ncontent-length: 0\r\n\r\n"),
    ],
)
async def test_answers_without_a_body_and_redirects_are_passed_on(wire: WireServer, method: str, answer: bytes) -> None:
    """Without this a redirect would take the client's key to another host."""
    wire.handler = lambda arrival: arrival.write(answer)

    call = await ask(ProxyApp(wire.url), method, "/v1/x")

    assert call.status == int(answer[9:12])
    assert call.body == b""
    assert call.complete
    assert len(wire.arrivals) == 1


async def test_events_are_passed_on_one_by_one() -> None:
    """Without this a client would see nothing until the model is done."""
    go_on = asyncio.Event()

    async def handler(arrival: Arrival) -> None:
        await arrival.write(STREAM, chunk(EVENT))
        await go_on.wait()
        await arrival.write(chunk(EVENT), chunk(b""))

    async with serving(handler) as wire:
        app = ProxyApp(wire.url)
        call = Call(app)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(call.run())
            await call.wait_messages(2)
            assert call.body == EVENT
            go_on.set()
            await running
        await app.aclose()

    assert call.body == EVENT * 2
    assert call.complete
    assert call.header(b"transfer-encoding") is None


async def test_a_client_that_does_not_read_stops_the_upstream() -> None:
    """Without this a slow client would have the proxy hold its whole answer in memory."""
    total = 64 << 20
    written = 0

    async def handler(arrival: Arrival) -> None:
        nonlocal written
        await arrival.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while written < total:
            await arrival.write(b"x" * (1 << 16))
            written += 1 << 16

    async with serving(handler) as wire:
        app = ProxyApp(wire.url)
        call = Call(app, wait=True)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(call.run())
            await wire.wait_arrivals()
            stopped_at = await until_still(lambda: written)
            call.go_on()
            await running
        await app.aclose()

    assert stopped_at < total // 2
    assert len(call.body) == total


async def until_still(count: Any) -> int:
    """Wait until a number has stopped growing: two looks, a tenth of a second apart."""
    before = -1
    while (now := count()) != before or not now:
        before = now
        await asyncio.sleep(0.1)
    return int(before)


# -- what goes wrong -------------------------------------------------------------------------------------------------


async def test_an_upstream_that_is_not_there_is_a_502() -> None:
    """Without this a client would take the proxy for broken."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        call = await ask(ProxyApp(f"http://127.0.0.1:{closed.getsockname()[1]}/v1"))

    assert (call.status, call.code) == (502, "upstream_unreachable")


async def test_an_upstream_that_hangs_up_without_an_answer_is_a_502(wire: WireServer) -> None:
    """Without this a crash of the upstream would be a crash of ours."""

    async def handler(arrival: Arrival) -> None:
        arrival.writer.close()

    wire.handler = handler
    call = await ask(ProxyApp(wire.url))

    assert (call.status, call.code) == (502, "upstream_unreachable")


async def test_an_upstream_that_says_nothing_is_a_504(wire: WireServer) -> None:
    """Without this a client would wait for ever."""
    wire.handler = Arrival.stall
    call = await ask(ProxyApp(wire.url, silence_timeout_s=0.05))

    assert (call.status, call.code) == (504, "upstream_timeout")


@pytest.mark.parametrize(
    "garbage",
    [b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"],
)
async def test_an_upstream_that_speaks_something_else_is_a_502(wire: WireServer, garbage: bytes) -> None:
    """Without this a wrong port would end in a traceback."""

    async def handler(arrival: Arrival) -> None:
        await arrival.write(garbage)
        await arrival.stall()

    wire.handler = handler
    call = await ask(ProxyApp(wire.url))

    assert (call.status, call.code) == (502, "upstream_error")


async def test_the_upstream_s_401_is_not_the_client_s_where_the_key_is_ours(wire: WireServer) -> None:
    """Without this a client would throw away a good key, and read a part of ours in the upstream's text."""
    told = b'{"error":{"message":"Incorrect API key provided: our**key"}}'
    wire.handler = lambda arrival: arrival.answer(told, status=b"401 Unauthorized")

    ours = await ask(ProxyApp(wire.url, api_key="our-key"))
    theirs = await ask(ProxyApp(wire.url))

    assert (ours.status, ours.code) == (502, "upstream_refused_key")
    assert b"our**key" not in ours.body
    assert (theirs.status, theirs.body) == (401, told)


@pytest.mark.parametrize("how", ["reset", "silence", "short"])
async def test_an_answer_that_is_cut_off_gets_no_end(wire: WireServer, how: str) -> None:
    """Without this a truncated stream would pass for a complete one."""

    async def handler(arrival: Arrival) -> None:
        await arrival.write(STREAM if how != "short" else b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n")
        await arrival.write(chunk(EVENT) if how != "short" else EVENT)
        if how == "silence":
            await arrival.stall()
        elif how == "reset":
            arrival.writer.get_extra_info("socket").setsockopt(
                socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
            )
            arrival.writer.transport.abort()
        else:
            arrival.writer.close()

    wire.handler = handler
    call = await ask(ProxyApp(wire.url, silence_timeout_s=0.1))

    assert call.status == 200
    assert call.body in (b"", EVENT)  # what a reset overtakes is lost
    assert not call.complete


async def test_a_body_that_is_declared_too_large_does_not_reach_the_upstream(wire: WireServer) -> None:
    """Without this a client could have the proxy carry what the upstream then has to refuse."""
    app = ProxyApp(wire.url, max_body_bytes=10)
    fits = await ask(app, body=b"a" * 10, headers=[(b"content-length", b"10")])
    declared = await ask(app, body=b"a" * 11, headers=[(b"content-length", b"11")])
    whole = await ask(app, body=b"a" * 11)

    assert fits.status == 200
    assert [(call.status, call.code) for call in (declared, whole)] == [(413, "request_too_large")] * 2
    assert len(wire.arrivals) == 1


async def test_a_body_that_turns_out_too_large_ends_the_request_upstream(wire: WireServer) -> None:
    """Without this a chunked request would have no bound."""
    wire.handler = Arrival.stall
    call = await ask(ProxyApp(wire.url, max_body_bytes=10), body=[b"a" * 10, b"a", b""])

    assert (call.status, call.code) == (413, "request_too_large")
    await wire.arrivals[0].gone()


async def test_an_early_answer_is_passed_on_before_the_body_is_read(wire: WireServer) -> None:
    """Without this a refusal by the upstream would wait for an upload that it does not want."""
    wire.handler = lambda arrival: arrival.answer(b"no", status=b"403 Forbidden")
    app = ProxyApp(wire.url)
    call = await ask(app, body=[b"a", None, b"never"])

    assert (call.status, call.body) == (403, b"no")


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "NONSENSE"])
async def test_methods_for_other_proxies_are_refused(wire: WireServer, method: str) -> None:
    """Without this it would be a tunnel."""
    call = await ask(ProxyApp(wire.url), method)

    assert (call.status, call.code) == (405, "method_not_allowed")
    assert call.header(b"allow") == b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS"
    assert wire.arrivals == []


async def test_requests_above_the_bound_are_refused_at_once() -> None:
    """Without this a flood of clients would open a connection to the upstream for each of them."""
    release = asyncio.Event()

    async def handler(arrival: Arrival) -> None:
        await release.wait()
        await arrival.answer()

    async with serving(handler) as wire:
        app = ProxyApp(wire.url, max_requests=1)
        async with asyncio.TaskGroup() as tasks:
            running = tasks.create_task(Call(app).run())
            await wire.wait_arrivals()
            refused = await Call(app).run()
            release.set()
            first = await running
        second = await ask(app)

    assert (refused.status, refused.code, refused.header(b"retry-after")) == (503, "upstream_busy", b"1")
    assert (first.status, second.status) == (200, 200)


async def test_a_client_that_sends_nothing_keeps_nobody_out(wire: WireServer) -> None:
    """Without this a few clients that never send their bodies would close the upstream to all others."""
    app = ProxyApp(wire.url, max_requests=1)
    slow = Call(app, body=[None, b"late"])
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(slow.run())
        await anyio.wait_all_tasks_blocked()
        other = await Call(app).run()
        slow.go_on()
        await running
    await app.aclose()

    assert (other.status, slow.status) == (200, 200)


async def test_a_proxy_of_itself_says_so(wire: WireServer) -> None:
    """Without this one request would call itself until no connections are left."""
    app = ProxyApp(wire.url)
    await Call(app, headers=[(b"via", b"1.0 fred")]).run()
    via = wire.arrivals[0].header("via")
    assert via is not None
    assert via.startswith("1.0 fred, 1.1 ")

    call = await ask(app, headers=[(b"via", via.encode())])

    assert (call.status, call.code) == (508, "loop_detected")


async def test_no_error_and_no_log_tells_a_key(wire: WireServer, caplog: pytest.LogCaptureFixture) -> None:
    """Without this a key would end up in a log file."""
    caplog.set_level(logging.DEBUG)
    wire.handler = lambda arrival: arrival.answer(status=b"401 Unauthorized")
    await ask(ProxyApp(wire.url, api_key="sk-secret"), headers=[(b"authorization", b"Bearer sk-theirs")])

    assert "refuses our key" in caplog.text
    assert "sk-" not in caplog.text
    with pytest.raises(ConfigurationError) as caught:
        ProxyApp(wire.url, api_key="sk-secret\n")
    assert "sk-" not in str(caught.value)


# -- the client leaves -----------------------------------------------------------------------------------------------


async def leaving(call: Call, wire: WireServer, when: Any) -> None:
    """Run a call whose client leaves once `when` has returned; the upstream's connection must be closed by then."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(call.run())
        await when()
        call.leave()
        await running
    await wire.arrivals[0].gone()


async def test_a_client_that_leaves_before_the_answer_ends_the_request_upstream(wire: WireServer) -> None:
    """Without this a model would go on for nobody."""
    wire.handler = Arrival.stall
    app = ProxyApp(wire.url)
    call = Call(app)
    await leaving(call, wire, wire.wait_arrivals)
    await app.aclose()

    assert call.messages == []


async def test_a_client_that_leaves_within_the_answer_ends_the_request_upstream(wire: WireServer) -> None:
    """Without this a model would go on for nobody, until it next says something."""

    async def handler(arrival: Arrival) -> None:
        await arrival.write(STREAM, chunk(EVENT))
        await arrival.stall()

    wire.handler = handler
    app = ProxyApp(wire.url)
    call = Call(app)
    await leaving(call, wire, lambda: call.wait_messages(2))
    await app.aclose()

    assert not call.complete


async def test_a_client_that_leaves_within_its_own_body_ends_the_request_upstream(wire: WireServer) -> None:
    """Without this the upstream would wait for the rest of a body that nobody sends."""
    wire.handler = Arrival.stall
    app = ProxyApp(wire.url)
    call = Call(app, body=[b"a", None, b"b"])
    await leaving(call, wire, wire.wait_arrivals)
    await app.aclose()

    assert call.messages == []


async def test_a_send_that_raises_ends_the_request_upstream(wire: WireServer) -> None:
    """Without this a server that tells by `send` only would leave the model running, or see a traceback of ours."""

    async def handler(arrival: Arrival) -> None:
        await arrival.write(STREAM, chunk(EVENT))
        await arrival.stall()

    async def send(message: Any) -> None:
        raise BrokenPipeError("gone")

    async def receive() -> Any:
        if first:
            return first.pop()
        return await asyncio.Event().wait()

    first = [{"type": "http.request", "body": b"{}"}]
    wire.handler = handler
    app = ProxyApp(wire.url)
    with anyio.fail_after(PATIENCE_S):
        await app({"type": "http", "method": "POST", "path": "/v1/responses", "headers": []}, receive, send)
    await wire.arrivals[0].gone()
    await app.aclose()


async def test_a_call_that_is_cancelled_ends_the_request_upstream(wire: WireServer) -> None:
    """Without this a server that shuts down would leave models running."""
    wire.handler = Arrival.stall
    app = ProxyApp(wire.url)
    running = asyncio.create_task(Call(app).run())
    arrival = await wire.wait_arrivals()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await arrival.gone()
    await app.aclose()


# -- connections and life --------------------------------------------------------------------------------------------


async def test_one_connection_serves_one_request_after_another_and_keeps_no_cookie(wire: WireServer) -> None:
    """Without this each turn would pay for a handshake, or one client's cookie would go with another's request."""
    wire.handler = lambda arrival: arrival.answer(b"{}", b"set-cookie: session=1; path=/")
    url = wire.url.replace("127.0.0.1", "localhost")
    app = ProxyApp(url, keepalive_s=9)  # aiohttp keeps no cookies of bare addresses anyway
    calls = [await Call(app).run() for _ in range(3)]
    await app.aclose()

    assert [call.status for call in calls] == [200] * 3
    assert [arrival.connection for arrival in wire.arrivals] == [1, 1, 1]
    assert [arrival.header("cookie") for arrival in wire.arrivals] == [None] * 3


async def test_a_server_that_closes_what_it_promised_to_keep_loses_no_request(wire: WireServer) -> None:
    """Without this llama.cpp would lose every fourth turn: it closes after each stream, just as the next one comes."""

    async def handler(arrival: Arrival) -> None:
        await arrival.answer(b"{}", b"connection: keep-alive")
        await arrival.reader.read(1)  # to come too late for the next request is what makes it lose one
        arrival.writer.close()

    wire.handler = handler
    app = ProxyApp(wire.url)
    calls = [await Call(app).run() for _ in range(3)]
    await app.aclose()

    assert [call.status for call in calls] == [200] * 3


async def test_cookies_of_our_own_session_upstream_do_not_reach_clients(wire: WireServer) -> None:
    """Without this a client could go on with a session that our key has opened."""
    wire.handler = lambda arrival: arrival.answer(b"{}", b"set-cookie: session=1")

    assert (await ask(ProxyApp(wire.url, api_key="k"))).header(b"set-cookie") is None
    assert (await ask(ProxyApp(wire.url))).header(b"set-cookie") == b"session=1"


async def test_the_lifespan_closes_the_connections(wire: WireServer) -> None:
    """Without this a reload would leave connections open, with a warning for each."""
    app = ProxyApp(wire.url)
    stop = asyncio.Event()
    sent: list[str] = []

    async def receive() -> Any:
        if not sent:
            return {"type": "lifespan.startup"}
        await stop.wait()
        return {"type": "lifespan.shutdown"}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(app({"type": "lifespan"}, receive, send))
        await Call(app).run()
        stop.set()
    await wire.arrivals[0].gone()

    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_a_socket_that_the_middleware_does_not_take_is_refused(wire: WireServer) -> None:
    """Without this a wrong path would look like a broken server."""
    async with MemorySocket(ProxyApp(wire.url), path="/v1/realtime") as ws:
        assert ws.denial is not None
        assert ws.denial.status == 404


def test_on_trio_the_lifespan_says_why_it_cannot_start() -> None:
    """Without this each request would fail by an error deep inside of aiohttp."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "lifespan.startup"}

    async def send(message: Any) -> None:
        sent.append(message)

    app = ProxyApp("http://127.0.0.1:1/v1")
    anyio.run(app, {"type": "lifespan"}, receive, send, backend="trio")

    assert [message["type"] for message in sent] == ["lifespan.startup.failed"]
    assert "asyncio" in sent[0]["message"]


@pytest.mark.parametrize(
    ("url", "options", "text"),
    [
        ("localhost:8000/v1", {}, "like http://host:8000/v1"),
        ("ftp://host/v1", {}, "like http://host:8000/v1"),
        ("http://", {}, "like http://host:8000/v1"),
        ("http://host:99999/v1", {}, "cannot be read"),
        ("http://[::1/v1", {}, "cannot be read"),
        ("http://user:secret@host/v1", {}, "must hold no credentials"),
        ("http://host/v1?x=1", {}, "no query"),
        ("http://host/v1/../admin", {}, "cannot be used"),
        ("http://host/v1", {"prefix": "v1"}, "must begin with '/'"),
        ("http://host/v1", {"credentials": "keep"}, "'pass' or 'drop'"),
        ("http://host/v1", {"headers": {"bad name": "x"}}, "no name of a header"),
        ("http://host/v1", {"headers": {"x-key": "a\r\nb: c"}}, "printable ASCII"),
    ],
)
def test_wrong_options_are_named(url: str, options: dict[str, Any], text: str) -> None:
    """Without this a typing error would show at the first request, or never."""
    with pytest.raises(ConfigurationError, match=text) as caught:
        ProxyApp(url, **options)
    assert "secret" not in str(caught.value)
