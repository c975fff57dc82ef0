"""Telling a cancellation of ours from one that a library raises by itself."""

import asyncio


def was_cancelled() -> bool:
    """Whether somebody has cancelled the running task, now that a cancellation was caught in it.

    On asyncio, awaiting what another task has cancelled raises the same as being cancelled: taken for that, the work at hand
    would end in silence. On trio there is no such thing.
    """
    try:
        task = asyncio.current_task()
    except RuntimeError:
        return True
    return task is None or task.cancelling() > 0
