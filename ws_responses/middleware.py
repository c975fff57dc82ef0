"""The middleware: guards an upgrade, then hands the socket to a connection."""

import logging
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Literal, Self

import anyio

from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.clock import Clock, MonotonicClock
from ws_responses.connection import Connection
from ws_responses.counters import TenantCounters
from ws_responses.errors import ConfigurationError, Forbidden, Refused, WireError
from ws_responses.handshake import Handshake, deny, deny_with
from ws_responses.http_turn import HttpTurn, read_body, send_error
from ws_responses.instrumentation import ConnectionDenied, Hook, Reporter
from ws_responses.limits import Limits
from ws_responses.probe import AppRefusal, ask_app
from ws_responses.protocol.profiles import Profile
from ws_responses.quota import Quota
from ws_responses.registry import Guest, Registry, Seat
from ws_responses.rendering.renderer import Renderer
from ws_responses.routing import Router
from ws_responses.safety import Safety
from ws_responses.settings import Authorize, HandshakeHeaders, OnClose, Settings, TenantOf
from ws_responses.settlement import Settlement
from ws_responses.state.store import InProcessStore, ResponseStore
from ws_responses.upstreams.asgi import AsgiUpstream
from ws_responses.upstreams.base import Upstream
from ws_responses.upstreams.bodies import AppStore, Bodies, History, Prepare
from ws_responses.upstreams.scope import InnerScope, route_path
from ws_responses.validation import OpenCalls

logger = logging.getLogger("ws_responses.connection")


