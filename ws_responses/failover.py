"""A router over several backends, which knows how they do."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Final, Literal

from msgspec.structs import replace

from ws_responses.clock import Clock, MonotonicClock
from ws_responses.errors import ConfigurationError, WireError
from ws_responses.routers import is_backend_failure, named_model
from ws_responses.routing import Route, UnknownModel

Spread = Literal["order", "tenant"]
"""Which of several healthy backends serves a chain: the first in the given order, or one that depends on the tenant."""


class _Health:
    """What is known of one backend.

    Attributes:
        failures: In a row.
        down_until: It is not to be used before; 0 if it is healthy.
        trial_until: One turn tries whether it is well again; others wait for that, but not for longer.
    """

    __slots__ = ("down_until", "failures", "trial_until")

    def __init__(self) -> None:
        self.failures = 0
        self.down_until = 0.0
        self.trial_until = 0.0


class FailoverRouter:
    """Several backends for a model: a chain stays where it is while its backend is healthy, and goes elsewhere when it is not.

    A backend is *down* after some failures in a row, or when it says when to come back (429 with ``retry-after``). After a
    while one turn tries it again. If all are down, the one that comes back first is used all the same: a client whose requests
    make backends fail must not take the model from the others.

    Args:
        routes: By model, its routes in the order of preference; each with a name of its own.
        spread: See :data:`Spread`; with "tenant" a tenant keeps its backend, and so its prompt caches, as long as that is healthy.
        failures: Failures in a row that make a backend be down.
        cool_down_s: How long it is down at first; twice as long after each further failure.
        max_cool_down_s: Longest time of that.
        trial_s: How long others wait for the turn that tries it.
        default: Model of requests that name none.
        clock: Of these times.

    Raises:
        ConfigurationError: A model has no route, two routes of a model have one name, or a number is wrong.
    """

    def __init__(
        self,
        routes: Mapping[str, Sequence[Route]],
        *,
        spread: Spread = "order",
        failures: int = 3,
        cool_down_s: float = 10.0,
        max_cool_down_s: float = 300.0,
        trial_s: float = 30.0,
        default: str | None = None,
        clock: Clock | None = None,
    ) -> None:
        if spread not in ("order", "tenant"):
            raise ConfigurationError(f"spread must be 'order' or 'tenant', not {spread!r}")
        if failures < 1 or not 0 < cool_down_s <= max_cool_down_s or trial_s <= 0:
            raise ConfigurationError(
                "failures, cool_down_s and trial_s must be positive, max_cool_down_s not below cool_down_s"
            )
        if not routes or not all(routes.values()):
            raise ConfigurationError("a FailoverRouter needs a model, and for each a route")
        for model, given in routes.items():
            if len({route.name for route in given}) < len(given):
                raise ConfigurationError(f"the routes of {model!r} must have different names")
        if default is not None and default not in routes:
            raise ConfigurationError(f"the default {default!r} is no model of the table")
        self._routes = {model: tuple(replace(route, model=model) for route in given) for model, given in routes.items()}
        self._spread = spread
        self._failures = failures
        self._cool_down_s = cool_down_s
        self._max_cool_down_s = max_cool_down_s
        self._trial_s = trial_s
        self._default = default
        self._clock: Clock = clock or MonotonicClock()
        # By identity: the routes hold their backends, so it lasts as long as they do.
        self._health = {id(route.backend): _Health() for given in self._routes.values() for route in given}

    async def resolve(self, model: str | None, tenant: str, previous: Route | None) -> Route:
        """Return the route of the chain while it is healthy, else the first healthy one.

        Raises:
            InvalidRequest: The request names no model, and there is no default.
            UnknownModel: It names one that is not in the table.
        """
        name = named_model(model, self._routes, self._default)
        candidates = self._routes.get(name)
        if candidates is None:
            raise UnknownModel(name)
        now = self._clock.now()
        for route in self._ordered(candidates, tenant, previous):
            if self._take(route, now):
                return route
        return min(candidates, key=lambda route: self._health[id(route.backend)].down_until)

    def instead_of(self, route: Route, tenant: str) -> Route | None:
        """Return another route of the same model whose backend is up; None if there is none."""
        now = self._clock.now()
        others = [each for each in self._routes.get(route.model, ()) if each.backend is not route.backend]
        return next((each for each in self._ordered(others, tenant, None) if self._take(each, now)), None)

    def models(self, tenant: str) -> list[str]:
        """Return the names of the table."""
        del tenant
        return list(self._routes)

    def failed(self, route: Route, error: WireError) -> None:
        """Count a failure of the backend; one of the request does not count."""
        health, now = self._health.get(id(route.backend)), self._clock.now()
        if health is None or not is_backend_failure(error) or now < health.down_until:
            return  # turns that were under way when it went down say nothing new
        health.trial_until = 0.0
        told_s = _retry_after(error) if error.status == 429 else None
        if told_s is not None:
            health.down_until = max(health.down_until, now + min(told_s, self._max_cool_down_s))
            return
        health.failures += 1
        if health.failures >= self._failures:
            doubled = self._cool_down_s * 2.0 ** min(health.failures - self._failures, _MAX_DOUBLINGS)
            health.down_until = now + min(doubled, self._max_cool_down_s)

    def served(self, route: Route) -> None:
        """Note that the backend is well."""
        health = self._health.get(id(route.backend))
        if health is not None and self._clock.now() >= health.down_until:
            health.failures = 0
            health.down_until = health.trial_until = 0.0

    def is_down(self, route: Route) -> bool:
        """Whether the backend of a route is not to be used now."""
        return self._clock.now() < self._health[id(route.backend)].down_until

    def _take(self, route: Route, now: float) -> bool:
        """Whether a turn may take this route; the first one after a cool-down is the trial."""
        health = self._health[id(route.backend)]
        if not health.down_until:
            return True
        if now < health.down_until or now < health.trial_until:
            return False
        health.trial_until = now + self._trial_s
        return True

    def _ordered(self, candidates: Sequence[Route], tenant: str, previous: Route | None) -> Iterator[Route]:
        ordered = list(candidates)
        if self._spread == "tenant":
            ordered.sort(key=lambda route: _weight(tenant, route.name))
        for route in ordered:
            # The chain's own comes first, as the object that it is now: limits may have been changed.
            if previous is not None and route.backend is previous.backend and route.name == previous.name:
                yield route
        yield from ordered


_MAX_DOUBLINGS: Final = 30


def _weight(tenant: str, name: str) -> bytes:
    """Return a number for rendezvous hashing: a backend that goes or comes moves its own tenants only."""
    return blake2b(f"{tenant}\n{name}".encode("utf-8", "surrogatepass"), digest_size=8).digest()


def _retry_after(error: WireError) -> float | None:
    """Return the seconds that a service asks for; None if it does not, or names a date."""
    try:
        seconds = float(error.headers.get("retry-after", ""))
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None
