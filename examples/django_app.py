"""A Responses API in Django, without Channels.

    uvicorn examples.django_app:application

The last line adds WebSocket mode on the same path; in a project it stands in `asgi.py`.
"""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path
from django.views.decorators.csrf import csrf_exempt

from ws_responses import ResponsesWebSocketMiddleware
from ws_responses.testing import ScriptedModel

model = ScriptedModel()  # your model goes here: a request body in, Responses events out


async def create_response(request: HttpRequest) -> HttpResponseBase:
    body = json.loads(request.body)
    events = model.events(body)
    if body.get("stream"):
        return StreamingHttpResponse(server_sent(events), content_type="text/event-stream")  # async, or nothing streams
    *_, last = events
    return JsonResponse(last["response"])


async def server_sent(events: Iterator[dict[str, Any]]) -> AsyncIterator[str]:
    for event in events:
        yield f"data: {json.dumps(event)}\n\n"


urlpatterns = [path("v1/responses", csrf_exempt(create_response))]  # clients have keys, no cookies
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], DATA_UPLOAD_MAX_MEMORY_SIZE=64 * 1024 * 1024)
application = ResponsesWebSocketMiddleware(get_asgi_application())
