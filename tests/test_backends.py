"""The contract's own parts, and what a client is told when a service fails."""

import json
import logging
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ws_responses.backend_errors import nonsense, service_error, stream_error, timed_out, unreachable
from ws_responses.backends import Delta, ToolCallDelta, may_succeed_again
from ws_responses.errors import UpstreamTimeout, WireError
from ws_responses.testing.strategies import json_values

KEY = "sk-secret-1234"


def answered(status: int, body: Any, **headers: str) -> WireError:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return service_error(status, [(name.encode(), value.encode()) for name, value in headers.items()], raw)


def told(error: WireError) -> tuple[int, str, str]:
    return error.status, error.type, error.code


class TestAnswers:
    """Without the table a client retries what cannot succeed, or takes the operator's fault for its own."""

    def test_a_400_keeps_what_the_service_says_of_the_request(self) -> None:
        body = {"error": {"message": "No.", "type": "x", "param": "temperature", "code": "bad_temperature"}}
        error = answered(400, body)

        assert told(error) == (400, "invalid_request_error", "bad_temperature")
        assert (error.param, error.message) == ("temperature", "No.")

    @pytest.mark.parametrize(
        "error",
        [
            {"message": "m", "type": "invalid_request_error", "param": "messages", "code": "context_length_exceeded"},
            {"message": "m", "type": "exceed_context_size_error", "code": 400, "n_prompt_tokens": 9, "n_ctx": 8},
            {"message": "This model's maximum context length is 8 tokens. However, ...", "code": 400},
            {"message": "The input (9 tokens) is longer than the model's context length (8 tokens).", "code": 400},
        ],
    )
    @pytest.mark.parametrize("status", [400, 422])
    def test_a_prompt_that_is_too_long_has_one_code(self, status: int, error: dict[str, Any]) -> None:
        """Codex compacts when it reads this code."""
        assert told(answered(status, {"error": error})) == (400, "invalid_request_error", "context_length_exceeded")

    @pytest.mark.parametrize("status", [401, 403, 407])
    def test_our_key_is_not_the_clients_affair(self, status: int, caplog: pytest.LogCaptureFixture) -> None:
        """Without this a client would be told that its own good key is bad, and read a part of ours."""
        body = {"error": {"message": f"Incorrect API key: {KEY}", "code": "invalid_api_key", "param": KEY}}
        with caplog.at_level(logging.DEBUG):
            error = answered(status, body, **{"openai-organization": "org-1"})

        assert told(error) == (502, "server_error", "upstream_authentication_error")
        assert KEY not in f"{error} {error.param} {error.extra} {caplog.text}"
        assert str(status) in caplog.text
        assert error.headers == {}
        assert not may_succeed_again(error)

    def test_the_operators_bill_is_not_the_clients_affair(self) -> None:
        error = answered(402, {"error": {"message": "Pay at https://x/org-1", "code": "payment_required"}})

        assert told(error) == (402, "insufficient_quota", "insufficient_quota")
        assert "org-1" not in error.message

    @pytest.mark.parametrize(
        "body",
        [
            {"error": {"message": "The model `x` does not exist.", "param": "model", "code": 404}},
            {"error": {"message": "Unknown.", "code": "model_not_found"}},
            {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404},
        ],
    )
    def test_an_unknown_model(self, body: Any) -> None:
        assert told(answered(404, body)) == (404, "invalid_request_error", "model_not_found")

    @pytest.mark.parametrize("body", [b"Not Found", {"detail": "Not Found"}, b"<html><h1>404</h1></html>", b""])
    def test_a_wrong_address_is_not_an_unknown_model(self, body: Any) -> None:
        error = answered(404, body)
        assert told(error) == (502, "server_error", "upstream_error")
        assert "base URL" in error.message

    @pytest.mark.parametrize(
        ("status", "expected"),
        [
            (405, (502, "server_error", "upstream_error")),
            (408, (504, "server_error", "upstream_timeout")),
            (409, (409, "conflict_error", "conflict")),
            (413, (413, "invalid_request_error", "request_too_large")),
            (415, (502, "server_error", "upstream_error")),
            (422, (422, "invalid_request_error", "c")),
            (500, (500, "server_error", "server_error")),
            (502, (502, "server_error", "server_error")),
            (503, (503, "server_error", "server_is_overloaded")),
            (504, (504, "server_error", "upstream_timeout")),
            (529, (503, "server_error", "server_is_overloaded")),
            (302, (502, "server_error", "upstream_error")),
            (200, (502, "server_error", "upstream_error")),
        ],
    )
    def test_other_statuses(self, status: int, expected: tuple[int, str, str]) -> None:
        assert told(answered(status, {"error": {"message": "m", "type": "t", "code": "c"}})) == expected

    @pytest.mark.parametrize(
        ("code", "expected"),
        [
            ("request_quota_exceeded", ("rate_limit_error", "rate_limit_exceeded")),
            ("rate_limit_exceeded", ("rate_limit_error", "rate_limit_exceeded")),
            ("slow_down", ("rate_limit_error", "slow_down")),
            ("insufficient_quota", ("insufficient_quota", "insufficient_quota")),
        ],
    )
    def test_a_429_says_when_to_come_back(self, code: str, expected: tuple[str, str]) -> None:
        headers = {"Retry-After": "7", "x-ratelimit-remaining-tokens-minute": "0", "openai-organization": "org-1"}
        error = answered(429, {"message": "Slow down.", "type": "too_many_requests_error", "code": code}, **headers)

        assert told(error) == (429, *expected)
        assert error.message == "Slow down."
        assert error.headers == {"retry-after": "7", "x-ratelimit-remaining-tokens-minute": "0"}

    def test_a_503_says_when_to_come_back(self) -> None:
        assert answered(503, b"busy", **{"retry-after": "2"}).headers == {"retry-after": "2"}

    @given(
        st.sampled_from([400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 500, 503, 599, 200, 301, 101]),
        st.binary(max_size=60) | json_values().map(msgspec.json.encode),
    )
    def test_any_answer_becomes_an_error(self, status: int, body: bytes) -> None:
        error = service_error(status, [], body)
        assert 400 <= error.status <= 599
        assert error.code
        assert error.message
        assert "The app" not in error.message or b"The app" in body


