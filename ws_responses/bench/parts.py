"""Where the API's time goes in a turn, by the seams that the package offers: a hook, the router, renderer and backend.

In process and by CPU time, so that sockets and other processes do not count; much of a long conversation is rendered in a thread,
which the clock of the process sees.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from time import process_time
from typing import Final, Literal, ParamSpec, TypeVar

from ws_responses import ResponsesApp, ResponsesEngine
from ws_responses._types import ASGIApp, Message, Scope
from ws_responses.bench.engine import CallBackend
from ws_responses.bench.inprocess import Peer
from ws_responses.bench.results import Unexpected
from ws_responses.instrumentation import Fact, TurnStarted
from ws_responses.rendering.harmony import HarmonyRenderer
from ws_responses.rendering.rendered import Form, Rendered
from ws_responses.rendering.renderer import Answer, RenderSettings, ToolChoice
from ws_responses.routing import SingleRouter

Part = Literal["read", "plan", "render", "body", "events"]

PARTS: Final[dict[Part, str]] = {
    "read": "read and check the request",
    "plan": "its settings, tools and route",
    "render": "render",
    "body": "the body of the backend's request",
    "events": "first events",
}
"""In the order in which they come."""

_PIECE: Final = 65_536
"""Bytes that a server hands over at a time."""
_DEADLINE_S: Final = 60.0

_P = ParamSpec("_P")
_T = TypeVar("_T")


class _TimedRenderer(HarmonyRenderer):
    """A renderer that notes the time that it takes.

    Attributes:
        seconds: Since it was last set to 0.
    """

    seconds = 0.0

    def begin(self, settings: RenderSettings, form: Form) -> Rendered:
        return self._timed(super().begin, settings, form)

    def extend(self, state: Rendered, items: Iterable[bytes]) -> Rendered:
        return self._timed(super().extend, state, items)

    def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:
        return self._timed(super().answer, state, choice, settings)

    def answered(self, state: Rendered, sampled_ids: Sequence[int]) -> Rendered:
        return self._timed(super().answered, state, sampled_ids)

    def _timed(self, work: Callable[_P, _T], *arguments: _P.args, **more: _P.kwargs) -> _T:
        begin = process_time()
        result = work(*arguments, **more)
        self.seconds += process_time() - begin
        return result


class TimedEngine:
    """The engine, with a clock at each seam.

    Attributes:
        app: Serves it.
        received_s: When a request came in, by the CPU clock of the process.
        first_s: When its first event went out.
    """

    def __init__(self) -> None:
        self._backend = CallBackend()
        self._renderer = _TimedRenderer()
        engine = ResponsesEngine(router=SingleRouter(self._backend, self._renderer))
        self._checked_s = 0.0
        self._rendered_s = 0.0
        self.app: ASGIApp = ResponsesApp(engine, authorize="open", hooks=[self._note])
        self.received_s = self.first_s = 0.0

    def begin(self) -> None:
        """Take note of a request."""
        self.received_s = process_time()
        self.first_s = 0.0
        self._renderer.seconds = 0.0

    def event(self) -> None:
        """Take note of an event; the first one counts."""
        if not self.first_s:
            self.first_s = process_time()
            self._rendered_s = self._renderer.seconds

    def parts(self) -> dict[Part, float]:
        """Return what the last turn took, in seconds."""
        called_s, made_s = self._backend.called_s, self._backend.made_s
        return {
            "read": self._checked_s - self.received_s,
            "plan": called_s - self._checked_s - self._rendered_s,
            "render": self._rendered_s,
            "body": made_s - called_s,
            "events": self.first_s - made_s,
        }

    def _note(self, fact: Fact) -> None:
        if isinstance(fact, TurnStarted):
            self._checked_s = process_time()


class LocalSocket(Peer):
    """A socket in this process, for an agent.

    Attributes:
        engine: Is asked.
        first_s: CPU seconds from the last frame to its first event.
    """

    def __init__(self) -> None:
        self.engine = TimedEngine()
        self.first_s = 0.0
        super().__init__(self.engine.app)

    async def turn(self, payload: bytes) -> bytes:
        """Send a frame, and return the closing event."""
        self.engine.begin()
        closing = await self.exchange(payload)
        self.first_s = self.engine.first_s - self.engine.received_s
        return closing.encode()

    async def _send(self, message: Message) -> None:
        if message["type"] == "websocket.send":
            self.engine.event()
        await super()._send(message)


class LocalHttp:
    """HTTP in this process, for an agent.

    Attributes:
        engine: Is asked.
        first_s: CPU seconds from the last request to its first event.
    """

    def __init__(self) -> None:
        self.engine = TimedEngine()
        self.first_s = 0.0

    async def turn(self, payload: bytes) -> bytes:
        """POST a body and return the answer.

        Raises:
            Unexpected: It is not what a client wants.
        """
        call = Call(payload, self.engine.event)
        self.engine.begin()
        await asyncio.wait_for(self.engine.app(POST_SCOPE, call.receive, call.send), _DEADLINE_S)
        self.first_s = self.engine.first_s - self.engine.received_s
        if call.status != 200:
            raise Unexpected(call.answer[:400].decode(errors="replace"))
        return bytes(call.answer)


POST_SCOPE: Final[Scope] = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.4"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "http",
    "path": "/v1/responses",
    "raw_path": b"/v1/responses",
    "root_path": "",
    "query_string": b"",
    "headers": [
        (b"host", b"127.0.0.1"),
        (b"authorization", b"Bearer sk-bench"),
        (b"content-type", b"application/json"),
    ],
    "client": ("127.0.0.1", 50000),
    "server": ("127.0.0.1", 8000),
    "state": {},
    "extensions": {},
}


class Call:
    """The server's side of one HTTP request.

    Args:
        body: Of the request.
        noted: Is called when something of the answer's body comes.

    Attributes:
        status: Of the answer.
        answer: Its body, as far as it has come.
    """

    def __init__(self, body: bytes, noted: Callable[[], None]) -> None:
        self._pieces = [body[at : at + _PIECE] for at in range(0, len(body), _PIECE)]
        self._pieces.reverse()
        self._noted = noted
        self.status = 0
        self.answer = bytearray()

    async def receive(self) -> Message:
        """Give the next piece of the request."""
        if not self._pieces:
            await asyncio.Event().wait()  # the client stays
        piece = self._pieces.pop()
        return {"type": "http.request", "body": piece, "more_body": bool(self._pieces)}

    async def send(self, message: Message) -> None:
        """Take a piece of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if message["body"]:
            self._noted()
        self.answer += message["body"]
