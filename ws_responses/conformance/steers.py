"""Checks: steering (OpenAI's ``response.steer``). A server need not know it; one that does keeps to it."""

import json
from typing import Final

from ws_responses.conformance.check import OPENAI, Skipped, Target, check, expect
from ws_responses.conformance.rules import Event, as_object, judge_turn
from ws_responses.conformance.socket import Socket, connected
from ws_responses.protocol import events, steering

MISSING: Final = "resp_ws_responses_missing"
GIVEN: Final = "Stop counting, and say goodbye."


@check(
    "steer-unknown",
    "A steer of a response that is not there comes back in 'response.steer.failed', with 'response_not_found' and its input.",
    OPENAI,
)
async def steer_unknown(target: Target) -> None:
    """Steer what never was; the socket goes on."""
    async with connected(target) as socket:
        await _steer(socket, MISSING)
        failed = await _next(socket)
        expect(failed["type"] == steering.FAILED, f"the steer is answered by {failed['type']!r}")
        _judge_returned(failed, MISSING)
        code = as_object(failed.get("error")).get("code")
        expect(code == "response_not_found", f"the code is {code!r}")
        expect((await socket.turn()).id, "the response has no id")


@check(
    "steer",
    "A steer is accepted, and a successor of the response goes on from it; or it comes back with its input.",
    OPENAI,
)
async def steer(target: Target) -> None:
    """Steer a response that has just begun."""
    async with connected(target) as socket:
        await socket.create("Count from one to fifty, in words.")
        first = await socket.next()
        expect(first["type"] == events.CREATED, f"a turn begins with {first['type']!r}")
        steered = str(as_object(first.get("response")).get("id"))
        await _steer(socket, steered)
        turn, told = await _until_over(socket, [first])
        judge_turn(turn, lane=None, previous=None, profile=target.profile)
        if told is None:
            told = await _next(socket)
        if told["type"] == steering.FAILED:
            _judge_returned(told, steered)
            return
        expect(told["type"] == steering.ACCEPTED, f"the steer is answered by {told['type']!r}")
        expect(as_object(told.get("steer")).get("id"), "'response.steer.accepted' has no 'steer.id'")
        await _judge_successor(socket, turn[-1], steered, target)


async def _judge_successor(socket: Socket, last: Event, steered: str, target: Target) -> None:
    if last["type"] == events.INCOMPLETE:
        reason = as_object(as_object(last.get("response")).get("incomplete_details")).get("reason")
        expect(reason == steering.STEERED, f"a steered response is incomplete because of {reason!r}")
    following = await _next(socket)
    if following["type"] in {steering.PENDING, steering.FAILED}:
        return
    turn, _ = await _until_over(socket, [following])
    judge_turn(turn, lane=None, previous=steered, profile=target.profile)


async def _steer(socket: Socket, response_id: str) -> None:
    frame = {"type": steering.STEER, "previous_response_id": response_id, "input": GIVEN}
    await socket.send(json.dumps(frame))


async def _next(socket: Socket) -> Event:
    """Return the next frame.

    Raises:
        Skipped: It says that there is no such event here.
    """
    event = await socket.next()
    if event["type"] == events.ERROR:
        raise Skipped("there is no 'response.steer' here")
    return event


async def _until_over(socket: Socket, turn: list[Event]) -> tuple[list[Event], Event | None]:
    """Return all events of a response, and what was told of the steer within it."""
    told: Event | None = None
    while turn[-1]["type"] not in events.TERMINAL:
        event = await _next(socket)
        if event["type"].startswith(steering.STEER + "."):
            told = event
        else:
            turn.append(event)
    return turn, told


def _judge_returned(failed: Event, response_id: str) -> None:
    told = as_object(failed.get("steer"))
    expect(told.get("input") == GIVEN, f"'steer.input' comes back as {told.get('input')!r}")
    expect(
        told.get("previous_response_id") == response_id,
        f"'steer.previous_response_id' is {told.get('previous_response_id')!r}",
    )
    error = as_object(failed.get("error"))
    for name in ("type", "code", "message"):
        expect(isinstance(error.get(name), str), f"'error.{name}' of a steer that failed is {error.get(name)!r}")
