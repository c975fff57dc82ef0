"""Upgrades that are refused, on the wire."""

import json
from typing import Any

import pytest

from tests.servers.client import Client
from tests.servers.process import Server

pytestmark = pytest.mark.servers

REFUSALS = [
    pytest.param("disabled", {}, 426, "upgrade_required", id="disabled"),
    pytest.param("authorize", {}, 401, "invalid_api_key", id="no-key"),
    pytest.param("authorize", {"key": "banned"}, 403, "permission_denied", id="banned-key"),
    pytest.param("engine-keys", {}, 401, "invalid_api_key", id="engine"),
    pytest.param("probe", {"key": "bad"}, 401, "invalid_api_key", id="refused-by-the-app"),
    pytest.param("plain", {"headers": [("Origin", "http://evil.example")]}, 403, "origin_not_allowed", id="origin"),
]


def seen(server: Server, client: Client, status: int, code: str) -> str:
    """Say what a refused client gets."""
    server.shows("refusal-headers", "yes" if "Sec-WebSocket-Accept" in client.response.headers else "no")
    body = bytes(client.response.body or b"")
    if (client.response.status_code, body) == (403, b""):
        return "403, empty"
    assert client.response.status_code == status
    assert client.response.headers["content-type"] == "application/json"
    assert json.loads(body)["error"]["code"] == code
    return "our status and JSON"


@pytest.mark.fault("B001", "B005", "B006", "B013")
@pytest.mark.parametrize(("name", "options", "status", "code"), REFUSALS)
def test_refusals(server: Server, name: str, options: dict[str, Any], status: int, code: str) -> None:
    """Without this a client may see an open socket, or a status on which it does not fall back to HTTP."""
    with server.connect(name, **options) as client:
        server.shows("refusal", seen(server, client, status, code))


@pytest.mark.parametrize("name", ["authorize", "probe", "engine-keys"])
def test_the_right_key_is_let_in(server: Server, name: str) -> None:
    """Without this the refusals above could be of everybody."""
    with server.connect(name, key="good") as client:
        assert client.response.status_code == 101
        assert client.turn()[-1]["type"] == "response.completed"


@pytest.mark.fault("B005", "B018")
def test_one_connection_too_many(server: Server) -> None:
    """Without this a place could stay taken after its connection has gone, or a refused upgrade could take one."""
    with server.connect("one") as first:
        with server.connect("one") as second:
            server.shows("refusal", seen(server, second, 429, "websocket_connections_exhausted"))
            if second.response.status_code == 429:
                assert int(second.response.headers["retry-after"]) > 0
        assert first.turn()[-1]["type"] == "response.completed"
        first.close()
    server.until_empty()
    with server.connect("one") as third:
        assert third.response.status_code == 101
