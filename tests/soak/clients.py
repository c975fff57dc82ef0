"""The clients of the soak: healthy ones, whose every turn must be right, and all the others."""

import asyncio
import base64
import contextlib
import json
import os
import random
import socket
import struct
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, WebSocketException

Event = dict[str, Any]

PATIENCE_S: Final = 30.0
"""What a healthy client waits for an event: far above all limits of the server, so only a loss can reach it."""

STAGGER_S: Final = 3.0
"""Time over which the clients come: all at once, they would measure how fast connections are made."""

TERMINAL: Final = {"response.completed", "response.failed", "response.incomplete", "error"}
TOOLS: Final = [{"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}]

CLOSINGS: Final[Mapping[str, tuple[str, str | None]]] = {
    "raises": ("error", "server_error"),
    "raises later": ("response.failed", "server_error"),
    "says nothing": ("error", "upstream_timeout"),
    "stalls": ("response.failed", "upstream_timeout"),
    "truncates": ("response.failed", "upstream_stream_truncated"),
    "never ends its body": ("response.failed", "upstream_stream_truncated"),
    "garbage": ("response.failed", "upstream_error"),
    "endless event": ("error", "upstream_event_too_large"),
    "429": ("error", "rate_limit_exceeded"),
    "markup": ("error", "server_error"),
    "no answer": ("error", "upstream_error"),
    "fails": ("response.failed", "rate_limit_exceeded"),
    "lingers": ("response.completed", None),
    "json": ("response.completed", None),
    "burst": ("response.completed", None),
}
"""The one closing event of a turn of each fault of the app, and its code."""

BAD_FRAMES: Final[Sequence[str | bytes]] = (
    "",
    "{",
    "[]",
    "null",
    '{"type":7}',
    '{"type":"response.cancel"}',
    '{"type":"response.append","input":[]}',
    '{"type":"response.create","model":7}',
    '{"type":"response.create","model":"m","stream_id":"no name"}',
    '{"type":"response.create","model":"m","previous_response_id":"resp_missing"}',
    '{"type":"response.create","model":"m","input":[{"type":"function_call_output","call_id":"c","output":""}]}',
    '{"type":"response.create","input":' + "[" * 100_000 + "]" * 100_000 + "}",
    '{"type":"response.create","input":"\\ud800"}',
    b"\xff\xfe\x00",
    b"\x00" * 1000,
)
"""Each is answered by exactly one error, and costs nothing else."""


@dataclass
class Tally:
    """What has happened so far.

    Attributes:
        turns: Turns of healthy clients that were right.
        sockets: Connections opened.
        faults: Faults met, by name.
        wrong: What should not have happened.
    """

    turns: int = 0
    sockets: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])


class Wrong(Exception):
    """A healthy client was served wrongly."""


class Peer:
    """One client of a kind.

    Args:
        port: Of the server.
        number: Names it, and seeds what it does.
        tally: Where it notes what it met.
        over: Set when it is to end.
    """

    def __init__(self, port: int, number: int, tally: Tally, over: asyncio.Event) -> None:
        self.port = port
        self.tally = tally
        self.over = over
        self.random = random.Random(number)
        self.name = f"client-{number}"

    def open(self) -> connect:
        """Return a connection that is to be entered."""
        self.tally.sockets += 1
        key = f"Bearer key-{self.random.randrange(20)}"
        return connect(
            f"ws://127.0.0.1:{self.port}/v1/responses",
            additional_headers={"authorization": key},
            compression=None,
            max_size=None,
            max_queue=4,
            ping_interval=None,
            open_timeout=PATIENCE_S,
            close_timeout=5,
            proxy=None,
        )

    def create(self, fault: str | None = None, **members: Any) -> str:
        """Return a create frame."""
        if fault is not None:
            members["metadata"] = {"fault": fault}
        return json.dumps({"type": "response.create", "model": "m", "input": "hi", **members})

    async def collect(self, ws: ClientConnection) -> list[Event]:
        """Return the events of a turn of the default lane, its closing event last."""
        events: list[Event] = []
        while not events or events[-1]["type"] not in TERMINAL:
            async with asyncio.timeout(PATIENCE_S):
                events.append(json.loads(await ws.recv()))
        return events

    async def check(self, ws: ClientConnection) -> None:
        """Take one turn that must be right, with a parent of nobody."""
        await ws.send(self.create(input=[{"role": "user", "content": f"{self.name} checks"}]))
        expect(text_of(await self.collect(ws)), f"1 items of {self.name}")
        self.tally.turns += 1


def expect(got: object, wanted: object) -> None:
    """Complain if they differ."""
    if got != wanted:
        raise Wrong(f"expected {wanted!r}, got {got!r}")


