"""Routers for more than one model: a table, and a cache before a slow look-up.

They can be put together: ``StaticRouter`` and :class:`~ws_responses.failover.FailoverRouter` hold routes, ``CachingRouter`` goes around
any router of yours that asks a database. Put no cache around a failover: it would answer what was healthy a while ago.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from hashlib import blake2b
from typing import Final, Protocol, runtime_checkable

import anyio
from cachetools import LRUCache
from msgspec import Struct
from msgspec.structs import replace

from ws_responses.backends import RETRYABLE
from ws_responses.clock import Clock, MonotonicClock
from ws_responses.errors import ConfigurationError, InvalidRequest, WireError
from ws_responses.routing import Route, Router, UnknownModel

Allowed = Callable[[str, str], bool]
"""Whether a tenant (first) may use a model (second)."""


@runtime_checkable
class HearsOutcomes(Protocol):
    """What a router has that wants to know how its routes do."""

    def failed(self, route: Route, error: WireError) -> None:
        """Hear that a turn of this route failed in its backend."""

    def served(self, route: Route) -> None:
        """Hear that a turn of this route was answered."""


@runtime_checkable
class KnowsOthers(Protocol):
    """What a router has that knows several routes of a model."""

    def instead_of(self, route: Route, tenant: str) -> Route | None:
        """Return another route of the same model that may be used now; None if there is none."""
        ...


def another_route(router: Router, route: Route, tenant: str) -> Route | None:
    """Return a route to be tried in place of one that failed; None if there is none."""
    return router.instead_of(route, tenant) if isinstance(router, KnowsOthers) else None


def tell_failed(router: Router, route: Route, error: WireError) -> None:
    """Tell a router that a turn failed in its backend, if it wants to know."""
    if isinstance(router, HearsOutcomes):
        router.failed(route, error)


def tell_served(router: Router, route: Route) -> None:
    """Tell a router that a turn was answered, if it wants to know."""
    if isinstance(router, HearsOutcomes):
        router.served(route)


def named_model(model: str | None, models: Collection[str], default: str | None) -> str:
    """Return the model of a request, also of one that names none.

    Raises:
        InvalidRequest: It names none, and there is no default.
    """
    if model is not None:
        return model
    if default is not None:
        return default
    if len(models) == 1:
        return next(iter(models))
    raise InvalidRequest("The field 'model' is missing.", param="model")


class StaticRouter:
    """A table of routes, by their model.

    Args:
        routes: One for each model.
        aliases: Further names, and the model that each stands for.
        default: Model of requests that name none; without it that is an error if there is more than one.
        allowed: Whether a tenant may use a model; for one who may not it does not exist.

    Raises:
        ConfigurationError: Two routes have one name, or a name stands for nothing.
    """

    def __init__(
        self,
        routes: Iterable[Route],
        *,
        aliases: Mapping[str, str] | None = None,
        default: str | None = None,
        allowed: Allowed | None = None,
    ) -> None:
        self._routes: dict[str, Route] = {}
        for route in routes:
            if route.model in self._routes:
                raise ConfigurationError(f"two routes are for the model {route.model!r}")
            self._routes[route.model] = route
        for name, model in (aliases or {}).items():
            if name in self._routes or model not in self._routes:
                raise ConfigurationError(
                    f"the alias {name!r} stands for {model!r}: that must be a model, and the alias none"
                )
        self._routes |= {name: replace(self._routes[model], model=name) for name, model in (aliases or {}).items()}
        if not self._routes:
            raise ConfigurationError("a StaticRouter needs a route")
        if default is not None and default not in self._routes:
            raise ConfigurationError(f"the default {default!r} is no model of the table")
        self._default = default
        self._allowed = allowed

    async def resolve(self, model: str | None, tenant: str, previous: Route | None) -> Route:
        """Return the route of a model.

        Raises:
            InvalidRequest: The request names no model, and there is no default.
            UnknownModel: It names one that is not in the table, or not for this tenant.
        """
        del previous
        name = named_model(model, self._routes, self._default)
        route = self._routes.get(name)
        if route is None or not self._may(tenant, name):
            raise UnknownModel(name)
        return route

    def models(self, tenant: str) -> list[str]:
        """Return the names that a tenant may use."""
        return [name for name in self._routes if self._may(tenant, name)]

    def _may(self, tenant: str, name: str) -> bool:
        return self._allowed is None or self._allowed(tenant, name)


_LONGEST_NAME: Final = 256
"""Names of models have some dozens of characters."""


class _Cached(Struct, frozen=True):
    route: Route | None
    until: float


class CachingRouter:
    """Keeps what a slow router has said, per tenant and model, and asks it once at a time for each.

    What fails is not kept, but that a model is unknown: clients choose these names, and each would else cost a look-up.

    Args:
        router: Is asked.
        ttl_s: How long a route is used without asking again.
        unknown_ttl_s: How long a model is unknown without asking again.
        max_entries: Routes kept; the least recently used go first.
        clock: Of these times.

    Raises:
        ConfigurationError: A number is wrong.
    """

    def __init__(
        self,
        router: Router,
        *,
        ttl_s: float = 300.0,
        unknown_ttl_s: float = 5.0,
        max_entries: int = 10_000,
        clock: Clock | None = None,
    ) -> None:
        if not (ttl_s > 0 and unknown_ttl_s >= 0 and max_entries > 0):
            raise ConfigurationError("ttl_s and max_entries must be positive, unknown_ttl_s must not be negative")
        self._router = router
        self._ttl_s = ttl_s
        self._unknown_ttl_s = unknown_ttl_s
        self._clock: Clock = clock or MonotonicClock()
        self._entries: LRUCache[tuple[str, str | None], _Cached] = LRUCache(max_entries)
        self._asking: dict[tuple[str, str | None], anyio.Event] = {}
        self._changes = 0

    async def resolve(self, model: str | None, tenant: str, previous: Route | None) -> Route:
        """Return the route that is kept, or ask for it.

        Raises:
            WireError: As the router says.
        """
        key = (tenant, _short(model))
        while True:
            entry = self._entries.get(key)
            if entry is not None and self._clock.now() < entry.until:
                if entry.route is None:
                    raise UnknownModel(model or "")
                return entry.route
            asking = self._asking.get(key)
            if asking is None:
                return await self._ask(key, model, previous)
            await asking.wait()  # whatever came of it: if it failed, the next one asks

    async def _ask(self, key: tuple[str, str | None], model: str | None, previous: Route | None) -> Route:
        asking = self._asking[key] = anyio.Event()
        changes = self._changes
        try:
            route = await self._router.resolve(model, key[0], previous)
        except UnknownModel:
            self._keep(key, None, self._unknown_ttl_s, changes)
            raise
        finally:
            del self._asking[key]
            asking.set()
        self._keep(key, route, self._ttl_s, changes)
        return route

    def _keep(self, key: tuple[str, str | None], route: Route | None, seconds: float, changes: int) -> None:
        # What was dropped while the answer was on its way may be older than the reason for it.
        if changes == self._changes:
            self._entries[key] = _Cached(route, self._clock.now() + seconds)

    def models(self, tenant: str) -> list[str]:
        """Return what the router says."""
        return self._router.models(tenant)

    def invalidate(self, *, tenant: str | None = None, model: str | None = None) -> int:
        """Drop what is kept of a tenant, of a model, of both, or all of it; return how many routes that were."""
        self._changes += 1
        name = _short(model)
        dropped = [
            key for key in self._entries if (tenant is None or key[0] == tenant) and (model is None or key[1] == name)
        ]
        for key in dropped:
            del self._entries[key]
        return len(dropped)

    def failed(self, route: Route, error: WireError) -> None:
        """Drop a route whose backend failed, so that the next turn asks anew."""
        if is_backend_failure(error):
            self._changes += 1
            for key in [key for key, entry in self._entries.items() if entry.route is route]:
                del self._entries[key]
        tell_failed(self._router, route, error)

    def served(self, route: Route) -> None:
        """Pass it on."""
        tell_served(self._router, route)


def _short(model: str | None) -> str | None:
    """Return what a model is kept under: clients choose its name, which may be as long as a frame."""
    if model is None or len(model) <= _LONGEST_NAME:
        return model
    return blake2b(model.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def is_backend_failure(error: WireError) -> bool:
    """Whether an error speaks against the backend, and not against the request."""
    return error.status in RETRYABLE or error.status >= 500
