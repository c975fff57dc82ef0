"""Turns of a chain: what the backend is given, what is kept for the next turn, and that warm equals cold."""

import json
from typing import Any

import anyio
import pytest

from tests.engine.schema import assert_turn
from tests.engine.service import (
    CALL,
    END,
    STOP,
    LetterParser,
    LetterRenderer,
    ScriptedService,
    last,
    letters,
    said,
    socket_to,
)
from ws_responses.app import ResponsesApp
from ws_responses.backends import ChatPrompt, Delta, PromptNotAccepted, TokenPrompt, ToolCallDelta
from ws_responses.engine.engine import ResponsesEngine
from ws_responses.errors import ConfigurationError, UpstreamError
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import Answer, RenderSettings, ToolChoice
from ws_responses.routing import SingleRouter
from ws_responses.testing import MemorySocket
from ws_responses.upstreams.base import CurrentTurn

KEY = [(b"authorization", b"Bearer k")]
FIND = {"type": "function", "name": "find", "parameters": {"type": "object"}}
CREATE = {"model": "m", "instructions": "Be brief.", "tools": [FIND]}


def user(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": text}


# --- what the backend is given --------------------------------------------------------------------------------------


async def test_a_backend_for_chat_is_given_the_whole_conversation_with_its_tools() -> None:
    service = ScriptedService()
    service.will([Delta(tool_calls=(ToolCallDelta(index=0, id="call_1", name="find", arguments="{}"),)), STOP])
    async with socket_to(ResponsesEngine(service)) as ws:
        events = await ws.turn({**CREATE, "input": "Look."})
        output = {"type": "function_call_output", "call_id": "call_1", "output": "found"}
        events = await ws.turn({**CREATE, "input": [output], "previous_response_id": last(events)["id"]})
    assert_turn(events)
    prompt = service.prompts[-1]
    assert isinstance(prompt, ChatPrompt)
    assert service.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Look."},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "find", "arguments": "{}"}}],
        },
        {"role": "tool", "tool_call_id": "call_1", "content": "found"},
    ]
    assert json.loads(prompt.tools or b"") == [
        {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
    ]
    assert prompt.tool_choice is None


@pytest.mark.parametrize(
    ("choice", "tool_choice", "offered"),
    [
        ("auto", None, ["find", "files__read"]),
        ("none", "none", ["find", "files__read"]),
        ("required", "required", ["find", "files__read"]),
        (
            {"type": "function", "name": "read"},
            {"type": "function", "function": {"name": "files__read"}},
            ["files__read"],
        ),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "find"}]},
            {"type": "function", "function": {"name": "find"}},
            ["find"],
        ),
        ({"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "find"}]}, None, ["find"]),
    ],
)
async def test_the_choice_of_tools_reaches_the_backend(choice: Any, tool_choice: Any, offered: list[str]) -> None:
    service = ScriptedService()
    tools = [FIND, {"type": "namespace", "name": "files", "description": "d", "tools": [{**FIND, "name": "read"}]}]
    async with socket_to(ResponsesEngine(service)) as ws:
        assert_turn(await ws.turn({"model": "m", "input": "x", "tools": tools, "tool_choice": choice}))
    prompt = service.prompts[-1]
    assert isinstance(prompt, ChatPrompt)
    assert [tool["function"]["name"] for tool in json.loads(prompt.tools or b"[]")] == offered
    assert (None if prompt.tool_choice is None else json.loads(prompt.tool_choice)) == tool_choice


async def test_settings_of_the_request_reach_the_backend() -> None:
    service = ScriptedService()
    schema = {"type": "object", "properties": {}}
    async with socket_to(ResponsesEngine(service, models={"m": "m-2026"})) as ws:
        events = await ws.turn(
            {
                "model": "m",
                "input": "x",
                "max_output_tokens": 64,
                "temperature": 0.5,
                "top_p": 0.9,
                "reasoning": {"effort": "low"},
                "service_tier": "flex",
                "prompt_cache_key": "k",
                "safety_identifier": "u",
                "text": {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}},
            }
        )
    assert_turn(events)
    params, prompt = service.params[-1], service.prompts[-1]
    assert (params.model, params.max_tokens, params.temperature, params.top_p) == ("m-2026", 64, 0.5, 0.9)
    assert (params.reasoning_effort, params.service_tier, params.prompt_cache_key) == ("low", "flex", "k")
    assert (params.user, params.session) == ("u", last(events)["id"])
    assert isinstance(prompt, ChatPrompt)
    assert json.loads(prompt.response_format or b"") == {
        "type": "json_schema",
        "json_schema": {"name": "n", "schema": schema, "strict": True},
    }


