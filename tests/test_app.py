"""The engine's app over HTTP: the same turns as over the socket, in the shapes of HTTP."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import pytest

from tests.shell import create, kinds
from ws_responses import (
    ConfigurationError,
    CurrentTurn,
    Handshake,
    Limits,
    Principal,
    ResponsesApp,
    ResponsesEngine,
    ResponsesWebSocketMiddleware,
    Unauthorized,
    WireError,
)
from ws_responses.errors import UpstreamError
from ws_responses.testing import FakeClock, MemorySocket, ResponseBuilder, ScriptedApp, settle
from ws_responses.testing.backends import ScriptedBackend
from ws_responses.testing.builder import numbered
from ws_responses.upstreams.base import Emit

KEY = {"authorization": "Bearer key-1"}
OTHER_KEY = {"authorization": "Bearer key-2"}


class Echo:
    """An upstream that says back what it was told, and how much it knows of what was said before."""

    def __init__(self, fault: WireError | None = None, *, after: int = 0, stall: bool = False) -> None:
        self.fault = fault
        self.after = after
        self.stall = stall
        self.running = 0
        self.closed = False
        self.bodies: list[dict[str, Any]] = []

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        body = {name: json.loads(bytes(raw)) for name, raw in turn.create.body.items()}
        self.bodies.append(body)
        builder = ResponseBuilder(body | {"store": turn.may_store}, response_id=turn.response_id)
        text = f"{len(turn.history())} before, {b','.join(turn.delta).decode()}"
        self.running += 1
        try:
            events = [*builder.start(), *builder.message(text, deltas=3)]
            for number, event in enumerate(numbered([*events, *builder.complete()])):
                if self.fault is not None and number == self.after:
                    raise self.fault
                if event["type"] == "response.completed":
                    if self.stall:
                        await anyio.sleep_forever()
                    members = {k: v for k, v in event["response"].items() if k != "output"}
                    turn.response = json.dumps(members).encode()
                await emit.event(json.dumps(event).encode())
        finally:
            self.running -= 1

    def models(self, tenant: str) -> list[str]:
        return ["m", "vendor/large"]

    async def aclose(self) -> None:
        self.closed = True


@asynccontextmanager
async def client(app: Any, headers: dict[str, str] | None = None) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test", headers=KEY if headers is None else headers
    ) as http:
        yield http


def open_app(upstream: Echo | None = None, **options: Any) -> ResponsesApp:
    return ResponsesApp(upstream or Echo(), authorize="open", **options)


def http_scope() -> dict[str, Any]:
    return {
        "type": "http",
        "method": "POST",
        "path": "/v1/responses",
        "raw_path": b"/v1/responses",
        "root_path": "",
        "query_string": b"",
        "headers": [(b"authorization", b"Bearer key-1")],
        "http_version": "1.1",
        "scheme": "http",
    }


async def post(app: ResponsesApp, body: bytes, *, leave_when: Callable[[], bool] = lambda: False) -> list[Any]:
    """POST; leave when that is so, or when the answer is there. Returns what was sent till the end."""
    sent: list[Any] = []
    request = [{"type": "http.request", "body": body, "more_body": False}]
    gone = anyio.Event()

    async def receive() -> Any:
        if request:
            return request.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    async def call() -> None:
        await app(http_scope(), receive, send)
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call)
        while not leave_when():
            await anyio.lowlevel.checkpoint()
        gone.set()
        await anyio.sleep_forever()
    return sent


def events_of(text: str) -> list[dict[str, Any]]:
    blocks = text.split("\n\n")
    assert blocks[-2:] == ["data: [DONE]", ""], "a stream ends by the marker that Open Responses wants"
    events = []
    for block in blocks[:-2]:
        kind, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert kind == f"event: {event['type']}"
        events.append(event)
    return events


def input_texts(listed: dict[str, Any]) -> list[str]:
    return [item["content"] for item in listed["data"] if item["role"] == "user"]


async def test_a_post_without_stream_gets_the_response_as_one_object() -> None:
    async with client(open_app()) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "hi"})
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    response = answer.json()
    assert response["object"] == "response"
    assert response["status"] == "completed"
    assert "hi" in response["output"][0]["content"][0]["text"]


async def test_a_stream_has_the_events_of_the_socket() -> None:
    """A client that falls back from one to the other must not find another API."""
    app = open_app()
    async with client(app) as http:
        streamed = events_of(
            (await http.post("/v1/responses", json={"model": "m", "input": "hi", "stream": True})).text
        )
    async with MemorySocket(app, headers=[(b"authorization", b"Bearer key-1")]) as ws:
        over_socket = await ws.turn(create())

    def without_ids(events: list[Any]) -> Any:
        text = json.dumps(events)
        for event in events:
            text = text.replace(event.get("response", {}).get("id", "\0"), "resp").replace(
                event.get("item_id", "\0"), "msg"
            )
        fixed = json.loads(text)
        for event in fixed:
            event.get("response", {}).pop("created_at", None)
            event.get("response", {}).pop("completed_at", None)
        return fixed

    assert kinds(streamed) == kinds(over_socket)
    assert without_ids(streamed) == without_ids(over_socket)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
async def test_an_event_is_one_line_however_the_client_has_laid_out_what_it_repeats(end: str) -> None:
    """The engine repeats tools byte for byte: a line end among them would end the event's line, and lose the rest of it."""
    tool = {"type": "function", "name": "find", "description": "a\nb", "parameters": {"type": "object"}, "strict": True}
    body = {"model": "m", "input": "hi", "tools": [tool], "metadata": {"a": "b"}, "stream": True}
    app = ResponsesApp(ResponsesEngine(ScriptedBackend()), authorize="open")
    async with client(app) as http:
        answer = await http.post("/v1/responses", content=json.dumps(body, indent=2).replace("\n", end))

    events = events_of(answer.text)
    assert events[-1]["type"] == "response.completed"
    assert [event["response"]["tools"] for event in events if "response" in event] == [[tool]] * 3


