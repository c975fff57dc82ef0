"""Upgrade, refusal, authentication, tenants: what went wrong elsewhere does not go wrong here."""

import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request as StarletteRequest
from starlette.responses import JSONResponse, Response

from tests.known_faults.talk import TENANT_KEY
from tests.testing.http import Call
from ws_responses import (
    Forbidden,
    Handshake,
    Limits,
    Principal,
    ResponsesWebSocketMiddleware,
    Unauthorized,
)
from ws_responses._types import ASGIApp
from ws_responses.instrumentation import ConnectionDenied, Fact, TurnFinished
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey
from ws_responses.testing import FakeClock, MemorySocket, ScriptedApp, steps

GOOD = (b"authorization", b"Bearer good")
BAD = (b"authorization", b"Bearer bad")
OTHER = (b"authorization", b"Bearer other")
HI: dict[str, Any] = {"model": "m", "input": "hi"}


def id_of(events: list[dict[str, Any]]) -> str:
    """The id of a response that came to its end."""
    assert events[-1]["type"] == "response.completed", events[-1]
    return str(events[-1]["response"]["id"])


async def let_in(handshake: Handshake, model: str | None) -> Principal:
    """An ``authorize`` that knows one key."""
    if handshake.bearer_token != "good":
        raise Unauthorized("no")
    return Principal(id="good")


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B001")
async def test_a_disabled_socket_answers_426_so_that_clients_use_http() -> None:
    """A server without WebSocket mode gives a status that costs the client all its reconnects."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, enabled=False)

    async with MemorySocket(middleware) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 426
        assert ws.denial.header(b"content-type") == b"application/json"
        assert ws.denial.json()["error"]["code"] == "upgrade_required"
        assert ws.denial.json()["error"]["message"]
    async with MemorySocket(middleware, extensions={}) as ws:
        assert [message["type"] for message in ws.messages] == ["websocket.close"]
    assert app.others == []


@pytest.mark.fault("B001")
@pytest.mark.parametrize("enabled", [True, False])
async def test_a_get_without_upgrade_is_answered_by_the_app(enabled: bool) -> None:
    """A plain GET on the socket's path gets an answer that the app did not give."""
    app = ScriptedApp()

    call = await Call(ResponsesWebSocketMiddleware(app, enabled=enabled), method="GET").run()

    assert call.status == 405
    assert len(app.others) == 1


@pytest.mark.fault("B002")
async def test_a_slow_check_is_refused_before_the_client_gives_up() -> None:
    """A check that hangs eats the client's whole connect time (Codex waits for 15 s)."""
    clock = FakeClock()

    async def hang(handshake: Handshake, model: str | None) -> Principal:
        await anyio.sleep_forever()
        raise AssertionError

    async with MemorySocket(
        ResponsesWebSocketMiddleware(ScriptedApp(), authorize=hang, clock=clock), wait_handshake=False
    ) as ws:
        await clock.advance(10)
        await ws.handshake()

        assert ws.denial is not None
        assert ws.denial.status == 503
        assert ws.denial.header(b"retry-after") is not None


@pytest.mark.fault("B002")
async def test_an_app_that_hangs_in_the_probe_lets_the_socket_through() -> None:
    """The inner question at the upgrade hangs with the app, and the handshake with it."""
    clock = FakeClock()
    entered = anyio.Event()
    app = ScriptedApp()

    async def hangs_on_get(scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "GET":
            entered.set()
            await anyio.sleep_forever()
        await app(scope, receive, send)

    async with MemorySocket(ResponsesWebSocketMiddleware(hangs_on_get, clock=clock), wait_handshake=False) as ws:
        await entered.wait()
        await clock.advance(2)
        await ws.handshake()

        assert ws.accepted
        id_of(await ws.turn(HI))


@pytest.mark.fault("B002")
async def test_our_own_refusals_are_no_errors_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """A 426 that is meant is logged as an error."""
    with caplog.at_level(logging.DEBUG):
        async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), enabled=False)) as ws:
            assert ws.denial is not None

    ours = [record for record in caplog.records if record.name.startswith("ws_responses")]
    assert [(record.levelno, "426" in record.getMessage()) for record in ours] == [(logging.INFO, True)]


