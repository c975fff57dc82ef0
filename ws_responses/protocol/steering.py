"""Steering: user messages that reach a response while it runs, and go on in a successor of it.

The rules are those of OpenAI's guide to mid-turn steering and of the SDK's types (``openai/types/responses/response_steer_*``).
What moves is decided by the session; here stands what a submission is, and what is told of it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from ws_responses.errors import MalformedFrame
from ws_responses.protocol.calls import CallState, output_head
from ws_responses.protocol.creates import ResponseCreate
from ws_responses.protocol.frames import read_id
from ws_responses.protocol.items import CALLS, call_key, user_message
from ws_responses.protocol.submissions import SubmissionRefused, refusal_frame
from ws_responses.protocol.withheld import withheld

STEER: Final = "response.steer"
ACCEPTED: Final = "response.steer.accepted"
PENDING: Final = "response.steer.pending"
FAILED: Final = "response.steer.failed"
STEERED: Final = "steered"
"""``incomplete_details.reason`` of a response that ends before its time because it was steered."""

BLOCKING_FIELDS: Final = ("conversation", "context_management", "multi_agent")
"""Members of a create whose response cannot be steered (guide: conversations, automatic compaction, several agents)."""

_MEMBERS: Final = frozenset({"type", "previous_response_id", "input"})


class _Part(Struct):
    type: Literal["input_text", "input_image", "input_file"]


class _Message(Struct, forbid_unknown_fields=True):
    role: Literal["user"]
    content: str | list[_Part]
    type: Literal["message"] = "message"


_decode_message = msgspec.json.Decoder(_Message).decode
_decode_items = msgspec.json.Decoder(list[Raw]).decode


class Steer(Struct, frozen=True):
    """A submission that was accepted.

    Attributes:
        id: Of ours.
        target: Id of the response that it steers.
        given: ``input`` as it came, encoded.
        items: The messages, encoded and joined by commas.
    """

    id: str
    target: str
    given: bytes
    items: bytes

    __repr__ = withheld


class Ending(Struct, frozen=True):
    """How a response has ended, for what steers it.

    Attributes:
        status: Of the response; "failed" also for a turn that was aborted, or never had a response.
        continuable: Its id can be continued.
        required: What the client must bring to go on, as the stubs of ``required_input``.
        message: Why it failed, for the client.
    """

    status: str = "failed"
    continuable: bool = False
    required: Sequence[Mapping[str, str]] = ()
    message: str = ""

    __repr__ = withheld


NO_RESPONSE: Final = Ending()


def target_of(members: Mapping[str, Raw]) -> tuple[str, bytes]:
    """Return whom a frame steers, and its input as it came.

    Raises:
        MalformedFrame: One of them is missing: there is nothing that could be given back.
    """
    target = read_id(members, "previous_response_id")
    if "input" not in members:
        raise MalformedFrame("The field 'input' is missing.", param="input", code="invalid_request")
    return target, bytes(members["input"])


def read_items(members: Mapping[str, Raw]) -> bytes:
    """Return the messages of a frame, encoded and joined by commas.

    Raises:
        SubmissionRefused: It has other members, or its input is neither a string nor an array of user messages.
    """
    for name in members:
        if name not in _MEMBERS:
            raise _invalid(f"The event takes 'previous_response_id' and 'input' only, not {name[:64]!r}.")
    raw = members["input"]
    first = bytes(memoryview(raw)[:1])
    if first == b'"':
        return user_message(raw)
    items = _decode_items(raw) if first == b"[" else []
    if not items:
        raise _invalid("The field 'input' must be a string or a non-empty array of user messages.")
    for index, item in enumerate(items):
        try:
            _decode_message(item)
        except (msgspec.ValidationError, RecursionError):
            raise _invalid(
                f"The item input[{index}] must be a message of the user: 'type', 'role' and 'content' only, with text, "
                "images and files."
            ) from None
    return b",".join(bytes(item) for item in items)


def _invalid(message: str) -> SubmissionRefused:
    return SubmissionRefused("invalid_input", message)


# --- what is told ---------------------------------------------------------------------------------------------------


def about(steer: Steer) -> dict[str, Any]:
    """Return the members of the event that tells of an accepted submission."""
    return {"steer": {"id": steer.id, "previous_response_id": steer.target}}


def waiting(steer: Steer, required: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Return the members of the event that tells what a submission waits for."""
    return {**about(steer), "reason": "waiting_for_required_input", "required_input": list(required)}


def returned(error: SubmissionRefused, target: str, given: bytes, id: str | None = None) -> dict[str, Any]:  # noqa: A002
    """Return the members of the event that gives a submission back.

    ``error`` comes first: what is read of the event for the log must not be a word of the client's.
    """
    steer: dict[str, Any] = {} if id is None else {"id": id}
    steer |= {"previous_response_id": target, "input": Raw(given)}
    return {"error": {"type": error.type, "code": error.code, "message": error.message}, "steer": steer}


def refusal(error: SubmissionRefused, target: str, given: bytes, *, stream_id: str | None) -> bytes:
    """Return the frame that gives back what was not accepted."""
    return refusal_frame(FAILED, returned(error, target, given), stream_id=stream_id)


def required_input(calls: CallState, output: Iterable[bytes]) -> list[dict[str, str]]:
    """Return the stubs of what the client must bring after this output.

    Args:
        calls: The calls that are open after it.
        output: The items.
    """
    wanted = {(call.type, call.key) for call in calls.open if call.required}
    stubs: list[dict[str, str]] = []
    for item in output if wanted else ():
        head = output_head(item)
        key = call_key(head)
        if key is None or (head.type, key) not in wanted:
            continue
        pairing = CALLS[head.type or ""]
        stub = {"type": pairing.output, pairing.answer_key: key}
        if head.type == "function_call":
            stub["name"] = _name_of(item)
        if pairing.client_only:
            stub["execution"] = "client"
        stubs.append(stub)
    return stubs


class _Named(Struct):
    name: str = ""


_decode_name = msgspec.json.Decoder(_Named).decode


def _name_of(item: bytes) -> str:
    try:
        return _decode_name(item).name
    except (msgspec.ValidationError, RecursionError):
        return ""


# --- creates --------------------------------------------------------------------------------------------------------


def joined(steers: Iterable[Steer]) -> bytes:
    """Return the messages of submissions, in order."""
    return b",".join(steer.items for steer in steers)


def with_steers(create: ResponseCreate, steers: Iterable[Steer]) -> ResponseCreate:
    """Return a create with the messages of submissions before its own input."""
    own = [bytes(item) for item in create.items()]
    if create.text_input is not None:
        own = [user_message(create.text_input)]
    items = b",".join([joined(steers), *own])
    return replace(create, array_input=Raw(b"[" + items + b"]"), text_input=None, has_input=True)


def successor(
    create: ResponseCreate, inherited: dict[str, Raw], steers: Sequence[Steer], parent: str
) -> ResponseCreate:
    """Return the create that goes on from a steered response: its settings, and the messages as input.

    Args:
        create: Of the steered response.
        inherited: Its body.
        steers: What steers it.
        parent: Its id.
    """
    items = b"[" + joined(steers) + b"]"
    return replace(
        create,
        body=inherited,
        array_input=Raw(items),
        text_input=None,
        has_input=True,
        previous_response_id=parent,
        size=len(items),
    )
