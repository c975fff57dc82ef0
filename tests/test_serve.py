"""`python -m ws_responses serve` in a process of its own, in front of a real HTTP server."""

import asyncio
import json
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.adapters.proxy_servers import running
from tests.conftest import require
from tests.serve_process import PATIENCE_S, Here, Served, serve, serve_here
from tests.shell import create, id_of, kinds, text_of
from ws_responses.testing import ScriptedApp, steps
from ws_responses.testing.socket import TERMINAL_TYPES

for package in ("aiohttp", "uvicorn", "websockets"):
    require(package)

import aiohttp  # noqa: E402
from websockets.asyncio.client import ClientConnection, connect  # noqa: E402
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def upstream() -> AsyncIterator[tuple[ScriptedApp, str]]:
    app = ScriptedApp(listen=True, timeout=PATIENCE_S)
    async with running(app) as url:
        yield app, url


async def turn(ws: ClientConnection, frame: dict[str, Any]) -> list[Any]:
    """Send a frame; return the events of its turn."""
    await ws.send(json.dumps(frame))
    return await read_turn(ws)


async def read_turn(ws: ClientConnection) -> list[Any]:
    events: list[Any] = []
    while not events or events[-1]["type"] not in TERMINAL_TYPES:
        events.append(json.loads(await ws.recv()))
    return events


async def status_of(served: Here | Served, **headers: str) -> int:
    """The status of the answer to an upgrade."""
    try:
        async with connect(served.socket_url, additional_headers=headers):
            return 101
    except InvalidStatus as refusal:
        return int(refusal.response.status_code)


@asynccontextmanager
async def connected(served: Here | Served) -> AsyncIterator[ClientConnection]:
    """A socket, as soon as there is room for one: a connection that is closed here may not be over there."""
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                ws = await connect(served.socket_url)
                break
            except InvalidStatus:
                continue
    async with ws:
        yield ws


