"""Starting a turn's task.

A task group's ``start_soon`` costs several times what the event loop's own task does (a handle, two cancel scopes, look-ups
of the running library). There is one turn task per model call, its errors are all caught inside of it, and its connection
waits for it; so on asyncio it is a plain task, as servers start for each request. On trio it is a child of the group.
"""

from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any

import anyio
from anyio.abc import TaskGroup

from ws_responses.loop import running_loop

Cancel = Callable[[], object]
"""Asks a task to end; may be called again."""

Work = Callable[[], Coroutine[Any, Any, None]]


def nothing_to_cancel() -> None:
    """Stand in for a task's ``cancel`` before it is started."""


class Spawner:
    """Starts tasks, each in its own copy of one context.

    Args:
        tasks: The group, for trio.
        context: What is copied.
    """

    __slots__ = ("_context", "_loop", "_tasks")

    def __init__(self, tasks: TaskGroup, context: Context) -> None:
        self._tasks = tasks
        self._context = context
        self._loop = running_loop()

    def spawn(self, work: Work) -> Cancel:
        """Start ``work`` soon; it must not raise. Keep the result: it keeps the task."""
        if self._loop is not None:
            return self._loop.create_task(work(), context=self._context.copy()).cancel
        # Shielded: if the server cancels the socket, the app is told first that its client has gone.
        scope = anyio.CancelScope(shield=True)

        async def scoped() -> None:
            with scope:
                await work()

        self._context.run(self._tasks.start_soon, scoped)
        return scope.cancel


def next_round(callback: Callable[[], object]) -> None:
    """Call ``callback`` as soon as the running task lets others run."""
    loop = running_loop()
    if loop is not None:
        loop.call_soon(callback)
        return
    from trio.lowlevel import current_trio_token  # noqa: PLC0415 - loaded already, where it runs

    current_trio_token().run_sync_soon(callback)
