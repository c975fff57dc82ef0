"""The guard before the socket: what is ours, who is let in, and what the others are told."""

import contextvars
import json
import logging
from collections.abc import Awaitable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tests.shell import KEY, Shell, by_bearer, create, id_of, kinds
from ws_responses import (
    ConfigurationError,
    Forbidden,
    Handshake,
    Limits,
    Principal,
    Refused,
    ResponsesWebSocketMiddleware,
    Unauthorized,
)
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.instrumentation import ConnectionDenied, ConnectionOpened
from ws_responses.testing import OMIT, MemorySocket, ScriptedApp, settle


class Witness:
    """An app that keeps what it was called with, and answers a socket by 403."""

    def __init__(self) -> None:
        self.calls: list[tuple[Scope, Receive, Send]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.calls.append((scope, receive, send))


async def call(app: ASGIApp, scope: Scope) -> tuple[Scope, Receive, Send]:
    async def receive() -> Message:
        raise AssertionError("nothing is read by us of what is not ours")

    async def send(message: Message) -> None:
        raise AssertionError("nothing is sent by us to who is not ours")

    await app(scope, receive, send)
    return scope, receive, send


# -- whose scope it is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scope",
    [
        {"type": "lifespan"},
        {"type": "http", "method": "POST", "path": "/v1/responses", "headers": []},
        {"type": "http", "method": "GET", "path": "/v1/responses", "headers": []},
        {"type": "http", "method": "DELETE", "path": "/v1/other/resp_1", "headers": []},
        {"type": "websocket", "path": "/chat", "headers": []},
        {"type": "websocket", "path": "/v1/responses/", "headers": []},
        {"type": "websocket", "path": "/v1/responses/resp_1", "headers": []},
        {"type": "websocket", "path": "/v1/responsesx", "headers": []},
        {"type": "websocket", "path": "/api/v1/responses", "headers": []},
        {"type": "websocket", "path": "/v1/responses", "root_path": "/v1", "headers": []},
        {"type": "something new"},
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
async def test_what_is_not_ours_reaches_the_app_with_the_same_objects(scope: Scope, enabled: bool) -> None:
    """Lifespan state, other sockets and raw HTTP depend on identity: a wrapper of ours would break them."""
    app = Witness()
    given = await call(ResponsesWebSocketMiddleware(app, enabled=enabled), scope)

    ((got_scope, got_receive, got_send),) = app.calls
    assert got_scope is given[0]
    assert got_receive is given[1]
    assert got_send is given[2]


@pytest.mark.parametrize(
    ("options", "path", "root_path"),
    [
        ({}, "/v1/responses", ""),
        # Mounted below /api: Starlette leaves the path whole.
        ({}, "/api/v1/responses", "/api"),
        # FastAPI(root_path="/proxy") behind a proxy that strips the prefix.
        ({}, "/v1/responses", "/proxy"),
        ({"path": "/responses"}, "/responses", ""),
        ({"path": ["/v1/responses", "/codex/responses"]}, "/codex/responses", ""),
        ({"path": ["/v1/responses", "/codex/responses"]}, "/v1/responses", ""),
        ({"path": "/v1/responses/"}, "/v1/responses/", ""),
    ],
)
async def test_a_socket_on_our_path_is_ours(options: dict[str, Any], path: str, root_path: str) -> None:
    app = ScriptedApp()

    async with MemorySocket(ResponsesWebSocketMiddleware(app, **options), path, root_path=root_path) as ws:
        events = await ws.turn(create())

    assert kinds(events)[-1] == "completed"
    assert app.requests[0].path == path
    assert app.requests[0].scope["root_path"] == root_path


@pytest.mark.parametrize(
    ("path", "root_path", "inner"),
    [
        ("/codex/responses", "", "/v1/responses"),
        ("/api/codex/responses", "/api", "/api/v1/responses"),
    ],
)
async def test_turns_go_to_the_inner_path(path: str, root_path: str, inner: str) -> None:
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, path="/codex/responses", inner_path="/v1/responses")

    async with MemorySocket(middleware, path, root_path=root_path) as ws:
        await ws.turn(create())

    assert (app.requests[0].path, app.requests[0].scope["raw_path"]) == (inner, inner.encode())
    assert app.others[0].path == inner, "the probe asks the same route"


async def test_a_scope_that_lacks_all_that_may_be_missing() -> None:
    """Starlette's TestClient and daphne give less than the specification has."""
    app = ScriptedApp()
    missing = dict.fromkeys(
        ("asgi", "http_version", "scheme", "root_path", "raw_path", "query_string", "client", "server", "extensions"),
        OMIT,
    )

    async with MemorySocket(
        ResponsesWebSocketMiddleware(app), scope_overrides={**missing, "subprotocols": OMIT}, state=None
    ) as ws:
        events = await ws.turn(create())

    assert kinds(events)[-1] == "completed"
    assert "state" not in app.requests[0].scope or "ws_responses.turn" in app.requests[0].scope["state"]


async def test_headers_in_any_shape() -> None:
    app = ScriptedApp(auth="k")
    headers = iter([[b"Authorization", b"Bearer k"], [b"Host", b"testserver"]])

    async with MemorySocket(ResponsesWebSocketMiddleware(app), scope_overrides={"headers": list(headers)}) as ws:
        assert kinds(await ws.turn(create()))[-1] == "completed"


async def test_a_client_that_leaves_before_it_is_asked_is_no_error() -> None:
    app = ScriptedApp()

    async def receive() -> Message:
        return {"type": "websocket.disconnect", "code": 1006}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    await ResponsesWebSocketMiddleware(app)({"type": "websocket", "path": "/v1/responses"}, receive, send)
    assert app.requests == app.others == []


# -- accept -----------------------------------------------------------------------------------------------------------


async def test_a_subprotocol_is_never_echoed() -> None:
    """Some clients smuggle their key in it; what is echoed is in every log on the way."""
    async with MemorySocket(
        ResponsesWebSocketMiddleware(ScriptedApp()), subprotocols=["realtime", "openai-insecure-api-key.SECRET"]
    ) as ws:
        assert ws.accepted
        assert ws.subprotocol is None
        assert ws.accept_headers == []


async def test_headers_of_the_operator_go_with_the_accept() -> None:
    def headers(handshake: Handshake) -> list[tuple[str, str]]:
        return [("X-Codex-Turn-State", handshake.headers["session-id"])]

    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), handshake_headers=headers)
    async with MemorySocket(middleware, headers=[(b"session-id", b"s1")]) as ws:
        assert ws.accept_headers == [(b"x-codex-turn-state", b"s1")]


