"""Billing, limits, metrics: what is told of a turn, when, and what a quota can do."""

import asyncio
import base64
import json
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any

import anyio
import pytest
import uvicorn

from tests.known_faults.talk import KEY, NOT_FOUND, TENANT_KEY, create, endings, failure, follow, id_of, response, said
from ws_responses import Handshake, Limits, Principal, Refused, ResponsesWebSocketMiddleware
from ws_responses.errors import StoreError
from ws_responses.instrumentation import ConnectionClosed, Fact, FrameRefused, StoreFailed, TurnFinished
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, steps

USAGE = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10, "output_tokens_details": {"reasoning_tokens": 0}}


def usage_of(fact: TurnFinished) -> Any:
    return None if fact.usage is None else json.loads(fact.usage)


# -- what is told --------------------------------------------------------------------------------------------------------

ENDS: dict[str, tuple[list[steps.Step], str, str | None]] = {
    "completed": ([steps.text("Hello")], "completed", None),
    "incomplete": ([steps.text("Hel"), steps.incomplete()], "incomplete", None),
    "failed": ([steps.text("Hel"), steps.fail("rate_limit_exceeded")], "failed", "rate_limit_exceeded"),
    "status": ([steps.status(429)], "error", "rate_limit_exceeded"),
    "raised": ([steps.raise_error(RuntimeError("boom"), after="before")], "error", "server_error"),
    "raised later": ([steps.created(), steps.raise_error(RuntimeError("boom"))], "failed", "server_error"),
    "truncated": ([steps.text("Hello"), steps.truncate(3)], "failed", "upstream_stream_truncated"),
}


@pytest.mark.fault("B145")
@pytest.mark.parametrize("how", ENDS)
async def test_every_turn_is_reported_once_however_it_ends(how: str) -> None:
    """With completed turns only, a client pays nothing for what it lets fail or run into a limit."""
    script, outcome, code = ENDS[how]
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script(script, [])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        await ws.turn(create(model="first"))
        await ws.turn(create(model="second"))

    first, second = endings(facts)
    assert (first.outcome, first.code, first.model) == (outcome, code, "first")
    assert (second.outcome, second.code, second.model) == ("completed", None, "second")
    assert first.turn_id != second.turn_id


@pytest.mark.fault("B145")
@pytest.mark.parametrize("begun", [False, True], ids=["before its first event", "in its stream"])
async def test_a_turn_whose_client_leaves_is_reported_once(begun: bool) -> None:
    """What was generated until then has a cost too."""
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script([*([steps.text("Hel")] if begun else []), steps.stall()])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        await ws.send_json({"type": "response.create", **create()})
        await app.wait_requests(1)
        if begun:
            await ws.receive()
        await ws.abort()
        await ws.wait_returned()

    (ending,) = endings(facts)
    assert (ending.outcome, ending.usage) == ("gone", None)
    assert (ending.response_id is not None) is begun


@pytest.mark.fault("B145")
async def test_a_turn_that_was_queued_when_its_client_left_is_no_turn() -> None:
    """It never ran; a fact for it would be billed."""
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script([steps.created(), steps.stall()])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        for _ in range(3):
            await ws.send_json({"type": "response.create", **create()})
        await app.wait_requests(1)
        await ws.wait_received()
        await ws.abort()
        await ws.wait_returned()

    assert [ending.outcome for ending in endings(facts)] == ["gone"]


