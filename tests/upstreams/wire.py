"""What a legal stream of one turn is (API reference, streaming events; guide, multiplexing), as a check of its frames."""

import json
from collections.abc import Awaitable, Generator, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from ws_responses.errors import WireError
from ws_responses.upstreams.repair import TurnStream

Event = dict[str, Any]

LIFECYCLE = {"response.created", "response.in_progress", "response.queued"}
TERMINAL = {"response.completed", "response.failed", "response.incomplete"}

_PARTS = ("output_text", "refusal", "reasoning_text", "content_part")
_ARGUMENTS = ("function_call_arguments", "custom_tool_call_input", "mcp_call_arguments", "code_interpreter_call_code")
_SUMMARIES = ("reasoning_summary_part", "reasoning_summary_text")


def compact(event: Mapping[str, Any]) -> bytes:
    """Return JSON as most apps write it."""
    return json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode()


class _Done:
    def __await__(self) -> Generator[None, None, None]:
        return
        yield


_DONE = _Done()


class Turn:
    """What the stream needs of a turn: it counts signs of life."""

    heard = 0


def play(payloads: Iterable[bytes], stream: TurnStream) -> list[bytes]:
    """Let events through as a turn does, to the closing frame: most by the relay, some plain, and the others."""
    frames: list[bytes] = []
    closed = False

    def write(text: str) -> Awaitable[None]:
        frames.append(text.encode())
        return _DONE

    def otherwise(payload: bytes) -> Awaitable[None]:
        nonlocal closed
        frame = stream.plain(payload)
        if frame is not None:
            frames.append(frame)
            return _DONE
        try:
            frames.extend(stream.feed(payload))
        except WireError as error:
            frames.append(stream.fail(error))
            closed = True
        if stream.end is not None:
            frames.append(stream.end.frame)
            closed = True
        return _DONE

    relay = stream.relay(cast("Any", Turn()), write, otherwise)
    for payload in payloads:
        if not closed:
            relay(payload)
    return frames


def played(payloads: Iterable[bytes | Mapping[str, Any]], stream: TurnStream) -> list[Event]:
    """Return the frames decoded; duplicate keys fail the test, since readers differ on them."""
    encoded = [payload if isinstance(payload, bytes) else compact(payload) for payload in payloads]
    return [decoded(frame) for frame in play(encoded, stream)]


def decoded(frame: bytes | str) -> Event:
    """Decode a frame; duplicate keys fail the test, since readers differ on them."""
    event: Event = json.loads(frame, object_pairs_hook=_unique)
    return event


def _unique(pairs: list[tuple[str, Any]]) -> Event:
    keys = [key for key, _ in pairs]
    assert len(set(keys)) == len(keys), f"duplicate keys: {keys}"
    return dict(pairs)


def in_content(kind: str) -> bool:
    return kind.startswith(tuple(f"response.{part}." for part in _PARTS))


def is_placed(kind: str) -> bool:
    parts = (*_PARTS, *_ARGUMENTS, *_SUMMARIES)
    return kind.startswith(tuple(f"response.{part}." for part in parts))


def assert_legal(
    events: Sequence[Event],
    *,
    stream_id: str | None = None,
    previous_response_id: str | None = None,
    all_done: bool = True,
) -> None:
    """Fail unless the events are one whole, legal turn.

    Args:
        events: The decoded frames.
        stream_id: The lane.
        previous_response_id: The parent.
        all_done: Every announced item must be finished before a terminal event other than `response.failed`.
    """
    kinds = [event["type"] for event in events]
    of_response = [kind for kind in kinds if kind.startswith("response.")]
    assert of_response[:1] == ["response.created"], "response.created comes first"
    assert kinds.count("response.created") == 1
    assert sum(kind in TERMINAL or kind == "error" for kind in kinds) == 1, "exactly one terminal event"
    assert kinds[-1] in TERMINAL, "the terminal event comes last"
    numbers = [event["sequence_number"] for event in events]
    assert all(type(number) is int and number >= 0 for number in numbers), numbers
    assert all(a < b for a, b in pairwise(numbers)), f"numbers rise: {numbers}"
    for event in events:
        if stream_id is None:
            assert "stream_id" not in event
        else:
            assert event["stream_id"] == stream_id
    responses = [event["response"] for event in events if event["type"] in LIFECYCLE | TERMINAL]
    assert len({response["id"] for response in responses}) == 1, "one response id throughout"
    assert isinstance(responses[0]["id"], str)
    if previous_response_id is not None:
        assert {response["previous_response_id"] for response in responses} == {previous_response_id}
    _assert_items(events, all_done=all_done)


def _assert_items(events: Sequence[Event], *, all_done: bool) -> None:
    added: dict[int, Any] = {}
    done: dict[int, Any] = {}
    for event in events:
        kind = event["type"]
        if kind == "response.output_item.added":
            assert event["output_index"] not in added, "an item is added once"
            added[event["output_index"]] = event["item"]
        elif kind == "response.output_item.done":
            assert event["output_index"] in added, "added before done"
            assert event["output_index"] not in done, "done once"
            done[event["output_index"]] = event["item"]
        elif is_placed(kind):
            assert event["output_index"] in added, f"added before {kind}"
            assert event["output_index"] not in done, f"{kind} before done"
            assert isinstance(event["item_id"], str)
            assert event["item_id"]
            assert type(event.get("content_index", 0)) is int
            assert ("content_index" in event) == in_content(kind)
    if events[-1]["type"] == "response.failed" or not all_done:
        return
    assert sorted(done) == sorted(added), "every announced item is done"
    assert [done[index] for index in sorted(done)] == events[-1]["response"]["output"], "done items are the output"