async def test_a_header_hook_that_raises_costs_the_headers_only(caplog: pytest.LogCaptureFixture) -> None:
    def headers(handshake: Handshake) -> list[tuple[str, str]]:
        raise RuntimeError("broken")

    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), handshake_headers=headers)) as ws:
        assert ws.accept_headers == []
        assert kinds(await ws.turn(create()))[-1] == "completed"
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "handshake_headers raised; the socket is accepted without them"
    ]


async def test_a_client_that_leaves_during_the_upgrade_is_no_error_of_the_app() -> None:
    """uvicorn raises from `send` then; servers log what an app raises as its fault."""
    shell = Shell(ScriptedApp())

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        raise OSError("gone")

    await shell.middleware({"type": "websocket", "path": "/v1/responses", "headers": []}, receive, send)
    assert shell.middleware.connections == 0
    assert not shell.facts.of(ConnectionOpened)


# -- refusals of ours -------------------------------------------------------------------------------------------------


async def test_disabled_answers_426() -> None:
    """The one status upon which Codex goes on by HTTP at once."""
    app = ScriptedApp()
    shell = Shell(app, enabled=False)

    async with shell.socket() as ws:
        assert ws.denial is not None
        assert ws.denial.status == 426
        assert ws.denial.json()["error"]["code"] == "upgrade_required"
    assert app.requests == app.others == []
    assert [(fact.status, fact.code) for fact in shell.facts.of(ConnectionDenied)] == [(426, "upgrade_required")]


async def test_a_foreign_page_is_refused() -> None:
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app), headers=[(b"origin", b"http://evil.example")]) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 403
        assert ws.denial.json()["error"]["code"] == "origin_not_allowed"
    assert app.others == [], "the app is not even asked"


