"""What is true of every event, every turn and every error, whatever was asked."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from ws_responses.conformance.check import Failed, expect
from ws_responses.protocol import events
from ws_responses.protocol.profiles import RENAMED, Profile, is_served

Event = Mapping[str, Any]

_NULL: Final = type(None)
_NUMBER: Final = (int, float)
_MEMBERS: Final[dict[str, tuple[type, ...]]] = {
    "id": (str,),
    "object": (str,),
    "created_at": (int,),
    "completed_at": (int, _NULL),
    "status": (str,),
    "incomplete_details": (dict, _NULL),
    "model": (str,),
    "previous_response_id": (str, _NULL),
    "instructions": (str, _NULL),
    "output": (list,),
    "error": (dict, _NULL),
    "tools": (list,),
    "tool_choice": (str, dict),
    "truncation": (str,),
    "parallel_tool_calls": (bool,),
    "text": (dict,),
    "top_p": _NUMBER,
    "presence_penalty": _NUMBER,
    "frequency_penalty": _NUMBER,
    "top_logprobs": (int,),
    "temperature": _NUMBER,
    "reasoning": (dict, _NULL),
    "usage": (dict, _NULL),
    "max_output_tokens": (int, _NULL),
    "max_tool_calls": (int, _NULL),
    "store": (bool,),
    "background": (bool,),
    "service_tier": (str,),
    "safety_identifier": (str, _NULL),
    "prompt_cache_key": (str, _NULL),
}
"""Members of a response object by the schema of Open Responses 2026-04-24."""

_SSE: Final = re.compile(r"\s*(event|data|id|retry):").match


def as_object(value: object) -> Event:
    """Return a value as an object; an empty one if it is none."""
    return cast("Event", value) if isinstance(value, dict) else {}


def as_items(value: object) -> list[Event]:
    """Return a value as a list of objects.

    Raises:
        Failed: It is none.
    """
    expect(isinstance(value, list), "an 'output' is missing, or no list")
    return [as_object(item) for item in cast("list[object]", value)]


def judge_text(frame: str | bytes) -> str:
    """Return the text of a frame.

    Raises:
        Failed: It is binary, or a line of an event stream.
    """
    if isinstance(frame, bytes):
        raise Failed("a frame is binary; events are text frames")
    expect(not _SSE(frame), f"a frame is a line of an event stream: {frame[:60]!r}")
    return frame


def judge_error(event: Event) -> None:
    """Look at an ``error`` frame.

    Raises:
        Failed: It is not of the documented shape.
    """
    error, status = as_object(event.get("error")), event.get("status")
    expect(error, "an error frame has no object 'error'")
    expect(type(status) is int and 400 <= status <= 599, f"the 'status' of an error frame is {status!r}")
    for name in ("code", "message"):
        expect(
            isinstance(error.get(name), str) and error[name], f"'error.{name}' of an error frame is {error.get(name)!r}"
        )


def judge_turn(turn: Sequence[Event], *, lane: str | None, previous: str | None, profile: Profile) -> None:
    """Look at all events of a turn that ended by a terminal event.

    Raises:
        Failed: One of them breaks a rule.
    """
    expect(turn[0]["type"] == events.CREATED, f"a turn begins with {turn[0]['type']!r}")
    last = -1
    for event in turn:
        number = event.get("sequence_number")
        expect(type(number) is int, f"'sequence_number' of {event['type']!r} is {number!r}")
        assert type(number) is int
        expect(number > last, f"'sequence_number' goes from {last} to {number}")
        last = number
        _judge_lane(event, lane)
        if event["type"] in events.LIFECYCLE:
            _judge_response(event, as_object(turn[0].get("response")).get("id"), previous)
        if profile == "open-responses":
            _judge_strictly(event)
    expect(turn[0]["sequence_number"] == 0, f"'sequence_number' of a response begins with {turn[0]['sequence_number']}")
    kinds = [event["type"] for event in turn]
    expect(kinds.count(events.CREATED) == 1, "a turn has two 'response.created'")
    _judge_output(turn)


def _judge_lane(event: Event, lane: str | None) -> None:
    told = event.get("stream_id")
    if lane is None:
        expect("stream_id" not in event, f"{event['type']!r} of the default lane has a 'stream_id'")
    else:
        expect(told == lane, f"'stream_id' of {event['type']!r} is {told!r}, not {lane!r}")


def _judge_response(event: Event, response_id: object, previous: str | None) -> None:
    response, kind = as_object(event.get("response")), event["type"]
    expect(isinstance(response_id, str) and response_id, "'response.created' has no 'response.id'")
    expect(response.get("id") == response_id, f"'response.id' changes from {response_id!r} to {response.get('id')!r}")
    if kind in events.TERMINAL:
        status = kind.removeprefix("response.")
        expect(response.get("status") == status, f"'response.status' of {kind!r} is {response.get('status')!r}")
    told = response.get("previous_response_id", previous)
    expect(told == previous, f"'response.previous_response_id' is {told!r}, not {previous!r}")


def _judge_output(turn: Sequence[Event]) -> None:
    """Compare what was finished with what the terminal event holds."""
    done = {
        event.get("output_index"): as_object(event.get("item")) for event in turn if event["type"] == events.ITEM_DONE
    }
    added = {event.get("output_index") for event in turn if event["type"] == events.ITEM_ADDED}
    expect(set(done) <= added, "an item is finished that was never added")
    if turn[-1]["type"] == events.FAILED:
        return
    items = as_items(as_object(turn[-1].get("response")).get("output"))
    told = [(item.get("type"), item.get("id")) for item in items]
    finished = [(done[index].get("type"), done[index].get("id")) for index in sorted(done, key=str)]
    expect(
        sorted(told, key=str) == sorted(finished, key=str),
        f"the terminal 'output' has {told}, finished were {finished}",
    )


# -- Open Responses ----------------------------------------------------------------------------------------------------


def _judge_strictly(event: Event) -> None:
    kind = event["type"]
    if kind not in events.LIFECYCLE:
        expect(kind not in RENAMED and is_served(kind), f"{kind!r} is no event of Open Responses")
        return
    response = as_object(event.get("response"))
    for name, types in _MEMBERS.items():
        expect(name in response, f"'response.{name}' of {kind!r} is missing")
        value = response[name]
        right = isinstance(value, types) and (type(value) is not bool or bool in types)
        expect(right, f"'response.{name}' of {kind!r} is {value!r}"[:200])
    expect("metadata" in response, f"'response.metadata' of {kind!r} is missing")