@pytest.mark.fault("B003")
@pytest.mark.parametrize(
    ("root_path", "path"),
    [
        ("", "/v1/responses/resp_1"),
        ("", "/v1/responses/"),
        ("", "/v1/other"),
        ("", "/"),
        ("", "/V1/responses"),
        ("/api", "/v1/responses/x"),
        ("/api", "/api/v1/other"),
    ],
)
async def test_sockets_on_other_paths_reach_the_app_untouched(root_path: str, path: str) -> None:
    """An upgrade on a route that only serves HTTP is answered by a crash of ours."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app), path, root_path=root_path) as ws:
        assert ws.denial is not None
        assert app.websockets == [ws.scope]
        assert app.websockets[0] is ws.scope


@pytest.mark.fault("B003")
@pytest.mark.parametrize(("root_path", "path"), [("", "/v1/responses"), ("/api", "/api/v1/responses")])
async def test_the_path_is_found_below_a_mount(root_path: str, path: str) -> None:
    """A prefix of the mount hides the path."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app), path, root_path=root_path) as ws:
        id_of(await ws.turn(HI))

    assert app.requests[0].path == path
    assert app.requests[0].scope["root_path"] == root_path


# -- authentication --------------------------------------------------------------------------------------------------


def key_check(app: ASGIApp) -> ASGIApp:
    """Wrap an app into a key check that sees HTTP requests only, as Starlette's class for such things does."""

    async def check(
        request: StarletteRequest, call_next: Callable[[StarletteRequest], Awaitable[Response]]
    ) -> Response:
        if request.headers.get("authorization") != "Bearer good":
            return JSONResponse({"error": {"message": "Bad key.", "code": "invalid_api_key"}}, 401)
        return await call_next(request)

    return BaseHTTPMiddleware(app, dispatch=check)


@pytest.mark.fault("B004", "B006")
@pytest.mark.parametrize("headers", [[], [BAD]])
async def test_a_key_check_of_http_requests_refuses_the_upgrade(headers: list[tuple[bytes, bytes]]) -> None:
    """Sockets pass a key check that looks at HTTP only; or they get 101 first and a close then."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(key_check(app)), headers=headers) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401
        assert ws.denial.json()["error"]["code"] == "invalid_api_key"
        assert "websocket.accept" not in [message["type"] for message in ws.messages]
    assert app.requests == []


@pytest.mark.fault("B004")
@pytest.mark.parametrize("headers", [[], [BAD]])
async def test_a_key_check_of_http_requests_judges_every_turn(headers: list[tuple[bytes, bytes]]) -> None:
    """A socket that was let in is served without the app's key check."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(key_check(app), probe=False), headers=headers) as ws:
        (error,) = await ws.turn(HI)

        assert (error["type"], error["status"], error["error"]["code"]) == ("error", 401, "invalid_api_key")
    assert app.requests == []


@pytest.mark.fault("B004")
async def test_a_good_key_passes_the_key_check_of_http_requests() -> None:
    """A check at the upgrade locks out those who have a key."""
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(key_check(app)), headers=[GOOD]) as ws:
        id_of(await ws.turn(HI))

    assert app.requests[0].header(b"authorization") == b"Bearer good"


@pytest.mark.fault("B006")
async def test_a_bad_key_never_gets_101() -> None:
    """The socket is accepted and closed then, so that the client believes in the link."""
    refused_without_a_reason = ResponsesWebSocketMiddleware(ScriptedApp(), authorize=lambda handshake, model: None)

    for middleware in (ResponsesWebSocketMiddleware(ScriptedApp(), authorize=let_in), refused_without_a_reason):
        async with MemorySocket(middleware, headers=[BAD]) as ws:
            assert ws.denial is not None
            assert ws.denial.status == 401
            assert not ws.accepted
            assert "websocket.accept" not in [message["type"] for message in ws.messages]


