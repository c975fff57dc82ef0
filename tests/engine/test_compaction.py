"""Conversations that are replaced by a summary: on request, and in a turn that has become long."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from tests.engine.schema import assert_turn
from tests.engine.service import (
    ANSWER,
    STOP,
    Event,
    LetterRenderer,
    ScriptedService,
    Step,
    last,
    letters,
    no_app,
    said,
    socket_to,
)
from tests.open_responses import assert_events
from tests.shell import KEY, code_of, error_of, id_of, kinds
from ws_responses import ResponsesApp, ResponsesEngine, ResponsesWebSocketMiddleware
from ws_responses.backends import Delta, ToolCallDelta, Usage
from ws_responses.engine import Retry
from ws_responses.errors import UpstreamError
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.routing import SingleRouter
from ws_responses.state.budget import Ledger
from ws_responses.state.store import InProcessStore
from ws_responses.testing import MemorySocket, ScriptedApp

SECRET = b"a key of 16 bytes"
LONG = "word " * 1000  # 5,000 bytes are some 1,250 tokens
TOOLS = [{"type": "function", "name": "look", "parameters": {"type": "object"}}]


def engine_of(service: ScriptedService, **options: Any) -> ResponsesEngine:
    return ResponsesEngine(service, compaction_key=SECRET, retry=Retry(attempts=1), **options)


def managed(input: Any, threshold: int | None = 1000, **members: Any) -> dict[str, Any]:  # noqa: A002
    entry = {"type": "compaction"} | ({} if threshold is None else {"compact_threshold": threshold})
    return {"model": "m", "input": input, "context_management": [entry], **members}


def call(call_id: str) -> list[Step]:
    return [Delta(tool_calls=(ToolCallDelta(index=0, id=call_id, name="look", arguments="{}"),)), STOP]


def result(call_id: str, output: str = "found") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def texts(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [f"{message['role'][0]}:{message['content']}" for message in messages]


def summary_in(message: dict[str, Any]) -> str:
    head, _, text = message["content"].partition("\n\n")
    assert head.startswith("The conversation up to here was replaced by this summary")
    assert message["role"] == "user"
    return str(text)


@asynccontextmanager
async def http_to(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"authorization": "Bearer key-1"}
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://test/v1", headers=headers
    ) as client:
        yield client


async def compact(app: Any, **body: Any) -> Any:
    async with http_to(app) as http:
        return await http.post("/responses/compact", json={"model": "m", **body})


CONVERSATION = [
    {"type": "message", "role": "developer", "content": "Be brief."},
    {"role": "user", "content": "We launch on Tuesday."},
    {"type": "message", "role": "assistant", "content": "Understood."},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "And tell support."}]},
]


class TestOnRequest:
    async def test_gives_the_users_messages_and_one_item(self) -> None:
        service = ScriptedService()
        service.will(said("Launch: ", "Tuesday."))
        answer = await compact(ResponsesApp(engine_of(service), authorize="open"), input=CONVERSATION)

        assert answer.status_code == 200
        body = answer.json()
        assert body.keys() == {"id", "object", "created_at", "output", "usage"}
        assert body["object"] == "response.compaction"
        assert (body["usage"]["input_tokens"], body["usage"]["output_tokens"]) == (5, 3)
        *messages, item = body["output"]
        assert [part["text"] for message in messages for part in message["content"]] == [
            "We launch on Tuesday.",
            "And tell support.",
        ]
        assert all(message["role"] == "user" and message["status"] == "completed" for message in messages)
        assert item.keys() == {"id", "type", "encrypted_content"}

    async def test_the_model_is_asked_about_the_whole_and_may_not_call(self) -> None:
        service = ScriptedService()
        answer = await compact(
            ResponsesApp(engine_of(service), authorize="open"),
            input=CONVERSATION,
            tools=TOOLS,
            text={"format": {"type": "json_object"}},
            max_output_tokens=16,
        )

        assert answer.status_code == 200
        (prompt,), (params,) = service.prompts, service.params
        messages = service.messages()
        assert texts(messages[:-1]) == [
            "s:Be brief.",
            "u:We launch on Tuesday.",
            "a:Understood.",
            "u:And tell support.",
        ]
        assert "write a summary" in messages[-1]["content"]
        # The tools are part of what the service has cached; a format would be the answer's, not the summary's.
        assert getattr(prompt, "tools", None) is not None
        assert json.loads(getattr(prompt, "tool_choice", b"")) == "none"
        assert getattr(prompt, "response_format", b"") is None
        assert params.max_tokens == 8192

    async def test_a_new_chain_goes_on_with_what_is_left(self) -> None:
        service = ScriptedService()
        service.will(said("Launch: Tuesday."))
        app = ResponsesApp(engine_of(service), authorize="open")
        output = (await compact(app, input=CONVERSATION)).json()["output"]
        async with MemorySocket(app) as ws:
            first = await ws.turn({"model": "m", "input": [*output, {"role": "user", "content": "When?"}]})
            before = service.messages()
            await ws.turn({"model": "m", "input": "Sure?", "previous_response_id": id_of(first)})

        assert_turn(first)
        assert texts(before[:2]) == ["u:We launch on Tuesday.", "u:And tell support."]
        assert texts(before[2:3]) == ["s:Be brief."]
        assert summary_in(before[3]) == "Launch: Tuesday."
        assert texts(before[4:]) == ["u:When?"]
        assert service.messages()[:5] == before
        assert texts(service.messages()[5:]) == ["a:Hello", "u:Sure?"]

    async def test_a_new_chain_goes_on_from_the_store_as_well(self) -> None:
        """Without this what a worker has not rendered itself would be given to the model sealed."""
        service = ScriptedService()
        app = ResponsesApp(engine_of(service), authorize="open")
        output = (await compact(app, input=CONVERSATION)).json()["output"]
        async with MemorySocket(app, headers=(KEY,)) as ws:
            first = await ws.turn({"model": "m", "input": [*output, {"role": "user", "content": "When?"}]})
            before = service.messages()
        async with MemorySocket(app, headers=(KEY,)) as ws:
            second = await ws.turn({"model": "m", "input": "Sure?", "previous_response_id": id_of(first)})

        assert_turn(second)
        assert service.messages()[: len(before)] == before
        assert texts(service.messages()[len(before) :]) == ["a:Hello", "u:Sure?"]

    async def test_a_chain_is_compacted_by_its_id(self) -> None:
        service = ScriptedService()
        app = ResponsesApp(engine_of(service), authorize="open")
        async with MemorySocket(app, headers=(KEY,)) as ws:
            first = await ws.turn({"model": "m", "input": "One."})
        answer = await compact(app, previous_response_id=id_of(first), input="Two.")

        assert texts(service.messages()[:-1]) == ["u:One.", "a:Hello", "u:Two."]
        assert [m["content"][0]["text"] for m in answer.json()["output"][:-1]] == ["One.", "Two."]

    async def test_its_id_can_neither_be_continued_nor_fetched(self) -> None:
        """The API reference: start a new chain with the output."""
        app = ResponsesApp(engine_of(ScriptedService()), authorize="open")
        response_id = (await compact(app, input="x", store=True)).json()["id"]
        async with http_to(app) as http:
            assert (await http.get(f"/responses/{response_id}")).status_code == 404
            more = await http.post("/responses", json={"model": "m", "input": "x", "previous_response_id": response_id})
        assert more.json()["error"]["code"] == "previous_response_not_found"

    async def test_what_was_compacted_is_compacted_again(self) -> None:
        """Without this long work would end at the second compaction; and a summary must not pass for what a user said."""
        service = ScriptedService()
        service.will(said("S1"), said("S2"))
        app = ResponsesApp(engine_of(service), authorize="open")
        output = (await compact(app, input=CONVERSATION)).json()["output"]
        again = (await compact(app, input=[*output, {"role": "user", "content": "More."}])).json()["output"]

        assert summary_in(service.messages()[3]) == "S1"
        assert [m["content"][0]["text"] for m in again[:-1]] == ["We launch on Tuesday.", "And tell support.", "More."]
        assert len(again) == 4

    async def test_users_messages_are_bounded_and_the_newest_stay(self) -> None:
        """Without this each compaction would be longer than the one before."""
        items = [{"role": "user", "content": f"{number} {LONG}"} for number in range(9)]
        app = ResponsesApp(engine_of(ScriptedService()), authorize="open")
        *messages, item = (await compact(app, input=items)).json()["output"]

        assert [message["content"][0]["text"][:2] for message in messages] == [f"{n} " for n in range(3, 9)]
        assert item["type"] == "compaction"

    async def test_images_of_the_user_stay(self) -> None:
        picture = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        app = ResponsesApp(engine_of(ScriptedService(images=True)), authorize="open")
        (message, _) = (await compact(app, input=[{"role": "user", "content": [picture]}])).json()["output"]

        assert message["content"] == [picture | {"detail": "auto"}]

    @pytest.mark.parametrize(
        ("body", "status", "code", "param"),
        [
            ({"model": None, "input": "x"}, 400, "missing_required_parameter", "model"),
            ({"model": "", "input": "x"}, 400, "missing_required_parameter", "model"),
            ({"model": 1, "input": "x"}, 400, "invalid_request", "model"),
            ({}, 400, "invalid_request", "input"),
            ({"input": []}, 400, "invalid_request", "input"),
            ({"input": 1}, 400, "invalid_request", "input"),
            ({"input": "x", "stream_id": "a"}, 400, "unknown_parameter", "stream_id"),
            ({"input": [{"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"}]}, 400, "tool_output_missing", "input"),
            ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, 400, "invalid_compaction", "input[0].encrypted_content"),
            ({"input": "x", "previous_response_id": "resp_none"}, 400, "previous_response_not_found", "previous_response_id"),
        ],
    )  # fmt: skip
    async def test_what_is_wrong_is_told(self, body: dict[str, Any], status: int, code: str, param: str) -> None:
        service = ScriptedService()
        answer = await compact(ResponsesApp(engine_of(service), authorize="open"), **body)

        assert (answer.status_code, answer.json()["error"]["code"], answer.json()["error"]["param"]) == (
            status,
            code,
            param,
        )
        assert not service.prompts

    @pytest.mark.parametrize(
        ("steps", "status", "code"),
        [
            ([UpstreamError("busy", status=503, code="server_is_overloaded")], 503, "server_is_overloaded"),
            ([Delta(text="half")], 502, "upstream_stream_truncated"),
            (said(" \n"), 502, "upstream_invalid_output"),
            (call("call_1"), 502, "upstream_invalid_output"),
        ],
    )
    async def test_without_a_summary_there_is_none(self, steps: list[Step], status: int, code: str) -> None:
        """Without this a conversation would be replaced by nothing."""
        service = ScriptedService()
        service.will(steps)
        answer = await compact(ResponsesApp(engine_of(service), authorize="open"), input=CONVERSATION)

        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert service.running == 0

    async def test_members_of_a_create_do_not_make_it_one(self) -> None:
        """Without this a client could stream it, store it, or have it answered by nothing."""
        app = ResponsesApp(engine_of(ScriptedService()), authorize="open")
        answer = await compact(
            app,
            input="x",
            stream=True,
            store=True,
            prompt_cache_options={"prewarm": True},
            context_management=[{"type": "other"}],
        )

        assert answer.json()["object"] == "response.compaction"
        assert answer.json()["output"][-1]["type"] == "compaction"

    async def test_who_may_not_come_in_compacts_nothing(self) -> None:
        service = ScriptedService()
        app = ResponsesApp(engine_of(service), authorize=lambda handshake, model: None)

        assert (await compact(app, input="x")).status_code in (401, 403)
        assert not service.prompts

    async def test_a_summary_has_a_bound(self) -> None:
        service = ScriptedService()
        service.will([*(Delta(text="x" * 10_000) for _ in range(10)), STOP])
        app = ResponsesApp(engine_of(service), authorize="open")
        output = (await compact(app, input="x")).json()["output"]
        async with MemorySocket(app) as ws:
            await ws.turn({"model": "m", "input": output})

        assert len(summary_in(service.messages()[1])) == 65536

    async def test_an_upstream_that_cannot_compact_has_no_such_route(self) -> None:
        class Plain:
            def models(self, tenant: str) -> list[str]:
                return []

            async def run(self, turn: Any, emit: Any) -> None:
                raise AssertionError

        assert (await compact(ResponsesApp(Plain(), authorize="open"), input="x")).status_code == 405


class TestInATurn:
    async def test_the_conversation_is_replaced_before_it_is_answered(self) -> None:
        service = ScriptedService()
        engine = engine_of(service)
        service.will(said("One."), said("S"), said("Two."), said("Three."))
        async with socket_to(engine) as ws:
            first = await ws.turn(
                managed([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": LONG}])
            )
            second = await ws.turn(managed("Next.", previous_response_id=id_of(first)))
            third = await ws.turn(managed("Last.", previous_response_id=id_of(second)))

        assert "compaction.compacting" not in kinds(first)
        assert kinds(second)[:5] == [
            "created",
            "in_progress",
            "output_item.added",
            "compaction.compacting",
            "output_item.done",
        ]
        item, message = last(second)["output"]
        assert (item["type"], message["content"][0]["text"]) == ("compaction", "Two.")
        assert second[2]["item"] == {"id": item["id"], "type": "compaction", "encrypted_content": ""}
        assert [event["output_index"] for event in second if event["type"].endswith("item.added")] == [0, 1]
        assert (second[3]["item_id"], second[3]["output_index"], second[4]["item"]) == (item["id"], 0, item)
        assert texts(service.messages(1)[:3]) == ["s:Be brief.", f"u:{LONG}", "a:One."]
        answered = service.messages(2)
        assert (texts(answered[:1]), summary_in(answered[1]), texts(answered[2:])) == (
            ["s:Be brief."],
            "S",
            ["u:Next."],
        )
        # What comes next sees the same, and is short enough to be left alone.
        assert service.messages(3)[:3] == answered
        assert texts(service.messages(3)[3:]) == ["a:Two.", "u:Last."]
        assert kinds(third).count("output_item.added") == 1
        assert engine.counts.compacted == 1
        assert [event["sequence_number"] for event in second] == list(range(len(second)))

    async def test_the_usage_is_that_of_both(self) -> None:
        """Without this the summary would be sold for nothing."""
        service = ScriptedService()
        async with socket_to(engine_of(service)) as ws:
            first = await ws.turn(managed(LONG))
            second = await ws.turn(managed("Next.", previous_response_id=id_of(first)))

        usage = last(second)["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (10, 6, 16)
        assert usage["input_tokens_details"]["cached_tokens"] == 4
        assert usage["output_tokens_details"]["reasoning_tokens"] == 2

    async def test_an_unknown_part_makes_the_usage_unknown(self) -> None:
        service = ScriptedService()
        service.will(said("x"), [Delta(text="S"), Delta(finish="stop")], said("y"))
        async with socket_to(engine_of(service)) as ws:
            first = await ws.turn(managed(LONG))
            second = await ws.turn(managed("Next.", previous_response_id=id_of(first)))

        assert last(second)["usage"] is None

    @pytest.mark.parametrize(("length", "compacts"), [(3500, False), (4100, True)])
    async def test_a_threshold_is_kept(self, length: int, compacts: bool) -> None:
        service = ScriptedService()
        async with socket_to(engine_of(service)) as ws:
            first = await ws.turn({"model": "m", "input": "x"})
            second = await ws.turn(managed("x" * length, previous_response_id=id_of(first)))

        assert ("compaction.compacting" in kinds(second)) is compacts

    @pytest.mark.parametrize("window", [1500, 100_000, None])
    async def test_without_a_threshold_the_context_window_decides(self, window: int | None) -> None:
        service = ScriptedService()
        router = SingleRouter(service, ChatRenderer(), context_window=window)
        async with socket_to(ResponsesEngine(router=router)) as ws:
            first = await ws.turn(managed(LONG, None))
            second = await ws.turn(managed("x", None, previous_response_id=id_of(first)))

        assert ("compaction.compacting" in kinds(second)) is (window == 1500)

    async def test_a_conversation_of_one_step_stays(self) -> None:
        service = ScriptedService()
        async with socket_to(engine_of(service)) as ws:
            events = await ws.turn(managed(LONG))

        assert_turn(events)
        assert len(service.prompts) == 1

    async def test_a_client_that_sends_it_all_is_served_as_well(self) -> None:
        service = ScriptedService()
        service.will(said("S"))
        items = [
            {"role": "user", "content": LONG},
            {"role": "assistant", "content": "One."},
            {"role": "user", "content": "Two."},
        ]
        async with socket_to(engine_of(service)) as ws:
            await ws.turn(managed(items))

        assert summary_in(service.messages()[0]) == "S"
        assert texts(service.messages()[1:]) == ["u:Two."]

    async def test_a_step_stays_whole(self) -> None:
        """Without this the output of a call would come without its call, which no model takes."""
        service = ScriptedService()
        service.will(call("call_1"), call("call_2"), said("S"), said("done"))
        async with socket_to(engine_of(service)) as ws:
            first = await ws.turn({"model": "m", "input": "x" * 70_000, "tools": TOOLS})
            second = await ws.turn(
                {"model": "m", "input": [result("call_1")], "tools": TOOLS, "previous_response_id": id_of(first)}
            )
            third = await ws.turn(managed([result("call_2")], tools=TOOLS, previous_response_id=id_of(second)))
            fourth = await ws.turn(managed("more", tools=TOOLS, previous_response_id=id_of(third)))

        assert [item["type"] for item in last(third)["output"]] == ["compaction", "message"]
        summary, calls, output = service.messages(3)
        assert summary_in(summary) == "S"
        assert (calls["tool_calls"][0]["id"], output["role"], output["tool_call_id"]) == ("call_2", "tool", "call_2")
        assert_turn(fourth)

    @pytest.mark.parametrize(("length", "roles"), [(1_000, "uuat"), (70_000, "uat"), (1_100_000, "uauat")])
    async def test_how_much_stays_has_bounds(self, length: int, roles: str) -> None:
        """From the user's last message on if that is little, else the last step; a longer step cannot be left out."""
        service = ScriptedService()
        engine = engine_of(service)
        compacts = roles != "uauat"
        service.will(said("One."), call("call_1"), *([said("S")] if compacts else []), said("done"))
        async with socket_to(engine) as ws:
            first = await ws.turn({"model": "m", "input": LONG, "tools": TOOLS})
            second = await ws.turn(
                {"model": "m", "input": "Look.", "tools": TOOLS, "previous_response_id": id_of(first)}
            )
            third = await ws.turn(
                managed([result("call_1", "x" * length)], tools=TOOLS, previous_response_id=id_of(second))
            )

        assert last(third)["status"] == "completed"
        assert "".join(message["role"][0] for message in service.messages()) == roles
        assert engine.counts.compacted == compacts

    async def test_from_the_users_last_message_on_it_stays_if_that_is_not_much(self) -> None:
        service = ScriptedService()
        service.will(said("One."), call("call_1"), said("S"), said("done"))
        async with socket_to(engine_of(service)) as ws:
            first = await ws.turn({"model": "m", "input": LONG, "tools": TOOLS})
            second = await ws.turn(
                {"model": "m", "input": "Look.", "tools": TOOLS, "previous_response_id": id_of(first)}
            )
            await ws.turn(managed([result("call_1")], tools=TOOLS, previous_response_id=id_of(second)))

        assert [message["role"] for message in service.messages()] == ["user", "user", "assistant", "tool"]
        assert service.messages()[1]["content"] == "Look."

    async def test_a_backend_that_gives_no_summary_answers_all_the_same(self) -> None:
        service = ScriptedService()
        engine = engine_of(service)
        service.will(said("One."), [UpstreamError("busy", status=503)], said("Two."))
        async with socket_to(engine) as ws:
            first = await ws.turn(managed(LONG))
            second = await ws.turn(managed("Next.", previous_response_id=id_of(first)))

        assert_turn(second)
        assert texts(service.messages()) == [f"u:{LONG}", "a:One.", "u:Next."]
        assert (engine.counts.compacted, engine.counts.not_compacted) == (0, 1)

    @pytest.mark.parametrize("steps", [[Delta(text="half")], said(" ")])
    async def test_a_summary_that_breaks_off_fails_the_turn(self, steps: list[Step]) -> None:
        service = ScriptedService()
        service.will(said("One."), steps)
        async with socket_to(engine_of(service)) as ws:
            first = await ws.turn(managed(LONG))
            second = await ws.turn(managed("Next.", previous_response_id=id_of(first)))

        assert second[-1]["type"] == "response.failed"
        assert code_of(second[-1]).startswith("upstream_")
        assert service.running == 0

    async def test_a_client_that_leaves_stops_the_summary(self) -> None:
        import anyio

        service = ScriptedService()
        service.will(said("One."), [Delta(text="S"), anyio.Event()])
        async with socket_to(engine_of(service)) as ws:
            first = await ws.turn(managed(LONG))
            await ws.send_json({"type": "response.create", **managed("Next.", previous_response_id=id_of(first))})
            while (await ws.receive_json())["type"] != "response.compaction.compacting":
                pass
            assert service.running == 1
        assert service.running == 0

    async def test_open_responses_has_the_item_without_the_event(self) -> None:
        service = ScriptedService()
        async with socket_to(engine_of(service), profile="open-responses") as ws:
            first = await ws.turn(managed(LONG))
            second = await ws.turn(managed("Next.", previous_response_id=id_of(first)))

        assert_events(second)
        assert last(second)["output"][0]["type"] == "compaction"

    async def test_it_is_announced_at_once_where_that_was_asked_for(self) -> None:
        service = ScriptedService()
        async with socket_to(engine_of(service, announce="at_once")) as ws:
            first = await ws.turn(managed(LONG))
            second = await ws.turn(managed("Next.", previous_response_id=id_of(first)))

        assert kinds(second).count("created") == 1
        assert last(second)["output"][0]["type"] == "compaction"