def text_of(events: Sequence[Event]) -> str:
    """Return the text of a completed turn, as its deltas had it and as its closing event has it."""
    last = events[-1]
    if last["type"] != "response.completed":
        raise Wrong(f"a turn ended by {json.dumps(last)[:300]}")
    numbers = [event["sequence_number"] for event in events]
    expect(numbers, list(range(len(events))))
    told = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    kept = "".join(
        part["text"] for item in last["response"]["output"] if item["type"] == "message" for part in item["content"]
    )
    expect(told, kept)
    return told


# -- healthy ---------------------------------------------------------------------------------------------------------------


async def healthy(peer: Peer) -> None:
    """Talk in chains, with tool calls; every answer says how much of the chain has come, and whose it was."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            for _ in range(peer.random.randint(1, 3)):
                if peer.over.is_set():
                    return
                await _chain(peer, ws, peer.random.randint(1, 12))


async def _chain(peer: Peer, ws: ClientConnection, rounds: int) -> None:
    store = peer.random.random() < 0.5
    last: str | None = None
    count = 0
    for number in range(rounds):
        if peer.over.is_set():
            return
        said = {"role": "user", "content": f"{peer.name} says {number} {'y' * peer.random.randrange(2000)}"}
        call, last = await _call(peer, ws, [said], last, store=store)
        count += 2
        answer = {"type": "function_call_output", "call_id": call["call_id"], "output": str(number)}
        members: Event = {"input": [answer], "tools": TOOLS, "store": store, "previous_response_id": last}
        await ws.send(peer.create(**members))
        events = await peer.collect(ws)
        count += 1
        expect(text_of(events), f"{count} items of {peer.name}")
        last = events[-1]["response"]["id"]
        count += 1
        peer.tally.turns += 2


async def _call(
    peer: Peer, ws: ClientConnection, items: list[Event], parent: str | None, *, store: bool
) -> tuple[Event, str]:
    await ws.send(peer.create(input=items, tools=TOOLS, store=store, previous_response_id=parent))
    events = await peer.collect(ws)
    text_of(events)
    response = events[-1]["response"]
    (call,) = response["output"]
    expect(call["type"], "function_call")
    return call, response["id"]


async def lanes(peer: Peer) -> None:
    """Run several lanes on one socket, one of them with an app that fails; the others must not notice."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            for _ in range(5):
                if peer.over.is_set():
                    return
                names = ["a", "b", "c", "bad"]
                fault = peer.random.choice(list(CLOSINGS))
                for name in names:
                    item = {"role": "user", "content": f"{peer.name} on {name}"}
                    await ws.send(peer.create(fault if name == "bad" else None, stream_id=name, input=[item]))
                events: dict[str, list[Event]] = {name: [] for name in names}
                while any(not got or got[-1]["type"] not in TERMINAL for got in events.values()):
                    async with asyncio.timeout(PATIENCE_S):
                        event = json.loads(await ws.recv())
                    events[event["stream_id"]].append(event)
                for name in names[:3]:
                    expect(text_of(events[name]), f"1 items of {peer.name}")
                    peer.tally.turns += 1
                _judge(peer, fault, events["bad"])


async def patient(peer: Peer) -> None:
    """Meet each fault of the app: one closing event each, and the socket goes on."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            for fault in peer.random.sample(list(CLOSINGS), k=5):
                if peer.over.is_set():
                    return
                await ws.send(peer.create(fault))
                _judge(peer, fault, await peer.collect(ws))
                await peer.check(ws)


def _judge(peer: Peer, fault: str, events: Sequence[Event]) -> None:
    last = events[-1]
    error = last.get("error") or last.get("response", {}).get("error") or {}
    expect((fault, last["type"], error.get("code")), (fault, *CLOSINGS[fault]))
    peer.tally.faults[f"app {fault}"] += 1


async def clumsy(peer: Peer) -> None:
    """Send bad frames, each of which must be answered by one error; then all is well."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            for frame in peer.random.sample(BAD_FRAMES, k=8):
                await ws.send(frame)
                (event,) = await peer.collect(ws)
                expect((event["type"], event["status"]), ("error", 400))
                peer.tally.faults["client sends a bad frame"] += 1
            await peer.check(ws)


