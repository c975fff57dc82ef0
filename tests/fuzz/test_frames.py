"""Whatever a client sends: documented errors, or turns; the socket goes on; the app sees legal requests only."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.mutations import many, mutated
from tests.fuzz.outcomes import assert_documented, no_fault_of_ours
from ws_responses import Limits, ResponsesWebSocketMiddleware
from ws_responses.protocol.actions import AbortTurn, Close, DropTurn, Send, StartTurn, TurnQueued
from ws_responses.protocol.session import Session
from ws_responses.testing import MemorySocket, ScriptedApp, settle
from ws_responses.testing.strategies import client_frames

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

FRAMES = mutated(client_frames().map(lambda text: text.encode("utf-8", "surrogatepass")))
CODES = {
    "invalid_json",
    "invalid_request",
    "unknown_event_type",
    "invalid_stream_id",
    "websocket_stream_limit_reached",
    "websocket_queue_full",
    "previous_response_not_found",
    "invalid_store_transition",
    "tool_call_not_found",
    "tool_output_missing",
    "request_too_large",
    "warm_up_too_large",
}
"""Ours; the scripted app adds none that a frame can provoke but `invalid_request`."""


def as_sent(data: bytes, *, binary: bool) -> str | bytes:
    if binary:
        return data
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@given(frames=st.lists(st.builds(as_sent, FRAMES, binary=st.booleans()), min_size=1, max_size=6))
@many
async def test_any_frames_have_documented_outcomes(frames: list[str | bytes]) -> None:
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, accept_wrapped=True)
    with no_fault_of_ours():
        async with MemorySocket(middleware, max_unread=None) as ws:
            for frame in frames:
                await (ws.send_text(frame) if isinstance(frame, str) else ws.send_bytes(frame))
            await settle()
            assert ws.close_code is None
            good = await ws_turn(ws)
            await settle()
            turns = assert_documented(ws.frames)

    assert good["type"] == "response.completed"
    for lane_turns in turns.values():
        for turn in lane_turns:
            if turn[-1]["type"] == "error":
                assert turn[-1]["error"]["code"] in CODES, turn[-1]
    for request in app.requests:
        body = json.loads(request.raw.decode())
        assert body["stream"] is True
        assert not body.keys() & {"type", "stream_id", "generate", "previous_response_id", "response", "background"}


async def ws_turn(ws: MemorySocket) -> dict[str, Any]:
    # A lane of its own may be one too many; the default lane is free when all tasks rest.
    before = len(ws.frames)
    await ws.send_json({"type": "response.create", "model": "m", "input": "hi"})
    await settle()
    last: dict[str, Any] = json.loads(ws.frames[-1])
    assert len(ws.frames) > before
    return last


@given(data=FRAMES, wrapped=st.booleans())
@many
def test_the_session_takes_any_bytes(data: bytes, wrapped: bool) -> None:
    """Nothing raises for a bad peer (the contract of the session), not even what only looks like text."""
    session = Session(Limits(max_frame_bytes=65536), now=0, turn_ids=lambda: "turn_1", accept_wrapped=wrapped)
    frames: list[str | bytes] = [data, data.decode("latin-1"), data.decode("utf-8", "surrogateescape")]
    for number, frame in enumerate(frames):
        for action in session.frame_received(frame, number):
            assert isinstance(action, Send | StartTurn | TurnQueued | Close | AbortTurn | DropTurn)
            if isinstance(action, Send):
                json.loads(action.frame)
            elif isinstance(action, StartTurn):
                session.turn_ended(action.turn, number)
