"""Clients that leave or do not read: the generators of the handlers end, and wait."""

from typing import Any

import pytest

from tests.frameworks.matrix import cell
from tests.frameworks.process import Server
from tests.frameworks.source import HELPED, KEY
from tests.servers.client import Client

pytestmark = pytest.mark.servers

SOON_S = 3.0
"""The grace, on a busy machine."""

GONE = "the client of this turn has gone"
"""What `send` raises then."""

COUNT = 8000
SIZE = 4096
BOUND = COUNT // 2
"""16 MiB: what the server and the kernel buffer at most; everything is 32 MiB."""


def connect(server: Server, way: str) -> Client:
    """Open a socket by a layer's name, or to the route with the framework's helper."""
    if way != "helped":
        if way == "gzip" and cell("compression", server.framework) == "has none":
            pytest.skip("it has no compression")
        return server.connect(way, key=KEY)
    if cell("helper", server.framework) == "has none":
        pytest.skip("it has no helper")
    return server.connect(path=HELPED)


def leave(client: Client, how: str) -> None:
    if how == "close":
        client.close(4001, "done")
    else:
        client.abort()


ways = pytest.mark.parametrize("way", ["none", "key", "gzip", "helped"])


@ways
@pytest.mark.parametrize("how", ["close", "abort"])
def test_client_leaves_before_the_first_event(server: Server, way: str, how: str) -> None:
    """Without this a model goes on thinking for nobody: a silent handler sends nothing that could fail."""
    client = connect(server, way)
    client.create(metadata={"do": "silence", "key": "silent"})
    server.until_known("silent")
    leave(client, how)
    assert server.until_over("silent", SOON_S) == ("cancelled", 0)
    server.until_empty(SOON_S)


@ways
def test_client_leaves_while_the_handler_waits(server: Server, way: str) -> None:
    """The same when the stream has begun: some frameworks listen only from then on."""
    client = connect(server, way)
    client.create(metadata={"do": "stall", "key": "stalled"})
    client.until_text()
    client.abort()
    outcome, _ = server.until_over("stalled", SOON_S)
    assert outcome == "cancelled"
    server.until_empty(SOON_S)


@ways
def test_client_leaves_in_the_midst_of_a_stream(server: Server, way: str) -> None:
    """Without this a handler could stream to its end for nobody, or its generator stay open with all that it holds."""
    client = connect(server, way)
    client.create(metadata={"do": "stream", "key": "stream", "count": COUNT, "size": SIZE, "pace": 0.002})
    client.until_text()
    client.abort()
    outcome, events = server.until_over("stream", SOON_S)
    assert outcome in {"cancelled", "closed"}
    assert events < COUNT
    server.until_empty(SOON_S)
    server.tolerate(GONE, "Traceback")
    server.shows("log", "an error" if GONE in server.log else "nothing")


def test_who_listens_for_a_client_that_leaves(server: Server) -> None:
    """Without this the page could promise the end at once of one that is ended by the grace."""
    client = server.connect("watched")
    client.create(metadata={"do": "stall", "key": "watched"})
    client.until_text()
    client.abort()
    server.until_over("watched", SOON_S)
    server.shows("gone", "`http.disconnect`" if server.ask("heard") else "cancellation")


@ways
def test_handler_waits_for_a_client_that_does_not_read(server: Server, way: str) -> None:
    """Without this a model could run ahead of its reader without bound, in a buffer of the framework's."""
    sent, events = read_late(server, connect(server, way))
    assert sent < BOUND
    assert sum(len(each.get("delta", "")) for each in events) == COUNT * SIZE
    server.shows("slow", "the generator waits")


def test_generator_without_async(server: Server) -> None:
    """Without this one could believe that any generator streams."""
    if cell("sync", server.framework) == "your own loop":
        pytest.skip("it has no loop of its own")
    with server.connect() as client:
        first = client.turn(metadata={"plain": True, "key": "whole"})
        if first[-1]["type"] == "error":
            server.tolerate(".*")
            server.shows("sync", "refused")
            return
        server.until_over("whole")
    sent, _ = read_late(server, server.connect(), plain=True)
    server.shows("sync", "streams" if sent < BOUND else "all at once")


def read_late(server: Server, client: Client, **metadata: Any) -> tuple[int, list[dict[str, Any]]]:
    """Read nothing until the generator stops; return how many events that took, and all of them."""
    with client:
        client.create(metadata={"do": "stream", "key": "late", "count": COUNT, "size": SIZE, **metadata})
        sent = server.until_quiet("late")
        events = client.collect()
        server.until_over("late")
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    return sent, events
