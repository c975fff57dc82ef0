"""State, continuation, warm-up, compaction: what other servers lost, kept too long, or kept twice."""

import gc
import json
import logging
import tracemalloc
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tests.known_faults.talk import (
    KEY,
    NOT_FOUND,
    TENANT_KEY,
    create,
    endings,
    failure,
    follow,
    id_of,
    kinds,
    response,
    said,
    sse,
)
from ws_responses import Limits, ResponsesWebSocketMiddleware, current_turn
from ws_responses._types import Receive, Scope, Send
from ws_responses.instrumentation import Fact, NodeDropped
from ws_responses.protocol import calls, items
from ws_responses.state.node import Record
from ws_responses.state.store import StoreKey
from ws_responses.testing import MemorySocket, ScriptedApp, steps
from ws_responses.testing.builder import CALL_KINDS, CallKind
from ws_responses.testing.strategies import answer_to

KIB = 1024


class Ledger:
    """A response store that keeps nothing, but notes what it was given."""

    def __init__(self) -> None:
        self.appended: list[str] = []

    async def append(self, key: StoreKey, record: Record, parent: StoreKey | None, ttl_s: float) -> None:
        self.appended.append(key.response_id)

    async def load(self, key: StoreKey) -> Sequence[Record]:
        return ()

    async def delete(self, key: StoreKey) -> None:
        raise AssertionError("nothing was deleted")

    async def aclose(self) -> None:
        return


# -- chains and their end ------------------------------------------------------------------------------------------------


@pytest.mark.fault("B091")
async def test_a_client_that_lost_its_parent_by_a_reconnect_starts_anew_on_the_same_socket() -> None:
    """Another code, or a closed socket, and clients would loop on the lost id."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app)
    async with MemorySocket(middleware, headers=KEY) as first:
        lost = await first.turn(create(store=False))
    async with MemorySocket(middleware, headers=KEY) as second:
        refused = await second.turn(follow(lost, input=[said("more")], store=False))
        whole = [said("hi"), *response(lost)["output"], said("more")]
        again = await second.turn(create(input=whole, store=False))
        after = await second.turn(follow(again, input=[said("and more")], store=False))

    assert failure(refused) == NOT_FOUND
    assert response(again)["status"] == response(after)["status"] == "completed"
    assert [request.input for request in app.requests[1:]] == [
        whole,
        [*whole, *response(again)["output"], said("and more")],
    ]


FAILURES = {
    "500": [steps.status(500)],
    "429": [steps.status(429)],
    "response.failed": [steps.created(), steps.fail()],
    "error event": [steps.created(), steps.event({"type": "error", "message": "no", "code": "x", "param": None})],
    "truncated": [steps.text("a"), steps.truncate(3)],
    "raised": [steps.raise_error(RuntimeError("boom"), after="before")],
}


@pytest.mark.fault("B092")
@pytest.mark.parametrize("how", FAILURES)
async def test_a_failed_continuation_makes_its_parent_unusable(how: str) -> None:
    """Else a client would go on from a state that the service has given up."""
    app = ScriptedApp()
    app.script([], FAILURES[how])
    async with MemorySocket(ResponsesWebSocketMiddleware(app), headers=KEY) as ws:
        parent = await ws.turn(create(store=False))
        failed = await ws.turn(follow(parent, store=False))
        gone = await ws.turn(follow(parent, store=False))

    assert failed[-1]["type"] in {"error", "response.failed"}
    assert failure(gone) == NOT_FOUND
    assert len(app.requests) == 2


@pytest.mark.fault("B092")
@pytest.mark.parametrize(
    "wrong",
    [
        {"input": [{"type": "function_call_output", "call_id": "call_none", "output": ""}]},
        {"input": [{"type": "function_call_output", "output": ""}]},
        {"input": [7]},
        {"store": True},
    ],
    ids=["unknown call", "no call", "no item", "store transition"],
)
async def test_a_continuation_that_is_refused_by_its_content_makes_its_parent_unusable_too(
    wrong: dict[str, Any],
) -> None:
    """Every same-lane continuation that ran and got a 4xx evicts (guide, state), not only the app's own answers."""
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp()), headers=KEY) as ws:
        parent = await ws.turn(create(store=False))
        refused = await ws.turn(follow(parent, **{"store": False, **wrong}))
        gone = await ws.turn(follow(parent, store=False))

    assert failure(refused)[0] == 400
    assert failure(gone) == NOT_FOUND


