"""Clients that do not read."""

import pytest

from tests.servers.process import Server

pytestmark = pytest.mark.servers

TIMED_OUT_S = 5.5
"""More than the pings' interval and time-out."""

COUNT = 8000
SIZE = 4096
BOUND = COUNT // 2
"""16 MiB: what servers and kernels buffer at most; everything is 32 MiB."""


@pytest.mark.fault("B088")
@pytest.mark.parametrize(("name", "head"), [("plain", "begun"), ("engine", "")])
def test_app_waits_for_a_client_that_does_not_read(server: Server, name: str, head: str) -> None:
    """Without this a model could run ahead of its reader without bound, in our memory; and a pause must lose nothing."""
    if server.name == "uvicorn-websockets":
        # Its library pings although a write waits, and stumbles over that.
        server.tolerate("keepalive ping failed", "Traceback")
    with server.connect(name) as client:
        client.create(metadata={"do": "stream", "key": "ahead", "count": COUNT, "size": SIZE})
        sent = server.until_quiet("ahead")
        server.shows("slow", "app waits" if sent < BOUND else "all is buffered")
        if server.family == "daphne":
            # Its pings lie behind all that: it may count the client dead before they are read.
            client.abort()
            return
        events = client.collect()
    assert sum(len(each.get("delta", "")) for each in events) == COUNT * SIZE + len(head)
    assert [each["sequence_number"] for each in events] == list(range(len(events)))


def test_client_that_neither_reads_nor_answers_pings(server: Server) -> None:
    """Without this one would think that the server's ping time-out ends such a client, and switch `send_timeout_s` off."""
    with server.connect() as client:
        client.create(metadata={"do": "stream", "key": "stopped", "count": COUNT, "size": SIZE})
        server.until_known("stopped")
        if server.family == "daphne":
            # It takes all there is, so that the app has finished long before; only then the client is read from.
            server.until_over("stopped")
            server.until_empty()
            server.shows("stopped", client.until_closed().code)
            return
        if server.name == "uvicorn-websockets":
            server.tolerate("keepalive ping failed", "Traceback")
        with pytest.raises(AssertionError, match="ends the app's call"):
            server.until_over("stopped", TIMED_OUT_S if server.family == "uvicorn" else 1.0)
        server.shows("stopped", "never notices")
        client.abort()


@pytest.mark.fault("B088")
def test_client_that_does_not_read_for_too_long(server: Server) -> None:
    """Without this a stalled client pins a place in the model for ever."""
    with server.connect("impatient") as client:
        client.create(metadata={"do": "stream", "key": "stalled", "count": COUNT, "size": SIZE})
        if server.name == "hypercorn-trio":
            # Its writes are shielded from cancellation. The client's end frees what waits.
            server.until_quiet("stalled", for_s=3.0)
            server.shows("send-timeout", "nothing")
            client.abort()
            assert server.until_over("stalled")[0] in {"cancelled", "disconnected"}
            return
        outcome, events = server.until_over("stalled")
        if server.family == "daphne":
            # It takes all there is, so that nothing ever blocks.
            assert (outcome, events > COUNT) == ("finished", True)
            server.shows("send-timeout", "nothing")
            return
        # It hears that its client has gone, or what it sends on falls into the void until it has ended, within the grace.
        assert outcome in {"disconnected", "finished"}
        server.until_empty()
        server.shows("send-timeout", client.until_closed().code)
