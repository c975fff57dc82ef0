"""A server that is killed: the end of every turn that a client has seen is in the books."""

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.conftest import require
from tests.rooms import KINDS, Kind
from tests.servers.client import Client, Ended
from ws_responses.adapters.sqlite_settlement import SqliteSettlement
from ws_responses.settlement import TurnRecord

require("uvicorn")
require("websockets")

TURNS = 50
LANES = 5


def start(kind: Kind, path: Path) -> "tuple[subprocess.Popen[bytes], int]":
    """Start a server on a socket that listens already."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        command = [sys.executable, "-m", "uvicorn", "--fd", str(listener.fileno()), "--ws", "websockets-sansio"]
        process = subprocess.Popen(
            [*command, "--log-level", "warning", "tests.billed:app"],
            cwd=Path(__file__).parents[1],
            pass_fds=(listener.fileno(),),
            env={**os.environ, "BILLED_KIND": kind, "BILLED_PATH": str(path)},
        )
    return process, port


def ends_until_killed(process: "subprocess.Popen[bytes]", port: int, after: int) -> list[dict[str, Any]]:
    """Run turns on several lanes; kill the server when some have ended. Return all ends that the client got in the end."""
    ends: list[dict[str, Any]] = []
    with Client(port, key="key-1") as client:
        for turn in range(TURNS):
            client.create(input=f"turn {turn}", stream_id=f"lane-{turn % LANES}")
        try:
            while True:
                event = client.receive()
                if event["type"] in ("response.completed", "response.failed", "error"):
                    ends.append(event)
                    if len(ends) == after:
                        process.send_signal(signal.SIGKILL)
        except Ended:
            return ends


async def records_in(path: Path) -> list[TurnRecord]:
    sink = SqliteSettlement(path)
    try:
        return [settled.record for settled in await sink.records(limit=1000)]
    finally:
        await sink.aclose()


@pytest.mark.slow
@pytest.mark.servers
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("after", [1, 13, 31])
def test_what_a_client_has_seen_the_end_of_is_in_the_books_after_a_kill(kind: Kind, after: int, tmp_path: Path) -> None:
    """A process that is killed runs no more code: a record that was only in its memory would be a turn for nothing."""
    path = tmp_path / "turns.db"
    process, port = start(kind, path)
    try:
        ends = ends_until_killed(process, port, after)
        assert process.wait(10) == -signal.SIGKILL
    finally:
        process.kill()
        process.wait()

    assert after <= len(ends) < TURNS, "it was killed in the middle"
    assert {end["type"] for end in ends} == {"response.completed"}
    written = {record.response_id: record for record in anyio.run(records_in, path)}
    for end in ends:
        record = written[end["response"]["id"]]
        assert (record.outcome, record.lane) == ("completed", end["stream_id"])
        assert record.usage is not None
        assert record.usage.output_tokens == end["response"]["usage"]["output_tokens"]
    assert len(written) - len(ends) <= LANES, "beside these only those whose end was on its way"
