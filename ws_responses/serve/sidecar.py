"""A server elsewhere, with WebSocket mode in front."""

import ssl
from functools import partial

from ws_responses.adapters.proxy import ProxyApp
from ws_responses.command_line import UsageError
from ws_responses.middleware import ResponsesWebSocketMiddleware
from ws_responses.serve.options import ServeOptions, SourceOptions
from ws_responses.serve.served import Served, shared_options

_PREFIX = "/v1"


def sidecar(options: ServeOptions) -> Served:
    """Return the app of ``serve --upstream``.

    Raises:
        ConfigurationError: An option is wrong.
        UsageError: A file cannot be read.
    """
    source, mode = options.source, options.mode
    assert source.upstream is not None
    # The keys of our clients are nothing to the upstream, and must not be handed to it.
    passes = source.api_key is None and not options.listen.keys
    app = ProxyApp(
        source.upstream,
        prefix=_PREFIX,
        api_key=source.api_key,
        credentials="pass" if passes else "drop",
        headers=source.headers,
        forwarded=source.forwarded,
        max_body_bytes=max(mode.limits.max_request_bytes, mode.limits.max_frame_bytes),
        max_requests=source.max_requests,
        silence_timeout_s=source.timeout_s,
        ssl=_authorities(source),
    )
    middleware = ResponsesWebSocketMiddleware(
        app,
        inner_path=f"{_PREFIX}/responses",
        history=mode.history,
        app_store=mode.app_store,
        drop_fields=mode.drop_fields,
        steering=mode.steering,
        probe=mode.probe and passes,
        **shared_options(options),
    )
    return Served(
        app=middleware,
        middleware=middleware,
        what=f"WebSocket mode for {source.upstream}",
        forwards=f"all of {_PREFIX}/ goes to {source.upstream}",
        credentials=_credentials(source, passes=passes),
        model=None,
        aclose=partial(_close, middleware),
    )


async def _close(middleware: ResponsesWebSocketMiddleware) -> None:
    """Close what the lifespan does not: that is the proxy's."""
    registry = middleware.registry
    if registry.chains.store is not None:
        await registry.chains.store.aclose()
    await registry.places.aclose()


def _authorities(source: SourceOptions) -> ssl.SSLContext | bool:
    if source.ca_file is None:
        return True
    try:
        return ssl.create_default_context(cafile=source.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--upstream-ca {source.ca_file}: {error.strerror or error}") from None


def _credentials(source: SourceOptions, *, passes: bool) -> str:
    if source.api_key is not None:
        return "the key given here"
    if any(name.lower() == "authorization" for name in source.headers):
        return "the header given here"
    return "each client's own credentials" if passes else "no credentials"
