import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.upstreams.wire import Event, assert_legal, decoded, play
from ws_responses.errors import UpstreamError, WireError
from ws_responses.protocol.events import encode, encode_error
from ws_responses.testing.strategies import event_streams, json_values
from ws_responses.upstreams.answers import error_from_answer, error_from_event
from ws_responses.upstreams.repair import TurnStream
from ws_responses.upstreams.whole import as_events, whole_response

JSON = [(b"content-type", b"application/json")]
TRACEBACK = 'Traceback (most recent call last):\n  File "/srv/secret.py", line 1\nRuntimeError: key sk-1'


def wire(error: WireError) -> Event:
    """Return the frame that the client gets."""
    frame = decoded(encode_error(error))
    assert frame["type"] == "error"
    assert type(frame["status"]) is int, "Codex ignores error frames without a status"
    assert 400 <= frame["status"] <= 599
    assert isinstance(frame["error"]["code"], str), "Open Responses demands a string code"
    assert frame["error"]["code"]
    assert isinstance(frame["error"]["message"], str)
    assert frame["error"]["message"]
    assert frame["error"]["type"]
    return frame


def answered(status: int, body: Any, headers: list[tuple[bytes, bytes]] | None = None) -> Event:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return wire(error_from_answer(status, JSON if headers is None else headers, raw))


# -- HTTP errors -------------------------------------------------------------------------------------------------------


