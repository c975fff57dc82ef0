"""Frames that are too large, too many or broken: the client is told as well as the server can, and the process lives on."""

from pathlib import Path

import pytest
from websockets.frames import Opcode

from tests.conftest import require
from tests.servers.apps import SMALL_FRAME
from tests.servers.client import Client, Ended, compressed, create, masked, unmasked
from tests.servers.process import Server

pytestmark = pytest.mark.servers

MIB = 1024 * 1024
FRAGMENTS = 65536


def fate(client: Client) -> str:
    """Say how a turn ends: served, or with which close code."""
    try:
        return "served" if client.collect()[-1]["type"] == "response.completed" else "refused"
    except Ended as end:
        return str(end.code)


def lives(server: Server) -> bool:
    """Whether a next client is served."""
    with server.connect() as client:
        return bool(client.turn()[-1]["type"] == "response.completed")


@pytest.mark.fault("B025", "B026")
def test_frame_of_an_ordinary_large_turn(server: Server) -> None:
    """Without this nobody sees that a server's default is below what agents send."""
    with server.connect() as client:
        client.create(input="x" * (3 * MIB // 2))
        server.shows("big", fate(client))


@pytest.mark.fault("B025")
def test_frame_of_an_ordinary_large_turn_on_daphne_when_it_is_told(tmp_path: Path) -> None:
    """Without this the page could advise what does not help."""
    require("daphne")
    options = ("--websocket-max-message-size", str(16 * MIB), "--websocket-max-frame-size", str(16 * MIB))
    with Server("daphne", tmp_path, *options) as server, server.connect() as client:
        client.create(input="x" * (3 * MIB // 2))
        assert fate(client) == "served"


@pytest.mark.fault("B025")
def test_frame_above_the_limit_of_the_server(server: Server) -> None:
    """Without this one large frame could bring the process down, or leave its connection behind."""
    with server.connect() as client:
        client.create(input="x" * (17 * MIB))
        server.shows("server-limit", fate(client))
    assert lives(server)


def test_frame_above_our_limit(server: Server) -> None:
    """Without this the limit may hold, but its close code may never reach the client; and the turn beside it is told."""
    with server.connect("small") as client:
        client.create(metadata={"do": "stall"})
        client.until_text()
        client.create(stream_id="big", input="x" * SMALL_FRAME)
        last = client.collect()[-1]
        assert (last["type"], last["response"]["error"]["code"]) == ("response.failed", "websocket_message_too_big")
        server.shows("our-limit", client.until_closed().code)
    assert lives(server)


@pytest.mark.fault("B032")
def test_limit_is_of_the_inflated_size(server: Server) -> None:
    """Without this a small compressed frame could fill the memory."""
    # Made before the connection: a client that is busy with it answers no pings.
    bomb = compressed(create(input="x" * (64 * MIB)).encode())
    with server.connect(deflate=True) as client:
        if not client.protocol.extensions:
            server.shows("bomb", "no deflate")
            return
        client.send_raw(bomb)
        server.shows("bomb", fate(client))
    assert lives(server)


@pytest.mark.fault("B030")
def test_frame_in_very_many_fragments(server: Server) -> None:
    """Without this the parts of a message could cost quadratic time."""
    text = create(input="x" * FRAGMENTS).encode()
    parts = [masked(Opcode.CONT, text[at : at + 1], fin=False) for at in range(1, len(text) - 1)]
    with server.connect() as client:
        client.send_raw(
            masked(Opcode.TEXT, text[:1], fin=False) + b"".join(parts) + masked(Opcode.CONT, text[-1:], fin=True)
        )
        server.shows("fragments", fate(client))


@pytest.mark.fault("B047")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(unmasked(Opcode.TEXT, create().encode()), id="unmasked"),
        pytest.param(masked(Opcode.CONT, b"{}"), id="continuation-of-nothing"),
    ],
)
def test_frame_that_breaks_the_protocol(server: Server, data: bytes) -> None:
    """Without this the turn that runs beside such a frame could run on for nobody."""
    with server.connect() as client:
        client.create(metadata={"do": "silence", "key": "beside"})
        server.until_known("beside")
        client.send_raw(data)
        server.shows("bad-frame", client.until_closed().code)
    assert server.until_over("beside") == ("disconnected", 0)


def test_text_that_is_no_utf8(server: Server) -> None:
    """Without this bad bytes could reach the app, or end more than their connection."""
    if server.name == "uvicorn-sansio":
        server.tolerate("Invalid UTF-8 sequence received", "Traceback")
    with server.connect() as client:
        client.send_raw(masked(Opcode.TEXT, b'{"type":"\xff\xfe"}'))
        server.shows("bad-text", client.until_closed().code)
    assert lives(server)
