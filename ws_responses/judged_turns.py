"""What the steps of a turn ask of the safety room: with ``safety=`` each turn is judged."""

from msgspec import Raw

from ws_responses.clock import Clock
from ws_responses.safety import About, Judge, Safety, SafetyState, SafetyTurn
from ws_responses.state.interning import Interned
from ws_responses.state.node import ResponseNode
from ws_responses.upstreams.base import CurrentTurn


class JudgedTurns:
    """Judges the turns of a middleware.

    Args:
        safety: The classifiers, and how they are used.
        clock: The clock of their time limits.
    """

    def __init__(self, safety: Safety, clock: Clock) -> None:
        self._judge = Judge(safety, clock)

    def begin(self, turn: CurrentTurn, before: SafetyTurn | None) -> SafetyTurn:
        """Return the safety of a turn, or of the next step of a rollout.

        Args:
            turn: The turn.
            before: Of the step before; None for the first one.
        """
        about = About(
            turn_id=turn.id,
            tenant=turn.tenant,
            principal_id=None if turn.principal is None else turn.principal.id,
            model=turn.model,
        )
        return SafetyTurn(self._judge, about, None if before is None else before.judgement)

    async def judge(self, safety: SafetyTurn, turn: CurrentTurn, parent: ResponseNode | None) -> None:
        """Judge what is new in a turn, before inference or beside it.

        Args:
            safety: Of the turn.
            turn: The turn, which is told what was found.
            parent: What it continues.

        Raises:
            WireError: It is blocked (``invalid_prompt``), or could not be judged (``safety_unavailable``).
        """
        state = None
        if parent is not None:
            state = parent.safety if isinstance(parent.safety, SafetyState) else self._judge.load(parent.record.safety)
        members: dict[str, Raw | Interned] = dict(turn.create.body)
        kept = {"tools": turn.interned_tools, "instructions": turn.interned_instructions}
        members |= {name: interned for name, interned in kept.items() if interned is not None}
        await safety.judge(
            turn.delta,
            members=members,
            state=state,
            history=() if parent is None or state is not None else turn.history(),
            at_once=turn.warm_up,
        )
        turn.judgement, turn.flags, turn.unjudged = safety.judgement, safety.state.flags, safety.beside

    def stored(self, safety: SafetyTurn) -> bytes | None:
        """Return the state of a turn for the store; None if there is nothing to be kept."""
        return self._judge.store(safety.state)
