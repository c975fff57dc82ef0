"""What the tests of the rooms share: a wrapped app and an engine that are told what to say, books, and POSTs that can be left."""

import json
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

import anyio
from anyio.abc import TaskGroup

from tests.shell import KEY, Client, StoppableClock, create
from ws_responses import Limits, ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Message
from ws_responses.backends import Accepts, Delta, Usage
from ws_responses.settlement import Settlement, TurnRecord
from ws_responses.testing import MemorySocket, ScriptedApp, settle, steps
from ws_responses.testing.backends import ScriptedBackend

Kind: TypeAlias = Literal["app", "engine"]
Way: TypeAlias = Literal["socket", "stream", "json"]

KINDS: tuple[Kind, ...] = ("app", "engine")
WAYS: tuple[Way, ...] = ("socket", "stream", "json")

USAGE = Usage(input_tokens=5, cached_tokens=2, output_tokens=3, reasoning_tokens=1)


class Books:
    """A settlement hook that keeps what it is given; it waits for ``gate`` and does ``fault`` first, if these are set."""

    def __init__(self) -> None:
        self.records: list[TurnRecord] = []
        self.tries: list[str] = []
        self.lost: list[TurnRecord] = []
        self.gate: anyio.Event | None = None
        self.fault: Callable[[TurnRecord], Exception | None] = lambda _: None

    async def __call__(self, record: TurnRecord) -> None:
        self.tries.append(record.turn_id)
        if self.gate is not None:
            await self.gate.wait()
        error = self.fault(record)
        if error is not None:
            raise error
        self.records.append(record)

    def settlement(self, **options: Any) -> Settlement:
        """Return the option for these books."""
        return Settlement(self, on_undelivered=lambda record, _: self.lost.append(record), **options)

    @property
    def outcomes(self) -> list[str]:
        """How the turns ended, in the order of their delivery."""
        return [record.outcome for record in self.records]


