import json
from typing import Any

from hypothesis import given

from ws_responses.protocol.creates import ResponseCreate, parse_create
from ws_responses.protocol.events import encode
from ws_responses.protocol.frames import decode_members
from ws_responses.testing.strategies import create_bodies
from ws_responses.upstreams.complete import response_members, warm_up_response

# API reference, "The Response object", and the Open Responses schema, which requires all of them (nullable where it says so).
REQUIRED = {
    "id", "object", "created_at", "completed_at", "status", "error", "incomplete_details", "instructions", "metadata",
    "model", "output", "parallel_tool_calls", "temperature", "tool_choice", "tools", "top_p", "background", "usage",
    "max_output_tokens", "max_tool_calls", "previous_response_id", "reasoning", "text", "truncation", "store", "user",
    "service_tier", "top_logprobs", "presence_penalty", "frequency_penalty", "safety_identifier", "prompt_cache_key",
}  # fmt: skip
OF_THE_TURN = {"id", "created_at", "status", "output"}


def create(**members: Any) -> ResponseCreate:
    frame = json.dumps({"type": "response.create", **members}).encode()
    return parse_create(decode_members(frame), None, len(frame))


def members_of(**members: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = json.loads(encode(response_members(create(**members))))
    return decoded


class TestResponseMembers:
    def test_are_all_that_a_strict_client_demands(self) -> None:
        # The Open Responses suite stops at the first one that is missing.
        assert members_of().keys() >= REQUIRED - OF_THE_TURN

    def test_repeat_the_request(self) -> None:
        given = {
            "model": "m",
            "instructions": "Be brief.",
            "tools": [{"type": "function", "name": "f"}],
            "store": False,
        }
        given |= {"temperature": 0.5, "reasoning": {"effort": "low"}, "metadata": {"a": "é"}, "tool_choice": "required"}
        assert members_of(**given).items() >= given.items()

    def test_take_the_documented_defaults(self) -> None:
        members = members_of(store=None, temperature=None)
        assert (members["store"], members["temperature"], members["top_p"], members["truncation"]) == (
            True,
            1,
            1,
            "disabled",
        )
        assert (members["tools"], members["tool_choice"], members["parallel_tool_calls"]) == ([], "auto", True)

    def test_invent_nothing(self) -> None:
        # Usage of 0 would be billed as 0.
        members = members_of()
        for name in (
            "usage",
            "error",
            "incomplete_details",
            "completed_at",
            "instructions",
            "model",
            "max_output_tokens",
        ):
            assert members[name] is None

    def test_do_not_hold_the_frame(self) -> None:
        # 16 MiB of input would live as long as the turn because of 20 bytes of it.
        request = create(model="m", input="x" * 1000)
        assert memoryview(response_members(request)["model"]).obj is not memoryview(request.body["model"]).obj

    @given(create_bodies())
    def test_are_json_for_any_request(self, body: dict[str, Any]) -> None:
        frame = json.dumps({"type": "response.create", **body}).encode()
        members = json.loads(encode(response_members(parse_create(decode_members(frame), None, len(frame)))))
        for name in members.keys() & body.keys() - {"background", "previous_response_id"}:
            if body[name] is not None:
                assert members[name] == body[name]


class TestWarmUp:
    def test_is_complete_and_used_nothing(self) -> None:
        # Clients that validate, and those that bill, read these (B107, B108).
        response = json.loads(encode(warm_up_response(create(model="m", previous_response_id="resp_0"), "resp_1", 5)))
        assert response.keys() >= REQUIRED
        assert (response["id"], response["previous_response_id"], response["status"]) == (
            "resp_1",
            "resp_0",
            "completed",
        )
        assert (response["output"], response["created_at"], response["completed_at"]) == ([], 5, 5)
        usage = response["usage"]
        assert (usage["output_tokens"], usage["total_tokens"]) == (0, 0)
        assert usage["output_tokens_details"] == {"reasoning_tokens": 0}
