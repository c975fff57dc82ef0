"""What is decided about a turn before its backend is asked: request, tools, route, prompt. All that can be refused is refused here."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio.to_thread
from cachetools import LRUCache
from msgspec.structs import replace

from ws_responses.backends import ChatPrompt, may_succeed_again
from ws_responses.engine.choice import parse_choice
from ws_responses.engine.plan import ContextLengthExceeded, Draft, EngineKept, Plan, kept_of
from ws_responses.engine.prompts import ChatTools, params_of, prompt_of
from ws_responses.engine.request import Request, parse_request
from ws_responses.engine.resolving import Resolver, resolve_chain, resolve_items
from ws_responses.engine.sealing import Seal
from ws_responses.engine.summary import SummaryPlan, plan_summary
from ws_responses.engine.tools import (
    NO_OFFER,
    HostedTools,
    Offer,
    Offered,
    added_tools,
    offer_of,
    parse_tools,
    with_added,
)
from ws_responses.engine.truncating import fitted
from ws_responses.errors import InvalidRequest, WireError
from ws_responses.protocol.tool_choice import relaxed
from ws_responses.rendering.cache import Kept, RenderKey, render
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import Answer, CannotRender, Renderer, RenderSettings
from ws_responses.routers import another_route, tell_failed, tell_served
from ws_responses.routing import Route, Router
from ws_responses.state.node import ResponseNode
from ws_responses.upstreams.base import CurrentTurn

_REMEMBERED_ROUTES: Final = 256
"""Routes remembered to take no token ids: models are few, but their names are the client's where a router lets all through."""


