"""The engine as an app: HTTP and WebSocket mode on the same code, so that a client's fallback finds the same turns."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, Literal, Protocol

from msgspec import Raw

from ws_responses._types import ASGIApp, Receive, Scope, Send
from ws_responses.compact_http import CompactTurn
from ws_responses.errors import ConfigurationError, InvalidRequest, StoreUnavailable, WireError, excerpt
from ws_responses.extras import Extra
from ws_responses.handshake import Handshake, deny
from ws_responses.http_turn import send_error, send_json
from ws_responses.listing import input_items
from ws_responses.middleware import ResponsesWebSocketMiddleware
from ws_responses.settings import Authorize
from ws_responses.state.node import Record, whole_output
from ws_responses.upstreams.base import Upstream


class ModelsUpstream(Upstream, Protocol):
    """An upstream that knows its models; :class:`~ws_responses.ResponsesEngine` is one.

    One that can compact conversations also has a ``compactor``: an upstream that answers requests for it.
    """

    def models(self, tenant: str) -> list[str]:
        """Return the names that a tenant may use."""
        ...


class ResponseNotFound(InvalidRequest):
    """No stored response of this tenant has the id: unknown, foreign, expired, deleted or never stored."""

    status = 404
    code = "response_not_found"

    def __init__(self, response_id: str) -> None:
        super().__init__(f"Response with id '{excerpt(response_id)}' not found.", param="response_id")


class ModelNotListed(InvalidRequest):
    """There is no such model, or not for this tenant."""

    status = 404
    code = "model_not_found"

    def __init__(self, model: str) -> None:
        super().__init__(f"The model '{excerpt(model)}' does not exist or you do not have access to it.", param="model")


class PathNotFound(InvalidRequest):
    """Nothing is served at this path; paths are matched exactly."""

    status = 404
    code = "not_found"

    def __init__(self) -> None:
        super().__init__("There is nothing at this path.")


class MethodNotAllowed(InvalidRequest):
    """The path is served, but not by this method; the header ``allow`` says by which."""

    status = 405
    code = "method_not_allowed"

    def __init__(self, allowed: Iterable[str]) -> None:
        super().__init__("This method is not served.", headers={"allow": ", ".join(allowed)})


_Serve = Callable[[Scope, Receive, Send], Awaitable[None]]

_OF_WRAPPED_APPS: Final = frozenset(
    {
        "upstream",
        "renderer",
        "router",
        "guard_http",
        "inner_path",
        "history",
        "app_store",
        "drop_fields",
        "prepare",
        "probe",
        "keep_origin",
    }
)


class ResponsesApp:
    """Serve an engine: ``POST`` (JSON and SSE), ``GET``, ``DELETE``, ``input_items``, ``compact``, models, and WebSocket mode.

    Needs the package starlette (extra ``starlette``).

    Args:
        engine: Answers the turns.
        authorize: Judges each request and each turn of a socket; "open" lets everybody in.
        path: Path or paths of the responses resource.
        models_path: Path of the list of models; None for none.
        options: All other options of :class:`~ws_responses.ResponsesWebSocketMiddleware` that do not concern a wrapped app.

    Raises:
        ConfigurationError: An option is wrong, or ``authorize`` is missing.
    """

    def __init__(
        self,
        engine: ModelsUpstream,
        *,
        authorize: Authorize | Literal["open"] | None = None,
        path: str | Sequence[str] = "/v1/responses",
        models_path: str | None = "/v1/models",
        **options: Any,
    ) -> None:
        if authorize is None:
            raise ConfigurationError("give authorize=, or authorize='open' to let everybody in")
        wrong = sorted(_OF_WRAPPED_APPS & options.keys())
        if wrong:
            raise ConfigurationError(f"{', '.join(wrong)}: for wrapped apps; the engine is asked directly")
        self.engine = engine
        self._compactor: Upstream | None = getattr(engine, "compactor", None)
        paths = (path,) if isinstance(path, str) else tuple(path)
        self._app = ResponsesWebSocketMiddleware(
            self._routes(paths, models_path), upstream=engine, authorize=authorize, path=paths, **options
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one ASGI scope."""
        await self._app(scope, receive, send)

    @property
    def middleware(self) -> ResponsesWebSocketMiddleware:
        """The middleware that serves the sockets: ``drain()``, ``disconnect()``, counters."""
        return self._app

    async def aclose(self) -> None:
        """Drain, then close the engine and the store; the lifespan's shutdown does it as well."""
        await self._app.aclose()

    # -- routes ------------------------------------------------------------------------------------------------------

    def _routes(self, paths: Sequence[str], models_path: str | None) -> ASGIApp:
        with Extra("starlette"):
            from starlette.applications import Starlette  # noqa: PLC0415 - optional
            from starlette.routing import Route  # noqa: PLC0415
        endpoints = {
            "": _Endpoint(POST=self._create),
            **({} if self._compactor is None else {"/compact": _Endpoint(POST=self._compact)}),
            "/{response_id}": _Endpoint(GET=self._retrieve, DELETE=self._delete),
            "/{response_id}/input_items": _Endpoint(GET=self._input_items),
        }
        routes = [Route(path + rest, endpoint) for path in paths for rest, endpoint in endpoints.items()]
        if models_path is not None:
            routes += [
                Route(models_path, _Endpoint(GET=self._models)),
                Route(models_path + "/{model:path}", _Endpoint(GET=self._model)),
            ]
        app = Starlette(routes=routes, lifespan=self._lifespan)
        # A redirect would name a host that the client has chosen, and ask for the request, with its key, once more.
        app.router.redirect_slashes = False
        app.router.default = _nothing
        return app

    @asynccontextmanager
    async def _lifespan(self, _: object) -> AsyncGenerator[None]:
        try:
            yield
        finally:
            await self.aclose()

    async def _create(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app.posts.serve(scope, receive, send)

    async def _compact(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app.posts.serve(scope, receive, send, upstream=self._compactor, peer_of=CompactTurn)

    async def _retrieve(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        _, records = await self._stored(scope)
        record = records[-1]
        assert record.response is not None
        await send_json(send, 200, Raw(record.response[:-1] + b',"output":[' + whole_output(records) + b"]}"))

    async def _delete(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        tenant, records = await self._stored(scope)
        response_id = records[-1].id
        if not await self._app.registry.forget(tenant, response_id):
            raise StoreUnavailable
        await send_json(send, 200, {"id": response_id, "object": "response", "deleted": True})

    async def _input_items(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        _, records = await self._stored(scope)
        await send_json(send, 200, input_items(records, scope["query_string"]))

    async def _models(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        guest = await self._app.registry.admission.identify(Handshake(scope))
        await send_json(
            send, 200, {"object": "list", "data": [_model(name) for name in self.engine.models(guest.tenant)]}
        )

    async def _model(self, scope: Scope, receive: Receive, send: Send) -> None:
        del receive
        name: str = scope["path_params"]["model"]
        guest = await self._app.registry.admission.identify(Handshake(scope))
        if name not in self.engine.models(guest.tenant):
            raise ModelNotListed(name)
        await send_json(send, 200, _model(name))

    async def _stored(self, scope: Scope) -> tuple[str, Sequence[Record]]:
        """Return who asks, and the chain of the response asked for.

        Raises:
            ResponseNotFound: There is none, or it is somebody else's.
        """
        response_id: str = scope["path_params"]["response_id"]
        registry = self._app.registry
        guest = await registry.admission.identify(Handshake(scope))
        records = () if guest.anonymous else await registry.chains.records(guest.tenant, response_id)
        if not records or records[-1].response is None:
            raise ResponseNotFound(response_id)
        return guest.tenant, records


class _Endpoint:
    """What is served at one path, by method; what it raises for the client becomes the API's error."""

    def __init__(self, **serve: _Serve) -> None:
        self._serve = serve

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        method = "GET" if scope["method"] == "HEAD" else scope["method"]
        try:
            if method not in self._serve:
                raise MethodNotAllowed(self._serve)
            await self._serve[method](scope, receive, send)
        except WireError as error:
            await send_error(send, error)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer what asks for another path."""
    del receive
    if scope["type"] == "websocket":
        await deny(scope, send, PathNotFound())
    else:
        await send_error(send, PathNotFound())


def _model(name: str) -> Mapping[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "organization"}