async def test_a_session_is_the_conversations_and_a_fork_is_another_one() -> None:
    """A service that keeps a slot for each session would make a fork wait for its source."""
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service)) as ws:
        first = last(await ws.turn({"model": "m", "input": "1"}))["id"]
        second = last(await ws.turn({"model": "m", "input": "2", "previous_response_id": first}))["id"]
        fork = await ws.turn({"model": "m", "input": "3", "previous_response_id": second, "stream_id": "a"})
        await ws.turn({"model": "m", "input": "4", "previous_response_id": second})
    assert [params.session for params in service.params] == [first, first, last(fork)["id"], first]


async def test_a_token_prompt_leaves_room_for_the_answer() -> None:
    """Completions APIs stop after 16 tokens if they are told nothing."""
    service = ScriptedService("tokens", returns_ids=True)
    router = SingleRouter(service, LetterRenderer(), context_window=100, max_output_tokens=80)
    async with socket_to(ResponsesEngine(router=router)) as ws:
        await ws.turn({"model": "m", "input": "x"})
        await ws.turn({"model": "m", "input": "x" * 50})
    assert service.params[0].max_tokens == 80
    assert service.params[1].max_tokens == 100 - len(service.text())


# --- tokens along a chain -------------------------------------------------------------------------------------------


async def test_sampled_ids_are_kept_as_they_were_sampled() -> None:
    """Rendering the text again may give other ids, and so lose the service's prompt cache."""
    service = ScriptedService("tokens", returns_ids=True, form="json")
    sampled = [*letters("Yes"), END, CALL, *letters('find {"a":1}'), END]
    service.will([Delta(token_ids=sampled[:5]), Delta(token_ids=sampled[5:]), STOP])
    renderer = LetterRenderer()
    async with socket_to(ResponsesEngine(service, renderer=renderer)) as ws:
        events = await ws.turn({**CREATE, "input": "hi"})
        before = service.text()
        rendered = renderer.rendered
        call_id = last(events)["output"][1]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "k"}
        await ws.turn({**CREATE, "input": [output], "previous_response_id": last(events)["id"]})
    assert service.text() == before + "".join(map(chr, sampled)) + chr(END) + "o:k" + chr(END) + before[-1]
    assert renderer.rendered - rendered == len("o:k"), "only what is new is rendered"
    assert json.loads(service.prompts[-1].rendered.json_ids()) == letters(service.text())


@pytest.mark.parametrize("lost", ["told", "stopped"])
async def test_an_answer_whose_ids_are_not_all_known_is_rendered_from_its_text(lost: str) -> None:
    """Ids with a gap, kept as sampled, would be another conversation than the one that was shown."""
    service = ScriptedService("tokens", returns_ids=True)
    answer = [CALL, *letters("find {}"), END]
    told = [Delta(token_ids=answer), Delta(ids_lost=True), STOP]
    service.will(told if lost == "told" else [Delta(token_ids=[*answer, *answer])])
    engine = ResponsesEngine(service, renderer=LetterRenderer())
    async with socket_to(engine) as ws:
        events = await ws.turn({**CREATE, "input": "hi", "parallel_tool_calls": False})
        assert_turn(events)
        before = service.text()
        output = {"type": "function_call_output", "call_id": last(events)["output"][0]["call_id"], "output": "k"}
        await ws.turn({**CREATE, "input": [output], "previous_response_id": last(events)["id"]})
    assert service.text() == before[:-1] + f"c:find {{}}{chr(END)}o:k{chr(END)}" + before[-1]
    assert engine.counts.ids_lost == 1


async def test_warm_equals_cold_token_for_token() -> None:
    """What a chain goes on from is what a fresh rendering of its records gives."""
    service = ScriptedService("tokens", returns_ids=True)
    nodes: list[CurrentTurn] = []

    class Watching(ResponsesEngine):
        async def run(self, turn: CurrentTurn, emit: Any) -> None:
            nodes.append(turn)
            await super().run(turn, emit)

    async with socket_to(Watching(service, renderer=LetterRenderer())) as ws:
        parent = None
        for number in range(4):
            service.will([Delta(token_ids=letters(f"answer {number}")), STOP])
            parent = last(await ws.turn({**CREATE, "input": f"{number}?", "previous_response_id": parent}))["id"]
        warm = service.text()
        assert nodes[-1].parent is not None
        nodes[-1].parent.kept = None
        await ws.turn({**CREATE, "input": "3?", "previous_response_id": nodes[-1].parent.id})
    assert nodes[-1].rendering is not None
    assert not nodes[-1].rendering.hit
    assert service.text() == warm


