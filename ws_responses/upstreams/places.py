"""Where the events of a response belong: which of them name an item, and a part of it, by which members."""

import re
from typing import Any, Final, NamedTuple

IN_CONTENT: Final = frozenset(
    f"response.{part}.{step}"
    for part, steps in {
        "output_text": ("delta", "done"),
        "refusal": ("delta", "done"),
        "reasoning_text": ("delta", "done"),
        "content_part": ("added", "done"),
    }.items()
    for step in steps
)
"""The usual events with ``item_id``, ``output_index`` and ``content_index``."""

POSITIONED: Final[dict[str, bool]] = dict.fromkeys(IN_CONTENT, True) | dict.fromkeys(
    (
        f"response.{part}.{step}"
        for part, steps in {
            "reasoning_summary_part": ("added", "done"),
            "reasoning_summary_text": ("delta", "done"),
            "function_call_arguments": ("delta", "done"),
            "custom_tool_call_input": ("delta", "done"),
            "mcp_call_arguments": ("delta", "done"),
            "code_interpreter_call_code": ("delta", "done"),
        }.items()
        for step in steps
    ),
    False,
)
"""The usual events with ``item_id`` and ``output_index``; True: with a ``content_index``. They need no book-keeping."""

_FURTHER: Final = re.compile(
    r"response\.(output_text\.annotation|reasoning|mcp_call|mcp_list_tools|web_search_call|file_search_call"
    r"|code_interpreter_call|image_generation_call|shell_call_command|shell_call_output_content|compaction)\.[a-z_]+\Z"
).match
_FURTHER_IN_CONTENT: Final = ("response.output_text.annotation.", "response.reasoning.")
_WITHOUT_ITEM_ID: Final = "response.shell_call_command."


class Beginning(NamedTuple):
    """How an item begins of which all is known before it is finished.

    Attributes:
        item: The item as it is announced, without its id.
        prefix: Of an id that we give it.
        part_event: Type of the event that announces its part.
        part: The part as it is announced.
    """

    item: dict[str, Any]
    prefix: str
    part_event: str
    part: dict[str, Any]


_MESSAGE: Final[dict[str, Any]] = {"type": "message", "role": "assistant", "status": "in_progress", "content": []}
_REASONING: Final[dict[str, Any]] = {"type": "reasoning", "summary": []}
_CONTENT: Final = "response.content_part.added"
_SUMMARY: Final = "response.reasoning_summary_part.added"

_TEXT: Final = Beginning(
    _MESSAGE, "msg", _CONTENT, {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
)
_REFUSAL: Final = Beginning(_MESSAGE, "msg", _CONTENT, {"type": "refusal", "refusal": ""})
_THOUGHT: Final = Beginning(_REASONING, "rs", _CONTENT, {"type": "reasoning_text", "text": ""})
_THOUGHTS_SUMMARY: Final = Beginning(_REASONING, "rs", _SUMMARY, {"type": "summary_text", "text": ""})

_BEGINNINGS: Final = {
    "output_text": _TEXT,
    "refusal": _REFUSAL,
    "reasoning_text": _THOUGHT,
    "reasoning": _THOUGHT,
    "summary_text": _THOUGHTS_SUMMARY,
    "reasoning_summary_text": _THOUGHTS_SUMMARY,
}


_ITEM_TYPES: Final = {
    "function_call_arguments": "function_call",
    "custom_tool_call_input": "custom_tool_call",
    "mcp_call_arguments": "mcp_call",
    "code_interpreter_call_code": "code_interpreter_call",
    "shell_call_command": "shell_call",
    "content_part": None,
}
"""By name of an event: type of its item, where that is not the name, and the event does not begin an item either."""


def item_type(kind: str, part_type: str | None = None) -> str | None:
    """Return the type of the item to which an event belongs; None if it does not tell.

    Args:
        kind: Type of the event.
        part_type: Type of the part in it, if it has one.
    """
    begins = beginning(kind, part_type)
    if begins is not None:
        return str(begins.item["type"])
    name = kind.split(".")[1]
    return _ITEM_TYPES.get(name, name)


def is_placed(kind: str) -> bool:
    """Whether events of this type belong to an item."""
    return kind in POSITIONED or _FURTHER(kind) is not None


def has_item_id(kind: str) -> bool:
    """Whether such an event names its item by ``item_id``."""
    return not kind.startswith(_WITHOUT_ITEM_ID)


def is_in_content(kind: str) -> bool:
    """Whether such an event has a ``content_index``."""
    return kind in IN_CONTENT or kind.startswith(_FURTHER_IN_CONTENT)


def beginning(kind: str, part_type: str | None) -> Beginning | None:
    """Return how the item begins to which an event belongs; None if the event does not tell enough.

    Args:
        kind: Type of the event.
        part_type: Type of the part in it, if it has one.
    """
    return _BEGINNINGS.get(part_type or kind.split(".")[1])
