"""What the pages promise and no other test proves."""

from typing import Any

from tests.shell import Shell, create, id_of
from ws_responses import CurrentTurn
from ws_responses.testing import ScriptedApp


async def test_an_input_that_prepare_gives_replaces_ours() -> None:
    """Without this an app gets two members `input`, and reads the one that was to be replaced."""
    app = ScriptedApp()
    other = [{"type": "message", "role": "user", "content": "other"}]

    def prepare(body: dict[str, Any], turn: CurrentTurn) -> None:
        body["input"] = other

    async with Shell(app, prepare=prepare).socket() as ws:
        first = await ws.turn(create("hi"))
        await ws.turn(create([{"role": "user", "content": "more"}], previous_response_id=id_of(first)))

    assert [request.input for request in app.requests] == [other, other]
    assert [request.raw.count(b'"input":') for request in app.requests] == [1, 1]
