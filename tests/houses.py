"""A wrapped app and an engine that answer as a test says: what the tests of steering and of cancelling share."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import anyio
from openai.types.responses import ResponsesServerEvent
from pydantic import TypeAdapter

from tests.shell import KEY, Client, StoppableClock, frames_of, kinds
from ws_responses import ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.backends import Accepts, Delta, ToolCallDelta
from ws_responses.testing import MemorySocket, ScriptedApp, settle, steps
from ws_responses.testing.backends import ScriptedBackend

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}
SDK: TypeAdapter[Any] = TypeAdapter(ResponsesServerEvent)

Part = tuple[str, str]
"""What kind of item, and its text."""


Kind = Literal["app", "engine"]
KINDS: tuple[Kind, ...] = ("app", "engine")


class House:
    """A wrapped app, or an engine, whose responses can be steered and whose answers the test says beforehand."""

    def __init__(self, kind: Kind, **options: Any) -> None:
        self.kind = kind
        self.clock = StoppableClock()
        self.app = ScriptedApp(listen=True)
        self.go = anyio.Event()
        self.backend = ScriptedBackend(accepts=Accepts(kinds=frozenset({"chat"})))
        options = {"clock": self.clock, **options}
        self.served: ASGIApp
        if kind == "app":
            options = {"steering": "interrupt", **options}
            self.middleware = ResponsesWebSocketMiddleware(self.app, **options)
            self.served = self.middleware
        else:
            served = ResponsesApp(ResponsesEngine(self.backend), **{"authorize": "open", **options})
            self.middleware, self.served = served.middleware, served

    def socket(self) -> Client:
        client = Client(self.served, headers=(KEY,))
        client.clock = self.clock
        return client

    def go_on(self) -> None:
        """Let the answers end that wait."""
        self.go.set()
        self.go = anyio.Event()
        self.backend.release()

    @property
    def ran(self) -> int:
        return len(self.app.requests if self.kind == "app" else self.backend.generations)

    @property
    def running(self) -> int:
        return self.app.running if self.kind == "app" else self.backend.running

    def told(self, index: int) -> str:
        """What the app, or the backend, was told of the conversation, as JSON."""
        if self.kind == "app":
            return json.dumps(self.app.requests[index].body)
        prompt = self.backend.generations[index].prompt
        return prompt.rendered.json_array().decode()

    def say(self, text: str, *, then_wait: bool = False) -> None:
        """Answer the next turn by a text, and wait before its end."""
        if self.kind == "app":
            self.app.script([steps.text(text), *([steps.wait_for(self.go)] if then_wait else [])])
        else:
            self.backend.will_answer([Delta(text=text), Delta(finish="stop")], hold_after=1 if then_wait else None)

    def say_items(self, *parts: Part, hold_after: int | None = None) -> None:
        """Answer the next turn by these items; wait for ``go_on`` after so many of them."""
        if self.kind == "app":
            built = [_step(*part) for part in parts]
            script = [steps.created(), *built]
            if hold_after is not None:
                script.insert(hold_after + 1, steps.wait_for(self.go))
            if hold_after is not None and hold_after < len(parts):
                script.append(steps.stall())
            self.app.script(script)
            return
        deltas = [_delta(*part) for part in parts]
        self.backend.will_answer([*deltas, Delta(finish="stop")], hold_after=hold_after)


def _step(kind: str, text: str) -> Any:
    if kind == "call":
        return steps.tool_call("look", {}, call_id=text)
    return steps.reasoning(text) if kind == "reasoning" else steps.text(text)


def _delta(kind: str, text: str) -> Delta:
    if kind == "call":
        return Delta(tool_calls=(ToolCallDelta(index=0, id=text, name="look", arguments="{}"),))
    return Delta(reasoning=text) if kind == "reasoning" else Delta(text=text)


def steer(target: str, given: Any = "Stop.", **more: Any) -> dict[str, Any]:
    return {"type": "response.steer", "previous_response_id": target, "input": given, **more}


async def begun(ws: MemorySocket, nth: int = 1, **lane: Any) -> str:
    """Wait until a response has begun; return its id."""
    while True:
        await settle()
        ids = [f["response"]["id"] for f in frames_of(ws) if f["type"] == "response.created" and _is_of(f, **lane)]
        if len(ids) >= nth:
            return str(ids[nth - 1])


def _is_of(frame: Mapping[str, Any], **lane: Any) -> bool:
    return all(frame.get(name) == value for name, value in lane.items())


async def until(ws: MemorySocket, *wanted: str) -> list[dict[str, Any]]:
    """Read until the last events are of these types."""
    events: list[dict[str, Any]] = []
    while [event["type"].removeprefix("response.") for event in events[-len(wanted) :]] != list(wanted):
        events.append(await ws.receive_json())
    return events


def items_of(body: Mapping[str, Any]) -> list[Any]:
    """The input of an inner body, a string as the message that it stands for."""
    given = body["input"]
    return given if isinstance(given, list) else [{"role": "user", "content": given}]


def of_steers(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event for event in events if event["type"].startswith("response.steer")]


def life(events: Sequence[Mapping[str, Any]]) -> list[str]:
    """The types of all events but those of items."""
    some = ("created", "completed", "incomplete", "failed", "error", "steer.accepted", "steer.pending", "steer.failed")
    return [kind for kind in kinds(events) if kind in some]


def check_numbers(events: Sequence[Mapping[str, Any]]) -> None:
    """The numbers of each response go up by one, its steers' events included."""
    expected = 0
    for event in events:
        expected = 0 if event["type"] == "response.created" else expected
        assert event["sequence_number"] == expected, event
        expected += 1
