"""WebSocket mode for a Django project, in ``asgi.py``, with a look at the settings that turns stumble over.

    application = get_responses_application()

Channels is not needed. Needs Django, of which there is no extra: whoever has a project has it.
"""

# Django has no types.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false, reportUnknownMemberType=false, reportUnknownArgumentType=false

import warnings
from collections.abc import Iterator
from typing import Any, Final

from ws_responses import ConfigurationError, Limits, ResponsesWebSocketMiddleware
from ws_responses.extras import Extra

with Extra("django", how="pip install django"):
    from django.conf import settings
    from django.core.asgi import get_asgi_application
    from django.urls import Resolver404, resolve

__all__ = ["get_responses_application"]

_CSRF: Final = "django.middleware.csrf.CsrfViewMiddleware"


def get_responses_application(**options: Any) -> ResponsesWebSocketMiddleware:
    """Return ``django.core.asgi.get_asgi_application()`` in WebSocket mode, when the project's settings suit that.

    Warns where turns will fail: of a body limit below ours, as agents get there; and of a view that asks POSTs for a token against forgery, which
    clients with keys do not have. Call it where ``get_asgi_application()`` stands: Django is set up by it.

    Args:
        options: Those of :class:`~ws_responses.ResponsesWebSocketMiddleware`.

    Raises:
        ConfigurationError: An option is wrong; the middleware stands in ``MIDDLEWARE``, where it never sees a socket; or no view is at the path.
    """
    ours = f"{ResponsesWebSocketMiddleware.__module__.partition('.')[0]}."
    if any(name.startswith(ours) for name in settings.MIDDLEWARE):
        raise ConfigurationError("MIDDLEWARE is for requests and never sees a socket: take ws_responses out of it")
    application = ResponsesWebSocketMiddleware(get_asgi_application(), **options)
    limits = options.get("limits") or Limits()
    for warning in (*_of_the_body(limits.max_request_bytes), *_of_the_views(_paths(**options))):
        warnings.warn(warning, stacklevel=2)
    return application


def _paths(path: Any = "/v1/responses", inner_path: str | None = None, **_: Any) -> tuple[str, ...]:
    if inner_path is not None:
        return (inner_path,)
    return (path,) if isinstance(path, str) else tuple(path)


def _of_the_body(most: int) -> Iterator[str]:
    allowed: int | None = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    if allowed is not None and allowed < most:
        yield (
            f"DATA_UPLOAD_MAX_MEMORY_SIZE is {allowed}: longer conversations get 400. Set it to {most} (Limits.max_request_bytes), or take "
            'history="turn"'
        )


def _of_the_views(paths: tuple[str, ...]) -> Iterator[str]:
    for path in paths:
        try:
            view = resolve(path).func
        except Resolver404:
            raise ConfigurationError(f"no view is at {path}, where turns are posted") from None
        if _CSRF in settings.MIDDLEWARE and not getattr(view, "csrf_exempt", False):
            yield f"the view at {path} is not csrf_exempt: turns of clients without a token get 403"
