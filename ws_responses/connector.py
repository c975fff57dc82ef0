"""Makes connections: of a socket, or of one POST, with what answers their turns."""

from collections.abc import Callable
from functools import partial

from ws_responses._types import ASGIApp, Scope, Send
from ws_responses.admission import Guest
from ws_responses.connection import Connection
from ws_responses.handshake import Handshake
from ws_responses.registry import Registry
from ws_responses.upstreams.asgi import AsgiUpstream
from ws_responses.upstreams.base import Upstream
from ws_responses.upstreams.bodies import Bodies
from ws_responses.upstreams.scope import InnerScope

InnerScopeOf = Callable[[], InnerScope]
"""Gives the scope of an inner request of one connection."""


class _InnerScopeOf:
    """Makes the source of a connection's inner scopes; a ``partial`` for each idle connection would take three times the memory."""

    __slots__ = ("_inner_path", "_keep_origin", "_scope")

    def __init__(self, scope: Scope, keep_origin: bool, inner_path: str | None = None) -> None:  # noqa: FBT001 - ours
        self._scope = scope
        self._keep_origin = keep_origin
        self._inner_path = inner_path

    def __call__(self) -> InnerScope:
        return InnerScope(self._scope, inner_path=self._inner_path, keep_origin=self._keep_origin)


class Connector:
    """Makes the connections of a middleware.

    Args:
        app: The wrapped app.
        registry: What the connections share.
        upstream: Answers the turns in the app's place; None to let the app answer them.

    Attributes:
        app: See above.
    """

    def __init__(self, app: ASGIApp, registry: Registry, upstream: Upstream | None) -> None:
        self.app = app
        self._registry = registry
        self._upstream = upstream
        self._settings = settings = registry.settings
        make_bodies = partial(
            Bodies,
            app_store=settings.app_store,
            drop_fields=settings.drop_fields,
            prepare=settings.prepare,
            max_bytes=settings.limits.max_request_bytes,
        )
        self._bodies = make_bodies(settings.history)
        # Over HTTP an id may be the app's own: what is not known here is left to it.
        self._http_bodies = make_bodies("forward")

    def inner_scope_of(self, handshake: Handshake) -> InnerScopeOf:
        """Return the source of a connection's inner scopes."""
        settings = self._settings
        # A POST is for the app's route as it is.
        inner_path = None if handshake.scope["type"] == "http" else settings.inner_path
        return _InnerScopeOf(handshake.scope, settings.keep_origin, inner_path)

    def connect(
        self,
        handshake: Handshake,
        send: Send,
        guest: Guest,
        inner: InnerScopeOf,
        upstream: Upstream | None = None,
        *,
        in_whole: bool = False,
    ) -> Connection:
        """Return a connection, to be served.

        Args:
            handshake: Its first request.
            send: Takes its frames.
            guest: Who is at the other end.
            inner: See :meth:`inner_scope_of`.
            upstream: Answers its turns, if another one than usually does.
            in_whole: The peer is shown no more of a turn than its end.
        """
        by_app = self._upstream is None and handshake.scope["type"] == "http"
        bodies = self._http_bodies if by_app else self._bodies
        upstream = upstream or self._upstream or AsgiUpstream(self.app, inner, bodies, self._settings.limits)
        return Connection(
            self._registry,
            handshake,
            send,
            tenant=guest.tenant,
            anonymous=guest.anonymous,
            principal=guest.principal,
            upstream=upstream,
            history="forward" if by_app else self._settings.history,
            in_whole=in_whole,
        )