@pytest.mark.fault("B017")
@pytest.mark.parametrize(("path", "status"), [("/v1/responses", None), ("/internal/responses", 403)])
async def test_a_good_key_is_judged_for_the_path_that_it_wants(path: str, status: int | None) -> None:
    """Who has a key at all gets in, whatever it is for."""

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        principal = await let_in(handshake, model)
        if handshake.path != "/v1/responses":
            raise Forbidden("This key is not for that.")
        return principal

    middleware = ResponsesWebSocketMiddleware(
        ScriptedApp(), path=("/v1/responses", "/internal/responses"), authorize=authorize
    )

    async with MemorySocket(middleware, path, headers=[GOOD]) as ws:
        assert (ws.denial.status if ws.denial else None) == status
        assert ws.accepted == (status is None)


@pytest.mark.fault("B017")
async def test_the_apps_own_403_is_the_answer_to_the_upgrade() -> None:
    """The app's authorisation, as opposed to its authentication, is not asked."""

    async def forbids(scope: Any, receive: Any, send: Any) -> None:
        await JSONResponse({"error": {"message": "Not yours.", "code": "not_yours"}}, 403)(scope, receive, send)

    async with MemorySocket(ResponsesWebSocketMiddleware(forbids), headers=[GOOD]) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 403
        assert ws.denial.json()["error"]["code"] == "not_yours"


@pytest.mark.fault("B010")
async def test_a_revoked_key_stops_at_its_next_turn() -> None:
    """A revoked key works on for the life of its socket.

    The refusal is an error of its turn; the socket stays until the operator ends it (``disconnect``).
    """
    app = ScriptedApp()
    revoked = False

    def authorize(handshake: Handshake, model: str | None) -> Principal | None:
        return None if revoked else Principal(id="p")

    async with MemorySocket(ResponsesWebSocketMiddleware(app, authorize=authorize), headers=[GOOD]) as ws:
        first = id_of(await ws.turn(HI))
        revoked = True
        for frame in (HI | {"previous_response_id": first}, HI | {"generate": False}):
            (error,) = await ws.turn(frame)

            assert (error["type"], error["status"]) == ("error", 401)
    assert len(app.requests) == 1


@pytest.mark.fault("B010")
async def test_a_revoked_key_stops_turns_that_wait() -> None:
    """A create that was let in while it waited is served after its key was revoked."""
    app = ScriptedApp()
    go_on = anyio.Event()
    app.script([steps.created(), steps.wait_for(go_on), steps.text("one")])
    revoked = False

    def authorize(handshake: Handshake, model: str | None) -> Principal | None:
        return None if revoked else Principal(id="p")

    async with MemorySocket(ResponsesWebSocketMiddleware(app, authorize=authorize), headers=[GOOD]) as ws:
        await ws.send_json({"type": "response.create", **HI})
        await app.wait_requests(1)
        await ws.send_json({"type": "response.create", **HI})
        await ws.wait_received()
        revoked = True
        go_on.set()

        id_of(await ws.collect())
        (error,) = await ws.collect()
        assert (error["type"], error["status"]) == ("error", 401)
    assert len(app.requests) == 1


@pytest.mark.fault("B010")
async def test_the_app_itself_judges_a_revoked_key() -> None:
    """The app revokes a key, and the socket does not ask it again."""
    app = ScriptedApp(auth="good")

    async with MemorySocket(ResponsesWebSocketMiddleware(app), headers=[GOOD]) as ws:
        id_of(await ws.turn(HI))
        app.auth = "new"
        (error,) = await ws.turn(HI)

        assert (error["type"], error["status"], error["error"]["code"]) == ("error", 401, "invalid_api_key")


