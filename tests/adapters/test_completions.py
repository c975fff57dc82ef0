"""The backend for completions of token ids, against a loopback service that writes as the real ones do."""

import json
from array import array
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from ws_responses.adapters.completions import DEFAULT_MAX_TOKENS, CompletionsBackend, HttpLimits
from ws_responses.backends import Backend, Delta, GenerateParams, PromptNotAccepted, TokenPrompt, Usage
from ws_responses.errors import ConfigurationError, WireError
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.backend_conformance import BackendConformance, Generated, generated
from ws_responses.testing.inference import CompletionsService
from ws_responses.testing.services import HttpAnswer, Piece


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def service() -> AsyncIterator[CompletionsService]:
    async with CompletionsService() as service:
        yield service


class TestConformance(BackendConformance):
    @pytest.fixture
    async def backend(self, service: CompletionsService) -> AsyncIterator[CompletionsBackend]:
        backend = CompletionsBackend(service.base_url, api_key=self.key)
        yield backend
        await backend.aclose()

    @pytest.fixture
    async def hasty_backend(self, service: CompletionsService) -> AsyncIterator[CompletionsBackend]:
        limits = HttpLimits(first_event_s=0.4, event_s=0.4, max_event_bytes=64 * 1024)
        backend = CompletionsBackend(service.base_url, api_key=self.key, limits=limits)
        yield backend
        await backend.aclose()


PARAMS = GenerateParams(model="m")
PROMPT = TokenPrompt(rendered=Rendered.of_tokens([1, 2], "json").with_tokens([3, 200_000]))
SCHEMA = b'{"type":"object","properties":{"n":{"type":"integer"}}}'
DONE = b"data: [DONE]\n\n"


@pytest.fixture
async def make(service: CompletionsService) -> AsyncIterator[Callable[..., CompletionsBackend]]:
    made: list[CompletionsBackend] = []

    def make(**options: Any) -> CompletionsBackend:
        made.append(CompletionsBackend(service.base_url, **options))
        return made[-1]

    yield make
    for backend in made:
        await backend.aclose()


def chunk(text: str = "", ids: list[int] | None = None, finish: str | None = None, usage: Any = None) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], "usage": usage}).encode() + b"\n\n"


async def answer(service: CompletionsService, backend: CompletionsBackend, *body: Piece, **options: Any) -> Generated:
    service.script(HttpAnswer(body=body, **options))
    return await generated(backend.generate(PROMPT, PARAMS))


