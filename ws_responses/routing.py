"""Which backend serves a model: the contract, and the route that a chain keeps."""

from typing import Protocol

from msgspec import Struct

from ws_responses.backends import Backend
from ws_responses.rendering.renderer import Renderer


class Route(Struct, frozen=True, kw_only=True):
    """A resolved model.

    Attributes:
        model: As the client named it.
        backend: What samples.
        backend_model: The backend's own name of the model.
        renderer: Makes the prompt; one that produces "chat" for backends that take no ids.
        name: Names the route in metrics and logs.
        context_window: Tokens that prompt and answer may take together; None if unknown.
        max_output_tokens: Most tokens that may be sampled; None if unknown.
    """

    model: str
    backend: Backend
    backend_model: str
    renderer: Renderer
    name: str
    context_window: int | None = None
    max_output_tokens: int | None = None


class Router(Protocol):
    """Resolves models."""

    async def resolve(self, model: str | None, tenant: str, previous: Route | None) -> Route:
        """Return the route of a turn.

        Args:
            model: As the request named it; None if it named none.
            tenant: Who asks.
            previous: The route of the turn that this one continues, if that is still valid.

        Raises:
            WireError: There is none (``model_not_found``), or none that is healthy.
        """
        ...

    def models(self, tenant: str) -> list[str]:
        """Return the names that a tenant may use."""
        ...