@pytest.mark.fault("B092")
async def test_a_stored_parent_of_a_failed_continuation_comes_back_from_the_store() -> None:
    """With ``store: true`` an eviction costs the fast path only."""
    app = ScriptedApp()
    app.script([], FAILURES["500"])
    async with MemorySocket(ResponsesWebSocketMiddleware(app), headers=KEY) as ws:
        parent = await ws.turn(create(store=True))
        await ws.turn(follow(parent, store=True))
        again = await ws.turn(follow(parent, input=[said("more")], store=True))

    assert response(again)["status"] == "completed"
    assert app.requests[-1].input == [said("hi"), *response(parent)["output"], said("more")]


@pytest.mark.fault("B093")
async def test_a_create_that_never_ran_evicts_nothing() -> None:
    """A 429 of the queue says nothing about the parent: evicting it would end a healthy chain."""
    app = ScriptedApp()
    app.script([], [steps.created(), steps.stall()])
    limits = Limits(max_queued_creates=0)
    async with MemorySocket(ResponsesWebSocketMiddleware(app, limits=limits), headers=KEY) as ws:
        parent = await ws.turn(create(store=False))
        await ws.send_json({"type": "response.create", **create(store=False)})
        await app.wait_requests(2)
        refused = await ws.turn(follow(parent, store=False))
        while refused[-1]["type"] != "error":
            refused = [await ws.receive_json()]
        going_on = await ws.turn(follow(parent, store=False, stream_id="other"))

    assert failure(refused[-1:])[:2] == (429, "websocket_queue_full")
    assert response(going_on)["status"] == "completed"


@pytest.mark.fault("B093")
@pytest.mark.parametrize(
    "refused",
    [{"input": 7}, {"stream_id": "no name"}, {"background": True}, {"conversation": "conv_1"}],
    ids=["syntax", "lane", "background", "contradiction"],
)
async def test_a_create_that_is_refused_for_its_form_evicts_nothing(refused: dict[str, Any]) -> None:
    """It never became a turn; a typing error must not cost the conversation."""
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp()), headers=KEY) as ws:
        parent = await ws.turn(create(store=False))
        assert failure(await ws.turn(follow(parent, store=False, **refused)))[0] == 400
        assert response(await ws.turn(follow(parent, store=False)))["status"] == "completed"


@pytest.mark.fault("B095")
async def test_a_stored_turn_on_unstored_history_is_refused() -> None:
    """It would persist what the client asked not to keep."""
    store = Ledger()
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app, store=store, tenant_key=TENANT_KEY), headers=KEY) as ws:
        unstored = await ws.turn(create(store=False))
        refused = await ws.turn(follow(unstored, store=True))

    assert failure(refused) == (400, "invalid_store_transition", "store")
    assert len(app.requests) == 1
    assert store.appended == []


@pytest.mark.fault("B095")
async def test_a_turn_that_does_not_ask_to_be_stored_is_not_stored_on_unstored_history() -> None:
    """``store`` absent means true; on an unstored parent it must not come to mean "persist the chain"."""
    store = Ledger()
    async with MemorySocket(
        ResponsesWebSocketMiddleware(ScriptedApp(), store=store, tenant_key=TENANT_KEY), headers=KEY
    ) as ws:
        unstored = await ws.turn(create(store=False))
        first = await ws.turn(follow(unstored))
        await ws.turn(follow(first))

    assert store.appended == []


@pytest.mark.fault("B096")
async def test_store_false_reaches_the_app_and_nothing_durable() -> None:
    """An app that is told otherwise would keep what the client forbade."""
    store = Ledger()
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app, store=store, tenant_key=TENANT_KEY), headers=KEY) as ws:
        first = await ws.turn(create(store=False))
        await ws.turn(follow(first, store=False))

    assert [request.body["store"] for request in app.requests] == [False, False]
    assert store.appended == []


# -- what a turn leaves behind -------------------------------------------------------------------------------------------


@pytest.mark.fault("B097")
@pytest.mark.parametrize("snapshot", ["empty", "missing", "null", "poorer"])
async def test_a_poor_terminal_snapshot_does_not_hide_what_was_streamed(snapshot: str) -> None:
    """Else the client's tool output answers a call that the chain does not know."""
    app = ScriptedApp()
    call = steps.tool_call("sh", "ls -la", call_id="call_1", kind="custom")
    cut = {
        "empty": steps.set_field("response.output", [], event="response.completed"),
        "missing": steps.drop_field("response.output", event="response.completed"),
        "null": steps.set_field("response.output", None, event="response.completed"),
        "poorer": steps.set_field(
            "response.output",
            [{"type": "message", "role": "assistant", "content": []}],
            event="response.completed",
        ),
    }[snapshot]
    app.script([steps.text("Let me look."), call, cut])
    output = {"type": "custom_tool_call_output", "call_id": "call_1", "output": "a b"}
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        called = await ws.turn(create(store=False))
        answered = await ws.turn(follow(called, input=[output], store=False))

    streamed = [event["item"] for event in called if event["type"] == "response.output_item.done"]
    assert [item["type"] for item in streamed] == ["message", "custom_tool_call"]
    assert response(called)["output"] == streamed
    assert response(answered)["status"] == "completed"
    assert app.requests[1].input == [said("hi"), *streamed, output]


