"""The parts of a turn that only some options need, and whose modules are loaded with these options.

They are many: who sets none of the options does not wait for them at the start. Who does waits when the middleware is made, never in a
turn, where all connections would wait as well.
"""

from typing import TYPE_CHECKING

from ws_responses.settings import Settings

if TYPE_CHECKING:
    from ws_responses.judged_turns import JudgedTurns
    from ws_responses.wrapped_routes import WrappedRoutes
    from ws_responses.wrapped_tokens import WrappedTokens


class Parts:
    """What the options of a middleware add to its turns; None for what they do not.

    Args:
        settings: The options.

    Attributes:
        safety: ``safety=``.
        routes: ``router=``.
        tokens: ``renderer=``.
    """

    __slots__ = ("routes", "safety", "tokens")

    def __init__(self, settings: Settings) -> None:
        self.safety = _safety(settings)
        self.routes = _routes(settings)
        self.tokens = _tokens(settings)


def _safety(settings: Settings) -> "JudgedTurns | None":
    if settings.safety is None:
        return None
    from ws_responses.judged_turns import JudgedTurns

    return JudgedTurns(settings.safety, settings.clock)


def _routes(settings: Settings) -> "WrappedRoutes | None":
    if settings.router is None:
        return None
    from ws_responses.wrapped_routes import WrappedRoutes

    return WrappedRoutes(settings.router)


def _tokens(settings: Settings) -> "WrappedTokens | None":
    if settings.renderer is None:
        return None
    from ws_responses.wrapped_tokens import WrappedTokens

    return WrappedTokens(settings.renderer)