async def test_other_instructions_or_tools_render_the_conversation_anew() -> None:
    service = ScriptedService("tokens", returns_ids=True)
    async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
        parent = last(await ws.turn({**CREATE, "input": "hi"}))["id"]
        await ws.turn({**CREATE, "instructions": "Be long.", "input": "so", "previous_response_id": parent})
    assert service.text().startswith("Be long.[find]" + chr(END) + "u:hi")


# --- warm-up --------------------------------------------------------------------------------------------------------


async def test_a_warm_up_has_the_backend_read_the_prompt_and_keeps_what_was_rendered() -> None:
    service = ScriptedService("tokens", returns_ids=True)
    renderer = LetterRenderer()
    async with socket_to(ResponsesEngine(service, renderer=renderer)) as ws:
        warm = await ws.turn({**CREATE, "input": [user("hi")], "generate": False})
        rendered = renderer.rendered
        events = await ws.turn({**CREATE, "input": [], "previous_response_id": last(warm)["id"]})
    assert last(warm)["output"] == []
    assert_turn(events)
    assert service.prefilled[0].rendered.ids() == service.prompts[0].rendered.ids()
    assert renderer.rendered == rendered, "nothing is rendered twice"
    assert service.params[0].session == last(warm)["id"]


async def test_a_backend_that_fails_fails_no_warm_up() -> None:
    """An error costs Codex its socket and the whole history; the items are kept all the same."""
    service = ScriptedService()
    service.prefill_error = UpstreamError("down", status=503)
    async with socket_to(ResponsesEngine(service)) as ws:
        warm = await ws.turn({**CREATE, "input": [user("hi")], "generate": False})
        assert warm[-1]["type"] == "response.completed"
        assert_turn(await ws.turn({**CREATE, "input": [], "previous_response_id": last(warm)["id"]}))
    assert service.messages()[-1] == {"role": "user", "content": "hi"}


async def test_a_warm_up_is_checked_like_a_turn() -> None:
    service = ScriptedService()
    async with socket_to(ResponsesEngine(service, models=["m"])) as ws:
        events = await ws.turn({"model": "other", "input": "x", "generate": False})
    assert events[-1]["error"]["code"] == "model_not_found"
    assert not service.prefilled


# --- tools that come as items ---------------------------------------------------------------------------------------


def additional(*names: str) -> dict[str, Any]:
    return {"type": "additional_tools", "role": "developer", "tools": [{**FIND, "name": name} for name in names]}


async def test_tools_that_come_as_items_are_offered_from_then_on() -> None:
    """Codex sends its tools so, once, with its warm-up."""
    service = ScriptedService("tokens", returns_ids=True)
    async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
        warm = await ws.turn({"model": "m", "input": [additional("a"), user("hi")], "generate": False})
        first = await ws.turn({"model": "m", "input": [], "previous_response_id": last(warm)["id"]})
        assert service.text().startswith("[a]" + chr(END) + "u:hi")
        second = await ws.turn({"model": "m", "input": "so", "previous_response_id": last(first)["id"]})
        assert service.text().startswith("[a]" + chr(END) + "u:hi")
        third = await ws.turn(
            {"model": "m", "input": [additional("a", "b")], "previous_response_id": last(second)["id"]}
        )
        assert service.text().startswith("[a,b]" + chr(END) + "u:hi")
    assert_turn(third)


async def test_they_are_found_again_where_nothing_was_kept() -> None:
    service = ScriptedService("tokens", returns_ids=True)
    engine = ResponsesEngine(service, renderer=LetterRenderer())
    app = ResponsesApp(engine, authorize="open")
    async with MemorySocket(app, headers=KEY) as ws:
        first = await ws.turn({"model": "m", "input": [additional("a"), user("hi")]})
    async with MemorySocket(app, headers=KEY) as ws:
        await ws.turn({"model": "m", "input": "so", "previous_response_id": last(first)["id"]})
    assert service.text().startswith("[a]" + chr(END) + "u:hi")


