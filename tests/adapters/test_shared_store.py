"""Two workers over one store: a conversation goes on at the other one, as if it had never left."""

import secrets
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import pytest

from tests.adapters.redis_server import RedisServer
from tests.engine.service import END, FINAL, REASONING, STOP, LetterRenderer, ScriptedService, letters
from tests.shell import KEY, OTHER_KEY, answer, code_of, create, id_of, kinds, types_of
from ws_responses import ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses.adapters.sqlite import SqliteStore
from ws_responses.backends import Delta
from ws_responses.routing import SingleRouter
from ws_responses.state.store import ResponseStore
from ws_responses.testing import MemorySocket, ScriptedApp, steps

TENANT_KEY = b"the same for all workers, always"
ASYNCIO: Any = ("asyncio", {"use_uvloop": False})


class Where(NamedTuple):
    kind: Literal["sqlite", "redis", "valkey"]
    backend: Any


@pytest.fixture(
    scope="module",
    params=[Where("sqlite", ASYNCIO), Where("sqlite", ("trio", {})), Where("redis", ASYNCIO), Where("valkey", ASYNCIO)],
    ids=lambda where: f"{where.kind}-{where.backend[0]}",
)
def where(request: pytest.FixtureRequest) -> Where:
    found: Where = request.param
    return found


@pytest.fixture(scope="module")
def anyio_backend(where: Where) -> Any:
    return where.backend


@pytest.fixture(scope="module")
def server(where: Where) -> Generator[RedisServer | None]:
    if where.kind == "sqlite":
        yield None
        return
    with RedisServer(where.kind) as server:
        yield server


@pytest.fixture
def new_store(server: RedisServer | None, tmp_path: Path) -> Callable[[], ResponseStore]:
    """Makes one worker's store."""
    prefix = secrets.token_hex(4)

    def make() -> ResponseStore:
        if server is None:
            return SqliteStore(tmp_path / "responses.db")
        from ws_responses.adapters.redis import RedisStore

        return RedisStore(server.url, prefix=prefix)

    return make


class Worker:
    """A process of a server with an engine, as far as the others can tell."""

    def __init__(self, store: ResponseStore | None, tenant_key: bytes = TENANT_KEY) -> None:
        self.service = ScriptedService("tokens", returns_ids=True)
        self.renderer = LetterRenderer()
        engine = ResponsesEngine(router=SingleRouter(self.service, self.renderer))
        self.app = ResponsesApp(engine, authorize="open", store=store, tenant_key=tenant_key)

    def socket(self, *headers: tuple[bytes, bytes]) -> MemorySocket:
        return MemorySocket(self.app, headers=headers or (KEY,))

    async def written(self) -> None:
        """Return when what is to be stored has been."""
        for connection in self.app.middleware.registry.connections:
            await connection.stored()

    @property
    def prompts(self) -> list[list[int]]:
        return [list(prompt.rendered.ids()) for prompt in self.service.prompts]


def sampled(number: int) -> list[int]:
    """Ids that nobody would make of the text that they stand for."""
    return [REASONING, *letters(f"hm {number}"), END, FINAL, *letters(f"Answer {number}"), END]


def says(service: ScriptedService, number: int) -> None:
    service.will([Delta(token_ids=sampled(number)), STOP])


async def test_the_other_worker_is_given_the_same_prompt_token_for_token(
    new_store: Callable[[], ResponseStore],
) -> None:
    """Also of answers whose ids cannot be had from their text: a client that reconnects lands anywhere."""
    alone = Worker(None)
    async with alone.socket() as ws:
        parent = None
        for number in range(30):
            says(alone.service, number)
            parent = id_of(await ws.turn(create(f"Question {number}", previous_response_id=parent)))

    workers = [Worker(new_store()), Worker(new_store())]
    parent = None
    prompts: list[list[int]] = []
    for number in range(30):
        worker = workers[number % 2]
        says(worker.service, number)
        async with worker.socket() as ws:
            parent = id_of(await ws.turn(create(f"Question {number}", previous_response_id=parent)))
            await worker.written()
        prompts.append(worker.prompts[-1])
    assert prompts == alone.prompts
    assert set(sampled(28)) <= set(prompts[-1])
    for worker in workers:
        await worker.app.aclose()


