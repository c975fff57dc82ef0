"""Lanes that flood the socket: how long a quiet one waits, in frames."""

import json
from collections.abc import Sequence
from typing import Any

import anyio
import pytest

from tests.shell import create
from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import MemorySocket, ScriptedApp, steps

BURST = 128
"""Frames after which a task that nothing blocks lets others run (the writer's number)."""


ROUNDS = 3
"""Of the loop, until the task that was woken has written: trio shuffles who comes first."""

FLOOD = 600
"""Deltas of a flooding answer, before and after the quiet lane's event is ready."""


@pytest.mark.parametrize("floods", [1, 4])
@pytest.mark.parametrize("max_unread", [None, 0, 4])
async def test_a_quiet_lane_is_heard_within_a_bound_of_the_frames_of_flooding_ones(
    floods: int, max_unread: int | None
) -> None:
    """Its event is ready in the middle of the flood, and passes by most of it; without a yield it would come last.

    A server that never blocks: each flooding lane may have its burst before it is the quiet one's turn. One that blocks: lanes
    take turns frame by frame.
    """
    ready = anyio.Event()
    ready_at: list[int] = []

    def script(body: dict[str, Any]) -> Sequence[steps.Step]:
        if body["input"] == "quiet":
            return [steps.created(), steps.wait_for(ready), steps.text("q", deltas=1)]
        flood = steps.text("f" * FLOOD, deltas=FLOOD)
        return [flood, steps.call(tell), flood] if body["input"] == "flood 0" else [flood, flood]

    async def tell() -> None:
        ready_at.append(len(ws.frames))
        ready.set()

    app = ScriptedApp()
    app.script(script)
    async with MemorySocket(ResponsesWebSocketMiddleware(app), max_unread=max_unread) as ws:
        await ws.send_json(create("quiet", stream_id="quiet"))
        await ws.receive_json()
        await ws.receive_json()
        for number in range(floods):
            await ws.send_json(create(f"flood {number}", stream_id=f"flood{number}"))
        ended = 0
        while ended <= floods:
            ended += (await ws.receive_json())["type"] == "response.completed"

    order = [json.loads(frame)["stream_id"] for frame in ws.frames]
    first = order.index("quiet", ready_at[0])
    last = len(order) - 1 - order[::-1].index("quiet")
    if max_unread is None:
        assert first - ready_at[0] <= ROUNDS * floods * BURST
        assert last - first <= ROUNDS * floods * BURST
    else:
        assert first - ready_at[0] <= 2 * (floods + 1)
        assert last - first <= 2 * order.count("quiet") * (floods + 1)
    assert len(order) - last > FLOOD / 2, "the flood was over before"
