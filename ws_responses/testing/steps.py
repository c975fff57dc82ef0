"""What a `ScriptedApp` does in one turn, as a list of steps.

    app.script(
        [steps.text("Hello", deltas=3)],
        [steps.tool_call("get_weather", {"city": "Paris"}, call_id="call_1"), steps.done_marker()],
        [steps.created(), steps.wait_for(go), steps.fail("server_error")],
    )

*Actions* happen in their order. `response.created` and `response.in_progress` come by themselves
before the first step that emits an event, and `response.completed` after the last action if no step
has ended the response. Neither comes in a script with `raw_sse`.
*Settings* hold for the whole turn, wherever they stand. A script with settings only gives the model's answer.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

import anyio

from ws_responses.testing.builder import CallKind, Event, ResponseBuilder

__all__ = [
    "Header",
    "Plan",
    "Step",
    "call",
    "chunk_bytes",
    "coalesce",
    "comment",
    "complete",
    "content_type",
    "created",
    "done_marker",
    "drop_event",
    "drop_field",
    "event",
    "fail",
    "headers",
    "incomplete",
    "item",
    "json_only",
    "line_ending",
    "model_answer",
    "raise_error",
    "raw_sse",
    "reasoning",
    "response_id",
    "response_start",
    "set_field",
    "signal",
    "sse_format",
    "stall",
    "status",
    "text",
    "tool_call",
    "truncate",
    "wait_for",
]

Header: TypeAlias = tuple[bytes, bytes]
Edit: TypeAlias = Callable[[Event], Event]
LineEnding: TypeAlias = Literal["\n", "\r\n", "\r"]


@dataclass(slots=True)
class Plan:
    """The settings of one turn.

    Attributes:
        status: HTTP status of a streamed answer.
        headers: further response headers.
        content_type: content type of a streamed answer.
        line_ending: of the event stream.
        event_field: whether each event has an `event:` line.
        pretty: whether the JSON goes over several `data:` lines.
        response_id: the id; None for a new one.
        stream: False answers with JSON although a stream was asked for.
        done_marker: whether `data: [DONE]` follows.
        max_events: end the body after so many events.
        finish_body: whether the last body message is sent.
        chunk_bytes: cut the body into messages of so many bytes; None for one message per event.
        coalesce: the whole body in one message.
        dropped: event types that are left out, and not counted.
        edits: functions that change an event, in order.
    """

    status: int = 200
    headers: list[Header] = field(default_factory=list[Header])
    content_type: str = "text/event-stream; charset=utf-8"
    line_ending: LineEnding = "\n"
    event_field: bool = True
    pretty: bool = False
    response_id: str | None = None
    stream: bool = True
    done_marker: bool = False
    max_events: float = math.inf
    finish_body: bool = True
    chunk_bytes: int | None = None
    coalesce: bool = False
    dropped: set[str] = field(default_factory=set[str])
    edits: list[Edit] = field(default_factory=list[Edit])


@dataclass(frozen=True, slots=True)
class Step:
    """Base of all steps; make them with the functions of this module."""

    label: str

    def __repr__(self) -> str:
        return f"<{self.label}>"


@dataclass(frozen=True, slots=True, repr=False)
class Setting(Step):
    """Changes the plan of the turn."""

    apply: Callable[[Plan], None]


@dataclass(frozen=True, slots=True, repr=False)
class Emit(Step):
    """Emits events."""

    make: Callable[[ResponseBuilder], Iterable[Event]]
    bare: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Raw(Step):
    """Sends bytes as they are; `alone` means that nothing else is sent by itself."""

    chunks: tuple[bytes, ...]
    alone: bool = True


@dataclass(frozen=True, slots=True, repr=False)
class Start(Step):
    """Sends `http.response.start` now."""

    status: int
    headers: tuple[Header, ...]
    content_type: str

    def apply(self, plan: Plan) -> None:
        """Note what the start will say."""
        plan.status = self.status
        plan.headers += self.headers
        plan.content_type = self.content_type


@dataclass(frozen=True, slots=True, repr=False)
class Wait(Step):
    """Awaits something."""

    function: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, repr=False)
class Raise(Step):
    """Raises an exception."""

    error: BaseException
    after_start: bool


@dataclass(frozen=True, slots=True, repr=False)
class Whole(Step):
    """Is the whole answer: no stream."""

    code: int
    body: bytes | Mapping[str, Any]
    headers: tuple[Header, ...]
    content_type: str


@dataclass(frozen=True, slots=True, repr=False)
class ModelAnswer(Step):
    """Emits the model's own answer to the request."""