async def test_a_send_that_raises_ends_the_request() -> None:
    """A header that HTTP cannot hold, out of an operator's own code: the call must not stay until the client hangs up."""
    fault = UpstreamError("Busy.", headers={"retry-after": "\u0667"})
    with anyio.fail_after(5):
        assert await post(open_app(Echo(fault)), b'{"model":"m","input":"hi"}') == []


async def test_chains_go_on_over_http_and_over_the_socket_alike() -> None:
    app = open_app()
    async with client(app) as http:
        first = (await http.post("/v1/responses", json={"model": "m", "input": "1"})).json()
        second = await http.post(
            "/v1/responses", json={"model": "m", "input": "2", "previous_response_id": first["id"]}
        )
        assert second.json()["output"][0]["content"][0]["text"].startswith("2 before")
    async with MemorySocket(app, headers=[(b"authorization", b"Bearer key-1")]) as ws:
        events = await ws.turn(create("3", previous_response_id=second.json()["id"]))
    assert events[-1]["response"]["output"][0]["content"][0]["text"].startswith("4 before")


async def test_what_is_not_stored_ends_with_its_request() -> None:
    async with client(open_app()) as http:
        first = (await http.post("/v1/responses", json={"model": "m", "input": "1", "store": False})).json()
        assert first["store"] is False
        again = await http.post("/v1/responses", json={"model": "m", "input": "2", "previous_response_id": first["id"]})
        assert (await http.get(f"/v1/responses/{first['id']}")).status_code == 404
    assert again.status_code == 400
    assert again.json()["error"]["code"] == "previous_response_not_found"


# --- errors -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_before_the_first_event_is_an_http_error(stream: bool) -> None:
    """Clients retry by status and retry-after: inside a stream of status 200 they would see neither."""
    fault = UpstreamError("Slow down.", status=429, code="rate_limit_exceeded", headers={"retry-after": "7"})
    async with client(open_app(Echo(fault))) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "1", "stream": stream})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "7"
    error = answer.json()["error"]
    assert error["code"] == "rate_limit_exceeded"
    assert "headers" not in error


