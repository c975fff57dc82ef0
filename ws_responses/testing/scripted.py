"""A plain ASGI Responses app whose every move is written down by the test.

    app = ScriptedApp()
    app.script([steps.text("hi", deltas=2)], [steps.status(429, headers=[(b"retry-after", b"1")])])

Each POST takes the next turn of the script; without one, `ScriptedModel` answers. The app awaits its
`send` like any app, records each request, and counts how its calls end.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import anyio

from ws_responses._types import Message, Receive, Scope, Send
from ws_responses.testing import steps as _steps
from ws_responses.testing._json import is_object
from ws_responses.testing._signal import Signal
from ws_responses.testing.builder import Event, ResponseBuilder
from ws_responses.testing.model import ModelError, ScriptedModel, input_items
from ws_responses.testing.steps import Header, Plan, Step

__all__ = ["Outcome", "Request", "Script", "ScriptedApp"]

Outcome: TypeAlias = Literal["finished", "disconnected", "cancelled", "raised"]
Script: TypeAlias = Callable[[dict[str, Any]], Sequence[Step] | None]

_TERMINAL = frozenset({"response.completed", "response.failed", "response.incomplete"})


@dataclass(slots=True)
class Request:
    """One HTTP request that reached the app.

    Attributes:
        scope: the scope, as given.
        raw: the body.
        body: the body decoded, if it is a JSON object.
        events: events handed to `send` with success, as sent.
        outcome: how the call ended; None while it runs.
    """

    scope: Scope
    raw: bytes = b""
    body: dict[str, Any] = field(default_factory=dict[str, Any])
    events: list[Event] = field(default_factory=list[Event])
    outcome: Outcome | None = None

    @property
    def method(self) -> str:
        """The HTTP method."""
        return str(self.scope["method"])

    @property
    def path(self) -> str:
        """The path."""
        return str(self.scope["path"])

    @property
    def headers(self) -> list[Header]:
        """The request headers, names in lower case."""
        return [(bytes(name).lower(), bytes(value)) for name, value in self.scope["headers"]]

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of this (lower case) name."""
        return next((value for key, value in self.headers if key == name), None)

    @property
    def input(self) -> list[Mapping[str, Any]]:
        """The input items; a text is one user message."""
        return input_items(self.body)


