"""Turns while a real server fails under them: what a client was told of is there afterwards, and nothing of it is anybody else's."""

import signal
from collections.abc import Callable, Generator
from typing import Any, Literal, NamedTuple

import pytest

from tests.adapters.redis_server import Kind, RedisServer
from tests.shell import KEY, OTHER_KEY, Shell, code_of, create, id_of, kinds
from ws_responses.adapters.redis import RedisStore
from ws_responses.testing import MemorySocket, ScriptedApp, ScriptedModel

Fault = Literal["killed", "paused", "slow", "full", "restarted"]
SAFE = {"appendonly": "yes", "appendfsync": "always", "maxmemory-policy": "noeviction"}
TENANTS = (KEY, OTHER_KEY)


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=["asyncio"])
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture(params=["redis", "valkey"])
def server(request: pytest.FixtureRequest) -> Generator[RedisServer]:
    kind: Kind = request.param
    with RedisServer(kind, SAFE) as server:
        yield server


class Worker:
    """A process of ours; all of them give their responses the same ids, so that only the tenant tells two of them apart."""

    def __init__(self, server: RedisServer, *, ids: Callable[[str], str] | None = None, **options: Any) -> None:
        self.app = ScriptedApp(ScriptedModel(id_factory=ids) if ids is not None else None)
        self.store = RedisStore(server.url, timeout_s=0.5, **options)
        self.shell = Shell(self.app, store=self.store, durable=True)

    def said(self) -> list[str]:
        """What the newest request of the app tells of the conversation, by the user."""
        items = self.app.requests[-1].body["input"]
        if isinstance(items, str):
            return [items]
        return [item["content"] for item in items if item.get("role") == "user"]


class Told(NamedTuple):
    """A response of which a client was told that it is complete."""

    key: tuple[bytes, bytes]
    id: str
    said: list[str]


def begin(server: RedisServer, fault: Fault) -> None:
    if fault in ("killed", "restarted"):
        server.kill()
    if fault == "restarted":
        server.start()
    if fault == "paused":
        server.signal(signal.SIGSTOP)
    if fault in ("slow", "full"):
        with server.client() as client:
            if fault == "slow":
                client.execute_command("CLIENT", "PAUSE", 120, "ALL")
            else:
                client.config_set("maxmemory", "1kb")


def end(server: RedisServer, fault: Fault) -> None:
    if fault == "killed":
        server.start()
    if fault == "paused":
        server.signal(signal.SIGCONT)
    if fault == "full":
        with server.client() as client:
            client.config_set("maxmemory", "0")


async def take(ws: MemorySocket, key: tuple[bytes, bytes], text: str, before: Told | None) -> Told | None:
    """Take a turn; None if it was not told to be complete, which then says why."""
    events = await ws.turn(create(text, previous_response_id=None if before is None else before.id))
    if kinds(events)[-1] == "completed":
        return Told(key, id_of(events), [*(() if before is None else before.said), text])
    assert code_of(events[-1]) in {"store_unavailable", "previous_response_not_found"}
    return None


@pytest.mark.parametrize("fault", ["killed", "paused", "slow", "full", "restarted"])
async def test_what_was_told_is_there_afterwards(server: RedisServer, fault: Fault) -> None:
    """In the middle of turns of two tenants, on sockets that stay: no wrong answer, nothing lost, nothing crossed."""
    worker, told = Worker(server, fail="closed"), list[Told]()
    refused = 0
    async with worker.shell.socket(KEY) as mine, worker.shell.socket(OTHER_KEY) as yours:
        newest: dict[Any, Told | None] = dict.fromkeys(TENANTS)
        for number in range(12):
            if number == 4:
                begin(server, fault)
            if number == 7:
                end(server, fault)
            for ws, key in ((mine, KEY), (yours, OTHER_KEY)):
                one = await take(ws, key, f"{key[1].decode()} {number}", newest[key])
                if one is None:
                    refused += 1
                    continue
                newest[key] = one
                told.append(one)
    await worker.store.aclose()
    assert len(told) >= 10
    assert (refused > 0) == (fault in {"killed", "paused", "full"})

    other = Worker(server)
    for one in told:
        for key in TENANTS:
            async with other.shell.socket(key) as ws:
                events = await ws.turn(create("and?", previous_response_id=one.id, store=False))
            if key == one.key:
                assert kinds(events)[-1] == "completed"
                assert other.said() == [*one.said, "and?"]
            else:
                assert code_of(events[-1]) == "previous_response_not_found"
    await other.store.aclose()


async def test_equal_ids_of_two_tenants_stay_apart_while_the_server_fails(server: RedisServer) -> None:
    """Only the tenant tells them apart: whatever is late or is told again must not be given to the other."""
    counts = dict.fromkeys(TENANTS, 0)
    workers: dict[Any, Worker] = {}
    for key in TENANTS:

        def ids(prefix: str, key: Any = key) -> str:
            counts[key] += prefix == "resp"
            return f"{prefix}_{counts[key]}"

        workers[key] = Worker(server, ids=ids)
    newest: dict[Any, Told | None] = dict.fromkeys(TENANTS)
    for number in range(8):
        if number in (2, 5):
            begin(server, "paused" if number == 2 else "killed")
        for key in TENANTS:
            async with workers[key].shell.socket(key) as ws:
                one = await take(ws, key, f"{key[1].decode()} {number}", newest[key])
                if one is not None:
                    newest[key] = one
                    assert workers[key].said() == one.said
        if number in (3, 6):
            end(server, "paused" if number == 3 else "killed")
    for key in TENANTS:
        assert newest[key] is not None
        await workers[key].store.aclose()