@pytest.mark.fault("B010")
async def test_an_operator_ends_the_sockets_of_a_revoked_key() -> None:
    """A turn that runs when its key is revoked goes on, or ends without a word."""
    app = ScriptedApp()
    app.script([steps.text("begun", finish=False), steps.stall()])
    clock = FakeClock()
    middleware = ResponsesWebSocketMiddleware(app, tenant=lambda handshake: handshake.bearer_token, clock=clock)

    async with (
        MemorySocket(middleware, headers=[GOOD]) as ws,
        MemorySocket(middleware, headers=[OTHER]) as bystander,
    ):
        await ws.send_json({"type": "response.create", **HI})
        await app.wait_events(3)
        assert middleware.disconnect("good", "key revoked") == 1
        events = await ws.collect()
        assert await ws.wait_closed() == 1008
        assert ws.close_reason == "key revoked"
        await clock.advance(1)
        await ws.wait_returned()

        assert events[-1]["type"] == "response.failed"
        assert events[-1]["response"]["error"]["code"] == "permission_denied"
        id_of(await bystander.turn(HI))
    assert app.requests[0].outcome == "cancelled"


@pytest.mark.fault("B011")
async def test_each_turn_is_judged_by_its_own_model() -> None:
    """The model of the first frame is judged, those of later ones are served or silently replaced."""
    app = ScriptedApp()

    def authorize(handshake: Handshake, model: str | None) -> Principal:
        if model == "forbidden":
            raise Forbidden("This key may not use that model.", param="model", code="model_not_allowed")
        return Principal(id="p")

    async with MemorySocket(ResponsesWebSocketMiddleware(app, authorize=authorize)) as ws:
        first = id_of(await ws.turn({"model": "cheap", "input": "hi", "store": False}))
        (error,) = await ws.turn({"model": "forbidden", "input": "hi", "previous_response_id": first, "store": False})
        # A turn that never ran evicts nothing.
        last = await ws.turn({"model": "dear", "input": "hi", "previous_response_id": first, "store": False})

    assert (error["status"], error["error"]["param"], error["error"]["code"]) == (403, "model", "model_not_allowed")
    assert id_of(last)
    assert [request.body["model"] for request in app.requests] == ["cheap", "dear"]


@pytest.mark.fault("B012")
async def test_only_creates_reach_the_app_as_requests_of_the_client() -> None:
    """Frames of any kind are passed on, with a credential that is not the client's."""
    app = ScriptedApp()
    tools = [{"type": "mcp", "server_label": "x", "server_url": "http://internal.example/"}]

    async with MemorySocket(ResponsesWebSocketMiddleware(app), headers=[GOOD]) as ws:
        for kind in ("session.update", "response.cancel", "input_audio_buffer.append", "mcp.call"):
            await ws.send_json({"type": kind, "tools": tools})
            assert (await ws.receive_json())["error"]["code"] == "unknown_event_type"
        assert app.requests == []
        id_of(await ws.turn(HI | {"tools": tools}))

    (request,) = app.requests
    assert (request.method, request.path) == ("POST", "/v1/responses")
    assert request.header(b"authorization") == b"Bearer good"
    assert request.body == {"model": "m", "input": "hi", "tools": tools, "stream": True}


# -- origins and subprotocols ----------------------------------------------------------------------------------------


@pytest.mark.fault("B013")
@pytest.mark.parametrize(
    ("origin", "allowed", "accepted"),
    [
        (b"http://evil.example", None, False),
        (b"null", None, False),
        (b"http://testserver.evil.example", None, False),
        (None, None, True),
        (b"http://testserver", None, True),
        (b"https://chat.example", ["https://chat.example"], True),
        (b"http://evil.example", ["https://chat.example"], False),
        (b"http://evil.example", ["*"], True),
        (None, ["https://chat.example"], True),
    ],
)
async def test_pages_of_strangers_get_no_socket(
    origin: bytes | None, allowed: list[str] | None, accepted: bool
) -> None:
    """A web page drives a server of its visitor's own machine, with the cookies of the visitor."""
    app = ScriptedApp()
    headers = [] if origin is None else [(b"origin", origin)]

    async with MemorySocket(ResponsesWebSocketMiddleware(app, allowed_origins=allowed), headers=headers) as ws:
        assert ws.accepted == accepted
        if ws.denial is not None:
            assert ws.denial.status == 403
            assert app.others == []  # refused before the app was asked anything