async def test_a_failure_within_a_stream_is_its_closing_event() -> None:
    async with client(open_app(Echo(UpstreamError("Broken."), after=5))) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "1", "stream": True})
    assert answer.status_code == 200
    assert kinds(events_of(answer.text))[-1] == "failed"


async def test_an_error_keeps_status_headers_and_param_where_nothing_was_streamed() -> None:
    """A service's own code tells nobody of its status; and who is to wait wants to know how long."""
    fault = UpstreamError(
        "Too hot.",
        status=400,
        type="invalid_request_error",
        code="too_hot",
        param="temperature",
        headers={"retry-after": "7"},
    )
    for after in (0, 3, 7):
        async with client(open_app(Echo(fault, after=after))) as http:
            answer = await http.post("/v1/responses", json={"model": "m", "input": "hi"})
        assert (answer.status_code, answer.headers["retry-after"]) == (400, "7")
        assert answer.json()["error"] == {
            "type": "invalid_request_error",
            "code": "too_hot",
            "message": "Too hot.",
            "param": "temperature",
        }


async def test_a_failure_within_the_answer_is_an_error_where_nothing_was_streamed() -> None:
    async with client(open_app(Echo(UpstreamError("Broken."), after=5))) as http:
        answer = await http.post("/v1/responses", json={"model": "m", "input": "1"})
    assert answer.status_code == 502
    assert answer.json()["error"]["code"] == "upstream_error"


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"[]", "invalid_request", None),
        (b"", "invalid_json", None),
        (b'{"model": "m", "input": "\xff"}', "invalid_json", None),
        (b'{"model": "m", "stream": "yes"}', "invalid_request", "stream"),
        (b'{"model": "m", "background": true}', "invalid_request", "background"),
        (b'{"model": "m", "stream_id": "a"}', "unknown_parameter", "stream_id"),
        (b'{"model": "m", "generate": false}', "unknown_parameter", "generate"),
        (b'{"model": "m", "input": 5}', "invalid_request", "input"),
        (b'{"model": "m", "previous_response_id": "resp_x"}', "previous_response_not_found", "previous_response_id"),
    ],
)
async def test_a_bad_request_is_a_400_that_names_the_field(body: bytes, code: str, param: str | None) -> None:
    async with client(open_app()) as http:
        answer = await http.post("/v1/responses", content=body)
        assert (await http.post("/v1/responses", json={"model": "m", "input": "1"})).status_code == 200
    assert answer.status_code == 400
    assert (answer.json()["error"]["code"], answer.json()["error"]["param"]) == (code, param)


@pytest.mark.parametrize("body", [b'{"type": "response.processed", "model": "m"}', b' {"model": "m", "type": 5} \n'])
async def test_a_type_of_the_clients_own_means_nothing(body: bytes) -> None:
    """The body becomes a frame: it must not become another one than a create."""
    async with client(open_app()) as http:
        answer = await http.post("/v1/responses", content=body)
    assert answer.json()["status"] == "completed"


async def test_an_empty_object_is_a_request() -> None:
    async with client(open_app()) as http:
        assert (await http.post("/v1/responses", content=b"{}")).status_code == 200


@pytest.mark.parametrize(("more", "status"), [(0, 200), (1, 413)])
async def test_the_body_is_bounded_as_a_frame_is(more: int, status: int) -> None:
    start, end = b'{"input":"', b'"}'
    limit = 4096
    # The frame has a type that the body lacks.
    room = limit - len(start) - len(end) - len(b',"type":"response.create"')
    app = open_app(limits=Limits(max_frame_bytes=limit))
    size = room if status == 200 else limit - len(start) - len(end) + more
    sent = await post(app, start + b"x" * size + end)
    assert sent[0]["status"] == status


class Trickle:
    """A client that sends half of its body, and the rest when it is told to."""

    def __init__(self) -> None:
        self.rest = anyio.Event()
        self.sent: list[Any] = []
        self._parts = [b'{"input":"hi"', b"}"]

    async def receive(self) -> Any:
        if not self._parts:
            await anyio.sleep_forever()
        if len(self._parts) == 1:
            await self.rest.wait()
        return {"type": "http.request", "body": self._parts.pop(0), "more_body": bool(self._parts)}

    async def send(self, message: Any) -> None:
        self.sent.append(message)


