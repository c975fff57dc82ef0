"""Notices to all nodes: each that listens hears each, once, whatever the server does in between."""

import secrets
import signal
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import Any

import anyio
import pytest

from tests.adapters.redis_server import RedisServer
from tests.shell import KEY, OTHER_KEY, Shell, by_bearer
from ws_responses.adapters.redis import RedisBroadcast
from ws_responses.errors import ConfigurationError, StoreError
from ws_responses.testing import ScriptedApp


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(scope="module", params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Generator[RedisServer]:
    with RedisServer(request.param) as server:
        yield server


@pytest.fixture
async def node(server: RedisServer) -> AsyncGenerator[Callable[[], RedisBroadcast]]:
    """Makes a node's broadcast."""
    prefix, nodes = secrets.token_hex(4), list[RedisBroadcast]()

    def make() -> RedisBroadcast:
        nodes.append(RedisBroadcast(server.url, prefix=prefix, interval_s=0.01, timeout_s=0.3))
        return nodes[-1]

    yield make
    for each in nodes:
        await each.aclose()


Told = list[tuple[str, str, str]]


async def until(holds: Callable[[], bool]) -> None:
    """Return as soon as it does."""
    while not holds():  # noqa: ASYNC110 - a server of its own decides when
        await anyio.sleep(0.005)


class Listener:
    """Notes what a node is told."""

    def __init__(self, broadcast: RedisBroadcast) -> None:
        self.told: Told = []
        self._broadcast = broadcast

    async def listen(self) -> None:
        def note(kind: str, tenant: str, detail: str) -> None:
            self.told.append((kind, tenant, detail))

        await self._broadcast.listen(disconnect=partial(note, "disconnect"), forget=partial(note, "forget"))

    def has_heard(self, told: tuple[str, str, str]) -> bool:
        return self.told[-1] == told

    async def hears(self, told: Told) -> None:
        """Return when exactly this was heard."""
        await until(lambda: len(self.told) >= len(told))
        assert self.told == told


async def begun(broadcast: RedisBroadcast, *listeners: Listener) -> Told:
    """Return when all of them listen, with what they have heard."""
    told: Told = []
    while not all(listener.told for listener in listeners):
        await broadcast.disconnect("nobody", str(len(told)))
        told.append(("disconnect", "nobody", str(len(told))))
        await anyio.sleep(0.005)
    for listener in listeners:
        await until(partial(listener.has_heard, told[-1]))
        listener.told.clear()
    return told


async def test_all_who_listen_hear_it_once_and_in_order(node: Callable[[], RedisBroadcast]) -> None:
    nodes = [node() for _ in range(3)]
    await nodes[0].disconnect("long ago")
    listeners = [Listener(each) for each in nodes]
    async with anyio.create_task_group() as tasks:
        for listener in listeners:
            tasks.start_soon(listener.listen)
        await begun(nodes[0], *listeners)
        expected: Told = []
        for number in range(250):
            await nodes[number % 3].disconnect(f"t{number}", "key é")
            expected.append(("disconnect", f"t{number}", "key é"))
        await nodes[1].forget("t", "resp_1")
        expected.append(("forget", "t", "resp_1"))
        for listener in listeners:
            await listener.hears(expected)
        tasks.cancel_scope.cancel()


async def test_what_a_node_misses_while_the_server_hangs_it_hears_afterwards(
    server: RedisServer, node: Callable[[], RedisBroadcast], caplog: pytest.LogCaptureFixture
) -> None:
    """A key that was revoked then stays revoked: with plain pub/sub its sockets would live on."""
    teller, listener = node(), Listener(node())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.listen)
        await begun(teller, listener)
        await teller.disconnect("before")
        await listener.hears([("disconnect", "before", "disconnected")])
        server.signal(signal.SIGSTOP)
        with pytest.raises(StoreError):
            await teller.disconnect("never told")
        await until(lambda: "notices cannot be read" in caplog.text)
        server.signal(signal.SIGCONT)
        await teller.disconnect("after")
        await until(lambda: listener.told[-1][1] == "after")
        assert [tenant for _, tenant, _ in listener.told if tenant != "never told"] == ["before", "after"]
        tasks.cancel_scope.cancel()


async def test_an_action_that_fails_and_notices_of_another_version_hold_nothing_up(
    node: Callable[[], RedisBroadcast], caplog: pytest.LogCaptureFixture
) -> None:
    teller = node()
    heard: list[str] = []

    def fails(tenant: str, _: str) -> None:
        heard.append(tenant)
        if tenant == "a":
            raise RuntimeError("no")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(partial(node().listen, disconnect=fails))
        while not heard:
            await teller.disconnect("x")
            await anyio.sleep(0.005)
        await teller._tell("rename", "t", "detail")  # type: ignore[arg-type]
        await teller._client.execute_command("XADD", teller._key, "*", "n", b"\xff")
        await teller._client.execute_command("XADD", teller._key, "*", "other", "field")
        await teller.forget("t", "resp_1")
        for tenant in "ab":
            await teller.disconnect(tenant)
        await until(lambda: heard[-1] == "b")
        tasks.cancel_scope.cancel()
    assert "the action for a notice raised" in caplog.text
    assert caplog.text.count("a notice cannot be read") == 2


async def test_a_revoked_tenant_loses_its_sockets_on_every_node(node: Callable[[], RedisBroadcast]) -> None:
    """B152: the sockets of one key, and nobody else's."""
    tenants = by_bearer({"key-1": "anna", "key-2": "bert"})
    shells = [Shell(ScriptedApp(), authorize=tenants) for _ in range(2)]
    broadcast = node()
    async with (
        shells[0].socket(KEY) as here,
        shells[1].socket(KEY) as there,
        shells[1].socket(OTHER_KEY) as other,
        anyio.create_task_group() as tasks,
    ):
        for shell in shells:
            tasks.start_soon(partial(node().listen, disconnect=shell.middleware.disconnect))
        while here.close_code is None or there.close_code is None:
            await broadcast.disconnect("anna", "key revoked")
            await anyio.sleep(0.005)
        for ws in (here, there):
            assert (await ws.wait_closed(), ws.close_reason) == (1008, "key revoked")
        assert other.close_code is None
        tasks.cancel_scope.cancel()


async def test_the_stream_is_bounded(server: RedisServer, node: Callable[[], RedisBroadcast]) -> None:
    broadcast = node()
    with server.client() as client:
        with client.pipeline() as pipeline:
            for _ in range(12_000):
                pipeline.xadd(broadcast._key, {"n": b""})
            pipeline.execute()
        await broadcast.disconnect("t")
        assert client.xlen(broadcast._key) < 10_200


@pytest.mark.parametrize("options", [{"interval_s": 0}, {"timeout_s": 0}], ids=str)
async def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        RedisBroadcast("redis://localhost", **options)
