"""What Cerebras sends, for the loopback service: events as its API reference shows them, and errors as it words them."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from ws_responses.backends import ChatPrompt, Delta, GenerateParams, TokenPrompt
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.services import HttpAnswer, Piece

MODEL = "gpt-oss-120b"
KEY = "csk-0123456789abcdef"
DONE = b"data: [DONE]\n\n"
USAGE = {
    "prompt_tokens": 100,
    "completion_tokens": 7,
    "total_tokens": 107,
    "prompt_tokens_details": {"cached_tokens": 64},
    "completion_tokens_details": {
        "accepted_prediction_tokens": 0,
        "rejected_prediction_tokens": 0,
        "reasoning_tokens": 3,
    },
}
TIMES = {
    "queue_time": 7.3e-5,
    "prompt_time": 0.001,
    "completion_time": 0.006,
    "total_time": 0.022,
    "created": 1796018000.1,
}


def sse(event: Any) -> bytes:
    return b"data: " + json.dumps(event, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def chat(delta: dict[str, Any], finish: str | None = None, **members: Any) -> bytes:
    """One event of chat completions."""
    return sse(
        {
            "id": "chatcmpl-292e278f-514e-4186-9010-91ce6a14168b",
            "choices": [{"delta": delta, "finish_reason": finish, "index": 0}],
            "created": 1796018000,
            "model": MODEL,
            "system_fingerprint": "fp_70185065a4",
            "object": "chat.completion.chunk",
            **members,
        }
    )


def completion(text: str | None, tokens: Sequence[int] | None, finish: str | None = None, **members: Any) -> bytes:
    """One event of completions."""
    choice = {"index": 0, "text": text, "tokens": tokens, "finish_reason": finish, "logprobs": None}
    return sse(
        {
            "id": "cmpl-b1743f2d-8c20-4ad5-a77c-426521ae1b1c",
            "choices": [choice],
            "created": 1796018000,
            "model": MODEL,
            "system_fingerprint": "fp_70185065a4",
            "object": "text_completion",
            **members,
        }
    )


ROLE = chat({"role": "assistant", "content": ""})
LAST = chat({}, "stop", usage=USAGE, time_info=TIMES)
LAST_TOKENS = completion("", [], "stop", usage=USAGE, time_info=TIMES)


def said(*words: str) -> list[bytes]:
    """The whole stream of an answer in these pieces."""
    return [ROLE, *(chat({"content": word}) for word in words), LAST, DONE]


def answer(*words: str, **options: Any) -> HttpAnswer:
    return stream(said(*words), **options)


def stream(body: Sequence[Piece], **options: Any) -> HttpAnswer:
    return HttpAnswer(body=body, **options)


def refusal(status: int, message: str, type_: str, param: str | None, code: str, **headers: str) -> HttpAnswer:
    """An error answer: Cerebras sends the error without an envelope."""
    error = {"message": message, "type": type_, "param": param, "code": code}
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return HttpAnswer.json(error, status=status, headers=named)


def chat_prompt(*texts: str, **options: Any) -> ChatPrompt:
    rendered = Rendered.of_messages(
        [json.dumps({"role": "user", "content": text}).encode() for text in texts or ("hi",)]
    )
    return ChatPrompt(rendered=rendered, **options)


def token_prompt(ids: Iterable[int] = (200006, 17360, 200008), **options: Any) -> TokenPrompt:
    return TokenPrompt(rendered=Rendered.of_tokens(ids, options.pop("form", "msgpack")), **options)


def params(**options: Any) -> GenerateParams:
    return GenerateParams(**{"model": MODEL, **options})


def text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas)
