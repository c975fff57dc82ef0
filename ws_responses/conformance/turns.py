"""Checks: the upgrade, single turns, and what a client may do beside them."""

from ws_responses.conformance.check import OPENAI, Skipped, Target, check, expect
from ws_responses.conformance.rules import as_object
from ws_responses.conformance.socket import Turn, UpgradeRefused, connected
from ws_responses.protocol import events

FRAME_CHARS = 17 * 1024 * 1024
"""Above the 16 MiB at which OpenAI's route closes."""

WRONG_KEY = "ws-responses-conformance-wrong-key"


@check("upgrade", "The upgrade is accepted, and a ping answered by a pong.")
async def upgrade(target: Target) -> None:
    """Look at a socket on which nothing is asked."""
    async with connected(target) as socket:
        await socket.ping()


@check("wrong-key", "A wrong key is refused: at the upgrade by 401 or 403, or by an error frame.")
async def wrong_key(target: Target) -> None:
    """Come with a key that nobody has."""
    if target.api_key is None:
        raise Skipped("no --api-key was given")
    try:
        async with connected(target, api_key=WRONG_KEY) as socket:
            await socket.create()
            refusal = await socket.refusal()
            expect(refusal.status in {401, 403}, f"a turn with a wrong key is refused by {refusal.status}")
    except UpgradeRefused as refused:
        expect(refused.status in {401, 403}, f"an upgrade with a wrong key is answered by {refused.status}")


@check("response", "A create is answered by numbered events, from 'response.created' to one terminal event.")
async def response(target: Target) -> None:
    """Ask once."""
    async with connected(target) as socket:
        _completed(await socket.turn())


@check("items", "Input may be a list of messages.")
async def items(target: Target) -> None:
    """Ask by items."""
    async with connected(target) as socket:
        _completed(await socket.turn([{"type": "message", "role": "user", "content": "Say hello."}]))


@check("sequential", "A socket serves one turn after another, each with an id and numbers of its own.")
async def sequential(target: Target) -> None:
    """Ask twice."""
    async with connected(target) as socket:
        first = await socket.turn("Reply with exactly: first")
        second = await socket.turn("Reply with exactly: second")
        expect(first.id != second.id, f"two responses have the id {first.id!r}")


@check("queue", "A create that comes while another runs waits: turns of one lane are answered in order, one at a time.")
async def queue(target: Target) -> None:
    """Ask three times at once; each turn is judged by itself, so that none may begin within another."""
    metadata = [{"turn": str(number)} for number in range(3)]
    async with connected(target) as socket:
        for each in metadata:
            await socket.create(metadata=each)
        turns = [await socket.collect() for _ in metadata]
    expect(len({turn.id for turn in turns}) == len(turns), "two responses have the same id")
    told = [turn.response.get("metadata") for turn in turns]
    if any(told):
        expect(told == metadata, f"turns are answered out of order: {told}")


@check("many-creates", "Twenty creates at once are all answered: by a response each, or by 429.")
async def many_creates(target: Target) -> None:
    """Ask more often than most servers run at once."""
    short = {"max_output_tokens": target.fields.get("max_output_tokens", 16)}
    async with connected(target) as socket:
        for _ in range(20):
            await socket.create(**short)
        turns = [await socket.collect() for _ in range(20)]
    refused = [turn for turn in turns if turn.code is not None]
    expect(all(turn.status == 429 for turn in refused), f"creates fail: {[turn.code for turn in refused]}")
    expect(len(refused) < len(turns), "all creates are refused")


@check("stream-field", "A 'stream: true' in a create is taken: real clients send it.", OPENAI)
async def stream_field(target: Target) -> None:
    """Send what means nothing on a socket."""
    async with connected(target) as socket:
        _completed(await socket.turn(stream=True))


@check("processed", "'response.processed' is taken, and answered by nothing.", OPENAI)
async def processed(target: Target) -> None:
    """Acknowledge a response as Codex does, then ask again."""
    async with connected(target) as socket:
        first = await socket.turn()
        await socket.send(f'{{"type":"response.processed","response_id":"{first.id}"}}')
        _completed(await socket.turn())


@check("warm-up", "'generate: false' gives a completed response without output, which can be continued.")
async def warm_up(target: Target) -> None:
    """Prepare a chain, and go on with nothing new."""
    async with connected(target) as socket:
        turn = warmed(await socket.turn("Say hello.", generate=False))
        expect(turn.last["type"] == events.COMPLETED, f"a warm-up ends by {turn.last['type']!r}")
        expect(turn.response.get("output") == [], "a warm-up has output")
        generated = as_object(turn.response.get("usage")).get("output_tokens")
        expect(not generated, f"a warm-up has generated {generated} tokens")
        _completed(await socket.turn([], previous_response_id=turn.id))


@check("client-leaves", "A client that leaves within a turn harms nobody else.")
async def client_leaves(target: Target) -> None:
    """Leave after the first event, and come again."""
    async with connected(target) as staying:
        async with connected(target) as leaving:
            await leaving.create()
            await leaving.next()
        _completed(await staying.turn())
        async with connected(target) as again:
            _completed(await again.turn())


@check("frame-limit", "A frame of 17 MiB is answered by an error or by close 1009, and new sockets are served.")
async def frame_limit(target: Target) -> None:
    """Send more than any turn needs."""
    async with connected(target) as socket:
        # Its model is none, so that nobody generates from it where such a frame is taken.
        code = await socket.oversized('{"type":"response.create","model":5,"input":"' + "x" * FRAME_CHARS + '"}')
        expect(code in {None, 1009}, f"the socket is closed by {code}")
    async with connected(target) as socket:
        _completed(await socket.turn())


def warmed(turn: Turn) -> Turn:
    """Return a warm-up.

    Raises:
        Skipped: The server has none.
    """
    if turn.status is not None:
        raise Skipped(f"warm-ups are not served ({turn.code})")
    return turn


def _completed(turn: Turn) -> None:
    expect(turn.id, "the response has no id")
