"""What the schema of Open Responses (2026-04-24) demands of events and response objects, written down by hand."""

from collections.abc import Iterable, Mapping
from typing import Any

NULL = type(None)
NUMBER = (int, float)

RESPONSE: dict[str, tuple[type, ...]] = {
    "id": (str,),
    "object": (str,),
    "created_at": (int,),
    "completed_at": (int, NULL),
    "status": (str,),
    "incomplete_details": (dict, NULL),
    "model": (str,),
    "previous_response_id": (str, NULL),
    "instructions": (str, NULL),
    "output": (list,),
    "error": (dict, NULL),
    "tools": (list,),
    "tool_choice": (str, dict),
    "truncation": (str,),
    "parallel_tool_calls": (bool,),
    "text": (dict,),
    "top_p": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "top_logprobs": (int,),
    "temperature": NUMBER,
    "reasoning": (dict, NULL),
    "usage": (dict, NULL),
    "max_output_tokens": (int, NULL),
    "max_tool_calls": (int, NULL),
    "store": (bool,),
    "background": (bool,),
    "service_tier": (str,),
    "metadata": (dict,),
    "safety_identifier": (str, NULL),
    "prompt_cache_key": (str, NULL),
}

LIFE = {"created", "queued", "in_progress", "completed", "failed", "incomplete"}
TYPES = {f"response.{name}" for name in LIFE} | {
    "response.output_item.added",
    "response.output_item.done",
    "response.content_part.added",
    "response.content_part.done",
    "response.output_text.delta",
    "response.output_text.done",
    "response.output_text.annotation.added",
    "response.refusal.delta",
    "response.refusal.done",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.reasoning.delta",
    "response.reasoning.done",
    "response.reasoning_summary_part.added",
    "response.reasoning_summary_part.done",
    "response.reasoning_summary_text.delta",
    "response.reasoning_summary_text.done",
}


def assert_events(events: Iterable[Mapping[str, Any]]) -> None:
    """Look at all events of a turn."""
    numbers = []
    for event in events:
        assert event["type"] in TYPES, event["type"]
        assert "stream_id" not in event
        numbers.append(event["sequence_number"])
        if event["type"].removeprefix("response.") in LIFE:
            assert_response(event["response"])
    assert numbers == list(range(len(numbers)))


def assert_response(response: Mapping[str, Any]) -> None:
    """Look at a response object."""
    for name, types in RESPONSE.items():
        assert name in response, f"{name} is missing"
        assert isinstance(response[name], types), f"{name}: {response[name]!r}"
        assert type(response[name]) is not bool or bool in types, name
    for tool in response["tools"]:
        assert tool["type"] == "function"
        assert tool.keys() >= {"name", "description", "parameters", "strict"}
    assert response["text"]["format"]["type"] in {"text", "json_object", "json_schema"}
    if response["reasoning"] is not None:
        assert response["reasoning"].keys() >= {"effort", "summary"}
    if response["usage"] is not None:
        usage = response["usage"]
        assert type(usage["input_tokens_details"]["cached_tokens"]) is int
        assert type(usage["output_tokens_details"]["reasoning_tokens"]) is int
        assert all(type(usage[name]) is int for name in ("input_tokens", "output_tokens", "total_tokens"))
    if response["error"] is not None:
        assert isinstance(response["error"]["code"], str)
        assert isinstance(response["error"]["message"], str)