@pytest.mark.parametrize("guarded", [False, True], ids=["engine", "guarded app"])
@pytest.mark.parametrize(("after_s", "status"), [(119, 200), (120, 408), (121, 408)])
async def test_a_body_has_so_much_time(after_s: float, status: int, guarded: bool) -> None:
    """A client that sends slowly, or stops in the middle, would hold the place of a connection for ever."""
    clock = FakeClock()
    app: Any = open_app(clock=clock)
    if guarded:
        app = ResponsesWebSocketMiddleware(ScriptedApp(), clock=clock, quota=lambda _: None)
    middleware = app if guarded else app.middleware
    trickle = Trickle()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app, http_scope(), trickle.receive, trickle.send)
        await settle()
        assert middleware.registry.ledger.connections == 1
        await clock.advance(after_s)
        trickle.rest.set()
        await settle()
        tasks.cancel_scope.cancel()

    assert trickle.sent[0]["status"] == status
    assert middleware.registry.ledger.connections == 0
    if status == 408:
        assert json.loads(trickle.sent[1]["body"])["error"]["code"] == "request_timeout"


@pytest.mark.parametrize(("version", "closes"), [("1.1", True), ("2", False)])
async def test_the_rest_of_a_body_that_is_late_is_not_waited_for(version: str, closes: bool) -> None:
    """RFC 9110 wants ``connection: close`` with 408; RFC 9113 forbids it, and h2 raises."""
    clock = FakeClock()
    app = open_app(clock=clock)
    trickle = Trickle()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app, http_scope() | {"http_version": version}, trickle.receive, trickle.send)
        await clock.advance(1000)
    assert ((b"connection", b"close") in trickle.sent[0]["headers"]) is closes


@pytest.mark.parametrize("guarded", [False, True], ids=["engine", "guarded app"])
async def test_a_client_that_leaves_before_its_error_is_no_error(guarded: bool) -> None:
    """Servers may raise from `send` then; the log would have a traceback for each such client."""
    clock = FakeClock()
    app: Any = open_app(clock=clock)
    if guarded:
        app = ResponsesWebSocketMiddleware(ScriptedApp(), clock=clock, quota=lambda _: None)
    tried: list[Any] = []

    async def send(message: Any) -> None:
        tried.append(message)
        raise OSError("the client has gone")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app, http_scope(), Trickle().receive, send)
        await clock.advance(120)
    assert tried[0]["status"] == 408


async def test_without_a_limit_a_body_may_take_as_long_as_it_likes() -> None:
    clock = FakeClock()
    app = open_app(clock=clock, limits=Limits(body_timeout_s=None))
    trickle = Trickle()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app, http_scope(), trickle.receive, trickle.send)
        await clock.advance(1e6)
        trickle.rest.set()
        await settle()
        tasks.cancel_scope.cancel()
    assert trickle.sent[0]["status"] == 200


# --- who may ----------------------------------------------------------------------------------------------------------


def test_somebody_must_judge_the_clients() -> None:
    with pytest.raises(ConfigurationError, match="authorize"):
        ResponsesApp(Echo())


def test_options_of_wrapped_apps_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="history"):
        open_app(history="turn")


def by_key(handshake: Handshake, model: str | None) -> Principal | None:
    token = handshake.bearer_token
    if token not in ("key-1", "key-2"):
        return None
    if model == "secret":
        raise Unauthorized("Not for you.")
    return Principal(id=token, tenant=token)


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("POST", "/v1/responses"),
        ("GET", "/v1/responses/resp_1"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/v1/responses/resp_1/input_items"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/m"),
    ],
)
async def test_every_route_asks_who_it_is(verb: str, path: str) -> None:
    async with client(ResponsesApp(Echo(), authorize=by_key), {"authorization": "Bearer other"}) as http:
        answer = await http.request(verb, path, content=b"{}" if verb == "POST" else None)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"


