"""Tokens for wrapped apps: with ``renderer=`` each turn finds its prompt rendered, continued from the turn before."""

import logging
from collections.abc import Sequence

import msgspec
from msgspec import Raw, Struct

from ws_responses.engine.tools import NO_OFFER, offer_of
from ws_responses.errors import InvalidRequest
from ws_responses.rendering.cache import Kept, RenderKey, render
from ws_responses.rendering.renderer import CannotRender, Renderer, RenderSettings
from ws_responses.upstreams.base import CurrentTurn

logger = logging.getLogger("ws_responses.turn")


class _Format(Struct):
    type: str | None = None


class _Text(Struct):
    format: Raw | None = None


class _Reasoning(Struct):
    effort: str | None = None


_decode_text = msgspec.json.Decoder(_Text | None).decode
_decode_format = msgspec.json.Decoder(_Format | None).decode
_decode_reasoning = msgspec.json.Decoder(_Reasoning | None).decode


class WrappedTokens:
    """Renders the turns of a wrapped app.

    Args:
        renderer: Of the app's model.
    """

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    async def render(self, turn: CurrentTurn) -> None:
        """Set ``turn.rendering``; None stays where the conversation has no form in the renderer's format.

        Nobody is told: whether such a turn can be answered is the app's to say.
        """
        renderer = self._renderer
        try:
            key = RenderKey(renderer.name, None, _settings(turn))
            turn.rendering = await render(renderer, key, None if turn.base else turn.parent, turn.delta)
        except (CannotRender, InvalidRequest, msgspec.ValidationError) as error:
            logger.debug("turn %s: not rendered: %s", turn.id, type(error).__name__)
            return
        turn.vocabulary = renderer.name

    def keep(self, turn: CurrentTurn, output: Sequence[bytes]) -> None:
        """Set ``turn.kept``: the rendered turn with its answer, as it was sampled if the app has recorded that."""
        renderer, rendering = self._renderer, turn.rendering
        if rendering is None:
            return
        sampled = turn.sampled
        try:
            if sampled is not None and sampled.vocabulary == renderer.name and renderer.produces == "tokens":
                state = renderer.answered(rendering.state, sampled.ids)
            else:
                state = renderer.extend(rendering.state, output)
        except (CannotRender, ValueError) as error:
            logger.debug("turn %s: its answer was not rendered: %s", turn.id, type(error).__name__)
            return
        turn.kept = Kept(key=rendering.key, state=state)


def _settings(turn: CurrentTurn) -> RenderSettings:
    body = turn.create.body
    instructions = turn.instructions
    tools = (NO_OFFER if turn.interned_tools is None else offer_of(turn.interned_tools, "drop")).tools
    reasoning = _decode_reasoning(body["reasoning"]) if "reasoning" in body else None
    text = _decode_text(body["text"]) if "text" in body else None
    return RenderSettings(
        instructions=instructions if isinstance(instructions, str) and instructions else None,
        tools=tools if tools.tools else None,
        reasoning_effort=None if reasoning is None else reasoning.effort,
        response_format=None if text is None or text.format is None else _format(text.format),
    )


def _format(raw: Raw) -> bytes | None:
    decoded = _decode_format(raw)
    return None if decoded is None or decoded.type in (None, "text") else bytes(raw)