async def test_an_allowed_page_is_let_in() -> None:
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), allowed_origins=["https://app.example.com"])
    async with MemorySocket(middleware, headers=[(b"origin", b"https://app.example.com")]) as ws:
        assert ws.accepted


async def test_without_the_denial_extension_a_refusal_is_a_plain_close() -> None:
    shell = Shell(ScriptedApp(), enabled=False)
    async with shell.socket(extensions={}) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 403
        assert [message["type"] for message in ws.messages] == ["websocket.close"]
    assert [fact.status for fact in shell.facts.of(ConnectionDenied)] == [426]


async def test_a_refused_client_that_left_is_no_error_of_the_app() -> None:
    shell = Shell(ScriptedApp(), enabled=False)

    async def receive() -> Message:
        return {"type": "websocket.connect"}

    async def send(message: Message) -> None:
        raise OSError("gone")

    await shell.middleware({"type": "websocket", "path": "/v1/responses", "headers": []}, receive, send)
    assert len(shell.facts.of(ConnectionDenied)) == 1


# -- authorize --------------------------------------------------------------------------------------------------------


async def no_principal(handshake: Handshake, model: str | None) -> Principal | None:
    await anyio.lowlevel.checkpoint()
    return None


def raising(error: Exception, *, later: bool = False) -> Any:
    def authorize(handshake: Handshake, model: str | None) -> Awaitable[Principal]:
        async def late() -> Principal:
            await anyio.lowlevel.checkpoint()
            raise error

        if later:
            return late()
        raise error

    return authorize


@pytest.mark.parametrize(
    ("authorize", "status", "code"),
    [
        (lambda handshake, model: None, 401, "invalid_api_key"),
        (no_principal, 401, "invalid_api_key"),
        (raising(Unauthorized("No.")), 401, "invalid_api_key"),
        (raising(Forbidden("Not you.")), 403, "permission_denied"),
        (raising(Forbidden("Not you."), later=True), 403, "permission_denied"),
        (raising(Refused("Pay.", status=402, code="insufficient_quota")), 402, "insufficient_quota"),
        (raising(RuntimeError("secret detail")), 503, "server_is_overloaded"),
        (raising(TimeoutError()), 503, "server_is_overloaded"),
        (raising(ValueError("secret detail"), later=True), 503, "server_is_overloaded"),
    ],
)
async def test_authorize_refuses_the_upgrade(authorize: Any, status: int, code: str) -> None:
    """Never a 101 on a bad credential: clients take an accepted socket that is closed again for a network fault."""
    app = ScriptedApp()
    shell = Shell(app, authorize=authorize)

    async with shell.socket() as ws:
        assert ws.denial is not None
        assert ws.denial.status == status
        assert ws.denial.json()["error"]["code"] == code
        assert b"secret" not in ws.denial.body
        assert not ws.accepted
    assert app.requests == app.others == []
    assert shell.middleware.connections == 0


async def test_headers_of_a_refusal_reach_the_client() -> None:
    authorize = raising(Refused("Later.", status=429, code="rate_limit_exceeded", headers={"retry-after": "7"}))
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), authorize=authorize)) as ws:
        assert ws.denial is not None
        assert (ws.denial.status, ws.denial.header(b"retry-after")) == (429, b"7")


async def test_authorize_that_is_late_is_503_with_retry_after() -> None:
    """Fails closed, and within the time that clients give a handshake."""
    cancelled: list[bool] = []

    async def authorize(handshake: Handshake, model: str | None) -> Principal:
        try:
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise
        return Principal(id="too late")

    shell = Shell(ScriptedApp(), {"authorize_timeout_s": 5.0}, authorize=authorize)
    async with shell.socket(wait_handshake=False) as ws:
        await shell.clock.advance(4.875)
        assert ws.messages == []
        await shell.clock.advance(0.125)
        await ws.handshake()
        assert ws.denial is not None
        assert (ws.denial.status, ws.denial.header(b"retry-after")) == (503, b"1")
    assert cancelled == [True]


