"""What the wrapped app is given of a conversation, through the whole middleware."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.upstreams.wire import Event, assert_legal
from ws_responses import ResponsesWebSocketMiddleware, current_turn
from ws_responses._types import ASGIApp, Message, Receive, Scope, Send
from ws_responses.errors import WSResponsesError
from ws_responses.handshake import Handshake
from ws_responses.protocol.items import split_items
from ws_responses.testing import MemorySocket, ScriptedApp, steps
from ws_responses.testing.strategies import ConversationTurn, conversations, history
from ws_responses.upstreams.base import SCOPE_STATE_KEY, CurrentTurn, Principal
from ws_responses.upstreams.bodies import History

KEY = [(b"authorization", b"Bearer k")]
MODES: list[History] = ["replay", "forward", "turn"]


def connect(app: ASGIApp, *, headers: Sequence[tuple[bytes, bytes]] = KEY, **options: Any) -> MemorySocket:
    return MemorySocket(ResponsesWebSocketMiddleware(app, probe=False, **options), headers=headers)


async def ask(ws: MemorySocket, **members: Any) -> str:
    """Take a turn that ends well and return the id of its response."""
    events = await ws.turn({"model": "m", **members})
    assert events[-1]["type"] == "response.completed", events[-1]
    return str(events[-1]["response"]["id"])


async def refused(ws: MemorySocket, **members: Any) -> tuple[int, str]:
    """Take a turn that is answered by an error frame alone."""
    (frame,) = await ws.turn({"model": "m", **members})
    return frame["status"], frame["error"]["code"]


def said(*texts: str) -> list[Event]:
    return [{"type": "message", "role": "user", "content": text} for text in texts]


def texts_of(body: Mapping[str, Any]) -> list[str]:
    """Return the texts of the messages in a body, of whoever said them."""
    given = said(body["input"]) if isinstance(body["input"], str) else body["input"]
    contents = [item["content"] for item in given if item.get("type") == "message"]
    return [content if isinstance(content, str) else content[0]["text"] for content in contents]


def answers(*texts: str) -> ScriptedApp:
    app = ScriptedApp(stateful=True)
    app.script(*([steps.text(text)] for text in texts))
    return app


class TestReplay:
    async def test_the_app_gets_a_stateless_post(self) -> None:
        app = answers("A", "B", "C")
        async with connect(app) as ws:
            first = await ask(ws, input="1", store=False, stream_id="lane", generate=True)
            second = await ask(ws, input=said("2", "3"), previous_response_id=first)
            await ask(ws, input=[], previous_response_id=second)
        bodies = [request.body for request in app.requests]
        assert bodies[0] == {"model": "m", "store": False, "input": "1", "stream": True}
        assert [texts_of(body) for body in bodies] == [["1"], ["1", "A", "2", "3"], ["1", "A", "2", "3", "B"]]
        assert not any("previous_response_id" in body for body in bodies)
        assert bodies[1]["input"][0] == said("1")[0]

    async def test_items_come_back_to_the_byte(self) -> None:
        # Encrypted content is signed over its bytes; numbers and unknown members must not change either.
        mine = b'{ "type":"message" ,"role":"user","content":"\\u00e9 \\/ \xc3\xa9","n":1.50, "big":12345678901234567890123 }'
        theirs = (
            b'{"type": "reasoning", "id":"rs_1","summary":[ ],"encrypted_content":"gA\\/\\u00e9==","n":1e2}',
            b'{"type":"made_up","deep":{"a":[1.0,  2]},"id":"x_1"}',
        )
        done = b'data: {"type":"response.output_item.done","output_index":%d,"item":%b}\n\n'
        chunks = [done % pair for pair in enumerate(theirs)]
        end = b'data: {"type":"response.completed","response":{"id":"resp_1","output":[]}}\n\n'
        app = ScriptedApp()
        app.script([steps.raw_sse(*chunks, end)], [steps.text("ok")])
        async with connect(app) as ws:
            await ws.send_text((b'{"type":"response.create", "input" : [ ' + mine + b" ] }").decode())
            end_of_turn = (await ws.collect())[-1]
            await ask(ws, input=said("next"), previous_response_id=end_of_turn["response"]["id"])
        assert app.requests[0].raw == b'{"input":[' + mine + b'],"stream":true}'
        assert app.requests[1].raw.startswith(b'{"model":"m","input":[' + b",".join([mine, *theirs]) + b",{")

    async def test_json_answers_are_replayed_to_the_byte(self) -> None:
        item = b'{"type":"made_up", "n":1.50}'
        app = ScriptedApp()
        app.script([steps.status(200, b'{"id":"resp_1", "output":[ ' + item + b" ]}")], [steps.text("ok")])
        async with connect(app) as ws:
            first = await ask(ws, input=[])
            await ask(ws, input=[], previous_response_id=first)
        assert app.requests[1].raw == b'{"model":"m","input":[' + item + b'],"stream":true}'

    async def test_calls_and_their_outputs_stay_in_order(self) -> None:
        # B101: user, both calls, both outputs.
        app = ScriptedApp()
        app.script([steps.tool_call("f", call_id="c1"), steps.tool_call("f", call_id="c2")], [steps.text("ok")])
        async with connect(app) as ws:
            first = await ask(ws, input="go")
            outputs = [{"type": "function_call_output", "call_id": name, "output": "x"} for name in ("c2", "c1")]
            await ask(ws, input=outputs, previous_response_id=first)
        kinds = [(item["type"], item.get("call_id")) for item in app.requests[1].input]
        call, output = "function_call", "function_call_output"
        assert kinds == [("message", None), (call, "c1"), (call, "c2"), (output, "c2"), (output, "c1")]

    async def test_a_call_that_the_terminal_event_lacks_is_there(self) -> None:
        # B097: through the whole: the next turn's output finds its call, and the app gets both.
        app = ScriptedApp()
        empty = steps.set_field("response.output", [], event="response.completed")
        app.script([steps.tool_call("f", "x", call_id="c1", kind="custom"), empty], [steps.text("ok")])
        async with connect(app) as ws:
            first = await ask(ws, input="go")
            output = {"type": "custom_tool_call_output", "call_id": "c1", "output": "x"}
            await ask(ws, input=[output], previous_response_id=first)
        assert [item["type"] for item in app.requests[1].input] == [
            "message",
            "custom_tool_call",
            "custom_tool_call_output",
        ]

    async def test_forks_share_the_past_and_nothing_else(self) -> None:
        app = answers("A", "B", "C", "D")
        async with connect(app) as ws:
            first = await ask(ws, input="1")
            left = await ask(ws, input="2", previous_response_id=first)
            await ask(ws, input="3", previous_response_id=first, stream_id="fork")
            await ask(ws, input="4", previous_response_id=left)
        assert texts_of(app.requests[2].body) == ["1", "A", "3"]
        assert texts_of(app.requests[3].body) == ["1", "A", "2", "B", "4"]

    async def test_responses_of_one_id_are_kept_apart(self) -> None:
        # An app may call them all "resp_1"; also two that run at the same time must not become one.
        app = ScriptedApp()
        go = anyio.Event()

        def script(body: dict[str, Any]) -> list[steps.Step]:
            if isinstance(body["input"], list):
                return [steps.text("ok")]
            return [steps.response_id("resp_1"), steps.created(), steps.wait_for(go), steps.text(body["input"].upper())]

        app.script(script)
        async with connect(app) as ws:
            for lane in ("a", "b"):
                await ws.send_json({"type": "response.create", "model": "m", "input": lane, "stream_id": lane})
            await app.wait_requests(2)
            go.set()
            ids = [(await ws.collect(lane))[-1]["response"]["id"] for lane in ("a", "b")]
            for lane, response_id in zip("ab", ids, strict=True):
                await ask(ws, input="next", previous_response_id=response_id, stream_id=lane)
        assert len(set(ids)) == 2
        assert sorted(texts_of(request.body) for request in app.requests[2:]) == [
            ["a", "A", "next"],
            ["b", "B", "next"],
        ]

    async def test_a_warm_up_is_replayed(self) -> None:
        # B105: acknowledged, and then forgotten, its input would be lost.
        app = answers("A")
        async with connect(app) as ws:
            events = await ws.turn({"model": "m", "instructions": "I", "input": said("warm"), "generate": False})
            assert_legal(events)
            warm = events[-1]["response"]["id"]
            await ask(ws, input=[], previous_response_id=warm)
        (request,) = app.requests
        assert request.body == {"model": "m", "input": said("warm"), "stream": True}

    async def test_a_new_socket_goes_on_from_the_store(self) -> None:
        app = answers("A", "B", "C")
        middleware = ResponsesWebSocketMiddleware(app)
        async with MemorySocket(middleware, headers=KEY) as ws:
            first = await ask(ws, input="1")
            second = await ask(ws, input="2", previous_response_id=first)
        async with MemorySocket(middleware, headers=KEY) as ws:
            await ask(ws, input="3", previous_response_id=second)
        assert texts_of(app.requests[2].body) == ["1", "A", "2", "B", "3"]


class TestForward:
    async def test_what_the_app_stored_is_named_and_not_sent_again(self) -> None:
        app = answers("A", "B", "C")
        async with connect(app, history="forward") as ws:
            first = await ask(ws, input="1")
            second = await ask(ws, input="2", previous_response_id=first, store=True)
            await ask(ws, input=[], previous_response_id=second)
        assert [request.body for request in app.requests[1:]] == [
            {"model": "m", "store": True, "previous_response_id": first, "input": "2", "stream": True},
            {"model": "m", "previous_response_id": second, "input": [], "stream": True},
        ]
        assert first in app.stored

    async def test_what_it_did_not_store_is_replayed_from_the_nearest_it_did(self) -> None:
        app = answers("A", "B", "C", "D")
        async with connect(app, history="forward") as ws:
            first = await ask(ws, input="1")
            second = await ask(ws, input="2", previous_response_id=first, store=False)
            third = await ask(ws, input="3", previous_response_id=second, store=False)
            await ask(ws, input="4", previous_response_id=third, store=False)
        last = app.requests[3].body
        assert (last["previous_response_id"], texts_of(last)) == (first, ["2", "B", "3", "C", "4"])

    async def test_nothing_stored_means_replay(self) -> None:
        app = answers("A", "B")
        async with connect(app, history="forward") as ws:
            first = await ask(ws, input="1", store=False)
            await ask(ws, input="2", previous_response_id=first, store=False)
        last = app.requests[1].body
        assert ("previous_response_id" in last, texts_of(last)) == (False, ["1", "A", "2"])

    async def test_app_store_never_means_replay(self) -> None:
        app = answers("A", "B")
        async with connect(app, history="forward", app_store="never") as ws:
            first = await ask(ws, input="1")
            await ask(ws, input="2", previous_response_id=first)
        last = app.requests[1].body
        assert ("previous_response_id" in last, last["store"], texts_of(last)) == (False, False, ["1", "A", "2"])

    async def test_a_warm_ups_id_is_never_forwarded(self) -> None:
        # The app has never seen it; it would answer 404.
        app = answers("A", "B", "C")
        async with connect(app, history="forward") as ws:
            warm = await ask(ws, input=said("w"), generate=False)
            first = await ask(ws, input="1", previous_response_id=warm)
            again = await ask(ws, input=said("x"), previous_response_id=first, generate=False)
            await ask(ws, input="2", previous_response_id=again)
        bodies = [request.body for request in app.requests]
        assert ("previous_response_id" in bodies[0], texts_of(bodies[0])) == (False, ["w", "1"])
        assert (bodies[1]["previous_response_id"], texts_of(bodies[1])) == (first, ["x", "2"])

    async def test_an_id_that_is_ours_is_never_forwarded(self) -> None:
        # The app gave none, or one that is live: what the client knows is not what the app knows.
        app = ScriptedApp(stateful=True)
        same = steps.response_id("resp_same")
        app.script([same], [same], [steps.drop_field("response.id")], [steps.text("ok")], [steps.text("ok")])
        async with connect(app, history="forward") as ws:
            first = await ask(ws, input="1")
            second = await ask(ws, input="2")
            third = await ask(ws, input="3")
            assert first == "resp_same"
            await ask(ws, input="4", previous_response_id=second)
            await ask(ws, input="5", previous_response_id=third)
        assert len({first, second, third}) == 3
        for request in app.requests[3:]:
            assert "previous_response_id" not in request.body

    async def test_an_id_unknown_here_is_the_apps_to_judge(self) -> None:
        app = answers("A", "B")
        async with connect(app, history="forward") as ws:
            first = await ask(ws, input="1")
        async with connect(app, history="forward") as ws:
            await ask(ws, input="2", previous_response_id=first)
            assert app.requests[1].body["previous_response_id"] == first
            assert await refused(ws, input="3", previous_response_id="resp_nope") == (
                400,
                "previous_response_not_found",
            )

    async def test_answers_to_calls_of_an_unknown_parent_are_the_apps_to_judge(self) -> None:
        app = ScriptedApp(stateful=True)
        app.script([steps.tool_call("f", call_id="c1")], [steps.text("ok")])
        async with connect(app, history="forward") as ws:
            first = await ask(ws, input="1")
        async with connect(app, history="forward") as ws:
            output = {"type": "function_call_output", "call_id": "c1", "output": "x"}
            await ask(ws, input=[output], previous_response_id=first)

    async def test_an_evicted_parent_is_not_asked_for(self) -> None:
        # Evicted by a failed turn: the app still has it, but the client was told that it is gone.
        app = ScriptedApp(stateful=True)
        app.script([steps.text("A")], [steps.status(500)])
        async with connect(app, history="forward") as ws:
            first = await ask(ws, input="1", store=False)
            assert (await refused(ws, input="2", previous_response_id=first))[0] == 500
            assert await refused(ws, input="3", previous_response_id=first) == (400, "previous_response_not_found")
        assert len(app.requests) == 2

    async def test_other_modes_refuse_what_they_do_not_know(self) -> None:
        app = answers()
        for mode in ("replay", "turn"):
            async with connect(app, history=mode) as ws:
                assert await refused(ws, input="1", previous_response_id="resp_x") == (
                    400,
                    "previous_response_not_found",
                )
        assert app.requests == []


class Handler:
    """An app that looks at its turn, keeps what it saw, and answers by a model."""

    def __init__(self, look: Callable[[CurrentTurn], Any], app: ScriptedApp | None = None) -> None:
        self.app = app or ScriptedApp()
        self.look = look
        self.turns: list[CurrentTurn] = []
        self.seen: list[Any] = []
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            self.scopes.append(scope)
            self.turns.append(current_turn())
            self.seen.append(self.look(current_turn()))
        await self.app(scope, receive, send)


class TestTurn:
    async def test_the_body_has_the_delta_alone(self) -> None:
        app = answers("A", "B")
        async with connect(app, history="turn") as ws:
            first = await ask(ws, input="1")
            await ask(ws, input="2", previous_response_id=first)
        assert app.requests[1].body == {"model": "m", "input": "2", "stream": True}

    async def test_the_rest_is_in_the_current_turn(self) -> None:
        def look(turn: CurrentTurn) -> Any:
            items = [texts_of({"input": [json.loads(item)]})[0] for item in turn.history()]
            delta = [texts_of({"input": [json.loads(item)]})[0] for item in turn.delta]
            return turn.previous_response_id, [node.id for node in turn.chain], items, delta

        handler = Handler(look, answers("A", "B", "C"))
        async with connect(handler, history="turn") as ws:
            first = await ask(ws, input="1")
            second = await ask(ws, input=said("2", "3"), previous_response_id=first)
            await ask(ws, input=[], previous_response_id=second)
        assert handler.seen == [
            (None, [], [], ["1"]),
            (first, [first], ["1", "A"], ["2", "3"]),
            (second, [first, second], ["1", "A", "2", "3", "B"], []),
        ]

    async def test_says_who_and_where(self) -> None:
        async def authorize(handshake: Handshake, model: str | None) -> Principal:
            return Principal(id="ann", tenant="team")

        handler = Handler(lambda turn: (turn.lane, turn.model, turn.tenant, turn.principal, turn.warm_up))
        async with connect(handler, history="turn", authorize=authorize) as ws:
            await ask(ws, input="1", stream_id="lane")
            await ask(ws, input="2")
        ann = Principal(id="ann", tenant="team")
        assert handler.seen == [("lane", "m", "team", ann, False), (None, "m", "team", ann, False)]
        assert len({turn.id for turn in handler.turns}) == 2

    async def test_tools_are_decoded_once(self) -> None:
        # Codex sends 20 kB of them with each turn.
        handler = Handler(lambda turn: (turn.tools, turn.instructions))
        tools = [{"type": "function", "name": "f", "parameters": {}}]
        frame = {"model": "m", "tools": tools, "tool_choice": "none", "instructions": "Be brief.", "input": "1"}
        async with connect(handler, history="turn") as ws:
            for _ in range(2):
                await ws.turn(frame)
            await ws.turn(frame | {"tools": []})
            await ask(ws, input="2")
        assert handler.seen[0] == (tools, "Be brief.")
        assert handler.seen[1][0] is handler.seen[0][0]
        assert handler.seen[2] == ([], "Be brief.")
        assert handler.seen[3] == (None, None)

    async def test_recorded_tokens_are_kept_in_the_node(self) -> None:
        def look(turn: CurrentTurn) -> Any:
            turn.record_tokens([1, 2])
            turn.record_tokens([3])
            return [list(node.record.sampled.ids) for node in turn.chain if node.record.sampled is not None]

        handler = Handler(look)
        async with connect(handler, history="turn") as ws:
            first = await ask(ws, input="1")
            second = await ask(ws, input="2", previous_response_id=first)
            await ask(ws, input="3", previous_response_id=second)
        assert handler.seen == [[], [[1, 2, 3]], [[1, 2, 3], [1, 2, 3]]]

    @pytest.mark.parametrize("ids", [[-1], [1 << 32], [1.0], ["1"], [True], [None]])
    async def test_tokens_are_numbers(self, ids: list[Any]) -> None:
        def look(turn: CurrentTurn) -> Any:
            with pytest.raises(ValueError, match="token ids"):
                turn.record_tokens(ids)
            return turn.sampled

        handler = Handler(look)
        async with connect(handler, history="turn") as ws:
            await ask(ws, input="1")
        assert handler.seen == [None]

    async def test_is_in_the_scope_as_well(self) -> None:
        # Context variables do not reach every worker thread of every framework.
        handler = Handler(lambda turn: None)
        pool = object()
        middleware = ResponsesWebSocketMiddleware(handler, history="turn", probe=False)
        async with MemorySocket(middleware, state={"pool": pool}) as ws:
            await ask(ws, input="1")
            await ask(ws, input="2")
            assert "ws_responses.turn" not in ws.scope["state"]
        assert SCOPE_STATE_KEY == "ws_responses.turn"
        for scope, turn in zip(handler.scopes, handler.turns, strict=True):
            assert scope["state"] == {"pool": pool, SCOPE_STATE_KEY: turn}

    async def test_there_is_none_outside_of_a_socket(self) -> None:
        seen: list[str] = []

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            with pytest.raises(WSResponsesError, match="socket"):
                current_turn()
            seen.append(scope["type"])

        async def nothing(*_: Any) -> Message:
            return {}

        http: Scope = {"type": "http", "method": "POST", "path": "/v1/responses", "headers": []}
        await ResponsesWebSocketMiddleware(app)(http, nothing, nothing)  # type: ignore[arg-type] # never called
        assert seen == ["http"]

    async def test_holds_in_every_mode(self) -> None:
        for mode in MODES:
            handler = Handler(lambda turn: len(turn.history()), answers("A", "B"))
            async with connect(handler, history=mode) as ws:
                first = await ask(ws, input="1")
                await ask(ws, input="2", previous_response_id=first)
            assert handler.seen == [0, 2]


COMPACTION = {"type": "compaction", "id": "cmp_1", "encrypted_content": "x"}


class TestCompaction:
    @pytest.mark.parametrize("mode", MODES)
    async def test_in_the_input_starts_a_new_base(self, mode: History) -> None:
        # B111: the compacted history must not come back.
        handler = Handler(lambda turn: [json.loads(item)["type"] for item in turn.history()], answers("A", "B", "C"))
        async with connect(handler, history=mode) as ws:
            first = await ask(ws, input="old", store=False)
            second = await ask(ws, input=[COMPACTION, *said("2")], previous_response_id=first, store=False)
            await ask(ws, input="3", previous_response_id=second, store=False)
        bodies = [request.body for request in handler.app.requests]
        assert bodies[1]["input"] == [COMPACTION, *said("2")]
        assert "previous_response_id" not in bodies[1]
        assert handler.seen == [[], [], ["compaction", "message", "message"]]
        if mode != "turn":
            assert [item["type"] for item in bodies[2]["input"]] == ["compaction", "message", "message", "message"]
            assert texts_of(bodies[2]) == ["2", "B", "3"]

    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.parametrize("first", [True, False])
    async def test_in_the_output_starts_a_new_base(self, mode: History, first: bool) -> None:
        # Also as the very first item of the output, where the API puts it.
        app = ScriptedApp(stateful=True)
        before = [] if first else [steps.text("before")]
        app.script([steps.text("A")], [*before, steps.item(COMPACTION), steps.text("B")], [steps.text("C")])
        handler = Handler(lambda turn: [json.loads(item)["type"] for item in turn.history()], app)
        async with connect(handler, history=mode) as ws:
            one = await ask(ws, input="old", store=False)
            two = await ask(ws, input="2", previous_response_id=one, store=False)
            await ask(ws, input="3", previous_response_id=two, store=False)
        assert handler.seen[2] == ["compaction", "message"]
        last = app.requests[2].body
        if mode != "turn":
            assert last["input"] == [COMPACTION, last["input"][1], *said("3")]
            assert texts_of(last) == ["B", "3"]

    async def test_forward_goes_on_from_a_stored_one(self) -> None:
        app = ScriptedApp(stateful=True)
        app.script([steps.text("A")], [steps.item(COMPACTION), steps.text("B")], [steps.text("C")])
        async with connect(app, history="forward") as ws:
            one = await ask(ws, input="old")
            two = await ask(ws, input="2", previous_response_id=one)
            await ask(ws, input="3", previous_response_id=two)
        assert app.requests[2].body == {"model": "m", "previous_response_id": two, "input": "3", "stream": True}

    async def test_forward_never_reaches_behind_it(self) -> None:
        app = ScriptedApp(stateful=True)
        app.script([steps.text("A")], [steps.item(COMPACTION), steps.text("B")], [steps.text("C")])
        async with connect(app, history="forward") as ws:
            one = await ask(ws, input="old")
            two = await ask(ws, input="2", previous_response_id=one, store=False)
            await ask(ws, input="3", previous_response_id=two, store=False)
        last = app.requests[2].body
        assert ("previous_response_id" in last, texts_of(last)) == (False, ["B", "3"])


class TestOptions:
    async def test_drop_fields_and_prepare(self) -> None:
        def prepare(body: dict[str, Any], turn: CurrentTurn) -> None:
            body["turn"] = turn.previous_response_id
            body["model"] += "!"

        app = answers("A", "B")
        async with connect(app, drop_fields=["user"], prepare=prepare) as ws:
            first = await ask(ws, input="1", user="u")
            await ask(ws, input="2", user="u", previous_response_id=first)
        assert [(body["turn"], body["model"], "user" in body) for body in (r.body for r in app.requests)] == [
            (None, "m!", False),
            (first, "m!", False),
        ]
        assert texts_of(app.requests[1].body) == ["1", "A", "2"]

    async def test_prepare_changes_nothing_that_is_kept(self) -> None:
        # The client's own words are the history, not what one body was made into.
        def prepare(body: dict[str, Any], turn: CurrentTurn) -> None:
            body["input"] = "replaced"

        handler = Handler(lambda turn: len(turn.history()), answers("A", "B"))
        async with connect(handler, prepare=prepare) as ws:
            first = await ask(ws, input="1")
            await ask(ws, input="2", previous_response_id=first)
        assert [request.body["input"] for request in handler.app.requests] == ["replaced", "replaced"]
        assert handler.seen == [0, 2]

    async def test_a_prepare_that_raises_fails_its_turn_alone(self, caplog: pytest.LogCaptureFixture) -> None:
        def prepare(body: dict[str, Any], turn: CurrentTurn) -> None:
            if turn.encoded_delta.endswith(b'"bad"}'):
                raise RuntimeError("secret")

        app = answers("A")
        async with connect(app, prepare=prepare) as ws:
            (frame,) = await ws.turn({"model": "m", "input": "bad"})
            assert (frame["status"], frame["error"]["code"]) == (500, "server_error")
            assert "secret" not in json.dumps(frame)
            await ask(ws, input="good")
        assert len(app.requests) == 1
        assert "secret" in caplog.text

    async def test_inner_path(self) -> None:
        app = answers("A")
        async with connect(app, inner_path="/codex/responses") as ws:
            await ask(ws, input="1")
        assert app.requests[0].path == "/codex/responses"


# -- all modes are the same conversation -------------------------------------------------------------------------------


class Conversation:
    """An app that gives the output written down, in whichever mode, and keeps the conversation as it understands it."""

    def __init__(self, mode: History) -> None:
        self.mode = mode
        self.output: Sequence[Event] = ()
        self.seen: list[Any] = []
        self.app = ScriptedApp(stateful=True)
        self.app.script(self._steps)

    def _steps(self, body: Mapping[str, Any]) -> list[steps.Step]:
        given = said(body["input"]) if isinstance(body.get("input"), str) else list(body.get("input", []))
        if self.mode == "turn":
            given = [*(json.loads(item) for item in current_turn().history()), *given]
        elif body.get("previous_response_id") is not None:
            assert self.mode == "forward"
            given = [*self.app._histories[body["previous_response_id"]], *given]
        self.seen.append(given)
        return [*(steps.item(item) for item in self.output), steps.created()]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=30)
@given(turns=conversations(flaws=False, forks=True), data=st.data())
async def test_the_app_sees_the_conversation_whatever_the_mode(
    mode: History, turns: list[ConversationTurn], data: st.DataObject
) -> None:
    app = Conversation(mode)
    ids: list[str] = []
    async with connect(app.app, history=mode) as ws:
        for number, turn in enumerate(turns):
            app.output = turn.output
            parent = None if turn.parent is None else ids[turn.parent]
            store = data.draw(st.sampled_from([None, False]), f"store of turn {number}")
            warm = data.draw(st.integers(0, 5), f"warm-up before turn {number}") == 0 and not any(
                item["type"].endswith(("_output", "_response")) for item in turn.input if "type" in item
            )
            given = turn.input
            if warm and (turn.parent is None or not turns[turn.parent].calls):
                parent = await ask(ws, input=given[:1], previous_response_id=parent, generate=False, store=store)
                given = given[1:]
            ids.append(await ask(ws, input=given, previous_response_id=parent, store=store))
            assert app.seen[-1] == history(turns, number)


@given(st.lists(st.sampled_from(["{}", '{ "a":1}', "[1, 2]", '"x"', "1.50"]), max_size=5))
def test_joined_items_come_apart_as_they_were(items: list[str]) -> None:
    # `current_turn().delta` and `history()` rest on it.
    assert split_items(",".join(items).encode()) == [item.encode() for item in items]
