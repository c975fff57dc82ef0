"""The answer of one turn, from its plan to its closing event."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Final

from msgspec import Struct

from ws_responses.backends import PromptNotAccepted
from ws_responses.engine.call_ids import ChainCalls
from ws_responses.engine.compacting import Compacted, TurnCompaction, is_due
from ws_responses.engine.events import EventWriter
from ws_responses.engine.generation import Caller, Opened, close, drain, retry_after_s
from ws_responses.engine.items import ItemWriter, OutputOver
from ws_responses.engine.plan import Plan, Suspended, tell_route
from ws_responses.engine.planning import Planner
from ws_responses.engine.reading import AnswerReader
from ws_responses.engine.response import IncompleteReason, ResponseObjects, added_usage, usage_object, with_output
from ws_responses.engine.sealing import Seal
from ws_responses.errors import StreamTruncated, WireError
from ws_responses.protocol import events
from ws_responses.rendering.chat import PlainParser
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import CannotRender
from ws_responses.upstreams.base import CurrentTurn, Emit

logger = logging.getLogger("ws_responses.engine")


MAX_PLANS: Final = 4
"""Ways to answer one turn that are tried before the last: as chat messages, at other backends."""


class EngineCounts(Struct):
    """What an operator may want to know of an engine; each counts turns.

    Attributes:
        ids_lost: The sampled ids were not all known, although the backend tells ids: the answer was rendered from its text.
        as_chat: The backend refused token ids, and was given chat messages.
        truncated: The oldest of the conversation was left out.
        elsewhere: The backend failed, and another one answered or was asked.
        compacted: The conversation was compacted before it was answered.
        not_compacted: It should have been, but no summary could be had.
    """

    ids_lost: int = 0
    as_chat: int = 0
    truncated: int = 0
    elsewhere: int = 0
    compacted: int = 0
    not_compacted: int = 0


class TurnAnswer:
    """The answer of one turn.

    Args:
        turn: The turn.
        emit: Where its events go.
        plan: How it is answered.
        planner: Makes other plans, if that one fails.
        caller: Asks the backend.
        seal: Signs compaction items.
        counts: Is added to.
        before: What the step before this one has left, if the turn is a further step of a rollout.
    """

    __slots__ = (
        "_announced",
        "_caller",
        "_calls",
        "_compacted",
        "_counts",
        "_emit",
        "_events",
        "_first_item",
        "_objects",
        "_plan",
        "_planner",
        "_seal",
        "_turn",
    )

    def __init__(
        self,
        turn: CurrentTurn,
        emit: Emit,
        plan: Plan,
        planner: Planner,
        caller: Caller,
        seal: Seal,
        counts: EngineCounts,
        before: Suspended | None = None,
    ) -> None:
        self._turn = turn
        self._emit = emit
        self._plan = plan
        self._planner = planner
        self._caller = caller
        self._seal = seal
        self._compacted: Compacted | None = None
        self._counts = counts
        self._calls = ChainCalls(turn)
        self._announced = before is not None
        if before is not None:
            self._events = EventWriter(emit, before.event)
            self._first_item = before.item
            self._objects = before.objects
            return
        self._events = EventWriter(emit)
        self._first_item = 0
        request = plan.draft.request
        self._objects = ResponseObjects(
            turn,
            model=plan.route.model,
            echo=request.echo,
            tools=plan.draft.tools_echo,
            service_tier=request.service_tier,
        )

    async def run(self, *, at_once: bool) -> None:
        """Answer it; see ``ResponsesEngine.run``."""
        self._take(self._plan)
        self._counts.truncated += self._plan.truncated
        if at_once:
            await self._announce()
        if not self._first_item and is_due(self._turn, self._plan):
            await self._compact()
        try:
            opened = await self._open()
        except WireError as error:
            raise self._advised(error) from None
        try:
            await self._announce()
            await self._answer(opened)
        finally:
            await close(opened.deltas)

    async def _announce(self) -> None:
        if self._announced:
            return
        self._announced = True
        response = self._objects.in_progress()
        await self._events.write(events.CREATED, response)
        await self._events.write(events.IN_PROGRESS, response)

    async def _compact(self) -> None:
        """Replace the conversation by a summary, if one can be had; else it is answered as it is."""
        work = TurnCompaction(self._turn, self._plan, self._planner, self._caller, self._seal, self._emit.alive)
        try:
            if not await work.open():
                return
        except WireError as error:
            logger.warning("route %s: a conversation was not compacted (%s)", self._plan.route.name, error.code)
            self._counts.not_compacted += 1
            return
        try:
            await self._announce()
            done = await work.tell(self._events)
        finally:
            await work.close()
        self._counts.compacted += 1
        self._compacted = done
        self._take(done.plan)

    def _advised(self, error: WireError) -> WireError:
        """Return the error with its retry-after in words: a ``response.failed`` has no other place, and Codex reads it there."""
        seconds = retry_after_s(error)
        if self._announced and seconds is not None and "try again in" not in error.message:
            error.message = f"{error.message} Please try again in {seconds:g}s."
        return error

    async def _open(self) -> Opened:
        """Begin the generation: with another kind of prompt, or at another backend, if this one cannot.

        Raises:
            WireError: Nobody can.
        """
        for _ in range(MAX_PLANS):
            plan = self._plan
            try:
                return await self._caller.open(plan.route, plan.prompt, plan.params, self._emit.alive)
            except PromptNotAccepted:
                other = await self._planner.replan_as_chat(self._turn, plan)
                if other is None:
                    raise
                logger.info("route %s takes no token ids; it is given chat messages from now on", plan.route.name)
                self._counts.as_chat += 1
            except WireError as error:
                other = await self._planner.replan_elsewhere(self._turn, plan, error)
                if other is None:
                    raise
                logger.warning(
                    "route %s failed (%s); the turn goes to %s", plan.route.name, error.code, other.route.name
                )
                self._counts.elsewhere += 1
            self._take(other)
        return await self._caller.open(self._plan.route, self._plan.prompt, self._plan.params, self._emit.alive)

    def _take(self, plan: Plan) -> None:
        self._plan = plan
        self._turn.rendering = plan.rendering
        tell_route(self._turn, plan.route)

    async def _answer(self, opened: Opened) -> None:
        draft, parser = self._plan.draft, self._plan.answer.parser
        items = ItemWriter(
            self._events,
            draft.tools,
            encrypted_reasoning=draft.request.encrypted_reasoning,
            is_taken=self._calls.has,
            first=self._first_item,
            is_steered=lambda: self._turn.steered,
        )
        reader = AnswerReader(
            items,
            None if isinstance(parser, PlainParser) else parser,
            draft.tools,
            single_call=not draft.request.parallel_tool_calls,
        )
        if self._compacted is not None:
            items.finished.append(self._compacted.item)
        self._turn.usage_so_far = partial(self._usage, reader)
        try:
            await self._read(opened, reader)
        except OutputOver:
            reader.stop_steered()
        except WireError as error:
            self._planner.failed(self._plan, error)
            raise
        self._planner.served(self._plan)
        try:
            reason = await reader.end()
        except OutputOver:  # what the parser held back was to begin another item
            reader.stop_steered()
            reason = await reader.end()
        await self._finish(reader, items.finished, reason)
        if not reader.stopped:
            await drain(opened.deltas)

    async def _read(self, opened: Opened, reader: AnswerReader) -> None:
        """Read an answer to its end.

        Raises:
            WireError: It broke off, or made no sense.
        """
        alive = self._emit.alive
        if await reader.take_all(opened.first):
            return
        async for delta in opened.deltas:
            taken = reader.take(delta)
            if taken is None:
                alive()
            else:
                await taken
            if reader.complete:
                return
        if reader.finish is None:
            raise StreamTruncated

    async def _finish(self, reader: AnswerReader, output: Sequence[bytes], reason: IncompleteReason | None) -> None:
        turn, plan = self._turn, self._plan
        # What comes after a compaction is rendered from the items that later turns see: they are few.
        anew = self._compacted is not None
        sampled = None if anew else self._sampled(reader)
        turn.kept = plan.kept(None if anew else self._state_after(output, sampled), self._calls.after(output))
        if sampled is not None:
            turn.record_tokens(sampled, plan.route.renderer.name)
        closed = self._objects.closed(reason, self._usage(reader), reader.service_tier)
        if turn.may_store:
            turn.response = closed
        if turn.is_rollout:
            turn.suspended = Suspended(
                plan=plan, objects=self._objects, event=self._events.next + 1, item=self._first_item + len(output)
            )
        kind = events.COMPLETED if reason is None else events.INCOMPLETE
        await self._events.write(kind, with_output(closed, output))

    def _usage(self, reader: AnswerReader) -> bytes:
        counted = self._plan.prompt_tokens, len(reader.ids) if reader.ids else None
        if self._compacted is None:
            return usage_object(reader.usage, *counted)
        return usage_object(added_usage(reader.usage, self._compacted.usage, *counted), None, None)

    def _sampled(self, reader: AnswerReader) -> Sequence[int] | None:
        """Return the ids of the answer, its prefill included; None if they are not all known."""
        plan = self._plan
        if plan.prompt_tokens is None or not plan.route.backend.accepts.returns_ids:
            return None
        if reader.stopped or not reader.ids:
            self._counts.ids_lost += 1
            return None
        return [*plan.answer.prefill, *reader.ids]

    def _state_after(self, output: Sequence[bytes], sampled: Sequence[int] | None) -> Rendered | None:
        """Return the conversation with the answer; None if that has no form."""
        plan = self._plan
        renderer, state = plan.route.renderer, plan.rendering.state
        try:
            return renderer.extend(state, output) if sampled is None else renderer.answered(state, sampled)
        except CannotRender as error:
            # Without its message: that may repeat what was sampled.
            logger.warning("route %s: an answer cannot be rendered as history (%s)", plan.route.name, error.param)
            return None