def read_letters(ids: Sequence[int]) -> str:
    return "".join(chr(i) if i >= 32 else {1: "|", ANSWER: "?"}.get(i, "") for i in ids)


class TestTokens:
    """Warm and cold are the same, token for token."""

    @staticmethod
    def engine(service: ScriptedService, key: bytes = SECRET) -> ResponsesEngine:
        return ResponsesEngine(service, renderer=LetterRenderer(), compaction_key=key)

    @staticmethod
    def answer(text: str) -> list[Step]:
        return [Delta(token_ids=letters(text)), STOP]

    async def turns(self, app: Any, service: ScriptedService, *, reconnect: bool) -> list[str]:
        """Four turns, the third of which compacts; return the prompts of the answers."""
        service.will(*(self.answer(text) for text in ("a1", "a2", "sum", "a3", "a4")))
        inputs = [
            {"model": "m", "input": "x" * 900},
            {"model": "m", "input": "second"},
            managed("third" * 20),
            {"model": "m", "input": "fourth"},
        ]
        previous: str | None = None
        ws: MemorySocket | None = None
        for body in inputs:
            if ws is None or reconnect:
                if ws is not None:
                    await ws.__aexit__(None, None, None)
                ws = MemorySocket(app, headers=(KEY,))
                await ws.__aenter__()
            events: list[Event] = await ws.turn(body | ({} if previous is None else {"previous_response_id": previous}))
            previous = id_of(events)
        assert ws is not None
        await ws.__aexit__(None, None, None)
        return [read_letters(prompt.rendered.ids()) for prompt in service.prompts]

    def app(self, engine: ResponsesEngine) -> Any:
        return ResponsesWebSocketMiddleware(no_app, upstream=engine, authorize="open")

    async def test_on_one_socket_and_over_the_store(self) -> None:
        warm, cold = ScriptedService("tokens", returns_ids=True), ScriptedService("tokens", returns_ids=True)
        one = await self.turns(self.app(self.engine(warm)), warm, reconnect=False)
        other = await self.turns(self.app(self.engine(cold)), cold, reconnect=True)

        assert one == other
        assert len(one) == 5
        assert one[2].startswith(one[1][:-1])  # the summary goes on from what the service has cached
        assert "x" * 900 not in one[3]
        assert one[4].startswith(one[3][:-1])
        assert [one[3].count(text) for text in ("sum|", "third", "a2")] == [1, 20, 0]

    @pytest.mark.parametrize("key", [SECRET, b"another key of 16 bytes"])
    async def test_a_stored_chain_needs_the_key_that_it_was_made_with(self, key: bytes) -> None:
        """Without this a restart would lose the conversation without a word."""
        service = ScriptedService("tokens", returns_ids=True)
        service.will(*(self.answer(text) for text in ("a1", "sum", "a2", "a3")))
        options: dict[str, Any] = {
            "store": InProcessStore(Ledger(1 << 20, 1 << 20), lambda: 0.0),
            "tenant": lambda _: "t",
        }
        async with socket_to(self.engine(service), **options) as ws:
            first = await ws.turn({"model": "m", "input": "x" * 1100})
            second = await ws.turn(managed("y", previous_response_id=id_of(first)))
        async with socket_to(self.engine(service, key), **options) as ws:
            third = await ws.turn({"model": "m", "input": "z", "previous_response_id": id_of(second)})

        assert last(second)["output"][0]["type"] == "compaction"
        if key == SECRET:
            assert third[-1]["type"] == "response.completed"
        else:
            assert (third[-1]["status"], code_of(third[-1])) == (400, "invalid_compaction")
            assert error_of(third[-1])["message"].startswith("An earlier item")


