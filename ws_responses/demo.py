"""``python -m ws_responses demo``: one agent loop, over HTTP and over a WebSocket, against the same app.

The app below is plain FastAPI and knows nothing of sockets. The client is the official ``openai`` SDK. Everything runs on this
machine, with a scripted model; needs the packages fastapi, uvicorn, websockets and openai (extra ``dev``).
"""

import contextlib
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any, Protocol

from ws_responses import ResponsesWebSocketMiddleware

if TYPE_CHECKING:
    from openai.types.responses import ResponseStreamEvent

    from ws_responses._types import ASGIApp

TOOL_CALLS = 20
MODEL = "scripted"
INSTRUCTIONS = "You are a careful engineer. " * 120
TASK = "Find out why the tests of this project are slow."
TOOLS: Any = [
    {
        "type": "function",
        "name": "shell",
        "description": "Runs a command and returns what it printed. " * 12,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "array", "items": {"type": "string"}}},
            "required": ["command"],
            "additionalProperties": False,
        },
        "strict": True,
    }
]
TOOL_OUTPUT = "".join(f"tests/test_{n:03}.py::test_case PASSED [{n}%]\n" for n in range(60))


def server() -> "ASGIApp":
    """Return the app: a handler for HTTP, and the one line that adds WebSocket mode."""
    from fastapi import FastAPI
    from fastapi.responses import StreamingResponse

    from ws_responses.testing.model import ScriptedModel

    api = FastAPI()
    model = ScriptedModel(tool_calls=TOOL_CALLS)

    @api.post("/v1/responses")
    async def create_response(body: dict[str, Any]) -> StreamingResponse:
        lines = (f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in model.events(body))
        return StreamingResponse(lines, media_type="text/event-stream")

    return ResponsesWebSocketMiddleware(api)


@dataclass
class Turn:
    """What one model call cost."""

    sent: int
    first_event_s: float
    total_s: float


@dataclass
class Loop:
    """One run of the agent loop."""

    name: str
    turns: list[Turn] = field(default_factory=list[Turn])

    @property
    def sent(self) -> int:
        """Bytes of all requests."""
        return sum(turn.sent for turn in self.turns)

    @property
    def total_s(self) -> float:
        """Time of all model calls."""
        return sum(turn.total_s for turn in self.turns)


class Transport(Protocol):
    """One way to make a model call."""

    def call(self, new_items: list[Any]) -> "Iterator[ResponseStreamEvent]":
        """Send the new items; yield the events of the answer."""
        ...

    @property
    def sent(self) -> int:
        """Bytes of the last request."""
        ...


class HttpTransport:
    """Each call sends the whole conversation."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._history: list[Any] = []
        self.sent = 0

    def call(self, new_items: list[Any]) -> "Iterator[ResponseStreamEvent]":
        """POST everything said so far."""
        self._history += new_items
        request: dict[str, Any] = {
            "model": MODEL,
            "instructions": INSTRUCTIONS,
            "tools": TOOLS,
            "input": self._history,
            "store": False,
            "stream": True,
        }
        self.sent = len(json.dumps(request, separators=(",", ":")))
        events: Any = self._client.responses.create(**request)
        for event in events:
            yield event
            if event.type == "response.completed":
                self._history += [item.model_dump(exclude_none=True) for item in event.response.output]


class SocketTransport:
    """Each call sends the new items, on one socket."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self._previous: str | None = None
        self.sent = 0

    def call(self, new_items: list[Any]) -> "Iterator[ResponseStreamEvent]":
        """Send one frame."""
        frame: dict[str, Any] = {
            "type": "response.create",
            "model": MODEL,
            "instructions": INSTRUCTIONS,
            "tools": TOOLS,
            "input": new_items,
            "store": False,
            "previous_response_id": self._previous,
        }
        self.sent = len(json.dumps(frame, separators=(",", ":")))
        self._connection.send(frame)
        for event in self._connection:
            yield event
            if event.type == "response.completed":
                self._previous = event.response.id
                return