class Planner:
    """Plans turns.

    Args:
        router: Resolves models.
        resolver: Resolves images and files; None if nobody does.
        hosted: What becomes of tools that the service would have to run.
        chat_renderer: Makes the prompts of backends that take no token ids after all.
        seal: Reads compaction items.
    """

    def __init__(
        self, router: Router, resolver: Resolver | None, hosted: HostedTools, chat_renderer: Renderer, seal: Seal
    ) -> None:
        self._router = router
        self._chat_renderer = chat_renderer
        self._resolver = resolver
        self._hosted: HostedTools = hosted
        self._seal = seal
        self._chat_tools = ChatTools()
        self._chat_only: LRUCache[tuple[str, str], bool] = LRUCache(_REMEMBERED_ROUTES)

    async def plan(self, turn: CurrentTurn) -> Plan:
        """Return the plan of a turn.

        Raises:
            WireError: The request is wrong, or cannot be served here.
        """
        request = parse_request(turn)
        kept = kept_of(turn)
        items = turn.delta
        offer = self._offer(turn)
        known = None if kept is None or kept.key is None else kept.key.settings.tools
        tools = with_added(offer.tools, self._added(turn, items, kept), known, self._hosted)
        draft = Draft(
            request=request,
            items=items,
            tools=tools,
            tools_echo=offer.echo,
            choice=parse_choice(request.tool_choice, tools),
            session=_session(turn, kept),
        )
        route = await self._router.resolve(request.model, turn.tenant, None if kept is None else kept.route)
        return await self._complete(turn, draft, self._usable(route))

    async def go_on(self, turn: CurrentTurn, plan: Plan) -> Plan:
        """Return the plan for a further step of a rollout: the one of the step before, for what was appended.

        Args:
            turn: The step; its ``create.body`` holds what has changed.
            plan: Of the step before.

        Raises:
            WireError: What was appended cannot be given to the backend.
        """
        draft = plan.draft
        request, choice, tools, items = draft.request, draft.choice, draft.tools, turn.delta
        room = turn.create.body.get("max_output_tokens")
        if room is not None:
            request = replace(request, max_output_tokens=int(bytes(room)))
        brought = added_tools(items)
        if brought:
            base, before = (tools.base, tools.added) if isinstance(tools, Offered) else (tools or NO_OFFER.tools, ())
            tools = with_added(base, [*before, *brought], tools, self._hosted)
        if choice.mode == "required" and request.tool_choice is not None:
            request = replace(request, tool_choice=relaxed(request.tool_choice))
            choice = parse_choice(request.tool_choice, tools)
        draft = replace(draft, request=request, items=items, tools=tools, choice=choice, alone=False)
        return await self._complete(turn, draft, plan.route)

    async def replan_as_chat(self, turn: CurrentTurn, plan: Plan) -> Plan | None:
        """Return the plan for a backend that has refused token ids; None if it takes no chat messages.

        Raises:
            WireError: The conversation cannot be given to it in that form.
        """
        route = self._as_chat(plan.route)
        if route is None or isinstance(plan.prompt, ChatPrompt):
            return None
        self._chat_only[plan.route.name, plan.route.backend_model] = True
        return await self._complete(turn, plan.draft, route)

    async def replan_elsewhere(self, turn: CurrentTurn, plan: Plan, error: WireError) -> Plan | None:
        """Return the plan for another backend, since this one has failed; None if none can do better.

        Raises:
            WireError: The conversation cannot be given to it.
        """
        tell_failed(self._router, plan.route, error)
        if not may_succeed_again(error):
            return None
        route = another_route(self._router, plan.route, turn.tenant)
        return None if route is None else await self._complete(turn, plan.draft, self._usable(route))

    async def replan_compacted(self, turn: CurrentTurn, plan: Plan, item: bytes) -> Plan:
        """Return the plan for the same turn, with a compaction item for the whole conversation.

        Raises:
            WireError: The conversation cannot be given to the backend in that form.
        """
        return await self._complete(turn, replace(plan.draft, items=[item], alone=True), plan.route)

    def plan_summary(self, plan: Plan) -> SummaryPlan:
        """Return the plan of a summary of a turn's conversation.

        Raises:
            InvalidRequest: The model's format has no place for the instruction.
        """
        try:
            return plan_summary(plan, self._chat_tools)
        except CannotRender as error:
            raise _cannot_render(error) from None

    def failed(self, plan: Plan, error: WireError) -> None:
        """Hear that the backend of a plan failed in the middle of its answer."""
        tell_failed(self._router, plan.route, error)

    def served(self, plan: Plan) -> None:
        """Hear that it has answered."""
        tell_served(self._router, plan.route)

    # -- tools and route ---------------------------------------------------------------------------------------------

    def _offer(self, turn: CurrentTurn) -> Offer:
        raw = turn.create.body.get("tools")
        if raw is None:
            return NO_OFFER
        interned = turn.interned_tools
        return parse_tools(bytes(raw), self._hosted) if interned is None else offer_of(interned, self._hosted)

    @staticmethod
    def _added(turn: CurrentTurn, items: Sequence[bytes], kept: Kept | None) -> list[bytes]:
        """Return the ``tools`` of all items of the conversation that brought some."""
        before: list[bytes] = []
        if kept is not None and kept.key is not None:
            settled = kept.key.settings.tools
            before = list(settled.added) if isinstance(settled, Offered) else []
        else:
            before = [raw for node in turn.chain for raw in added_tools(node.record.input_items())]
        return before + added_tools(items)

    def _usable(self, route: Route) -> Route:
        """Return the route, for chat messages where its backend takes no token ids."""
        if route.renderer.produces == "chat":
            return route
        refused = (route.name, route.backend_model) in self._chat_only
        return (self._as_chat(route) or route) if refused or "tokens" not in route.backend.accepts.kinds else route

    def _as_chat(self, route: Route) -> Route | None:
        """Return a route to the same backend for chat messages; None if it takes none."""
        if "chat" not in route.backend.accepts.kinds:
            return None
        return replace(route, renderer=self._chat_renderer)

    # -- the prompt --------------------------------------------------------------------------------------------------

    async def _complete(self, turn: CurrentTurn, draft: Draft, route: Route) -> Plan:
        request, renderer, accepts = draft.request, route.renderer, route.backend.accepts
        _check_bound(request, route)
        resolved = await resolve_items(draft.items, route, self._resolver)
        settings = RenderSettings(
            instructions=request.instructions,
            tools=draft.tools,
            reasoning_effort=request.reasoning_effort,
            response_format=request.response_format,
        )
        counts = renderer.produces == "tokens"
        key = RenderKey(renderer=renderer.name, form=accepts.form if counts else None, settings=settings)
        parent = None if draft.alone else await self._parent(turn, route, key)
        try:
            rendering = await render(
                renderer,
                key,
                parent,
                draft.items,
                resolved=resolved,
                readable=partial(self._seal.readable, of_input=True),
                readable_history=self._seal.readable_history,
            )
            answer = renderer.answer(rendering.state, draft.choice, settings)
            if counts and not _holds(answer, draft, constrains=accepts.constrains):
                chat = self._as_chat(route)
                if chat is not None:
                    # The service can hold the model to it if it has the prompt in its own words.
                    return await self._complete(turn, draft, chat)
                _refuse_unheld_choice(answer, draft)
            cut = await self._cut(turn, draft, route, key, answer) if counts else None
            if cut is not None:
                answer = renderer.answer(cut, draft.choice, settings)
            tools = None if counts else self._chat_tools.encoded(draft.tools, draft.choice)
            prompt = prompt_of(route, answer, request, tools, draft.choice)
        except CannotRender as error:
            if error.index is not None:
                error.index = self._seal.original_index(draft.items, error.index)
            raise _cannot_render(error) from None
        return Plan(
            draft=draft,
            route=route,
            resolved=resolved,
            rendering=rendering,
            answer=answer,
            prompt=prompt,
            params=params_of(route, request, answer.prompt.end if counts else None, draft.session),
            truncated=cut is not None,
        )

    async def _parent(self, turn: CurrentTurn, route: Route, key: RenderKey) -> ResponseNode | None:
        """Return what the conversation goes on from, with its images and files if it must be rendered anew."""
        kept = kept_of(turn)
        if turn.parent is None or turn.base or self._resolver is None or (kept is not None and kept.key == key):
            return None if turn.base else turn.parent
        return await resolve_chain(turn.parent, route, self._resolver)

    async def _cut(
        self, turn: CurrentTurn, draft: Draft, route: Route, key: RenderKey, answer: Answer
    ) -> Rendered | None:
        """Return the part of a conversation that fits into the window; None if all of it does.

        Raises:
            ContextLengthExceeded: It does not, and may not be cut, or cannot.
        """
        window = route.context_window
        reserved = draft.request.max_output_tokens or 1
        if window is None or answer.prompt.end + reserved <= window:
            return None
        error = ContextLengthExceeded(answer.prompt.end, reserved, window)
        if not draft.request.truncates:
            raise error
        renderer = route.renderer

        def fits(state: Rendered) -> bool:
            return renderer.answer(state, draft.choice, key.settings).prompt.end + reserved <= window

        beginning = renderer.begin(key.settings, key.form)
        history = [] if draft.alone else turn.history()
        items = self._seal.readable([*history, *draft.items])
        state = await anyio.to_thread.run_sync(partial(fitted, renderer, beginning, items, fits, window - reserved))
        if state is None:
            raise error
        return state