async def pushy(peer: Peer) -> None:
    """Send more creates than may wait: the excess is refused, the others are served in order."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            count = 100
            reader = asyncio.create_task(_endings(peer, ws, count))
            for _ in range(count):
                await ws.send(peer.create())
            endings = await reader
            codes = Counter(event.get("error", {}).get("code", "served") for event in endings)
            if codes.keys() - {"served", "websocket_queue_full"} or codes["served"] < 65:
                raise Wrong(f"of {count} creates: {dict(codes)}")
            peer.tally.faults["client sends too many creates"] += 1


async def _endings(peer: Peer, ws: ClientConnection, count: int) -> list[Event]:
    return [(await peer.collect(ws))[-1] for _ in range(count)]


# -- the others ------------------------------------------------------------------------------------------------------------


async def leaver(peer: Peer) -> None:
    """Leave in the middle: by a close, by an abort, with or without turns that wait."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            fault = peer.random.choice([None, "stalls", "says nothing", "burst", "lingers"])
            for _ in range(peer.random.randint(1, 3)):
                await ws.send(peer.create(fault))
            for _ in range(peer.random.randrange(6)):
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(ws.recv(), 0.2)
            if peer.random.random() < 0.5:
                ws.transport.abort()
                peer.tally.faults["client aborts"] += 1
            else:
                peer.tally.faults["client closes"] += 1


async def silent_reader(peer: Peer) -> None:
    """Ask for a lot and read nothing, until the server has enough."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            for lane in range(8):
                await ws.send(peer.create("burst", stream_id=f"lane-{lane}"))
            await _wait(peer.over, 6)
            peer.tally.faults["client stops reading"] += 1
            ws.transport.abort()


async def flooder(peer: Peer) -> None:
    """Send what is answered by errors, and read none of them."""
    while not peer.over.is_set():
        async with peer.open() as ws:
            frame = peer.random.choice(["x" * 100, peer.create(stream_id="no name"), '{"type":"response.cancel"}'])
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(3):
                    for _ in range(20_000):
                        await ws.send(frame)
            peer.tally.faults["client floods"] += 1
            ws.transport.abort()


async def breaker(peer: Peer) -> None:
    """Break the rules below: half handshakes, resets, unmasked, oversized and reserved frames."""
    frames: Mapping[str, bytes] = {
        "half a handshake": b"",
        "a reset": b"",
        "an unmasked frame": b"\x81\x02hi",
        "a reserved opcode": _frame(0x83, b"hi"),
        "a continuation of nothing": _frame(0x80, b"hi"),
        "a huge control frame": _frame(0x89, b"x" * 200),
        "bad UTF-8": _frame(0x81, b"\xff\xff"),
        "too big a frame": _frame(0x81, b"x" * (1 << 20) + b"x"),
        "an announced frame that never comes": b"\x81\xff" + struct.pack("!Q", 1 << 19) + os.urandom(4),
        "a bad close code": _frame(0x88, struct.pack("!H", 1005)),
    }
    while not peer.over.is_set():
        what = peer.random.choice(list(frames))
        peer.tally.sockets += 1
        peer.tally.faults[f"client sends {what}"] += 1
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.port)
        try:
            handshake = _handshake(peer.port)
            writer.write(handshake[:-10] if what == "half a handshake" else handshake)
            if what != "half a handshake":
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PATIENCE_S)
            if what == "a reset":
                linger = struct.pack("ii", 1, 0)
                writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.write(frames[what])
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(reader.read(1000), 0.3)
        finally:
            writer.transport.abort()


def _handshake(port: int) -> bytes:
    key = base64.b64encode(os.urandom(16)).decode()
    return (
        f"GET /v1/responses HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n\r\n"
    ).encode()


def _frame(first: int, payload: bytes) -> bytes:
    """Return a masked frame; the mask is zero, which changes nothing."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + bytes(4) + payload


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)


Kind = Callable[[Peer], Awaitable[None]]

GOOD: Final[Mapping[Kind, int]] = {healthy: 100, lanes: 16, patient: 40, clumsy: 8, pushy: 3}
"""How many of each run at once: whatever goes wrong with one of these fails the soak."""

BAD: Final[Mapping[Kind, int]] = {leaver: 30, silent_reader: 4, flooder: 3, breaker: 12}
"""These may be cut off at any time; they only must not harm the others."""


async def run_good(kind: Kind, peer: Peer) -> None:
    """Run a client that must be served; note what goes wrong."""
    await _wait(peer.over, peer.random.random() * STAGGER_S)
    try:
        await kind(peer)
    except (Wrong, WebSocketException, OSError, TimeoutError) as error:
        peer.tally.wrong.append(f"{kind.__name__}: {type(error).__name__}: {error}"[:500])


async def run_bad(kind: Kind, peer: Peer) -> None:
    """Run a client that may be cut off, again and again."""
    await _wait(peer.over, peer.random.random() * STAGGER_S)
    while not peer.over.is_set():
        try:
            await kind(peer)
        except (ConnectionClosed, InvalidHandshake, OSError, TimeoutError, asyncio.IncompleteReadError):
            peer.tally.faults["client is cut off"] += 1