@pytest.mark.fault("B098")
async def test_an_app_that_answers_with_json_is_streamed() -> None:
    """A client would see an empty success: it reads events, not the terminal snapshot."""
    app = ScriptedApp()
    app.script([steps.text("Hello"), steps.tool_call("f", {"a": 1}, call_id="call_1"), steps.json_only()])
    output = {"type": "function_call_output", "call_id": "call_1", "output": "2"}
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        events = await ws.turn(create())
        after = await ws.turn(follow(events, input=[output]))

    assert kinds(events)[0] == "response.created"
    assert kinds(events)[-1] == "response.completed"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == response(events)["output"]
    assert "Hello" in [event["delta"] for event in events if event["type"] == "response.output_text.delta"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert app.requests[1].input == [said("hi"), *done, output]
    assert response(after)["status"] == "completed"


@pytest.mark.fault("B098")
@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "json"])
async def test_a_failure_before_any_content_stays_a_failure(streamed: bool) -> None:
    """The failure's own code is what a client decides by."""
    app = ScriptedApp()
    app.script([steps.fail("rate_limit_exceeded", "Slow down."), *([] if streamed else [steps.json_only()])])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        events = await ws.turn(create())

    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"] == {"code": "rate_limit_exceeded", "message": "Slow down."}


# -- tool calls ----------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B100")
@pytest.mark.parametrize("kind", CALL_KINDS)
async def test_each_kind_of_call_is_answered_by_its_kind_of_output(kind: CallKind) -> None:
    """Servers that know ``function_call_output`` only orphan all others."""
    app = ScriptedApp()
    app.script([steps.tool_call("tool", call_id="call_1", kind=kind)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        called = await ws.turn(create(store=False))
        (call,) = response(called)["output"]
        answered = await ws.turn(follow(called, input=[answer_to(call)], store=False))

    assert response(answered)["status"] == "completed"
    assert app.requests[1].input == [said("hi"), call, answer_to(call)]


@pytest.mark.fault("B100")
@pytest.mark.parametrize("kind", CALL_KINDS)
@pytest.mark.parametrize("wrong", ["name", "twice", "kind", "none"])
async def test_a_wrong_output_is_refused_before_the_app_is_asked(kind: CallKind, wrong: str) -> None:
    """A silent repair would let the model see a conversation that never was."""
    app = ScriptedApp()
    app.script([steps.tool_call("tool", call_id="call_1", kind=kind)])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        called = await ws.turn(create(store=False))
        (call,) = response(called)["output"]
        right = answer_to(call)
        name = "approval_request_id" if kind == "mcp_approval" else "call_id"
        other = "shell_call_output" if kind == "function" else "function_call_output"
        given = {
            "name": [{**right, name: "call_2"}],
            "twice": [right, right],
            "kind": [{"type": other, "call_id": "call_1", "output": ""}],
            "none": [said("never mind")],
        }[wrong]
        refused = await ws.turn(follow(called, input=given, store=False))

    assert len(app.requests) == 1
    status, code, param = failure(refused)
    if wrong == "none":
        assert (status, code, param) == (400, "tool_output_missing", "input")
        assert "call_1" in refused[0]["error"]["message"]
    else:
        index = 1 if wrong == "twice" else 0
        member = "call_id" if wrong == "kind" else name
        assert (status, code, param) == (400, "tool_call_not_found", f"input[{index}].{member}")
        assert ("call_2" if wrong == "name" else "call_1") in refused[0]["error"]["message"]


@pytest.mark.fault("B100")
async def test_history_that_is_sent_again_with_its_parent_is_not_repaired_in_silence() -> None:
    """What is sent goes to the app as it is, or is refused by name; nothing is removed behind the client's back."""
    app = ScriptedApp()
    app.script([steps.tool_call("f", call_id="call_1")])
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        called = await ws.turn(create(store=False))
        (call,) = response(called)["output"]
        again = [said("hi"), call, answer_to(call)]
        answered = await ws.turn(follow(called, input=again, store=False))
        refused = await ws.turn(follow(answered, input=[answer_to(call)], store=False))

    assert app.requests[1].input == [said("hi"), call, *again]
    assert failure(refused) == (400, "tool_call_not_found", "input[0].call_id")


@pytest.mark.fault("B101")
async def test_both_of_two_calls_stay_in_the_context() -> None:
    """A call without its output, or an output without its call, is refused by every model."""
    app = ScriptedApp()
    app.script([steps.tool_call("f", {"n": 1}, call_id="call_1"), steps.tool_call("g", {"n": 2}, call_id="call_2")])
    outputs = [{"type": "function_call_output", "call_id": f"call_{n}", "output": str(n)} for n in (2, 1)]
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        called = await ws.turn(create(store=False))
        await ws.turn(follow(called, input=outputs, store=False))

    assert app.requests[1].input == [said("hi"), *response(called)["output"], *outputs]
    assert [item["type"] for item in app.requests[1].input[1:3]] == ["function_call", "function_call"]


ODD_ITEMS = (
    b'{ "type":"reasoning","id":"rs_1", "summary":[],"encrypted_content":"gAAA+/\\u00e9==" }',
    b'{"type":"custom_tool_call","call_id":"call_1","name":"sh","input":"\\u2028 caf\xc3\xa9","zz":1.50}',
    b'{"type":"slug:made_up","nested":{"b":[1e3, 2],"a":null},"call_id":7}',
    b'{"type":"image_generation_call","id":"ig_1","status":"completed","result":"iVBORw0KGgo="}',
)


@pytest.mark.fault("B102", "B103")
async def test_items_of_every_type_come_back_byte_by_byte() -> None:
    """Reasoning is bound to its bytes by encryption; others fail where an item is missing or "normalised"."""
    app = ScriptedApp()
    body = [sse({"type": "response.created", "response": {"id": "resp_1", "status": "in_progress", "output": []}})]
    for index, item in enumerate(ODD_ITEMS):
        body.append(
            b'data: {"type":"response.output_item.done","output_index":%d,"item":%b}\n\n' % (index, item),
        )
    body.append(sse({"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}}))
    app.script([steps.raw_sse(*body)])
    picture = (
        '{"type":"message", "role":"user","content":[{"type":"input_image","image_url":"data:image/png;base64,A="}]}'
    )
    output = '{"type":"custom_tool_call_output","call_id":"call_1","output":"\\u00e9"}'
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.send_text('{"type":"response.create","model":"m","store":false,"input":[' + picture + "]}")
        first = await ws.collect()
        await ws.send_text(
            '{"type":"response.create","model":"m","store":false,"previous_response_id":"resp_1","input":['
            + output
            + "]}"
        )
        await ws.collect()

    assert id_of(first) == "resp_1"
    assert b",".join([picture.encode(), *ODD_ITEMS, output.encode()]) in app.requests[1].raw


@pytest.mark.fault("B103")
async def test_every_turn_of_a_socket_has_the_headers_that_routes_are_chosen_by() -> None:
    """Encrypted reasoning is of use on its own route only, and a proxy in the app picks that by the handshake."""
    app = ScriptedApp()
    headers = [(b"x-codex-turn-state", b"route-7"), (b"session_id", b"s1"), *KEY]
    async with MemorySocket(ResponsesWebSocketMiddleware(app), headers=headers) as ws:
        first = await ws.turn(create())
        await ws.turn(follow(first))

    for request in app.requests:
        assert [request.header(name) for name, _ in headers] == [value for _, value in headers]


# -- warm-ups ------------------------------------------------------------------------------------------------------------


@pytest.mark.fault("B105", "B106")
async def test_the_input_of_a_warm_up_is_part_of_the_conversation() -> None:
    """An acknowledgement that forgets loses the system prompt and the first message."""
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        warm = await ws.turn(create(generate=False, instructions="A", input=[said("u1")], store=False))
        warmer = await ws.turn(follow(warm, generate=False, instructions="A", input=[said("u2")], store=False))
        first = await ws.turn(follow(warmer, generate=True, input=[said("u3")], store=False))
        await ws.turn(follow(warm, instructions="B", input=[], store=False))

    assert response(first)["status"] == "completed"
    assert [request.input for request in app.requests] == [[said("u1"), said("u2"), said("u3")], [said("u1")]]
    # `previous_response_id` never carries instructions over (API reference): what the turn says counts.
    assert [request.body.get("instructions") for request in app.requests] == [None, "B"]


@pytest.mark.fault("B106")
@pytest.mark.parametrize("generate", [True, None], ids=["true", "null"])
async def test_generate_never_reaches_the_app(generate: bool | None) -> None:
    """Apps answer "unsupported parameter" to it."""
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.turn(create(generate=generate, stream=False, stream_id="a"))

    assert app.requests[0].body == {"model": "m", "input": "hi", "stream": True}


@pytest.mark.fault("B107")
@pytest.mark.parametrize(
    "warm_up", [{"generate": False}, {"prompt_cache_options": {"prewarm": True}}], ids=["generate", "prewarm"]
)
async def test_a_warm_up_in_the_middle_of_a_connection_runs_nothing_and_costs_nothing(warm_up: dict[str, Any]) -> None:
    """Forwarded, it would be generated and billed."""
    facts: list[Fact] = []
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app, hooks=[facts.append])) as ws:
        first = await ws.turn(create(store=False))
        second = await ws.turn(follow(first, store=False))
        warm = await ws.turn(follow(second, input=[said("later")], store=False, **warm_up))
        after = await ws.turn(follow(warm, input=[said("now")], store=False))

    assert len(app.requests) == 3
    assert kinds(warm) == ["response.created", "response.in_progress", "response.completed"]
    assert response(warm)["usage"]["output_tokens"] == 0
    assert [fact.warm_up for fact in endings(facts)] == [False, False, True, False]
    assert app.requests[2].input[-2:] == [said("later"), said("now")]
    assert response(after)["status"] == "completed"


RESPONSE_MEMBERS = frozenset(
    {
        *("id", "object", "created_at", "completed_at", "status", "error", "incomplete_details", "instructions"),
        *("metadata", "model", "output", "parallel_tool_calls", "previous_response_id", "temperature", "tool_choice"),
        *("tools", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs", "max_output_tokens", "reasoning"),
        *("max_tool_calls", "text", "truncation", "service_tier", "store", "background", "safety_identifier"),
        *("prompt_cache_key", "usage"),
    }
)
"""Required by Open Responses, some of them nullable."""


@pytest.mark.fault("B108")
async def test_a_warm_up_is_no_blank_reply_to_a_strict_client() -> None:
    """It is a whole, completed response without output; hooks can tell it from an empty failure."""
    facts: list[Fact] = []
    tools = [{"type": "function", "name": "f", "parameters": {}}]
    async with MemorySocket(ResponsesWebSocketMiddleware(ScriptedApp(), hooks=[facts.append])) as ws:
        warm = await ws.turn(create(generate=False, tools=tools, instructions="A", store=False, stream_id="a"))

    begun, _, done = warm
    assert [event["sequence_number"] for event in warm] == [0, 1, 2]
    assert {event["stream_id"] for event in warm} == {"a"}
    for event in (begun, done):
        assert event["response"].keys() >= RESPONSE_MEMBERS
    assert begun["response"]["status"] == "in_progress"
    given = done["response"]
    assert (given["status"], given["output"], given["error"]) == ("completed", [], None)
    assert (given["tools"], given["instructions"], given["store"]) == (tools, "A", False)
    assert given["usage"]["output_tokens"] == given["usage"]["output_tokens_details"]["reasoning_tokens"] == 0
    (ending,) = endings(facts)
    assert (ending.outcome, ending.warm_up, ending.response_id) == ("completed", True, given["id"])


# -- compaction ----------------------------------------------------------------------------------------------------------

COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "short"}


@pytest.mark.fault("B111")
@pytest.mark.parametrize("chained", [False, True], ids=["alone", "with a parent"])
async def test_nothing_older_than_a_compaction_item_comes_back(chained: bool) -> None:
    """Old history joined again makes the compaction pointless, or overflows the context."""
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        head = await ws.turn(create(input=[said("0")], store=False))
        for number in range(1, 5):
            head = await ws.turn(follow(head, input=[said(str(number))], store=False))
        window = [COMPACTION, said("go on")]
        base = await ws.turn(follow(head, input=window, store=False) if chained else create(input=window, store=False))
        await ws.turn(follow(base, input=[said("more")], store=False))

    assert [request.input for request in app.requests[5:]] == [
        window,
        [*window, *response(base)["output"], said("more")],
    ]


@pytest.mark.fault("B111")
async def test_a_connection_may_begin_with_a_compaction_and_answers_to_calls_that_it_holds() -> None:
    """After a compaction the client opens a new socket; calls inside the compacted part are unknown to us."""
    app = ScriptedApp()
    window = [COMPACTION, {"type": "function_call_output", "call_id": "call_old", "output": "x"}]
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        first = await ws.turn(create(input=window, store=False))
        await ws.turn(follow(first, input=[said("more")], store=False))

    assert app.requests[1].input == [*window, *response(first)["output"], said("more")]


@pytest.mark.fault("B111")
async def test_a_compaction_by_the_app_replays_neither_its_trigger_nor_what_it_replaces() -> None:
    """The trigger sent again would compact again; the old items would undo it."""
    app = ScriptedApp()
    app.script(
        [], [steps.item({"type": "message", "id": "msg_1", "role": "assistant", "content": []}), steps.item(COMPACTION)]
    )
    trigger = {"type": "compaction_trigger"}
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        first = await ws.turn(create(store=False))
        compacted = await ws.turn(follow(first, input=[trigger], store=False))
        await ws.turn(follow(compacted, input=[said("more")], store=False))

    assert app.requests[1].input[-1] == trigger
    assert app.requests[2].input == [COMPACTION, said("more")]


# -- memory --------------------------------------------------------------------------------------------------------------


class LongTalk:
    """An app whose every answer has so many bytes; it drops each body unread, as one that keeps nothing would."""

    def __init__(self, size: int) -> None:
        self.calls = 0
        self.longest = 0
        part = {"type": "output_text", "text": "y" * size, "annotations": []}
        self._item = {"type": "message", "id": "msg", "role": "assistant", "content": [part]}
        self._middle = sse({"type": "response.output_item.done", "output_index": 0, "item": self._item})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.longest = max(self.longest, len((await receive())["body"]))
        self.calls += 1
        head = {"id": f"resp_{self.calls}", "object": "response"}
        start = (b"content-type", b"text/event-stream")
        await send({"type": "http.response.start", "status": 200, "headers": [start]})
        for chunk in (
            sse({"type": "response.created", "response": {**head, "status": "in_progress", "output": []}}),
            self._middle,
            sse({"type": "response.completed", "response": {**head, "status": "completed"}}),
        ):
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def talk(ws: MemorySocket, turns: int, size: int, after: Callable[[int], object]) -> None:
    """Chain turns of so many new bytes each; what the test's own client remembers is thrown away."""
    last: str | None = None
    for number in range(1, turns + 1):
        given = [said("x" * size)]
        await ws.send_json(
            {
                "type": "response.create",
                "model": "m",
                "store": False,
                "input": given,
                "previous_response_id": last,
            }
        )
        while "response.completed" not in (frame := str(await ws.receive()))[:100]:
            assert '"error"' not in frame[:100]
        last = json.loads(frame)["response"]["id"]
        ws.messages.clear()
        ws.frames.clear()
        ws.sent.clear()
        after(number)


@pytest.mark.fault("B112", "B113")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_memory_of_two_thousand_turns_is_their_items() -> None:
    """Each entry with a copy of the whole history makes 20 GB of these 20 MB."""
    half, turns = 5 * KIB, 2000
    middleware = ResponsesWebSocketMiddleware(LongTalk(half), history="turn")
    charged: dict[int, int] = {}
    grown = 0

    def measure(number: int) -> None:
        nonlocal grown
        charged[number] = middleware.history_bytes
        if number == turns // 2:
            gc.collect()
            tracemalloc.start(1)
        elif number == turns:
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0]

    async with MemorySocket(middleware, headers=KEY) as ws:
        try:
            await talk(ws, turns, half, measure)
        finally:
            tracemalloc.stop()

    # Linear, and what is charged is what is there, so that the budgets mean something.
    one = charged[1]
    assert 2 * half < one < 2.2 * half
    assert charged[turns] == pytest.approx(turns * one, rel=0.01)
    assert grown == pytest.approx(turns // 2 * one, rel=0.1)
    assert middleware.history_bytes == 0


@pytest.mark.fault("B112", "B113")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_replaying_a_growing_history_keeps_no_copy_of_it() -> None:
    """Every body holds the whole history: three hundred of them kept would be 180 MB here."""
    half, turns = 2 * KIB, 300
    app = LongTalk(half)
    middleware = ResponsesWebSocketMiddleware(app)
    kept: dict[int, int] = {}

    def measure(number: int) -> None:
        kept[number] = tracemalloc.get_traced_memory()[0]

    async with MemorySocket(middleware, headers=KEY) as ws:
        tracemalloc.start(1)
        try:
            await talk(ws, turns, half, measure)
        finally:
            tracemalloc.stop()

    assert app.longest > turns * 2 * half
    assert kept[turns] < 1.3 * turns * 2 * half


@pytest.mark.fault("B112")
async def test_a_chain_beyond_its_budget_becomes_unresolvable_and_memory_stays_within_it() -> None:
    """No budget, and one client fills the process; an eviction that nobody is told of would change the conversation."""
    facts: list[Fact] = []
    app = LongTalk(5 * KIB)
    limits = Limits(max_connection_bytes=100 * KIB)
    middleware = ResponsesWebSocketMiddleware(app, limits=limits, hooks=[facts.append])
    async with MemorySocket(middleware, headers=KEY) as ws:
        head = await ws.turn(create(store=False))
        while not any(isinstance(fact, NodeDropped) for fact in facts):
            head = await ws.turn(follow(head, input="x" * 5 * KIB, store=False))
            assert middleware.history_bytes <= limits.max_connection_bytes
            assert app.calls < 20
        lost = await ws.turn(follow(head, store=False))
        # A new chain finds room: the old one is dropped, newest first.
        head = await ws.turn(create(input="x" * 5 * KIB, store=False))
        for _ in range(3):
            head = await ws.turn(follow(head, input="x" * 5 * KIB, store=False))
        assert middleware.history_bytes <= limits.max_connection_bytes

    assert failure(lost) == NOT_FOUND


@pytest.mark.fault("B115")
async def test_a_closed_connection_frees_what_was_not_to_be_stored() -> None:
    """Unstored content must not outlive its socket; whoever holds more of it is told the ids."""
    closed: list[list[str]] = []
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, on_close=lambda ids: closed.append(list(ids)))
    async with MemorySocket(middleware, headers=KEY) as ws:
        first = await ws.turn(create(input="x" * 4 * KIB, store=False))
        second = await ws.turn(follow(first, store=False))
        app.requests.clear()  # their scopes hold the turns
        assert middleware.history_bytes > 4 * KIB
        assert closed == []

    assert middleware.history_bytes == 0
    assert closed == [[id_of(first), id_of(second)]]


async def fall_over() -> None:
    raise RuntimeError("boom")


LAST_TURNS: dict[str, list[steps.Step]] = {
    "completed": [steps.text("Hello")],
    "response.failed": [steps.created(), steps.fail()],
    "500": [steps.status(500)],
    "raised": [steps.text("Hello"), steps.call(fall_over)],
    "truncated": [steps.text("Hello"), steps.truncate(3)],
    "stalled": [steps.created(), steps.stall()],
    "stalled at once": [steps.stall()],
}


@pytest.mark.fault("B115")
@pytest.mark.parametrize("how", LAST_TURNS)
async def test_memory_is_given_back_at_once_however_the_last_turn_ended(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A cycle of objects, or a traceback that is kept, would hold the conversation until a garbage collection."""
    caplog.set_level(logging.CRITICAL, "ws_responses")  # the captured log itself keeps tracebacks
    app = ScriptedApp()
    app.script([], LAST_TURNS[how])
    middleware = ResponsesWebSocketMiddleware(app)
    gc.disable()
    try:
        async with MemorySocket(middleware, headers=KEY) as ws:
            first = await ws.turn(create(input="x" * 4 * KIB, store=False))
            await ws.send_json({"type": "response.create", **follow(first, store=False)})
            await app.wait_requests(2)
            if "stalled" in how:
                await ws.abort()
            else:
                await ws.collect()
            app.requests.clear()  # their scopes hold the turns
            await ws.abort()
            await ws.wait_returned()
        assert middleware.history_bytes == 0
    finally:
        gc.enable()
    assert app.running == 0


@pytest.mark.fault("B116")
async def test_without_a_store_a_reconnect_is_a_clear_miss() -> None:
    """A server error, or another code, and clients would not send their full input again."""
    app = ScriptedApp()
    middleware = ResponsesWebSocketMiddleware(app, store=None)
    async with MemorySocket(middleware, headers=KEY) as ws:
        first = await ws.turn(create(store=True))
        same_socket = await ws.turn(follow(first, store=True))
    async with MemorySocket(middleware, headers=KEY) as ws:
        missed = await ws.turn(follow(first, store=True))

    assert response(same_socket)["status"] == "completed"
    assert failure(missed) == NOT_FOUND
    # The app's own word about what it stores is passed on as it is.
    assert response(first)["store"] is True


@pytest.mark.fault("B116")
@pytest.mark.parametrize(
    ("store", "headers", "asked", "said_so"),
    [("memory", KEY, None, True), ("memory", KEY, False, False), (None, KEY, None, False), ("memory", [], True, False)],
    ids=["stored", "not asked", "no store", "nobody's"],
)
async def test_a_warm_up_says_whether_it_was_stored(
    store: Any, headers: list[tuple[bytes, bytes]], asked: bool | None, said_so: bool
) -> None:
    """It is our own response, so its ``store`` must tell whether another socket will find it."""
    middleware = ResponsesWebSocketMiddleware(ScriptedApp(), store=store, tenant_key=TENANT_KEY)
    async with MemorySocket(middleware, headers=headers) as ws:
        warm = await ws.turn(create(generate=False, store=asked))
    async with MemorySocket(middleware, headers=headers) as ws:
        again = await ws.turn(follow(warm))

    assert response(warm)["store"] is said_so
    assert (again[-1]["type"] == "response.completed") is said_so


# -- what changes between turns ------------------------------------------------------------------------------------------


@pytest.mark.fault("B117")
async def test_a_turn_with_other_tools_and_model_is_what_a_cold_request_would_be() -> None:
    """Settings are kept per connection to save work; one that is reused wrongly would change the model's answer."""
    item = '{"type":"message","id":"msg_1","role":"assistant","content":[{"type":"output_text","text":"a"}]}'
    body = [
        sse({"type": "response.created", "response": {"id": "resp_1"}}),
        b'data: {"type":"response.output_item.done","output_index":0,"item":' + item.encode() + b"}\n\n",
        sse({"type": "response.completed", "response": {"id": "resp_1"}}),
    ]
    app = ScriptedApp()
    app.script([steps.raw_sse(*body)])
    old = '"model":"m","instructions":"A","tools":[{"type":"function","name":"f"}],"input":'
    new = (
        '"model":"n","instructions":"B","tools":[{"type":"function","name":"f"},{"type":"custom","name":"c"}],"input":'
    )
    first, second = '{"type":"message","role":"user","content":"1"}', '{"role":"user","content":"2"}'
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.send_text('{"type":"response.create",' + old + "[" + first + "]}")
        await ws.collect()
        await ws.send_text('{"type":"response.create","previous_response_id":"resp_1",' + new + "[" + second + "]}")
        await ws.collect()
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        await ws.send_text('{"type":"response.create",' + new + f"[{first},{item},{second}]}}")
        await ws.collect()

    _, warm, cold = app.requests
    assert warm.raw == cold.raw


@pytest.mark.fault("B117")
async def test_a_handler_sees_the_settings_of_its_own_turn() -> None:
    """The interned form of tools is found by length first: equal lengths must not be taken for equal tools."""
    seen: list[Any] = []

    async def note() -> None:
        turn = current_turn()
        seen.append((turn.tools, turn.instructions, turn.model))

    app = ScriptedApp()
    app.script(lambda _: [steps.call(note), steps.model_answer()])
    settings: list[tuple[Any, Any, str]] = [
        ([{"type": "custom", "name": "a"}], "A", "m"),
        ([{"type": "custom", "name": "b"}], "B", "m"),
        ([{"type": "custom", "name": "a"}], "A", "n"),
        (None, None, "m"),
    ]
    async with MemorySocket(ResponsesWebSocketMiddleware(app, history="turn")) as ws:
        last: str | None = None
        for tools, instructions, model in settings:
            given = {"tools": tools, "instructions": instructions}
            events = await ws.turn(
                create(
                    model=model,
                    previous_response_id=last,
                    **{name: value for name, value in given.items() if value is not None},
                )
            )
            last = id_of(events)

    assert seen == settings


@pytest.mark.fault("B110")
async def test_what_a_warm_up_brought_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up with a long prefix is of use only if the next turn costs what its own items cost."""
    read: list[bytes] = []

    def decode_head(item: bytes) -> Any:
        read.append(bytes(item))
        return items.decode_head(item)

    monkeypatch.setattr(calls, "decode_head", decode_head)
    prefix = [said("x" * KIB) for _ in range(200)]
    app = ScriptedApp()
    async with MemorySocket(ResponsesWebSocketMiddleware(app)) as ws:
        warm = await ws.turn(create(generate=False, input=prefix, store=False))
        assert len(read) == 200
        read.clear()
        await ws.turn(follow(warm, input=[said("now")], store=False))

    assert app.requests[0].input == [*prefix, said("now")]
    # The turn's own item, and the one that the app has answered with (as it was announced, finished, and kept).
    assert [b"now" in item for item in read].count(False) <= 4
    assert sum(map(len, read)) < 2 * KIB