class TestRequests:
    """Without these a server would sample something else, or 16 tokens of it."""

    @pytest.mark.parametrize(
        ("server", "expected"),
        [
            ("vllm", {"return_token_ids": True, "stream_options": {"include_usage": True}}),
            ("sglang", {"return_token_ids": True, "stream_options": {"include_usage": True}}),
            ("tensorrt-llm", {"stream_options": {"include_usage": True}}),
            ("fireworks", {"return_token_ids": True}),
            ("openai", {"stream_options": {"include_usage": True}}),
        ],
    )
    async def test_the_least_that_is_sent(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend], server: str, expected: Any
    ) -> None:
        backend = make(server=server)
        await generated(backend.generate(PROMPT, PARAMS))

        (request,) = service.requests
        assert request.path == "/v1/completions"
        assert request.decoded() == {
            "prompt": [1, 2, 3, 200_000],
            "model": "m",
            "stream": True,
            "max_tokens": DEFAULT_MAX_TOKENS,
            **expected,
        }
        assert backend.accepts.returns_ids == ("return_token_ids" in expected)

    @pytest.mark.parametrize(
        ("server", "expected"),
        [
            ("vllm", {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(SCHEMA)}}),
            ("sglang", {"type": "json_schema", "json_schema": {"name": "answer", "schema": json.loads(SCHEMA)}}),
            ("tensorrt-llm", {"type": "json", "schema": json.loads(SCHEMA)}),
            ("fireworks", {"type": "json_schema", "json_schema": json.loads(SCHEMA)}),
            ("openai", None),
        ],
    )
    async def test_the_most_that_is_sent(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend], server: str, expected: Any
    ) -> None:
        backend = make(server=server)
        prompt = TokenPrompt(rendered=PROMPT.rendered, stop_ids=(7, 8), schema=SCHEMA)
        params = GenerateParams(
            model="m",
            max_tokens=9,
            temperature=0.5,
            top_p=0.9,
            user="u",
            service_tier="flex",
            prompt_cache_key="k",
            reasoning_effort="low",
            session="s",
        )
        await generated(backend.generate(prompt, params))

        body = service.requests[0].decoded()
        hosted = server == "fireworks"
        assert (body["max_tokens"], body["temperature"], body["top_p"], body["user"]) == (9, 0.5, 0.9, "u")
        assert body.get("stop_token_ids") == (None if server in {"fireworks", "openai"} else [7, 8])
        assert body.get("response_format") == expected
        assert body.get("service_tier") == ("flex" if hosted else None)
        assert body.get("prompt_cache_key") == ("k" if hosted else None)
        assert backend.accepts.constrains == (expected is not None)
        assert not {"reasoning_effort", "session"} & body.keys()

    async def test_the_kept_form_is_sent_as_it_is(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        """Encoding 1,000,000 ids anew would cost 6 ms a turn. Here the kept form shows that it is used, by its spaces."""
        backend = make()
        assert backend.accepts.form == "json"
        begin = Rendered(None, array("I", [1, 2]), b"1 , 2", "json", 2, None)
        await generated(backend.generate(TokenPrompt(rendered=begin.with_tokens([3])), PARAMS))

        assert b'"prompt":[1 , 2,3],' in service.requests[0].body

    async def test_a_long_prompt_is_sent_whole(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        """aiohttp warns of bodies above 1 MiB, and a warning is an error here."""
        await generated(make().generate(TokenPrompt(rendered=Rendered.of_tokens(range(300_000), "json")), PARAMS))

        assert service.requests[0].decoded()["prompt"] == list(range(300_000))

    async def test_a_warm_up_samples_one_token_and_asks_for_no_ids(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        """vLLM would send all ids of the prompt back."""
        usage = await make().prefill(PROMPT, GenerateParams(model="m", max_tokens=99))

        assert usage == Usage(input_tokens=8, output_tokens=1)
        expected = {"prompt": [1, 2, 3, 200_000], "model": "m", "stream": False, "max_tokens": 1}
        assert service.requests[0].decoded() == expected
        assert await make(prefill=False).prefill(PROMPT, PARAMS) is None

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"server": "tgi"}, "server must be one of vllm"),
            ({"server": "openai", "return_ids": True}, "return_ids: openai does not tell"),
            ({"omit": {"prompt"}}, "omit cannot have 'prompt'"),
            ({"extra_body": {"max_tokens": 1}}, "extra_body cannot have 'max_tokens'"),
        ],
    )
    def test_wrong_options(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            CompletionsBackend("http://localhost/v1", **options)

    def test_the_key_is_shown_nowhere(self) -> None:
        backend: Backend = CompletionsBackend("http://127.0.0.1:1/v1", api_key="sk-secret")
        assert "sk-secret" not in repr(backend)

    async def test_ids_instead_of_text(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        """TensorRT-LLM gives one or the other."""
        backend = make(server="tensorrt-llm", return_ids=True)
        result = await answer(service, backend, chunk("", [5]), chunk("", [6], finish="stop"), DONE)

        assert service.requests[0].decoded()["detokenize"] is False
        assert backend.accepts.returns_ids
        assert (result.token_ids, result.text) == ([5, 6], "")
        assert not any(delta.ids_lost for delta in result.deltas)


class TestIds:
    """Ids that are thought to be complete and are not would corrupt every later prompt of the conversation."""

    async def test_a_count_that_does_not_fit_is_a_loss(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        body = [chunk("a", [5]), chunk("b", [6], finish="stop", usage={"completion_tokens": 3})]
        result = await answer(service, make(), *body, DONE)

        assert [delta.ids_lost for delta in result.deltas] == [False, False, True]

    async def test_a_count_that_fits_is_none(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        body = [chunk("a", [5]), chunk("b", [6, 7], finish="stop", usage={"completion_tokens": 3})]
        assert not any(delta.ids_lost for delta in (await answer(service, make(), *body, DONE)).deltas)

    async def test_a_server_that_was_not_asked_loses_nothing(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        body = [chunk("a"), chunk("b", finish="stop", usage={"completion_tokens": 3})]
        result = await answer(service, make(return_ids=False), *body, DONE)

        assert result.text == "ab"
        assert not any(delta.ids_lost for delta in result.deltas)

    async def test_an_old_server_that_tells_no_ids_loses_them_all(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        result = await answer(service, make(), chunk("a"), chunk("b", finish="stop"), DONE)

        assert result.deltas[0] == Delta(text="a", ids_lost=True)
        assert result.text == "ab"

    async def test_the_ids_of_the_prompt_are_read_over(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend]
    ) -> None:
        """vLLM sends them with its first chunk: 2.9 MB for 500,000 tokens, in many pieces."""
        choice = {"index": 0, "text": "a", "token_ids": [5], "prompt_token_ids": list(range(500_000))}
        first = b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n"
        result = await answer(service, make(), first, chunk("", [6], finish="stop"), DONE)

        assert (result.token_ids, result.text) == ([5, 6], "a")


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (404, {"detail": "Not Found"}),
            (405, {"detail": "Method Not Allowed"}),
            (501, {"error": {"message": "Not implemented."}}),
            (422, {"detail": [{"loc": ["body", "prompt"], "msg": "Input should be a valid string"}]}),
            (400, {"error": {"message": "prompt must be a string", "param": "prompt"}}),
        ],
    )
    async def test_a_server_without_ids_is_another_kind_of_service(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend], status: int, body: Any
    ) -> None:
        """Without this the engine could not fall back to chat messages."""
        for _ in range(2):
            service.script(HttpAnswer.json(body, status=status))
        backend = make()

        assert isinstance((await generated(backend.generate(PROMPT, PARAMS))).error, PromptNotAccepted)
        with pytest.raises(PromptNotAccepted):
            await backend.prefill(PROMPT, PARAMS)

    @pytest.mark.parametrize(
        ("status", "body", "code"),
        [
            (404, {"error": {"message": "The model `m` does not exist."}}, "model_not_found"),
            (400, {"error": {"message": "maximum context length is 8", "param": "prompt"}}, "context_length_exceeded"),
            (400, {"error": {"message": "Bad top_p.", "param": "top_p"}}, "invalid_request"),
        ],
    )
    async def test_other_refusals_are_about_the_request(
        self, service: CompletionsService, make: Callable[..., CompletionsBackend], status: int, body: Any, code: str
    ) -> None:
        service.script(HttpAnswer.json(body, status=status))
        error = (await generated(make().generate(PROMPT, PARAMS))).error

        assert isinstance(error, WireError)
        assert not isinstance(error, PromptNotAccepted)
        assert error.code == code
