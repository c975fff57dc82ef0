"""What refers to something kept: who is asked for it, and what is refused. The table of ``docs/reference/references.md``."""

import json
from typing import Any

import pytest

from tests.shell import code_of, create, error_of, id_of
from tests.testing.http import post
from ws_responses import ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses._types import ASGIApp
from ws_responses.testing import MemorySocket, ScriptedApp, steps
from ws_responses.testing.backends import ScriptedBackend
from ws_responses.upstreams.bodies import History

KEY = (b"authorization", b"Bearer k")
MODES: list[History] = ["replay", "forward", "turn"]
REFERENCE = {"type": "item_reference", "id": "msg_elsewhere", "of": {"any": [1.0, "é"]}}
COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "sealed"}
OUTPUT = {"type": "function_call_output", "call_id": "call_elsewhere", "output": "18 C"}
USER = {"type": "message", "role": "user", "content": "Go on."}

NAMED: list[dict[str, Any]] = [
    {"conversation": "conv_1"},
    {"conversation": {"id": "conv_1"}},
    {"prompt": {"id": "pmpt_1", "version": "2", "variables": {"city": "Paris"}}},
]


def socket(app: ASGIApp) -> MemorySocket:
    return MemorySocket(app, headers=(KEY,))


def engine(**options: Any) -> ResponsesApp:
    return ResponsesApp(ResponsesEngine(ScriptedBackend()), authorize="open", **options)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("named", NAMED, ids=lambda named: next(iter(named)))
async def test_an_app_is_given_the_name_as_it_came(mode: History, named: dict[str, Any]) -> None:
    """It alone knows what the name stands for; a name that is lost would answer another question."""
    app = ScriptedApp()
    async with socket(ResponsesWebSocketMiddleware(app, history=mode)) as ws:
        events = await ws.turn(create([USER], **named))

    assert events[-1]["type"] == "response.completed"
    body = app.requests[0].body
    assert {name: body[name] for name in named} == named
    assert body["input"] == [USER]
    assert "previous_response_id" not in body


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("item", [REFERENCE, COMPACTION], ids=lambda item: str(item["type"]))
async def test_an_app_is_given_the_item_as_it_came(mode: History, item: dict[str, Any]) -> None:
    """Byte for byte: what the middleware does not look up it does not understand either."""
    app = ScriptedApp()
    async with socket(ResponsesWebSocketMiddleware(app, history=mode)) as ws:
        events = await ws.turn(create([item, USER]))

    assert events[-1]["type"] == "response.completed"
    raw = json.dumps(item)
    assert raw.encode() in app.requests[0].raw


async def test_a_reference_is_replayed_where_it_stood() -> None:
    """Later turns would otherwise lose what it stands for."""
    app = ScriptedApp()
    async with socket(ResponsesWebSocketMiddleware(app)) as ws:
        first = id_of(await ws.turn(create([REFERENCE, USER])))
        await ws.turn(create([USER], previous_response_id=first))

    given = app.requests[1].body["input"]
    assert given[:2] == [REFERENCE, USER]
    assert given[-1] == USER


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "members",
    [{**named, "input": [OUTPUT]} for named in NAMED]
    + [{"input": [REFERENCE, OUTPUT]}, {"input": [COMPACTION, OUTPUT]}],
    ids=["conversation", "conversation-object", "prompt", "item_reference", "compaction"],
)
async def test_outputs_of_calls_that_only_the_app_knows_are_left_to_it(mode: History, members: dict[str, Any]) -> None:
    """The call may stand in what is referred to: a refusal here would break every loop of tool calls that goes on from there."""
    app = ScriptedApp()
    app.script([steps.text("Fine.")])
    async with socket(ResponsesWebSocketMiddleware(app, history=mode)) as ws:
        await ws.turn(create(**members))

    assert app.requests[0].body["input"][-1] == OUTPUT


@pytest.mark.parametrize(("mode", "joined"), [("replay", True), ("turn", False), ("forward", False)])
async def test_a_response_of_a_conversation_is_continued_by_what_went_over_the_socket(
    mode: History, *, joined: bool
) -> None:
    """The conversation is not named to the app again: it would be given the first turn twice."""
    app = ScriptedApp(stateful=True)
    async with socket(ResponsesWebSocketMiddleware(app, history=mode)) as ws:
        first = id_of(await ws.turn(create([USER], conversation="conv_1")))
        await ws.turn(create([USER], previous_response_id=first))

    body = app.requests[1].body
    assert "conversation" not in body
    assert (len(body["input"]) > 1) is joined
    assert body.get("previous_response_id") == (first if mode == "forward" else None)


@pytest.mark.parametrize("kind", ["app", "app by open-responses", "engine", "engine by open-responses"])
@pytest.mark.parametrize("conversation", ["conv_1", {"id": "conv_1"}])
async def test_a_parent_and_a_conversation_exclude_each_other(kind: str, conversation: Any) -> None:
    """Two histories cannot both come before the new items. The turn never ran: the parent can still be continued."""
    options: dict[str, Any] = {"profile": "open-responses"} if "open-responses" in kind else {}
    wrapped = ResponsesWebSocketMiddleware(ScriptedApp(), **options)
    async with socket(wrapped if kind.startswith("app") else engine(**options)) as ws:
        parent = id_of(await ws.turn(create()))
        (refused,) = await ws.turn(create(previous_response_id=parent, conversation=conversation))
        assert (refused["status"], code_of(refused)) == (400, "invalid_request")
        assert error_of(refused)["param"] == "conversation"
        for nothing in ({"conversation": None}, {"prompt": None}):
            events = await ws.turn(create(previous_response_id=parent, **nothing))
            assert events[-1]["type"] == "response.completed"
        events = await ws.turn(create(previous_response_id=None, conversation=None))

    assert events[-1]["type"] == "response.completed"


async def test_over_http_the_engine_refuses_both_as_well() -> None:
    """A client that falls back to HTTP hears the same."""
    body = {"model": "m", "input": "hi", "previous_response_id": "resp_1", "conversation": "conv_1"}
    answer = await post(engine(), body)

    assert answer.status == 400
    assert answer.json()["error"]["param"] == "conversation"


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        (NAMED[0], "unsupported_parameter", "conversation"),
        (NAMED[1], "unsupported_parameter", "conversation"),
        (NAMED[2], "unsupported_parameter", "prompt"),
        ({"input": [REFERENCE, USER]}, "unsupported_input", "input[0].type"),
        ({"input": [COMPACTION, USER]}, "invalid_compaction", "input[0].encrypted_content"),
    ],
    ids=["conversation", "conversation-object", "prompt", "item_reference", "compaction"],
)
async def test_the_engine_refuses_what_it_does_not_keep(members: dict[str, Any], code: str, param: str) -> None:
    """An answer without what was referred to would look right, and be about something else."""
    async with socket(engine()) as ws:
        (refused,) = await ws.turn(create(**members))
        assert (refused["status"], code_of(refused), error_of(refused)["param"]) == (400, code, param)
        events = await ws.turn(create())

    assert events[-1]["type"] == "response.completed"
