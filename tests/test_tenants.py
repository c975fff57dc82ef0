"""Who owns a chain: nothing of one tenant ever reaches another, whatever ids they have."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import anyio
import pytest
from anyio.abc import TaskGroup, TaskStatus
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.shell import KEY, OTHER_KEY, Client, Shell, by_bearer, code_of, create, id_of, kinds, types_of
from ws_responses import Forbidden, Handshake, Principal, ResponsesWebSocketMiddleware
from ws_responses._types import Message
from ws_responses.state.budget import Ledger
from ws_responses.state.store import InProcessStore
from ws_responses.testing import MemorySocket, ScriptedApp, steps

NOT_FOUND = "previous_response_not_found"


async def resolves(ws: MemorySocket, previous: str) -> bool:
    """Whether an id can be continued here; if not, with the one answer that all strangers get."""
    event = (await ws.turn(create(previous_response_id=previous)))[-1]
    if event["type"] == "response.completed":
        return True
    assert (event["status"], code_of(event)) == (400, NOT_FOUND)
    assert event["error"]["message"] == f"Previous response with id '{previous}' not found."
    return False


# -- the default ------------------------------------------------------------------------------------------------------

CREDENTIALS = [b"authorization", b"api-key", b"x-api-key", b"x-goog-api-key", b"cookie"]


@pytest.mark.parametrize("name", CREDENTIALS)
async def test_a_stored_chain_is_continued_with_the_same_credential_and_with_no_other(name: bytes) -> None:
    app = ScriptedApp()
    shell = Shell(app)
    async with shell.socket((name, b"one")) as ws:
        first = id_of(await ws.turn(create("secret of one")))
        # Also while the owner is there.
        async with shell.socket((name, b"other")) as other, shell.socket() as nobody:
            assert not await resolves(other, first)
            assert not await resolves(nobody, first)
    async with shell.socket((name, b"other")) as other, shell.socket() as nobody:
        assert not await resolves(other, first)
        assert not await resolves(nobody, first)
    assert len(app.requests) == 1, "the app is not called with a stranger's id"
    async with shell.socket((name, b"one"), (b"user-agent", b"another")) as ws:
        assert await resolves(ws, first)
    assert types_of(app.requests[-1].body) == ["user", "assistant", "user"]


async def test_a_foreign_id_is_answered_as_one_that_never_was() -> None:
    """No oracle: unknown, foreign, deleted and unstored ids look the same."""
    app = ScriptedApp(stateful=True)
    shell = Shell(app)
    async with shell.socket(OTHER_KEY) as ws:
        foreign = id_of(await ws.turn(create()))
    async with shell.socket(KEY) as ws:
        unstored = id_of(await ws.turn(create(store=False)))
        deleted = id_of(await ws.turn(create()))
    await delete(shell.middleware, deleted, KEY)
    async with shell.socket(KEY) as ws:
        answers = []
        for previous in ("resp_" + "0" * 32, foreign, unstored, deleted):
            (event,) = await ws.turn(create(previous_response_id=previous))
            answers.append(str(event).replace(previous, "ID"))
    assert len(set(answers)) == 1


async def test_what_is_not_stored_stays_in_its_connection() -> None:
    """`store: false` is gone at the close, and no other socket of the tenant sees it before."""
    shell = Shell(ScriptedApp())
    async with shell.socket(KEY) as ws:
        unstored = id_of(await ws.turn(create(store=False)))
        warm = id_of(await ws.turn(create(store=False, generate=False)))
        async with shell.socket(KEY) as other:
            assert not await resolves(other, unstored)
            assert not await resolves(other, warm)
        assert await resolves(ws, unstored)
        assert await resolves(ws, warm)
    async with shell.socket(KEY) as ws:
        assert not await resolves(ws, unstored)
        assert not await resolves(ws, warm)


# -- nobody -----------------------------------------------------------------------------------------------------------


async def test_clients_without_credentials_are_strangers_to_each_other() -> None:
    app = ScriptedApp()
    shell = Shell(app)
    async with shell.socket() as ws:
        first = id_of(await ws.turn(create()))
        assert await resolves(ws, first)
        async with shell.socket() as other:
            assert not await resolves(other, first)
    async with shell.socket() as again:
        assert not await resolves(again, first)
    app.requests.clear()
    assert shell.middleware.history_bytes == 0, "nothing of them is kept for anybody"


async def test_clients_without_credentials_may_be_one_tenant() -> None:
    shell = Shell(ScriptedApp(), anonymous_tenant="shared")
    async with shell.socket() as ws:
        first = id_of(await ws.turn(create()))
    async with shell.socket() as ws, shell.socket(KEY) as other:
        assert await resolves(ws, first)
        assert not await resolves(other, first)


# -- the operator's word ----------------------------------------------------------------------------------------------


async def test_the_operator_names_tenants_by_the_handshake() -> None:
    def tenant(handshake: Handshake) -> str | None:
        return handshake.headers.get("x-team")

    shell = Shell(ScriptedApp(), tenant=tenant)
    team = (b"x-team", b"blue")
    async with shell.socket(KEY, team) as ws:
        of_team = id_of(await ws.turn(create()))
    async with shell.socket(KEY) as ws:
        of_key = id_of(await ws.turn(create()))
        assert not await resolves(ws, of_team)
    async with shell.socket(OTHER_KEY, team) as ws:
        assert await resolves(ws, of_team)
        assert not await resolves(ws, of_key)
    async with shell.socket(KEY) as ws:
        assert await resolves(ws, of_key), "None keeps the default"


async def test_authorize_names_the_tenant_above_all() -> None:
    tokens: dict[str, str | None] = {"key-1": "team", "key-2": "team", "key-3": None}
    shell = Shell(ScriptedApp(), authorize=by_bearer(tokens), tenant=lambda _: "everybody else")
    async with shell.socket(KEY) as ws:
        first = id_of(await ws.turn(create()))
    async with shell.socket(OTHER_KEY) as ws, shell.socket((b"authorization", b"Bearer key-3")) as third:
        assert await resolves(ws, first)
        assert not await resolves(third, first)
    assert shell.middleware.disconnect("everybody else") == 0


@pytest.mark.parametrize("error", [RuntimeError("broken"), KeyError("x-team")])
async def test_a_tenant_that_cannot_be_told_is_not_guessed(error: Exception) -> None:
    def tenant(handshake: Handshake) -> str | None:
        raise error

    async with Shell(ScriptedApp(), tenant=tenant).socket(KEY) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 503


async def test_the_naming_of_tenants_may_refuse() -> None:
    def tenant(handshake: Handshake) -> str | None:
        raise Forbidden("No team.")

    async with Shell(ScriptedApp(), tenant=tenant).socket(KEY) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 403


@pytest.mark.parametrize(("keys", "found"), [((b"k" * 32, b"k" * 32), True), ((None, None), False)])
async def test_workers_that_share_a_store_need_one_tenant_key(keys: tuple[bytes | None, ...], found: bool) -> None:
    """Without one each process hashes for itself, so that a stolen store tells nothing."""
    store = InProcessStore(Ledger(1 << 20, 1 << 20), lambda: 0.0)
    one, other = (ResponsesWebSocketMiddleware(ScriptedApp(), store=store, tenant_key=key) for key in keys)
    async with MemorySocket(one, headers=[KEY]) as ws:
        first = id_of(await ws.turn(create()))
    async with MemorySocket(other, headers=[KEY]) as ws:
        assert await resolves(ws, first) is found


# -- equal ids --------------------------------------------------------------------------------------------------------


async def delete(middleware: ResponsesWebSocketMiddleware, response_id: str, *headers: tuple[bytes, bytes]) -> int:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    path = f"/v1/responses/{response_id}"
    await middleware({"type": "http", "method": "DELETE", "path": path, "headers": list(headers)}, receive, send)
    return int(sent[0]["status"])


async def test_equal_ids_of_two_tenants_are_two_responses() -> None:
    """An app that counts its ids per customer, or a proxy over several: ids alone say nothing."""
    app = ScriptedApp(stateful=True)
    app.script(lambda body: [steps.response_id("resp_1"), steps.text("ok")] if "first" in str(body["input"]) else None)
    shell = Shell(app)
    async with shell.socket(KEY) as one, shell.socket(OTHER_KEY) as other:
        await one.turn(create("first of one"))
        await other.turn(create("first of other"))
        for ws, name in ((one, "one"), (other, "other")):
            assert await resolves(ws, "resp_1")
            assert app.requests[-1].input[0]["content"] == f"first of {name}"
        assert await delete(shell.middleware, "resp_1", KEY) == 200
        assert not await resolves(one, "resp_1")
        assert await resolves(other, "resp_1")
    async with shell.socket(KEY) as one, shell.socket(OTHER_KEY) as other:
        assert not await resolves(one, "resp_1")
        assert await resolves(other, "resp_1")


async def test_a_delete_reaches_all_sockets_of_its_tenant() -> None:
    app = ScriptedApp(stateful=True)
    shell = Shell(app)
    async with shell.socket(KEY) as ws, shell.socket(KEY) as second:
        first = id_of(await ws.turn(create()))
        assert await resolves(second, first)
        await delete(shell.middleware, first, KEY)
        assert not await resolves(ws, first)
        assert not await resolves(second, first)


@pytest.mark.parametrize("stored", [True, False])
async def test_a_delete_leaves_equal_ids_of_others_alone(stored: bool) -> None:
    """Also where only a connection knows them."""
    app = ScriptedApp(stateful=True)
    app.script(lambda body: [steps.response_id("resp_1"), steps.text("ok")] if body["input"] == "first" else None)
    shell = Shell(app)
    async with shell.socket(KEY) as one, shell.socket(OTHER_KEY) as other:
        await one.turn(create("first"))
        await other.turn(create("first", store=stored))
        assert await delete(shell.middleware, "resp_1", KEY) == 200
        assert await resolves(other, "resp_1")


async def test_a_client_that_the_app_refuses_cannot_push_out_what_others_keep() -> None:
    """Memory is for those whom the app has accepted: a stranger with a bad key may send what it likes."""
    app = ScriptedApp()
    shell = Shell(app, {"max_process_bytes": 1_000_000})
    async with shell.socket(KEY) as ws, shell.socket(OTHER_KEY) as stranger:
        first = id_of(await ws.turn(create("x" * 100_000, store=False)))
        app.auth = "another"
        for number in range(10):
            tools = [{"type": "x" * (300_000 + number)}]
            (event,) = await stranger.turn(create(tools=tools, instructions="y" * (300_000 + number)))
            assert event["status"] == 401
        app.auth = None
        assert await resolves(ws, first)


async def test_what_the_app_accepts_is_kept_from_the_first_turn_on() -> None:
    """A handler reads the tools of the turn, and the node holds them, whether the client was known before or not."""
    app = ScriptedApp()
    shell = Shell(app, history="turn")
    tools = [{"type": "function", "name": "f"}]
    async with shell.socket(KEY) as ws:
        await ws.turn(create(tools=tools, instructions="A", tool_choice="none"))
        await ws.turn(create(tools=tools, instructions="A", tool_choice="none"))
        (connection,) = shell.middleware.registry.connections
        first, second = (request.scope["state"]["ws_responses.turn"] for request in app.requests)
        for turn in (first, second):
            assert (turn.tools, turn.instructions) == (tools, "A")
        assert first.interned_tools is second.interned_tools
        assert connection.charges.interner.hits == 2


async def test_tools_of_lanes_that_take_turns_are_kept_once() -> None:
    """A team of agents has one socket, and tools of its own for each of them: else they would be parsed again each turn."""
    app = ScriptedApp()
    shell = Shell(app, history="turn")
    async with shell.socket(KEY) as ws:
        for lane in ("a", "b") * 3:
            await ws.turn(create(tools=[{"type": "function", "name": lane}], instructions=lane.upper(), stream_id=lane))
        turns = [request.scope["state"]["ws_responses.turn"] for request in app.requests]
        for of_lane in (turns[::2], turns[1::2]):
            assert len({id(turn.interned_tools) for turn in of_lane}) == 1
            assert len({id(turn.interned_instructions) for turn in of_lane}) == 1


# -- two sockets, whatever they do ------------------------------------------------------------------------------------

Tenant = Literal["anna", "bert"]


@dataclass
class Known:
    """What the model knows of a response."""

    said: list[str]
    lane: str | None
    stored: bool


@dataclass
class Owner:
    """The model of one tenant: what its connection knows, what the store keeps, what was deleted."""

    name: Tenant
    made: list[str] = field(default_factory=list[str])
    here: dict[str, Known] = field(default_factory=dict[str, Known])
    kept: dict[str, Known] = field(default_factory=dict[str, Known])

    @property
    def header(self) -> tuple[bytes, bytes]:
        return b"authorization", f"Bearer {self.name}".encode()

    def resolve(self, response_id: str, lane: str | None) -> Known | None:
        if response_id not in self.here and response_id in self.kept:
            kept = self.kept[response_id]
            self.here[response_id] = Known(kept.said, lane, stored=True)
        return self.here.get(response_id)


TURNS = st.fixed_dictionaries(
    {
        "do": st.just("turn"),
        "parent": st.none() | st.integers(0, 6),
        "lane": st.sampled_from([None, "a"]),
        "store": st.sampled_from([None, True, False]),
        "fails": st.sampled_from([False, False, False, True]),
        "warm_up": st.sampled_from([False, False, True]),
    }
)
OTHERS = st.one_of(
    st.fixed_dictionaries({"do": st.just("reconnect")}),
    st.fixed_dictionaries({"do": st.just("delete"), "which": st.integers(0, 6)}),
)
WHO: st.SearchStrategy[Tenant] = st.sampled_from(["anna", "bert"])


class Scene:
    """Two tenants, their sockets, the app that both use, and the model of what each may see."""

    def __init__(self, tasks: TaskGroup) -> None:
        self.tasks = tasks
        self.leaving: dict[Tenant, anyio.Event] = {}
        self.left: dict[Tenant, anyio.Event] = {}
        self.app = ScriptedApp()
        self.shell = Shell(self.app, tenant_key=b"k" * 32)
        self.owners: dict[Tenant, Owner] = {"anna": Owner("anna"), "bert": Owner("bert")}
        self.sockets: dict[Tenant, Client] = {}
        self.numbers = dict.fromkeys(self.owners, 0)

    async def step(self, who: Tenant, action: Mapping[str, Any]) -> None:
        owner = self.owners[who]
        if action["do"] == "turn":
            await self.turn(owner, action)
        elif action["do"] == "reconnect":
            await self.leave(who)
            owner.here.clear()
        elif owner.made:
            response_id = owner.made[action["which"] % len(owner.made)]
            await delete(self.shell.middleware, response_id, owner.header)
            owner.here.pop(response_id, None)
            owner.kept.pop(response_id, None)

    async def socket(self, who: Tenant) -> Client:
        if who not in self.sockets:
            self.sockets[who] = await self.tasks.start(self.hold, who)
        return self.sockets[who]

    async def hold(self, who: Tenant, *, task_status: TaskStatus[Client]) -> None:
        """Keep a socket open in a task of its own: sockets end in any order."""
        self.leaving[who], self.left[who] = anyio.Event(), anyio.Event()
        async with self.shell.socket(self.owners[who].header) as ws:
            task_status.started(ws)
            await self.leaving[who].wait()
        self.left[who].set()

    async def leave(self, who: Tenant) -> None:
        if self.sockets.pop(who, None) is not None:
            self.leaving[who].set()
            await self.left[who].wait()

    async def turn(self, owner: Owner, action: Mapping[str, Any]) -> None:
        lane, store = action["lane"], action["store"]
        # The other tenant's ids are in use as well: both count alike.
        pool = sorted({*self.owners["anna"].made, *self.owners["bert"].made})
        parent_id = None if action["parent"] is None or not pool else pool[action["parent"] % len(pool)]
        parent = None if parent_id is None else owner.resolve(parent_id, lane)
        self.numbers[owner.name] += 1
        number = self.numbers[owner.name]
        text = f"{owner.name} {number}"
        self.app.script(
            lambda _: (
                [steps.status(500)] if action["fails"] else [steps.response_id(f"resp_{number}"), steps.text("ok")]
            )
        )
        frame = create(text)
        frame |= {"previous_response_id": parent_id} if parent_id is not None else {}
        frame |= {"stream_id": lane} if lane is not None else {}
        frame |= {"store": store} if store is not None else {}
        frame |= {"generate": False} if action["warm_up"] else {}
        before = len(self.app.requests)
        events = await (await self.socket(owner.name)).turn(frame)

        expected = self.expected(parent_id, parent, action)
        if expected is not None:
            assert code_of(events[-1]) == expected
            if parent is not None and parent.lane == lane and parent_id is not None:
                del owner.here[parent_id]
        else:
            said = [*([] if parent is None else parent.said), text]
            stored = store is not False and (parent is None or parent.stored)
            response_id = id_of(events)
            owner.made.append(response_id)
            owner.here[response_id] = Known(said, lane, stored)
            if stored:
                owner.kept[response_id] = owner.here[response_id]
        for request in self.app.requests[before:]:
            said = [item["content"] for item in request.input if item.get("role") == "user"]
            assert said == [*([] if parent is None else parent.said), text]

    @staticmethod
    def expected(parent_id: str | None, parent: Known | None, action: Mapping[str, Any]) -> str | None:
        if parent_id is not None and parent is None:
            return NOT_FOUND
        if action["store"] is True and parent is not None and not parent.stored:
            return "invalid_store_transition"
        return "server_error" if action["fails"] and not action["warm_up"] else None


@settings(max_examples=100)
@given(actions=st.lists(st.tuples(WHO, TURNS | OTHERS), min_size=3, max_size=14))
async def test_two_tenants_never_meet_whatever_they_do(actions: list[tuple[Tenant, Mapping[str, Any]]]) -> None:
    """Against a model: each request holds exactly what its own tenant said on its chain."""
    async with anyio.create_task_group() as tasks:
        scene = Scene(tasks)

        # A delete is the app's to judge; this one says yes to all.
        async def app(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http" and scope["method"] == "DELETE":
                await send({"type": "http.response.start", "status": 200, "headers": []})
                await send({"type": "http.response.body", "body": b"{}"})
            else:
                await scene.app(scope, receive, send)

        scene.shell.middleware.app = app
        for who, action in actions:
            await scene.step(who, action)
        for who in scene.owners:
            await scene.leave(who)


def test_principals_say_nothing_secret() -> None:
    """What is in logs and limits is the name that the operator chose."""
    assert repr(Principal(id="anna", tenant="team")) == "Principal(id='anna', tenant='team')"


async def test_the_apps_own_word_on_a_turn_is_not_taken_for_another() -> None:
    """A fixed id that is live already is replaced by one of ours: else a chain would swap its history."""
    app = ScriptedApp()
    app.script(lambda _: [steps.response_id("resp_same"), steps.text("ok")])
    async with Shell(app).socket(KEY) as ws:
        first = id_of(await ws.turn(create("1")))
        second = id_of(await ws.turn(create("2")))
        assert first == "resp_same" != second
        assert kinds(await ws.turn(create("3", previous_response_id=first)))[-1] == "completed"
        assert [item.get("content") for item in app.requests[-1].input][::2] == ["1", "3"]
