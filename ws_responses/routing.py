"""Which backend serves a model: the contract, the route that a chain keeps, and the router of a single backend."""

from collections.abc import Iterable, Mapping
from typing import Protocol, cast

from msgspec import Struct

from ws_responses.backends import Backend
from ws_responses.errors import ConfigurationError, InvalidRequest, excerpt
from ws_responses.pricing import Price
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
        price: What its tokens cost, for the records of its turns; None if unknown.
    """

    model: str
    backend: Backend
    backend_model: str
    renderer: Renderer
    name: str
    context_window: int | None = None
    max_output_tokens: int | None = None
    price: Price | None = None


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


class UnknownModel(InvalidRequest):
    """No model of that name is served here."""

    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The requested model '{excerpt(model)}' does not exist.", param="model")


class SingleRouter:
    """Routes all models to one backend; nothing is cached, tried elsewhere or taken out of service.

    Args:
        backend: What samples.
        renderer: Makes the prompts.
        models: Names that are served, or by each name the backend's own; None lets every name through as it is.
        name: Names the route in metrics and logs.
        context_window: Tokens that prompt and answer may take together; None if unknown.
        max_output_tokens: Most tokens that may be sampled; None if unknown.
        price: What tokens cost, whatever the model; None if unknown.

    Raises:
        ConfigurationError: There is no model, or the backend does not take what the renderer produces.
    """

    def __init__(
        self,
        backend: Backend,
        renderer: Renderer,
        *,
        models: Iterable[str] | Mapping[str, str] | None = None,
        name: str = "default",
        context_window: int | None = None,
        max_output_tokens: int | None = None,
        price: Price | None = None,
    ) -> None:
        if renderer.produces not in backend.accepts.kinds:
            kinds = ", ".join(sorted(backend.accepts.kinds))
            raise ConfigurationError(f"the renderer produces {renderer.produces!r}, the backend takes {kinds}")
        self._backend = backend
        self._renderer = renderer
        self._models = None if models is None else _by_name(models)
        if self._models is not None and not self._models:
            raise ConfigurationError("models must name a model, or be None")
        self._name = name
        self._context_window = context_window
        self._max_output_tokens = max_output_tokens
        self._price = price

    async def resolve(self, model: str | None, tenant: str, previous: Route | None) -> Route:
        """Return the route of a turn: the previous one if it is of the same model.

        Raises:
            InvalidRequest: The request names no model, and there is not just one.
            UnknownModel: It names one that is not served.
        """
        del tenant
        if model is None:
            if self._models is None or len(self._models) > 1:
                raise InvalidRequest("The field 'model' is missing.", param="model")
            model = next(iter(self._models))
        if previous is not None and previous.model == model and previous.backend is self._backend:
            return previous
        backend_model = model if self._models is None else self._models.get(model)
        if backend_model is None:
            raise UnknownModel(model)
        return Route(
            model=model,
            backend=self._backend,
            backend_model=backend_model,
            renderer=self._renderer,
            name=self._name,
            context_window=self._context_window,
            max_output_tokens=self._max_output_tokens,
            price=self._price,
        )

    def models(self, tenant: str) -> list[str]:
        """Return the names that are served; none if every name is let through."""
        del tenant
        return list(self._models or ())


def _by_name(models: Iterable[str] | Mapping[str, str]) -> dict[str, str]:
    if isinstance(models, str):
        return {models: models}
    if isinstance(models, Mapping):
        return dict(cast("Mapping[str, str]", models))
    return {model: model for model in models}
