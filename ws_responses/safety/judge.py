"""Asks the classifiers, all at once and each within its time, and makes one judgement of what they say."""

import logging
from functools import partial
from inspect import isawaitable
from typing import Final

import anyio
from anyio import CancelScope
from msgspec.structs import replace

from ws_responses.cancellation import was_cancelled
from ws_responses.clock import Clock
from ws_responses.instrumentation.raised import log_raised
from ws_responses.safety.options import Safety, Screen
from ws_responses.safety.stored import fingerprint_of, loaded_state, stored_state
from ws_responses.safety.text import tail_of
from ws_responses.safety.threads import Threads
from ws_responses.safety.verdict import (
    Carried,
    Judgement,
    SafetyInput,
    SafetyState,
    Stage,
    Verdict,
    checked,
    flags_with,
)

logger: Final = logging.getLogger("ws_responses.safety")


class _Round:
    """The verdicts on one delta, as they come in."""

    __slots__ = ("_delta", "_state", "_tail_chars", "blocked_by", "failed", "unavailable", "verdicts")

    def __init__(self, delta: SafetyInput, state: SafetyState, tail_chars: int) -> None:
        self._delta = delta
        self._state = state
        self._tail_chars = tail_chars
        self.verdicts: dict[str, Verdict] = {}
        self.failed: list[str] = []
        self.blocked_by: str | None = None
        self.unavailable = False

    def hear(self, screen: Screen, verdict: Verdict | None) -> bool:
        """Take a verdict, None of a classifier that failed; return whether it settles the matter."""
        if self.blocked_by is not None:
            return True
        if verdict is None:
            self.failed.append(screen.name)
            self.unavailable = screen.fail == "closed"
        else:
            self.verdicts[screen.name] = verdict
        if self.unavailable or (verdict is not None and verdict.action == "block"):
            self.blocked_by = screen.name
        return self.blocked_by is not None

    def judgement(self) -> Judgement:
        """Return what comes out of it."""
        # By name, not as they came: the same text must give the same state.
        verdicts = dict(sorted(self.verdicts.items()))
        told = {name: verdict for name, verdict in verdicts.items() if verdict.action != "allow"}
        if self.blocked_by is not None:
            told = {name: verdict for name, verdict in told.items() if name == self.blocked_by}
        categories = tuple(
            f"{name}:{category}" if category else name
            for name, verdict in told.items()
            for category in verdict.categories or ("",)
        )
        if self.blocked_by is not None:
            state = self._state
        else:
            carried = dict(self._state.carried) | {name: verdict.state for name, verdict in verdicts.items()}
            state = replace(
                self._state,
                tail=tail_of(self._delta.text, self._tail_chars),
                carried=tuple((name, value) for name, value in carried.items() if value is not None),
                flags=flags_with(self._state.flags, categories),
            )
        return Judgement(
            action="block" if self.blocked_by is not None else "flag" if told else "allow",
            state=state,
            categories=categories,
            failed=tuple(sorted(self.failed)),
            unavailable=self.unavailable,
        )


class Judge:
    """The classifiers of a middleware.

    Args:
        safety: The options.
        clock: Of the time limits.

    Attributes:
        fingerprint: The same for all that judge alike.
    """

    def __init__(self, safety: Safety, clock: Clock) -> None:
        self.safety = safety
        self.fingerprint = fingerprint_of(safety)
        self._clock = clock
        self._threads = Threads(safety.max_threads)

    def store(self, state: SafetyState) -> bytes | None:
        """Return a state as it is stored; None if it has no such form, and whoever loads the chain judges it anew."""
        return stored_state(state, self.fingerprint)

    def load(self, stored: bytes | None) -> SafetyState | None:
        """Return a stored state; None if the chain is to be judged anew."""
        return loaded_state(stored, self.fingerprint)

    def waits(self, stage: Stage) -> bool:
        """Whether a classifier of this stage may wait for something."""
        return any(stage in screen.stages and not screen.quick for screen in self.safety.screens)

    async def judge(self, delta: SafetyInput, state: SafetyState) -> Judgement:
        """Ask all classifiers of the delta's stage. Never raises but for cancellation.

        Args:
            delta: The new text.
            state: What the chain carries.
        """
        asked = [screen for screen in self.safety.screens if delta.stage in screen.stages]
        heard = _Round(delta, state, self.safety.overlap_chars)
        others: list[Screen] = []
        for screen in asked:
            if not screen.quick:
                others.append(screen)
            elif heard.hear(screen, await self._ask(screen, delta, state)):
                return heard.judgement()
        if len(others) == 1:
            heard.hear(others[0], await self._ask(others[0], delta, state))
        elif others:
            async with anyio.create_task_group() as tasks:
                for screen in others:
                    tasks.start_soon(self._ask_beside, screen, delta, state, heard, tasks.cancel_scope)
        return heard.judgement()

    async def _ask_beside(
        self, screen: Screen, delta: SafetyInput, state: SafetyState, heard: _Round, others: CancelScope
    ) -> None:
        if heard.hear(screen, await self._ask(screen, delta, state)):
            others.cancel()

    async def _ask(self, screen: Screen, delta: SafetyInput, state: SafetyState) -> Verdict | None:
        """Return a verdict, None if there is none that makes sense within the time."""
        verdict: Verdict | None = None
        error: BaseException | None = None
        try:
            with self._clock.move_on_after(screen.time_limit_s):
                verdict = checked(await self._call(screen, delta, state.carried_of(screen.name)))
        except Exception as raised:  # noqa: BLE001 - whatever it raises is a failure of it
            error = raised
        except anyio.get_cancelled_exc_class() as raised:
            if was_cancelled():
                raise
            error = raised  # its own: of a task of it, or a session, that was closed under it
        if verdict is None:
            reason = "was late" if error is None else f"failed: {type(error).__name__}"
            logger.warning(
                "turn %s: classifier %s %s (fails %s)", delta.about.turn_id, screen.name, reason, screen.fail
            )
            if error is not None:
                log_raised(logger, logging.DEBUG, "classifier %s failed", screen.name, error=error, private=True)
        return verdict

    async def _call(self, screen: Screen, delta: SafetyInput, carried: Carried) -> object:
        answer: object
        if screen.in_thread:
            answer = await self._threads.run(partial(screen.classify, delta, carried))
        else:
            answer = screen.classify(delta, carried)
        return await answer if isawaitable(answer) else answer
