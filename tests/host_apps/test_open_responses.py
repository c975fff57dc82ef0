"""Third-party apps, wrapped for strict clients: what the Open Responses compliance suite says of sockets, said by our own checks."""

import asyncio
from typing import Final

import pytest

from tests.host_apps.matrix import APPS, STRICT
from tests.host_apps.process import KEY, PATH, Server
from ws_responses.conformance.check import Target
from ws_responses.conformance.running import run_checks

pytestmark = [pytest.mark.servers, pytest.mark.timeout(180)]  # the first one starts the app

STATEMENTS: Final = {
    "response",
    "sequential",
    "continuation",
    "reconnect",
    "not-found",
    "eviction",
    "compaction",
}
"""The checks that say what the suite's seven tests of WebSocket mode say (2026-04-24)."""


@pytest.mark.parametrize("place", STRICT)
@pytest.mark.parametrize(
    "server", [app for app in APPS if app.strict], ids=lambda app: app.name, indirect=True, scope="session"
)
def test_what_the_suite_says_of_sockets(server: Server, place: str) -> None:
    """Without this an app that keeps its own books could break the chain, and its objects the schema, behind our back."""
    url = f"ws://127.0.0.1:{server.port}{place}{PATH}"
    target = Target(url=url, api_key=KEY, profile="open-responses", fields={"model": "fake"})
    results = asyncio.run(run_checks(target, only=STATEMENTS))

    expected = dict.fromkeys(STATEMENTS, ("pass", None))
    fails = {name: ("fail", reason) for name, reason in server.app.fails.items()}
    assert {result.name: (result.outcome, result.reason) for result in results} == {**expected, **fails}