class TestForeignItems:
    async def test_one_of_another_service_is_refused_and_named(self) -> None:
        service = ScriptedService()
        items = [{"role": "user", "content": "x"}, {"type": "compaction", "id": "c", "encrypted_content": "gAAAA"}]
        async with socket_to(engine_of(service)) as ws:
            (error,) = await ws.turn({"model": "m", "input": items})

        assert (error["status"], code_of(error)) == (400, "invalid_compaction")
        assert error_of(error)["param"] == "input[1].encrypted_content"
        assert not service.prompts

    async def test_what_stands_behind_one_is_named_by_its_own_place(self) -> None:
        """An item becomes several; errors must count as the client does."""
        service = ScriptedService()
        app = ResponsesApp(engine_of(service), authorize="open")
        output = (await compact(app, input=CONVERSATION)).json()["output"]
        async with MemorySocket(app) as ws:
            (error,) = await ws.turn({"model": "m", "input": [*output, {"type": "item_reference", "id": "x"}]})

        assert error_of(error)["param"] == f"input[{len(output)}].type"

    async def test_a_wrapped_app_makes_and_reads_its_own(self) -> None:
        """Without this the middleware would judge what only the app can read."""
        app = ScriptedApp()
        shell = ResponsesWebSocketMiddleware(app)
        output = (await compact(shell, input=CONVERSATION)).json()["output"]
        async with MemorySocket(shell) as ws:
            events = await ws.turn({"model": "m", "input": [*output, {"role": "user", "content": "x"}]})

        assert events[-1]["type"] == "response.completed"
        assert [item.get("type") for item in app.requests[-1].input][-2] == "compaction"


def test_usage_of_two_generations() -> None:
    from ws_responses.engine.response import added_usage

    both = added_usage(None, Usage(input_tokens=1, output_tokens=2), 10, 20)
    assert (both.input_tokens, both.output_tokens) == (11, 22)
    assert added_usage(None, Usage(), 10, 20).input_tokens is None
