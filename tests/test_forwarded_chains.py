"""Chains of the mode "forward" that go on from what only the app knows: it made that over plain HTTP, or before a restart."""

import json
from typing import Any

import pytest

from tests.shell import KEY, Shell, code_of, create, id_of
from ws_responses.testing import ScriptedApp


async def made_over_http(shell: Shell, text: str) -> str:
    """Id of a response that the app has made and stored without a socket."""
    body = json.dumps({"model": "m", "input": text, "store": True}).encode()
    answered = b""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        nonlocal answered
        answered += message.get("body", b"")

    headers = [KEY, (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": headers, "query_string": b""}
    await shell.middleware(scope, receive, send)
    return str(json.loads(answered)["id"])


@pytest.mark.parametrize("first", [{}, {"store": False}, {"generate": False}], ids=["stored", "unstored", "warm-up"])
@pytest.mark.parametrize("reconnects", [False, True])
async def test_what_only_the_app_knows_stays_in_a_forwarded_chain(first: dict[str, Any], reconnects: bool) -> None:
    """Whatever was built on it here, and after a reconnect: else the conversation silently loses its beginning."""
    app = ScriptedApp(stateful=True)
    shell = Shell(app, history="forward")
    app_id = await made_over_http(shell, "over http")
    async with shell.socket(KEY) as ws:
        here = id_of(await ws.turn(create("on the socket", previous_response_id=app_id, **first)))
        if not reconnects:
            await ws.turn(create("and on", previous_response_id=here))
    if reconnects:
        async with shell.socket(KEY) as ws:
            events = await ws.turn(create("and on", previous_response_id=here))
            if first.get("store") is False:
                assert code_of(events[-1]) == "previous_response_not_found"
                return
    body = app.requests[-1].body
    inputs = body["input"] if isinstance(body["input"], list) else [{"content": body["input"]}]
    said = [item["content"] for item in inputs if item.get("role", "user") == "user"]
    if first:
        assert (body["previous_response_id"], said) == (app_id, ["on the socket", "and on"])
    else:
        assert (body["previous_response_id"], said) == (here, ["and on"])