class TestErrorAnswers:
    def test_openai_shape_is_kept_member_by_member(self) -> None:
        error = {
            "message": "No.",
            "type": "invalid_request_error",
            "param": "input[0]",
            "code": "bad",
            "plan_type": "pro",
        }
        assert answered(400, {"error": error}) == {"type": "error", "status": 400, "sequence_number": 0, "error": error}

    @pytest.mark.parametrize(
        ("status", "code", "kind"),
        [
            (400, "invalid_request", "invalid_request_error"),
            (401, "invalid_api_key", "invalid_request_error"),
            (403, "permission_denied", "invalid_request_error"),
            (404, "not_found", "invalid_request_error"),
            (409, "invalid_request", "invalid_request_error"),
            (422, "invalid_request", "invalid_request_error"),
            (429, "rate_limit_exceeded", "rate_limit_error"),
            (500, "server_error", "server_error"),
            (502, "server_error", "server_error"),
            (503, "server_is_overloaded", "server_error"),
        ],
    )
    @pytest.mark.parametrize("code_given", [None, "", 0, "None", "missing"])
    def test_a_code_that_is_missing_follows_from_the_status(
        self, status: int, code: str, kind: str, code_given: Any
    ) -> None:
        # B040: a null code slips past the retry rules of clients.
        body = {"message": "x"} if code_given == "missing" else {"message": "x", "code": code_given}
        error = answered(status, {"error": body})["error"]
        assert (error["type"], error["message"]) == (kind, "x")
        assert error["code"] == (code if code_given != 0 else "0")

    @pytest.mark.parametrize(
        ("body", "message", "param"),
        [
            ({"detail": "Not here."}, "Not here.", None),
            (
                {
                    "detail": [
                        {
                            "type": "missing",
                            "loc": ["body", "input", 0, "content"],
                            "msg": "Field required",
                            "input": {},
                        }
                    ]
                },
                "input[0].content: Field required",
                "input[0].content",
            ),
            (
                {"detail": [{"loc": ["query", "model"], "msg": "Field required"}]},
                "query.model: Field required",
                "query.model",
            ),
            ({"detail": [{"loc": ["body"], "msg": "Field required"}]}, "Field required", None),
            ({"detail": [{"msg": "Bad"}]}, "Bad", None),
            ({"detail": {"error": {"message": "Deep.", "param": "model"}}}, "Deep.", "model"),
            ({"detail": {"message": "Flat.", "code": "c"}}, "Flat.", None),
            ({"detail": {"error": "Text."}}, "Text.", None),
            ({"detail": []}, "The app refused the request.", None),
            ({"detail": [5]}, "The app refused the request.", None),
            ({"message": "Bare.", "param": "p"}, "Bare.", "p"),
            ({"error": "A text."}, "A text.", None),
            ({"title": "Problem", "status": 422}, "Problem", None),
            ({"title": "Problem", "detail": "What is wrong."}, "What is wrong.", None),
            ("A JSON text.", "A JSON text.", None),
            (b"Plain text.", "Plain text.", None),
            ("Zeile 1\n\tZeile 2 é".encode(), "Zeile 1\n\tZeile 2 é", None),
            ({"error": {"message": "x", "param": "None", "type": "None", "code": "400"}}, "x", None),
        ],
    )
    def test_every_shape_gives_its_text(self, body: Any, message: str, param: str | None) -> None:
        # Seven third-party apps have four shapes; a client must not be left with "status 422".
        error = answered(422, body)["error"]
        assert (error["message"], error["param"], error["type"]) == (message, param, "invalid_request_error")
        assert error["code"] == ("c" if "Flat" in message else "invalid_request")

    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"<!DOCTYPE html><html><body>502 secret</body></html>",
            b"<h1>secret</h1>",
            b"\x00\x01secret",
            b"\xff\xfesecret",
            b"[" * 100_000,
            b"null",
            b"[]",
            b"5",
            b"{}",
            b'{"error":null}',
            b'{"error":{}}',
            b'{"error":{"message":5}}',
            b'{"error":{"message":"  "}}',
            b'{"x":1e999}',
            TRACEBACK.encode(),
            json.dumps({"detail": TRACEBACK}).encode(),
            json.dumps({"error": {"message": TRACEBACK}}).encode(),
            json.dumps({"error": {"message": "", "trace": TRACEBACK, "deep": {"x": [TRACEBACK]}}}).encode(),
            json.dumps(TRACEBACK).encode(),
        ],
    )
    def test_nothing_that_must_not_be_shown_is_shown(self, body: bytes) -> None:
        # B021, B130: no markup, no file names of the server, no bytes that are no text.
        frame = answered(502, body)
        text = json.dumps(frame)
        assert "secret" not in text
        assert "Traceback" not in text
        assert "[[[" not in text or body.startswith(b"[[")
        assert frame["status"] == 502
        assert len(text) < 2000

    def test_members_that_are_shown_stay(self) -> None:
        error = answered(429, {"error": {"message": "x", "resets_at": 17, "plan_type": "pro", "trace": TRACEBACK}})[
            "error"
        ]
        assert (error["resets_at"], error["plan_type"]) == (17, "pro")
        assert "trace" not in error

    def test_long_texts_are_cut(self) -> None:
        for body in ("é" * 100_000).encode(), {"error": {"message": "é" * 100_000}}:
            assert answered(500, body)["error"]["message"] == "é" * 1000 + "..."

    def test_headers_for_clients_are_on_top_and_inside(self) -> None:
        # B130: Codex and opencode read the top ones, pydantic-ai the inner ones.
        headers = [
            (b"Retry-After", b"7"),
            (b"X-RateLimit-Remaining-Tokens", b"0"),
            (b"x-request-id", b"r"),
            (b"set-cookie", b"session=secret"),
            (b"server", b"uvicorn"),
        ]
        frame = answered(429, {"error": {"message": "x"}}, headers)
        expected = {"retry-after": "7", "x-ratelimit-remaining-tokens": "0", "x-request-id": "r"}
        assert frame["headers"] == frame["error"]["headers"] == expected

    @pytest.mark.parametrize("status", [200, 204, 301, 302, 304, 307, 101, 0, 600, 999])
    def test_a_status_that_is_no_error_and_no_answer(self, status: int) -> None:
        # A redirect would be followed by a client, not by us: it is the app's fault, 502, and never a success.
        error = error_from_answer(status, [(b"location", b"/elsewhere")], b"")
        assert (error.status, error.code) == (502, "upstream_error")
        assert str(status) in error.message

    def test_an_event_stream_with_an_error_status(self) -> None:
        body = b'event: error\ndata: {"type":"error","error":{"message":"Busy.","code":"slow_down"}}\n\n'
        frame = answered(429, body, [(b"content-type", b"text/event-stream")])
        assert (frame["status"], frame["error"]["code"], frame["error"]["message"]) == (429, "slow_down", "Busy.")
        flat = b'data: {"type":"error","message":"Busy.","code":"slow_down"}'
        assert answered(429, flat)["error"]["message"] == "Busy."

    @given(st.integers(400, 599), json_values(surrogates=True))
    def test_any_json_gives_a_legal_frame(self, status: int, body: Any) -> None:
        for shape in (body, {"error": body}, {"detail": body}, {"detail": {"error": body}}, {"message": body}):
            assert answered(status, shape)["status"] == status

    @given(st.integers(400, 599), st.binary(max_size=40))
    def test_any_bytes_give_a_legal_frame(self, status: int, body: bytes) -> None:
        assert answered(status, body)["status"] == status


