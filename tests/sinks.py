"""What a settlement sink may do with a record: it takes it or does not, and returns, raises or hangs."""

from collections.abc import Callable

import anyio

from ws_responses.settlement import Undeliverable

FATES = ["takes", "takes", "takes", "raises", "refuses", "hangs", "takes and raises", "takes and hangs"]
"""Of one attempt; most records are taken."""


async def meet(fate: str, take: Callable[[], object]) -> None:
    """Do as a fate says.

    Args:
        fate: One of ``FATES``.
        take: Takes the record.
    """
    if fate.startswith("takes"):
        take()
    if fate.endswith("raises"):
        raise RuntimeError
    if fate == "refuses":
        raise Undeliverable
    if fate.endswith("hangs"):
        await anyio.sleep_forever()
