"""Whatever an app streams: one turn of documented form; the socket goes on; what is kept of it is legal JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import cut, many, mutated, rearranged
from tests.fuzz.outcomes import assert_documented, no_fault_of_ours
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.instrumentation import Fact, TurnFinished
from ws_responses.testing import MemorySocket, ScriptedApp, settle, steps
from ws_responses.testing.builder import Event
from ws_responses.testing.strategies import event_streams, sse_bytes

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

BODIES = mutated(sse_bytes(event_streams(max_items=3)).map(lambda stream: stream.body), most=4)
LABELS = st.sampled_from(["text/event-stream", "text/event-stream", "application/json", "text/plain", ""])


async def play(chunks: list[bytes], **options: Any) -> None:
    """Let an app answer by these chunks, then take two more turns: one anew, and one that goes on from the first."""
    label = options.pop("label")
    stream_id = options.pop("stream_id")
    facts: list[Fact] = []
    app = ScriptedApp()
    app.script([steps.response_start(content_type=label), steps.raw_sse(*chunks)])
    middleware = ResponsesWebSocketMiddleware(app, hooks=[facts.append], **options)
    lane = {} if stream_id is None else {"stream_id": stream_id}
    create = {"type": "response.create", "model": "m", "input": "hi", "store": False, **lane}
    with no_fault_of_ours():
        async with MemorySocket(middleware, max_unread=None) as ws:
            await ws.send_json(create)
            await settle()
            ((lane_of_first, (first,)),) = assert_documented(ws.frames).items()
            assert lane_of_first == stream_id
            await ws.send_json(create)
            await settle()
            if "response" in first[-1]:
                await ws.send_json({**create, "previous_response_id": first[-1]["response"]["id"]})
                await settle()
            turns = assert_documented(ws.frames)[stream_id]

    ending = next(fact for fact in facts if isinstance(fact, TurnFinished))
    assert ending.outcome in {"completed", "incomplete", "failed", "error"}
    assert ending.usage is None or json.loads(ending.usage) is not None
    assert turns[1][-1]["type"] == "response.completed"
    if first[-1]["type"] in {"response.completed", "response.incomplete"}:
        _assert_goes_on(turns[2], app)
    elif "response" in first[-1]:
        assert turns[2][-1]["error"]["code"] == "previous_response_not_found"


def _assert_goes_on(turn: list[dict[str, Any]], app: ScriptedApp) -> None:
    """It may have called tools, which the turn does not answer; else the app has got all that it sent, as legal JSON."""
    if turn[-1]["type"] == "error":
        # The last is the scripted model's word: a call that the app has made up.
        assert turn[-1]["error"]["code"] in {"tool_output_missing", "invalid_request"}
        return
    body = json.loads(app.requests[-1].raw.decode())
    assert all(isinstance(item, dict) for item in body["input"])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@given(chunks=BODIES.flatmap(cut), label=LABELS, stream_id=st.sampled_from([None, "a"]), complete=st.booleans())
@many
async def test_any_stream_is_a_turn_of_documented_form(
    chunks: list[bytes], label: str, stream_id: str | None, complete: bool
) -> None:
    await play(chunks, label=label, stream_id=stream_id, complete_response=complete)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@given(
    events=rearranged(event_streams(max_items=3)),
    stream_id=st.sampled_from([None, "a"]),
    complete=st.booleans(),
    whole=st.booleans(),
)
@many
async def test_any_order_of_any_events_is_a_turn_of_documented_form(
    events: list[Event], stream_id: str | None, complete: bool, whole: bool
) -> None:
    chunks = [b"data: " + json.dumps(event).encode() + b"\n\n" for event in events]
    if whole:
        chunks = [b"".join(chunks)]
    await play(chunks, label="text/event-stream", stream_id=stream_id, complete_response=complete)
