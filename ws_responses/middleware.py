"""The middleware: its options, the way of each ASGI scope, and what operators may ask."""

import warnings
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import anyio

from ws_responses._types import ASGIApp, Receive, Scope, Send
from ws_responses.clock import Clock, MonotonicClock
from ws_responses.connector import Connector
from ws_responses.counters import TenantCounters
from ws_responses.deletions import Deletions
from ws_responses.instrumentation import Hook, Reporter
from ws_responses.limits import Limits
from ws_responses.posts import Posts
from ws_responses.protocol.profiles import Profile
from ws_responses.quota import Quota
from ws_responses.registry import Registry
from ws_responses.settings import Authorize, HandshakeHeaders, OnClose, Settings, TenantOf, check_given
from ws_responses.settlement import Settlement
from ws_responses.state.store import ResponseStore
from ws_responses.upgrade import Upgrades
from ws_responses.upstreams.base import Upstream
from ws_responses.upstreams.bodies import AppStore, History, Prepare
from ws_responses.upstreams.scope import route_path
from ws_responses.validation import OpenCalls

if TYPE_CHECKING:  # what these options load is loaded with them (`parts`)
    from ws_responses.rendering.renderer import Renderer
    from ws_responses.routing import Router
    from ws_responses.safety import Safety


class ResponsesWebSocketMiddleware:
    """Give an app with ``POST /v1/responses`` OpenAI's WebSocket mode.

    Mount it outermost: ``app = ResponsesWebSocketMiddleware(app)``. Whatever lies outside of it and looks at HTTP requests
    only (Starlette's ``BaseHTTPMiddleware``, for one) does not see the turns of a socket.

    Args:
        app: Any ASGI app.
        upstream: Answers the turns in the app's place: a ``ResponsesEngine``, for one. The app still gets all of HTTP.
        renderer: Renders each turn for the wrapped app: ``current_turn().tokens``, continued from the turn before.
        router: Resolves the model of each turn for the wrapped app, which is told by ``current_turn().route`` and heeds it or not; the
            body keeps the client's ``model``. The route is kept with the chain.
        profile: "openai", or "open-responses": no lanes, and events and response objects by the schema of that specification;
            ``complete_response`` is implied.
        path: Path or paths of the socket, below ``root_path``; matched exactly.
        inner_path: Path of the app's HTTP route if it is another one.
        history: What the app is given of a conversation: "replay" (all of it), "forward" (its own parent's id and what it
            does not know) or "turn" (the delta; the handler reads the rest from ``current_turn()``).
        app_store: "never" sends the app ``store: false``, so that a replayed conversation is not saved again and again.
        drop_fields: Members of the frame that never reach the app.
        prepare: Edits each inner body.
        complete_response: Fill the members of response objects that strict clients demand.
        open_calls: "app" leaves unanswered and unknown tool calls to the app.
        store: Keeps ``store: true`` chains beyond their connection: "memory" (this process), a ``ResponseStore``, or None.
        durable: Let the terminal event of a turn that is to be stored wait until the store has it; a turn that it does not take within
            ``Limits.store_timeout_s`` ends by ``response.failed`` (``store_unavailable``). For stores outside of the process.
        counters: Count the connections and running turns of each tenant over all nodes, for ``Limits.max_tenant_connections`` and
            ``max_tenant_turns``; by default each process counts its own.
        tenant: Names who owns the chains of a connection; by default a keyed hash of its credentials.
        tenant_key: Key of that hash; give the same to all workers that share a store. Without it such a store is of no use, and a warning
            says so.
        anonymous_tenant: Clients without credentials are strangers to each other ("connection") or one tenant ("shared").
        authorize: Judges the upgrade and each turn; by default the app judges each turn by the handshake's headers. With an
            ``upstream`` nobody else does, so it must be given: "open" lets everybody in.
        probe: Ask the app's outer layers at the upgrade, by an inner GET, whether they refuse the client (401, 403).
        allowed_origins: Browser origins let in, "*" for all; by default only pages of the same host.
        keep_origin: Whether ``Origin`` reaches the app.
        enabled: False answers upgrades by 426, upon which clients use HTTP.
        limits: All bounds.
        on_disconnect: "cancel" stops the app when its client has gone; a number lets it run for that many seconds more.
        keepalive_s: Send an extension event (``ws_responses:keepalive``) after that much silence of a running turn. Off by
            default: strict clients reject events that they do not know.
        age_notice: Tell an idle client of the connection's age limit by an error frame before the close.
        accept_wrapped: Take ``{"type": "response.create", "response": {...}}`` as well.
        accept_cancel: Take ``response.cancel``, an extension of ours: it stops a response, or all of a lane.
        steering: "interrupt" lets clients steer the responses of an app (or of an upstream that cannot end them itself): its call
            is ended at the next border of its output. By default ``response.steer`` is refused there, and the engine's responses
            can be steered.
        prototype: Each response of a socket is a whole rollout: where others end by calls of the client, it sends ``response.done``, and
            goes on by ``response.append``. Not for clients that do not know this.
        handshake_headers: Gives headers for the 101 answer.
        on_close: Is told the ids that a closed connection leaves unresolvable on it.
        hooks: Are told all facts.
        guard_http: Whether quota, safety and settlement hold for plain POSTs of the app as well: HTTP is the fallback of every
            client, and else the way round them. Such a POST is answered as a socket with one turn is; ``authorize`` judges it too.
        quota: May refuse a turn before it runs.
        safety: Judges what is new in each turn, and what is answered.
        settlement: Is given one record of each turn.
        clock: The clock of all time limits.

    Raises:
        ConfigurationError: An option is wrong.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        upstream: Upstream | None = None,
        renderer: "Renderer | None" = None,
        router: "Router | None" = None,
        profile: Profile = "openai",
        path: str | Sequence[str] = "/v1/responses",
        inner_path: str | None = None,
        history: History = "replay",
        app_store: AppStore = "keep",
        drop_fields: Iterable[str] = (),
        prepare: Prepare | None = None,
        complete_response: bool = False,
        open_calls: OpenCalls = "check",
        store: ResponseStore | Literal["memory"] | None = "memory",
        durable: bool = False,
        counters: TenantCounters | None = None,
        tenant: TenantOf | None = None,
        tenant_key: bytes | None = None,
        anonymous_tenant: Literal["connection", "shared"] = "connection",
        authorize: Authorize | Literal["open"] | None = None,
        probe: bool = True,
        allowed_origins: Sequence[str] | None = None,
        keep_origin: bool = True,
        enabled: bool = True,
        limits: Limits | None = None,
        on_disconnect: Literal["cancel"] | float = "cancel",
        keepalive_s: float | None = None,
        age_notice: bool = True,
        accept_wrapped: bool = False,
        accept_cancel: bool = False,
        steering: Literal["interrupt"] | None = None,
        prototype: bool = False,
        handshake_headers: HandshakeHeaders | None = None,
        on_close: OnClose | None = None,
        hooks: Sequence[Hook] = (),
        quota: Quota | None = None,
        safety: "Safety | None" = None,
        settlement: Settlement | None = None,
        guard_http: bool = True,
        clock: Clock | None = None,
    ) -> None:
        check_given(
            app,
            upstream=upstream,
            renderer=renderer,
            router=router,
            store=store,
            durable=durable,
            on_disconnect=on_disconnect,
            authorize=authorize,
        )
        self._upstream = upstream
        settings = Settings(
            profile=profile,
            paths=(path,) if isinstance(path, str) else tuple(path),
            inner_path=inner_path,
            history=history,
            app_store=app_store,
            drop_fields=tuple(drop_fields),
            prepare=prepare,
            complete_response=complete_response or profile == "open-responses",
            open_calls=open_calls,
            tenant=tenant,
            anonymous_tenant=anonymous_tenant,
            authorize=None if isinstance(authorize, str) else authorize,
            probe=probe and authorize is None,
            renderer=renderer,
            router=router,
            allowed_origins=None if allowed_origins is None else tuple(allowed_origins),
            keep_origin=keep_origin,
            enabled=enabled,
            limits=limits or Limits(),
            on_disconnect_s=None if isinstance(on_disconnect, str) else on_disconnect,
            keepalive_s=keepalive_s,
            age_notice=age_notice,
            accept_wrapped=accept_wrapped,
            accept_cancel=accept_cancel,
            steering=steering,
            prototype=prototype,
            handshake_headers=handshake_headers,
            on_close=on_close,
            quota=quota,
            safety=safety,
            settlement=settlement,
            durable=durable,
            clock=clock or MonotonicClock(),
        )
        self._settings = settings
        self.registry = Registry(settings, Reporter(hooks), store, tenant_key, counters)
        """What its connections share; for this package."""
        self._connector = Connector(app, self.registry, upstream)
        self._upgrades = Upgrades(self.registry, self._connector)
        self.posts = Posts(self.registry, self._connector)
        """Answers POSTs by the same code; for this package."""
        self._deletions = Deletions(self.registry)
        guarded = any(room is not None for room in (quota, safety, settlement))
        self._guards_http = guard_http and guarded and upstream is None
        if guarded and not guard_http:
            warnings.warn(
                "with guard_http=False quota, safety and settlement do not see what comes by HTTP", stacklevel=2
            )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope: ours if it is a socket on our path, else the app's, untouched."""
        kind = scope["type"]
        if kind == "websocket" and route_path(scope) in self._settings.paths:
            await self._upgrades.serve(scope, receive, send)
        elif kind == "http" and self._guards_http and self.posts.is_create(scope):
            await self.posts.guard(scope, receive, send)
        elif kind == "http" and self._deletions.concerns(scope):
            await self.app(scope, receive, self._deletions.watch(scope, send))
        else:
            if kind == "lifespan":
                anyio.get_cancelled_exc_class()  # loads anyio's half for this event loop; else the first connection would
            await self.app(scope, receive, send)

    @property
    def app(self) -> ASGIApp:
        """The wrapped app."""
        return self._connector.app

    @app.setter
    def app(self, app: ASGIApp) -> None:
        self._connector.app = app

    # -- for operators -----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Enter the user's own lifespan; nothing needs to be opened."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Drain, then close the store."""
        await self.aclose()

    async def aclose(self) -> None:
        """Drain for the age grace at most, then close the upstream (if it can be closed), the store and the counters."""
        await self.drain(self._settings.limits.age_grace_s)
        close = getattr(self._upstream, "aclose", None)
        if close is not None:
            await close()
        if self.registry.chains.store is not None:
            await self.registry.chains.store.aclose()
        await self.registry.places.aclose()

    async def drain(self, timeout_s: float | None = None) -> bool:
        """Refuse upgrades (503) and new turns, let running ones end, close all sockets with 1012.

        For pre-stop hooks: servers cut sockets before the lifespan's shutdown.

        Returns:
            Whether all connections have ended within ``timeout_s`` seconds.
        """
        return await self.registry.drain(timeout_s)

    def disconnect(self, tenant: str, reason: str = "disconnected") -> int:
        """End all connections of a tenant with 1008 (a revoked key, for example); return how many there were."""
        return self.registry.disconnect(tenant, reason)

    @property
    def connections(self) -> int:
        """Number of open connections."""
        return len(self.registry.connections)

    @property
    def running_turns(self) -> int:
        """Number of turns in flight."""
        return sum(len(connection.session.running) for connection in self.registry.connections)

    @property
    def history_bytes(self) -> int:
        """Bytes of history kept in the process."""
        return self.registry.ledger.process.used

    @property
    def unsettled(self) -> int:
        """Number of records that settlement has not delivered yet."""
        return 0 if self.registry.settler is None else self.registry.settler.pending

    @property
    def unsettled_s(self) -> float:
        """Age of the oldest of them, in seconds."""
        return 0.0 if self.registry.settler is None else self.registry.settler.oldest_s
