"""A Django project whose settings do not suit turns says so when it starts."""
# ruff: noqa: E402 - the package is optional

import json
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import require

require("django")

import django
from django.conf import settings
from django.http import HttpRequest, JsonResponse
from django.test.utils import override_settings
from django.urls import path
from django.utils.functional import empty
from django.views.decorators.csrf import csrf_exempt

from ws_responses import ConfigurationError, Limits
from ws_responses.adapters.django import get_responses_application
from ws_responses.testing import MemorySocket, ScriptedModel

CSRF = "django.middleware.csrf.CsrfViewMiddleware"
ROOMY = 64 * 1024 * 1024


def answer(request: HttpRequest) -> JsonResponse:
    *_, last = ScriptedModel().events(json.loads(request.body))
    return JsonResponse(last["response"])


urlpatterns = [path("v1/responses", csrf_exempt(answer)), path("guarded", answer)]


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Django stands on asyncio."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    """A project that suits, whichever other one has been set up in this process."""
    others = settings._wrapped
    unset: Any = empty  # examples and other tests have projects of their own in this process
    settings._wrapped = unset
    settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], MIDDLEWARE=[CSRF], DATA_UPLOAD_MAX_MEMORY_SIZE=ROOMY)
    django.setup()
    yield
    settings._wrapped = others


async def test_a_project_that_suits_serves_turns_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        application = get_responses_application()

    async with MemorySocket(application) as ws:
        *_, last = await ws.turn({"model": "m", "input": "hi"})
    assert last["type"] == "response.completed"


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"DATA_UPLOAD_MAX_MEMORY_SIZE": 2_621_440}, {}, "DATA_UPLOAD_MAX_MEMORY_SIZE is 2621440"),
        ({}, {"path": "/guarded"}, "/guarded is not csrf_exempt"),
        ({}, {"path": ["/a", "/b"], "inner_path": "/guarded"}, "/guarded is not csrf_exempt"),
    ],
    ids=["body", "csrf", "inner-path"],
)
def test_settings_on_which_turns_fail_are_warned_of(
    changed: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    """Without this an operator hears of it from agents, by 400 and 403, days later."""
    with override_settings(**changed), pytest.warns(UserWarning, match=words):
        get_responses_application(**options)


@pytest.mark.parametrize(
    ("changed", "options"),
    [
        ({"DATA_UPLOAD_MAX_MEMORY_SIZE": None}, {}),
        ({"DATA_UPLOAD_MAX_MEMORY_SIZE": 1000}, {"limits": Limits(max_frame_bytes=1000, max_request_bytes=1000)}),
        ({"MIDDLEWARE": []}, {"path": "/guarded"}),
    ],
    ids=["no-limit", "lower-limit", "no-csrf"],
)
def test_settings_that_suit_are_not_warned_of(changed: dict[str, Any], options: dict[str, Any]) -> None:
    """Without this the warnings would be noise, and be switched off."""
    with override_settings(**changed), warnings.catch_warnings():
        warnings.simplefilter("error")
        get_responses_application(**options)


def test_a_path_without_a_view_is_refused() -> None:
    """Without this each turn would end in a 404."""
    with pytest.raises(ConfigurationError, match="no view is at /v2/responses"):
        get_responses_application(path="/v2/responses")


def test_a_place_in_the_middleware_setting_is_refused() -> None:
    """Without this somebody waits for sockets in a place that never sees one."""
    with (
        override_settings(MIDDLEWARE=["ws_responses.ResponsesWebSocketMiddleware"]),
        pytest.raises(ConfigurationError, match="MIDDLEWARE"),
    ):
        get_responses_application()