class _InnerScopeOf:
    """Makes the source of a connection's inner scopes; a ``partial`` for each idle connection would take three times the memory."""

    __slots__ = ("_inner_path", "_keep_origin", "_scope")

    def __init__(self, scope: Scope, keep_origin: bool, inner_path: str | None = None) -> None:  # noqa: FBT001 - ours
        self._scope = scope
        self._keep_origin = keep_origin
        self._inner_path = inner_path

    def __call__(self) -> InnerScope:
        return InnerScope(self._scope, inner_path=self._inner_path, keep_origin=self._keep_origin)


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
        renderer: Renderer | None = None,
        router: Router | None = None,
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
        safety: Safety | None = None,
        settlement: Settlement | None = None,
        guard_http: bool = True,
        clock: Clock | None = None,
    ) -> None:
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
        self.app = app
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
        make_bodies = partial(
            Bodies,
            app_store=app_store,
            drop_fields=settings.drop_fields,
            prepare=prepare,
            max_bytes=settings.limits.max_request_bytes,
        )
        self._bodies = make_bodies(history)
        # Over HTTP an id may be the app's own: what is not known here is left to it.
        self._http_bodies = make_bodies("forward")
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
            await self._serve(scope, receive, send)
        elif kind == "http" and self._guards_http and scope["method"] == "POST" and self._is_create(scope):
            await self._guard_post(scope, receive, send)
        elif kind == "http" and scope["method"] == "DELETE" and self._deleted_id(scope) is not None:
            await self.app(scope, receive, self._watch_delete(scope, send))
        else:
            await self.app(scope, receive, send)

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
        if self.registry.store is not None:
            await self.registry.store.aclose()
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

    # -- an upgrade --------------------------------------------------------------------------------------------------

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        handshake = Handshake(scope)
        settings = self._settings
        inner = _InnerScopeOf(handshake.scope, settings.keep_origin, settings.inner_path)
        with self.registry.seat() as seat:
            try:
                self._guard(handshake)
                guest = await self._admit(handshake, inner, seat)
            except AppRefusal as refusal:
                self._report_denial(scope, refusal.status, refusal.code)
                with suppress(OSError):  # the client has gone meanwhile
                    await deny_with(scope, send, refusal.status, refusal.raw_headers, refusal.body)
            except Refused as refusal:
                self._report_denial(scope, refusal.status, refusal.code)
                with suppress(OSError):
                    await deny(scope, send, refusal)
            else:
                connection = await self._accept(handshake, inner, receive, send, guest)
                del guest, inner  # what this frame names stays as long as the socket
                if connection is not None:
                    await connection.run()

    async def _admit(self, handshake: Handshake, inner: Callable[[], InnerScope], seat: Seat) -> Guest:
        """Judge an upgrade, the cheap checks first.

        Raises:
            Refused: It is turned away.
        """
        guest = await self.registry.admit(handshake, seat)
        if self._settings.probe:
            await ask_app(self.app, inner(), self._settings.clock, self._settings.limits.probe_timeout_s)
        seat.confirm()
        return guest

    async def _accept(
        self, handshake: Handshake, inner: Callable[[], InnerScope], receive: Receive, send: Send, guest: Guest
    ) -> Connection | None:
        connection = self._connect(handshake, receive, send, guest, inner)
        try:
            await send({"type": "websocket.accept", "headers": self._accept_headers(handshake)})
        except OSError:
            logger.debug("a client left before its upgrade was accepted")
            return None
        return connection

    def _connect(
        self,
        handshake: Handshake,
        receive: Receive,
        send: Send,
        guest: Guest,
        inner: Callable[[], InnerScope],
        upstream: Upstream | None = None,
        *,
        in_whole: bool = False,
    ) -> Connection:
        by_app = self._upstream is None and handshake.scope["type"] == "http"
        bodies = self._http_bodies if by_app else self._bodies
        upstream = upstream or self._upstream or AsgiUpstream(self.app, inner, bodies, self._settings.limits)
        return Connection(
            self.registry,
            handshake,
            receive,
            send,
            tenant=guest.tenant,
            anonymous=guest.anonymous,
            principal=guest.principal,
            upstream=upstream,
            history="forward" if by_app else self._settings.history,
            in_whole=in_whole,
        )

    def _accept_headers(self, handshake: Handshake) -> list[tuple[bytes, bytes]]:
        if self._settings.handshake_headers is None:
            return []
        try:
            given = self._settings.handshake_headers(handshake)
            return [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in given]
        except Exception:
            logger.exception("handshake_headers raised; the socket is accepted without them")
            return []

    def _guard(self, handshake: Handshake) -> None:
        if not self._settings.enabled:
            raise Refused(
                "WebSocket mode is not available here; use HTTP.",
                status=426,
                code="upgrade_required",
                headers={"connection": "close"},
            )
        if not handshake.origin_allowed(self._settings.allowed_origins):
            raise Forbidden("This origin may not open a connection.", code="origin_not_allowed")

    def _report_denial(self, scope: Scope, status: int, code: str) -> None:
        self.registry.reporter.report(ConnectionDenied(path=scope["path"], status=status, code=code))

    # -- a turn over HTTP --------------------------------------------------------------------------------------------

    async def serve_post(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        *,
        upstream: Upstream | None = None,
        peer_of: Callable[[bytes, Receive, Send], HttpTurn] = HttpTurn,
    ) -> None:
        """Answer a POST as a connection of one create, so that both ways run on the same code (for ``ResponsesApp``).

        Args:
            scope: Of the request.
            receive: Likewise.
            send: Likewise.
            upstream: Answers it, if another one than usually does.
            peer_of: Makes the connection's peer: of the body, and the request.

        Raises:
            WireError: The request is turned away; nothing has been sent.
        """
        handshake = Handshake(scope)
        inner = _InnerScopeOf(handshake.scope, self._settings.keep_origin)
        with self.registry.seat() as seat:
            # Who may not come in is told so before the body is read.
            guest = await self.registry.admit(handshake, seat)
            body = await read_body(scope, receive, self._settings.limits, self._settings.clock)
            if body is None:
                return
            peer = peer_of(body, receive, send)
            del body
            seat.confirm()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(peer.watch)
                connection = self._connect(
                    handshake, peer.receive, peer.send, guest, inner, upstream, in_whole=peer.in_whole
                )
                await connection.run()
                tasks.cancel_scope.cancel()

    async def _guard_post(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self.serve_post(scope, receive, send)
        except WireError as error:
            await send_error(send, error)

    def _is_create(self, scope: Scope) -> bool:
        paths = (*self._settings.paths, self._settings.inner_path or "")
        return _plain_path(route_path(scope)) in map(_plain_path, paths)

    # -- DELETE ------------------------------------------------------------------------------------------------------

    def _deleted_id(self, scope: Scope) -> str | None:
        base, _, response_id = route_path(scope).rpartition("/")
        paths = (*self._settings.paths, self._settings.inner_path)
        return response_id if response_id and base in paths else None

    def _watch_delete(self, scope: Scope, send: Send) -> Send:
        """Drop an id here as well when the app says that it is deleted, before the client hears of it."""

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and 200 <= message["status"] < 300:
                await self._forget(scope)
            await send(message)

        return watch

    async def _forget(self, scope: Scope) -> None:
        response_id = self._deleted_id(scope)
        handshake = Handshake(scope)
        try:
            guest = await self.registry.identify(handshake)
        except Refused:
            return  # not ours to judge: the app has let it pass, but we do not know who it is
        if response_id is not None:
            await self.registry.forget(guest.tenant, response_id)


def _plain_path(path: str) -> str:
    """Return a path without needless slashes: some routers take one with them for the same, which must be no way round."""
    return "/".join(filter(None, path.split("/")))
