"""``response.create``: what the socket itself needs of it is typed; the rest goes to the app untouched and in order."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.errors import MalformedFrame
from ws_responses.protocol.frames import MAX_ID_CHARS
from ws_responses.protocol.withheld import withheld

SOCKET_FIELDS: Final = frozenset({"type", "stream_id", "generate"})
"""Members of the frame that belong to the socket and never reach the app."""

IGNORED_FIELDS: Final = frozenset({"stream", "stream_options", "background"})
"""Members that mean nothing on a socket: real clients send ``stream: true``."""

MAX_MEMBERS: Final = 1024
"""Most members of a create: the API knows some forty, and each costs twenty times its bytes while the create waits."""

_decode_opt_str = msgspec.json.Decoder(str | None).decode
_decode_opt_bool = msgspec.json.Decoder(bool | None).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_object = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_number = msgspec.json.Decoder(int | float).decode
_NUMBER_STARTS: Final = frozenset(b"-0123456789")
_NO_NUMBERS: Final = frozenset(
    {
        "type",
        "model",
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "store",
        "stream",
        "include",
        "reasoning",
        "text",
        "metadata",
        "client_metadata",
        "prompt_cache_key",
        "previous_response_id",
        "stream_id",
        "generate",
    }
)
"""What most creates have: a number there is judged by its type, not by its size."""


class ResponseCreate(Struct):
    """One ``response.create`` frame.

    Attributes:
        body: Members for the app, raw and in order: no socket members, no ``previous_response_id``, no ``input``.
        array_input: The raw array if ``input`` was one; split into items when the turn runs, since a waiting create must not
            take thirty times its bytes.
        text_input: The raw string if it was a string.
        lane: ``stream_id``, or None for the default lane.
        model: As sent.
        previous_response_id: The parent's id.
        warm_up: Nothing is to be generated (``generate: false`` or ``prompt_cache_options.prewarm``).
        store: As sent; None if absent or null, which means true.
        has_input: There was an ``input``, if only an empty one.
        conversation: A ``conversation`` is named.
        prompt: A ``prompt`` is named.
        size: Bytes of the frame, for the queue's bound.
    """

    body: dict[str, Raw]
    array_input: Raw | None
    text_input: Raw | None
    has_input: bool
    lane: str | None
    model: str | None
    previous_response_id: str | None
    warm_up: bool
    store: bool | None
    conversation: bool
    prompt: bool
    size: int

    __repr__ = withheld

    def items(self) -> Sequence[Raw]:
        """Return the items given, raw; empty if there were none."""
        return () if self.array_input is None else _decode_items(self.array_input)

    @property
    def stored(self) -> bool:
        """Whether the response may be stored (absent means true)."""
        return self.store is not False


def parse_create(members: dict[str, Raw], lane: str | None, size: int) -> ResponseCreate:
    """Return the create that a frame's members spell out.

    Args:
        members: As :func:`decode_members` gave them; taken over by the result.
        lane: As :func:`lane_of` gave it.
        size: Bytes of the frame.

    Raises:
        MalformedFrame: A member that the socket needs has the wrong type, or a number is beyond all ranges.
    """
    if len(members) > MAX_MEMBERS:
        raise MalformedFrame(f"The frame must have at most {MAX_MEMBERS} members.", code="invalid_request")
    _check_numbers(members)
    model = _typed(members, "model", _decode_opt_str, "a string or null")
    parent = _typed(members, "previous_response_id", _decode_opt_str, "a string or null")
    generate = _typed(members, "generate", _decode_opt_bool, "a boolean")
    store = _typed(members, "store", _decode_opt_bool, "a boolean or null")
    background = _typed(members, "background", _decode_opt_bool, "a boolean")
    if background:
        raise MalformedFrame(
            "Background responses are not available over a WebSocket.", param="background", code="invalid_request"
        )
    conversation = _given(members, "conversation")
    if parent == "":
        parent = None
    if parent is not None and len(parent) > MAX_ID_CHARS:
        raise MalformedFrame(
            f"The 'previous_response_id' must have at most {MAX_ID_CHARS} characters.",
            param="previous_response_id",
            code="invalid_request",
        )
    if parent is not None and conversation:
        raise MalformedFrame(
            "The fields 'previous_response_id' and 'conversation' exclude each other.",
            param="conversation",
            code="invalid_request",
        )
    array, text = _input(members)
    warm_up = generate is False or _prewarms(members)
    prompt = _given(members, "prompt")
    has_input = _given(members, "input")
    for name in ("input", "previous_response_id", *SOCKET_FIELDS, *IGNORED_FIELDS):
        members.pop(name, None)
    return ResponseCreate(
        body=members,
        array_input=array,
        text_input=text,
        has_input=has_input,
        lane=lane,
        model=model,
        previous_response_id=parent,
        warm_up=warm_up,
        store=store,
        conversation=conversation,
        prompt=prompt,
        size=size,
    )


def _given(members: Mapping[str, Raw], name: str) -> bool:
    return _first(members.get(name)) not in _NOTHING


def _typed(members: Mapping[str, Raw], name: str, decode: Any, expected: str) -> Any:
    raw = members.get(name)
    if raw is None:
        return None
    try:
        return decode(raw)
    except msgspec.ValidationError:
        raise MalformedFrame(f"The field '{name}' must be {expected}.", param=name, code="invalid_request") from None


def _check_numbers(members: Mapping[str, Raw]) -> None:
    """Refuse a parameter such as 1e999: it is legal JSON, but the app would read it as infinity and write it as such."""
    for name, raw in members.items():
        if name not in _NO_NUMBERS and memoryview(raw)[0] in _NUMBER_STARTS:
            try:
                _decode_number(raw)
            except msgspec.ValidationError:
                raise MalformedFrame(
                    "A number in the frame is out of range.", param=name, code="invalid_request"
                ) from None


_ABSENT: Final = -1
_NULL, _QUOTE, _BRACKET = b'n"['
_NOTHING: Final = frozenset({_ABSENT, _NULL})


def _first(raw: Raw | None) -> int:
    """Return the first byte of a value, which tells its type."""
    return _ABSENT if raw is None else memoryview(raw)[0]


def _input(members: Mapping[str, Raw]) -> tuple[Raw | None, Raw | None]:
    raw = members.get("input")
    first = _first(raw)
    if first in _NOTHING:
        return None, None
    if first == _QUOTE:
        return None, raw
    if first == _BRACKET:
        return raw, None
    raise MalformedFrame(
        "The field 'input' must be a string or an array of items.", param="input", code="invalid_request"
    )


def _prewarms(members: Mapping[str, Raw]) -> bool:
    raw = members.get("prompt_cache_options")
    if raw is None:
        return False
    try:
        return bytes(_decode_object(raw).get("prewarm", b"")) == b"true"
    except msgspec.ValidationError:
        return False  # the app judges what it alone understands
