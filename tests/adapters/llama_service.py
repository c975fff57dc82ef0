"""A stand-in for llama.cpp's server that can be made to fail; it writes as that does (recorded from the real one)."""

from typing import Any

import msgspec
import pytest

from ws_responses.backends import Delta, Usage
from ws_responses.testing.faults import Fault
from ws_responses.testing.inference import InferenceService
from ws_responses.testing.services import HttpAnswer, Piece, ServiceRequest


class LlamaCppService(InferenceService):
    """``/completion``: an event for each token, and one at the end; no ``[DONE]``."""

    speaks = frozenset({"text", "token_ids", "usage"})
    last_event = None
    _sampled = 0

    @property
    def base_url(self) -> str:
        return self.url

    def chunks(self, delta: Delta, *, first: bool) -> list[dict[str, Any]]:
        if delta.finish == "content_filter":
            pytest.skip("llama.cpp filters nothing")
        # Text without an id is a character whose last id alone is told, with the event of its last token.
        self._sampled = (0 if first else self._sampled) + max(len(delta.token_ids), bool(delta.text))
        frame = {"index": 0, "content": delta.text, "tokens": list(delta.token_ids), "id_slot": -1}
        chunks: list[dict[str, Any]] = []
        if delta.text or delta.token_ids:
            chunks.append({**frame, "stop": False, "tokens_predicted": self._sampled, "tokens_evaluated": 8})
        if delta.finish is not None:
            chunks.append(_last(delta.usage, "limit" if delta.finish == "length" else "eos"))
        return chunks

    def _usual(self, request: ServiceRequest) -> HttpAnswer:
        if request.decoded()["stream"]:
            return self.answer([Delta(text="Hello", token_ids=[9]), Delta(finish="stop")])
        usage = Usage(input_tokens=8, cached_tokens=0, output_tokens=1)
        return HttpAnswer.json({**_last(usage, "limit"), "content": "x", "tokens": [9]})

    def _broken(self, fault: Fault) -> list[Piece]:
        if fault is Fault.ERROR_IN_STREAM:
            error = {"code": 500, "message": "Compute error.", "type": "server_error"}
            return [b"data: %s\n\n" % msgspec.json.encode({"error": error})]
        return [piece for piece in super()._broken(fault) if not isinstance(piece, bytes) or b"[DONE]" not in piece]


def _last(usage: Usage | None, stop_type: str) -> dict[str, Any]:
    last = {"content": "", "tokens": [], "stop": True, "stop_type": stop_type}
    if usage is None:
        return last
    timings = {"cache_n": usage.cached_tokens, "prompt_n": 1, "predicted_n": usage.output_tokens, "predicted_ms": 9.5}
    return {
        **last,
        "tokens_predicted": usage.output_tokens,
        "tokens_evaluated": usage.input_tokens,
        "timings": timings,
    }
