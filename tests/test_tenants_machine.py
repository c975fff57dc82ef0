"""Two tenants with the same ids, the same headers of a session and the same lanes, over two workers and one store: nothing crosses."""

import asyncio
import json
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from anyio.lowlevel import checkpoint
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from tests.wires import Wire
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import Receive, Scope, Send
from ws_responses.adapters.sqlite import SqliteStore
from ws_responses.errors import StoreError
from ws_responses.state.encoding import RecordCodec
from ws_responses.state.node import Record
from ws_responses.state.store import ResponseStore, StoreKey
from ws_responses.testing import ScriptedApp, steps
from ws_responses.testing.socket import TERMINAL_TYPES

TENANTS: Final = ("alice", "bob")
WORKERS: Final = (0, 1)
LANES: Final = (None, "main", "side")
TENANT_KEY: Final = b"the same for both workers"
NOWHERE: Final = "resp_nobody"

MakeStores = Callable[[], Sequence[ResponseStore]]
"""Makes the stores of both workers, which are one."""


class DictStore:
    """A store in another process, as far as the workers can tell: it keeps bytes, by tenant and id."""

    rows: dict[StoreKey, tuple[bytes, StoreKey | None]]

    def __init__(self, rows: dict[StoreKey, tuple[bytes, StoreKey | None]], hidden: set[StoreKey]) -> None:
        self.rows = rows
        self._hidden = hidden
        self._codec = RecordCodec()

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        del ttl_s
        await checkpoint()
        if parent is not None and (parent not in self.rows or parent in self._hidden):
            raise StoreError("the parent of this response is not stored")
        self.rows[key] = self._codec.encode(key.tenant, record), parent
        self._hidden.discard(key)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        await checkpoint()
        contents: list[bytes] = []
        at = None if key in self._hidden else key
        while at is not None and at in self.rows:
            content, at = self.rows[at]
            contents.append(content)
        return self._codec.decode_chain(key, contents[::-1])

    async def delete(self, key: StoreKey) -> None:
        await checkpoint()
        if key in self.rows:
            self._hidden.add(key)

    async def aclose(self) -> None:
        """Nothing is open."""


class Known(NamedTuple):
    """What a tenant may go on from.

    Attributes:
        texts: The conversation, question and answer in turn.
        stored: Every worker finds it; else only the socket where it was made.
        wire: That socket.
    """

    texts: tuple[str, ...]
    stored: bool
    wire: Wire


def texts_of(items: list[Any]) -> tuple[str, ...]:
    """The texts of a conversation's messages."""
    found: list[str] = []
    for item in items:
        content = item["content"]
        found.append(content if isinstance(content, str) else "".join(part["text"] for part in content))
    return tuple(found)


