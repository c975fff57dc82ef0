"""What the handlers of all third-party apps do: the model's name says it, since that is what every app hands on.

"fake" answers by a call while tools are offered and the last item is none's output, else by a text that tells how many items came.
"raise" raises at once, "break" after a first piece of text, "stall" waits for ever after that.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

MODELS: Final = ("fake", "raise", "break", "stall")
TOOL_NAME: Final = "get_weather"
ARGUMENTS: Final = '{"city":"Paris"}'

counts: dict[str, int] = {"calls": 0, "open": 0}
"""Times that a handler was called, and that it is at work."""


def begin(model: str) -> None:
    """Note a call of a handler.

    Raises:
        RuntimeError: The model says so.
    """
    counts["calls"] += 1
    if model == "raise":
        raise RuntimeError("the handler is broken")


def wants_call(model: str, kinds: list[str], *, tools: bool) -> bool:
    """Whether the answer is a call of the tool.

    Args:
        model: As requested.
        kinds: Type or role of each input item.
        tools: Whether any are offered.
    """
    return model == "fake" and tools and kinds[-1] not in {"function_call_output", "tool"}


async def pieces(model: str, items: int) -> AsyncGenerator[str]:
    """Give the pieces of a text."""
    counts["open"] += 1
    try:
        yield "I have "
        if model == "stall":
            await asyncio.Event().wait()
        if model == "break":
            raise RuntimeError("the stream is broken")
        for piece in (str(items), " items", "."):
            yield piece
    finally:
        counts["open"] -= 1