class TestStreams:
    @pytest.mark.parametrize(
        ("event", "expected"),
        [
            (
                {"error": {"message": "m", "type": "server_error", "code": "x"}, "status_code": 500},
                (500, "server_error"),
            ),
            ({"error": {"object": "error", "message": "m", "code": 503}}, (503, "server_is_overloaded")),
            ({"error": {"message": "m", "code": "rate_limit_exceeded"}}, (429, "rate_limit_exceeded")),
            ({"error": "m"}, (500, "server_error")),
            ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, (400, "invalid_request")),
            ({"error": {"message": f"m {KEY}", "code": 401}}, (502, "upstream_authentication_error")),
        ],
    )
    def test_an_error_inside_a_stream_is_told_like_an_answer(
        self, event: dict[str, Any], expected: tuple[int, str]
    ) -> None:
        error = stream_error(event)
        assert (error.status, error.code) == expected
        assert KEY not in error.message
        assert error.message

    @given(st.dictionaries(st.sampled_from(["error", "message", "code", "status", "status_code"]), json_values()))
    def test_any_event_becomes_an_error(self, event: dict[str, Any]) -> None:
        assert 400 <= stream_error(event).status <= 599


def test_failures_without_an_answer() -> None:
    assert (unreachable().status, unreachable().code) == (503, "upstream_unreachable")
    assert (nonsense("x").status, nonsense("x").code) == (502, "upstream_error")
    late = timed_out("first event", 30.0)
    assert (late.status, late.code) == (504, "upstream_timeout")
    assert isinstance(late, UpstreamTimeout), "the same code as when an app is silent"
    assert "30 seconds" in late.message


@pytest.mark.parametrize(
    ("status", "code", "headers", "expected"),
    [
        (429, "rate_limit_exceeded", {}, True),
        (429, "rate_limit_exceeded", {"x-should-retry": "false"}, False),
        (429, "insufficient_quota", {}, False),
        (503, "upstream_unreachable", {}, True),
        (502, "upstream_authentication_error", {}, False),
        (400, "invalid_request", {}, False),
    ],
)
def test_what_may_succeed_again(status: int, code: str, headers: dict[str, str], expected: bool) -> None:
    """Without this the engine would ask again in vain, or give up on a busy service."""
    assert may_succeed_again(WireError("m", status=status, code=code, headers=headers)) is expected


@pytest.mark.parametrize(
    ("delta", "expected"),
    [
        (Delta(), False),
        (Delta(finish="stop", service_tier="flex"), False),
        (Delta(ids_lost=True), False),
        (Delta(text="x"), True),
        (Delta(reasoning="x"), True),
        (Delta(refusal="x"), True),
        (Delta(tool_calls=(ToolCallDelta(index=0),)), True),
        (Delta(token_ids=[0]), True),
    ],
)
def test_what_counts_as_output(delta: Delta, expected: bool) -> None:
    """Without this a request could be sent again after something of its answer was passed on."""
    assert delta.has_output is expected
