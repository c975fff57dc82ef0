"""The text in the events of an answer: which part of the output it belongs to, and whether it is new or all of that part."""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from ws_responses.errors import UpstreamError
from ws_responses.protocol import events
from ws_responses.protocol.text import mended
from ws_responses.protocol.withheld import withheld
from ws_responses.safety.text import TooDeep, as_list, as_object, is_json_text, kind_of, leaves
from ws_responses.safety.verdict import Kind

_END_MARKS: Final = (b"[DONE]", "[DONE]")
"""What may follow the last event, and is none."""

_decode_any = msgspec.json.Decoder().decode


class Place(NamedTuple):
    """A part of the output that is one text.

    Attributes:
        item: ``output_index`` of its item, else its ``item_id``, else None.
        member: Of the item, as far as the first list: ``content``, ``summary``, ``arguments``.
        nth: In that list; 0 where it is none.
    """

    item: int | str | None
    member: str
    nth: int = 0

    def __str__(self) -> str:
        return f"output[{'' if self.item is None else self.item}].{self.member}[{self.nth}]"


class Said(NamedTuple):
    """A text in an event.

    Attributes:
        place: Where it belongs.
        text: The text.
        whole: It is all of the text of that place, not what is added to it.
        kind: What it is.
        item_type: Type of its item, if the event tells.
        is_json: It is JSON that the model wrote.
        ends: Nothing more of it comes.
    """

    place: Place
    text: str
    whole: bool
    kind: Kind
    item_type: str | None = None
    is_json: bool = False
    ends: bool = False

    def __repr__(self) -> str:
        return withheld(self)


class Heard(NamedTuple):
    """What the gate must know of an event.

    Attributes:
        type: Its type; "" for what is no event.
        number: Its ``sequence_number``; None without one.
        said: The texts in it.
        at: ``output_index`` of the item that it announces or finishes.
        item: That item, decoded.
        response: The response object of a lifecycle event, decoded.
    """

    type: str
    number: int | None
    said: tuple[Said, ...] = ()
    at: int | None = None
    item: dict[str, Any] | None = None
    response: dict[str, Any] | None = None

    def __repr__(self) -> str:
        return withheld(self)

    @property
    def ends_part(self) -> bool:
        """Whether a text ends with it."""
        return self.type.endswith(".done") or self.type in events.TERMINAL or any(said.ends for said in self.said)


class _Rule(NamedTuple):
    member: str
    nth: str
    kind: Kind
    text: str
    whole: bool


_PARTS: Final[dict[str, tuple[str, str, Kind, str]]] = {
    "output_text": ("content", "content_index", "text", "text"),
    "refusal": ("content", "content_index", "refusal", "refusal"),
    "reasoning_text": ("content", "content_index", "reasoning", "text"),
    "reasoning": ("content", "content_index", "reasoning", "text"),
    "reasoning_summary_text": ("summary", "summary_index", "reasoning", "text"),
    "function_call_arguments": ("arguments", "", "arguments", "arguments"),
    "custom_tool_call_input": ("input", "", "arguments", "input"),
    "mcp_call_arguments": ("arguments", "", "arguments", "arguments"),
    "code_interpreter_call_code": ("code", "", "arguments", "code"),
    "shell_call_command": ("commands", "command_index", "arguments", "command"),
    "audio.transcript": ("transcript", "", "text", "transcript"),
}
"""By the name in ``response.NAME.delta``: member of the item, index in it, what it is, and the member of ``.done`` with all of it."""

_RULES: Final = {
    f"response.{name}.{step}": _Rule(member, index, kind, "delta" if step == "delta" else text, step != "delta")
    for name, (member, index, kind, text) in _PARTS.items()
    for step in ("added", "delta", "done")
}
_PART_EVENTS: Final = {
    "response.content_part.added": ("content", "content_index"),
    "response.content_part.done": ("content", "content_index"),
    "response.reasoning_summary_part.added": ("summary", "summary_index"),
    "response.reasoning_summary_part.done": ("summary", "summary_index"),
}
_PICTURES: Final = "response.image_generation_call."
_JSON_TEXT: Final = frozenset({"response.function_call_arguments", "response.mcp_call_arguments"})


class _Delta(Struct, gc=False):
    """The usual delta: what is needed of it, in one pass."""

    type: str
    delta: str
    sequence_number: int | None = None
    output_index: int | None = None
    item_id: str | None = None
    content_index: int = 0
    summary_index: int = 0
    command_index: int = 0

    __repr__ = withheld


_decode_delta = msgspec.json.Decoder(_Delta).decode


