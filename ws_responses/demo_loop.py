"""What the parts of the demo share: an agent loop with the official ``openai`` SDK, over HTTP and over a socket, and its cost."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

ENDS = ("response.completed", "response.incomplete")
"""Types of the events that end a model call that has not failed."""

_START_S = 60
_OUTPUT = (".delta", "output_item.added")
"""Ends of the types of events that show the first output."""


@dataclass(frozen=True)
class Task:
    """What the agent does.

    Attributes:
        model: Name of the model.
        instructions: For the model.
        tools: What it may call.
        question: The user's.
        calls: Tool calls of the loop.
        run_tool: Gives the output of a call.
        settings: Further members of each request, by the number of the call (0 is the first one).
    """

    model: str
    instructions: str
    tools: list[Any]
    question: str
    calls: int
    run_tool: Callable[[Any], str]
    settings: Callable[[int], Mapping[str, Any]]

    def request(self, call: int, **members: Any) -> dict[str, Any]:
        """Return the body of a model call."""
        common = {"model": self.model, "instructions": self.instructions, "tools": self.tools, "store": False}
        return {**common, **self.settings(call), **members}


@dataclass
class Turn:
    """What one model call cost.

    Attributes:
        sent: Bytes of the request.
        first_s: Time to the first output.
        total_s: Time to the end.
        prompt: Tokens of the prompt; None if there are none.
        cached: Of these, how many the model had computed before.
    """

    sent: int
    first_s: float
    total_s: float
    prompt: int | None = None
    cached: int | None = None


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

    task: Task

    def call(self, number: int, new_items: list[Any]) -> Iterator[Any]:
        """Send the new items; yield the events of the answer."""
        ...

    @property
    def sent(self) -> int:
        """Bytes of the last request."""
        ...


class HttpTransport:
    """Each call sends the whole conversation."""

    def __init__(self, client: Any, task: Task) -> None:
        self._client = client
        self._history: list[Any] = []
        self.task = task
        self.sent = 0

    def call(self, number: int, new_items: list[Any]) -> Iterator[Any]:
        """POST everything said so far."""
        self._history += new_items
        request = self.task.request(number, input=self._history, stream=True)
        self.sent = len(json.dumps(request, separators=(",", ":")))
        events: Any = self._client.responses.create(**request)
        for event in events:
            yield event
            if event.type in ENDS:
                self._history += [item.model_dump(exclude_none=True) for item in event.response.output]


class SocketTransport:
    """Each call sends the new items, on one socket."""

    def __init__(self, connection: Any, task: Task) -> None:
        self._connection = connection
        self._previous: str | None = None
        self.task = task
        self.sent = 0

    def warm_up(self) -> None:
        """Send what is known before the first question is."""
        for _ in self._send(self.task.request(0, input=[], generate=False)):
            pass

    def call(self, number: int, new_items: list[Any]) -> Iterator[Any]:
        """Send one frame."""
        yield from self._send(self.task.request(number, input=new_items, previous_response_id=self._previous))

    def _send(self, request: dict[str, Any]) -> Iterator[Any]:
        frame = {"type": "response.create", **request}
        self.sent = len(json.dumps(frame, separators=(",", ":")))
        self._connection.send(frame)
        for event in self._connection:
            yield event
            if event.type in ENDS:
                self._previous = event.response.id
                return


Watch = Callable[[Loop, str], None]
"""Told of each model call that has ended, and what came of it."""


def run_loop(name: str, transport: Transport, watch: Watch) -> Loop:
    """Run the agent: call the model, answer its tool calls, until it says something."""
    loop = Loop(name)
    items: list[Any] = [{"type": "message", "role": "user", "content": transport.task.question}]
    while items:
        begun = time.perf_counter()
        first: float | None = None
        answered: list[Any] = []
        said = ""
        usage: Any = None
        for event in transport.call(len(loop.turns), items):
            if first is None and event.type.endswith(_OUTPUT):
                first = time.perf_counter()
            if event.type in ("error", "response.failed"):
                failure = event.response.error if event.type == "response.failed" else event
                raise SystemExit(f"demo: {name}: the turn ended by {event.type}: {failure}")
            if event.type == "response.output_item.done" and event.item.type == "function_call":
                said = f"{event.item.name}({event.item.arguments})"
                output = transport.task.run_tool(event.item)
                answered.append({"type": "function_call_output", "call_id": event.item.call_id, "output": output})
            if event.type in ENDS:
                usage = event.response.usage
                said = said or event.response.output_text
        done = time.perf_counter()
        turn = Turn(transport.sent, (first or done) - begun, done - begun)
        if usage is not None:
            turn.prompt, turn.cached = usage.input_tokens, usage.input_tokens_details.cached_tokens
        loop.turns.append(turn)
        items = answered
        watch(loop, said)
    return loop


@contextlib.contextmanager
def serve(factory: str) -> Generator[str]:
    """Start an app under uvicorn in a process of its own; give its base URL.

    Args:
        factory: What makes the app: ``module:name``.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "uvicorn", "--factory", factory, "--port", str(port), "--host", "127.0.0.1"]
    command += ["--log-level", "warning", "--ws", "websockets-sansio"]
    process = subprocess.Popen(command)  # noqa: S603 - our own interpreter
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.terminate()
        process.wait(10)


def _wait_for(port: int, process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"demo: the server ended with status {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise SystemExit(f"demo: the server did not start within {_START_S} s")
