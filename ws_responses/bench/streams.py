"""Ready event streams: what the benchmark apps answer, encoded before anything is measured."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import count
from typing import Any

from ws_responses.protocol.events import encode

DELTA_TEXT = "lorem i "
"""Text of one delta: eight characters, which makes an event of about 200 bytes, as models stream them."""


def response(response_id: str, status: str, output: list[Any], usage: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a response object with the members that OpenAI sends."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": 1_790_000_000,
        "completed_at": 1_790_000_001 if status == "completed" else None,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "model": "bench",
        "output": output,
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "reasoning": {"effort": None, "summary": None},
        "service_tier": "default",
        "store": False,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": usage,
        "metadata": {},
    }


def usage(output_tokens: int) -> dict[str, Any]:
    """Return a usage object."""
    return {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 10 + output_tokens,
    }


def text_turn(deltas: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a turn that streams a message in ``deltas`` pieces: ``deltas + 8`` events."""
    response_id, item_id = "resp_0f5c91d2a86b4e73a9d8c41b7e6f2035", "msg_0f5c91d2a86b4e73a9d8c41b7e6f2035"
    at: dict[str, Any] = {"item_id": item_id, "output_index": 0, "content_index": 0}
    text = DELTA_TEXT * deltas
    part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    item: dict[str, Any] = {
        "id": item_id,
        "type": "message",
        "status": "completed",
        "role": "assistant",
        "content": [part],
    }
    yield {"type": "response.created", "response": response(response_id, "in_progress", [])}
    yield {"type": "response.in_progress", "response": response(response_id, "in_progress", [])}
    yield {
        "type": "response.output_item.added",
        "output_index": 0,
        "item": {**item, "status": "in_progress", "content": []},
    }
    yield {"type": "response.content_part.added", **at, "part": {**part, "text": ""}}
    for _ in range(deltas):
        yield {"type": "response.output_text.delta", **at, "delta": DELTA_TEXT, "logprobs": []}
    yield {"type": "response.output_text.done", **at, "text": text, "logprobs": []}
    yield {"type": "response.content_part.done", **at, "part": part}
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    yield {"type": "response.completed", "response": response(response_id, "completed", [item], usage(deltas))}


def events_of(deltas: int) -> int:
    """Return the number of events of :func:`text_turn`."""
    return deltas + 8


@lru_cache(8)
def encoded(deltas: int) -> tuple[tuple[str, bytes], ...]:
    """Return :func:`text_turn` as pairs of type and encoded event, numbered."""
    return tuple(
        (event["type"], encode({**event, "sequence_number": number})) for number, event in enumerate(text_turn(deltas))
    )


class ShortTurn:
    """A turn that says nothing: its terminal event alone, or ``response.created`` before it; with a new id each time.

    Args:
        events: 1 or 2.
    """

    def __init__(self, events: int) -> None:
        kinds = (("response.created", "in_progress"), ("response.completed", "completed"))
        self._patterns: list[tuple[str, bytes]] = []
        self._ids = count(1)
        for number, (kind, status) in enumerate(kinds[-events:]):
            spent = usage(0) if status == "completed" else None
            event = {"type": kind, "sequence_number": number, "response": response("@", status, [], spent)}
            self._patterns.append((kind, encode(event).replace(b'"@"', b'"resp_%032x"')))
        self._chunks = [sse(kind, pattern) for kind, pattern in self._patterns]

    def events(self) -> list[bytes]:
        """Return the encoded events of the next turn."""
        number = next(self._ids)
        return [pattern % number for _, pattern in self._patterns]

    def chunks(self) -> list[bytes]:
        """Return the same as server-sent events."""
        number = next(self._ids)
        return [chunk % number for chunk in self._chunks]


def sse(kind: str, event: bytes) -> bytes:
    """Return an event as a server-sent one, with its ``event:`` line."""
    return b"event: %s\ndata: %s\n\n" % (kind.encode(), event)
