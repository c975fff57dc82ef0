"""The safety of one turn, from its input to its last window: what the steps of a turn call."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from msgspec import Raw

from ws_responses.safety.gate import GateOptions, OutputGate
from ws_responses.safety.guard import Downstream, Guard
from ws_responses.safety.input import Member, read_input
from ws_responses.safety.judge import Judge
from ws_responses.safety.verdict import About, Judgement, SafetyInput, SafetyState, merged


class SafetyTurn:
    """The safety of one turn.

    Call :meth:`judge` with the input before anything is done with it; then let :meth:`run` run the upstream. What the node
    is to carry is :attr:`state`, from the terminal event on.

    Args:
        judge: The classifiers.
        about: Whose turn it is.
        before: What was said of earlier input and output of the same turn (a rollout).
    """

    __slots__ = ("_about", "_before", "_gate", "_guard", "_judge", "_pending", "_state")

    def __init__(self, judge: Judge, about: About, before: Judgement | None = None) -> None:
        self._judge = judge
        self._about = about
        self._pending: SafetyInput | None = None
        self._state = SafetyState()
        self._before = before
        self._gate: OutputGate | None = None
        self._guard: Guard | None = None

    @property
    def state(self) -> SafetyState:
        """What the chain carries on: after all that has passed."""
        gate = self._gate
        return self._state if gate is None or gate.state is None else gate.state

    @property
    def judgement(self) -> Judgement | None:
        """What was said of this turn so far; None if nothing was to be judged."""
        later = None if self._guard is None else self._guard.judgement
        if later is None:
            return self._before
        return merged(self._before, later)

    @property
    def beside(self) -> bool:
        """Whether inference begins before the input is judged: the app must not store what may be blocked."""
        return self._pending is not None

    async def judge(
        self,
        items: Sequence[Raw | bytes],
        *,
        members: Mapping[str, Member],
        state: SafetyState | None,
        history: Iterable[Raw | bytes] = (),
        at_once: bool = False,
    ) -> None:
        """Judge the input, or keep it to be judged beside the inference (``mode="beside"``).

        Args:
            items: The input items.
            members: All members of the request; those that the options name are judged when they change.
            state: The parent's; None if it has none.
            history: Items that nobody has judged: those of a parent without a state.
            at_once: Judge it now in any case (a warm-up has no inference).

        Raises:
            WireError: It is blocked (``invalid_prompt``), or could not be judged (``safety_unavailable``).
        """
        safety = self._judge.safety
        named = {name: members[name] for name in safety.members if name in members}
        reading = read_input(
            items, members=named, about=self._about, state=state, history=history, max_texts=safety.max_texts
        )
        self._state = reading.state
        if reading.delta is None:
            return
        if safety.mode == "beside" and not at_once:
            self._pending = reading.delta
            return
        judgement = await self._judge.judge(reading.delta, reading.state)
        self._before = merged(self._before, judgement)
        if judgement.blocked:
            raise judgement.error()
        self._state = judgement.state

    async def run(
        self,
        answer: Callable[[Downstream], Awaitable[None]],
        downstream: Downstream,
        *,
        stop: Callable[[], object],
    ) -> None:
        """Run the upstream behind the gate, if there is anything to be held.

        Args:
            answer: Runs the upstream with the ``Emit`` that it is given.
            downstream: The turn.
            stop: See :class:`~ws_responses.safety.guard.Guard`.

        Raises:
            Exception: What ``answer`` raised.
        """
        safety = self._judge.safety
        if safety.output == "off" and self._pending is None:
            await answer(downstream)
            return
        options = GateOptions(
            output=safety.output,
            window_chars=safety.window_chars,
            hold_back_chars=safety.hold_back_chars,
            overlap_chars=safety.overlap_chars,
            max_held_bytes=safety.max_held_bytes,
            max_output_bytes=safety.max_output_bytes,
        )
        self._gate = OutputGate(options, self._about, None if self._pending is not None else self._state)
        self._guard = Guard(self._judge, self._gate, downstream, stop=stop)
        await self._guard.run(answer, self._pending, self._state)