class House:
    """An app of either kind behind the middleware, whose answers the test says beforehand.

    Args:
        kind: "app" is a wrapped app, "engine" a ``ResponsesApp``.
        limits: Those that are not the default.
        options: Of the middleware.

    Attributes:
        clock: Of all time limits.
        served: What a server would serve.
        app: The wrapped app.
        backend: The engine's.
    """

    def __init__(self, kind: Kind, *, limits: dict[str, Any] | None = None, **options: Any) -> None:
        self.kind = kind
        self.clock = StoppableClock()
        self.app = ScriptedApp(listen=True)
        self._go = anyio.Event()
        self.backend = ScriptedBackend(accepts=Accepts(kinds=frozenset({"chat"})))
        shared: dict[str, Any] = {"clock": self.clock, "limits": Limits(**(limits or {})), **options}
        self.served: ASGIApp
        if kind == "app":
            self.middleware = ResponsesWebSocketMiddleware(self.app, **shared)
            self.served = self.middleware
        else:
            served = ResponsesApp(ResponsesEngine(self.backend), authorize="open", **shared)
            self.middleware, self.served = served.middleware, served

    # -- what it says --------------------------------------------------------------------------------------------------

    def say(self, text: str, *, pieces: int = 1, then_wait: bool = False) -> None:
        """Answer the next turn by a text in so many pieces; with ``then_wait`` its end waits for :meth:`go_on`."""
        if self.kind == "app":
            self.app.script([steps.text(text, deltas=pieces), *([steps.wait_for(self._go)] if then_wait else [])])
            return
        size = -(-len(text) // pieces)
        deltas = [Delta(text=text[at : at + size]) for at in range(0, len(text), size)]
        end = Delta(finish="stop", usage=USAGE)
        self.backend.will_answer([*deltas, end], hold_after=len(deltas) if then_wait else None)

    def go_on(self) -> None:
        """Let the answers end that wait."""
        self._go.set()
        self._go = anyio.Event()
        self.backend.release()

    @property
    def ran(self) -> int:
        """How many turns have reached the app, or the backend."""
        return len(self.app.requests if self.kind == "app" else self.backend.generations)

    async def wait_ran(self, count: int) -> None:
        """Wait until so many have."""
        if self.kind == "app":
            await self.app.wait_requests(count)
        else:
            await self.backend.wait_until(lambda: self.ran >= count)

    def told(self, index: int) -> str:
        """What the app, or the backend, was told of the conversation, as JSON."""
        if self.kind == "app":
            return json.dumps(self.app.requests[index].body)
        return self.backend.generations[index].prompt.rendered.json_array().decode()

    def was_stopped(self, index: int) -> bool:
        """Whether a turn was ended before its time."""
        if self.kind == "app":
            return self.app.requests[index].outcome in ("disconnected", "cancelled")
        return self.backend.generations[index].outcome == "abandoned"

    @property
    def running(self) -> int:
        """Calls that run now."""
        return self.app.running if self.kind == "app" else self.backend.running

    # -- clients -------------------------------------------------------------------------------------------------------

    def socket(self, *headers: tuple[bytes, bytes], **options: Any) -> Client:
        """Return a client that is known by a key."""
        client = Client(self.served, headers=headers or (KEY,), **options)
        client.clock = self.clock
        return client

    async def ask(self, way: Way, text: Any = "hi", **fields: Any) -> "Heard":
        """Ask in one of the three ways; return all that came."""
        if way == "socket":
            async with self.socket() as ws:
                events = await ws.turn(create(text, **fields))
            return Heard([str(frame) for frame in ws.frames], events)
        async with self.post(text, stream=way == "stream", **fields) as post:
            await post.answered()
        return post.heard()

    def post(self, text: Any = "hi", **fields: Any) -> "Post":
        """Return a POST of the same client."""
        return Post(self.served, {"model": "m", "input": text, **fields})


class Heard:
    """All that a client was sent in answer to a turn.

    Attributes:
        frames: As it came, whatever it was.
        events: Events; the JSON answer of a POST counts as the closing one.
        status: Of the HTTP answer, or of an error frame; 200 for all else.
    """

    def __init__(self, frames: list[str], events: list[dict[str, Any]], status: int | None = None) -> None:
        self.frames = frames
        self.events = events
        self.status: int = events[-1].get("status", 200) if status is None else status

    @property
    def response(self) -> dict[str, Any]:
        """The response object of the closing event."""
        response: dict[str, Any] = self.events[-1]["response"]
        return response

    @property
    def code(self) -> str | None:
        """Code of the error that it ended by."""
        last = self.events[-1]
        error = last.get("error") or (last.get("response") or {}).get("error") or {}
        code: str | None = error.get("code")
        return code

    @property
    def streamed(self) -> str:
        """The text of all deltas."""
        return "".join(event["delta"] for event in self.events if event["type"].endswith("output_text.delta"))

    @property
    def text(self) -> str:
        """The text of the closing event's messages."""
        return said(self.response)


def said(response: dict[str, Any]) -> str:
    """The text of a response's messages."""
    messages = [item for item in response["output"] if item["type"] == "message"]
    return "".join(part["text"] for item in messages for part in item["content"])


class Post:
    """A POST on its way, as a server makes it: the client may leave, or look at what has come so far.

    Args:
        app: What is served.
        body: JSON.
        headers: Of the request.
        path: Of the request.
        method: Of the request.

    Attributes:
        status: Of the answer; 0 before it begins.
        headers: Of the answer, by lower-case name.
        body: Of the answer, as far as it has come.
        complete: The answer has ended.
        returned: The app's call has ended.
    """

    def __init__(
        self,
        app: ASGIApp,
        body: dict[str, Any] | bytes,
        *,
        headers: Sequence[tuple[bytes, bytes]] = (KEY,),
        path: str = "/v1/responses",
        method: str = "POST",
    ) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.complete = anyio.Event()
        self.returned = False
        self._app = app
        self._gone = anyio.Event()
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self._incoming: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]
        self._scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": b"",
            "headers": [(b"content-type", b"application/json"), *headers],
            "http_version": "1.1",
            "scheme": "http",
        }
        self._tasks: TaskGroup

    async def __aenter__(self) -> Self:
        self._tasks = await anyio.create_task_group().__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(kind, error, traceback)

    async def _run(self) -> None:
        await self._app(self._scope, self._receive, self._send)
        self.returned = True
        self.complete.set()

    async def _receive(self) -> Message:
        if self._incoming:
            return self._incoming.pop()
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode().lower(): value.decode() for name, value in message.get("headers", ())}
            return
        self.body += message.get("body", b"")
        if not message.get("more_body"):
            self.complete.set()

    def leave(self) -> None:
        """Go, as a client does that was cut off."""
        self._gone.set()

    async def answered(self) -> None:
        """Wait for the end of the answer."""
        with anyio.fail_after(10):
            await self.complete.wait()

    def heard(self) -> Heard:
        """Return what has come."""
        text = self.body.decode()
        if not self.headers["content-type"].startswith("text/event-stream"):
            answer = json.loads(text)
            closing = {"type": "error", **answer} if "error" in answer and "output" not in answer else None
            return Heard(
                [text], [closing or {"type": f"response.{answer.get('status')}", "response": answer}], self.status
            )
        frames = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith("data: ")]
        return Heard(frames, [json.loads(frame) for frame in frames if frame != "[DONE]"], self.status)


async def next_id(ws: MemorySocket, body: dict[str, Any]) -> str:
    """Run a turn; return the id by which it can be continued."""
    events = await ws.turn(body)
    assert events[-1]["type"] == "response.completed", events[-1]
    return str(events[-1]["response"]["id"])


__all__ = ["KINDS", "USAGE", "WAYS", "Books", "Heard", "House", "Kind", "Post", "Way", "next_id", "said", "settle"]
