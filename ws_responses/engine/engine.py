"""The engine: an upstream that answers turns itself, by an inference backend."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import anyio
from msgspec import Struct

from ws_responses.backends import Backend, PromptNotAccepted
from ws_responses.clock import Clock, MonotonicClock
from ws_responses.engine.answering import AnswerReader
from ws_responses.engine.events import EventWriter
from ws_responses.engine.generation import Caller, Opened, Retry, close, drain, retry_after_s
from ws_responses.engine.items import ItemWriter
from ws_responses.engine.planning import Plan, Planner
from ws_responses.engine.resolving import Resolver
from ws_responses.engine.response import IncompleteReason, ResponseObjects, usage_object, with_output
from ws_responses.engine.tools import HostedTools
from ws_responses.errors import ConfigurationError, StreamTruncated, WireError
from ws_responses.protocol import events
from ws_responses.rendering.chat import ChatRenderer, PlainParser
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import CannotRender, Renderer
from ws_responses.routing import Router, SingleRouter
from ws_responses.upstreams.base import CurrentTurn, Emit

logger = logging.getLogger("ws_responses.engine")

Announce = Literal["at_once", "with_output"]
"""When ``response.created`` is sent: before the backend has answered, or with its first output."""


class EngineCounts(Struct):
    """What an operator may want to know of an engine; each counts turns.

    Attributes:
        ids_lost: The sampled ids were not all known, although the backend tells ids: the answer was rendered from its text.
        as_chat: The backend refused token ids, and was given chat messages.
        truncated: The oldest of the conversation was left out.
    """

    ids_lost: int = 0
    as_chat: int = 0
    truncated: int = 0


class ResponsesEngine:
    """Answers turns by an inference backend; give it to ``ResponsesApp``, or to the middleware as ``upstream``.

    Args:
        backend: What samples, for all models; or give a ``router``.
        renderer: Makes its prompts; by default chat messages, if it takes those.
        models: Names that are served, or by each name the backend's own; None lets every name through.
        router: Resolves models to routes.
        resolver: Fetches images and files that requests only name; without it nothing is fetched.
        hosted_tools: What becomes of tools that the service would have to run (``web_search``): a 400, or they are left out.
        announce: When ``response.created`` is sent. "at_once": clients see life early, and a failure of the backend is a
            ``response.failed``. "with_output": it is an ``error`` event with its status and its retry-after.
        retry: How often the backend is asked again while it has sampled nothing.
        clock: Tells the time.

    Attributes:
        counts: Turns out of the ordinary.

    Raises:
        ConfigurationError: Options contradict each other.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        *,
        renderer: Renderer | None = None,
        models: Iterable[str] | Mapping[str, str] | None = None,
        router: Router | None = None,
        resolver: Resolver | None = None,
        hosted_tools: HostedTools = "refuse",
        announce: Announce = "at_once",
        retry: Retry | None = None,
        clock: Clock | None = None,
    ) -> None:
        if (backend is None) == (router is None):
            raise ConfigurationError("ResponsesEngine needs a backend, or a router")
        if router is not None and (renderer is not None or models is not None):
            raise ConfigurationError("renderer and models are the router's affair, if there is one")
        if hosted_tools not in ("refuse", "drop"):
            raise ConfigurationError(f"hosted_tools must be 'refuse' or 'drop', not {hosted_tools!r}")
        if announce not in ("at_once", "with_output"):
            raise ConfigurationError(f"announce must be 'at_once' or 'with_output', not {announce!r}")
        self._backend = backend
        if backend is not None:
            router = SingleRouter(backend, renderer or ChatRenderer(), models=models)
        assert router is not None
        self._router: Router = router
        self._resolver = resolver
        self._planner = Planner(router, resolver, hosted_tools)
        self._caller = Caller(retry or Retry(), clock or MonotonicClock())
        self._announces_at_once = announce == "at_once"
        self.counts = EngineCounts()

    def models(self, tenant: str) -> list[str]:
        """Return the names of the models that a tenant may use."""
        return self._router.models(tenant)

    async def aclose(self) -> None:
        """Close backend, router and resolver, where they can be closed."""
        for part in (self._backend, self._router, self._resolver):
            aclose = getattr(part, "aclose", None)
            if aclose is not None:
                await aclose()

    async def warm_up(self, turn: CurrentTurn) -> None:
        """Prepare for the turn after this one: check and render the request, and let the backend read it.

        A backend that fails here fails no warm-up: the turn that needs it will tell.

        Raises:
            WireError: The request cannot be served.
        """
        plan = await self._planner.plan(turn)
        try:
            await plan.route.backend.prefill(plan.prompt, plan.params)
        except PromptNotAccepted:
            plan = await self._planner.replan_as_chat(turn, plan) or plan
        except WireError as error:
            logger.info("route %s: the prompt of a warm-up was not read (%s)", plan.route.name, error.code)
        turn.rendering = plan.rendering
        turn.kept = plan.kept(plan.rendering.state)

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        """Answer one turn.

        Raises:
            WireError: The request cannot be served, or the backend failed.
        """
        with anyio.CancelScope() as scope:
            # What waits for the backend, or for a client that reads slowly, ends at once.
            emit.on_abort = scope.cancel
            plan = await self._planner.plan(turn)
            turn.create.body = {}  # these views hold the whole frame; what is needed of it has been copied
            await _TurnAnswer(turn, emit, plan, self._planner, self._caller, self.counts).run(
                at_once=self._announces_at_once
            )