@pytest.mark.parametrize("asynchronous", [True, False])
async def test_authorize_lets_in_and_is_told_what_it_needs(asynchronous: bool) -> None:
    asked: list[tuple[str | None, str | None]] = []

    def authorize(handshake: Handshake, model: str | None) -> Any:
        asked.append((handshake.bearer_token, model))
        principal = Principal(id="anna")

        async def later() -> Principal:
            await anyio.lowlevel.checkpoint()
            return principal

        return later() if asynchronous else principal

    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app, authorize=authorize), headers=[KEY]) as ws:
        await ws.turn(create())
        await ws.turn(create(model="other"))

    assert asked == [("key-1", None), ("key-1", "m"), ("key-1", "other")]
    assert app.others == [], "the app's outer layers are not asked as well"
    assert app.requests[0].scope["state"]["ws_responses.turn"].principal == Principal(id="anna")


# -- the probe --------------------------------------------------------------------------------------------------------


class OuterAuth:
    """A layer that judges HTTP requests by their key, as most apps have it."""

    def __init__(
        self, app: ASGIApp, status: int = 401, *, chunks: int = 1, headers: Any = (), wait: Any = None
    ) -> None:
        self.app = app
        self.status = status
        self.chunks = chunks
        self.headers = headers
        self.wait = wait
        self.asked: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        self.asked.append(scope)
        if (b"authorization", b"Bearer good") in scope["headers"]:
            await self.app(scope, receive, send)
            return
        if self.wait is not None:
            await self.wait(receive)
        await send({"type": "http.response.start", "status": self.status, "headers": list(self.headers)})
        for number in range(self.chunks):
            await send(
                {"type": "http.response.body", "body": b"no %d " % number, "more_body": number < self.chunks - 1}
            )


GOOD = (b"authorization", b"Bearer good")


@pytest.mark.parametrize("status", [401, 403])
@pytest.mark.parametrize("chunks", [1, 3])
async def test_a_refusal_of_the_apps_outer_layers_is_the_answer_to_the_upgrade(status: int, chunks: int) -> None:
    """HTTP-only auth lets sockets pass: without this anybody uses the operator's key."""
    app = ScriptedApp()
    outer = OuterAuth(
        app,
        status,
        chunks=chunks,
        headers=[(b"WWW-Authenticate", b'Bearer realm="x"'), (b"Content-Type", b"text/plain"), (b"x-internal", b"1")],
    )
    shell = Shell(outer)

    async with shell.socket() as ws:
        assert ws.denial is not None
        assert ws.denial.status == status
        assert ws.denial.body == b"".join(b"no %d " % number for number in range(chunks))
        assert ws.denial.header(b"www-authenticate") == b'Bearer realm="x"'
        assert ws.denial.header(b"content-type") == b"text/plain"
        assert ws.denial.header(b"content-length") == b"%d" % len(ws.denial.body)
        assert ws.denial.header(b"x-internal") is None
    assert app.requests == app.others == []
    assert [(fact.status, fact.code) for fact in shell.facts.of(ConnectionDenied)] == [(status, "app_refused")]

    async with shell.socket(GOOD) as ws:
        assert kinds(await ws.turn(create()))[-1] == "completed"


async def test_an_app_that_listens_for_the_clients_leave_can_still_refuse() -> None:
    """A client that seems to hang up at once would make such an app stop before it says 401."""

    async def listens(receive: Receive) -> None:
        await receive()
        with anyio.move_on_after(0.01):
            message = await receive()
            raise AssertionError(message)

    async with MemorySocket(ResponsesWebSocketMiddleware(OuterAuth(ScriptedApp(), wait=listens))) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401


@pytest.mark.parametrize("status", [200, 204, 302, 404, 405, 429, 500, 503])
async def test_anything_else_lets_the_client_in(status: int) -> None:
    """405 is what a healthy app says to a GET; whatever else is wrong, the turns will tell."""
    async with MemorySocket(ResponsesWebSocketMiddleware(OuterAuth(ScriptedApp(), status))) as ws:
        assert ws.accepted


async def test_an_app_that_raises_lets_the_client_in() -> None:
    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ExceptionGroup("several", [RuntimeError("broken")])

    async with MemorySocket(ResponsesWebSocketMiddleware(broken)) as ws:
        assert ws.accepted


