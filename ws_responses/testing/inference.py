"""Loopback inference services: OpenAI's chat completions and completions, as their servers write them (asyncio).

async with ChatService() as service:
    service.will_answer([Delta(text="Hel"), Delta(text="lo"), Delta(finish="stop")])
    ...  # a backend on service.base_url
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from ws_responses.backends import Delta, Usage
from ws_responses.testing.faults import Fault
from ws_responses.testing.services import CUT, HOLD, HttpAnswer, LoopbackService, Piece, ServiceRequest, recut

__all__ = ["ChatService", "CompletionsService", "InferenceService"]

EVENT_BYTES: Final = 256 * 1024
"""Size of the event of ``Fault.EVENT_TOO_LARGE``; test with a smaller limit."""

_DONE: Final = b"data: [DONE]\n\n"
_JSON: Final = "application/json"

_REFUSALS: Final[Mapping[Fault, tuple[int, dict[str, Any]]]] = {
    Fault.BAD_REQUEST: (400, {"message": "Too hot.", "type": "x", "param": "temperature", "code": "bad_temperature"}),
    Fault.CONTEXT_OVERFLOW: (400, {"message": "This model's maximum context length is 8 tokens.", "code": 400}),
    Fault.KEY_REFUSED: (401, {"message": "Incorrect API key provided: sk-1", "code": "invalid_api_key"}),
    Fault.FORBIDDEN: (403, {"message": "Not allowed from here.", "code": "forbidden"}),
    Fault.UNPAID: (402, {"message": "Pay first.", "code": "payment_required"}),
    Fault.MODEL_NOT_FOUND: (404, {"message": "The model `m` does not exist.", "code": "model_not_found"}),
    Fault.TOO_LARGE: (413, {"message": "Request entity too large.", "code": "x"}),
    Fault.UNPROCESSABLE: (422, {"message": "Unprocessable."}),
    Fault.RATE_LIMITED: (429, {"message": "Slow down.", "code": "request_quota_exceeded"}),
    Fault.OVERLOADED: (503, {"message": "Too busy."}),
    Fault.INTERNAL: (500, {"message": "Boom."}),
}
_RETRY_AFTER: Final[Mapping[Fault, str]] = {Fault.RATE_LIMITED: "7", Fault.OVERLOADED: "2"}


class InferenceService(LoopbackService):
    """A service that answers with given deltas; what a subclass adds is how they are written.

    Requests that nothing is scripted for get a short answer; those that want no stream get no more than usage.

    Attributes:
        speaks: Members of ``Delta`` that it can send.
        faults: What it can be made to do.
        last_event: Ends each stream; None for nothing.
    """

    speaks: frozenset[str] = frozenset()
    faults: frozenset[Fault] = frozenset(Fault)
    last_event: Piece | None = _DONE

    def __init__(self) -> None:
        super().__init__(self._usual)

    @property
    def base_url(self) -> str:
        """What a backend is given."""
        return f"{self.url}/v1"

    def will_answer(
        self,
        deltas: Sequence[Delta],
        *,
        hold_after: int | None = None,
        late_end: bool = False,
        cut_every: int | None = None,
    ) -> None:
        """Answer the next generation so.

        Args:
            deltas: The last one has ``finish``.
            hold_after: Wait for ``release()`` after so many of them.
            late_end: Wait for ``release()`` before the end of the body.
            cut_every: Cut the body into chunks of so many bytes.
        """
        self.script(self.answer(deltas, hold_after=hold_after, late_end=late_end, cut_every=cut_every))

    def will_fail(self, fault: Fault, after: Sequence[Delta] = ()) -> None:
        """Do this in the next generation, after these deltas if it is one that comes in a stream."""
        if fault in _REFUSALS:
            status, error = _REFUSALS[fault]
            headers = (("retry-after", _RETRY_AFTER[fault]),) if fault in _RETRY_AFTER else ()
            self.script(HttpAnswer.json({"error": error}, status=status, headers=headers))
        elif fault is Fault.UNREACHABLE:
            self.stop_listening()
        elif fault is Fault.SILENT:
            self.script(HttpAnswer(held=True))
        else:
            self.script(HttpAnswer(body=[*self._events(after), *self._broken(fault)]))

    def answer(
        self,
        deltas: Sequence[Delta],
        *,
        hold_after: int | None = None,
        late_end: bool = False,
        cut_every: int | None = None,
        rate: float = 0.0,
    ) -> HttpAnswer:
        """Return an answer with these deltas; see ``will_answer``."""
        body: list[Piece] = list(self._events(deltas))
        if hold_after is not None:
            body.insert(hold_after, HOLD)
        if self.last_event is not None:
            body.append(self.last_event)
        if late_end:
            body.append(HOLD)
        if cut_every is not None:
            body = recut(body, cut_every)
        return HttpAnswer(body=body, apart=cut_every is not None, rate=rate)

    def _usual(self, request: ServiceRequest) -> HttpAnswer:
        if request.decoded().get("stream"):
            return self.answer([Delta(text="Hello"), Delta(finish="stop")])
        return HttpAnswer.json({"choices": [], "usage": _usage(Usage(input_tokens=8, output_tokens=1))})

    def _events(self, deltas: Sequence[Delta]) -> list[bytes]:
        events: list[bytes] = []
        for number, delta in enumerate(deltas):
            chunks = self.chunks(delta, first=not number)
            events.append(b"".join(b"data: %s\n\n" % msgspec.json.encode(chunk) for chunk in chunks))
        return events

    def _broken(self, fault: Fault) -> list[Piece]:
        if fault is Fault.ERROR_IN_STREAM:
            error = {"message": "Boom.", "type": "server_error", "code": "internal"}
            return [b"data: %s\n\n" % msgspec.json.encode({"error": error, "status_code": 500}), _DONE]
        if fault is Fault.CUT:
            return [CUT]
        if fault is Fault.NONSENSE:
            return [b"data: <html>\n\n", _DONE]
        if fault is Fault.EVENT_TOO_LARGE:
            return [b"data: %s\n\n" % msgspec.json.encode("x" * EVENT_BYTES), _DONE]
        if fault is Fault.STALLED:
            return [HOLD, _DONE]
        return []  # ended early

    @abstractmethod
    def chunks(self, delta: Delta, *, first: bool) -> list[dict[str, Any]]:
        """Return the chunks that say what a delta says."""


class ChatService(InferenceService):
    """Chat completions.

    Args:
        reasoning_member: Where reasoning stands: ``reasoning``, or ``reasoning_content``.
    """

    speaks = frozenset({"text", "reasoning", "refusal", "tool_calls", "usage", "service_tier"})

    def __init__(self, *, reasoning_member: str = "reasoning") -> None:
        super().__init__()
        self._reasoning_member = reasoning_member

    def chunks(self, delta: Delta, *, first: bool) -> list[dict[str, Any]]:
        """Return the chunks that say what a delta says."""
        message: dict[str, Any] = {"role": "assistant", "content": ""} if first else {}
        if delta.text:
            message["content"] = delta.text
        if delta.reasoning:
            message[self._reasoning_member] = delta.reasoning
        if delta.refusal:
            message["refusal"] = delta.refusal
        if delta.tool_calls:
            message["tool_calls"] = [
                {
                    "index": call.index,
                    **({"id": call.id, "type": "function"} if call.id is not None else {}),
                    "function": {**({} if call.name is None else {"name": call.name}), "arguments": call.arguments},
                }
                for call in delta.tool_calls
            ]
        choice = {"index": 0, "delta": message, "logprobs": None, "finish_reason": delta.finish}
        frame = {
            "id": "chatcmpl-0f3c2f0e",
            "object": "chat.completion.chunk",
            "created": 1796018000,
            "model": "m",
            "service_tier": delta.service_tier,
            "system_fingerprint": "fp_70185065a4",
        }
        chunks: list[dict[str, Any]] = [{**frame, "choices": [choice]}]
        if delta.usage is not None:
            chunks.append({**frame, "choices": [], "usage": _usage(delta.usage)})
        return chunks


class CompletionsService(InferenceService):
    """Completions, with the ids where vLLM, SGLang and Fireworks have them."""

    speaks = frozenset({"text", "token_ids", "usage"})

    def chunks(self, delta: Delta, *, first: bool) -> list[dict[str, Any]]:
        """Return the chunks that say what a delta says."""
        choice: dict[str, Any] = {
            "index": 0,
            "text": delta.text,
            "logprobs": None,
            "finish_reason": delta.finish,
            "stop_reason": None,
            "prompt_token_ids": [1, 2, 3] if first else None,
            "token_ids": list(delta.token_ids) or None,
        }
        frame = {"id": "cmpl-0f3c2f0e", "object": "text_completion", "created": 1796018000, "model": "m"}
        chunks: list[dict[str, Any]] = [{**frame, "choices": [choice], "usage": None}]
        if delta.usage is not None:
            chunks.append({**frame, "choices": [], "usage": _usage(delta.usage)})
        return chunks


def _usage(usage: Usage) -> dict[str, Any]:
    details = None if usage.cached_tokens is None else {"cached_tokens": usage.cached_tokens}
    reasoning = None if usage.reasoning_tokens is None else {"reasoning_tokens": usage.reasoning_tokens}
    return {
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": (usage.input_tokens or 0) + (usage.output_tokens or 0),
        "prompt_tokens_details": details,
        "completion_tokens_details": reasoning,
    }
