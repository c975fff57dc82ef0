"""The options of a middleware, checked once."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

from msgspec import Struct

from ws_responses.clock import Clock
from ws_responses.errors import ConfigurationError
from ws_responses.handshake import Handshake
from ws_responses.limits import Limits
from ws_responses.protocol.profiles import Profile
from ws_responses.quota import Quota
from ws_responses.settlement import Settlement
from ws_responses.state.store import InProcessStore, ResponseStore
from ws_responses.upstreams.base import Principal, Upstream
from ws_responses.upstreams.bodies import AppStore, History, Prepare
from ws_responses.validation import OpenCalls

if TYPE_CHECKING:  # what these options load is loaded with them (`parts`)
    from ws_responses.rendering.renderer import Renderer
    from ws_responses.routing import Router
    from ws_responses.safety import Safety

Steering = Literal["native", "interrupt"]
"""How responses are steered: the upstream ends them itself, or its call is ended."""

Authorize = Callable[[Handshake, str | None], Principal | Awaitable[Principal | None] | None]
"""Judges a connection (model None, at the upgrade) and each of its turns (with the turn's model).

Returns who it is; None, or raising :class:`~ws_responses.errors.Refused`, turns it away."""

TenantOf = Callable[[Handshake], str | None]
"""Names who owns the chains of a connection; None keeps the default."""

HandshakeHeaders = Callable[[Handshake], Iterable[tuple[str, str]]]
"""Gives headers for the 101 answer (some servers ignore them: granian, daphne)."""

OnClose = Callable[[Sequence[str]], None]
"""Is told the response ids that a closed connection leaves unresolvable on it."""


class Settings(Struct, frozen=True, kw_only=True):
    """What :class:`~ws_responses.ResponsesWebSocketMiddleware` was asked to do; its docstring explains each."""

    profile: Profile
    paths: tuple[str, ...]
    inner_path: str | None
    history: History
    app_store: AppStore
    drop_fields: tuple[str, ...]
    prepare: Prepare | None
    complete_response: bool
    open_calls: OpenCalls
    tenant: TenantOf | None
    anonymous_tenant: Literal["connection", "shared"]
    authorize: Authorize | None
    probe: bool
    renderer: "Renderer | None"
    router: "Router | None"
    allowed_origins: tuple[str, ...] | None
    keep_origin: bool
    enabled: bool
    limits: Limits
    on_disconnect_s: float | None
    keepalive_s: float | None
    age_notice: bool
    accept_wrapped: bool
    accept_cancel: bool
    steering: Literal["interrupt"] | None
    prototype: bool
    handshake_headers: HandshakeHeaders | None
    on_close: OnClose | None
    quota: Quota | None
    safety: "Safety | None"
    settlement: Settlement | None
    durable: bool
    clock: Clock

    def __post_init__(self) -> None:
        _one_of("profile", self.profile, ("openai", "open-responses"))
        _one_of("history", self.history, ("replay", "forward", "turn"))
        _one_of("app_store", self.app_store, ("keep", "never"))
        _one_of("open_calls", self.open_calls, ("check", "app"))
        _one_of("anonymous_tenant", self.anonymous_tenant, ("connection", "shared"))
        if self.steering not in (None, "interrupt"):
            raise ConfigurationError(f"steering must be 'interrupt' or None, not {self.steering!r}")
        if self.steering is not None and self.profile == "open-responses":
            raise ConfigurationError("steering sends events that clients of the profile 'open-responses' reject")
        if self.prototype and self.profile == "open-responses":
            raise ConfigurationError("prototype sends an event that clients of the profile 'open-responses' reject")
        for path in (*self.paths, *(() if self.inner_path is None else (self.inner_path,))):
            if not path.startswith("/"):
                raise ConfigurationError(f"a path must begin with '/', not {path!r}")
        if not self.paths:
            raise ConfigurationError("path names no path")
        if self.keepalive_s is not None and self.keepalive_s <= 0:
            raise ConfigurationError(f"keepalive_s must be positive, not {self.keepalive_s!r}")
        if self.keepalive_s is not None and self.profile == "open-responses":
            raise ConfigurationError("keepalive_s sends an event that clients of the profile 'open-responses' reject")
        if self.on_disconnect_s is not None and self.on_disconnect_s < 0:
            raise ConfigurationError("on_disconnect must be 'cancel' or a number of seconds that is not negative")
        for origin in self.allowed_origins or ():
            parts = urlsplit(origin)
            if origin != "*" and not (parts.scheme and parts.netloc and not parts.path.strip("/")):
                raise ConfigurationError(
                    f"allowed_origins takes origins such as 'https://example.com', or '*', not {origin!r}"
                )


def _one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, allowed))}, not {value!r}")


def check_given(
    app: object,
    *,
    upstream: Upstream | None,
    renderer: "Renderer | None",
    router: "Router | None",
    store: ResponseStore | str | None,
    durable: bool,
    on_disconnect: str | float,
    authorize: Authorize | str | None,
) -> None:
    """Check the options that become something else than they were given as, or do not go together.

    Raises:
        ConfigurationError: One is wrong.
    """
    if not callable(app):
        raise ConfigurationError("app must be an ASGI app")
    if isinstance(store, str) and store != "memory":
        raise ConfigurationError(f"store must be 'memory', a ResponseStore or None, not {store!r}")
    if durable and (store is None or isinstance(store, str | InProcessStore)):
        raise ConfigurationError("durable needs a store that outlives this process")
    if isinstance(on_disconnect, str) and on_disconnect != "cancel":
        raise ConfigurationError(f"on_disconnect must be 'cancel' or seconds, not {on_disconnect!r}")
    if isinstance(authorize, str) and authorize != "open":
        raise ConfigurationError(f"authorize must be a function, 'open' or None, not {authorize!r}")
    if upstream is not None and authorize is None:
        raise ConfigurationError(
            "with upstream= no app judges the turns of a socket: give authorize=, or authorize='open' to let everybody in"
        )
    if upstream is not None and renderer is not None:
        raise ConfigurationError("renderer= is for a wrapped app; an upstream renders by itself")
    if upstream is not None and router is not None:
        raise ConfigurationError("router= is for a wrapped app; an upstream routes by itself")