KEY_IN_PROTOCOL = ["realtime", "openai-insecure-api-key.SECRET"]


@pytest.mark.fault("B015")
async def test_a_subprotocol_is_no_credential() -> None:
    """A subprotocol is taken for the key, above the Authorization header."""
    app = ScriptedApp(auth="SECRET")

    async with MemorySocket(ResponsesWebSocketMiddleware(app), subprotocols=KEY_IN_PROTOCOL) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401
    app.auth = "good"
    async with MemorySocket(
        ResponsesWebSocketMiddleware(app), headers=[GOOD], subprotocols=["responses", *KEY_IN_PROTOCOL]
    ) as ws:
        id_of(await ws.turn(HI))

    assert [value for name, value in app.requests[0].headers if name == b"authorization"] == [b"Bearer good"]


@pytest.mark.fault("B015")
async def test_a_subprotocol_owns_no_chain() -> None:
    """Who offers another client's subprotocol can continue its chains."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app)

    async with (
        MemorySocket(middleware, subprotocols=KEY_IN_PROTOCOL) as one,
        MemorySocket(middleware, subprotocols=KEY_IN_PROTOCOL) as two,
    ):
        first = id_of(await one.turn(HI | {"store": True}))
        (error,) = await two.turn(HI | {"previous_response_id": first})

    assert error["error"]["code"] == "previous_response_not_found"


@pytest.mark.fault("B016", "B023")
@pytest.mark.parametrize("offered", [KEY_IN_PROTOCOL, ["bearer.SECRET"], ["openai-beta.responses.v1"]])
async def test_no_offered_subprotocol_is_echoed_passed_on_or_logged(
    offered: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The subprotocol that holds the key comes back in the answer or stands in the log; the handshake is valid without."""
    app = ScriptedApp()
    facts: list[Fact] = []

    with caplog.at_level(logging.DEBUG):
        async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append]), subprotocols=offered) as ws:
            assert ws.accepted
            assert ws.subprotocol is None
            assert ws.accept_headers == []
            id_of(await ws.turn(HI))

    assert app.requests[0].header(b"sec-websocket-protocol") is None
    assert "SECRET" not in caplog.text
    assert "SECRET" not in repr(facts)


@pytest.mark.fault("B022")
async def test_headers_pass_both_ways() -> None:
    """The turn-state header is missing from the 101, or a session header is lost on the way to the app."""
    app = ScriptedApp()
    sent = [(b"x-codex-turn-state", b"t"), (b"session_id", b"s1"), (b"session-id", b"s2")]

    def add(handshake: Handshake) -> list[tuple[str, str]]:
        return [("X-Codex-Turn-State", f"{handshake.headers['x-codex-turn-state']}-2")]

    async with MemorySocket(ResponsesWebSocketMiddleware(app, handshake_headers=add), headers=sent) as ws:
        assert ws.accept_headers == [(b"x-codex-turn-state", b"t-2")]
        first = id_of(await ws.turn(HI))
        id_of(await ws.turn(HI | {"previous_response_id": first}))

    for request in app.requests:
        assert [header for header in request.headers if header in sent] == sent


# -- tenants ---------------------------------------------------------------------------------------------------------


class ListedStore:
    """A store that keeps a list of what it was asked."""

    def __init__(self) -> None:
        self.chains: dict[StoreKey, tuple[Record, ...]] = {}
        self.loads: list[StoreKey] = []

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        older = self.chains[parent] if parent is not None else ()
        self.chains[key] = (*older, record)

    async def load(self, key: StoreKey) -> tuple[Record, ...]:
        self.loads.append(key)
        return self.chains.get(key, ())

    async def delete(self, key: StoreKey) -> None:
        self.chains.pop(key, None)

    async def aclose(self) -> None: ...