# -- output ---------------------------------------------------------------------------------------


def text(text: str, *, deltas: int = 1, finish: bool = True, phase: str | None = None) -> Step:
    """Build an assistant message in `deltas` pieces; `finish=False` leaves the item open."""
    return Emit(f"text {text[:20]!r}", lambda b: b.message(text, deltas=deltas, finish=finish, phase=phase))


def reasoning(text: str, *, deltas: int = 1, encrypted_content: str | None = None) -> Step:
    """Build a reasoning item with a summary."""
    return Emit("reasoning", lambda b: b.reasoning(text, deltas=deltas, encrypted_content=encrypted_content))


def tool_call(
    name: str, arguments: Any = None, call_id: str | None = None, kind: CallKind = "function", *, deltas: int = 1
) -> Step:
    """Build a call that the client has to answer: see `ResponseBuilder.tool_call`."""
    return Emit(
        f"tool_call {name} {kind}",
        lambda b: b.tool_call(name, arguments, call_id=call_id, kind=kind, deltas=deltas),
    )


def item(item: Mapping[str, Any]) -> Step:
    """Emit any item, as it is, with `output_item.added` and `.done`."""
    return Emit(f"item {item.get('type')}", lambda b: b.item(item))


def event(event: Mapping[str, Any]) -> Step:
    """Emit one event as it is, with nothing before it; it gets a `sequence_number` unless it has one.

    An `error` event, or another terminal one, ends the response.
    """
    return Emit(f"event {event.get('type')}", lambda _: [dict(event)], bare=True)


def model_answer() -> Step:
    """Give the model's own answer here."""
    return ModelAnswer("model_answer")


def created() -> Step:
    """Give `response.created` and `response.in_progress` now, before the next waiting step."""
    return Emit("created", lambda _: ())


# -- endings --------------------------------------------------------------------------------------


def complete() -> Step:
    """`response.completed` here; later steps still happen."""
    return Emit("complete", lambda b: b.complete())


def fail(code: str = "server_error", message: str = "The model failed.") -> Step:
    """`response.failed`."""
    return Emit(f"fail {code}", lambda b: b.fail(code, message))


def incomplete(reason: str = "max_output_tokens") -> Step:
    """`response.incomplete`."""
    return Emit(f"incomplete {reason}", lambda b: b.incomplete(reason))


def raise_error(error: BaseException, after: Literal["before", "start"] = "start") -> Step:
    """Raise here: `before` any message is sent, or after at least `http.response.start`."""
    return Raise(f"raise {error!r}", error, after == "start")


def truncate(after: int, *, finish_body: bool = True) -> Step:
    """End the body, and the script, after so many events; `finish_body=False` returns without the last message."""

    def apply(plan: Plan) -> None:
        plan.max_events = after
        plan.finish_body = finish_body

    return Setting(f"truncate {after}", apply)


# -- waiting --------------------------------------------------------------------------------------


def stall() -> Step:
    """Wait for ever: until the call is cancelled or, for an app that listens, the client has gone."""
    return Wait("stall", anyio.sleep_forever)


def wait_for(event: anyio.Event, *, shield: bool = False, at_most_s: float = 10.0) -> Step:
    """Wait until the test sets the event.

    Args:
        event: The event.
        shield: Go on waiting when cancelled.
        at_most_s: For so long; a test that failed before it set the event would hang.
    """
    return Wait("wait_for", partial(_stay, event, at_most_s) if shield else event.wait)


async def _stay(event: anyio.Event, seconds: float) -> None:
    with anyio.move_on_after(seconds, shield=True) as scope:
        while not event.is_set():
            try:
                await event.wait()
            except anyio.get_cancelled_exc_class():
                # A plain asyncio task is cancelled through every scope, a shielded one as well.
                if scope.cancel_called:
                    raise
    if not event.is_set():
        raise AssertionError(f"a step that ignores cancellation has waited {seconds:g} s for its event")


def signal(event: anyio.Event) -> Step:
    """Tell the test that the script has come here."""

    async def tell() -> None:
        event.set()

    return Wait("signal", tell)


def call(function: Callable[[], Awaitable[object]]) -> Step:
    """Await a function of the test, in the task of the app."""
    return Wait("call", function)


# -- the HTTP answer ------------------------------------------------------------------------------