async def test_hosted_tools_may_be_left_out() -> None:
    """Codex always sends web_search."""
    service = ScriptedService()
    tools = [{"type": "web_search"}, FIND, {"type": "image_generation"}]
    async with socket_to(ResponsesEngine(service, hosted_tools="drop")) as ws:
        events = await ws.turn({"model": "m", "input": "x", "tools": tools})
        assert_turn(events)
        assert [tool["type"] for tool in last(events)["tools"]] == ["function"], "what is not offered is not repeated"
        assert_turn(await ws.turn({"model": "m", "input": "x", "tools": tools[:1]}))
    prompt = service.prompts[-1]
    assert isinstance(prompt, ChatPrompt)
    assert prompt.tools is None


# --- token ids that are refused -------------------------------------------------------------------------------------


async def test_a_backend_that_refuses_token_ids_is_given_chat_messages_from_then_on() -> None:
    service = ScriptedService("tokens", "chat", returns_ids=True)
    service.will([PromptNotAccepted("no ids")], said("one"), said("two"), said("three"))
    engine = ResponsesEngine(service, renderer=LetterRenderer())
    async with socket_to(engine) as ws:
        first = await ws.turn({**CREATE, "input": "hi"})
        assert_turn(first)
        second = await ws.turn({**CREATE, "input": "so", "previous_response_id": last(first)["id"]})
        assert_turn(second)
        assert_turn(await ws.turn({**CREATE, "input": "another chain"}))
    assert [isinstance(prompt, ChatPrompt) for prompt in service.prompts] == [False, True, True, True]
    assert [message["content"] for message in service.messages(2)] == ["Be brief.", "hi", "one", "so"]
    assert engine.counts.as_chat == 1


async def test_a_warm_up_learns_it_as_well() -> None:
    service = ScriptedService("tokens", "chat")
    service.prefill_error = PromptNotAccepted("no ids")
    async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
        warm = await ws.turn({**CREATE, "input": [user("hi")], "generate": False})
        assert_turn(await ws.turn({**CREATE, "input": [], "previous_response_id": last(warm)["id"]}))
    assert isinstance(service.prompts[0], ChatPrompt)


async def test_a_backend_that_takes_neither_is_an_error() -> None:
    service = ScriptedService("tokens")
    service.will([PromptNotAccepted("This model takes no token ids.")])
    async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
        (error,) = await ws.turn({**CREATE, "input": "hi"})
        assert error["error"]["code"] == "prompt_kind_not_accepted"
        assert_turn(await ws.turn({**CREATE, "input": "hi"}))


async def test_a_call_that_must_come_goes_to_a_backend_that_can_be_held_to_it() -> None:
    """An agent that has to have a call, and gets text, may ask for ever."""
    held = ScriptedService("tokens", constrains=True)
    chat = ScriptedService("tokens", "chat")
    neither = ScriptedService("tokens")
    body = {**CREATE, "input": "x", "tool_choice": "required"}
    for service, chats in ((held, False), (chat, True)):
        async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
            assert_turn(await ws.turn(body))
        assert isinstance(service.prompts[0], ChatPrompt) == chats
    async with socket_to(ResponsesEngine(neither, renderer=LetterRenderer())) as ws:
        events = await ws.turn(body)
    assert (events[0]["type"], events[0]["error"]["param"]) == ("error", "tool_choice")


async def test_a_call_whose_beginning_is_in_the_prompt_needs_no_schema() -> None:
    class Beginning(LetterRenderer):
        def answer(self, state: Rendered, choice: ToolChoice, settings: RenderSettings) -> Answer:
            answer = super().answer(state, choice, settings)
            prefill = (CALL, *letters("find "))
            prompt = answer.prompt.with_tokens(prefill)
            return Answer(prompt=prompt, prefill=prefill, parser=LetterParser(prefill), schema=b"{}")

    service = ScriptedService("tokens", returns_ids=True)
    service.will([Delta(token_ids=[*letters("{}"), END]), STOP])
    async with socket_to(ResponsesEngine(service, renderer=Beginning())) as ws:
        events = await ws.turn({**CREATE, "input": "x", "tool_choice": "required"})
        assert isinstance(service.prompts[0], TokenPrompt)
        assert service.prompts[0].schema is None
        before = service.text()
        call_id = last(events)["output"][0]["call_id"]
        output = {"type": "function_call_output", "call_id": call_id, "output": "k"}
        await ws.turn({**CREATE, "input": [output], "previous_response_id": last(events)["id"]})
    assert "find {}" in service.text()
    assert service.text().startswith(before + "{}"), "the beginning is part of what was sampled"