@pytest.mark.fault("B145")
async def test_a_missing_model_is_not_taken_from_the_turn_before() -> None:
    """A later frame without a model would be served, and billed, as another one: the app judges it."""
    facts: list[Fact] = []
    app = ScriptedApp()
    refusal = {"error": {"message": "You must provide a model.", "type": "invalid_request_error", "param": "model"}}
    app.script(lambda body: None if body.get("model") else [steps.status(400, refusal)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        first = await ws.turn(create(model="first"))
        refused = await ws.turn({"input": "hi", "previous_response_id": id_of(first)})

    assert failure(refused) == (400, "invalid_request", "model")
    assert "model" not in app.requests[1].body
    assert endings(facts)[1].model is None


@pytest.mark.fault("B146")
@pytest.mark.parametrize("how", ["completed", "incomplete", "failed", "status"])
async def test_a_turn_is_reported_before_its_client_can_know_of_its_end(how: str) -> None:
    """Kept until the close, the usage of an hour is lost in a crash. At most the running turns can be lost so."""
    told: list[int] = []
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script(*[ENDS[how][0]] * 3)
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        for _ in range(3):
            await ws.turn(create())
            told.append(len(endings(facts)))

    assert told == [1, 2, 3]


@pytest.mark.fault("B153")
async def test_usage_is_that_of_the_terminal_event() -> None:
    """Read from a delta or from ``response.created``, it is zero."""
    early = {**USAGE, "output_tokens": 0, "total_tokens": 7}
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script(
        [
            steps.text("Hello"),
            steps.set_field("response.usage", early, event="response.created"),
            steps.set_field("usage", early, event="response.output_text.delta"),
            steps.set_field("response.usage", USAGE, event="response.completed"),
        ]
    )
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        events = await ws.turn(create())

    assert response(events)["usage"] == USAGE
    assert usage_of(endings(facts)[0]) == USAGE


@pytest.mark.fault("B153")
@pytest.mark.parametrize("absent", ["missing", "null"])
@pytest.mark.parametrize("complete", [False, True], ids=["as it is", "completed"])
async def test_usage_that_nobody_knows_is_null_and_never_zero(absent: str, complete: bool) -> None:
    """Zero is a number that somebody adds up."""
    facts: list[Fact] = []
    app = ScriptedApp()
    event = "response.completed"
    cut = steps.drop_field("response.usage", event=event)
    app.script(
        [steps.text("Hello"), cut if absent == "missing" else steps.set_field("response.usage", None, event=event)]
    )
    middleware = ResponsesWebSocketMiddleware(app, hooks=[facts.append], complete_response=complete)
    async with MemorySocket(middleware) as ws:
        events = await ws.turn(create())

    assert response(events).get("usage", "missing") == ("missing" if absent == "missing" and not complete else None)
    assert endings(facts)[0].usage is None


@pytest.mark.fault("B153")
async def test_the_usage_of_an_incomplete_turn_counts() -> None:
    """Tokens up to a limit were generated all the same."""
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script(
        [steps.incomplete(), steps.set_field("response.usage", USAGE, event="response.incomplete")],
        [steps.fail(), steps.set_field("response.usage", USAGE, event="response.failed")],
    )
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        await ws.turn(create())
        await ws.turn(create())

    assert [usage_of(ending) for ending in endings(facts)] == [USAGE, USAGE]


# -- limits --------------------------------------------------------------------------------------------------------------


class Quota:
    """An operator's ``authorize`` that lets so many turns of each key pass."""

    def __init__(self, turns: int) -> None:
        self.left = turns
        self.asked: list[str | None] = []

    def __call__(self, handshake: Handshake, model: str | None) -> Principal:
        self.asked.append(model)
        if model is not None:
            if not self.left:
                raise Refused(
                    "Quota used up.",
                    status=429,
                    type="rate_limit_error",
                    code="rate_limit_exceeded",
                    headers={"retry-after": "20"},
                )
            self.left -= 1
        return Principal(id="p")


@pytest.mark.fault("B147")
async def test_a_quota_counts_turns_and_not_sockets() -> None:
    """Looked at in the handshake only, one socket gets any number of turns."""
    quota = Quota(2)
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app, authorize=quota), headers=KEY) as ws:
        first = await ws.turn(create(store=False))
        second = await ws.turn(follow(first, store=False))
        refused = await ws.turn(follow(second, store=False))
        quota.left = 1
        again = await ws.turn(follow(second, store=False))

    assert failure(refused) == (429, "rate_limit_exceeded", None)
    assert refused[0]["headers"] == refused[0]["error"]["headers"] == {"retry-after": "20"}
    # The turn never ran, so its parent is still there, and so is the socket.
    assert response(again)["status"] == "completed"
    assert quota.asked == [None, *["m"] * 4]
    assert len(app.requests) == 3


@pytest.mark.fault("B147")
async def test_a_quota_counts_warm_ups_and_turns_that_had_to_wait() -> None:
    """Both are creates; what was queued is judged again when it starts, because its time has changed."""
    quota = Quota(2)
    go = anyio.Event()
    app = ScriptedApp()
    app.script([steps.created(), steps.wait_for(go)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app, authorize=quota), headers=KEY) as ws:
        assert response(await ws.turn(create(generate=False)))["output"] == []
        for _ in range(2):
            await ws.send_json({"type": "response.create", **create()})
        await app.wait_requests(1)
        go.set()
        assert response(await ws.collect())["status"] == "completed"
        refused = await ws.collect()

    assert failure(refused) == (429, "rate_limit_exceeded", None)


OTHER_FRAMES = (
    '{"type":"response.cancel"}',
    '{"type":"response.steer","previous_response_id":"resp_1","input":"more"}',
    '{"type":"response.inject","response_id":"resp_1","input":[]}',
    "garbage",
    "[]",
    '{"type":"response.create","input":7}',
)


