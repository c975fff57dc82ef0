"""The engine: an upstream that answers turns itself, by an inference backend."""

import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Final, Literal

import anyio

from ws_responses.backends import Backend, PromptNotAccepted
from ws_responses.clock import Clock, MonotonicClock
from ws_responses.engine.answer import EngineCounts, TurnAnswer
from ws_responses.engine.compactor import Compactor
from ws_responses.engine.generation import Caller, Retry
from ws_responses.engine.plan import Suspended, tell_route
from ws_responses.engine.planning import Planner
from ws_responses.engine.resolving import Resolver
from ws_responses.engine.response import usage_object
from ws_responses.engine.sealing import Seal
from ws_responses.engine.tools import HostedTools
from ws_responses.errors import ConfigurationError, WireError
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.rendering.renderer import Renderer
from ws_responses.routing import Router, SingleRouter
from ws_responses.upstreams.base import CurrentTurn, Emit

logger = logging.getLogger("ws_responses.engine")

Announce = Literal["at_once", "with_output"]
"""When ``response.created`` is sent: before the backend has answered, or with its first output."""


class ResponsesEngine:
    """Answers turns by an inference backend; give it to ``ResponsesApp``, or to the middleware as ``upstream``.

    Args:
        backend: What samples, for all models; or give a ``router``.
        renderer: Makes its prompts; by default chat messages, if it takes those.
        models: Names that are served, or by each name the backend's own; None lets every name through.
        router: Resolves models to routes.
        chat_renderer: Makes the prompts where a backend takes no token ids after all, or has to be held to a format; it must
            produce chat messages.
        resolver: Fetches images and files that requests only name; without it nothing is fetched.
        hosted_tools: What becomes of tools that the service would have to run (``web_search``): a 400, or they are left out.
        announce: When ``response.created`` is sent. "with_output": a backend that refuses or is down is an ``error`` event with
            its status and its retry-after, which all clients understand. "at_once": clients see life early, and the same
            failure is a ``response.failed``.
        retry: How often the backend is asked again while it has sampled nothing.
        compaction_key: Signs compaction items: 16 bytes at least, the same for all processes that serve the same clients. By
            default it is drawn at random, and items are good in this process only.
        clock: Tells the time.

    Attributes:
        counts: Turns out of the ordinary.
        compactor: Answers requests to compact a conversation (for ``ResponsesApp``).

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
        chat_renderer: Renderer | None = None,
        resolver: Resolver | None = None,
        hosted_tools: HostedTools = "refuse",
        announce: Announce = "with_output",
        retry: Retry | None = None,
        compaction_key: bytes | None = None,
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
        chat_renderer = chat_renderer or ChatRenderer()
        if chat_renderer.produces != "chat":
            raise ConfigurationError("chat_renderer must produce chat messages")
        self._backend = backend
        if backend is not None:
            router = SingleRouter(backend, renderer or chat_renderer, models=models)
        assert router is not None
        self._router: Router = router
        self._resolver = resolver
        self._seal = Seal(compaction_key)
        self._planner = Planner(router, resolver, hosted_tools, chat_renderer, self._seal)
        self._caller = Caller(retry or Retry(), clock or MonotonicClock())
        self._announces_at_once = announce == "at_once"
        self.counts = EngineCounts()
        self.compactor = Compactor(self._planner, self._caller, self._seal)

    steers: Final = True
    """Its responses can be steered: they end between two items."""

    rolls: Final = True
    """It goes on with a rollout: by what was rendered and planned before, extended by what was appended."""

    injects: Final = True
    """Its responses take tool outputs while they run, where the client asks for that."""

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
            usage = await plan.route.backend.prefill(plan.prompt, plan.params)
            turn.usage_so_far = partial(usage_object, usage, None, None)
        except PromptNotAccepted:
            plan = await self._planner.replan_as_chat(turn, plan) or plan
        except WireError as error:
            logger.info("route %s: the prompt of a warm-up was not read (%s)", plan.route.name, error.code)
        turn.rendering = plan.rendering
        tell_route(turn, plan.route)
        turn.kept = plan.kept(plan.rendering.state)

    async def run(self, turn: CurrentTurn, emit: Emit) -> None:
        """Answer one turn.

        Raises:
            WireError: The request cannot be served, or the backend failed.
        """
        with anyio.CancelScope() as scope:
            # What waits for the backend, or for a client that reads slowly, ends at once.
            emit.on_abort = scope.cancel
            before = turn.suspended
            if isinstance(before, Suspended):
                plan = await self._planner.go_on(turn, before.plan)
            else:
                before, plan = None, await self._planner.plan(turn)
            turn.create.body = {}  # these views hold the whole frame; what is needed of it has been copied
            answer = TurnAnswer(turn, emit, plan, self._planner, self._caller, self._seal, self.counts, before)
            del plan, before  # the answer has them, and may get others
            await answer.run(at_once=self._announces_at_once)
