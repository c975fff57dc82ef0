"""Checks: responses that continue others."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import anyio.to_thread

from ws_responses.conformance.check import OPENAI, Failed, Skipped, Target, check, expect
from ws_responses.conformance.rules import as_items, as_object
from ws_responses.conformance.socket import Socket, Turn, connected

NOT_FOUND = "previous_response_not_found"
MISSING_CALL = "call_ws_responses_missing"


@check("continuation", "A response with 'store: false' is continued on its socket by its id and new input only.")
async def continuation(target: Target) -> None:
    """Go on twice."""
    async with connected(target) as socket:
        first = await socket.turn("Remember the code word: cobalt. Reply with OK.")
        second = await socket.turn("What is the code word?", previous_response_id=first.id)
        expect((await socket.turn("Say it again.", previous_response_id=second.id)).id, "the response has no id")


@check("null-parent", "'previous_response_id: null' begins a new chain.")
async def null_parent(target: Target) -> None:
    """Say that there is no parent."""
    async with connected(target) as socket:
        turn = await socket.turn(previous_response_id=None)
        expect(turn.id, "the response has no id")


@check("not-found", "An unknown 'previous_response_id' is a 400 'previous_response_not_found', and the socket goes on.")
async def not_found(target: Target) -> None:
    """Continue what never was."""
    async with connected(target) as socket:
        _expect_not_found(await socket.turn(previous_response_id="resp_ws_responses_missing"))
        expect((await socket.turn()).id, "the response has no id")


@check("reconnect", "A response with 'store: false' is unknown on another socket; a new chain can be begun there.")
async def reconnect(target: Target) -> None:
    """Come again."""
    async with connected(target) as socket:
        first = await socket.turn()
        expect(first.id, "the response has no id")
    async with connected(target) as socket:
        _expect_not_found(await socket.turn(previous_response_id=first.id))
        expect((await socket.turn()).id, "the response has no id")


@check("stored", "A response with 'store: true' is continued on another socket, or is not found there.")
async def stored(target: Target) -> None:
    """Come again for what was stored: a server may keep it."""
    async with connected(target) as socket:
        first = await socket.turn(store=True)
        expect(first.id, "the response has no id")
    async with connected(target) as socket:
        second = await socket.turn(store=True, previous_response_id=first.id)
        if second.code == NOT_FOUND:
            raise Skipped("nothing is stored beyond the socket")
        expect(second.id, "the response has no id")


@check("unknown-call", "A tool output whose call is unknown is refused, and the socket goes on.")
async def unknown_call(target: Target) -> None:
    """Answer what nobody asked."""
    async with connected(target) as socket:
        turn = await socket.turn([_output(MISSING_CALL)])
        expect(turn.code is not None, "a tool output without its call is taken")
        expect((await socket.turn()).id, "the response has no id")


@check("eviction", "A continuation that fails evicts its parent: later use of the id is 'previous_response_not_found'.")
async def eviction(target: Target) -> None:
    """Spoil a chain, and try to go on with it."""
    async with connected(target) as socket:
        first = await socket.turn()
        await spoil(socket, first)
        _expect_not_found(await socket.turn(previous_response_id=first.id))
        expect((await socket.turn()).id, "the response has no id")


@check("refusal-evicts-nothing", "A frame that never became a turn evicts nothing.")
async def refusal_evicts_nothing(target: Target) -> None:
    """Send a frame with a wrong type beside the parent's id."""
    async with connected(target) as socket:
        first = await socket.turn()
        await socket.create(5, previous_response_id=first.id)
        await socket.refusal()
        second = await socket.turn(previous_response_id=first.id)
        if second.code == NOT_FOUND:
            raise Skipped("here a wrong frame counts as a turn that failed")
        expect(second.id, "the response has no id")


@check("conversation", "'previous_response_id' and 'conversation' exclude each other.", OPENAI)
async def conversation(target: Target) -> None:
    """Name both."""
    async with connected(target) as socket:
        first = await socket.turn()
        await socket.create(previous_response_id=first.id, conversation="conv_1")
        refusal = await socket.refusal()
        expect(refusal.status == 400, f"the frame is refused by {refusal.status}")


@check("compaction", "The output of '/responses/compact' begins a new chain on a socket.")
async def compaction(target: Target) -> None:
    """Compact by HTTP, and go on over the socket."""
    messages = [
        {"type": "message", "role": "user", "content": "We launch on Tuesday."},
        {"type": "message", "role": "assistant", "content": "Understood."},
    ]
    status, body = await anyio.to_thread.run_sync(_post, target, {**target.fields, "input": messages})
    if status in {404, 405, 501}:
        raise Skipped(f"there is no /responses/compact ({status})")
    expect(status == 200, f"/responses/compact is answered by {status}")
    expect(body.get("object") == "response.compaction", f"the 'object' of a compaction is {body.get('object')!r}")
    output = as_items(body.get("output"))
    kinds = [item.get("type") for item in output]
    expect("compaction" in kinds, f"the output of a compaction has no compaction item: {kinds}")
    async with connected(target) as socket:
        turn = await socket.turn([*output, {"type": "message", "role": "user", "content": "Go on."}])
        expect(turn.id, "the response has no id")


def _output(call_id: str) -> dict[str, str]:
    return {"type": "function_call_output", "call_id": call_id, "output": "done"}


async def spoil(socket: Socket, parent: Turn, **members: Any) -> None:
    """Continue a response by a turn that must fail."""
    turn = await socket.turn([_output(MISSING_CALL)], previous_response_id=parent.id, **members)
    expect(turn.code is not None, "a tool output without its call is taken")


def _expect_not_found(turn: Turn) -> None:
    expect(turn.code == NOT_FOUND, f"the code is {turn.code!r}, not {NOT_FOUND!r}")
    if turn.status is not None:
        expect(turn.status == 400, f"the status is {turn.status}, not 400")
        expect(turn.param == "previous_response_id", f"'error.param' is {turn.param!r}")


def _post(target: Target, body: Mapping[str, Any]) -> tuple[int, Mapping[str, Any]]:
    parts = urlsplit(target.url)
    scheme = {"ws": "http", "wss": "https"}[parts.scheme]
    url = urlunsplit((scheme, parts.netloc, parts.path + "/compact", parts.query, ""))
    headers = {"content-type": "application/json"}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - http or https, see above
    try:
        with urllib.request.urlopen(request, timeout=target.timeout_s) as answer:  # noqa: S310
            return answer.status, as_object(json.load(answer))
    except urllib.error.HTTPError as error:
        return error.code, {}
    except (OSError, ValueError) as error:
        raise Failed(f"/responses/compact: {type(error).__name__}") from None