# -- error events ------------------------------------------------------------------------------------------------------


class TestErrorEvents:
    @pytest.mark.parametrize(
        ("event", "status", "code", "message"),
        [
            ({"error": {"message": "m", "code": "c", "type": "t"}, "status": 418}, 418, "c", "m"),
            ({"error": {"message": "m", "code": "c"}, "status_code": 418}, 418, "c", "m"),
            ({"error": {"message": "m", "code": "c"}, "status": "418"}, 418, "c", "m"),
            ({"error": {"message": "m", "code": "c"}, "status": 200}, 500, "c", "m"),
            ({"error": {"message": "m", "code": "c"}, "status": True}, 500, "c", "m"),
            ({"message": "m", "code": "rate_limit_exceeded", "sequence_number": 3}, 429, "rate_limit_exceeded", "m"),
            ({"message": "m", "code": None}, 500, "server_error", "m"),
            ({"error": {"message": "m", "code": "404"}}, 404, "not_found", "m"),
            ({"message": "m", "code": "404"}, 404, "not_found", "m"),
            ({"message": "m", "code": 503}, 503, "server_is_overloaded", "m"),
            ({"error": {"message": "m", "type": "invalid_request_error"}}, 400, "invalid_request", "m"),
            ({"error": "m"}, 500, "server_error", "m"),
            (
                {"error": {"message": "m", "code": "previous_response_not_found"}},
                400,
                "previous_response_not_found",
                "m",
            ),
            ({}, 500, "server_error", "The app answered with an error (status 500)."),
            ({"error": []}, 500, "server_error", "The app answered with an error (status 500)."),
        ],
    )
    def test_all_shapes(self, event: Event, status: int, code: str, message: str) -> None:
        frame = wire(error_from_event({"type": "error", **event}))
        assert (frame["status"], frame["error"]["code"], frame["error"]["message"]) == (status, code, message)
        assert "sequence_number" not in frame["error"]
        assert "status" not in frame["error"]
        assert "status_code" not in frame["error"]

    def test_the_limit_error_of_codex_keeps_what_codex_reads(self) -> None:
        event = {
            "type": "error",
            "status": 429,
            "error": {"type": "usage_limit_reached", "message": "m", "plan_type": "pro", "resets_at": 1738888888},
            "headers": {"X-Codex-Primary-Used-Percent": 100.0, "x-codex-flag": True, "x-codex-none": None},
        }
        frame = wire(error_from_event(event))
        assert frame["headers"] == {"x-codex-primary-used-percent": "100.0", "x-codex-flag": "true"}
        assert frame["error"]["type"] == "usage_limit_reached"
        assert (frame["error"]["plan_type"], frame["error"]["resets_at"]) == ("pro", 1738888888)

    @pytest.mark.parametrize(
        "told",
        [
            {"retry-after": "7\r\nset-cookie: a=b"},
            {"retry-after": "7\n"},
            {"retry-after": "\uff17"},
            {"retry-after": ""},
            {"retry-after": {"s": 7}},
            {"x-ratelimit-a\r\nset-cookie": "b"},
            {"content-length": "0", "transfer-encoding": "chunked", "set-cookie": "a=b"},
        ],
    )
    def test_no_header_comes_out_of_json_that_clients_do_not_need_or_http_cannot_hold(self, told: Event) -> None:
        """Over HTTP they become headers of the answer: a line end would begin another one, or the body."""
        for event in (
            {"type": "error", "headers": told},
            {"type": "error", "error": {"message": "x", "headers": told}},
        ):
            assert not error_from_event(event).headers

    @given(st.dictionaries(st.sampled_from(["error", "code", "message", "status", "headers", "param"]), json_values()))
    def test_any_event_gives_a_legal_frame(self, event: Event) -> None:
        wire(error_from_event({"type": "error", **event}))
        wire(error_from_event({"type": "error", "error": event}))


# -- JSON answers ------------------------------------------------------------------------------------------------------


def streamed(response: Any, **options: Any) -> list[bytes]:
    """Return the frames of a response that came as JSON."""
    body = response if isinstance(response, bytes) else json.dumps(response).encode()
    events = as_events(whole_response(body), clock=lambda: 1.0)
    return play(map(encode, events), TurnStream("resp_ours", **options))


