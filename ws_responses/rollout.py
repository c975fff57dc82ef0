"""A rollout: a turn that goes on after tool calls of the client, step by step, as one response (prototype mode).

What a create is asked (``authorize``, quota, parent, base) is asked once, and what follows an answer (the node that can be
continued, the store, settlement) comes once. Of each append only what is new is judged, rendered and charged.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, ClassVar, cast

import anyio
from msgspec import Raw
from msgspec.structs import replace

from ws_responses.errors import StreamTruncated
from ws_responses.protocol import events
from ws_responses.protocol.rollout import Appended
from ws_responses.protocol.steering import required_input
from ws_responses.protocol.turns import Turn
from ws_responses.rollout_body import bound_in, next_body, next_turn
from ws_responses.rollout_step import Answer, Step
from ws_responses.settlement import TurnRecord, read_usage
from ws_responses.state.budget import Budget
from ws_responses.state.node import ResponseNode
from ws_responses.turn import TurnRun
from ws_responses.turn_input import kept_body
from ws_responses.upstreams.base import Emit
from ws_responses.upstreams.joined import RolloutStream
from ws_responses.upstreams.reading import without_output
from ws_responses.upstreams.repair import TurnStream
from ws_responses.upstreams.turn_end import TurnEnd
from ws_responses.validation import check_output

if TYPE_CHECKING:
    from ws_responses.connection import Connection


class RolloutRun(TurnRun):
    """A running rollout."""

    _stream_type: ClassVar[type[TurnStream]] = RolloutStream

    def __init__(self, connection: "Connection", turn: Turn) -> None:
        super().__init__(connection, turn)
        self._joined = cast("RolloutStream", self.stream)
        self._joined.joins_itself = bool(getattr(connection.upstream, "rolls", False))
        self.info.is_rollout = True
        self.info.injects = turn.injects
        self._body: dict[str, Raw] = {}
        self._bound: int | None = None
        self._step: Step | None = None
        self._parts = self._joined.parts
        self._charged: tuple[Budget, ...] = ()
        self._charged_bytes = 0
        self._given: list[Appended | None] = []
        self._wake: anyio.Event | None = None

    # -- from outside ------------------------------------------------------------------------------------------------

    def resume(self, appended: Appended | None) -> None:
        """Go on: by what was appended, or (None) to the end."""
        self._given.append(appended)
        self._wake_up()

    def mute(self) -> None:
        """Let it run to its end with nobody to listen; one that waits for tool outputs is at its end."""
        super().mute()
        if self.turn.blocked is not None:
            self.resume(None)

    def _wake_up(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def _stop_step(self) -> None:
        step = self._step
        if step is not None and not step.closed:
            self._connection.runs.stop(step)
            step.changed.set()
        self._wake_up()

    # -- the steps ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the rollout to its end, whatever happens."""
        try:
            await super().run()
        finally:
            self._step = None  # it leads back to here: the history would wait for the garbage collector
            for budget in self._charged:
                budget.used -= self._charged_bytes
            self._charged = ()

    async def _answer(self) -> None:
        """Let the upstream answer, and go on for each append; the end is written by the step that is the last one."""
        self._facts.ran = True
        self._bound = bound_in(self.turn.create.body.get("max_output_tokens"))
        if not self._joined.joins_itself:
            self._body = kept_body(self.info)
        self.on_abort: Callable[[], None] | None = self._stop_step
        while True:
            await self._run_step()
            if self._has_ended():
                return
            appended = await self._wait()
            if self._has_ended():
                return
            if appended is None:
                await self._let_go()
                return
            self._prepared.calls = appended.calls
            self._go_on(appended.items)
            for step in (self._prepared.judge, self._prepared.render):
                await step(self.info)
                if self._has_ended():
                    return

    async def _run_step(self) -> None:
        """Call the upstream, and return when its closing event was taken; the call itself may go on."""
        connection, safety = self._connection, self._prepared.safety
        answer: Answer = partial(connection.upstream.run, self.info)
        if safety is not None:
            answer = partial(self._guarded, answer)
        self._step = step = Step(connection.runs, self, answer)
        connection.runs.start(step)
        await step.changed.wait()
        if not (step.closed or self._is_over):
            raise StreamTruncated

    async def _guarded(self, answer: Answer, step: Emit) -> None:
        assert self._prepared.safety is not None
        await self._prepared.safety.run(answer, step, stop=partial(self._connection.runs.stop, cast("Step", step)))

    async def _wait(self) -> Appended | None:
        """Return what is appended; None if nothing will be."""
        while not (self._given or self.ended):
            self._wake = anyio.Event()
            await self._wake.wait()
        self._wake = None
        return self._given.pop(0) if self._given else None

    def _go_on(self, items: bytes) -> None:
        """Begin the next step: a turn like any other that continues the last one."""
        self.info = next_turn(self.info, next_body(self._body, self._room()), items)
        self.info.parent = self._prepared.parent

    def _room(self, end: TurnEnd | None = None) -> int | None:
        """Return how many tokens may still be sampled; None if that is not bounded, or nobody knows.

        Args:
            end: Of the step that is just over.
        """
        if self._bound is None:
            return None
        usage = self._joined.usage if end is None else self._joined.usage_after(end)
        used = read_usage(usage)
        if used is None or used.output_tokens is None:
            return self._bound
        return max(0, self._bound - used.output_tokens)

    # -- ends --------------------------------------------------------------------------------------------------------

    async def _finish(self, end: TurnEnd) -> None:
        step = self._step
        assert step is not None
        end = self._joined.step_end(end)
        required = self._required(end)
        out_of_room = bool(required) and self._room(end) == 0
        if required and not out_of_room and self._connection.session.may_block(self.turn) and self._charge():
            app_id = end.app_id or end.response_id
            part = replace(end, response_id=self._connection.registry.ids.new("resp"), app_id=app_id)
            node = self._prepared.make_node(self.info, part, part=True)
            if node is not None:
                await self._block(end, node, required, step)
                return
        step.close()
        self._connection.runs.trail(step)
        await self._end_by(self._joined.whole(end, "max_output_tokens" if out_of_room else None))

    def _charge(self) -> bool:
        """Charge what is kept of the create while it waits; return whether there is room for it."""
        if not self._charged and self._body:
            kept = {"tools": self.info.interned_tools, "instructions": self.info.interned_instructions}
            # What is interned is charged where it is.
            self._charged_bytes = sum(len(raw) for name, raw in self._body.items() if kept.get(name) is None)
            self._charged = self._connection.charges.reserve(self._charged_bytes, stored=False) or ()
        return bool(self._charged) or not self._body

    def _required(self, end: TurnEnd) -> list[dict[str, str]]:
        """Return what the client is to bring after a step, as stubs; nothing if that is the end anyway."""
        if end.kind != events.COMPLETED:
            return []
        assert self._prepared.calls is not None
        return required_input(check_output(self._prepared.calls, end.items), end.items)

    async def _block(self, end: TurnEnd, node: ResponseNode, required: list[dict[str, str]], step: Step) -> None:
        connection = self._connection
        self._parts.append(node)
        self._prepared.parent = node
        self.info.usage_so_far = None
        self.info.kept = None
        step.close()
        if self.turn.injects:
            self._joined.pause(end)
            written = None
        else:
            written = self._frames.write(self._joined.block(end, required))
        self._frames.numbered = False
        checked = connection.settings.open_calls == "check"
        now = connection.clock.now()
        actions = connection.session.turn_blocked(self.turn, node.record.calls, now, checked=checked)
        connection.runs.trail(step)
        connection.look_soon()
        connection.perform(actions)
        if written is not None:
            await written

    async def _let_go(self) -> None:
        """End it as it is, with its calls open: like any response that calls tools, it can be continued by a create."""
        node = self._prepared.parent
        assert node is not None
        self._prepared.calls = node.record.calls
        self._go_on(b"")
        self.info.kept = node.kept
        await self._end_by(self._joined.let_go())

    async def _end_by(self, end: TurnEnd) -> None:
        if self._parts and self.info.may_store:
            self.info.response = without_output(end.frame)
        await super()._finish(end)

    async def _store_nodes(self, node: ResponseNode) -> bool:
        for part in self._parts:
            if not await super()._store_nodes(part):
                return False
        return await super()._store_nodes(node)

    def _turn_record(self, outcome: str, code: str | None, usage: bytes | None) -> TurnRecord:
        step = self.info.usage_so_far
        if self._joined.steps:
            self.info.usage_so_far = lambda: self._joined.usage_with(None if step is None else step())
        return super()._turn_record(outcome, code, usage)