async def test_a_format_goes_to_a_backend_that_can_be_held_to_it_and_else_is_told() -> None:
    chat, neither = ScriptedService("tokens", "chat"), ScriptedService("tokens")
    body = {**CREATE, "input": "x", "text": {"format": {"type": "json_object"}}}
    for service, kind in ((chat, ChatPrompt), (neither, TokenPrompt)):
        async with socket_to(ResponsesEngine(service, renderer=LetterRenderer())) as ws:
            assert_turn(await ws.turn(body))
        assert isinstance(service.prompts[0], kind)


# --- HTTP -----------------------------------------------------------------------------------------------------------


async def test_the_same_events_come_over_http_and_over_the_socket() -> None:
    service = ScriptedService()
    answer = [Delta(reasoning="Hm"), Delta(text="Yes"), STOP]
    service.will(answer, answer, answer)
    app = ResponsesApp(ResponsesEngine(service, models=["m"]), authorize="open")
    body = {**CREATE, "input": "hi"}
    async with MemorySocket(app, headers=KEY) as ws:
        over_socket = await ws.turn(body)
    status, text = await exchange(app, "POST", "/v1/responses", {**body, "stream": True})
    over_http = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert status == 200
    assert_turn(over_http)
    assert same(over_http) == same(over_socket)
    status, response = await request(app, "POST", "/v1/responses", body)
    assert (status, same([{"response": response}])) == (200, same(over_socket[-1:]))


def same(events: list[dict[str, Any]]) -> Any:
    """Events without what is new each time."""

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            new = {"id", "item_id", "created_at", "completed_at"}
            return {name: plain(member) for name, member in value.items() if name not in new}
        return [plain(entry) for entry in value] if isinstance(value, list) else value

    return [plain(event.get("response", event)) for event in events]


async def request(app: ResponsesApp, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    status, text = await exchange(app, method, path, body)
    return status, json.loads(text)


async def exchange(app: ResponsesApp, method: str, path: str, body: Any) -> tuple[int, str]:
    sent: list[Any] = []
    asked = False

    async def receive() -> Any:
        nonlocal asked
        if asked:
            await anyio.sleep_forever()
        asked = True
        return {"type": "http.request", "body": b"" if body is None else json.dumps(body).encode()}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": KEY,
        "http_version": "1.1",
        "scheme": "http",
        "server": ("test", 80),
        "client": ("test", 1),
        "root_path": "",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
    }
    await app(scope, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]).decode()


async def test_a_stored_response_can_be_had_later_and_one_that_is_not_stored_cannot() -> None:
    service = ScriptedService()
    app = ResponsesApp(ResponsesEngine(service), authorize="open")
    async with MemorySocket(app, headers=KEY) as ws:
        stored = last(await ws.turn({**CREATE, "input": "hi", "metadata": {"a": "b"}}))
        unstored = last(await ws.turn({**CREATE, "input": "hi", "store": False}))
    assert (stored["store"], unstored["store"]) == (True, False)
    assert await request(app, "GET", f"/v1/responses/{stored['id']}") == (200, stored)
    assert (await request(app, "GET", f"/v1/responses/{unstored['id']}"))[0] == 404


# --- the engine itself ----------------------------------------------------------------------------------------------


def test_options_that_contradict_each_other_are_refused() -> None:
    service = ScriptedService()
    router = SingleRouter(ScriptedService("tokens"), LetterRenderer())
    for options in (
        {},
        {"backend": service, "router": router},
        {"router": router, "models": ["m"]},
        {"router": router, "renderer": LetterRenderer()},
        {"backend": service, "hosted_tools": "maybe"},
        {"backend": service, "announce": "never"},
        {"backend": service, "renderer": LetterRenderer()},
        {"backend": service, "models": []},
        {"backend": service, "chat_renderer": LetterRenderer()},
    ):
        with pytest.raises(ConfigurationError):
            ResponsesEngine(**options)  # type: ignore[arg-type] # wrong on purpose


async def test_closing_it_closes_its_parts() -> None:
    service = ScriptedService()
    engine = ResponsesEngine(service)
    await engine.aclose()
    assert service.closed == 1
