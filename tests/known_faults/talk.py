"""What the tests of known faults have in common: the words of a short conversation."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.testing import ResponseBuilder, counting_ids, numbered

Event = dict[str, Any]

KEY = [(b"authorization", b"Bearer k")]
"""Credentials, so that sockets have a tenant in common."""

TENANT_KEY = b"of all workers, which share a store"
"""For stores other than the one in memory."""


def create(**members: Any) -> Event:
    """Return the body of a create."""
    return {"model": "m", "input": "hi", **members}


def follow(events: Sequence[Event], **members: Any) -> Event:
    """Return the body of a create that continues the response of a turn."""
    return create(previous_response_id=id_of(events), **members)


def response(events: Sequence[Event]) -> Event:
    """Return the response object of a turn that ended well."""
    last = events[-1]
    assert last["type"] in {"response.completed", "response.incomplete"}, last
    given: Event = last["response"]
    return given


def id_of(events: Sequence[Event]) -> str:
    """Return the id of the response of a turn that ended well."""
    return str(response(events)["id"])


def failure(events: Sequence[Event]) -> tuple[int, str, str | None]:
    """Return status, code and param of a turn that was answered by an error frame and nothing else."""
    (frame,) = events
    assert frame["type"] == "error", frame
    assert "response" not in frame
    return frame["status"], frame["error"]["code"], frame["error"]["param"]


def kinds(events: Sequence[Event]) -> list[str]:
    """Return the types of events."""
    return [event["type"] for event in events]


def said(text: str) -> Event:
    """Return a message of the user."""
    return {"type": "message", "role": "user", "content": text}


def answer(text: str = "Hello", *, deltas: int = 1, response_id: str = "resp_a") -> list[Event]:
    """Return the events of a response in the usual order."""
    builder = ResponseBuilder({"model": "m"}, response_id=response_id, id_factory=counting_ids(), created_at=1)
    return list(numbered([*builder.start(), *builder.message(text, deltas=deltas), *builder.complete()]))


def sse(event: Mapping[str, Any], *, end: str = "\n", indent: int | None = None) -> bytes:
    """Return an event as an app writes it."""
    lines = json.dumps(event, ensure_ascii=False, indent=indent).split("\n")
    return "".join([f"event: {event['type']}{end}", *(f"data: {line}{end}" for line in lines), end]).encode()


def endings(facts: Sequence[Fact]) -> list[TurnFinished]:
    """Return the facts about the ends of turns."""
    return [fact for fact in facts if isinstance(fact, TurnFinished)]


NOT_FOUND = (400, "previous_response_not_found", "previous_response_id")
