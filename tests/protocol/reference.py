"""What a client frame means, read off the protocol's text with the standard library: slow, naive, and beside our decoder."""

import json
import re
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Refusal:
    """The frame gets an error frame."""

    code: str
    param: str | None = None
    stream_id: str | None = None


@dataclass(frozen=True)
class Ignored:
    """The frame is taken, and answered by nothing."""


@dataclass(frozen=True)
class Steering:
    """The frame steers a response; ``good`` if it may."""

    target: str
    input: Any
    good: bool


@dataclass(frozen=True)
class Injecting:
    """The frame injects into a response; ``good`` if it holds outputs of tools only."""

    target: str
    input: Any
    good: bool


@dataclass(frozen=True)
class Cancelling:
    """The frame cancels a response, or all of a lane if ``response_id`` is None."""

    response_id: str | None
    lane: str | None
    named: bool


@dataclass(frozen=True)
class Appending:
    """The frame brings items to the rollout of its lane; ``input`` None if it is no array of any, ``others`` what it may not have."""

    lane: str | None
    input: list[Any] | None
    others: list[str]


@dataclass(frozen=True)
class Create:
    """The frame asks for a turn."""

    lane: str | None
    previous_response_id: str | None
    warm_up: bool
    store: bool | None
    model: str | None
    input: Any
    body: dict[str, Any] = field(default_factory=dict)


def no_constants(name: str) -> Any:
    raise ValueError(name)


def decoded(data: str | bytes) -> Any:
    text = data.decode() if isinstance(data, bytes) else data
    value = json.loads(text, parse_constant=no_constants)
    json.dumps(value, ensure_ascii=False).encode()  # lone surrogates fail here
    return value


def is_lane_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9_.-]{1,256}", value) is not None


TYPES: dict[str, tuple[type, ...]] = {
    "model": (str, type(None)),
    "previous_response_id": (str, type(None)),
    "generate": (bool, type(None)),
    "store": (bool, type(None)),
    "background": (bool, type(None)),
    "input": (str, list, type(None)),
}
NOT_FOR_THE_APP = {"type", "stream_id", "generate", "stream", "stream_options", "background"}


Meaning = Refusal | Ignored | Create | Steering | Cancelling | Injecting | Appending


def read_frame(data: str | bytes, *, cancels: bool = False, appends: bool = False) -> Meaning:
    """Judge one frame; ``cancels`` if the extension is on, ``appends`` in prototype mode."""
    try:
        frame = decoded(data)
    except (ValueError, RecursionError):
        return Refusal("invalid_json")
    if not isinstance(frame, dict):
        return Refusal("invalid_request")
    kind = frame.get("type")
    if not isinstance(kind, str):
        return Refusal("unknown_event_type", "type")
    if kind == "response.processed":
        return Ignored()
    if kind == "response.steer":
        return _steering(frame)
    if kind == "response.inject":
        return _injecting(frame)
    if "stream_id" in frame and not is_lane_name(frame["stream_id"]):
        return Refusal("invalid_stream_id", "stream_id")
    lane = frame.get("stream_id")
    if kind == "response.cancel" and cancels:
        return _cancelling(frame, lane)
    if kind == "response.append" and appends:
        given = frame.get("input")
        others = [name for name in frame if name not in ("type", "stream_id", "input")]
        return Appending(lane, given if isinstance(given, list) and given else None, others)
    if kind != "response.create":
        return Refusal("unknown_event_type", "type", lane)
    if "response" in frame:
        return Refusal("invalid_request", "response", lane)
    return _create(frame, lane)


def _steering(frame: dict[str, Any]) -> Refusal | Steering:
    target = frame.get("previous_response_id")
    if not isinstance(target, str) or not 0 < len(target) <= 2048:
        return Refusal("invalid_request", "previous_response_id")
    if "input" not in frame:
        return Refusal("invalid_request", "input")
    given = frame["input"]
    good = isinstance(given, str) or (isinstance(given, list) and bool(given) and all(map(is_user_message, given)))
    return Steering(target, given, good=good and set(frame) == {"type", "previous_response_id", "input"})


def _injecting(frame: dict[str, Any]) -> Refusal | Injecting:
    target, given = frame.get("response_id"), frame.get("input")
    if not isinstance(target, str) or not 0 < len(target) <= 2048:
        return Refusal("invalid_request", "response_id")
    if not isinstance(given, list):
        return Refusal("invalid_request", "input")
    others = [name for name in frame if name not in ("type", "response_id", "input")]
    if others:
        return Refusal("invalid_request", others[0])
    good = bool(given) and all(isinstance(item, dict) and item.get("type") == "function_call_output" for item in given)
    return Injecting(target, given, good)


def _cancelling(frame: dict[str, Any], lane: str | None) -> Refusal | Cancelling:
    others = [name for name in frame if name not in ("type", "response_id", "stream_id")]
    if others:
        return Refusal("invalid_request", others[0], lane)
    response_id = frame.get("response_id")
    if "response_id" in frame and not (isinstance(response_id, str) and 0 < len(response_id) <= 2048):
        return Refusal("invalid_request", "response_id", lane)
    return Cancelling(response_id, lane, "stream_id" in frame)


def judge_append(meant: Appending, calls: list[str]) -> str | None:
    """Return the code of the refusal of what a lane that waits for these function calls is brought; None if it is right."""
    if meant.others:
        return "unknown_parameter"
    if meant.input is None or not all(isinstance(item, dict) for item in meant.input):
        return "invalid_request"
    if any(item.get("type") in ("compaction", "item_reference") for item in meant.input):
        return "invalid_request"
    waiting = set(calls)
    for item in meant.input:
        if item.get("type") == "function_call_output":
            if item["call_id"] not in waiting:
                return "tool_call_not_found"
            waiting.remove(item["call_id"])
    return "tool_output_missing" if waiting else None


def is_user_message(item: Any) -> bool:
    if not isinstance(item, dict) or not set(item) <= {"type", "role", "content"}:
        return False
    if item.get("type", "message") != "message" or item.get("role") != "user":
        return False
    content = item.get("content")
    if isinstance(content, str):
        return True
    kinds = ("input_text", "input_image", "input_file")
    return isinstance(content, list) and all(isinstance(part, dict) and part.get("type") in kinds for part in content)


def _create(frame: dict[str, Any], lane: str | None) -> Refusal | Create:
    infinite = [name for name, value in frame.items() if isinstance(value, float) and abs(value) == float("inf")]
    if infinite:
        return Refusal("invalid_request", infinite[0], lane)
    for name, types in TYPES.items():
        if not isinstance(frame.get(name), types):
            return Refusal("invalid_request", name, lane)
    if frame.get("background"):
        return Refusal("invalid_request", "background", lane)
    parent = frame.get("previous_response_id") or None
    if parent is not None and frame.get("conversation") is not None:
        return Refusal("invalid_request", "conversation", lane)
    options = frame.get("prompt_cache_options")
    prewarm = isinstance(options, dict) and options.get("prewarm") is True
    return Create(
        lane=lane,
        previous_response_id=parent,
        warm_up=frame.get("generate") is False or prewarm,
        store=frame.get("store"),
        model=frame.get("model"),
        input=frame.get("input"),
        body={
            name: value
            for name, value in frame.items()
            if name not in NOT_FOR_THE_APP | {"input", "previous_response_id"}
        },
    )