@pytest.mark.fault("B148")
async def test_frames_of_other_kinds_are_counted_and_cost_little() -> None:
    """A limiter that sees creates only is bypassed by everything else."""
    facts: list[Fact] = []
    quota = Quota(1)
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, authorize=quota, hooks=[facts.append])
    async with MemorySocket(middleware, headers=KEY) as ws:
        for _ in range(50):
            for frame in OTHER_FRAMES:
                await ws.send_text(frame)
                assert (await ws.receive_json())["type"] in (
                    "error",
                    "response.steer.failed",
                    "response.inject.failed",
                )
        served = await ws.turn(create())

    assert response(served)["status"] == "completed"
    refused = [fact for fact in facts if isinstance(fact, FrameRefused)]
    assert len(refused) == 50 * len(OTHER_FRAMES)
    assert {fact.connection_id for fact in refused} == {refused[0].connection_id}
    # Neither the operator nor the app is bothered.
    assert quota.asked == [None, "m"]
    assert len(app.requests) == 1


@pytest.mark.fault("B148")
@pytest.mark.parametrize("frame", OTHER_FRAMES)
async def test_a_flood_of_frames_by_a_client_that_does_not_read_ends_its_socket(frame: str) -> None:
    """The answers may wait for it in so many bytes and no more; the reader never waits."""
    limits = Limits(max_outgoing_bytes=4096)
    facts: list[Fact] = []
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), limits=limits, hooks=[facts.append])
    async with MemorySocket(middleware, max_unread=1) as ws:
        for _ in range(1000):
            await ws.send_text(frame)
        assert await ws.wait_closed() == 1008
        waiting = sum(len(frame) for frame in ws.frames)

    assert waiting <= limits.max_outgoing_bytes
    assert middleware.connections == 0
    assert len([fact for fact in facts if isinstance(fact, ConnectionClosed)]) == 1


# -- hooks that change something -----------------------------------------------------------------------------------------


@pytest.mark.fault("B150")
async def test_a_hook_that_edits_requests_edits_every_one_of_them() -> None:
    """An early return for continuations would drop the edit from the second turn on."""
    app = ScriptedApp()

    def prepare(body: dict[str, Any], turn: Any) -> dict[str, Any]:
        return {**body, "model": f"{body['model']}-eu", "metadata": {"turn": turn.id}}

    async with MemorySocket(ResponsesWebSocketMiddleware(app, prepare=prepare)) as ws:
        first = await ws.turn(create())
        second = await ws.turn(follow(first, input=[said("a")]))
        await ws.turn(follow(second, input=[]))

    assert [request.body["model"] for request in app.requests] == ["m-eu"] * 3
    assert len({request.body["metadata"]["turn"] for request in app.requests}) == 3


@pytest.mark.fault("B152")
async def test_a_revoked_tenant_loses_its_sockets_and_nobody_else_does() -> None:
    """A revocation on one node is passed on by the operator: each node has this call."""
    app = ScriptedApp()
    app.script([steps.created(), steps.stall()])
    middleware = ResponsesWebSocketMiddleware(app, tenant=lambda handshake: handshake.bearer_token)
    bad, good = [(b"authorization", b"Bearer bad")], [(b"authorization", b"Bearer good")]
    async with (
        MemorySocket(middleware, headers=bad) as busy,
        MemorySocket(middleware, headers=bad) as idle,
        MemorySocket(middleware, headers=good) as other,
    ):
        await busy.send_json({"type": "response.create", **create()})
        await app.wait_requests(1)
        assert middleware.disconnect("bad", "key revoked") == 2
        assert middleware.disconnect("unknown") == 0
        ended = await busy.collect()
        assert [await busy.wait_closed(), await idle.wait_closed()] == [1008, 1008]
        assert (busy.close_reason, idle.close_reason) == ("key revoked", "key revoked")
        assert response(await other.turn(create()))["status"] == "completed"

    assert (ended[-1]["type"], ended[-1]["response"]["error"]["code"]) == ("response.failed", "permission_denied")
    assert app.running == 0


# -- a slow store --------------------------------------------------------------------------------------------------------