async def test_the_turn_is_judged_with_its_model() -> None:
    async with client(ResponsesApp(Echo(), authorize=by_key)) as http:
        assert (await http.post("/v1/responses", json={"model": "secret"})).status_code == 401
        assert (await http.post("/v1/responses", json={"model": "m"})).status_code == 200


async def test_a_stranger_is_refused_before_the_body_is_read() -> None:
    """Else anybody could make the server hold 16 MB for each request."""
    sent: list[Any] = []

    async def receive() -> Any:
        raise AssertionError("the body was read")

    async def send(message: Any) -> None:
        sent.append(message)

    await ResponsesApp(Echo(), authorize=by_key)(http_scope() | {"headers": []}, receive, send)
    assert sent[0]["status"] == 401


# --- stored responses -------------------------------------------------------------------------------------------------


async def test_a_stored_response_is_retrieved_as_it_was_answered() -> None:
    async with client(open_app()) as http:
        made = (await http.post("/v1/responses", json={"model": "m", "input": "1", "metadata": {"a": "b"}})).json()
        answer = await http.get(f"/v1/responses/{made['id']}")
    assert answer.status_code == 200
    assert answer.json() == made


async def test_a_deleted_response_is_gone_and_its_children_stay() -> None:
    async with client(open_app()) as http:
        first = (await http.post("/v1/responses", json={"model": "m", "input": "1"})).json()["id"]
        second = (
            await http.post("/v1/responses", json={"model": "m", "input": "2", "previous_response_id": first})
        ).json()["id"]
        deleted = await http.delete(f"/v1/responses/{first}")
        assert deleted.json() == {"id": first, "object": "response", "deleted": True}
        assert (await http.get(f"/v1/responses/{first}")).status_code == 404
        assert (await http.delete(f"/v1/responses/{first}")).status_code == 404
        again = await http.post("/v1/responses", json={"model": "m", "input": "3", "previous_response_id": first})
        assert again.json()["error"]["code"] == "previous_response_not_found"
        assert (await http.get(f"/v1/responses/{second}")).status_code == 200


@pytest.mark.parametrize("headers", [OTHER_KEY, {}])
async def test_another_tenants_response_is_as_one_that_never_was(headers: dict[str, str]) -> None:
    app = open_app()
    async with client(app) as http:
        made = (await http.post("/v1/responses", json={"model": "m", "input": "1"})).json()["id"]
    async with client(app, headers) as http:
        for path in (f"/v1/responses/{made}", f"/v1/responses/{made}/input_items"):
            theirs, none = await http.get(path), await http.get(path.replace(made, "resp_none"))
            assert theirs.status_code == none.status_code == 404
            assert theirs.text.replace(made, "resp_none") == none.text
        assert (await http.delete(f"/v1/responses/{made}")).status_code == 404
    async with client(app) as http:
        assert (await http.get(f"/v1/responses/{made}")).status_code == 200


async def test_strangers_share_what_they_store_where_the_operator_says_so() -> None:
    async with client(open_app(anonymous_tenant="shared"), {}) as http:
        made = (await http.post("/v1/responses", json={"model": "m", "input": "1"})).json()["id"]
        assert (await http.get(f"/v1/responses/{made}")).status_code == 200


async def test_input_items_are_those_of_the_whole_chain_in_pages() -> None:
    async with client(open_app()) as http:
        parent = None
        for number in range(3):
            body = {"model": "m", "input": f"text {number}", "previous_response_id": parent}
            parent = (await http.post("/v1/responses", json=body)).json()["id"]
        path = f"/v1/responses/{parent}/input_items"
        newest_first = (await http.get(path)).json()
        assert input_texts(newest_first) == ["text 2", "text 1", "text 0"]
        assert newest_first["has_more"] is False
        oldest_first = (await http.get(path, params={"order": "asc"})).json()
        assert [item["id"] for item in oldest_first["data"]] == [item["id"] for item in newest_first["data"]][::-1]

        seen: list[Any] = []
        after: dict[str, str] = {}
        while True:
            page = (await http.get(path, params={"order": "asc", "limit": "2"} | after)).json()
            seen += page["data"]
            assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
            if not page["has_more"]:
                break
            after = {"after": page["last_id"]}
        assert seen == oldest_first["data"]


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=none", "after"),
    ],
)
async def test_a_bad_page_is_a_400(query: str, param: str) -> None:
    async with client(open_app()) as http:
        made = (await http.post("/v1/responses", json={"model": "m", "input": "1"})).json()["id"]
        answer = await http.get(f"/v1/responses/{made}/input_items?{query}")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


