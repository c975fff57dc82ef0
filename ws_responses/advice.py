"""Routes for a wrapped app, which calls its services itself: the router says where, the handler heeds it.

    east = app_route("big", name="east", address="https://east.example", context_window=200_000)
    app = ResponsesWebSocketMiddleware(api, router=FailoverRouter({"big": [east, west]}))

    current_turn().route.backend.address  # in the handler

Nothing is tried again: the next turn goes where the router says then.
"""

from collections.abc import AsyncGenerator
from typing import Any, Final

from ws_responses.backends import Accepts, ChatPrompt, Delta, GenerateParams, TokenPrompt, Usage
from ws_responses.errors import ConfigurationError
from ws_responses.pricing import Price
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.routing import Route

__all__ = ["AppBackend", "app_route"]

_RENDERER: Final = ChatRenderer()


class AppBackend:
    """A backend that only the wrapped app calls. Routers know by it which routes are down together.

    Args:
        address: Whatever the handler needs in order to call it: a URL, a client.

    Attributes:
        accepts: What every backend says; nobody asks here.
        address: As given.
    """

    def __init__(self, address: Any = None) -> None:
        self.accepts = Accepts(kinds=frozenset({"chat"}))
        self.address = address

    def generate(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> AsyncGenerator[Delta]:
        """Refuse.

        Raises:
            ConfigurationError: Always: an engine was given a route for a wrapped app.
        """
        del prompt, params
        raise ConfigurationError("this route is for a wrapped app; an engine needs one with a backend")

    async def prefill(self, prompt: TokenPrompt | ChatPrompt, params: GenerateParams) -> Usage | None:
        """Do nothing."""
        del prompt, params
        return None

    async def aclose(self) -> None:
        """Do nothing: the address is the app's."""


def app_route(
    model: str,
    *,
    name: str,
    address: Any = None,
    backend: AppBackend | None = None,
    backend_model: str | None = None,
    context_window: int | None = None,
    max_output_tokens: int | None = None,
    price: Price | None = None,
) -> Route:
    """Return a route for a wrapped app.

    Args:
        model: As clients name it.
        name: Names the route in metrics, records and logs.
        address: Of the service, for the handler.
        backend: In the address's place: one that several routes share, which are down together then.
        backend_model: The service's own name of the model; None for the same.
        context_window: Tokens that prompt and answer may take together; None if unknown.
        max_output_tokens: Most tokens that may be sampled; None if unknown.
        price: What its tokens cost; None if unknown.

    Raises:
        ConfigurationError: Address and backend are both given.
    """
    if address is not None and backend is not None:
        raise ConfigurationError("a route has an address, or a backend that has one")
    return Route(
        model=model,
        backend=backend or AppBackend(address),
        backend_model=backend_model or model,
        renderer=_RENDERER,
        name=name,
        context_window=context_window,
        max_output_tokens=max_output_tokens,
        price=price,
    )