class SlowStore:
    """A shared store: what is appended lands when the test says so."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.records: dict[StoreKey, tuple[Record, StoreKey | None]] = {}
        self.go = anyio.Event()
        self.error: Exception | None = None
        self.running = 0

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        assert not self.running, "two writes of one chain at once"
        self.begun.append(key.response_id)
        self.running += 1
        try:
            await self.go.wait()
        finally:
            self.running -= 1
        if self.error is not None:
            raise self.error
        assert parent is None or parent in self.records, "a child was written before its parent"
        self.records[key] = record, parent

    async def load(self, key: StoreKey) -> Sequence[Record]:
        chain: list[Record] = []
        at: StoreKey | None = key
        while at is not None and at in self.records:
            record, at = self.records[at]
            chain.insert(0, record)
        return chain

    async def delete(self, key: StoreKey) -> None:
        self.records.pop(key, None)

    async def aclose(self) -> None:
        return


@pytest.mark.fault("B155", "B140")
async def test_the_next_turn_of_a_socket_never_waits_for_a_store_and_others_get_not_found_until_it_has_written() -> (
    None
):
    """Read from the store, the second turn would miss the first; waiting for it, every turn would pay for it."""
    store = SlowStore()
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), store=store, tenant_key=TENANT_KEY)
    async with MemorySocket(middleware, headers=KEY) as ws, MemorySocket(middleware, headers=KEY) as other:
        chain = [await ws.turn(create(store=True))]
        for _ in range(3):
            chain.append(await ws.turn(follow(chain[-1], store=True)))
        too_early = await other.turn(follow(chain[0], store=True))
        assert store.begun == [id_of(chain[0])]
        store.go.set()
        await ws.settle()
        assert store.begun == [id_of(events) for events in chain]
        in_time = await other.turn(follow(chain[-1], input=[said("more")], store=True))

    assert failure(too_early) == NOT_FOUND
    assert response(in_time)["status"] == "completed"


@pytest.mark.fault("B155", "B140")
async def test_what_is_still_to_be_written_at_the_close_is_written() -> None:
    """The last turn before a reconnect is the one that the client comes back for."""
    store = SlowStore()
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), store=store, tenant_key=TENANT_KEY)
    async with MemorySocket(middleware, headers=KEY) as ws:
        first = await ws.turn(create(store=True))
        second = await ws.turn(follow(first, store=True))
        await ws.close()
        await ws.settle()
        assert not ws.returned
        store.go.set()
        await ws.wait_returned()
    async with MemorySocket(middleware, headers=KEY) as ws:
        again = await ws.turn(follow(second, store=True))

    assert response(again)["status"] == "completed"


@pytest.mark.fault("B155")
@pytest.mark.parametrize("how", ["raises", "is late"])
async def test_a_store_that_fails_is_told_and_costs_no_turn(how: str) -> None:
    """A silent loss would be noticed by the client that reconnects; the operator has to hear of it first."""
    store = SlowStore()
    clock = FakeClock()
    facts: list[Fact] = []
    if how == "raises":
        store.error = StoreError("redis://secret@host is down")
        store.go.set()
    middleware = ResponsesWebSocketMiddleware(
        ScriptedApp(),
        store=store,
        tenant_key=TENANT_KEY,
        hooks=[facts.append],
        clock=clock,
        limits=Limits(store_timeout_s=2),
    )
    async with MemorySocket(middleware, headers=KEY) as ws:
        first = await ws.turn(create(store=True))
        await clock.advance(2)
        second = await ws.turn(follow(first, store=True))
        await clock.advance(2)

    assert response(second)["status"] == "completed"
    failed = [fact for fact in facts if isinstance(fact, StoreFailed)]
    assert [fact.operation for fact in failed] == ["append", "append"]
    assert "secret" not in repr(failed)


# -- the first turn of a socket --------------------------------------------------------------------------------------------


def handshake(port: int) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()


def text_frame(text: str) -> bytes:
    """Return a short text frame of a client (RFC 6455, 5.2)."""
    payload, mask = text.encode(), os.urandom(4)
    assert len(payload) < 126
    masked = bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload))
    return struct.pack("!BB", 0x81, 0x80 | len(payload)) + mask + masked


async def first_turn(port: int) -> bool:
    """Send a create as soon as the first byte after the handshake may be sent; return whether the turn was served."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(handshake(port))
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(text_frame(json.dumps({"type": "response.create", **create()})))
        got = b""
        while b"response.completed" not in got:
            chunk = await asyncio.wait_for(reader.read(65536), 10)
            if not chunk:
                return False
            got += chunk
        return head.startswith(b"HTTP/1.1 101")
    finally:
        writer.close()


@pytest.mark.servers
@pytest.mark.fault("B151")
@pytest.mark.parametrize("engine", ["websockets-sansio", "wsproto"])
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_create_on_the_heels_of_the_handshake_is_served_every_time(engine: Any) -> None:
    """It may arrive before anybody waits for frames; it must not be lost then, nor end the socket."""
    app = ScriptedApp()
    app.script(lambda _: [steps.text("Hello")])
    middleware = ResponsesWebSocketMiddleware(app, store=None)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(middleware, ws=engine, log_level="warning", lifespan="off"))
    served: list[bool] = []

    async def client(count: int) -> None:
        for _ in range(count):
            served.append(await first_turn(port))
            app.requests.clear()

    with listener:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listener])
            try:
                async with anyio.create_task_group() as clients:
                    for _ in range(10):
                        clients.start_soon(client, 50)
            finally:
                server.should_exit = True

    assert served == [True] * 500
    assert middleware.connections == 0
