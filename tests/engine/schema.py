"""Whether a turn's events are what the API says: order, schema (by the types of the ``openai`` package), and sums."""

import re
from collections.abc import Sequence
from typing import Any, Final, get_args

from openai.types.responses import ResponseStreamEvent
from pydantic import BaseModel

from tests.upstreams.wire import TERMINAL, assert_legal

Event = dict[str, Any]

_MODELS: Final[dict[str, type[BaseModel]]] = {
    get_args(model.model_fields["type"].annotation)[0]: model for model in get_args(get_args(ResponseStreamEvent)[0])
}

OPEN_RESPONSES: Final = frozenset(
    [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "model",
        "previous_response_id",
        "instructions",
        "output",
        "error",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "temperature",
        "reasoning",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
    ]
)
"""Members that Open Responses demands of each response object, null or not."""

_ALSO_KNOWN: Final = OPEN_RESPONSES | {"status", "user"}
"""Members that the package's types do not name where they stand: of Open Responses, and ``status`` of custom tool calls."""

_OURS: Final = {
    "msg": "message",
    "rs": "reasoning",
    "fc": "function_call",
    "ctc": "custom_tool_call",
}


def assert_turn(events: Sequence[Event], previous_response_id: str | None = None) -> None:
    """Fail unless the events are one whole turn of the engine."""
    assert_legal(events, previous_response_id=previous_response_id)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    for event in events:
        assert_schema(event)
    assert_sums(events)
    for item in events[-1]["response"]["output"]:
        prefix, _, rest = item["id"].partition("_")
        assert _OURS[prefix] == item["type"]
        assert re.fullmatch("[0-9a-f]{32}", rest), "nobody can guess it"


def assert_schema(event: Event) -> None:
    """Fail unless an event is schema-true: strict types, and no member that nobody knows."""
    model = _MODELS[event["type"]].model_validate(event, strict=True)
    _assert_no_extra(model, event["type"])
    response = event.get("response")
    if response is not None:
        missing = OPEN_RESPONSES - response.keys()
        assert not missing, f"{event['type']}: the response object lacks {sorted(missing)}"
        assert type(response["created_at"]) is int


def _assert_no_extra(value: Any, where: str) -> None:
    if isinstance(value, BaseModel):
        extra = (value.model_extra or {}).keys() - _ALSO_KNOWN
        assert not extra, f"{where}: unknown members {sorted(extra)}"
        for name in type(value).model_fields:
            _assert_no_extra(getattr(value, name), f"{where}.{name}")
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            _assert_no_extra(entry, f"{where}[{index}]")


_WHOLE: Final = {
    "response.output_text": "text",
    "response.refusal": "refusal",
    "response.reasoning_text": "text",
    "response.function_call_arguments": "arguments",
    "response.custom_tool_call_input": "input",
}


def assert_sums(events: Sequence[Event]) -> None:
    """Fail unless the deltas of each part add up to its ``done``, its part, and what its item has."""
    sums: dict[tuple[int, int, str], str] = {}
    for event in events:
        prefix, _, end = event["type"].rpartition(".")
        if prefix not in _WHOLE:
            continue
        place = event["output_index"], event.get("content_index", 0), prefix
        if end == "delta":
            assert event["delta"], "no delta says nothing"
            sums[place] = sums.get(place, "") + event["delta"]
        else:
            assert event[_WHOLE[prefix]] == sums.get(place, ""), place
            sums.setdefault(place, "")
    output = events[-1]["response"]["output"]
    for (index, content_index, prefix), whole in sums.items():
        holder = output[index]["content"][content_index] if "content" in output[index] else output[index]
        assert holder[_WHOLE[prefix]] == whole
    assert {index for index, _, _ in sums} == set(range(len(output))), "every item is streamed"
    assert events[-1]["type"] in TERMINAL
