"""What the handlers of all frameworks answer, and how their generators fare.

Each app hands the body to `answer` and serves what it gets by the means of its framework. What a turn does stands in its own
`metadata`: `do` names the script, `key` the turn for later questions, `plain` asks for a generator without `async`.
"""

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

import anyio

from ws_responses import current_turn
from ws_responses.errors import WSResponsesError
from ws_responses.testing.builder import Event, ResponseBuilder, numbered
from ws_responses.testing.model import ModelError, ScriptedModel

EVENT_STREAM: Final = "text/event-stream"

KEY: Final = "right"
"""The bearer token that layers and routes let in."""

PATH: Final = "/v1/responses"
GUARDED: Final = "/guarded/v1/responses"
"""A route that wants the key itself."""
HELPED: Final = "/helped/v1/responses"
"""A route that streams by the framework's own helper for server-sent events, where it has one."""

WHOLE_PATH: Final = "/api/whole/v1/responses"
"""A route of frameworks that know no `root_path`, with the prefix of the mounted app."""

Layer: TypeAlias = Literal["none", "key", "gzip"]
"""What lies around all routes of an app: nothing, a check of the key, or compression."""

Outcome: TypeAlias = Literal["finished", "cancelled", "closed", "raised"]

_model = ScriptedModel(tool_calls=4)


@dataclass(slots=True)
class Call:
    """One generator of a handler.

    Attributes:
        events: Events that were asked for, and taken.
        outcome: How it ended: "closed" is by `GeneratorExit`; None while it is open.
    """

    events: int = 0
    outcome: Outcome | None = None


@dataclass(frozen=True, slots=True)
class Whole:
    """An answer that is no stream.

    Attributes:
        body: JSON object.
        status: HTTP status.
        headers: Further headers.
    """

    body: dict[str, Any]
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict[str, str])


calls: dict[str, Call] = {}
"""By key of the turn."""

open_calls: set[int] = set()
"""Identities of the generators that are open."""


def is_right(authorization: str | None) -> bool:
    """Whether a request's `Authorization` has the key."""
    return authorization == f"Bearer {KEY}"


def answer(body: dict[str, Any]) -> Whole | AsyncIterator[bytes] | Iterator[bytes]:
    """Answer a create request: JSON, or the chunks of an event stream.

    Raises:
        RuntimeError: The script says so.
    """
    match _metadata(body).get("do"):
        case "raise":
            raise RuntimeError("the handler is broken")
        case "refuse":
            error = {"message": "Come back later.", "type": "rate_limit_error", "param": None, "code": "slow_down"}
            return Whole({"error": error}, 429, {"Retry-After": "7"})
        case "json":
            return Whole(_last(body))
    try:
        whole = not body.get("stream")
        _model.events(body)  # judged before anything is sent
    except ModelError as error:
        return Whole(error.body, error.status)
    if whole:
        return Whole(_last(body))
    return plain_chunks(body) if _metadata(body).get("plain") else chunks(body)


def asynchronous(chunks: AsyncIterator[bytes] | Iterator[bytes]) -> AsyncIterator[bytes]:
    """Take chunks for what serves no others; a generator without `async` is refused there."""
    return cast("AsyncIterator[bytes]", chunks)


async def events(body: dict[str, Any]) -> AsyncIterator[Event]:
    """Give the events themselves, for helpers that write them."""
    with _recorded(body) as call:
        for event in _events(body):
            if event is None:
                await anyio.sleep_forever()
            else:
                yield event
                call.events += 1
                await _pause(body)


def as_json(event: Event) -> str:
    """Write an event for helpers that take a text."""
    return json.dumps(event)


def server_sent(event: Event) -> bytes:
    """Write an event as it goes over the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


async def chunks(body: dict[str, Any]) -> AsyncIterator[bytes]:
    """Give an event stream."""
    with _recorded(body) as call:
        for event in _events(body):
            if event is None:
                await anyio.sleep_forever()
            else:
                yield server_sent(event)
                call.events += 1
                await _pause(body)


def plain_chunks(body: dict[str, Any]) -> Iterator[bytes]:
    """Give an event stream by a generator without `async`."""
    with _recorded(body) as call:
        for event in _events(body):
            assert event is not None, "a generator without async cannot wait"
            yield server_sent(event)
            call.events += 1


async def _pause(body: dict[str, Any]) -> None:
    """Wait as a model does between two events, if the turn says so."""
    if "pace" in _metadata(body):
        await anyio.sleep(_metadata(body)["pace"])


@contextmanager
def _recorded(body: dict[str, Any]) -> Iterator[Call]:
    call = Call()
    open_calls.add(id(call))
    if "key" in _metadata(body):
        calls[_metadata(body)["key"]] = call
    try:
        yield call
        call.outcome = "finished"
    except GeneratorExit:
        call.outcome = "closed"
        raise
    except asyncio.CancelledError:
        call.outcome = "cancelled"
        raise
    except BaseException:
        call.outcome = "raised"
        raise
    finally:
        open_calls.discard(id(call))


# -- scripts -------------------------------------------------------------------------------------------------------------


def _metadata(body: dict[str, Any]) -> dict[str, Any]:
    return body.get("metadata") or {}


def _last(body: dict[str, Any]) -> dict[str, Any]:
    *_, last = _model.events(body)
    return dict(last["response"])


def _events(body: dict[str, Any]) -> Iterator[Event | None]:
    """Give the events of a turn; None is a wait for ever."""
    metadata = _metadata(body)
    match metadata.get("do"):
        case "silence":
            return iter([None])
        case "stall":
            return itertools.chain(_begun(body), [None])
        case "break":
            return _broken(body)
        case "stream":
            return numbered(_many(ResponseBuilder(body), metadata["count"], metadata["size"]))
        case "turn":
            return ScriptedModel(text=_seen_turn(), deltas=1).events(body)
    return _model.events(body)


def _begun(body: dict[str, Any]) -> Iterator[Event]:
    builder = ResponseBuilder(body)
    return numbered([*builder.start(), *builder.message("begun", finish=False)])


def _broken(body: dict[str, Any]) -> Iterator[Event]:
    yield from _begun(body)
    raise RuntimeError("the stream is broken")


def _many(builder: ResponseBuilder, count: int, size: int) -> Iterator[Event]:
    """Give many deltas of one size."""
    *first, delta = [*builder.start(), *builder.message("x" * size, finish=False)]
    yield from first
    for _ in range(count):
        yield dict(delta)
    yield from builder.complete()


def _seen_turn() -> str:
    """What `current_turn` knows where the generator runs."""
    try:
        turn = current_turn()
    except WSResponsesError:
        return "no turn"
    return f"{len(turn.history())} before, {len(turn.delta)} new"
