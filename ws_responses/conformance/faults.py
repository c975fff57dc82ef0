"""Checks: frames that are wrong. Each is answered by one error frame, and the socket goes on."""

import json
from collections.abc import Sequence
from typing import Any

from ws_responses.conformance.check import OPENAI, Target, check, expect
from ws_responses.conformance.socket import connected


@check("bad-json", "A frame that is no JSON object is a 400; the socket goes on.")
async def bad_json(target: Target) -> None:
    """Send what cannot be read."""
    await _refused(target, ["{", "", "[]", '"x"', "null", '{"type":"response.create"', "\ufeff{}"])


@check("unknown-event", "A frame of an unknown type, or without one, is a 400; the socket goes on.")
async def unknown_event(target: Target) -> None:
    """Send types that no server knows."""
    frames: Sequence[dict[str, Any]] = [
        {"type": "response.nonsense"},
        {"type": "response.cancel", "response_id": "resp_1"},
        {"type": "response.append", "input": []},
        {"type": 5},
        {"type": None},
        {},
    ]
    await _refused(target, [json.dumps(frame) for frame in frames])


@check("wrong-types", "A member of a wrong type is a 400 whose 'param' names it; the socket goes on.")
async def wrong_types(target: Target) -> None:
    """Spoil one member at a time."""
    wrong: list[tuple[str, Any]] = [("input", 5), ("previous_response_id", 5), ("store", "yes")]
    if target.profile == "openai":
        wrong.append(("generate", "no"))
    async with connected(target) as socket:
        for name, value in wrong:
            frame = {"type": "response.create", **target.fields, "input": "x", name: value}
            await socket.send(json.dumps(frame))
            refusal = await socket.refusal()
            expect(refusal.status in {400, 422}, f"{name}: {value!r} is refused by {refusal.status}")
            expect(str(refusal.param).startswith(name), f"{name}: {value!r}: 'error.param' is {refusal.param!r}")
        expect((await socket.turn()).id, "the response has no id")


@check("background", "'background: true' is a 400; the socket goes on.", OPENAI)
async def background(target: Target) -> None:
    """Ask for what a socket has not."""
    frame = {"type": "response.create", **target.fields, "input": "x", "background": True}
    await _refused(target, [json.dumps(frame)])


@check("faults-in-a-turn", "A wrong frame within a turn does not disturb it.")
async def faults_in_a_turn(target: Target) -> None:
    """Send nonsense behind a create: the turn is judged as ever, and the error comes beside it."""
    async with connected(target) as socket:
        await socket.create()
        await socket.send("{")
        expect((await socket.beside()).id, "the response has no id")


async def _refused(target: Target, frames: Sequence[str]) -> None:
    async with connected(target) as socket:
        for frame in frames:
            await socket.send(frame)
            refusal = await socket.refusal()
            expect(refusal.status == 400, f"{frame!r:.60} is refused by {refusal.status}")
        expect((await socket.turn()).id, "the response has no id")