def _holds(answer: Answer, draft: Draft, *, constrains: bool) -> bool:
    """Whether the answer to a token prompt will be what the request demands: a call, or a format."""
    held = answer.schema is not None and constrains
    if draft.request.response_format is not None:
        return held
    # A call whose beginning is in the prompt comes, with a schema or without.
    return held or answer.schema is None or bool(answer.prefill)


def _refuse_unheld_choice(answer: Answer, draft: Draft) -> None:
    """Refuse a demand for a call that nothing would see to; a format is at least told to the model.

    Raises:
        InvalidRequest: It is one.
    """
    if answer.schema is not None and draft.request.response_format is None:
        raise InvalidRequest(
            "The model cannot be made to call a tool here.", param="tool_choice", code="unsupported_parameter"
        )


def _session(turn: CurrentTurn, kept: Kept | None) -> str:
    """Return the name of the conversation: the id of its first response; a fork is another conversation."""
    parent = turn.parent
    if parent is None or parent.lane not in (turn.lane, False):
        return turn.response_id
    return kept.session if isinstance(kept, EngineKept) and kept.session else parent.id


def _check_bound(request: Request, route: Route) -> None:
    most, asked = route.max_output_tokens, request.max_output_tokens
    if most is not None and asked is not None and asked > most:
        raise InvalidRequest(
            f"The field 'max_output_tokens' must be at most {most} for this model.", param="max_output_tokens"
        )


def _cannot_render(error: CannotRender) -> InvalidRequest:
    """Return what the client is told of an item or a setting that has no form in the model's format."""
    param = error.param
    if error.index is not None:
        param = f"input[{error.index}]" if param is None else f"input[{error.index}].{param}"
    return InvalidRequest(str(error), param=param, code="unsupported_input")