class ScriptedApp:
    """A Responses app, driven by a script.

    `POST` on any path is a create request (`.../compact`: a compaction). `GET` on a path that ends
    in `/responses` gives 405, on others 404. With `stateful=True`, `GET` and `DELETE` of
    `.../{id}` know the stored responses, and `previous_response_id` is resolved.

    Args:
        model: answers where no script does.
        auth: demand `Authorization: Bearer <auth>` on every HTTP request; else 401.
        listen: hear `http.disconnect` while answering, and stop then. Otherwise the app calls
            `receive` for the body only, as some frameworks do.
        await_disconnect: after the answer, stay until `receive` gives `http.disconnect`, as Litestar does.
        stateful: keep responses (unless `store: false`) and join histories as OpenAI does.
        timeout: seconds after which `wait_...` fails the test.

    Attributes:
        requests: POST requests, in order of arrival.
        others: requests of other methods.
        running: calls in progress, of any method.
        finished: calls that came to their end.
        disconnected: calls that ended because the client has gone: heard it, or `send` raised `OSError`.
        cancelled: calls that were cancelled.
        raised: calls that raised.
        max_running: the most calls that ever ran at once.
        stored: with `stateful`, the response objects by id.
        websockets: scopes of WebSocket connections that reached the app; refused with 403.
        lifespan: lifespan messages received.
    """

    def __init__(
        self,
        model: ScriptedModel | None = None,
        *,
        auth: str | None = None,
        listen: bool = False,
        await_disconnect: bool = False,
        stateful: bool = False,
        timeout: float = 5.0,
    ) -> None:
        self.model = ScriptedModel() if model is None else model
        self.auth = auth
        self.listen = listen
        self.await_disconnect = await_disconnect
        self.stateful = stateful
        self.requests: list[Request] = []
        self.others: list[Request] = []
        self.running = self.max_running = 0
        self.finished = self.disconnected = self.cancelled = self.raised = 0
        self.stored: dict[str, dict[str, Any]] = {}
        self.websockets: list[Scope] = []
        self.lifespan: list[str] = []
        self._histories: dict[str, list[Mapping[str, Any]]] = {}
        self._turns: list[Sequence[Step]] = []
        self._script: Script | None = None
        self._changed = Signal()
        self._timeout = timeout

    def script(self, *turns: Sequence[Step] | Script) -> None:
        """Say what the next POSTs get.

        Args:
            turns: lists of steps, one per POST, added to those not used yet; or one function
                that gives the steps (None: the model's answer) for each request body, for good.
        """
        for turn in turns:
            if callable(turn):
                self._script = turn
            else:
                self._turns.append(turn)

    async def wait_requests(self, count: int) -> None:
        """Wait until so many POSTs have arrived, bodies included."""
        await self._changed.expect(
            lambda: len(self.requests) >= count,
            self._timeout,
            lambda: f"only {len(self.requests)} of {count} requests came",
        )

    async def wait_idle(self) -> None:
        """Wait until no call is in progress."""
        await self._changed.expect(
            lambda: self.running == 0, self._timeout, lambda: f"{self.running} calls did not end"
        )

    async def wait_events(self, count: int, request: int = -1) -> None:
        """Wait until a request (by default the latest) has had so many events sent."""
        await self._changed.expect(
            lambda: bool(self.requests) and len(self.requests[request].events) >= count,
            self._timeout,
            lambda: f"{count} events were not sent",
        )

    # -- ASGI --------------------------------------------------------------------------------------

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, or the lifespan; refuse a WebSocket."""
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "lifespan":
            await self._serve_lifespan(receive, send)
        else:
            self.websockets.append(scope)
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _serve_lifespan(self, receive: Receive, send: Send) -> None:
        while "lifespan.shutdown" not in self.lifespan:
            kind = str((await receive())["type"])
            self.lifespan.append(kind)
            await send({"type": f"{kind}.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        self.running += 1
        self.max_running = max(self.max_running, self.running)
        outcome: Outcome = "raised"
        try:
            outcome = await self._answer(request, receive, send)
        except anyio.get_cancelled_exc_class():
            outcome = "cancelled"
            raise
        except _SendFailed as exc:
            outcome = "disconnected"
            # The reason is the server's own exception: give it back as it was.
            raise exc.error from None
        finally:
            self.running -= 1
            request.outcome = outcome
            setattr(self, outcome, getattr(self, outcome) + 1)
            self._changed.notify()

    async def _answer(self, request: Request, receive: Receive, send: Send) -> Outcome:
        if not await _read_body(request, receive):
            return "disconnected"
        (self.requests if request.method == "POST" else self.others).append(request)
        self._changed.notify()
        response = _Response(request, _guarded(send), self._changed)
        heard = False
        if self.listen:
            heard = await _until_disconnect(receive, lambda: self._route(request, response))
        else:
            await self._route(request, response)
        if self.await_disconnect and not heard:
            await _disconnect(receive)
        return "disconnected" if heard else "finished"

    async def _route(self, request: Request, response: "_Response") -> None:
        if self.auth is not None and request.header(b"authorization") != f"Bearer {self.auth}".encode():
            await response.error(401, "Incorrect API key provided.", code="invalid_api_key")
        elif request.method != "POST":
            await self._other(request, response)
        elif not _decode(request):
            await response.error(400, "We could not parse the JSON body of your request.")
        else:
            await self._create(request, response)

    async def _other(self, request: Request, response: "_Response") -> None:
        response_id = request.path.rpartition("/")[2]
        if request.path.rstrip("/").endswith("/responses"):
            await response.error(405, "Method Not Allowed", headers=[(b"allow", b"POST")])
        elif request.method == "GET" and response_id in self.stored:
            await response.json(200, self.stored[response_id])
        elif request.method == "DELETE" and self.stored.pop(response_id, None) is not None:
            del self._histories[response_id]
            await response.json(200, {"id": response_id, "object": "response", "deleted": True})
        else:
            await response.error(404, "Not Found")

    async def _create(self, request: Request, response: "_Response") -> None:
        script = self._next_steps(request.body)
        try:
            body = self._joined(request.body)
            if request.path.endswith("/compact") and not script:
                await response.json(200, self.model.compact(body))
                return
            done = await response.play(script, body, self.model, whole_input=True if self.stateful else None)
        except ModelError as exc:
            await response.json(exc.status, exc.body)
            return
        self._store(body, done)

    def _next_steps(self, body: dict[str, Any]) -> Sequence[Step]:
        if self._turns:
            return self._turns.pop(0)
        return (self._script(body) if self._script is not None else None) or ()

    def _joined(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the body with the history of its parent, if this app keeps state."""
        parent = body.get("previous_response_id")
        if not self.stateful or parent is None:
            return body
        if parent not in self._histories:
            raise ModelError(
                400,
                f"Previous response with id '{parent}' not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return body | {"input": [*self._histories[parent], *input_items(body)]}

    def _store(self, body: Mapping[str, Any], response: Mapping[str, Any] | None) -> None:
        if not self.stateful or response is None or body.get("store") is False:
            return
        if response["status"] in {"completed", "incomplete"}:
            self.stored[response["id"]] = dict(response)
            self._histories[response["id"]] = [*input_items(body), *response["output"]]


class _SendFailed(Exception):
    """The server's `send` raised `OSError`: told apart from an `OSError` of the script."""

    def __init__(self, error: OSError) -> None:
        super().__init__(error)
        self.error = error


class _EndOfBody(Exception):
    """The script wants no more events."""


class _Response:
    """The answer to one request."""

    def __init__(self, request: Request, send: Send, changed: Signal) -> None:
        self._request = request
        self._send = send
        self._changed = changed
        self._plan = Plan()
        self._streaming = True
        self._started = False
        self._held = b""
        self._number = 0
        self._ended = False
        self._last: Event = {}
        self._final: dict[str, Any] | None = None

    # -- whole answers -----------------------------------------------------------------------------

    async def json(self, status: int, body: Any, headers: Iterable[Header] = ()) -> None:
        await self.whole(status, json.dumps(body).encode(), headers, "application/json")

    async def error(
        self, status: int, message: str, *, code: str | None = None, headers: Iterable[Header] = ()
    ) -> None:
        error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
        await self.json(status, {"error": error}, headers)

    async def whole(self, status: int, body: bytes, headers: Iterable[Header], content_type: str) -> None:
        length = (b"content-length", str(len(body)).encode())
        all_headers = [(b"content-type", content_type.encode()), length, *headers]
        await self._send({"type": "http.response.start", "status": status, "headers": all_headers})
        await self._send({"type": "http.response.body", "body": body})

    # -- scripted answers --------------------------------------------------------------------------

    async def play(
        self, script: Sequence[Step], body: dict[str, Any], model: ScriptedModel, *, whole_input: bool | None
    ) -> dict[str, Any] | None:
        """Do all steps and return the final response object, if there was one."""
        for step in script:
            if isinstance(step, _steps.Setting | _steps.Start):
                step.apply(self._plan)
        actions = [step for step in script if not isinstance(step, _steps.Setting)] or [_steps.model_answer()]
        alone = any(isinstance(step, _steps.Raw) and step.alone for step in actions)
        self._streaming = alone or (bool(body.get("stream")) and self._plan.stream)
        builder = model.builder(body, self._plan.response_id)
        try:
            for step in actions:
                if isinstance(step, _steps.Whole):
                    data = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
                    await self.whole(step.code, data, step.headers, step.content_type)
                    return None
                if isinstance(step, _steps.ModelAnswer):
                    events = model.events(body, response_id=self._plan.response_id, whole_input=whole_input)
                    await self._model_answer(events)
                else:
                    await self._do(step, builder)
            if not (alone or self._ended):
                await self._do(_steps.complete(), builder)
        except _EndOfBody:
            pass
        await self._finish()
        return self._final

    async def _do(self, step: Step, builder: ResponseBuilder) -> None:
        if isinstance(step, _steps.Emit):
            await self._emit(step, builder)
        elif isinstance(step, _steps.Raw):
            for chunk in step.chunks:
                await self._write(chunk)
        elif isinstance(step, _steps.Wait):
            await step.function()
        elif isinstance(step, _steps.Start):
            await self._start()
        elif isinstance(step, _steps.Raise):
            if step.after_start:
                await self._start()
            raise step.error

    async def _emit(self, step: _steps.Emit, builder: ResponseBuilder) -> None:
        if not (builder.created or step.bare):
            for event in builder.start():
                await self._event(event)
        for event in step.make(builder):
            await self._event(event)

    async def _model_answer(self, events: Iterator[Event]) -> None:
        for event in events:
            # Numbered again below, without the events that are left out.
            del event["sequence_number"]
            await self._event(event)

    async def _event(self, event: Event) -> None:
        if self._number >= self._plan.max_events:
            raise _EndOfBody
        kind = event.get("type")
        if kind in _TERMINAL:
            self._final = event["response"] if is_object(event.get("response")) else None
        self._ended = self._ended or kind in _TERMINAL or kind == "error"
        if kind in self._plan.dropped:
            return
        if "sequence_number" not in event:
            event = {"type": kind, "sequence_number": self._number} | event
        self._number += 1
        for edit in self._plan.edits:
            event = edit(event)
        self._last = event
        if self._streaming:
            await self._write(_encode(event, self._plan))
            self._request.events.append(event)
            self._changed.notify()

    # -- the body ----------------------------------------------------------------------------------

    async def _start(self) -> None:
        if self._started or not self._streaming:
            return
        self._started = True
        headers = [(b"content-type", self._plan.content_type.encode()), *self._plan.headers]
        await self._send({"type": "http.response.start", "status": self._plan.status, "headers": headers})

    async def _write(self, data: bytes) -> None:
        if not self._streaming:
            return
        await self._start()
        if self._plan.coalesce:
            self._held += data
            return
        size = self._plan.chunk_bytes or max(1, len(data))
        for begin in range(0, len(data), size):
            await self._send({"type": "http.response.body", "body": data[begin : begin + size], "more_body": True})

    async def _finish(self) -> None:
        if not self._streaming:
            last = self._last.get("response", self._last)
            await self.whole(200, json.dumps(last).encode(), self._plan.headers, "application/json")
            return
        if self._plan.done_marker:
            await self._write(_lines(["data: [DONE]"], self._plan))
        await self._start()
        if self._plan.finish_body:
            await self._send({"type": "http.response.body", "body": self._held, "more_body": False})


def _encode(event: Event, plan: Plan) -> bytes:
    lines = [f"event: {event.get('type')}"] if plan.event_field else []
    if plan.pretty:
        lines += [f"data: {line}" for line in json.dumps(event, ensure_ascii=False, indent=1).split("\n")]
    else:
        lines.append("data: " + json.dumps(event, ensure_ascii=False, separators=(",", ":")))
    try:
        return _lines(lines, plan)
    except UnicodeEncodeError:  # a lone surrogate can only be escaped
        lines[-1] = "data: " + json.dumps(event, separators=(",", ":"))
        return _lines(lines, plan)


def _lines(lines: list[str], plan: Plan) -> bytes:
    return plan.line_ending.join([*lines, "", ""]).encode()


def _decode(request: Request) -> bool:
    try:
        body = json.loads(request.raw)
    except ValueError:
        return False
    if not is_object(body):
        return False
    request.body = dict(body)
    return True


async def _read_body(request: Request, receive: Receive) -> bool:
    """Read the body into the request; False if the client has gone before its end."""
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return False
        request.raw += message.get("body", b"")
        more = message.get("more_body", False)
    return True


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until_disconnect(receive: Receive, work: Callable[[], Awaitable[None]]) -> bool:
    """Do the work, but stop it when the client has gone; tell whether that happened."""
    stopped = finished = False
    error: Exception | None = None

    async def hear() -> None:
        nonlocal stopped
        await _disconnect(receive)
        stopped = True
        tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hear)
        try:
            await work()
        except Exception as exc:  # noqa: BLE001 - raised below, without a group around it
            error = exc
        else:
            finished = True
        tasks.cancel_scope.cancel()
    if error is not None:
        raise error
    # With the last body message servers send a disconnect: it may be heard before the hearing is ended, and stops nothing.
    return stopped and not finished


def _guarded(send: Send) -> Send:
    async def guarded(message: Message) -> None:
        try:
            await send(message)
        except OSError as exc:
            raise _SendFailed(exc) from exc

    return guarded