def told_about(response_id: str, error: dict[str, Any]) -> dict[str, Any]:
    """The error frame, with the id taken out."""
    text: dict[str, Any] = json.loads(json.dumps(error).replace(response_id, "ID"))
    return text


@pytest.mark.fault("B007")
@pytest.mark.parametrize("stored", ["memory", "listed"])
async def test_a_response_of_another_key_is_as_unknown_as_any(stored: str) -> None:
    """A response made by one key can be continued, or told from one that never was, by another."""
    app = ScriptedApp()
    store = ListedStore()
    middleware = ResponsesWebSocketMiddleware(
        app, store="memory" if stored == "memory" else store, tenant_key=TENANT_KEY
    )

    async with MemorySocket(middleware, headers=[GOOD]) as ws:
        theirs = id_of(await ws.turn(HI | {"store": True}))
        random = theirs[:-4] + "0000"
        async with MemorySocket(middleware, headers=[OTHER]) as stranger:
            (foreign,) = await stranger.turn(HI | {"previous_response_id": theirs})
            looked = len(store.loads)
            (unknown,) = await stranger.turn(HI | {"previous_response_id": random})

            # The way to both answers is the same, so that its length tells nothing either.
            assert len(store.loads) == 2 * looked
            assert told_about(theirs, foreign) == told_about(random, unknown)
            assert (foreign["status"], foreign["error"]["code"]) == (400, "previous_response_not_found")
        async with MemorySocket(middleware, headers=[GOOD]) as again:
            id_of(await again.turn(HI | {"previous_response_id": theirs}))
    assert [request.header(b"authorization") for request in app.requests] == [b"Bearer good"] * 2


@pytest.mark.fault("B008")
async def test_what_is_not_to_be_stored_is_nowhere_but_on_its_socket(caplog: pytest.LogCaptureFixture) -> None:
    """A turn with store: false, or a warm-up with it, can be continued on another socket, or stands in store or log.

    A warm-up that may be stored is: it is a response like any other.
    """
    app = ScriptedApp()
    store = ListedStore()
    middleware = ResponsesWebSocketMiddleware(app, store=store, tenant_key=TENANT_KEY)
    secret = {"model": "m", "input": "SECRET", "store": False}

    with caplog.at_level(logging.DEBUG):
        async with MemorySocket(middleware, headers=[GOOD]) as ws:
            unstored = id_of(await ws.turn(secret))
            warmed = id_of(await ws.turn(secret | {"generate": False}))
            async with MemorySocket(middleware, headers=[GOOD]) as other:
                for parent in (unstored, warmed):
                    (error,) = await other.turn(HI | {"previous_response_id": parent, "store": False})
                    assert error["error"]["code"] == "previous_response_not_found"
            for parent in (unstored, warmed):
                id_of(await ws.turn(secret | {"previous_response_id": parent}))

    assert store.chains == {}
    app.requests.clear()  # their scopes hold the turns, and these the history
    assert middleware.history_bytes == 0
    assert "SECRET" not in caplog.text