def run_loop(name: str, transport: Transport) -> Loop:
    """Run the agent: call the model, answer its tool calls, until it says something."""
    loop = Loop(name)
    items: list[Any] = [{"type": "message", "role": "user", "content": TASK}]
    while items:
        begun = time.perf_counter()
        first: float | None = None
        answered: list[Any] = []
        for event in transport.call(items):
            first = first or time.perf_counter()
            if event.type in ("error", "response.failed", "response.incomplete"):
                raise SystemExit(f"demo: {name}: the turn ended by {event.type}: {event}")
            if event.type == "response.output_item.done" and event.item.type == "function_call":
                output = {"type": "function_call_output", "call_id": event.item.call_id, "output": TOOL_OUTPUT}
                answered.append(output)
        done = time.perf_counter()
        loop.turns.append(Turn(transport.sent, (first or done) - begun, done - begun))
        items = answered
        _progress(loop)
    return loop


def _progress(loop: Loop) -> None:
    count = len(loop.turns)
    last = count > TOOL_CALLS
    if not (last or sys.stdout.isatty()):
        return  # in a log file one line per loop is enough
    bar = "#" * count + "." * (TOOL_CALLS + 1 - count)
    sums = f"{loop.sent / 1000:7.1f} kB sent, {loop.total_s * 1000:7.1f} ms"
    start = "\r" if sys.stdout.isatty() else ""
    print(f"{start}{loop.name:<10} [{bar}] call {count:>2}, {sums}", end="\n" if last else "", flush=True)


@contextlib.contextmanager
def serve() -> Generator[str]:
    """Start the app under uvicorn in a process of its own; give its base URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--factory", "ws_responses.demo:server", "--port", str(port)]
    command += ["--host", "127.0.0.1", "--log-level", "warning", "--ws", "websockets-sansio"]
    process = subprocess.Popen(command)
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"demo: the server ended with status {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise SystemExit("demo: the server did not start within 30 s")


def report(http: Loop, ws: Loop) -> None:
    """Print both loops side by side."""
    print(f"\n{'':6}{'bytes sent':^22}{'first event, ms':^22}{'total, ms':^22}")
    print(f"{'call':>4}  {'HTTP':>10}{'socket':>10}  {'HTTP':>10}{'socket':>10}  {'HTTP':>10}{'socket':>10}")
    for number, (h, w) in enumerate(zip(http.turns, ws.turns, strict=True), 1):
        print(
            f"{number:>4}  {h.sent:>10,}{w.sent:>10,}  {h.first_event_s * 1e3:>10.2f}{w.first_event_s * 1e3:>10.2f}"
            f"  {h.total_s * 1e3:>10.2f}{w.total_s * 1e3:>10.2f}"
        )
    first = [median(turn.first_event_s for turn in loop.turns) * 1e3 for loop in (http, ws)]
    print(
        f"{'all':>4}  {http.sent:>10,}{ws.sent:>10,}  {first[0]:>10.2f}{first[1]:>10.2f}"
        f"  {http.total_s * 1e3:>10.2f}{ws.total_s * 1e3:>10.2f}    (first event: median)"
    )
    print(
        f"\nThe same app, the same {len(ws.turns)} model calls ({TOOL_CALLS} tool calls): the socket sent "
        f"{http.sent / ws.sent:.1f} times fewer bytes. Loopback and an instant model hide what a network and a real one add."
    )


def main() -> None:
    """Run the demo."""
    for package in ("fastapi", "uvicorn", "websockets", "openai"):
        if importlib.util.find_spec(package) is None:
            raise SystemExit(f"demo: needs the package {package}; install ws-responses[dev], or run `make demo`")
    import openai

    os.environ.setdefault("OPENAI_API_KEY", secrets.token_hex(8))
    print(f"One agent loop of {TOOL_CALLS} tool calls, with the openai SDK {openai.__version__} on this machine:\n")
    with serve() as base_url:
        client = openai.OpenAI(base_url=base_url, max_retries=0)
        with client.responses.connect() as connection:
            # The SDK builds its types at the first use of each way; that is not what is compared here.
            run_loop("(warm-up)", HttpTransport(client))
            run_loop("(warm-up)", SocketTransport(connection))
            http = run_loop("HTTP", HttpTransport(client))
            ws = run_loop("WebSocket", SocketTransport(connection))
    report(http, ws)
