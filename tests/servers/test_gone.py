"""Clients that leave, in every way: the app hears of it, and nothing stays behind."""

import pytest

from tests.servers.client import Client
from tests.servers.process import Server

pytestmark = pytest.mark.servers

SOON_S = 3.0
"""A second, on a busy machine."""

PING_S = 4.0
"""Interval and time-out of the servers that have both."""


def leave(client: Client, how: str) -> None:
    if how == "close":
        client.close(4001, "done")
    elif how == "abort":
        client.abort()
    else:
        client.hang_up()


@pytest.mark.fault("B056", "B057")
@pytest.mark.parametrize("how", ["close", "abort", "hang-up"])
@pytest.mark.parametrize(
    ("name", "outcome"),
    [
        pytest.param("plain", "disconnected", id="listening"),
        pytest.param("deaf", "cancelled", id="deaf"),
        pytest.param("engine", "cancelled", id="engine"),
    ],
)
def test_client_leaves_while_the_app_is_silent(server: Server, how: str, name: str, outcome: str) -> None:
    """Without this a model goes on thinking for nobody: a silent app sends nothing that could fail."""
    client = server.connect(name)
    client.create(metadata={"do": "silence", "key": "silent"})
    server.until_known("silent")
    leave(client, how)
    assert server.until_over("silent", SOON_S) == (outcome, 0)
    server.until_empty(SOON_S)
    server.shows("gone", "app is told at once")


@pytest.mark.fault("B058")
@pytest.mark.parametrize("how", ["close", "abort", "hang-up"])
@pytest.mark.parametrize(("name", "ended"), [("plain", "disconnected"), ("engine", "cancelled")])
def test_client_leaves_in_the_middle_of_a_stream(server: Server, how: str, name: str, ended: str) -> None:
    """Without this an app could stream, and an engine sample, to its end for nobody."""
    count = 20_000
    client = server.connect(name)
    client.create(metadata={"do": "stream", "key": "stream", "count": count, "size": 4096})
    client.until_text()
    leave(client, how)
    outcome, events = server.until_over("stream", SOON_S)
    assert outcome == ended
    assert events < count
    server.until_empty(SOON_S)
    server.shows("gone", "app is told at once")


@pytest.mark.fault("B068")
@pytest.mark.parametrize(("how", "row"), [("close", "code-close"), ("abort", "code-abort")])
def test_close_code_that_is_reported(server: Server, how: str, row: str) -> None:
    """Without this somebody would come to rely on codes that servers invent."""
    client = server.connect()
    client.turn()
    leave(client, how)
    server.until_empty()
    [(code, by_client)] = server.ask("closed")["closed"]
    assert by_client
    server.shows(row, code)


@pytest.mark.fault("B056")
def test_client_that_answers_no_ping(server: Server) -> None:
    """Without this a dead peer could hold its turn and its place for as long as the app likes."""
    with server.connect(pongs=False) as client:
        client.create(metadata={"do": "silence", "key": "half-open"})
        if server.family == "granian":
            with pytest.raises(TimeoutError):
                client.until_pings(1, within=PING_S)
        elif server.family == "hypercorn":
            client.until_pings(3)
        else:
            server.shows("half-open", client.until_closed().code)
            client.hang_up()
            assert server.until_over("half-open", SOON_S) == ("disconnected", 0)
            return
        assert server.ask("turn", key="half-open") == {"known": True, "events": 0, "outcome": None}
        server.shows("half-open", "never noticed")


@pytest.mark.fault("B060", "B065")
def test_our_limits_end_what_a_server_does_not_notice(server: Server) -> None:
    """Without this the row above would have no remedy on the servers without a ping time-out."""
    with server.connect("impatient", pongs=False) as client:
        client.create(metadata={"do": "silence", "key": "ours"})
        server.until_known("ours")
        assert server.until_over("ours", SOON_S) == ("disconnected", 0)
    with server.connect("idle", pongs=False) as client:
        assert client.until_closed(SOON_S).code in {1001, 4001}
