"""How connections end by our doing, and when a server is told to stop."""

import pytest

from tests.servers.client import Client
from tests.servers.process import Server

pytestmark = pytest.mark.servers


@pytest.mark.fault("B067", "B070", "B152")
def test_operator_ends_the_connections_of_a_tenant(server: Server) -> None:
    """Without this a close code may never arrive, or a long reason may break the frame: 123 bytes, cut at a character."""
    with server.connect("named", key="them") as theirs, server.connect("named", key="us") as ours:
        theirs.create(metadata={"do": "stall", "key": "revoked"})
        theirs.until_text()
        server.ask("disconnect", tenant="them", reason="é" * 100)
        failed = theirs.collect()[-1]
        assert (failed["type"], failed["response"]["error"]["code"]) == ("response.failed", "permission_denied")
        end = theirs.until_closed()
        if end.code == 1008:
            assert end.reason == "é" * 61
            server.shows("close", "code and reason")
        else:
            assert (end.code, end.reason) == (4008, "")
            server.shows("close", "4xxx, no reason")
        theirs.hang_up()
        assert server.until_over("revoked")[0] == "disconnected"
        assert ours.turn()[-1]["type"] == "response.completed"


def test_idle_connection_is_closed(server: Server) -> None:
    """Without this abandoned sockets would pile up."""
    with server.connect("idle") as client:
        end = client.until_closed()
        assert end.code in {1001, 4001}
        assert end.reason == ("idle" if end.code == 1001 else "")


def hold(server: Server, key: str, name: str = "plain") -> Client:
    client = server.connect(name)
    client.create(metadata={"do": "hold", "key": key})
    client.until_text()
    return client


@pytest.mark.fault("B066")
def test_drain_lets_turns_end(own_server: Server) -> None:
    """Without this a deployment cuts running turns: servers close sockets before an app hears of the shutdown."""
    server = own_server
    with (
        server.connect() as idle,
        hold(server, "last") as running,
        hold(server, "sampled", "engine") as sampled,
        server.connect("beside") as other,
    ):
        server.ask("drain", name="plain")
        server.ask("drain", name="engine")
        codes = {idle.until_closed().code}
        with server.connect() as late:
            assert late.response.status_code == (403 if server.family == "daphne" else 503)
        running.create(stream_id="another")
        assert running.error()["status"] == 503
        server.ask("release", key="last")
        assert running.collect()[-1]["type"] == "response.completed"
        end = running.until_closed()
        codes.add(end.code)
        assert end.reason == ("" if server.family == "daphne" else "service restart")
        server.ask("release", key="sampled")
        assert sampled.collect()[-1]["type"] == "response.completed"
        codes.add(sampled.until_closed().code)
        server.shows("drain", f"{'/'.join(map(str, codes))} after the turn")
        assert other.turn()[-1]["type"] == "response.completed"
    server.until_empty()
    server.stop()
    assert not server.complaints(), server.log


@pytest.mark.fault("B066")
def test_sigterm_without_drain(own_server: Server) -> None:
    """Without this nobody knows what clients see when a deployment forgets to drain."""
    server = own_server
    if server.family == "hypercorn":
        server.tolerate("Traceback", "CancelledError")
    with server.connect() as idle, hold(server, "cut") as running, hold(server, "sampled", "engine") as sampled:
        clients = (idle, running, sampled)
        server.process.terminate()
        for client in clients:
            server.shows("sigterm", client.until_closed().code)
        for client in clients:
            client.hang_up()
        server.process.wait(15)
    server.shows("sigterm-app", "told" if "turn cut: disconnected" in server.log else "cut")
    server.shows("sigterm-app", "told" if "turn sampled: cancelled" in server.log else "cut")
    assert not server.complaints(), server.log
