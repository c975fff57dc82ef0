"""An agent in a loop: it answers each tool call, over a socket by what is new, over HTTP by the whole conversation."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import Raw, Struct

from ws_responses.bench.loop import ARGUMENTS, SHELL, ToolOutputs
from ws_responses.bench.results import Unexpected
from ws_responses.protocol.events import encode

OUTPUT_CHARS: Final = 1_450
"""Of what a tool gives in a measured turn: some 400 tokens with what surrounds it."""

_STEP_CHARS: Final = 4_000
"""Of what a tool gave in the turns before."""

_STEP_TOKENS: Final = 1_140
"""Tokens of such a turn."""

_INSTRUCTIONS: Final = (
    "You are an agent that works on the code in /work. Read before you write. Make small changes, run the tests after each, "
    "and say what you have done. "
) * 12
_SETTINGS: Final = b'"store":false,"instructions":%b,"tools":%b' % (encode(_INSTRUCTIONS), encode([SHELL]))


class _Usage(Struct):
    input_tokens: int
    output_tokens: int


class _Response(Struct):
    id: str
    output: list[Raw]
    usage: _Usage


class _Closing(Struct):
    response: _Response


_decode_closing = msgspec.json.Decoder(_Closing).decode
_decode_head = msgspec.json.Decoder(dict[str, Any]).decode


def history(tokens: int) -> list[bytes]:
    """Return the items of a conversation of about so many tokens; the last one is the output of a tool."""
    outputs = ToolOutputs()
    items = [encode(_message("Find out why the tests are slow."))]
    for step in range(max(1, tokens // _STEP_TOKENS)):
        items += [*_called(step), encode(_output(f"call_{step}", outputs.next(_STEP_CHARS)))]
    return items


def _message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


def _called(step: int) -> Iterator[bytes]:
    thought = {"type": "reasoning_text", "text": f"Step {step}: look where it is used before it is changed."}
    yield encode({"type": "reasoning", "id": f"rs_{step}", "summary": [], "content": [thought]})
    call = {"type": "function_call", "id": f"fc_{step}", "call_id": f"call_{step}", "name": SHELL["name"]}
    yield encode({**call, "arguments": ARGUMENTS})


def _output(call_id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": text}


class Connection(Protocol):
    """One connection of a client, one turn at a time.

    Attributes:
        first_s: Seconds from the last request to its first event.
    """

    first_s: float

    async def turn(self, payload: bytes) -> bytes:
        """Send a request, wait for the end of its answer and return that; over a socket its closing event."""
        ...


class Agent(ABC):
    """One conversation on one connection.

    Args:
        connection: Is not closed here.

    Attributes:
        items: The conversation so far.
        tokens: Of the last prompt, as the service counts them.
        answer_tokens: Of the last answer.
        first_s: Seconds from the last request to its first event.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._outputs = ToolOutputs()
        self._call_id = ""
        self._parent_id = ""
        self.items: list[bytes] = []
        self.tokens = self.answer_tokens = 0
        self.first_s = 0.0

    async def begin(self, items: Sequence[bytes], model: str) -> None:
        """Run the first turn.

        Args:
            items: Conversation that there is already.
            model: Which one.
        """
        await self._turn(items, model, keep=True)

    def output(self) -> bytes:
        """Return the output of the tool that was called last."""
        return encode(_output(self._call_id, self._outputs.next(OUTPUT_CHARS)))

    async def go_on(self, model: str, *, keep: bool = True) -> None:
        """Run the next turn, which gives the output of the tool that was called last.

        Args:
            model: Which one.
            keep: The conversation goes on from it; else the next turn continues what this one does.
        """
        await self._turn([self.output()], model, keep=keep)

    async def _turn(self, delta: Sequence[bytes], model: str, *, keep: bool) -> None:
        answer = await self._connection.turn(self._request(delta, model.encode()))
        self.first_s = self._connection.first_s
        if not keep:
            return
        response = _decode_closing(self._closing(answer)).response
        self.items += [*delta, *map(bytes, response.output)]
        self._parent_id = response.id
        self._call_id = _decode_head(response.output[-1])["call_id"]
        self.tokens, self.answer_tokens = response.usage.input_tokens, response.usage.output_tokens

    @abstractmethod
    def _request(self, delta: Sequence[bytes], model: bytes) -> bytes:
        """Return the request of a turn."""

    @abstractmethod
    def _closing(self, answer: bytes) -> bytes:
        """Return the closing event."""


class SocketAgent(Agent):
    """Sends what is new."""

    def _request(self, delta: Sequence[bytes], model: bytes) -> bytes:
        parent = b',"previous_response_id":"%b"' % self._parent_id.encode() if self._parent_id else b""
        head = b'{"type":"response.create","model":"%b",%b%b' % (model, _SETTINGS, parent)
        return b'%b,"input":[%b]}' % (head, b",".join(delta))

    def _closing(self, answer: bytes) -> bytes:
        return answer


class HttpAgent(Agent):
    """Sends the whole conversation each time."""

    def _request(self, delta: Sequence[bytes], model: bytes) -> bytes:
        return b'{"model":"%b","stream":true,%b,"input":[%b]}' % (model, _SETTINGS, b",".join([*self.items, *delta]))

    def _closing(self, answer: bytes) -> bytes:
        _, found, rest = answer.rpartition(b"event: response.completed\ndata: ")
        if not found:
            raise Unexpected(answer[-400:].decode(errors="replace"))
        return rest.partition(b"\n\n")[0]