# -- bounds ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B018")
async def test_sockets_of_one_key_are_bounded_and_counted_back() -> None:
    """One key opens any number of sockets."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, limits=Limits(max_tenant_connections=2))

    for _ in range(3):
        async with (
            MemorySocket(middleware, headers=[GOOD]) as one,
            MemorySocket(middleware, headers=[GOOD]) as two,
            MemorySocket(middleware, headers=[OTHER]) as stranger,
        ):
            assert one.accepted
            assert two.accepted
            assert stranger.accepted
            asked = len(app.others)
            async with MemorySocket(middleware, headers=[GOOD]) as third:
                assert third.denial is not None
                assert third.denial.status == 429
                assert third.denial.header(b"retry-after") is not None
            assert len(app.others) == asked  # the app was not bothered
        assert middleware.connections == 0


@pytest.mark.fault("B018")
async def test_a_full_process_refuses_before_it_checks_keys() -> None:
    """A flood of handshakes costs a key check each."""
    judged = 0

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        nonlocal judged
        judged += 1
        return Principal(id="p")

    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), authorize=authorize, limits=Limits(max_connections=1))

    async with MemorySocket(middleware) as ws:
        assert ws.accepted
        for _ in range(20):
            async with MemorySocket(middleware) as late:
                assert late.denial is not None
                assert late.denial.status == 429
                assert late.denial.header(b"retry-after") is not None
        assert judged == 1


@pytest.mark.fault("B018")
async def test_refused_upgrades_leave_no_trace_in_the_counters() -> None:
    """A flood of bad keys uses up the places of those with good ones."""
    facts: list[Fact] = []
    middleware = ResponsesWebSocketMiddleware(
        ScriptedApp(),
        authorize=let_in,
        limits=Limits(max_connections=1, max_tenant_connections=1),
        hooks=[facts.append],
    )

    for _ in range(200):
        async with MemorySocket(middleware, headers=[BAD]) as ws:
            assert ws.denial is not None
            assert ws.denial.status == 401
    async with MemorySocket(middleware, headers=[GOOD]) as ws:
        assert ws.accepted

    assert middleware.connections == 0
    assert sum(isinstance(fact, ConnectionDenied) for fact in facts) == 200


@pytest.mark.fault("B020")
@pytest.mark.parametrize("way_out", ["raises before its answer", "raises in mid-stream", "client leaves", "refused"])
async def test_every_way_out_of_a_turn_gives_its_lease_back_once(
    way_out: str,
) -> None:
    """A turn that was orphaned keeps its lease, and after some of them the account is dead."""
    count = 20
    facts: list[Fact] = []
    app = ScriptedApp(listen=True)
    middleware = ResponsesWebSocketMiddleware(app, hooks=[facts.append], limits=Limits(max_running_turns=1))
    app.script(
        lambda body: {
            "raises before its answer": [steps.raise_error(ValueError("x"), "before")],
            "raises in mid-stream": [steps.text("x", finish=False), steps.raise_error(ValueError("x"))],
            "client leaves": [steps.stall()],
            "refused": [steps.status(429)],
        }[way_out]
    )

    if way_out == "client leaves":
        for number in range(count):
            async with MemorySocket(middleware) as ws:
                await ws.send_json({"type": "response.create", **HI})
                await app.wait_requests(number + 1)
                await ws.abort()
                await ws.wait_returned()
    else:
        async with MemorySocket(middleware) as ws:
            for _ in range(count):
                assert (await ws.turn(HI))[-1]["type"] in {"error", "response.failed"}

    ended = [fact.turn_id for fact in facts if isinstance(fact, TurnFinished)]
    assert len(ended) == len(set(ended)) == count
    assert (middleware.running_turns, middleware.connections, app.running) == (0, 0, 0)
    assert len(app.requests) == count


@pytest.mark.fault("B021")
@pytest.mark.parametrize("after", ["before", "start"])
async def test_what_an_app_raises_is_told_to_the_log_only(after: Any, caplog: pytest.LogCaptureFixture) -> None:
    """An error text shows file paths and addresses to the client."""
    app = ScriptedApp()
    app.script([steps.raise_error(RuntimeError("<function f at 0x7f00> in secret.py"), after)])
    facts: list[Fact] = []

    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        (error,) = await ws.turn(HI)

    (ended,) = [fact for fact in facts if isinstance(fact, TurnFinished)]
    assert (error["status"], error["error"]["code"]) == (500, "server_error")
    assert "secret.py" not in json.dumps(error)
    assert "0x7f" not in json.dumps(error)
    assert "RuntimeError" not in json.dumps(error)
    assert ended.turn_id in error["error"]["message"]
    assert "secret.py" in caplog.text
    assert ended.turn_id in caplog.text
