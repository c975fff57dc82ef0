"""What a server serves, and what it tells of it."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from ws_responses._types import ASGIApp
from ws_responses.middleware import ResponsesWebSocketMiddleware
from ws_responses.serve.chains import open_counters, open_store
from ws_responses.serve.options import ServeOptions


class Served(Struct, frozen=True, kw_only=True):
    """An app, ready to be served.

    Attributes:
        app: The app.
        middleware: What is drained.
        what: What it is, for people.
        forwards: What HTTP requests get, for people.
        credentials: What is shown to the upstream or the backend, for people; None if there is nothing to say.
        model: A name that clients may use; None if that is not known.
        close: Ends what was started for it.
        aclose: Closes in the event loop what the lifespan of the app does not.
    """

    app: ASGIApp
    middleware: ResponsesWebSocketMiddleware
    what: str
    forwards: str
    credentials: str | None
    model: str | None
    close: Callable[[], None] | None = None
    aclose: Callable[[], Awaitable[object]] | None = None


def shared_options(options: ServeOptions) -> dict[str, Any]:
    """Return the options of a middleware that do not concern a wrapped app.

    Raises:
        ConfigurationError: The address of the store is none.
        ImportError: It needs a package that is missing.
    """
    mode = options.mode
    return {
        "store": open_store(options.chains) or "memory",
        "counters": open_counters(options.chains),
        "durable": options.chains.durable,
        "tenant_key": options.chains.tenant_key,
        "path": mode.paths,
        "profile": mode.profile,
        "complete_response": mode.complete_response,
        "open_calls": mode.open_calls,
        "anonymous_tenant": mode.anonymous_tenant,
        "allowed_origins": mode.allowed_origins,
        "on_disconnect": mode.on_disconnect,
        "keepalive_s": mode.keepalive_s,
        "accept_wrapped": mode.accept_wrapped,
        "accept_cancel": mode.accept_cancel,
        "prototype": mode.prototype,
        "limits": mode.limits,
    }
