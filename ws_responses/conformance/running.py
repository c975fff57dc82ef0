"""Runs checks, one after the other."""

import importlib
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ws_responses.conformance.check import CHECKS, Check, Failed, Outcome, Result, Skipped, Target

_MODULES: Final = ("turns", "chains", "lanes", "steers", "faults")


def all_checks() -> Sequence[Check]:
    """Return all checks in their order."""
    for module in _MODULES:
        importlib.import_module(f"ws_responses.conformance.{module}")
    return CHECKS


async def run_checks(
    target: Target, *, only: Collection[str] | None = None, told: Callable[[Result], None] = lambda _: None
) -> list[Result]:
    """Run the checks of a target's profile.

    Args:
        target: What is checked.
        only: Names of those to run; None for all.
        told: Is given each result as it comes.
    """
    results: list[Result] = []
    for each in all_checks():
        if target.profile not in each.profiles or (only is not None and each.name not in only):
            continue
        result = await _run(each, target)
        results.append(result)
        told(result)
        if each.name == "upgrade" and result.outcome == "fail":
            break  # the others would all say the same
    return results


async def _run(each: Check, target: Target) -> Result:
    begun = time.perf_counter()
    outcome: Outcome = "pass"
    reason: str | None = None
    try:
        await each.run(target)
    except Failed as failed:
        outcome, reason = "fail", str(failed)
    except Skipped as skipped:
        outcome, reason = "skip", str(skipped)
    seconds = time.perf_counter() - begun
    return Result(name=each.name, statement=each.statement, outcome=outcome, reason=reason, seconds=seconds)