async def test_after_the_first_turn_only_the_new_items_are_rendered(new_store: Callable[[], ResponseStore]) -> None:
    """All of it is rendered once at the worker where a client lands, and not at each turn from then on."""
    first, second = Worker(new_store()), Worker(new_store())
    parent = None
    async with first.socket() as ws:
        for number in range(20):
            says(first.service, number)
            parent = id_of(await ws.turn(create(f"Question {number:02}", previous_response_id=parent)))
        await first.written()
    costs: list[int] = []
    async with second.socket() as ws:
        for number in range(20, 24):
            says(second.service, number)
            before = second.renderer.rendered
            parent = id_of(await ws.turn(create(f"Question {number:02}", previous_response_id=parent)))
            costs.append(second.renderer.rendered - before)
        await second.written()
    one = len("u:Question 00")
    assert costs == [21 * one, one, one, one]
    for worker in (first, second):
        await worker.app.aclose()


async def test_forks_deletions_and_tenants_hold_at_the_other_worker(new_store: Callable[[], ResponseStore]) -> None:
    workers = [Worker(new_store()), Worker(new_store())]
    stranger = Worker(new_store(), tenant_key=b"another key, as a worker of another server has it")
    async with workers[0].socket() as ws:
        first = id_of(await ws.turn(create("one")))
        second = id_of(await ws.turn(create("two", previous_response_id=first)))
        unstored = id_of(await ws.turn(create("three", previous_response_id=second, store=False)))
        await workers[0].written()

    async with workers[1].socket() as ws:
        fork = id_of(await ws.turn(create("fork", previous_response_id=first)))
        await workers[1].written()
        assert workers[1].service.text().count("u:") == 2
        (event,) = await ws.turn(create(previous_response_id=unstored))
        assert code_of(event) == "previous_response_not_found"
    for worker, key in ((workers[1], OTHER_KEY), (stranger, KEY)):
        async with worker.socket(key) as ws:
            (event,) = await ws.turn(create(previous_response_id=first))
            assert code_of(event) == "previous_response_not_found"
            async with http(worker, key) as client:
                assert (await client.get(f"/v1/responses/{first}")).status_code == 404

    async with http(workers[1]) as client:
        stored = (await client.get(f"/v1/responses/{second}")).json()
        assert (stored["id"], stored["previous_response_id"]) == (second, first)
        items = (await client.get(f"/v1/responses/{fork}/input_items?order=asc")).json()["data"]
        assert [item["role"] for item in items] == ["user", "assistant", "user"]
        assert (await client.delete(f"/v1/responses/{first}")).status_code == 200
    async with workers[0].socket() as ws:
        (event,) = await ws.turn(create(previous_response_id=first))
        assert code_of(event) == "previous_response_not_found"
        assert kinds(await ws.turn(create("on", previous_response_id=fork)))[-1] == "completed"
        await workers[0].written()
    assert workers[0].service.text().count("u:") == 3
    for worker in (*workers, stranger):
        await worker.app.aclose()


def http(worker: Worker, key: tuple[bytes, bytes] = KEY) -> httpx.AsyncClient:
    headers = {key[0].decode(): key[1].decode()}
    return httpx.AsyncClient(transport=httpx.ASGITransport(worker.app), base_url="http://test", headers=headers)


async def test_a_wrapped_app_is_given_all_of_it_by_the_other_worker(new_store: Callable[[], ResponseStore]) -> None:
    """With calls that are open when the socket breaks: what the validator knows travels, too."""
    apps = [ScriptedApp(), ScriptedApp()]
    workers = [ResponsesWebSocketMiddleware(app, store=new_store(), tenant_key=TENANT_KEY) for app in apps]
    parent: str | None = None
    for number in range(12):
        app, worker = apps[number % 2], workers[number % 2]
        calls, answers = number % 3 == 0, number % 3 == 1
        app.script([steps.tool_call("look", call_id=f"call_{number}") if calls else steps.text(f"Answer {number}")])
        async with MemorySocket(worker, headers=(KEY,)) as ws:
            if answers:
                (event,) = await ws.turn(create("ignores the call", previous_response_id=parent))
                assert code_of(event) == "tool_output_missing"
            given: Any = [answer(f"call_{number - 1}")] if answers else f"Question {number}"
            parent = id_of(await ws.turn(create(given, previous_response_id=parent)))
            for connection in worker.registry.connections:
                await connection.stored()
    cycle = ["user", "function_call", "function_call_output", "assistant", "user", "assistant"]
    assert types_of(apps[1].requests[-1].body) == (cycle * 4)[:-1]
    for worker in workers:
        await worker.aclose()