class TenantsMachine(RuleBasedStateMachine):
    """Both take turns on sockets at either worker, fork, delete and reconnect; each names the other's ids, too."""

    @staticmethod
    def make_stores() -> Sequence[ResponseStore]:
        """Make the stores of both workers."""
        raise NotImplementedError

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.known: dict[str, dict[str, Known]] = {tenant: {} for tenant in TENANTS}
        self.ids: dict[str, int] = dict.fromkeys(TENANTS, 0)
        self.wires: dict[tuple[str, int], Wire] = {}
        self.heard: list[tuple[str, Wire]] = []
        self.count = 0
        self.app = ScriptedApp()
        self.app.script(self.answer)
        self.stores = self.make_stores()
        self.workers = [
            ResponsesWebSocketMiddleware(self.serve, store=store, tenant_key=TENANT_KEY, durable=True, probe=False)
            for store in self.stores
        ]

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app: says of everything that it was deleted, since it knows nobody; answers turns by the script."""
        if scope["type"] == "http" and scope["method"] == "DELETE":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})
            return
        await self.app(scope, receive, send)

    def answer(self, body: dict[str, Any]) -> list[steps.Step]:
        """Give the two of them the same ids, and each an answer that names it."""
        tenant = str(texts_of(body["input"])[-1]).partition(" ")[0]
        self.ids[tenant] += 1
        return [steps.response_id(f"resp_{self.ids[tenant]}"), steps.text(f"{tenant} is answered {len(body['input'])}")]

    # -- what they do ------------------------------------------------------------------------------------------------

    @rule(
        tenant=st.sampled_from(TENANTS),
        worker=st.sampled_from(WORKERS),
        lane=st.sampled_from(LANES),
        store=st.sampled_from([None, None, True, False]),
        number=st.integers(0, 12),
    )
    def takes_a_turn(self, tenant: str, worker: int, lane: str | None, store: bool | None, number: int) -> None:
        """Go on from an id that both may have, one that only the other has, one that nobody has, or from nothing."""
        parent_id = None if number == 0 else NOWHERE if number == 12 else f"resp_{number}"
        self.count += 1
        question = f"{tenant} asks {self.count}"
        wire = self.wire(tenant, worker)
        frame: dict[str, Any] = {
            "type": "response.create",
            "model": "m",
            "input": [{"role": "user", "content": question}],
        }
        frame |= {} if lane is None else {"stream_id": lane}
        frame |= {} if store is None else {"store": store}
        frame |= {} if parent_id is None else {"previous_response_id": parent_id}
        asked = len(self.app.requests)
        end = self.turn(wire, frame)

        parent = self.known[tenant].get(parent_id or "")
        found = parent_id is None or (parent is not None and (parent.stored or parent.wire is wire))
        if not found:
            assert end.get("error", {}).get("code") == "previous_response_not_found", end
            assert len(self.app.requests) == asked
            return
        if store is True and parent is not None and not parent.stored:
            assert end["error"]["code"] == "invalid_store_transition", end
            self.fail(tenant, parent_id, wire)
            return
        assert end["type"] == "response.completed", end
        given = texts_of(self.app.requests[-1].input)
        assert given == (*(() if parent is None else parent.texts), question)
        answer = texts_of(end["response"]["output"])
        assert answer == (f"{tenant} is answered {len(given)}",)
        stored = store is not False and (parent is None or parent.stored)
        self.known[tenant][end["response"]["id"]] = Known((*given, *answer), stored, wire)

    def fail(self, tenant: str, parent_id: str | None, wire: Wire) -> None:
        """A turn that ran and failed evicts its parent if that is of the same lane; then nobody needs to know it any more."""
        assert parent_id is not None
        self.known[tenant].pop(parent_id, None)
        self.leave(tenant, wire)

    @rule(tenant=st.sampled_from(TENANTS), worker=st.sampled_from(WORKERS), number=st.integers(1, 11))
    def deletes(self, tenant: str, worker: int, number: int) -> None:
        """The other one keeps what it has under the same id. Sockets elsewhere may still hold it: they are closed."""
        response_id = f"resp_{number}"
        self.run(self.delete(tenant, worker, response_id))
        self.known[tenant].pop(response_id, None)
        for (each, _), wire in list(self.wires.items()):
            if each == tenant:
                self.leave(tenant, wire)

    @precondition(lambda self: self.wires)
    @rule(number=st.integers(0, 3))
    def reconnects(self, number: int) -> None:
        """A socket ends; the next turn at that worker opens another one."""
        (tenant, _), wire = list(self.wires.items())[number % len(self.wires)]
        self.leave(tenant, wire)

    def leave(self, tenant: str, wire: Wire) -> None:
        """Close a socket; what was not stored is gone with it."""
        wire.leave()
        self.run(asyncio.wait_for(wire.call, 30))
        self.wires = {place: each for place, each in self.wires.items() if each is not wire}
        mine = self.known[tenant]
        self.known[tenant] = {id: known for id, known in mine.items() if known.stored or known.wire is not wire}  # noqa: A001

    # -- how ---------------------------------------------------------------------------------------------------------

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def headers(self, tenant: str) -> list[tuple[bytes, bytes]]:
        """The credentials differ, and nothing else."""
        session = [(b"session_id", b"s-1"), (b"conversation_id", b"c-1"), (b"x-client-request-id", b"r-1")]
        return [(b"authorization", f"Bearer {tenant}".encode()), *session]

    def wire(self, tenant: str, worker: int) -> Wire:
        wire = self.wires.get((tenant, worker))
        if wire is None:
            wire = Wire(self.workers[worker], self.loop, headers=self.headers(tenant))
            self.wires[tenant, worker] = wire
            self.heard.append((tenant, wire))
        return wire

    def turn(self, wire: Wire, frame: dict[str, Any]) -> dict[str, Any]:
        """Send a frame; return the last event of its turn."""
        before = len(wire.frames)
        wire.send(frame)

        async def end() -> dict[str, Any]:
            while True:
                for event in wire.frames[before:]:
                    if event["type"] in TERMINAL_TYPES:
                        return event
                assert not wire.call.done(), "the socket was closed"
                await checkpoint()

        ended: dict[str, Any] = self.run(asyncio.wait_for(end(), 30))
        return ended

    async def delete(self, tenant: str, worker: int, response_id: str) -> None:
        scope = {
            "type": "http",
            "method": "DELETE",
            "path": f"/v1/responses/{response_id}",
            "raw_path": b"",
            "root_path": "",
            "query_string": b"",
            "headers": self.headers(tenant),
            "http_version": "1.1",
            "scheme": "http",
        }
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await self.workers[worker](scope, receive, send)
        assert sent[0]["status"] == 200

    def teardown(self) -> None:
        """Nobody has seen a word of the other's, in whatever frame or request."""
        try:
            self.check_what_was_heard()
        finally:
            for (tenant, _), wire in list(self.wires.items()):
                self.leave(tenant, wire)
            for worker in self.workers:
                self.run(worker.aclose())
            self.run(self.loop.shutdown_default_executor())
            self.loop.close()

    def check_what_was_heard(self) -> None:
        for tenant, wire in self.heard:
            (other,) = set(TENANTS) - {tenant}
            assert other not in json.dumps(wire.frames)
        for request in self.app.requests:
            tenant = (request.header(b"authorization") or b"").decode().removeprefix("Bearer ")
            assert all(text.startswith(tenant) for text in texts_of(request.input))


