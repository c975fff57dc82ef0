"""A response that came whole, as JSON, made into the stream that the app might have sent."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from ws_responses.errors import UpstreamError
from ws_responses.protocol import events
from ws_responses.protocol.text import mended
from ws_responses.upstreams.answers import decode_answer, error_from_object
from ws_responses.upstreams.output import begun, is_item

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode

_TERMINAL_BY_STATUS: Final = {
    "failed": events.FAILED,
    "cancelled": events.FAILED,
    "incomplete": events.INCOMPLETE,
}
_UNFINISHED: Final = frozenset({"queued", "in_progress"})
"""Statuses of a response that the app goes on with in the background: nobody would hear of its end."""

_STREAMED_TEXTS: Final[dict[str, tuple[str, str]]] = {
    "function_call": ("arguments", "function_call_arguments"),
    "custom_tool_call": ("input", "custom_tool_call_input"),
    "mcp_call": ("arguments", "mcp_call_arguments"),
    "code_interpreter_call": ("code", "code_interpreter_call_code"),
}
"""By item type: the member that streams, and the name of its events."""

_PART_TEXTS: Final = {
    "output_text": "text",
    "refusal": "refusal",
    "reasoning_text": "text",
    "summary_text": "text",
}
"""By type of a part: its text."""

_NULL: Final = Raw(b"null")
_EMPTY: Final = Raw(b'""')
_BOM: Final = b"\xef\xbb\xbf"

Event = dict[str, Any]
Members = Mapping[str, Raw]


def whole_response(body: bytes) -> dict[str, Raw]:
    """Return the members of the response object that a JSON answer is.

    Raises:
        UpstreamError: It is no such object, or an error, or a response that is not finished.
    """
    response = _members(mended(body.removeprefix(_BOM)))
    if response is None:
        raise UpstreamError("The app's answer is neither an event stream nor a JSON object.")
    output = _list(response.get("output"))
    error = _object(response.get("error"))
    if output is None and error is not None:
        raise error_from_object(decode_answer(response["error"]), status=None, headers={})
    if output is None or not all(map(is_item, output)):
        raise UpstreamError("The app's answer is not a response object.")
    status = _text(response.get("status"))
    if status in _UNFINISHED:
        raise UpstreamError(f"The app answered with a response that is still {status}; it must answer when it is over.")
    if status is None:
        response["status"] = Raw(b'"completed"' if error is None else b'"failed"')
    return response


def as_events(response: dict[str, Raw], clock: Callable[[], float] = time.time) -> Iterator[Event]:
    """Yield the events of a response that came whole, in the usual order; numbers are left to the repairs.

    Args:
        response: As :func:`whole_response` gave it.
        clock: Unix time, for a missing ``created_at``.
    """
    response.setdefault("object", Raw(b'"response"'))
    response.setdefault("created_at", Raw(b"%d" % clock()))
    early: dict[str, Raw] = {**response, "status": Raw(b'"in_progress"'), "output": Raw(b"[]")}
    early |= dict.fromkeys(("error", "usage", *(early.keys() & {"incomplete_details", "completed_at"})), _NULL)
    yield {"type": events.CREATED, "response": early}
    yield {"type": events.IN_PROGRESS, "response": early}
    for index, item in enumerate(_decode_list(response["output"])):
        yield from item_events(item, index)
    status = _text(response["status"]) or ""
    yield {"type": _TERMINAL_BY_STATUS.get(status, events.COMPLETED), "response": response}


def item_events(item: Raw, index: int) -> Iterator[Event]:
    """Yield the events of one finished output item; the item itself is not changed by a byte."""
    members = _decode_members(item)
    kind = _text(members.get("type"))
    at: Event = {"output_index": index}
    if _text(members.get("id")):
        at["item_id"] = members["id"]
    yield {"type": events.ITEM_ADDED, "output_index": index, "item": begun(item)}
    if kind in ("message", "reasoning"):
        for number, part in enumerate(_list(members.get("summary")) or ()):
            yield from _part_events("reasoning_summary_part", part, {**at, "summary_index": number})
        for number, part in enumerate(_list(members.get("content")) or ()):
            yield from _part_events("content_part", part, {**at, "content_index": number})
    elif kind in _STREAMED_TEXTS:
        member, name = _STREAMED_TEXTS[kind]
        named = {"name": members["name"]} if kind == "function_call" and "name" in members else {}
        yield from _text_events(name, member, members.get(member), at, named)
    yield {"type": events.ITEM_DONE, "output_index": index, "item": item}


def _part_events(name: str, part: Raw, at: Event) -> Iterator[Event]:
    members = _object(part)
    if members is None:
        return
    kind = _text(members.get("type")) or ""
    member = _PART_TEXTS.get(kind)
    empty = {**members, member: _EMPTY} if member in members else dict(members)
    annotations = _list(members.get("annotations")) or ()
    if annotations:
        empty["annotations"] = Raw(b"[]")
    yield {"type": f"response.{name}.added", **at, "part": empty}
    if member is not None:
        logprobs = {"logprobs": members.get("logprobs", Raw(b"[]"))} if kind == "output_text" else {}
        streamed = "reasoning_summary_text" if kind == "summary_text" else kind
        yield from _text_events(streamed, member, members.get(member), {**at, **logprobs})
    for number, annotation in enumerate(annotations):
        kind_of_event = "response.output_text.annotation.added"
        yield {"type": kind_of_event, **at, "annotation_index": number, "annotation": annotation}
    yield {"type": f"response.{name}.done", **at, "part": part}


def _text_events(name: str, member: str, text: Raw | None, at: Event, at_end: Members | None = None) -> Iterator[Event]:
    if _text(text) is None:
        return
    if _text(text):
        yield {"type": f"response.{name}.delta", **at, "delta": text}
    yield {"type": f"response.{name}.done", **at, member: text, **(at_end or {})}


def _members(body: bytes) -> dict[str, Raw] | None:
    try:
        return _decode_members(body)
    except (msgspec.DecodeError, RecursionError):
        return None


def _object(value: Raw | None) -> dict[str, Raw] | None:
    return None if value is None or not is_item(value) else _decode_members(value)


def _list(value: Raw | None) -> list[Raw] | None:
    try:
        return None if value is None else _decode_list(value)
    except msgspec.ValidationError:
        return None


def _text(value: Raw | None) -> str | None:
    try:
        return None if value is None else _decode_text(value)
    except msgspec.ValidationError:
        return None
