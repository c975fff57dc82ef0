"""The examples do what they say. (`fastapi_app.py` is what the tests of real clients run.)"""

from pathlib import Path

import pytest

from examples import authorize_app, current_turn_app, starlette_app
from tests.shell import answer, code_of, create, error_of, id_of, text_of
from ws_responses._types import ASGIApp
from ws_responses.testing import MemorySocket

EXAMPLES = Path(__file__).parents[2] / "examples"
TOOL = {"type": "function", "name": "get_weather", "parameters": {"type": "object", "properties": {}}}


def socket(app: ASGIApp, key: str = "key-1") -> MemorySocket:
    return MemorySocket(app, headers=[(b"authorization", f"Bearer {key}".encode())])


@pytest.mark.parametrize("name", ["starlette_app", "current_turn_app", "authorize_app"])
def test_an_example_is_short(name: str) -> None:
    """Without this the examples would grow into apps."""
    assert len((EXAMPLES / f"{name}.py").read_text(encoding="utf-8").splitlines()) <= 40


async def test_the_starlette_example_takes_a_tool_loop() -> None:
    async with socket(starlette_app.app) as ws:
        first = await ws.turn(create("Use the tool.", tools=[TOOL]))
        (call,) = first[-1]["response"]["output"]
        last = await ws.turn(create([answer(call["call_id"])], tools=[TOOL], previous_response_id=id_of(first)))

    assert call["name"] == "get_weather"
    assert text_of(last[-1]) == "This answers 3 input items, 1 of them tool outputs."


async def test_the_current_turn_example_is_sent_the_delta_and_knows_the_rest() -> None:
    async with socket(current_turn_app.app) as ws:
        first = await ws.turn(create([{"role": "user", "content": "one"}]))
        second = await ws.turn(create([{"role": "user", "content": "two"}], previous_response_id=id_of(first)))
        current_turn_app.prompts.clear()  # what the handler keeps may go at any time
        third = await ws.turn(create([{"role": "user", "content": "three"}], previous_response_id=id_of(second)))

    assert [text_of(turn[-1]) for turn in (first, second, third)] == [
        "1 items, 1 of them sent.",
        "3 items, 1 of them sent.",
        "5 items, 1 of them sent.",
    ]


async def test_the_authorize_example_refuses_a_bad_key_before_the_upgrade() -> None:
    async with socket(authorize_app.app, "key-4") as ws:
        assert ws.denial is not None
        assert ws.denial.status == 401


async def test_the_authorize_example_judges_the_model_of_each_turn() -> None:
    async with socket(authorize_app.app, "key-3") as ws:
        (refusal,) = await ws.turn(create(model="large"))
        served = await ws.turn(create(model="small"))

    assert (refusal["status"], code_of(refusal), error_of(refusal)["param"]) == (403, "model_not_allowed", "model")
    assert served[-1]["type"] == "response.completed"


async def test_in_the_authorize_example_the_keys_of_a_team_share_its_responses() -> None:
    async with socket(authorize_app.app, "key-1") as ws:
        first = await ws.turn(create(model="small"))
    async with socket(authorize_app.app, "key-2") as ws:
        same_team = await ws.turn(create(model="small", previous_response_id=id_of(first)))
    async with socket(authorize_app.app, "key-3") as ws:
        (other_team,) = await ws.turn(create(model="small", previous_response_id=id_of(first)))

    assert same_team[-1]["type"] == "response.completed"
    assert code_of(other_team) == "previous_response_not_found"
