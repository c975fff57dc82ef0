"""Two specifications of one protocol: OpenAI's, and Open Responses (2026-04-24), which serves one response at a time.

Both have the same frames and, but for a few names, the same events. What Open Responses has not, and has not reserved for
extensions (``slug:name``), its clients refuse.
"""

import re
from typing import Final, Literal

Profile = Literal["openai", "open-responses"]
"""Which specification a connection follows."""

RENAMED: Final = {
    "response.reasoning_text.delta": "response.reasoning.delta",
    "response.reasoning_text.done": "response.reasoning.done",
}
"""Open Responses' names of events that it calls otherwise; their members are the same."""

VERBATIM: Final = frozenset(
    f"response.{part}.{step}"
    for part, steps in {
        "output_item": ("added", "done"),
        "content_part": ("added", "done"),
        "output_text": ("delta", "done"),
        "output_text.annotation": ("added",),
        "refusal": ("delta", "done"),
        "function_call_arguments": ("delta", "done"),
        "reasoning": ("delta", "done"),
        "reasoning_summary_part": ("added", "done"),
        "reasoning_summary_text": ("delta", "done"),
    }.items()
    for step in steps
)
"""Types that both have, beside those of a response's life (specification, streaming events)."""

_EXTENSION: Final = re.compile(r"[A-Za-z0-9_.-]+:[A-Za-z0-9_.-]+\Z").match
_TYPE: Final = re.compile(rb'("type"\s*:\s*)"(response\.reasoning_text\.(?:delta|done))"')


def is_served(kind: str) -> bool:
    """Whether Open Responses knows events of this type, which is none of a response's life."""
    return kind in VERBATIM or kind in RENAMED or _EXTENSION(kind) is not None


def renamed(payload: bytes, kind: str) -> bytes | None:
    """Return an event with Open Responses' name of its type; None if the type is spelled in a way that is not looked for.

    Args:
        payload: The event.
        kind: Its type, one of :data:`RENAMED`. The quotes of a name are escaped in strings, so one match is the member.
    """
    changed, count = _TYPE.subn(rb'\1"%b"' % RENAMED[kind].encode(), payload)
    return changed if count == 1 else None
