"""A frame is gone when it has been dealt with: an idle connection must not hold the 16 MiB that it got last."""

import json
import sys
from typing import Any

import pytest

from tests.shell import create
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses._types import Message, Receive, Scope, Send
from ws_responses.testing import MemorySocket, settle


async def forgetful_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers in two events, and keeps nothing of the request."""
    assert scope["type"] == "http"
    await receive()
    begun = {"id": f"resp_{id(scope)}", "object": "response", "status": "in_progress", "output": []}
    events: list[dict[str, Any]] = [
        {"type": "response.created", "sequence_number": 0, "response": begun},
        {"type": "response.completed", "sequence_number": 1, "response": {**begun, "status": "completed"}},
    ]
    start: Message = {
        "type": "http.response.start",
        "status": 200,
        "headers": [(b"content-type", b"text/event-stream")],
    }
    await send(start)
    for event in events:
        data = b"data: " + json.dumps(event).encode() + b"\n\n"
        await send({"type": "http.response.body", "body": data, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize(
    "frame",
    [
        create("a string"),
        create([{"role": "user", "content": "items"}], tools=[{"type": "function", "name": "f"}], instructions="x"),
        create([{"role": "user", "content": "é"}]),
        create([{"role": "user", "content": "a warm-up"}], generate=False),
        create(7),
        create([{"type": "function_call_output", "call_id": "unknown"}]),
        create(previous_response_id="unknown"),
        {"type": "unknown"},
    ],
    ids=["string", "items", "not ascii", "warm-up", "malformed", "refused", "no parent", "no event"],
)
async def test_nothing_holds_a_frame_that_is_dealt_with(frame: dict[str, Any]) -> None:
    """Neither the reader, which waits for the next one, nor what is kept of the turn."""
    text = json.dumps(frame, ensure_ascii=False)
    async with MemorySocket(ResponsesWebSocketMiddleware(forgetful_app)) as socket:
        held = sys.getrefcount(text)
        await socket.send_text(text)
        await socket.collect()
        await settle()
        assert sys.getrefcount(text) == held + socket.sent.count(text)
