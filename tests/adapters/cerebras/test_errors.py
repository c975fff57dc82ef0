"""What the client is told when Cerebras fails, by the real SDK against a loopback service."""
# ruff: noqa: E402 - the package is optional

import asyncio
import logging

import aiohttp
import httpx
import pytest

from tests.adapters.cerebras.fake import (
    DONE,
    KEY,
    LAST,
    ROLE,
    answer,
    chat,
    chat_prompt,
    completion,
    params,
    refusal,
    sse,
    stream,
    text_of,
    token_prompt,
)
from tests.conftest import require
from ws_responses.backends import ChatPrompt, Delta, PromptNotAccepted, TokenPrompt
from ws_responses.errors import StreamTruncated, UpstreamTimeout, WireError
from ws_responses.testing.services import CUT, HOLD, HttpAnswer, LoopbackService, Piece

require("cerebras")

from cerebras.cloud.sdk import APITimeoutError

from ws_responses.adapters._cerebras_errors import not_opened
from ws_responses.adapters.cerebras import CerebrasBackend


async def fails(
    backend: CerebrasBackend, prompt: ChatPrompt | TokenPrompt | None = None
) -> tuple[list[Delta], WireError]:
    """Return what was sampled before the failure, and that; StopAsyncIteration fails the test if there is none."""
    deltas = list[Delta]()
    generation = backend.generate(prompt or chat_prompt(), params())
    try:
        while True:
            deltas.append(await anext(generation))
    except WireError as error:
        return deltas, error


SLOW_DOWN = refusal(
    429,
    "Requests per minute limit exceeded - too many requests sent.",
    "too_many_requests_error",
    "quota",
    "request_quota_exceeded",
    retry_after="7",
    x_ratelimit_remaining_requests_day="0",
    x_should_retry="true",
)