async def test_the_probe_is_a_get_of_the_same_route_with_the_clients_headers() -> None:
    outer = OuterAuth(ScriptedApp())
    async with MemorySocket(ResponsesWebSocketMiddleware(outer), headers=[GOOD, (b"x-a", b"1")]):
        pass

    (scope,) = outer.asked
    assert (scope["method"], scope["path"]) == ("GET", "/v1/responses")
    assert (b"x-a", b"1") in scope["headers"]
    assert not [name for name, _ in scope["headers"] if name.startswith(b"sec-websocket") or name == b"upgrade"]


async def test_the_probe_stops_the_app_as_soon_as_the_answer_is_known() -> None:
    """A GET route of the app may be an endless stream."""
    ended: list[str] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": 200})
            await anyio.sleep_forever()
        finally:
            ended.append("ended")

    async with MemorySocket(ResponsesWebSocketMiddleware(endless)) as ws:
        assert ws.accepted
        assert ended == ["ended"]


@pytest.mark.parametrize("status", [None, 401])
async def test_a_hanging_probe_is_aborted_and_lets_the_client_in(status: int | None) -> None:
    """At most 2 s of the handshake, whether it hangs before the answer or in it."""
    cancelled: list[bool] = []

    async def hangs(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if status is not None:
                await send({"type": "http.response.start", "status": status})
            await anyio.sleep_forever()
        except anyio.get_cancelled_exc_class():
            cancelled.append(True)
            raise

    shell = Shell(hangs)
    async with shell.socket(wait_handshake=False) as ws:
        await shell.clock.advance(1.875)
        assert ws.messages == []
        await shell.clock.advance(0.125)
        await ws.handshake()
        assert ws.accepted
        assert cancelled == [True]


async def test_a_refusal_is_passed_on_although_the_app_goes_on() -> None:
    """Some do not return before they hear the client leave."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 401})
        await send({"type": "http.response.body", "body": b"no"})
        await anyio.sleep_forever()

    async with Shell(app).socket() as ws:
        assert ws.denial is not None
        assert (ws.denial.status, ws.denial.body) == (401, b"no")


async def test_a_large_refusal_is_cut() -> None:
    outer = OuterAuth(ScriptedApp(), chunks=20_000)
    async with MemorySocket(ResponsesWebSocketMiddleware(outer)) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401
        assert len(ws.denial.body) == 65536


async def test_probe_can_be_turned_off() -> None:
    outer = OuterAuth(ScriptedApp())
    async with MemorySocket(ResponsesWebSocketMiddleware(outer, probe=False)) as ws:
        assert ws.accepted
        assert outer.asked == []
        (event,) = await ws.turn(create())
        assert (event["type"], event["status"]) == ("error", 401)


async def test_what_the_app_sets_in_the_probe_does_not_reach_the_turns() -> None:
    """All turns of a socket would have the correlation id (or database session) of the probe."""
    seen: list[str] = []
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="fresh")
    inner = ScriptedApp()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(variable.get())
        variable.set("set by " + scope["method"])
        await inner(scope, receive, send)

    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.turn(create())
        await ws.turn(create())
    assert seen == ["fresh"] * 3


# -- DELETE -----------------------------------------------------------------------------------------------------------


async def http(
    app: ASGIApp, method: str, path: str, *headers: tuple[bytes, bytes], root_path: str = ""
) -> list[Message]:
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": method, "path": path, "root_path": root_path, "headers": list(headers)}
    await app(scope, receive, send)
    return sent


async def test_an_id_that_the_app_deletes_is_dropped_here_too() -> None:
    app = ScriptedApp(stateful=True)
    middleware = ResponsesWebSocketMiddleware(app)
    async with MemorySocket(middleware, headers=[KEY]) as ws:
        first = id_of(await ws.turn(create()))
        child = id_of(await ws.turn(create(previous_response_id=first)))

        sent = await http(middleware, "DELETE", f"/v1/responses/{first}", KEY)

        assert sent[0]["status"] == 200
        assert json.loads(sent[1]["body"])["deleted"] is True
        (event,) = await ws.turn(create(previous_response_id=first))
        assert event["error"]["code"] == "previous_response_not_found"
        assert kinds(await ws.turn(create(previous_response_id=child)))[-1] == "completed", "descendants stay"
    assert len(app.requests[-1].input) == 5, "with all that they continue"


async def test_a_deleted_ancestor_does_not_come_back_with_its_descendant() -> None:
    """A new socket that loads the child from the store must not learn the deleted id by that."""
    app = ScriptedApp(stateful=True)
    middleware = ResponsesWebSocketMiddleware(app)
    async with MemorySocket(middleware, headers=[KEY]) as ws:
        first = id_of(await ws.turn(create()))
        child = id_of(await ws.turn(create(previous_response_id=first)))
    await http(middleware, "DELETE", f"/v1/responses/{first}", KEY)

    async with MemorySocket(middleware, headers=[KEY]) as ws:
        assert kinds(await ws.turn(create(previous_response_id=child)))[-1] == "completed"
        assert len(app.requests[-1].input) == 5
        (event,) = await ws.turn(create(previous_response_id=first))
        assert event["error"]["code"] == "previous_response_not_found"


async def test_a_refused_delete_drops_nothing() -> None:
    app = ScriptedApp()  # answers DELETE by 404
    middleware = ResponsesWebSocketMiddleware(app)
    async with MemorySocket(middleware, headers=[KEY]) as ws:
        first = id_of(await ws.turn(create()))
        assert (await http(middleware, "DELETE", f"/v1/responses/{first}", KEY))[0]["status"] == 404
        assert kinds(await ws.turn(create(previous_response_id=first)))[-1] == "completed"


async def test_the_inner_path_counts_for_a_delete_too() -> None:
    app = ScriptedApp(stateful=True)
    middleware = ResponsesWebSocketMiddleware(app, path="/codex/responses", inner_path="/v1/responses")
    async with MemorySocket(middleware, "/codex/responses", headers=[KEY]) as ws:
        first = id_of(await ws.turn(create()))
        await http(middleware, "DELETE", f"/api/v1/responses/{first}", KEY, root_path="/api")
        (event,) = await ws.turn(create(previous_response_id=first))
        assert event["error"]["code"] == "previous_response_not_found"


async def test_a_delete_whose_owner_we_cannot_tell_still_reaches_the_client() -> None:
    app = ScriptedApp(stateful=True)
    tokens: dict[str, str | None] = {"key-1": None}
    middleware = ResponsesWebSocketMiddleware(app, authorize=by_bearer(tokens))
    async with MemorySocket(middleware, headers=[KEY]) as ws:
        first = id_of(await ws.turn(create()))
        tokens.clear()
        assert (await http(middleware, "DELETE", f"/v1/responses/{first}", KEY))[0]["status"] == 200
        tokens["key-1"] = None
        assert kinds(await ws.turn(create(previous_response_id=first)))[-1] == "completed"


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"path": ()},
        {"path": "v1/responses"},
        {"inner_path": "responses"},
        {"history": "all"},
        {"app_store": "always"},
        {"open_calls": "ignore"},
        {"anonymous_tenant": "none"},
        {"store": "redis"},
        {"on_disconnect": "drain"},
        {"on_disconnect": -1},
        {"keepalive_s": 0},
        {"allowed_origins": ["example.com"]},
        {"allowed_origins": ["https://example.com/path"]},
    ],
)
def test_wrong_options_are_told_at_once(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        ResponsesWebSocketMiddleware(ScriptedApp(), **options)


def test_an_app_is_needed() -> None:
    with pytest.raises(ConfigurationError, match="ASGI app"):
        ResponsesWebSocketMiddleware(None)  # type: ignore[arg-type]


def test_it_is_made_without_a_loop_and_with_the_app_by_name() -> None:
    """Frameworks build their stack early, and Litestar passes `app` by keyword."""
    assert ResponsesWebSocketMiddleware(app=ScriptedApp(), limits=Limits()).connections == 0


async def test_the_users_lifespan_may_hold_it() -> None:
    """`async with middleware:` drains and closes the store."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app)
    async with middleware as entered:
        assert entered is middleware
        async with MemorySocket(middleware, headers=[KEY]) as ws:
            await ws.turn(create())
        assert middleware.history_bytes > 0
    app.requests.clear()
    await settle()
    assert middleware.history_bytes == 0
    async with MemorySocket(middleware, headers=[KEY]) as ws:
        assert ws.denial is not None
        assert ws.denial.status == 503