def joined(events: list[Event]) -> list[Event]:
    result: list[Event] = []
    for event in events:
        bare = {name: value for name, value in event.items() if name != "sequence_number"}
        before = result[-1] if result else {}
        if bare["type"].endswith(".delta") and _but_delta(before) == _but_delta(bare):
            before["delta"] += bare["delta"]
        else:
            result.append(bare)
    return result


def _but_delta(event: Event) -> Event:
    return {name: value for name, value in event.items() if name != "delta"}


class TestJsonAnswers:
    @given(event_streams())
    def test_equals_the_stream_that_the_app_would_have_sent(self, events: list[Event]) -> None:
        # B098: a client that gets its turns over a socket must not see whether the app streams.
        response = events[-1]["response"]
        frames = [decoded(frame) for frame in streamed(response)]
        assert_legal(frames)
        # The builder does not stream the arguments of hosted calls; we do.
        mcp = [item["id"] for item in response["output"] if item["type"] == "mcp_call"]
        frames = [frame for frame in frames if frame.get("item_id") not in mcp]
        for frame, event in zip(joined(frames), joined(events), strict=True):
            item = event.get("item", {})
            if event["type"].endswith("added") and item.get("type") == "mcp_call" and "arguments" in item:
                item["arguments"] = ""
            assert frame == event, event["type"]

    @given(event_streams(), st.sampled_from([None, 1]), st.booleans())
    def test_items_are_kept_to_the_byte(self, events: list[Event], indent: int | None, ensure_ascii: bool) -> None:
        response = events[-1]["response"]
        body = json.dumps(response, indent=indent, ensure_ascii=ensure_ascii).encode()
        turn = TurnStream("resp_ours")
        play(map(encode, as_events(whole_response(body))), turn)
        assert turn.end is not None
        assert b"".join(turn.end.items) == b"".join(msgspec.json.decode(body, type=_Output).output)

    def test_big_numbers_survive(self) -> None:
        item = b'{"type":"x","n":1e999,"m":123456789012345678901234567890,"f":0.10000000000000000001}'
        frames = streamed(b'{"id":"r","output":[' + item + b"]}")
        assert item in frames[-1]
        assert item in frames[-2]

    @pytest.mark.parametrize(
        ("status", "terminal"),
        [
            ("completed", "response.completed"),
            ("failed", "response.failed"),
            ("cancelled", "response.failed"),
            ("incomplete", "response.incomplete"),
            ("requires_action", "response.completed"),
            (None, "response.completed"),
            (5, "response.completed"),
            (["x"], "response.completed"),
            ("missing", "response.completed"),
        ],
    )
    def test_the_status_says_how_it_ends(self, status: Any, terminal: str) -> None:
        # B098: failure stays failure.
        response = {"id": "resp_1", "output": []} | ({} if status == "missing" else {"status": status})
        frames = [decoded(frame) for frame in streamed(response)]
        assert_legal(frames)
        assert frames[-1]["type"] == terminal
        assert isinstance(frames[-1]["response"]["status"], str)
        assert frames[0]["response"]["status"] == "in_progress"

    def test_failed_keeps_its_error(self) -> None:
        error = {"code": "rate_limit_exceeded", "message": "Slow down."}
        frames = [decoded(frame) for frame in streamed({"id": "r", "status": "failed", "output": [], "error": error})]
        assert (frames[-1]["type"], frames[-1]["response"]["error"]) == ("response.failed", error)
        assert frames[0]["response"]["error"] is None

    def test_an_error_without_a_status_is_a_failure(self) -> None:
        frames = [
            decoded(frame) for frame in streamed({"id": "r", "output": [], "error": {"code": "c", "message": "m"}})
        ]
        assert frames[-1]["type"] == "response.failed"

    def test_incomplete_details_come_at_the_end_only(self) -> None:
        details = {"reason": "max_output_tokens"}
        response = {"id": "r", "status": "incomplete", "output": [], "incomplete_details": details, "completed_at": 5}
        frames = [decoded(frame) for frame in streamed(response)]
        assert frames[-1]["response"]["incomplete_details"] == details
        assert (frames[0]["response"]["incomplete_details"], frames[0]["response"]["completed_at"]) == (None, None)

    @pytest.mark.parametrize("status", ["queued", "in_progress"])
    def test_a_background_response_is_no_answer(self, status: str) -> None:
        # Passed on as completed, it would be an empty success, and its real end would never come.
        with pytest.raises(UpstreamError, match=status) as caught:
            whole_response(json.dumps({"id": "r", "status": status, "output": []}).encode())
        assert (caught.value.status, caught.value.code) == (502, "upstream_error")

    @pytest.mark.parametrize(
        "body",
        [
            b"", b"{", b"[]", b"null", b"5", b'"x"', b"{}", b"<html>", b'{"output":{}}', b'{"output":null}',
            b'{"output":[5]}', b'{"output":[null]}', b'{"output":"x"}', b'{"choices":[]}', b'{"output":[[]]}',
            b"[" * 100_000, b'{"output":' + b"[" * 100_000, b'{"output":[],"x":NaN}',
        ],
    )  # fmt: skip
    def test_what_is_no_response_is_an_error_of_the_app(self, body: bytes) -> None:
        with pytest.raises(UpstreamError) as caught:
            whole_response(body)
        assert (caught.value.status, caught.value.code) == (502, "upstream_error")

    def test_an_error_object_with_status_200(self) -> None:
        with pytest.raises(UpstreamError) as caught:
            whole_response(b'{"error":{"message":"Slow down.","code":"rate_limit_exceeded"}}')
        assert (caught.value.status, caught.value.code, caught.value.message) == (
            429,
            "rate_limit_exceeded",
            "Slow down.",
        )

    def test_a_byte_order_mark_and_odd_text_do_no_harm(self) -> None:
        body = b'\xef\xbb\xbf{"id":"r","output":[{"type":"message","content":[{"type":"output_text","text":"\\ud800\xff"}]}]}'
        frames = [decoded(frame) for frame in streamed(body)]
        assert_legal(frames)
        assert frames[-1]["response"]["output"][0]["content"][0]["text"] == "\ufffd\ufffd"

    def test_items_without_ids_get_one_for_their_events(self) -> None:
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]}
        frames = [decoded(frame) for frame in streamed({"output": [item, item]})]
        assert_legal(frames)
        assert len({frame["item_id"] for frame in frames if "item_id" in frame}) == 2
        assert frames[-1]["response"]["output"] == [item, item]

    @pytest.mark.parametrize(
        "item",
        [
            {"type": "message", "content": None},
            {"type": "message", "content": "text"},
            {"type": "message", "content": [5, None, {"type": 5}, {"type": "output_text", "text": None}, {}]},
            {"type": "message", "content": [{"type": "made_up", "x": 1}]},
            {"type": "function_call", "arguments": {"a": 1}},
            {"type": "function_call", "arguments": None},
            {"type": "function_call"},
            {"type": "reasoning", "summary": None, "content": [{"type": "reasoning_text", "text": "x"}]},
            {"type": ["x"]},
            {"id": 5},
            {},
        ],
    )
    def test_odd_items_go_through_whole(self, item: Event) -> None:
        frames = [decoded(frame) for frame in streamed({"output": [item]})]
        assert_legal(frames)
        assert frames[-1]["response"]["output"] == [item]

    def test_annotations_come_as_events(self) -> None:
        annotation = {
            "type": "url_citation",
            "url": "https://example.com",
            "title": "t",
            "start_index": 0,
            "end_index": 1,
        }
        part = {"type": "output_text", "text": "x", "annotations": [annotation], "logprobs": [{"token": "x"}]}
        item = {"type": "message", "id": "msg_1", "content": [part]}
        frames = {frame["type"]: frame for frame in map(decoded, streamed({"output": [item]}))}
        event = frames["response.output_text.annotation.added"]
        assert (event["annotation"], event["annotation_index"], event["item_id"]) == (annotation, 0, "msg_1")
        assert frames["response.content_part.added"]["part"]["annotations"] == []
        assert frames["response.output_text.delta"]["logprobs"] == [{"token": "x"}]

    @pytest.mark.parametrize(
        ("item", "name"),
        [
            ({"type": "mcp_call", "arguments": "{}"}, "mcp_call_arguments"),
            ({"type": "code_interpreter_call", "code": "1"}, "code_interpreter_call_code"),
        ],
    )
    def test_calls_of_hosted_tools_stream_their_texts(self, item: Event, name: str) -> None:
        frames = [decoded(frame) for frame in streamed({"output": [item | {"id": "i"}]})]
        assert_legal(frames)
        assert [frame["type"] for frame in frames if name in frame["type"]] == [
            f"response.{name}.delta",
            f"response.{name}.done",
        ]

    def test_a_missing_time_is_taken_from_the_clock(self) -> None:
        frames = [decoded(frame) for frame in streamed({"output": []})]
        assert {frame["response"]["created_at"] for frame in frames} == {1}


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]
