"""WebSocket mode for a FastAPI or Starlette app that stays the object to serve, and does not start if a layer could be bypassed.

    api = FastAPI()
    api.add_middleware(CheckKey)
    websocket = add_websocket_mode(api)  # the last of all layers: `uvicorn module:api`

Turns enter the app where this is added. A layer that is added later lies outside of it: it sees a socket, not the turns, and whatever it
checks of requests is not checked of turns. Needs the extra ``starlette``.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any, Final

from ws_responses import ConfigurationError, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp, Receive, Scope, Send
from ws_responses.extras import Extra

with Extra("starlette"):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware

__all__ = ["add_websocket_mode"]

_ADVICE: Final = (
    "call add_websocket_mode() after all of them; or name those that check nobody (CORSMiddleware, for one) in outside="
)


def add_websocket_mode(
    app: Starlette, *, outside: Sequence[type[Any]] = (), **options: Any
) -> ResponsesWebSocketMiddleware:
    """Add the middleware to an app as its outermost layer, and check at the app's start that it is.

    With a layer outside of it that ``outside`` does not name, the app refuses to start (``lifespan.startup.failed``), and where no lifespan is
    run every request and socket fails with a ``ConfigurationError`` that names the layer. What lies around the app itself (another app that mounts
    it, a layer that wraps it) cannot be seen from here.

    Args:
        app: A Starlette or FastAPI app that has not started.
        outside: Classes of layers that may lie outside, because they check nobody.
        options: Those of :class:`~ws_responses.ResponsesWebSocketMiddleware`.

    Returns:
        The middleware: ``drain()``, ``disconnect()``, counters.

    Raises:
        ConfigurationError: An option is wrong.
    """
    inner = _Inner()
    middleware = ResponsesWebSocketMiddleware(inner, **options)
    app.add_middleware(_Layer, host=app, inner=inner, middleware=middleware, outside=tuple(outside))
    return middleware


class _Inner:
    """The layers inside of ours, which the app puts together when it starts."""

    app: ASGIApp

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


class _Layer:
    """The place of the middleware among the app's layers."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: Starlette,
        inner: _Inner,
        middleware: ResponsesWebSocketMiddleware,
        outside: tuple[type[Any], ...],
    ) -> None:
        inner.app = app
        self._middleware = middleware
        later = takewhile(lambda layer: layer.kwargs.get("inner") is not inner, host.user_middleware)
        harmless = frozenset[object]((_Layer, *outside))
        wrong = [_name(layer) for layer in later if not harmless & {layer.cls}]
        self._fault = wrong and f"turns would bypass {', '.join(wrong)}, added after WebSocket mode: {_ADVICE}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._fault:
            await self._middleware(scope, receive, send)
        elif scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.failed", "message": self._fault})
        else:
            raise ConfigurationError(self._fault)


def _name(layer: Middleware) -> str:
    """The name of a layer; of ``@app.middleware("http")``, that of its function."""
    dispatch = layer.kwargs.get("dispatch")
    return str(getattr(dispatch or layer.cls, "__name__", layer.cls))
