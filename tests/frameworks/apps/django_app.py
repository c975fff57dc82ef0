"""Django without Channels; the key is judged by a decorator of the view, or by a class in `MIDDLEWARE`."""

import json
from collections.abc import Awaitable, Callable

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.utils.decorators import async_only_middleware
from django.views.decorators.csrf import csrf_exempt

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp

View = Callable[[HttpRequest], Awaitable[HttpResponseBase]]

LAYERS = {
    "none": [],
    "key": [f"{__name__}.check_key"],
    "gzip": ["django.middleware.gzip.GZipMiddleware"],
}


async def create_response(request: HttpRequest) -> HttpResponseBase:
    answer = source.answer(json.loads(request.body))
    if isinstance(answer, Whole):
        return JsonResponse(answer.body, status=answer.status, headers=answer.headers)
    return StreamingHttpResponse(answer, content_type=source.EVENT_STREAM)


def check_bearer(view: View) -> View:
    async def judged(request: HttpRequest) -> HttpResponseBase:
        if not source.is_right(request.META.get("HTTP_AUTHORIZATION")):
            return JsonResponse({"error": "The key is wrong."}, status=401)
        return await view(request)

    return judged


check_key = async_only_middleware(check_bearer)

urlpatterns = [
    path(source.PATH[1:], csrf_exempt(create_response)),
    path(source.GUARDED[1:], csrf_exempt(check_bearer(create_response))),
]


def build(layer: source.Layer) -> ASGIApp:
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["127.0.0.1"], SECRET_KEY="secret")
        django.setup()
    settings.MIDDLEWARE = LAYERS[layer]  # read when the handler is made
    api: ASGIApp = get_asgi_application()
    return api
