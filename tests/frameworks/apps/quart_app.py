"""Quart; the key is judged by a decorator of the view, or by a function of `before_request`."""

from collections.abc import Awaitable, Callable
from typing import Any

from quart import Quart, Response, jsonify, request
from starlette.middleware.gzip import GZipMiddleware

from tests.frameworks import source
from tests.frameworks.source import Whole
from ws_responses._types import ASGIApp


async def create_response() -> Response:
    answer = source.answer(await request.get_json())
    if isinstance(answer, Whole):
        response = jsonify(answer.body)
        response.status_code = answer.status
        response.headers.update(answer.headers)
        return response
    response = Response(answer, content_type=source.EVENT_STREAM)
    response.timeout = None
    return response


def refusal() -> Response | None:
    if source.is_right(request.headers.get("authorization")):
        return None
    response = jsonify({"error": "The key is wrong."})
    response.status_code = 401
    return response


def check_bearer(view: Callable[[], Awaitable[Response]]) -> Callable[[], Awaitable[Response]]:
    async def guarded() -> Response:
        return refusal() or await view()

    return guarded


def build(layer: source.Layer) -> ASGIApp:
    api: Any = Quart(__name__)
    api.add_url_rule(source.PATH, "create", create_response, methods=["POST"])
    api.add_url_rule(source.GUARDED, "guarded", check_bearer(create_response), methods=["POST"])
    if layer == "key":
        api.before_request(refusal)
    return GZipMiddleware(api) if layer == "gzip" else api  # it has none of its own
