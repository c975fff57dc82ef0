"""Runs coroutines that never wait, and makes records."""

from collections.abc import Coroutine
from typing import Any, TypeVar

from msgspec.structs import replace

from ws_responses.state.budget import Budget
from ws_responses.state.node import Record

T = TypeVar("T")


def drive(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of the in-process store: it must not wait, so no event loop is needed."""
    try:
        work.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("the in-process store waits for something")


def charged(record: Record, size: int, budgets: tuple[Budget, ...]) -> Record:
    """Return the record with its charge, which it gives back when it goes."""
    return replace(record, size=size, budgets=budgets)