class _TurnAnswer:
    """The answer of one turn."""

    __slots__ = ("_announced", "_caller", "_counts", "_emit", "_events", "_objects", "_plan", "_planner", "_turn")

    def __init__(
        self,
        turn: CurrentTurn,
        emit: Emit,
        plan: Plan,
        planner: Planner,
        caller: Caller,
        counts: EngineCounts,
    ) -> None:
        self._turn = turn
        self._emit = emit
        self._plan = plan
        self._planner = planner
        self._caller = caller
        self._counts = counts
        self._events = EventWriter(emit)
        self._announced = False
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
        self._turn.rendering = self._plan.rendering
        self._counts.truncated += self._plan.truncated
        if at_once:
            await self._announce()
        try:
            opened = await self._open()
        except WireError as error:
            raise self._advised(error) from None
        try:
            if not at_once:
                await self._announce()
            await self._answer(opened)
        finally:
            await close(opened.deltas)

    async def _announce(self) -> None:
        self._announced = True
        response = self._objects.in_progress()
        await self._events.write(events.CREATED, response)
        await self._events.write(events.IN_PROGRESS, response)

    def _advised(self, error: WireError) -> WireError:
        """Return the error with its retry-after in words: a ``response.failed`` has no other place, and Codex reads it there."""
        seconds = retry_after_s(error)
        if self._announced and seconds is not None:
            error.message = f"{error.message} Please try again in {seconds:g}s."
        return error

    async def _open(self) -> Opened:
        plan = self._plan
        try:
            return await self._caller.open(plan.route, plan.prompt, plan.params, self._emit.alive)
        except PromptNotAccepted:
            chat = await self._planner.replan_as_chat(self._turn, plan)
            if chat is None:
                raise
            logger.info("route %s takes no token ids; it is given chat messages from now on", plan.route.name)
        self._plan = plan = chat
        self._turn.rendering = plan.rendering
        self._counts.as_chat += 1
        return await self._caller.open(plan.route, plan.prompt, plan.params, self._emit.alive)

    async def _answer(self, opened: Opened) -> None:
        draft, parser = self._plan.draft, self._plan.answer.parser
        items = ItemWriter(self._events, draft.tools, encrypted_reasoning=draft.request.encrypted_reasoning)
        reader = AnswerReader(
            items,
            None if isinstance(parser, PlainParser) else parser,
            draft.tools,
            single_call=not draft.request.parallel_tool_calls,
        )
        await self._read(opened, reader)
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
        sampled = self._sampled(reader)
        turn.kept = plan.kept(self._state_after(output, sampled))
        if sampled is not None:
            turn.record_tokens(sampled, plan.route.renderer.name)
        counted = len(reader.ids) if reader.ids else None
        usage = usage_object(reader.usage, plan.prompt_tokens, counted)
        closed = self._objects.closed(reason, usage, reader.service_tier)
        if turn.may_store:
            turn.response = closed
        kind = events.COMPLETED if reason is None else events.INCOMPLETE
        await self._events.write(kind, with_output(closed, output))

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
            logger.warning("route %s: an answer cannot be rendered as history: %s", plan.route.name, error)
            return None
