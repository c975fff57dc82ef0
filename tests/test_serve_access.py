"""Who is let in: by a key, or because they are on this machine, and by nothing else."""

import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shell import create, kinds
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import Message
from ws_responses.serve.access import Guard, Keys, is_local_name, is_loopback
from ws_responses.testing import MemorySocket, ScriptedApp

Header = tuple[bytes, bytes]


async def ask(guard: Guard, *headers: Header, path: str = "/v1/responses", method: str = "POST") -> int:
    """The status of a request."""
    statuses: list[int] = []
    body: list[Message] = [{"type": "http.request", "body": b'{"model":"m","input":"hi"}'}]

    async def receive() -> Message:
        return body.pop() if body else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await guard({"type": "http", "method": method, "path": path, "headers": list(headers)}, receive, send)
    (status,) = statuses
    return status


async def upgrade(guard: Guard, *headers: Header) -> int:
    """101, or the status of a refusal."""
    async with MemorySocket(guard, headers=headers) as ws:
        return 101 if ws.denial is None else ws.denial.status


def guarded(**options: Any) -> Guard:
    return Guard(ResponsesWebSocketMiddleware(ScriptedApp()), **options)


def bearer(key: str) -> Header:
    return (b"authorization", b"Bearer " + key.encode())


def host(name: str) -> Header:
    return (b"host", name.encode())


ORIGIN = (b"origin", b"https://evil.example")


@pytest.mark.parametrize(
    ("headers", "lets_in"),
    [
        ((bearer("one"),), True),
        ((bearer("two"),), True),
        ((bearer("one"), host("public.example")), True),
        ((), False),
        ((bearer("three"),), False),
        ((bearer("On"),), False),
        ((bearer("one,two"),), False),
        ((bearer(""),), False),
        (((b"authorization", b"one"),), False),
        (((b"authorization", b"Basic one"),), False),
        (((b"api-key", b"one"),), False),
        ((bearer("three"), bearer("one")), False),
        ((bearer("one\xff"),), False),
    ],
)
async def test_with_keys_only_a_key_lets_in_over_both_ways(headers: tuple[Header, ...], lets_in: bool) -> None:
    """Without this one of the two ways would be the way round the other."""
    guard = guarded(keys=["one", "two"], local_only=True)

    assert await ask(guard, *headers) == (200 if lets_in else 401)
    assert await upgrade(guard, *headers) == (101 if lets_in else 401)


async def test_a_turn_over_a_guarded_socket_is_answered() -> None:
    """Without this the guard could let a socket in and stand in its way after that."""
    async with MemorySocket(guarded(keys=["one"]), headers=[bearer("one")]) as ws:
        assert kinds(await ws.turn(create("hi")))[-1] == "completed"


async def test_a_refusal_says_how_to_come_in() -> None:
    """Without this a client could not tell a missing key from a broken server."""
    async with MemorySocket(guarded(keys=["one"])) as ws:
        assert ws.denial is not None
        assert ws.denial.header(b"www-authenticate") == b"Bearer"
        assert ws.denial.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize(
    "name", ["localhost", "localhost:8080", "127.0.0.1:1", "[::1]:8080", "127.8.8.8", "a.localhost", ""]
)
async def test_names_of_this_machine_are_served(name: str) -> None:
    """Without this a local client could not talk to its own machine."""
    guard = guarded(local_only=True)

    assert await ask(guard, *([host(name)] if name else [])) == 200
    assert await upgrade(guard, host(name)) == 101


@pytest.mark.parametrize(
    "name",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "192.168.0.1",
        "0.0.0.0",
        "[",
        "127.0.0.1@evil",
    ],
)
async def test_a_page_whose_name_was_made_to_point_here_is_refused(name: str, caplog: pytest.LogCaptureFixture) -> None:
    """Without this any web page that its user opens could use the model (DNS rebinding)."""
    guard = guarded(local_only=True)
    caplog.set_level(logging.WARNING)

    assert await ask(guard, host(name)) == 403
    assert await upgrade(guard, host(name)) == 403
    assert "--open" in caplog.text
    assert await ask(guarded(local_only=False), host(name)) == 200


async def test_a_foreign_page_is_refused_over_http_too() -> None:
    """Without this any web page could start turns by a form, though it cannot read the answers."""
    guard = guarded()
    named = guarded(allowed_origins=["https://evil.example"])

    assert await ask(guard, host("localhost:1"), ORIGIN) == 403
    assert await ask(guard, host("localhost:1"), (b"origin", b"http://localhost:1")) == 200
    assert await ask(named, host("localhost:1"), ORIGIN) == 200


async def test_health_needs_no_key_and_tells_when_it_drains() -> None:
    """Without this an orchestrator would need a key, or send clients to a server that is about to stop."""
    draining = False
    guard = guarded(keys=["one"], draining=lambda: draining)

    assert await ask(guard, path="/health", method="GET") == 200
    draining = True
    assert await ask(guard, path="/health", method="GET") == 503


async def test_the_lifespan_passes() -> None:
    """Without this the app's connections would never be closed."""
    app = ScriptedApp()
    messages: list[Message] = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]

    async def receive() -> Message:
        return messages.pop()

    async def send(message: Message) -> None:
        pass

    await Guard(app, keys=["k"])({"type": "lifespan"}, receive, send)

    assert app.lifespan == ["lifespan.startup", "lifespan.shutdown"]


@given(
    st.lists(st.text(st.characters(codec="latin-1"), min_size=1), min_size=1), st.text(st.characters(codec="latin-1"))
)
def test_a_token_is_a_key_exactly_if_it_equals_one(keys: list[str], token: str) -> None:
    """Without this a prefix, or an empty token, could pass."""
    assert (token in Keys(keys)) == (token in keys)
    assert keys[0] in Keys(keys)


def test_all_keys_are_compared_whichever_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the time of an answer would tell which key it was."""
    import hmac

    compared: list[bytes] = []
    compare = hmac.compare_digest

    def watch(given: bytes, known: bytes) -> bool:
        compared.append(known)
        return compare(given, known)

    monkeypatch.setattr(hmac, "compare_digest", watch)
    keys = Keys(["a", "b", "c"])

    assert "a" in keys
    assert len(compared) == 3
    assert {len(each) for each in compared} == {32}


@pytest.mark.parametrize("address", ["127.0.0.1", "127.1.2.3", "::1", "::1%lo"])
def test_loopback_addresses(address: str) -> None:
    """Without this the server would ask for keys on its own machine."""
    assert is_loopback(address)


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.0.2.1", "localhost", "", "127.0.0.1.example"])
def test_all_other_addresses_are_not_loopback(address: str) -> None:
    """Without this the world could be taken for this machine."""
    assert not is_loopback(address)


@given(st.text())
def test_no_host_header_breaks_the_check(name: str) -> None:
    """Without this a strange header would be a server error."""
    assert is_local_name(name) in {True, False}
