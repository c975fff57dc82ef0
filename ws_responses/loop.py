"""The event loop of asyncio, where it runs.

asyncio takes longer to load than all of a middleware, and is not loaded here: where its loop runs it is there, and on trio nobody needs it.
"""

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio


def running_loop() -> "asyncio.AbstractEventLoop | None":
    """Return the running event loop of asyncio; None if another library's runs, or none."""
    try:
        return None if "asyncio" not in sys.modules else _asyncio().get_running_loop()
    except RuntimeError:
        return None


def current_task() -> "asyncio.Task[Any] | None":
    """Return the running task of asyncio; None if there is none."""
    return None if running_loop() is None else _asyncio().current_task()


def _asyncio() -> Any:
    return sys.modules["asyncio"]
