"""What is read of every client frame: its members as raw JSON, once (duplicate keys: the last one wins), its type and its lane."""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec import Raw

from ws_responses.errors import InvalidStreamId, MalformedFrame, UnknownEvent

MAX_ID_CHARS: Final = 2048
"""Longest ``previous_response_id``: LiteLLM's ids have 441 characters."""

_LANE = re.compile(r"[A-Za-z0-9_.\-]{1,256}\Z").match
_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_str = msgspec.json.Decoder(str).decode


def utf8(data: str | bytes) -> str | bytes:
    """Return a frame in the form that the views of it will keep alive: one byte for each byte on the wire.

    A text with other characters takes up to four bytes for each of them in memory, and its encoded form beside it.
    """
    if data.isascii():
        return data
    try:
        if isinstance(data, str):
            return data.encode()
        data.decode()
    except UnicodeError:
        raise MalformedFrame("The frame is not valid UTF-8.") from None
    return data


def decode_members(text: str | bytes) -> dict[str, Raw]:
    """Return the members of a frame.

    Raises:
        MalformedFrame: The text is not one JSON object, is nested too deeply, or holds lone surrogates.
    """
    try:
        return _decode_members(text)
    except msgspec.ValidationError:
        raise MalformedFrame("The frame must be a JSON object.", code="invalid_request") from None
    except (msgspec.DecodeError, UnicodeError) as error:
        raise MalformedFrame(f"The frame is not valid JSON: {fault_of(error)}") from None
    except RecursionError:
        raise MalformedFrame("The frame is nested too deeply.") from None


def fault_of(error: Exception) -> str:
    """Return what the decoder says is wrong with a text that is no JSON; nothing of the text itself."""
    if isinstance(error, UnicodeError):
        return "it is not valid UTF-8"
    return str(error).removeprefix("JSON is malformed: ")


def event_type(members: Mapping[str, Raw]) -> str:
    """Return the frame's ``type``.

    Raises:
        UnknownEvent: It is missing or not a string.
    """
    raw = members.get("type")
    if raw is None:
        raise UnknownEvent("The frame needs a 'type', for example 'response.create'.", param="type")
    try:
        return _decode_str(raw)
    except msgspec.ValidationError:
        raise UnknownEvent("The frame's 'type' must be a string.", param="type") from None


def lane_of(members: Mapping[str, Raw]) -> str | None:
    """Return the frame's lane, None for the default one.

    Raises:
        InvalidStreamId: ``stream_id`` is there but not a legal name (null is not one).
    """
    raw = members.get("stream_id")
    if raw is None:
        return None
    try:
        name = _decode_str(raw)
    except msgspec.ValidationError:
        raise InvalidStreamId from None
    if _LANE(name) is None:
        raise InvalidStreamId
    return name


def read_id(members: Mapping[str, Raw], name: str, *, hint: str = "") -> str:
    """Return the id of a response that a member is.

    Args:
        members: Of the frame.
        name: Of the member.
        hint: Ends what is told if it is none.

    Raises:
        MalformedFrame: It is missing, or no id.
    """
    try:
        given = _decode_str(members.get(name, b"null"))
    except msgspec.ValidationError:
        given = ""
    if not 0 < len(given) <= MAX_ID_CHARS:
        raise MalformedFrame(
            f"The field '{name}' must be the id of a response{hint}.", param=name, code="invalid_request"
        )
    return given


_OF_THE_SOCKET: Final = ("type", "stream_id", "generate")
"""Members that stand beside ``response`` in a wrapped create."""


def unwrapped(members: Mapping[str, Raw]) -> dict[str, Raw]:
    """Return the members of a create that is wrapped: ``{"type": "response.create", "response": {...}}``.

    Raises:
        MalformedFrame: There are others beside ``response``, or that is no object.
    """
    envelope = members.keys() - {"response", *_OF_THE_SOCKET}
    if envelope:
        raise MalformedFrame(
            "The frame is both flat and wrapped: send its fields beside 'type' or inside 'response', not both.",
            param=min(envelope),
            code="invalid_request",
        )
    try:
        inner = decode_members(bytes(members["response"]))
    except MalformedFrame:
        raise MalformedFrame(
            "The field 'response' must be an object.", param="response", code="invalid_request"
        ) from None
    return {**inner, **{name: members[name] for name in _OF_THE_SOCKET if name in members}}
