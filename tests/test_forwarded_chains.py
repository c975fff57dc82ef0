"""Chains of the mode "forward" that go on from what only the app knows: it made that over plain HTTP, or before a restart."""

import json
from typing import Any

import pytest

from tests.shell import KEY, Shell, code_of, create, error_of, id_of
from ws_responses.testing import ScriptedApp, steps
from ws_responses.testing.steps import Step


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


GONE = {
    "vLLM": steps.status(
        404, {"error": {"message": "Response with id 'resp_app' not found.", "type": "e", "code": 404}}
    ),
    "detail": steps.status(404, {"detail": "Response resp_app not found"}),
    "OGX": steps.event({"type": "error", "error": {"code": "404", "message": "Response 'resp_app' not found"}}),
    "OpenAI": steps.status(
        400,
        {
            "error": {
                "message": "Previous response with id 'resp_app' not found.",
                "type": "invalid_request_error",
                "param": "previous_response_id",
                "code": "previous_response_not_found",
            }
        },
    ),
}


@pytest.mark.parametrize("answer", GONE.values(), ids=GONE)
async def test_an_app_that_has_lost_the_parent_says_so_by_one_code(answer: Step) -> None:
    """By that code clients send the whole conversation again; by any other they give up."""
    app = ScriptedApp()
    async with Shell(app, history="forward").socket(KEY) as ws:
        app.script([answer])
        lost = (await ws.turn(create(previous_response_id="resp_app")))[-1]
        assert (lost["type"], lost["status"], code_of(lost)) == ("error", 400, "previous_response_not_found")
        assert error_of(lost)["param"] == "previous_response_id"
        assert await ws.turn(create())


async def test_the_parents_id_is_told_by_the_name_that_its_client_knows() -> None:
    """What is built here on a response of the app alone goes on from that, by an id that this client has not sent."""
    app = ScriptedApp()
    async with Shell(app, history="forward").socket(KEY) as ws:
        here = id_of(await ws.turn(create(previous_response_id="resp_app", store=False)))
        app.script([GONE["vLLM"]])
        lost = (await ws.turn(create(previous_response_id=here)))[-1]
    assert app.requests[-1].body["previous_response_id"] == "resp_app"
    assert code_of(lost) == "previous_response_not_found"
    assert here in error_of(lost)["message"]


@pytest.mark.parametrize(
    ("answer", "fields"),
    [
        (steps.status(404, {"detail": "The model m does not exist"}), {"previous_response_id": "resp_app"}),
        (steps.status(404, {"detail": "Response resp_app not found"}), {}),
        (steps.status(403, {"detail": "Response resp_app not found"}), {"previous_response_id": "resp_app"}),
    ],
    ids=["other thing", "no parent", "other status"],
)
async def test_what_is_missing_otherwise_keeps_its_code(answer: Step, fields: dict[str, Any]) -> None:
    """Without this a client would send everything again because of a model that is not there."""
    app = ScriptedApp()
    async with Shell(app, history="forward").socket(KEY) as ws:
        app.script([answer])
        assert code_of((await ws.turn(create(**fields)))[-1]) != "previous_response_not_found"
