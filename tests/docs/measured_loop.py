"""What the chart of the readme shows: the loop of ``make demo``, over HTTP and over one socket, measured several times.

The numbers are kept in ``docs/pictures/agent-loop.json``; ``python -m tests.docs.pictures --measure 9`` measures them anew.
"""

import os
import platform
import secrets
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

from .source import REPO

KEPT: Final = REPO / "docs" / "pictures" / "agent-loop.json"
_PACKAGES: Final = ("ws-responses", "openai", "fastapi", "uvicorn", "websockets")


class Way(msgspec.Struct, frozen=True):
    """One way to make the loop's model calls.

    Attributes:
        ms: Time of each call, from the request to the end of the answer; the median of the rounds.
        sent: Bytes of each request.
    """

    ms: list[float]
    sent: list[int]


class Measured(msgspec.Struct, frozen=True):
    """The loop over both ways.

    Attributes:
        date: When, in UTC.
        machine: Where.
        versions: Of what took part.
        rounds: How often both ways ran, by turns; one more before these did not count.
        http: Each call sends the whole conversation.
        socket: Each call sends what is new.
    """

    date: str
    machine: str
    versions: dict[str, str]
    rounds: int
    http: Way
    socket: Way


def kept() -> Measured:
    """The numbers of the chart."""
    return msgspec.json.decode(KEPT.read_bytes(), type=Measured)


def measure(rounds: int) -> Measured:
    """Run the loop of the demo over both ways by turns."""
    import openai

    from ws_responses.demo import TASK
    from ws_responses.demo_loop import HttpTransport, Loop, SocketTransport, run_loop, serve

    os.environ.setdefault("OPENAI_API_KEY", secrets.token_hex(8))
    http: list[Loop] = []
    sockets: list[Loop] = []
    with serve("ws_responses.demo:server") as base_url:
        client = openai.OpenAI(base_url=base_url, max_retries=0)
        with client.responses.connect() as connection:
            for _ in range(rounds + 1):
                http.append(run_loop("HTTP", HttpTransport(client, TASK), lambda *_: None))
                sockets.append(run_loop("WebSocket", SocketTransport(connection, TASK), lambda *_: None))
    return Measured(
        date=datetime.now(UTC).date().isoformat(),
        machine=f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        versions={name: version(name) for name in _PACKAGES},
        rounds=rounds,
        http=_way([[(turn.total_s, turn.sent) for turn in loop.turns] for loop in http[1:]]),
        socket=_way([[(turn.total_s, turn.sent) for turn in loop.turns] for loop in sockets[1:]]),
    )


def keep(measured: Measured, file: Path = KEPT) -> None:
    """Write the numbers down."""
    file.write_bytes(msgspec.json.format(msgspec.json.encode(measured), indent=2) + b"\n")


def _way(rounds: list[list[tuple[float, int]]]) -> Way:
    calls = list(zip(*rounds, strict=True))
    times = [round(median(seconds for seconds, _ in call) * 1000, 2) for call in calls]
    return Way(times, [int(median(sent for _, sent in call)) for call in calls])
