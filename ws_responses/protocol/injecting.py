"""``response.inject`` (beta): tool outputs that reach a response while it runs, and wait in it until it needs them.

The frames are those of the SDK's types (``openai/types/beta/beta_response_inject_*``). A response takes injections if its create
enables ``multi_agent`` on a connection that came with the beta header, and what answers it can wait (``injects``). What moves is
decided by the session; here stands what a submission is, and what is told of it.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.errors import MalformedFrame, WireError
from ws_responses.protocol.calls import CallState, after_input, input_head
from ws_responses.protocol.frames import read_id
from ws_responses.protocol.items import OUTPUTS
from ws_responses.protocol.submissions import RefusalCode, SubmissionRefused, refusal_frame

INJECT: Final = "response.inject"
CREATED: Final = "response.inject.created"
FAILED: Final = "response.inject.failed"

BETA: Final = "responses_multi_agent=v1"
"""What the header ``OpenAI-Beta`` of the upgrade names, among others."""

_MEMBERS: Final = frozenset({"type", "response_id", "input"})


class _Enabled(Struct):
    enabled: bool = False


_decode_items = msgspec.json.Decoder(list[Raw]).decode
_decode_enabled = msgspec.json.Decoder(_Enabled | None).decode


class Injection(Struct, frozen=True):
    """A submission that waits in its response.

    Attributes:
        target: Id of the response.
        given: ``input`` as it came, encoded.
    """

    target: str
    given: bytes


def is_served(beta: str) -> bool:
    """Whether a header ``OpenAI-Beta`` asks for the events of this page."""
    return any(name.strip() == BETA for name in beta.split(","))


def enables_agents(body: Mapping[str, Raw]) -> bool:
    """Whether a create enables ``multi_agent``; what cannot be read the upstream judges."""
    try:
        config = _decode_enabled(body.get("multi_agent", b"null"))
    except (msgspec.ValidationError, RecursionError):
        return False
    return config is not None and config.enabled


def read_injection(members: Mapping[str, Raw]) -> Injection:
    """Return the submission of a frame.

    Raises:
        MalformedFrame: It has no target or no array, so that nothing could be given back; or it has other members.
    """
    target = read_id(members, "response_id")
    given = bytes(members.get("input", b"null"))
    if given[:1] != b"[":
        raise _malformed("The field 'input' must be an array of items.", "input")
    for name in members:
        if name not in _MEMBERS:
            raise _malformed(f"The event takes 'response_id' and 'input' only, not {name[:64]!r}.", name)
    return Injection(target, given)


def _malformed(message: str, param: str) -> MalformedFrame:
    return MalformedFrame(message, param=param, code="invalid_request")


def items_of(injection: Injection) -> list[bytes]:
    """Return the items of a submission.

    Raises:
        SubmissionRefused: There are none, or one of them is no output of a tool.
    """
    items = [bytes(item) for item in _decode_items(injection.given)]
    if not items:
        raise SubmissionRefused("invalid_input", "The field 'input' must have an item.")
    for index, item in enumerate(items):
        try:
            kind = input_head(item, index).type
        except WireError as error:
            raise SubmissionRefused("invalid_input", error.message) from None
        if kind not in OUTPUTS:
            raise SubmissionRefused(
                "invalid_input", f"The item input[{index}] must be the output of a tool of the client's."
            )
    return items


def answered(calls: CallState, items: Sequence[bytes]) -> CallState:
    """Return the calls that are open after these outputs.

    Raises:
        SubmissionRefused: One of them answers no open call.
    """
    try:
        return after_input(calls, [input_head(item, index) for index, item in enumerate(items)])
    except WireError as error:
        code: RefusalCode = "tool_call_not_found" if error.code == "tool_call_not_found" else "invalid_input"
        raise SubmissionRefused(code, error.message) from None


# --- what is told ---------------------------------------------------------------------------------------------------


def taken(injection: Injection) -> dict[str, Any]:
    """Return the members of the event that tells of a committed submission."""
    return {"response_id": injection.target}


def returned(error: SubmissionRefused, injection: Injection) -> dict[str, Any]:
    """Return the members of the event that gives a submission back; ``error`` first, as for steers."""
    told = {"code": error.code, "message": error.message}
    return {"error": told, "response_id": injection.target, "input": Raw(injection.given)}


def refusal(error: SubmissionRefused, injection: Injection, *, stream_id: str | None) -> bytes:
    """Return the frame that gives back what was not taken."""
    return refusal_frame(FAILED, returned(error, injection), stream_id=stream_id)