# --- models -----------------------------------------------------------------------------------------------------------


async def test_items_that_came_with_the_same_id_are_listed_once_each() -> None:
    """A client that asks for page after page would go round in circles."""
    items = [{"id": name, "role": "user", "content": text} for name, text in zip("abaca", "12345", strict=True)]
    async with client(open_app()) as http:
        created = await http.post("/v1/responses", json={"model": "m", "input": items})
        url = f"/v1/responses/{created.json()['id']}/input_items"
        for order, expected in (("asc", "12345"), ("desc", "54321")):
            found: list[str] = []
            page: dict[str, Any] = {"has_more": True}
            while page["has_more"] and len(found) < 9:
                after = {"after": page["last_id"]} if found else {}
                page = (await http.get(url, params={"limit": 1, "order": order, **after})).json()
                found += input_texts(page)
            assert "".join(found) == expected
            assert not page["has_more"]


async def test_models_are_listed() -> None:
    async with client(open_app()) as http:
        listed = (await http.get("/v1/models")).json()
        assert [model["id"] for model in listed["data"]] == ["m", "vendor/large"]
        assert (await http.get("/v1/models/vendor/large")).json() == listed["data"][1]
        missing = await http.get("/v1/models/none")
    assert missing.status_code == 404
    assert missing.json()["error"]["code"] == "model_not_found"


async def test_paths_are_the_operators() -> None:
    async with client(open_app(path=("/responses", "/codex/responses"), models_path=None)) as http:
        assert (await http.post("/codex/responses", json={"input": "1"})).status_code == 200
        assert (await http.post("/v1/responses", json={"input": "1"})).status_code == 404
        assert (await http.get("/v1/models")).status_code == 404


# --- life -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_ends_its_turn(stream: bool) -> None:
    upstream = Echo(stall=True)
    app = open_app(upstream)
    body = json.dumps({"model": "m", "input": "1", "stream": stream}).encode()
    await post(app, body, leave_when=lambda: upstream.running == 1)
    await settle()
    assert upstream.running == 0
    assert app.middleware.connections == 0


async def test_a_request_leaves_nothing_behind() -> None:
    app = open_app()
    async with client(app) as http:
        for _ in range(3):
            await http.post("/v1/responses", json={"model": "m", "input": "1", "store": False})
    assert (app.middleware.connections, app.middleware.running_turns, app.middleware.history_bytes) == (0, 0, 0)


async def test_connections_are_bounded_over_http_too() -> None:
    upstream = Echo(stall=True)
    app = open_app(upstream, limits=Limits(max_connections=1))

    answers: list[httpx.Response] = []
    async with anyio.create_task_group() as tasks:
        done = anyio.Event()

        async def hold() -> None:
            await post(app, b'{"input": "1"}', leave_when=done.is_set)

        tasks.start_soon(hold)
        while not upstream.running:
            await anyio.lowlevel.checkpoint()
        async with client(app) as http:
            answers.append(await http.post("/v1/responses", json={"input": "2"}))
        done.set()
    (answer,) = answers
    assert answer.status_code == 429
    assert "retry-after" in answer.headers


async def test_the_lifespans_end_closes_the_engine() -> None:
    upstream = Echo()
    app = open_app(upstream)
    told: list[str] = []
    messages = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(message: Any) -> None:
        told.append(message["type"])

    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, receive, send)
    assert told == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
    assert upstream.closed
