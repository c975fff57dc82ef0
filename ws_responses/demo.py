"""``python -m ws_responses demo``: one agent loop, over HTTP and over a WebSocket, against the same app.

The first part runs on a script: the app below is plain FastAPI and knows nothing of sockets. The second part runs on a real
model, if its packages are there. The client is the official ``openai`` SDK. Everything runs on this machine; needs the packages
fastapi, uvicorn, websockets and openai (extra ``dev``).
"""

import argparse
import importlib.util
import json
import os
import secrets
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ws_responses import ResponsesWebSocketMiddleware, demo_local
from ws_responses.demo_loop import HttpTransport, Loop, SocketTransport, Task, run_loop, serve
from ws_responses.demo_report import FIRST, SENT, TOTAL, table

if TYPE_CHECKING:
    from ws_responses._types import ASGIApp

TOOL_CALLS = 20
PACKAGES = ("fastapi", "uvicorn", "websockets", "openai")
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
TASK = Task(
    model="scripted",
    instructions="You are a careful engineer. " * 120,
    tools=TOOLS,
    question="Find out why the tests of this project are slow.",
    calls=TOOL_CALLS,
    run_tool=lambda _: TOOL_OUTPUT,
    settings=lambda _: {},
)


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


def run_scripted() -> None:
    """Run the loops on a script and print what they cost."""
    import openai

    print(f"One agent loop of {TOOL_CALLS} tool calls, with the openai SDK {openai.__version__} on this machine:\n")
    with serve("ws_responses.demo:server") as base_url:
        client = openai.OpenAI(base_url=base_url, max_retries=0)
        with client.responses.connect() as connection:
            # The SDK builds its types at the first use of each way; that is not what is compared here.
            run_loop("(warm-up)", HttpTransport(client, TASK), _watch)
            run_loop("(warm-up)", SocketTransport(connection, TASK), _watch)
            http = run_loop("HTTP", HttpTransport(client, TASK), _watch)
            ws = run_loop("WebSocket", SocketTransport(connection, TASK), _watch)
    print()
    print("\n".join(table(http, ws, (SENT, FIRST, TOTAL))))
    print(
        f"\nThe same app, the same {len(ws.turns)} model calls ({TOOL_CALLS} tool calls): the socket sent "
        f"{http.sent / ws.sent:.1f} times fewer bytes. Loopback and an instant model hide what a network and a real one add."
    )


def _watch(loop: Loop, _: str) -> None:
    count = len(loop.turns)
    last = count > TOOL_CALLS
    if not (last or sys.stdout.isatty()):
        return  # in a log file one line per loop is enough
    bar = "#" * count + "." * (TOOL_CALLS + 1 - count)
    sums = f"{loop.sent / 1000:7.1f} kB sent, {loop.total_s * 1000:7.1f} ms"
    start = "\r" if sys.stdout.isatty() else ""
    print(f"{start}{loop.name:<10} [{bar}] call {count:>2}, {sums}", end="\n" if last else "", flush=True)


def main(arguments: Sequence[str] = ()) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(prog="python -m ws_responses demo", description="An agent loop, side by side.")
    parser.add_argument("--scripted", action="store_true", help="leave out the part with a real model")
    options = parser.parse_args(arguments)
    for package in PACKAGES:
        if importlib.util.find_spec(package) is None:
            raise SystemExit(f"demo: needs the package {package}; install ws-responses[dev], or run `make demo`")
    os.environ.setdefault("OPENAI_API_KEY", secrets.token_hex(8))
    run_scripted()
    if options.scripted:
        return
    missing = demo_local.missing()
    if missing:
        print(f"\nA second part runs on a real model; it needs {', '.join(missing)}: {demo_local.INSTALL}")
        return
    demo_local.run()
