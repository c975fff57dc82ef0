"""Checks: lanes (OpenAI's ``stream_id``), or that there are none."""

from typing import Any

from ws_responses.conformance.chains import spoil
from ws_responses.conformance.check import OPENAI, Skipped, Target, check, expect
from ws_responses.conformance.socket import Socket, connected
from ws_responses.conformance.turns import warmed

MAX_LANES = 32
"""Distinct names in the life of a connection (WebSocket guide)."""


@check("lane-label", "Every event of a named lane bears its 'stream_id', those of the default lane none.", OPENAI)
async def lane_label(target: Target) -> None:
    """Use both, one after the other."""
    async with connected(target) as socket:
        for lane in ("main", "a_B.c-9", "x" * 256):
            expect((await socket.turn(stream_id=lane)).id, "the response has no id")
        expect((await socket.turn()).id, "the response has no id")


@check("lanes-at-once", "Turns of different lanes run at once, each with numbers of its own.", OPENAI)
async def lanes_at_once(target: Target) -> None:
    """Use four lanes before the first is answered."""
    lanes: list[str | None] = ["one", "two", "three", None]
    async with connected(target) as socket:
        for lane in lanes:
            await socket.create(**_lane(lane))
        turns = [await socket.collect(lane) for lane in lanes]
        expect(len({turn.id for turn in turns}) == len(lanes), "two responses have the same id")


@check("lane-order", "Within a lane turns are answered in order, whatever other lanes do.", OPENAI)
async def lane_order(target: Target) -> None:
    """Interleave the creates of two lanes."""
    async with connected(target) as socket:
        for number in range(3):
            for lane in ("one", "two"):
                await socket.create(stream_id=lane, metadata={"turn": str(number)})
        for lane in ("two", "one"):
            told = [(await socket.collect(lane)).response.get("metadata") for _ in range(3)]
            if any(told):
                expect(told == [{"turn": str(number)} for number in range(3)], f"the lane {lane!r} answers {told}")


@check("fork", "A lane continues another lane's response; both chains go on.", OPENAI)
async def fork(target: Target) -> None:
    """Go on from one response in two lanes."""
    async with connected(target) as socket:
        root = await socket.turn()
        branch = await socket.turn("Left.", stream_id="branch", previous_response_id=root.id)
        trunk = await socket.turn("Right.", previous_response_id=root.id)
        expect((await socket.turn("More.", stream_id="branch", previous_response_id=branch.id)).id, "no id")
        expect((await socket.turn("More.", previous_response_id=trunk.id)).id, "no id")


@check("fork-keeps-parent", "A fork that fails leaves its parent to the lane that made it.", OPENAI)
async def fork_keeps_parent(target: Target) -> None:
    """Spoil a fork, and go on with the trunk."""
    async with connected(target) as socket:
        root = await socket.turn()
        await spoil(socket, root, stream_id="branch")
        expect((await socket.turn(previous_response_id=root.id)).id, "the response has no id")


@check(
    "lane-name",
    "A 'stream_id' that is no name is a 400 'invalid_stream_id' without a label; the socket goes on.",
    OPENAI,
)
async def lane_name(target: Target) -> None:
    """Send names that are none."""
    async with connected(target) as socket:
        for name in ("", "a b", "x" * 257, "ü", 7):
            await socket.create(stream_id=name)
            refusal = await socket.refusal()
            expect(refusal.code == "invalid_stream_id", f"{name!r:.20} is refused by {refusal.code!r}")
            expect(refusal.status == 400, f"the status is {refusal.status}, not 400")
            expect("stream_id" not in refusal.last, "the error bears a 'stream_id'")
        expect((await socket.turn()).id, "the response has no id")


@check("lane-limit", "The 33rd name of a socket is a 400 'websocket_stream_limit_reached'; known lanes go on.", OPENAI)
async def lane_limit(target: Target) -> None:
    """Use warm-ups in 32 lanes, and one more."""
    async with connected(target) as socket:
        warmed(await socket.turn("x", stream_id="lane-0", generate=False))
        for number in range(1, MAX_LANES):
            expect((await socket.turn("x", stream_id=f"lane-{number}", generate=False)).id, "the response has no id")
        await socket.create("x", stream_id="one-too-many", generate=False)
        refusal = await socket.refusal()
        expect(refusal.code == "websocket_stream_limit_reached", f"the code is {refusal.code!r}")
        expect(refusal.last.get("stream_id") == "one-too-many", "the error does not bear the name that is refused")
        expect((await socket.turn("x", stream_id="lane-0", generate=False)).id, "the response has no id")


@check("no-lanes", "There are no lanes: a 'stream_id' is refused, or means nothing.", ("open-responses",))
async def no_lanes(target: Target) -> None:
    """Use two lanes: what is answered is answered one after the other."""
    async with connected(target) as socket:
        await socket.create(stream_id="one")
        await socket.create(stream_id="two")
        for _ in range(2):
            await _one_at_a_time(socket)
        expect((await socket.turn()).id, "the response has no id")


async def _one_at_a_time(socket: Socket) -> None:
    first = await socket.next()
    if first["type"] == "error":
        return
    lane = first.get("stream_id")
    expect(lane is None, f"an event bears the 'stream_id' {lane!r}")
    if first["type"] != "response.created":
        raise Skipped("the turn does not begin with 'response.created'")
    await socket.rest(first)


def _lane(name: str | None) -> dict[str, Any]:
    return {} if name is None else {"stream_id": name}