class TestAnswers:
    """Each documented status (and what services in front of it send); the SDK has a class for some of them only."""

    @pytest.mark.parametrize(
        ("answered", "expected"),
        [
            (
                refusal(400, "Bad.", "invalid_request_error", "temperature", "wrong_api_format"),
                (400, "invalid_request_error", "wrong_api_format"),
            ),
            (
                refusal(400, "Reduce.", "invalid_request_error", "messages", "context_length_exceeded"),
                (400, "invalid_request_error", "context_length_exceeded"),
            ),
            (HttpAnswer(status=400), (400, "invalid_request_error", "invalid_request")),
            (
                refusal(401, "Wrong API Key", "invalid_request_error", "api_key", "wrong_api_key"),
                (502, "server_error", "upstream_authentication_error"),
            ),
            (
                refusal(402, "Payment required", "payment_required_error", None, "payment_required"),
                (402, "insufficient_quota", "insufficient_quota"),
            ),
            (refusal(403, "No.", "x", None, "x"), (502, "server_error", "upstream_authentication_error")),
            (
                refusal(404, "Model x does not exist.", "not_found_error", "model", "model_not_found"),
                (404, "invalid_request_error", "model_not_found"),
            ),
            (HttpAnswer.json({"detail": "Not Found"}, status=404), (502, "server_error", "upstream_error")),
            (HttpAnswer(status=408), (504, "server_error", "upstream_timeout")),
            (refusal(409, "m", "x", None, "x"), (409, "conflict_error", "conflict")),
            (HttpAnswer(status=413), (413, "invalid_request_error", "request_too_large")),
            (
                refusal(422, "Tools ...", "invalid_request_error", "tools", "wrong_api_format"),
                (422, "invalid_request_error", "wrong_api_format"),
            ),
            (SLOW_DOWN, (429, "rate_limit_error", "rate_limit_exceeded")),
            (
                refusal(500, "m", "server_error", None, "x"),
                (500, "server_error", "server_error"),
            ),
            (
                HttpAnswer(status=502, content_type="text/html", body=[b"<html>502</html>"]),
                (502, "server_error", "server_error"),
            ),
            (refusal(503, "busy", "server_error", None, "x"), (503, "server_error", "server_is_overloaded")),
            (HttpAnswer(status=504), (504, "server_error", "upstream_timeout")),
            (HttpAnswer(status=529), (503, "server_error", "server_is_overloaded")),
            (HttpAnswer(status=301), (502, "server_error", "upstream_error")),
        ],
    )
    async def test_they_are_told_and_asked_once(
        self,
        service: LoopbackService,
        backend: CerebrasBackend,
        answered: HttpAnswer,
        expected: tuple[int, str, str],
    ) -> None:
        """The SDK would ask again by itself, behind the back of the engine and its deadline."""
        service.script(answered)
        deltas, error = await fails(backend)

        assert deltas == []
        assert (error.status, error.type, error.code) == expected
        assert len(service.requests) == 1

    async def test_a_429_says_when_to_come_back(self, service: LoopbackService, backend: CerebrasBackend) -> None:
        service.script(SLOW_DOWN)
        _, error = await fails(backend)

        assert error.message == "Requests per minute limit exceeded - too many requests sent."
        assert error.headers == {
            "retry-after": "7",
            "x-ratelimit-remaining-requests-day": "0",
            "x-should-retry": "true",
        }

    async def test_a_400_names_the_field(self, service: LoopbackService, backend: CerebrasBackend) -> None:
        service.script(refusal(400, "Bad.", "invalid_request_error", "temperature", "wrong_api_format"))
        assert (await fails(backend))[1].param == "temperature"

    async def test_the_next_request_uses_the_same_connection(
        self, service: LoopbackService, backend: CerebrasBackend
    ) -> None:
        service.script(SLOW_DOWN, HttpAnswer(status=500), answer("Hello"))
        await fails(backend)
        await fails(backend)
        assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "Hello"
        assert service.connections == 1

    async def test_nothing_of_it_is_logged(
        self, service: LoopbackService, backend: CerebrasBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        service.script(refusal(401, f"Wrong API Key {KEY}", "x", "api_key", "wrong_api_key"))
        with caplog.at_level(logging.INFO):
            _, error = await fails(backend, chat_prompt("the secret plan"))
        assert KEY not in caplog.text + str(error) + repr(error.__dict__)
        assert "the secret plan" not in caplog.text


class TestWithinTheStream:
    @pytest.mark.parametrize(
        ("status", "code"), [(500, "server_error"), (503, "server_is_overloaded"), (429, "rate_limit_exceeded")]
    )
    async def test_an_error_in_a_200(
        self, service: LoopbackService, backend: CerebrasBackend, status: int, code: str
    ) -> None:
        """Without this a turn would end as a good one in the middle of a sentence."""
        event = {"error": {"message": "boom", "type": "server_error", "code": "x"}, "status_code": status}
        service.script(stream([ROLE, chat({"content": "a"}), b"event: error\n" + sse(event)]), answer("Hello"))
        deltas, error = await fails(backend)

        assert text_of(deltas) == "a"
        assert (error.status, error.code) == (status, code)
        assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "Hello"

    async def test_an_error_ends_the_services_work(self, service: LoopbackService, backend: CerebrasBackend) -> None:
        service.script(stream([ROLE, b"data: {not json}\n\n", HOLD]))
        await fails(backend)
        await service.wait_until(lambda: service.hung_up == 1)

    @pytest.mark.parametrize(
        "body",
        [[CUT], [ROLE, CUT], [ROLE, chat({"content": "a"}), CUT], [ROLE, chat({"content": "a"})[:20], CUT], [ROLE], []],
    )
    async def test_a_stream_that_breaks_off(
        self, service: LoopbackService, backend: CerebrasBackend, body: list[Piece]
    ) -> None:
        service.script(stream(body), answer("Hello"))
        _, error = await fails(backend)

        assert isinstance(error, StreamTruncated)
        assert text_of([delta async for delta in backend.generate(chat_prompt(), params())]) == "Hello"

    async def test_an_answer_that_is_whole_survives_the_loss_of_its_end(
        self, service: LoopbackService, backend: CerebrasBackend
    ) -> None:
        """Without this a turn of which all is known would be sampled, and paid for, again."""
        service.script(stream([ROLE, chat({"content": "a"}), LAST, CUT]))
        deltas = [delta async for delta in backend.generate(chat_prompt(), params())]
        assert (text_of(deltas), deltas[-1].finish) == ("a", "stop")


class TestConnections:
    @pytest.mark.parametrize(
        ("cause", "code"),
        [
            (aiohttp.SocketTimeoutError(), "upstream_timeout"),
            (aiohttp.ConnectionTimeoutError(), "upstream_unreachable"),
            (aiohttp.ServerDisconnectedError(), "upstream_unreachable"),
            (ConnectionResetError(), "upstream_unreachable"),
        ],
    )
    def test_what_was_behind_it_tells_a_silence_from_a_loss(self, cause: Exception, code: str) -> None:
        """As the transport and the SDK wrap it: all of these look like timeouts on the outside."""
        request = httpx.Request("POST", "http://x")
        error, between = APITimeoutError(request), httpx.ConnectTimeout("x")
        error.__cause__, between.__cause__ = between, cause
        assert not_opened(error, 60.0).code == code

    async def test_nobody_listens(self, service: LoopbackService) -> None:
        await service.shut()
        backend = CerebrasBackend(api_key=KEY, base_url=service.url)
        _, error = await fails(backend)
        await backend.aclose()
        assert (error.status, error.code) == (503, "upstream_unreachable")

    async def test_a_name_that_does_not_resolve(self) -> None:
        backend = CerebrasBackend(api_key=KEY, base_url="http://nobody.invalid")
        _, error = await fails(backend)
        await backend.aclose()
        assert (error.status, error.code) == (503, "upstream_unreachable")

    async def test_a_connection_lost_before_the_answer(
        self, service: LoopbackService, backend: CerebrasBackend
    ) -> None:
        """The transport calls that a timeout (of a connect!); the client would be told of a silence that was none."""
        service.script(HttpAnswer(held=True))
        failing = asyncio.ensure_future(fails(backend))
        await service.wait_until(lambda: service.running == 1)
        await service.shut()
        _, error = await failing
        assert error.code == "upstream_unreachable"

    async def test_silence_before_the_answer(self, service: LoopbackService) -> None:
        backend = CerebrasBackend(api_key=KEY, base_url=service.url, timeout_s=0.3)
        service.script(HttpAnswer(held=True))
        _, error = await fails(backend)
        assert isinstance(error, UpstreamTimeout)
        assert "no answer within 0.3 seconds" in error.message
        await service.wait_until(lambda: service.hung_up == 1)
        await backend.aclose()

    async def test_silence_within_the_answer(self, service: LoopbackService) -> None:
        backend = CerebrasBackend(api_key=KEY, base_url=service.url, timeout_s=0.3)
        service.script(stream([ROLE, chat({"content": "a"}), HOLD]))
        deltas, error = await fails(backend)
        assert text_of(deltas) == "a"
        assert isinstance(error, UpstreamTimeout)
        await service.wait_until(lambda: service.hung_up == 1)
        await backend.aclose()


class TestTokenIdsAreNotTaken:
    """The engine goes on by chat then, for good; so only what speaks of the way, not of what a client asked for."""

    @pytest.mark.parametrize(
        "answered",
        [
            HttpAnswer.json({"detail": "Not Found"}, status=404),
            refusal(404, "Model x does not exist.", "not_found_error", "model", "model_not_found"),
            HttpAnswer(status=405),
            HttpAnswer(status=415),
            HttpAnswer(status=501),
            refusal(
                400, "prompt.0: value is not a string", "invalid_request_error", "validation_error", "wrong_api_format"
            ),
            refusal(422, "Expected a string.", "invalid_request_error", "prompt", "wrong_api_format"),
            refusal(400, "m", "invalid_request_error", "prompt[0]", "wrong_api_format"),
            refusal(
                400, "return_raw_tokens: unsupported", "invalid_request_error", "validation_error", "wrong_api_format"
            ),
            refusal(400, "Not for completions.", "invalid_request_error", "model", "wrong_api_format"),
            refusal(400, "m", "invalid_request_error", None, "model_not_supported"),
        ],
    )
    async def test_the_other_way_is_left(
        self, service: LoopbackService, backend: CerebrasBackend, answered: HttpAnswer
    ) -> None:
        service.script(answered)
        deltas, error = await fails(backend, token_prompt())
        assert deltas == []
        assert isinstance(error, PromptNotAccepted)

    @pytest.mark.parametrize(
        ("answered", "code"),
        [
            (
                refusal(400, "Too long.", "invalid_request_error", "prompt", "context_length_exceeded"),
                "context_length_exceeded",
            ),
            (
                refusal(400, "Current length is 9 while limit is 8; maximum context length", "x", "prompt", "y"),
                "context_length_exceeded",
            ),
            (
                refusal(400, "temperature: too hot", "invalid_request_error", "temperature", "wrong_api_format"),
                "wrong_api_format",
            ),
            (refusal(422, "m", "invalid_request_error", "max_tokens", "wrong_api_format"), "wrong_api_format"),
            (HttpAnswer(status=400), "invalid_request"),
            (SLOW_DOWN, "rate_limit_exceeded"),
            (HttpAnswer(status=500), "server_error"),
        ],
    )
    async def test_other_failures_are_failures(
        self, service: LoopbackService, backend: CerebrasBackend, answered: HttpAnswer, code: str
    ) -> None:
        """Without this one hot temperature would cost a model its token cache."""
        service.script(answered)
        _, error = await fails(backend, token_prompt())
        assert not isinstance(error, PromptNotAccepted)
        assert error.code == code

    async def test_after_the_first_delta_it_is_too_late(
        self, service: LoopbackService, backend: CerebrasBackend
    ) -> None:
        late = {"error": {"message": "prompt: no", "param": "prompt", "code": "x"}, "status_code": 400}
        service.script(stream([completion("", [1]), sse(late), DONE]))
        deltas, error = await fails(backend, token_prompt())
        assert len(deltas) == 1
        assert not isinstance(error, PromptNotAccepted)

    async def test_chat_has_no_other_way(self, service: LoopbackService, backend: CerebrasBackend) -> None:
        service.script(refusal(404, "Model x does not exist.", "not_found_error", "model", "model_not_found"))
        _, error = await fails(backend)
        assert (type(error) is PromptNotAccepted, error.code) == (False, "model_not_found")

    async def test_a_schema_cannot_be_held_to(self, service: LoopbackService, backend: CerebrasBackend) -> None:
        """Without this an answer that had to follow a schema would follow none; chat can do it."""
        assert not backend.accepts.constrains
        _, error = await fails(backend, token_prompt(schema=b"{}"))
        assert isinstance(error, PromptNotAccepted)
        assert service.requests == []