def run_machine(make_stores: MakeStores, examples: int, phases: Sequence[Phase] = tuple(Phase)) -> None:
    machine = type("Machine", (TenantsMachine,), {"make_stores": staticmethod(make_stores)})
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large]
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples, stateful_step_count=30, deadline=None, suppress_health_check=slow, phases=phases
        ),
    )


def test_nothing_crosses_in_a_store_of_bytes() -> None:
    """Without this an id, a header of the session or a lane might do for a name."""

    def make() -> Sequence[ResponseStore]:
        rows: dict[StoreKey, tuple[bytes, StoreKey | None]] = {}
        hidden: set[StoreKey] = set()
        return [DictStore(rows, hidden) for _ in WORKERS]

    run_machine(make, 40)


def test_nothing_crosses_in_sqlite(tmp_path: Path) -> None:
    """Without this the columns of a table might name too little."""

    def make() -> Sequence[ResponseStore]:
        path = tmp_path / f"{secrets.token_hex(8)}.db"
        return [SqliteStore(path) for _ in WORKERS]

    run_machine(make, 10)


def test_nothing_crosses_in_redis() -> None:
    """Without this two keys might be one, or an answer of the server be taken for that to somebody else."""
    from tests.adapters.redis_server import RedisServer
    from ws_responses.adapters.redis import RedisStore

    with RedisServer("redis") as server:

        def make() -> Sequence[ResponseStore]:
            prefix = secrets.token_hex(8)
            return [RedisStore(server.url, prefix=prefix) for _ in WORKERS]

        run_machine(make, 10)


def test_the_machine_notices_a_store_that_takes_an_id_for_a_name() -> None:
    """Without this the tests above might look at nothing."""

    class Careless(DictStore):
        async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
            await super().append(_anybodys(key), record, None if parent is None else _anybodys(parent), ttl_s)

        async def load(self, key: StoreKey) -> Sequence[Record]:
            return await super().load(_anybodys(key))

    def make() -> Sequence[ResponseStore]:
        rows: dict[StoreKey, tuple[bytes, StoreKey | None]] = {}
        hidden: set[StoreKey] = set()
        return [Careless(rows, hidden) for _ in WORKERS]

    with pytest.raises(AssertionError):
        run_machine(make, 200, [Phase.generate])


def _anybodys(key: StoreKey) -> StoreKey:
    return StoreKey("anybody", key.response_id)
