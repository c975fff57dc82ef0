"""The events of one response, in order and numbered.

A delta is one formatted string: what is the same for all deltas of a part is made with the part.
"""

from collections.abc import Awaitable
from json.encoder import encode_basestring as encode_ascii
from typing import Final

import msgspec

from ws_responses.errors import UpstreamError
from ws_responses.upstreams.base import Emit

encode = msgspec.json.encode

MAX_OUTPUT_CHARS: Final = 32 * 1024 * 1024
"""Characters of one response: some eight million tokens, more than any model samples in one go."""


class Kind(msgspec.Struct, frozen=True):
    """What comes in pieces, and by which events.

    Attributes:
        prefix: Of the types of its ``delta`` and ``done`` events.
        member: Where ``done``, the part and the item hold the whole.
        rest: Further members of ``delta`` and ``done``, encoded.
        part: Type of the content part that it is; empty for what is no part.
        part_rest: Further members of the part, encoded.
    """

    prefix: str
    member: str
    rest: str = ""
    part: str = ""
    part_rest: str = ""


TEXT: Final = Kind("response.output_text", "text", ',"logprobs":[]', "output_text", ',"annotations":[],"logprobs":[]')
REFUSAL: Final = Kind("response.refusal", "refusal", part="refusal")
REASONING: Final = Kind("response.reasoning_text", "text", part="reasoning_text")
ARGUMENTS: Final = Kind("response.function_call_arguments", "arguments")
INPUT: Final = Kind("response.custom_tool_call_input", "input")


def mended(text: str) -> str:
    """Return a text with U+FFFD for what no JSON can hold (a lone surrogate, out of a service's bad escape)."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class EventWriter:
    """Numbers the events of one response and hands them over; keeps the text of the deltas.

    Args:
        emit: Where they go.
        first: Number of the first one.

    Attributes:
        next: Number of the next one.
    """

    __slots__ = ("_begin", "_emit_delta", "_emit_event", "_end", "_middle", "_pieces", "_room", "next")

    def __init__(self, emit: Emit, first: int = 0) -> None:
        self._emit_event = emit.event
        self._emit_delta = emit.delta
        self.next = first
        self._begin = self._middle = self._end = ""
        self._pieces: list[str] = []
        self._room = MAX_OUTPUT_CHARS

    def write(self, kind: str, members: bytes) -> Awaitable[None]:
        """Write an event; await the result before the next one.

        Args:
            kind: Its type.
            members: All others, encoded and joined by commas.
        """
        number = self.next
        self.next = number + 1
        return self._emit_event(b'{"type":"%b","sequence_number":%d,%b}' % (kind.encode(), number, members))

    def begin_deltas(self, kind: Kind, place: str) -> None:
        """Let the deltas that follow be of this kind, at this place (encoded members)."""
        self._begin = f'{{"type":"{kind.prefix}.delta","sequence_number":'
        self._middle = f',{place},"delta":'
        self._end = kind.rest + "}"
        self._pieces = []

    def delta(self, text: str) -> Awaitable[None]:
        """Write the next delta; await the result before the next event. The hot path.

        Raises:
            UpstreamError: The response is too long.
        """
        self._room -= len(text)
        if self._room < 0:
            raise UpstreamError(
                f"The service's answer exceeds {MAX_OUTPUT_CHARS} characters.", code="upstream_output_too_large"
            )
        if text.isascii():
            encoded = encode_ascii(text)  # the same as the other way, in two thirds of the time
        else:
            try:
                encoded = encode(text).decode()
            except UnicodeEncodeError:
                text = mended(text)
                encoded = encode(text).decode()
        self._pieces.append(text)
        number = self.next
        self.next = number + 1
        return self._emit_delta(f"{self._begin}{number}{self._middle}{encoded}{self._end}")

    def grown(self) -> str:
        """Return the text of all deltas since they were begun."""
        return "".join(self._pieces)
