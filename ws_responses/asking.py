"""Asking what is not ours (an operator's function, a store) within a time limit."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ws_responses.cancellation import no_cancellation_but_ours
from ws_responses.clock import Clock

T = TypeVar("T")


class LateError(Exception):
    """There was no answer in time."""


async def in_time(ask: Callable[[], T | Awaitable[T]], clock: Clock, timeout_s: float) -> T:
    """Return the answer.

    Args:
        ask: Gives it, async or not.
        clock: Of the time limit.
        timeout_s: Time for the answer.

    Raises:
        LateError: There was none.
        Exception: What ``ask`` raised.
    """
    answers: list[T] = []
    with no_cancellation_but_ours(), clock.move_on_after(timeout_s):
        answer: Any = ask()
        answers.append(await answer if inspect.isawaitable(answer) else answer)
    if not answers:
        raise LateError
    return answers[0]
