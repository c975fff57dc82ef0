"""Members that strict clients demand of a response object, from the request and the API's documented defaults.

What only the upstream can know (usage, times) is null, never invented.
"""

from typing import Any, Final

from msgspec import Raw

from ws_responses.protocol.creates import ResponseCreate

_ECHOED: Final[dict[str, bytes]] = {
    "instructions": b"null",
    "metadata": b"{}",
    "model": b"null",
    "parallel_tool_calls": b"true",
    "temperature": b"1.0",
    "tool_choice": b'"auto"',
    "tools": b"[]",
    "top_p": b"1.0",
    "presence_penalty": b"0",
    "frequency_penalty": b"0",
    "top_logprobs": b"0",
    "max_output_tokens": b"null",
    "max_tool_calls": b"null",
    "reasoning": b"null",
    "text": b'{"format":{"type":"text"}}',
    "truncation": b'"disabled"',
    "service_tier": b'"default"',
    "store": b"true",
    "safety_identifier": b"null",
    "prompt_cache_key": b"null",
    "user": b"null",
}
"""Members that repeat the request, with the default of the API reference where it named none."""

_UNKNOWN: Final = ("error", "incomplete_details", "usage", "completed_at", "previous_response_id")


def response_members(create: ResponseCreate) -> dict[str, Raw]:
    """Return the members that a response object of this request has whatever the upstream does."""
    members: dict[str, Raw] = {"object": Raw(b'"response"'), "background": Raw(b"false")}
    for name, default in _ECHOED.items():
        # A copy: the member itself is a view that keeps the whole frame.
        given = bytes(create.body.get(name, b"null"))
        members[name] = Raw(default if given == b"null" else given)
    for name in _UNKNOWN:
        members[name] = Raw(b"null")
    return members


def warm_up_response(create: ResponseCreate, response_id: str, created_at: int) -> dict[str, Any]:
    """Return the completed response of a warm-up: nothing was generated, so nothing was used."""
    return {
        "id": response_id,
        **response_members(create),
        "created_at": created_at,
        "completed_at": created_at,
        "status": "completed",
        "output": [],
        "previous_response_id": create.previous_response_id,
        "usage": {
            "input_tokens": 0,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": 0,
        },
    }