async def test_a_sidecar_gives_an_http_server_web_socket_mode(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this the command would not do what it is for."""
    app, url = upstream
    async with serve("--upstream", url) as served:
        async with connect(served.socket_url, additional_headers={"Authorization": "Bearer mine"}) as ws:
            first = await turn(ws, create("hi"))
            second = await turn(ws, create("more", previous_response_id=id_of(first)))
        async with aiohttp.ClientSession() as http, http.post(f"{served.url}/responses", json=create("hi")) as answer:
            plain = await answer.json()

    assert kinds(second)[-1] == "completed"
    assert [len(request.input) for request in app.requests] == [1, 3, 1]
    assert app.requests[0].header(b"authorization") == b"Bearer mine"
    assert plain["status"] == "completed"
    assert "everybody on this machine" in served.report
    assert f"WebSocket mode for {url}" in served.report
    assert f"python -m ws_responses chat {served.socket_url}" in served.report


async def test_with_keys_it_asks_for_one_and_keeps_it_from_the_upstream(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this the keys of a sidecar would be in the logs of its upstream, or nobody would be asked for them."""
    app, url = upstream
    keys = {"WS_RESPONSES_API_KEY": "sk-one,sk-two", "WS_RESPONSES_UPSTREAM_API_KEY": "sk-upstream"}
    async with serve("--upstream", url, "--host", "0.0.0.0", "--log-level", "debug", **keys) as served:
        served.socket_url = served.socket_url.replace("0.0.0.0", "127.0.0.1")
        statuses = [await status_of(served), await status_of(served, Authorization="Bearer sk-no")]
        async with connect(served.socket_url, additional_headers={"Authorization": "Bearer sk-two"}) as ws:
            events = await turn(ws, create("a secret of mine"))

    assert statuses == [401, 401]
    assert kinds(events)[-1] == "completed"
    assert [request.header(b"authorization") for request in (*app.others, *app.requests)] == [b"Bearer sk-upstream"]
    assert "one of 2 keys" in served.report
    assert "clear text" in served.report
    assert "sk-" not in served.report + served.log
    assert "secret of mine" not in served.log


async def test_with_keys_and_none_for_the_upstream_it_shows_it_none(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this the keys of the clients would be handed to somebody else's server."""
    app, url = upstream
    key = {"Authorization": "Bearer sk-one"}
    async with (
        serve_here("--upstream", url, "--api-key", "sk-one") as served,
        connect(served.socket_url, additional_headers=key) as ws,
    ):
        assert kinds(await turn(ws, create("hi")))[-1] == "completed"

    assert [request.header(b"authorization") for request in (*app.others, *app.requests)] == [None]
    assert "is shown no credentials" in served.report


async def test_open_serves_everybody_who_can_reach_it(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this there would be no way to serve a trusted network."""
    _, url = upstream
    async with serve_here("--upstream", url, "--host", "0.0.0.0", "--open") as served:
        served.socket_url = served.socket_url.replace("0.0.0.0", "127.0.0.1")
        async with connect(served.socket_url) as ws:
            assert kinds(await turn(ws, create("hi")))[-1] == "completed"

    assert "everybody who can reach it" in served.report


async def test_at_sigterm_running_turns_end_and_no_new_ones_begin(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this each deployment would cut off the turns of all clients."""
    app, url = upstream
    release = anyio.Event()
    app.script([steps.text("one", finish=False), steps.wait_for(release), steps.text("two")])
    async with serve("--upstream", url) as served:
        async with connect(served.socket_url) as ws:
            await ws.send(json.dumps(create("hi")))
            await app.wait_events(3)
            served.signal(signal.SIGTERM)
            await until_it_does_not_listen(served)
            release.set()
            events = await read_turn(ws)
            with pytest.raises(ConnectionClosed) as closed:
                await ws.recv()
        assert await served.ended() == 0

    assert "two" in text_of(events[-1])
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1012


async def until_it_does_not_listen(served: Served) -> None:
    """Wait until nobody can connect any more: then the signal has been taken."""
    _, _, address = served.url.partition("://")
    host, _, port = address.removesuffix("/v1").partition(":")
    with anyio.fail_after(PATIENCE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                return
            writer.close()


async def test_the_server_stops_only_when_the_turns_are_over(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this uvicorn would close the sockets at once, and whether a turn survives would be a matter of luck."""
    app, url = upstream
    release = anyio.Event()
    app.script([steps.text("one", finish=False), steps.wait_for(release)])
    async with serve_here("--upstream", url) as served, connect(served.socket_url) as ws:
        await ws.send(json.dumps(create("hi")))
        await app.wait_events(3)
        served.server.handle_exit(signal.SIGTERM, None)
        served.server.handle_exit(signal.SIGTERM, None)  # some send it twice
        while any(each.is_serving() for each in served.server.servers):
            await anyio.lowlevel.checkpoint()
        assert not served.server.should_exit
        release.set()
        assert kinds(await read_turn(ws))[-1] == "completed"


@pytest.mark.slow
async def test_after_the_grace_it_ends_in_spite_of_a_request_that_does_not(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a plain request that is stuck would keep the process alive until it is killed."""
    app, url = upstream
    app.script([steps.text("one", finish=False), steps.stall()])
    async with (
        serve_here("--upstream", url, "--grace", "0.1") as served,
        aiohttp.ClientSession() as http,
        http.post(f"{served.url}/responses", json=create("hi", stream=True)) as answer,
    ):
        await answer.content.readany()
        served.server.handle_exit(signal.SIGTERM, None)
        with suppress(aiohttp.ClientError):
            await answer.read()
    await app.wait_idle()

    assert app.disconnected == 1


async def test_after_the_grace_it_ends_in_spite_of_a_turn_that_does_not(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a stuck turn would keep a process alive until it is killed, with all that it holds."""
    app, url = upstream
    app.script([steps.text("one", finish=False), steps.stall()])
    async with serve_here("--upstream", url, "--grace", "0.2") as served:
        async with connect(served.socket_url) as ws:
            await ws.send(json.dumps(create("hi")))
            await app.wait_events(3)
            served.server.handle_exit(signal.SIGTERM, None)
            await ws.wait_closed()
        await app.wait_idle()

    assert app.disconnected == 1


@pytest.mark.slow
async def test_a_second_ctrl_c_ends_it_at_once(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a person would have to look for the process to kill it."""
    app, url = upstream
    app.script([steps.text("one", finish=False), steps.stall()])
    async with serve("--upstream", url, "--grace", "600") as served, connect(served.socket_url) as ws:
        await ws.send(json.dumps(create("hi")))
        await app.wait_events(3)
        served.signal(signal.SIGINT)
        await until_it_does_not_listen(served)
        served.signal(signal.SIGINT)
        await served.process.wait()

    assert served.process.returncode == 1


async def test_a_client_that_leaves_stops_the_upstream(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this a model would go on for nobody."""
    app, url = upstream
    app.script([steps.text("one", finish=False), steps.stall()])
    async with serve_here("--upstream", url) as served, connect(served.socket_url) as ws:
        await ws.send(json.dumps(create("hi")))
        await app.wait_events(3)
        ws.transport.abort()
        await app.wait_idle()

    assert app.disconnected == 1


async def test_it_serves_over_tls(upstream: tuple[ScriptedApp, str], tmp_path: Path) -> None:
    """Without this keys could only travel in clear text."""
    require("openssl")
    _, url = upstream
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    made = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    subject = ("-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1")
    await anyio.run_process([*made, *subject, "-keyout", str(key), "-out", str(certificate)])
    trusting = ssl.create_default_context(cafile=str(certificate))
    async with serve_here("--upstream", url, "--ssl-certfile", str(certificate), "--ssl-keyfile", str(key)) as served:
        assert served.socket_url.startswith("wss://")
        async with connect(served.socket_url, ssl=trusting) as ws:
            assert kinds(await turn(ws, create("hi")))[-1] == "completed"

    assert "https://" in served.report


async def test_frames_above_the_bound_get_our_own_answer(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this the server would cut off clients without a word of the bound that they have met."""
    _, url = upstream
    async with (
        serve_here("--upstream", url, "--limit", "max_frame_bytes=1000") as served,
        connect(served.socket_url) as ws,
    ):
        assert kinds(await turn(ws, create("x" * 700)))[-1] == "completed"
        with pytest.raises(ConnectionClosed) as closed:
            await turn(ws, create("x" * 2000))

    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (1009, "frame above 1000 bytes")


async def test_the_options_of_the_middleware_reach_it(upstream: tuple[ScriptedApp, str]) -> None:
    """Without this an option could be taken and mean nothing."""
    app, url = upstream
    app.script([steps.drop_field("response.tools", event="response.completed"), steps.text("hi")])
    options = (
        "--path",
        "/codex/responses",
        "--complete-response",
        "--app-store",
        "never",
        "--anonymous-tenant",
        "shared",
    )
    async with serve_here("--upstream", url, *options, "--max-connections", "1") as served:
        assert served.socket_url.endswith("/codex/responses")
        async with connect(served.socket_url) as ws:
            first = await turn(ws, create("hi"))
            assert await status_of(served) == 429
        async with connected(served) as ws:
            second = await turn(ws, create("more", previous_response_id=id_of(first)))

    assert first[-1]["response"]["tools"] == []
    assert kinds(second)[-1] == "completed"
    assert app.requests[0].path == "/v1/responses"
    assert app.requests[0].body["store"] is False


async def test_from_a_shell_too_a_rollout_can_be_one_response_and_be_cancelled(
    upstream: tuple[ScriptedApp, str],
) -> None:
    """Without this both would be for those only who write Python."""
    app, url = upstream
    app.script([steps.tool_call("look", call_id="call_1")], [steps.text("whole")], [steps.created(), steps.stall()])
    async with serve_here("--upstream", url, "--prototype", "--accept-cancel") as served, connected(served) as ws:
        await ws.send(json.dumps(create("question")))
        events = [json.loads(await ws.recv())]
        while events[-1]["type"] != "response.done":
            events.append(json.loads(await ws.recv()))
        output = {"type": "function_call_output", "call_id": "call_1", "output": "seen"}
        events += await turn(ws, {"type": "response.append", "input": [output]})
        await ws.send(json.dumps(create("and on")))
        target = json.loads(await ws.recv())["response"]["id"]
        cancelled = await turn(ws, {"type": "response.cancel", "response_id": target})

    assert (kinds(events).count("created"), kinds(events)[-1]) == (1, "completed")
    assert cancelled[-1]["response"]["status"] == "cancelled"