def hear(payload: bytes | str) -> Heard:
    """Read an event.

    Raises:
        UpstreamError: It is none, or cannot be read, and so not be judged.
    """
    try:
        event = _decode_delta(payload)
        rule = _RULES.get(event.type)
        if rule is not None and not rule.whole:
            at = event.item_id if event.output_index is None else event.output_index
            place = Place(at, rule.member, getattr(event, rule.nth) if rule.nth else 0)
            is_json = event.type.rpartition(".")[0] in _JSON_TEXT
            said = Said(place, event.delta, whole=False, kind=rule.kind, is_json=is_json)
            return Heard(event.type, event.sequence_number, (said,) if event.delta else ())
    except (msgspec.DecodeError, RecursionError):
        pass  # no delta of the usual form
    if payload.strip() in _END_MARKS:
        return Heard("", None)
    members = as_object(_read(payload))
    if members is None:
        raise UpstreamError("The upstream sent an event that is not a JSON object.")
    try:
        return _hear_any(members)
    except TooDeep:
        raise UpstreamError("The upstream sent an event that is nested too deeply.") from None


def _read(payload: bytes | str) -> Any:
    """Return an event, decoded; also one that is mended on its way to the client, which must not get there unread."""
    try:
        return _decode_any(payload)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
        text = payload.encode("utf-8", "surrogatepass") if isinstance(payload, str) else payload
    try:
        # Takes what the fast decoder does not: numbers beyond all ranges, which mean nothing here.
        return json.loads(mended(text), strict=False)
    except (ValueError, RecursionError):
        raise UpstreamError("The upstream sent an event that cannot be read.") from None


def _hear_any(event: dict[str, Any]) -> Heard:
    kind = _as_str(event.get("type")) or ""
    number = _as_int(event.get("sequence_number"))
    index = _as_int(event.get("output_index"))
    if kind in events.LIFECYCLE:
        response = as_object(event.get("response"))
        return Heard(kind, number, tuple(_in_response(response or {})), response=response)
    if kind in (events.ITEM_ADDED, events.ITEM_DONE):
        item = as_object(event.get("item")) or {}
        at = _as_str(item.get("id")) if index is None else index
        return Heard(kind, number, tuple(_in_item(item, at)), index, item)
    if kind == events.ERROR:
        return Heard(kind, number)
    return Heard(kind, number, tuple(_in_other(event, kind, index)))


def _in_response(response: dict[str, Any]) -> Iterator[Said]:
    output = response.get("output")
    for index, item in enumerate(as_list(output)):
        members = as_object(item)
        if members is not None:
            yield from _in_item(members, index)


def _in_item(item: dict[str, Any], at: int | str | None) -> Iterator[Said]:
    item_type = _as_str(item.get("type"))
    for leaf in leaves(item, item_type):
        place = _place_in_item(at, leaf.path)
        yield Said(
            place,
            leaf.text,
            whole=True,
            kind=kind_of(item_type, leaf.path),
            item_type=item_type,
            is_json=is_json_text(item_type, leaf.path),
        )


def _place_in_item(at: int | str | None, path: tuple[str | int, ...]) -> Place:
    """Return the same place as the deltas of this text have."""
    match path:
        case (("content" | "summary") as member, int(index), "text" | "refusal"):
            return Place(at, member, index)
        case (("arguments" | "input" | "code") as member,):
            return Place(at, member)
        case ("action", "commands", int(index)):
            return Place(at, "commands", index)
        case _:
            return Place(at, ".".join(map(str, path)))


def _in_other(event: dict[str, Any], kind: str, index: int | None) -> Iterator[Said]:
    at = _as_str(event.get("item_id")) if index is None else index
    rule = _RULES.get(kind)
    part = _PART_EVENTS.get(kind)
    if rule is not None:
        text = _as_str(event.get(rule.text))
        if text:
            place = Place(at, rule.member, _as_int(event.get(rule.nth)) or 0)
            is_json = kind.rpartition(".")[0] in _JSON_TEXT
            yield Said(place, text, whole=rule.whole, kind=rule.kind, is_json=is_json)
    elif part is not None:
        yield from _in_part(as_object(event.get("part")) or {}, at, part[0], _as_int(event.get(part[1])) or 0)
    elif not kind.startswith(_PICTURES):
        # An event that we do not know: whatever text it has is new.
        for leaf in leaves(event):
            place = Place(at, f"{kind}.{'.'.join(map(str, leaf.path))}")
            yield Said(place, leaf.text, whole=False, kind="other", ends=True)


def _in_part(part: dict[str, Any], at: int | str | None, member: str, index: int) -> Iterator[Said]:
    kind: Kind = "reasoning" if part.get("type") in ("reasoning_text", "summary_text") else "text"
    for leaf in leaves(part):
        if leaf.path in (("text",), ("refusal",)):
            place = Place(at, member, index)
        else:
            place = _place_in_item(at, (member, index, *leaf.path))
        yield Said(place, leaf.text, whole=True, kind="refusal" if leaf.path == ("refusal",) else kind)


def _as_str(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _as_int(value: Any) -> int | None:
    return value if type(value) is int else None