def status(
    code: int,
    body: bytes | Mapping[str, Any] | None = None,
    headers: Sequence[Header] = (),
    content_type: str = "application/json",
) -> Step:
    """Answer with this status and body at once, whatever was asked for; by default an error in OpenAI's form."""
    if body is None:
        kind = "server_error" if code >= 500 else "invalid_request_error"
        body = {"error": {"message": f"scripted {code}", "type": kind, "param": None, "code": None}}
    return Whole(f"status {code}", code, body, tuple(headers), content_type)


def response_start(
    status: int = 200, headers: Sequence[Header] = (), content_type: str = "text/event-stream; charset=utf-8"
) -> Step:
    """Send `http.response.start` now, before the first event."""
    return Start("response_start", status, tuple(headers), content_type)


def raw_sse(*chunks: bytes) -> Step:
    """Send these body chunks as they are, one message each; nothing else comes by itself in this turn."""
    return Raw("raw_sse", chunks)


def comment(text: str = "ping") -> Step:
    """Send a comment line, as keep-alives do."""
    return Raw("comment", (f": {text}\n\n".encode(),), alone=False)


def json_only() -> Step:
    """Ignore `stream: true` and answer with one JSON response object."""

    def apply(plan: Plan) -> None:
        plan.stream = False

    return Setting("json_only", apply)


def done_marker() -> Step:
    """`data: [DONE]` at the end of the stream."""

    def apply(plan: Plan) -> None:
        plan.done_marker = True

    return Setting("done_marker", apply)


def headers(headers: Sequence[Header]) -> Step:
    """Add response headers."""
    return Setting("headers", lambda plan: plan.headers.extend(headers))


def content_type(value: str) -> Step:
    """Label the stream with this content type."""

    def apply(plan: Plan) -> None:
        plan.content_type = value

    return Setting(f"content_type {value}", apply)


def sse_format(*, line_ending: LineEnding = "\n", event_field: bool = True, pretty: bool = False) -> Step:
    """How events are written: line ends, `event:` lines, JSON over several `data:` lines."""

    def apply(plan: Plan) -> None:
        plan.line_ending = line_ending
        plan.event_field = event_field
        plan.pretty = pretty

    return Setting("sse_format", apply)


def line_ending(ending: LineEnding) -> Step:
    """Use these line ends in the stream."""

    def apply(plan: Plan) -> None:
        plan.line_ending = ending

    return Setting(f"line_ending {ending!r}", apply)


def chunk_bytes(size: int) -> Step:
    """Cut the body into messages of so many bytes, within events and characters."""

    def apply(plan: Plan) -> None:
        plan.chunk_bytes = size

    return Setting(f"chunk_bytes {size}", apply)


def coalesce() -> Step:
    """Send the whole body in one message."""

    def apply(plan: Plan) -> None:
        plan.coalesce = True

    return Setting("coalesce", apply)


# -- defects --------------------------------------------------------------------------------------


def response_id(value: str) -> Step:
    """Give the response this id."""

    def apply(plan: Plan) -> None:
        plan.response_id = value

    return Setting(f"response_id {value}", apply)


def drop_event(type: str) -> Step:  # noqa: A002 - the word of the wire
    """Leave out all events of this type; the others are numbered without a gap."""
    return Setting(f"drop_event {type}", lambda plan: plan.dropped.add(type))


def drop_field(path: str, *, event: str | None = None) -> Step:
    """Leave a field (`item_id`, `response.usage`) out of every event, or of those of one type."""

    def edit(data: Event) -> Event:
        return _changed(data, path.split("."), lambda parent, name: parent.pop(name, None))

    return _edit_step(f"drop_field {path}", edit, event)


def set_field(path: str, value: Any, *, event: str | None = None) -> Step:
    """Set a field (`response.output`) in every event, or in those of one type."""

    def edit(data: Event) -> Event:
        return _changed(data, path.split("."), lambda parent, name: parent.__setitem__(name, value))

    return _edit_step(f"set_field {path}", edit, event)


def _edit_step(label: str, edit: Callable[[Event], Event], event_type: str | None) -> Step:
    def guarded(data: Event) -> Event:
        return edit(data) if event_type in {None, data.get("type")} else data

    return Setting(label, lambda plan: plan.edits.append(guarded))


def _changed(data: Event, path: list[str], change: Callable[[dict[str, Any], str], object]) -> Event:
    """Return a copy with the change applied at the path; unchanged where the path does not exist."""
    copy = dict(data)
    if len(path) == 1:
        change(copy, path[0])
    elif isinstance(copy.get(path[0]), dict):
        copy[path[0]] = _changed(copy[path[0]], path[1:], change)
    return copy
