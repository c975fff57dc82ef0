"""What a backend is given for an answer, in its own words: token ids with their stops, or chat messages with tools."""

from typing import Final

from cachetools import LRUCache

from ws_responses.backends import ChatPrompt, GenerateParams, TokenPrompt
from ws_responses.engine.request import Request
from ws_responses.rendering.chat import chat_response_format, chat_tool_choice, chat_tools
from ws_responses.rendering.renderer import Answer, ToolChoice, ToolSet
from ws_responses.routing import Route

_KNOWN_TOOLS: Final = 64
"""Lists of tools whose encoded form is remembered: those of the agents at work. One has some 20 kB."""

_KNOWN_BYTES: Final = 64 * 1024
"""Longest of them: what is remembered here is charged to nobody."""


def prompt_of(
    route: Route, answer: Answer, request: Request, tools: bytes | None, choice: ToolChoice
) -> TokenPrompt | ChatPrompt:
    """Return the prompt of an answer, of the kind that the route's renderer produces.

    Args:
        route: Whose backend is asked.
        answer: As the renderer has it.
        request: The request.
        tools: As :class:`ChatTools` gives them; for chat.
        choice: Which tools may or must be called.

    Raises:
        CannotRender: The format asked for has no form in chat completions.
    """
    if route.renderer.produces == "tokens":
        constrained = answer.schema if route.backend.accepts.constrains else None
        return TokenPrompt(rendered=answer.prompt, stop_ids=answer.stop_ids, schema=constrained)
    return ChatPrompt(
        rendered=answer.prompt,
        tools=tools,
        tool_choice=None if tools is None else chat_tool_choice(choice),
        parallel_tool_calls=False if tools is not None and not request.parallel_tool_calls else None,
        response_format=None if request.response_format is None else chat_response_format(request.response_format),
    )


def params_of(route: Route, request: Request, prompt_tokens: int | None, session: str) -> GenerateParams:
    """Return how an answer is to be sampled.

    Args:
        route: Whose backend is asked.
        request: The request.
        prompt_tokens: Tokens of the prompt; None if unknown.
        session: Name of the conversation.
    """
    return GenerateParams(
        model=route.backend_model,
        max_tokens=request.max_output_tokens or _room(route, prompt_tokens),
        temperature=request.temperature,
        top_p=request.top_p,
        reasoning_effort=request.reasoning_effort,
        service_tier=request.service_tier,
        prompt_cache_key=request.prompt_cache_key,
        user=request.user,
        session=session,
    )


def _room(route: Route, prompt_tokens: int | None) -> int | None:
    """Return what is left for the answer of a token prompt: completions APIs stop after 16 tokens if they are not told."""
    if prompt_tokens is None:
        return None
    left = None if route.context_window is None else route.context_window - prompt_tokens
    bounds = [bound for bound in (route.max_output_tokens, left) if bound is not None]
    return min(bounds, default=None)


class ChatTools:
    """Tools as chat completions have them, encoded once per tool set."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: LRUCache[tuple[int, tuple[str, ...] | None], tuple[ToolSet, bytes]] = LRUCache(_KNOWN_TOOLS)

    def encoded(self, tools: ToolSet | None, choice: ToolChoice) -> bytes | None:
        """Return the array of the tools that may be called; None for none."""
        if tools is None:
            return None
        key = id(tools), choice.names
        known = self._known.get(key)
        if known is not None:
            return known[1]
        made = chat_tools(tools, choice)
        if len(made) <= _KNOWN_BYTES:
            self._known[key] = tools, made  # they live as long, so that no others have their id
        return made
