"""What is wrong with a request is told by its path, before anything is announced, and the next turn is fine."""

import json
from typing import Any

import pytest

from tests.engine.schema import assert_turn
from tests.engine.service import LetterRenderer, ScriptedService, last, socket_to
from ws_responses.engine.choice import parse_choice
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.engine.tools import MAX_TOOLS, parse_tools
from ws_responses.routing import SingleRouter

FIND = {"type": "function", "name": "find"}
IMAGE = {"type": "input_image", "image_url": "https://example.org/a.png"}
FILE = {"type": "input_file", "file_id": "file-1"}


def user(*parts: Any) -> list[Any]:
    return [{"type": "message", "role": "user", "content": list(parts)}]


WRONG: list[tuple[dict[str, Any], str, str]] = [
    # types and ranges
    ({"temperature": 2.5}, "temperature", "invalid_request"),
    ({"temperature": "hot"}, "temperature", "invalid_request"),
    ({"top_p": -0.1}, "top_p", "invalid_request"),
    ({"max_output_tokens": 0}, "max_output_tokens", "invalid_request"),
    ({"max_output_tokens": 1.5}, "max_output_tokens", "invalid_request"),
    ({"max_output_tokens": True}, "max_output_tokens", "invalid_request"),
    ({"max_output_tokens": 51}, "max_output_tokens", "invalid_request"),
    ({"max_tool_calls": 0}, "max_tool_calls", "invalid_request"),
    ({"top_logprobs": 21}, "top_logprobs", "invalid_request"),
    ({"parallel_tool_calls": "yes"}, "parallel_tool_calls", "invalid_request"),
    ({"instructions": ["a"]}, "instructions", "invalid_request"),
    ({"truncation": "some"}, "truncation", "invalid_request"),
    ({"service_tier": "first"}, "service_tier", "invalid_request"),
    ({"reasoning": {"effort": "hard"}}, "reasoning.effort", "invalid_request"),
    ({"reasoning": {"mode": "pro"}}, "reasoning.mode", "invalid_request"),
    ({"reasoning": {"summary": 1}}, "reasoning.summary", "invalid_request"),
    ({"reasoning": "low"}, "reasoning", "invalid_request"),
    ({"text": {"verbosity": "loud"}}, "text.verbosity", "invalid_request"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_request"),
    ({"text": {"format": {"type": "json_schema", "schema": {}}}}, "text.format", "invalid_request"),
    ({"text": {"format": {"type": "json_schema", "name": "a b", "schema": {}}}}, "text.format.name", "invalid_request"),
    ({"text": {"format": {"type": "json_schema", "name": "a", "schema": 1}}}, "text.format.schema", "invalid_request"),
    ({"include": ["everything"]}, "include[0]", "invalid_request"),
    ({"include": "everything"}, "include", "invalid_request"),
    ({"metadata": {"a": 1}}, "metadata[...]", "invalid_request"),
    ({"metadata": {"k" * 65: "v"}}, "metadata", "invalid_request"),
    ({"metadata": {"k": "v" * 513}}, "metadata[...]", "invalid_request"),
    ({"metadata": {str(n): "v" for n in range(17)}}, "metadata", "invalid_request"),
    ({"prompt_cache_key": 1}, "prompt_cache_key", "invalid_request"),
    ({"safety_identifier": "x" * 129}, "safety_identifier", "invalid_request"),
    ({"user": 1}, "user", "invalid_request"),
    # what the engine has not
    ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "unsupported_parameter"),
    ({"context_management": [{"type": "compaction"}] * 2}, "context_management", "invalid_request"),
    ({"context_management": [{"type": "other"}]}, "context_management[0].type", "invalid_request"),
    (
        {"context_management": [{"type": "compaction", "compact_threshold": 999}]},
        "context_management[0].compact_threshold",
        "invalid_request",
    ),
    ({"moderation": {"model": "omni"}}, "moderation", "unsupported_parameter"),
    ({"multi_agent": {"enabled": True}}, "multi_agent", "unsupported_parameter"),
    ({"top_logprobs": 1}, "top_logprobs", "unsupported_parameter"),
    (
        {"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]},
        "include[1]",
        "unsupported_parameter",
    ),
    ({"model": "other"}, "model", "model_not_found"),
    # items
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type", "unsupported_input"),
    ({"input": [{"role": "user", "content": "x"}, {"type": "unheard_of"}]}, "input[1].type", "unsupported_input"),
    ({"input": user(IMAGE)}, "input[0].content[0]", "unsupported_input"),
    ({"input": user({"type": "input_text", "text": "x"}, FILE)}, "input[0].content[1]", "unsupported_input"),
    # tools
    ({"tools": {}}, "tools", "invalid_request"),
    ({"tools": [1]}, "tools[0]", "invalid_request"),
    ({"tools": [{"name": "x"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [FIND, {"type": "web_search"}]}, "tools[1].type", "unsupported_tool"),
    ({"tools": [{"type": "mcp", "server_label": "l"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [{"type": "shell"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [{"type": "local_shell"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [{"type": "apply_patch"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [{"type": "computer_use_preview"}]}, "tools[0].type", "unsupported_tool"),
    ({"tools": [{"type": "function"}]}, "tools[0]", "invalid_request"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name", "invalid_request"),
    ({"tools": [{"type": "function", "name": "x", "parameters": []}]}, "tools[0].parameters", "invalid_request"),
    ({"tools": [{"type": "custom", "name": "x", "format": 1}]}, "tools[0].format", "invalid_request"),
    ({"tools": [FIND, FIND]}, "tools", "invalid_request"),
    (
        {"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "mcp"}]}]},
        "tools[0].tools[0].type",
        "invalid_request",
    ),
    ({"tools": [{"type": "namespace", "name": "", "tools": []}]}, "tools[0].name", "invalid_request"),
    ({"tools": [{**FIND, "name": str(n)} for n in range(MAX_TOOLS + 1)]}, "tools", "invalid_request"),
    # tool_choice
    ({"tool_choice": "maybe"}, "tool_choice", "invalid_request"),
    ({"tool_choice": "required"}, "tool_choice", "invalid_request"),
    ({"tool_choice": {"name": "find"}, "tools": [FIND]}, "tool_choice", "invalid_request"),
    ({"tool_choice": {"type": "function"}, "tools": [FIND]}, "tool_choice.name", "invalid_request"),
    ({"tool_choice": {"type": "function", "name": "x"}, "tools": [FIND]}, "tool_choice.name", "invalid_request"),
    ({"tool_choice": {"type": "custom", "name": "find"}, "tools": [FIND]}, "tool_choice.name", "invalid_request"),
    ({"tool_choice": {"type": "file_search"}, "tools": [FIND]}, "tool_choice.type", "invalid_request"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}}, "tool_choice.tools", "invalid_request"),
    (
        {"tool_choice": {"type": "allowed_tools", "tools": [FIND, {"type": "mcp"}]}, "tools": [FIND]},
        "tool_choice.tools[1].type",
        "invalid_request",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [FIND]}},
        "tool_choice.mode",
        "invalid_request",
    ),
]


def engine_for(service: ScriptedService) -> ResponsesEngine:
    router = SingleRouter(service, LetterRenderer(), models=["m"], max_output_tokens=50)
    return ResponsesEngine(router=router)


@pytest.mark.parametrize(
    ("wrong", "param", "code"), WRONG, ids=[f"{param}-{n}" for n, (_, param, _) in enumerate(WRONG)]
)
async def test_what_is_wrong_is_named_by_its_path(wrong: dict[str, Any], param: str, code: str) -> None:
    service = ScriptedService("tokens", returns_ids=True)
    async with socket_to(engine_for(service)) as ws:
        events = await ws.turn({"model": "m", "input": "x", **wrong})
        assert [event["type"] for event in events] == ["error"], "nothing was announced"
        error = events[0]["error"]
        assert (events[0]["status"], error["type"]) == (400, "invalid_request_error")
        assert (error["param"], error["code"]) == (param, code)
        assert not service.prompts
        assert_turn(await ws.turn({"model": "m", "input": "x"}))


async def test_tools_of_unsupported_types_are_named() -> None:
    async with socket_to(engine_for(ScriptedService("tokens"))) as ws:
        for kind in ("web_search", "code_interpreter", "mcp", "computer", "local_shell"):
            events = await ws.turn({"model": "m", "input": "x", "tools": [{"type": kind}]})
            assert f"'{kind}'" in events[0]["error"]["message"]


async def test_a_model_must_be_named_unless_there_is_just_one() -> None:
    async with socket_to(engine_for(ScriptedService("tokens"))) as ws:
        events = await ws.turn({"input": "x"})
        assert_turn(events)
        assert last(events)["model"] == "m"
    async with socket_to(ResponsesEngine(ScriptedService())) as ws:
        events = await ws.turn({"input": "x"})
        assert (events[0]["status"], events[0]["error"]["param"]) == (400, "model")


# --- what is right --------------------------------------------------------------------------------------------------

ECHOED: dict[str, Any] = {
    "instructions": "Be brief.",
    "max_output_tokens": 50,
    "max_tool_calls": 3,
    "metadata": {"k" * 64: "v" * 512},
    "parallel_tool_calls": False,
    "prompt_cache_key": "key",
    "reasoning": {"effort": "low", "summary": "auto"},
    "safety_identifier": "x" * 128,
    "service_tier": "flex",
    "temperature": 2,
    "text": {"format": {"type": "json_object"}, "verbosity": "low"},
    "tool_choice": {"type": "function", "name": "find"},
    "top_p": 0,
    "truncation": "auto",
    "user": "u",
}


async def test_response_objects_repeat_the_request() -> None:
    service = ScriptedService("chat")
    async with socket_to(ResponsesEngine(service)) as ws:
        events = await ws.turn({"model": "m", "input": "x", "tools": [FIND], **ECHOED})
    assert_turn(events)
    for event in (events[0], events[1], events[-1]):
        response = event["response"]
        assert {name: response[name] for name in ECHOED} == ECHOED
        assert response["tools"] == [{"description": None, "parameters": None, "strict": None, **FIND}]


NOTHING = dict.fromkeys(
    (
        *ECHOED,
        "tools",
        "include",
        "top_logprobs",
        "conversation",
        "prompt",
        "context_management",
        "previous_response_id",
    )
)


@pytest.mark.parametrize(
    "body",
    [
        {},
        NOTHING,
        {"text": {"format": None}},
        {"reasoning": {}},
        {"text": {"format": {"type": "text"}}, "metadata": {}},
    ],
)
async def test_null_is_the_same_as_absent(body: dict[str, Any]) -> None:
    async with socket_to(ResponsesEngine(ScriptedService())) as ws:
        events = await ws.turn({"model": "m", "input": "x", **body})
    assert_turn(events)
    response = last(events)
    assert response["temperature"] == response["top_p"] == 1.0
    assert (response["tool_choice"], response["tools"]) == ("auto", [])
    assert response["text"] == {"format": {"type": "text"}}
    assert response["metadata"] == {}


async def test_members_that_nobody_knows_are_ignored() -> None:
    body = {
        "client_metadata": {"x-codex-turn-state": "x"},
        "prompt_cache_retention": "24h",
        "prompt_cache_options": {"mode": "implicit"},
        "include": ["reasoning.encrypted_content", "web_search_call.action.sources"],
        "stream": True,
        "nobody_knows": [1],
    }
    async with socket_to(ResponsesEngine(ScriptedService())) as ws:
        assert_turn(await ws.turn({"model": "m", "input": "x", **body}))


# --- tools ----------------------------------------------------------------------------------------------------------


def offered(*tools: Any, hosted: Any = "refuse") -> list[tuple[str, str]]:
    return [(tool.kind, tool.wire_name) for tool in parse_tools(json.dumps(tools).encode(), hosted).tools.tools]


def test_tools_are_flattened_in_their_order() -> None:
    custom = {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}
    inside = {"type": "namespace", "name": "n", "description": "d", "tools": [custom, FIND]}
    assert offered(FIND, inside, custom) == [
        ("function", "find"),
        ("custom", "n__patch"),
        ("function", "n__find"),
        ("custom", "patch"),
    ]


def test_dropping_leaves_out_only_what_the_service_would_run() -> None:
    assert offered({"type": "web_search"}, FIND, {"type": "mcp"}, hosted="drop") == [("function", "find")]


def test_a_choice_finds_a_tool_in_a_namespace_by_its_name_if_it_is_the_only_one() -> None:
    def choose(*tools: Any, **choice: Any) -> tuple[str, ...] | None:
        raw = json.dumps({"type": "function", "name": "find", **choice}).encode()
        return parse_choice(raw, parse_tools(json.dumps(tools).encode(), "refuse").tools).names

    one = {"type": "namespace", "name": "a", "tools": [FIND]}
    two = {"type": "namespace", "name": "b", "tools": [FIND]}
    assert choose(one) == ("a__find",)
    assert choose(one, FIND) == ("find",)
    assert choose(one, two, namespace="b") == ("b__find",)
    with pytest.raises(Exception, match="not among"):
        choose(one, two)
