"""The backend for chat completions, against a loopback service that writes as the real ones do."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ws_responses.adapters.chat_completions import ChatCompletionsBackend, HttpLimits
from ws_responses.backends import Backend, ChatPrompt, Delta, GenerateParams, Usage
from ws_responses.errors import ConfigurationError, WireError
from ws_responses.rendering.rendered import Rendered
from ws_responses.testing.backend_conformance import BackendConformance, Generated, generated
from ws_responses.testing.inference import ChatService
from ws_responses.testing.services import CUT, HOLD, HttpAnswer, Piece, recut


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def service() -> AsyncIterator[ChatService]:
    async with ChatService() as service:
        yield service


class TestConformance(BackendConformance):
    @pytest.fixture
    async def backend(self, service: ChatService) -> AsyncIterator[ChatCompletionsBackend]:
        backend = ChatCompletionsBackend(service.base_url, api_key=self.key)
        yield backend
        await backend.aclose()

    @pytest.fixture
    async def hasty_backend(self, service: ChatService) -> AsyncIterator[ChatCompletionsBackend]:
        limits = HttpLimits(first_event_s=0.4, event_s=0.4, max_event_bytes=64 * 1024)
        backend = ChatCompletionsBackend(service.base_url, api_key=self.key, limits=limits)
        yield backend
        await backend.aclose()


PARAMS = GenerateParams(model="m")
MESSAGES = [b'{"role":"user","content":"caf\xc3\xa9"}', b'{"role":"assistant","content":"x"}']
PROMPT = ChatPrompt(rendered=Rendered.of_messages(MESSAGES[:1]).with_messages(MESSAGES[1:]))


@pytest.fixture
async def make(service: ChatService) -> AsyncIterator[Callable[..., ChatCompletionsBackend]]:
    made: list[ChatCompletionsBackend] = []

    def make(**options: Any) -> ChatCompletionsBackend:
        made.append(ChatCompletionsBackend(service.base_url, **options))
        return made[-1]

    yield make
    for backend in made:
        await backend.aclose()


@pytest.fixture
def backend(make: Callable[..., ChatCompletionsBackend]) -> ChatCompletionsBackend:
    return make()


def chunk(*, finish: str | None = None, usage: Any = None, **delta: Any) -> bytes:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return event({"id": "c", "choices": choices, "usage": usage})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


CHUNK = chunk(content="x")
STOP = chunk(finish="stop")
DONE = b"data: [DONE]\n\n"


async def answer(service: ChatService, backend: ChatCompletionsBackend, *body: Piece, **options: Any) -> Generated:
    service.script(HttpAnswer(body=body, **options))
    return await generated(backend.generate(PROMPT, PARAMS))


class TestRequests:
    """Without these a service would be asked for something else than the engine asked for."""

    async def test_only_what_is_asked_is_sent(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        await generated(backend.generate(PROMPT, PARAMS))

        (request,) = service.requests
        assert request.path == "/v1/chat/completions"
        assert request.headers["accept-encoding"] == "identity"
        assert request.headers["content-type"] == "application/json"
        assert "authorization" not in request.headers
        assert request.decoded() == {
            "messages": [json.loads(message) for message in MESSAGES],
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
        }

    async def test_all_that_is_asked_is_sent(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        backend = make(
            api_key="sk-1",
            headers={"x-team": "a"},
            max_tokens_member="max_completion_tokens",
            extra_body={"chat_template_kwargs": {"enable_thinking": True}},
        )
        prompt = ChatPrompt(
            rendered=PROMPT.rendered,
            tools=b'[{"type":"function","function":{"name":"f"}}]',
            tool_choice=b'"required"',
            parallel_tool_calls=False,
            response_format=b'{"type":"json_object"}',
        )
        params = GenerateParams(
            model="m",
            max_tokens=9,
            temperature=0.0,
            top_p=0.5,
            reasoning_effort="low",
            service_tier="flex",
            prompt_cache_key="k",
            user="u",
        )
        await generated(backend.generate(prompt, params))

        (request,) = service.requests
        assert request.headers["authorization"] == "Bearer sk-1"
        assert request.headers["x-team"] == "a"
        assert request.decoded() == {
            "messages": [json.loads(message) for message in MESSAGES],
            "model": "m",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": 9,
            "temperature": 0.0,
            "top_p": 0.5,
            "reasoning_effort": "low",
            "service_tier": "flex",
            "prompt_cache_key": "k",
            "user": "u",
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            "response_format": {"type": "json_object"},
            "chat_template_kwargs": {"enable_thinking": True},
        }

    async def test_a_choice_of_tools_without_tools_is_left_out(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        """OpenAI refuses it."""
        prompt = ChatPrompt(rendered=PROMPT.rendered, tool_choice=b'"auto"', parallel_tool_calls=True)
        await generated(backend.generate(prompt, PARAMS))

        assert not {"tools", "tool_choice", "parallel_tool_calls"} & service.requests[0].decoded().keys()

    async def test_a_strict_server_is_spared_what_it_does_not_know(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        backend = make(omit={"prompt_cache_key", "stream_options"})
        await generated(backend.generate(PROMPT, GenerateParams(model="m", prompt_cache_key="k", user="u")))

        assert service.requests[0].decoded().keys() == {"messages", "model", "stream", "user"}

    async def test_a_long_conversation_is_sent_whole(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        """aiohttp warns of bodies above 1 MiB, and a warning is an error here."""
        text = "x" * (3 * 1024 * 1024)
        long = ChatPrompt(rendered=Rendered.of_messages([b'{"role":"user","content":"%s"}' % text.encode()]))
        await generated(backend.generate(long, PARAMS))

        assert service.requests[0].decoded()["messages"][0]["content"] == text

    async def test_a_warm_up_samples_one_token(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        assert await make().prefill(PROMPT, GenerateParams(model="m", max_tokens=99)) == Usage(
            input_tokens=8, output_tokens=1
        )
        assert await make(prefill=False).prefill(PROMPT, PARAMS) is None

        (request,) = service.requests
        assert request.decoded() == {
            "messages": [json.loads(message) for message in MESSAGES],
            "model": "m",
            "stream": False,
            "max_tokens": 1,
        }

    @pytest.mark.parametrize("body", [b"[]", b"nonsense", b"", b'{"error":{"message":"x"}}'])
    async def test_a_warm_up_that_is_answered_by_nonsense_fails(
        self, service: ChatService, backend: ChatCompletionsBackend, body: bytes
    ) -> None:
        service.script(HttpAnswer(body=[body], content_type="application/json", whole=True))
        if body.startswith(b'{"error'):
            assert await backend.prefill(PROMPT, PARAMS) == Usage()
            return
        with pytest.raises(WireError) as caught:
            await backend.prefill(PROMPT, PARAMS)
        assert caught.value.status == 502

    @pytest.mark.parametrize(
        ("options", "said"),
        [
            ({"omit": {"messages"}}, "omit cannot have 'messages'"),
            ({"extra_body": {"stream": False}}, "extra_body cannot have 'stream'"),
        ],
    )
    def test_wrong_options(self, options: dict[str, Any], said: str) -> None:
        with pytest.raises(ConfigurationError, match=said):
            ChatCompletionsBackend("http://localhost/v1", **options)

    @pytest.mark.parametrize("url", ["localhost:8000/v1", "ws://localhost", ""])
    def test_a_wrong_url(self, url: str) -> None:
        with pytest.raises(ConfigurationError, match="base_url"):
            ChatCompletionsBackend(url)


class TestAnswers:
    """Services differ in small things."""

    @pytest.mark.parametrize("member", ["reasoning", "reasoning_content"])
    async def test_reasoning(self, service: ChatService, backend: ChatCompletionsBackend, member: str) -> None:
        result = await answer(
            service, backend, chunk(**{member: "hm", "content": None}), chunk(content="x"), STOP, DONE
        )

        assert [(delta.reasoning, delta.text) for delta in result.deltas] == [("hm", ""), ("", "x"), ("", "")]

    @pytest.mark.parametrize(
        ("usage", "expected"),
        [
            ({"prompt_tokens": 9, "completion_tokens": 2}, Usage(input_tokens=9, output_tokens=2)),
            (
                {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0}},
                Usage(input_tokens=9, cached_tokens=8),
            ),
            ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 8}, Usage(input_tokens=9, cached_tokens=8)),
            ({"completion_tokens_details": {"reasoning_tokens": 3}}, Usage(reasoning_tokens=3)),
            ({"reasoning_tokens": 3, "prompt_tokens_details": None}, Usage(reasoning_tokens=3)),
            ({}, Usage()),
        ],
    )
    @pytest.mark.parametrize("place", ["own chunk", "last chunk", "every chunk"])
    async def test_usage(
        self, service: ChatService, backend: ChatCompletionsBackend, usage: Any, expected: Usage, place: str
    ) -> None:
        body = {
            "own chunk": [chunk(content="x"), STOP, event({"choices": [], "usage": usage})],
            "last chunk": [chunk(content="x"), chunk(finish="stop", usage=usage)],
            "every chunk": [chunk(usage={"prompt_tokens": 1}, content="x"), chunk(finish="stop", usage=usage)],
        }[place]
        result = await answer(service, backend, *body, DONE)

        assert result.usage == expected
        assert result.deltas[-1].usage == expected, "with the delta that has finish"

    async def test_the_tier_that_was_used(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        tier = event({"choices": [{"delta": {"content": "x"}}], "service_tier": "flex"})
        assert (await answer(service, backend, tier, STOP, DONE)).deltas[-1].service_tier == "flex"

    @pytest.mark.parametrize(
        ("word", "finish"),
        [("eos", "stop"), ("end_turn", "stop"), ("max_tokens", "length"), ("function_call", "tool_calls")],
    )
    async def test_other_words_for_the_end(
        self, service: ChatService, backend: ChatCompletionsBackend, word: str, finish: str
    ) -> None:
        assert (await answer(service, backend, chunk(content="x", finish=word), DONE)).finish == finish

    @pytest.mark.parametrize("word", ["error", "abort"])
    async def test_a_service_that_gives_up_is_no_end(
        self, service: ChatService, backend: ChatCompletionsBackend, word: str
    ) -> None:
        result = await answer(service, backend, chunk(content="x"), chunk(finish=word), DONE)

        assert result.text == "x"
        assert result.error is not None
        assert result.error.status == 500

    async def test_an_error_beside_choices(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        """As OpenRouter tells it."""
        broken = {"choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}
        error = {"code": 429, "message": "Slow down."}
        result = await answer(service, backend, chunk(content="x"), event({**broken, "error": error}), DONE)

        assert result.error is not None
        assert (result.error.status, result.error.message) == (429, "Slow down.")

    async def test_errors_without_an_envelope(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        flat = {"object": "error", "message": "Boom.", "type": "BadRequestError", "code": 400}
        result = await answer(service, backend, event(flat), DONE)

        assert result.error is not None
        assert (result.error.status, result.error.message) == (400, "Boom.")

    @pytest.mark.parametrize("indexes", [(0, 1), (0, 0), (None, None), (3, 7)])
    async def test_calls_are_told_apart(
        self, service: ChatService, backend: ChatCompletionsBackend, indexes: tuple[int | None, int | None]
    ) -> None:
        """Some servers give every call the same index, or none."""

        def call(index: int | None, **members: Any) -> bytes:
            return chunk(tool_calls=[{**({} if index is None else {"index": index}), **members}])

        first, second = indexes
        result = await answer(
            service,
            backend,
            call(first, id="a", function={"name": "f", "arguments": ""}),
            call(first, function={"arguments": "{}"}),
            call(second, id="b", function={"name": "g", "arguments": "[1]"}),
            STOP,
            DONE,
        )

        assert result.calls == [("a", "f", "{}"), ("b", "g", "[1]")]
        assert result.finish == "tool_calls", "though the server said stop"

    async def test_a_custom_tool(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        calls = [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}]
        result = await answer(service, backend, chunk(tool_calls=calls), chunk(finish="tool_calls"), DONE)

        assert result.calls == [("a", "sql", "select 1")]

    async def test_lone_surrogates_become_replacement_characters(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        """A tokenizer may cut a character in two, and a server escape the halves."""
        broken = b'data: {"choices":[{"delta":{"content":"a\\ud83d"}}]}\n\n'
        assert (await answer(service, backend, broken, STOP, DONE)).text == "a\N{REPLACEMENT CHARACTER}"

    @pytest.mark.parametrize("line_end", [b"\r\n", b"\r"])
    async def test_comments_event_lines_and_other_line_ends(
        self, service: ChatService, backend: ChatCompletionsBackend, line_end: bytes
    ) -> None:
        body = b": PROCESSING\n\nevent: chunk\n" + chunk(content="x") + b"id: 1\n" + STOP + DONE
        assert (await answer(service, backend, body.replace(b"\n", line_end))).text == "x"

    @pytest.mark.parametrize("end", [[STOP], [STOP, CUT], [chunk(content="y", finish="stop"), CUT]])
    async def test_what_ended_may_miss_its_marker(
        self, service: ChatService, backend: ChatCompletionsBackend, end: list[Piece]
    ) -> None:
        """All that was sampled has come: no reason to fail."""
        result = await answer(service, backend, chunk(content="x"), *end)

        assert result.error is None
        assert result.finish == "stop"

    async def test_usage_that_never_comes_is_not_waited_for(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        """Without the limit a turn would last as long as a service is allowed to think."""
        backend = make(limits=HttpLimits(trailing_s=0.05))
        result = await answer(service, backend, chunk(content="x"), STOP, HOLD)

        assert (result.text, result.finish, result.error) == ("x", "stop", None)
        await service.wait_until(lambda: service.running == 0)

    async def test_a_marker_alone_is_an_end(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        assert (await answer(service, backend, chunk(content="x"), DONE)).finish == "stop"

    async def test_an_error_that_is_no_stream(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        for body, status in ((b'{"error":{"message":"m","code":429}}', 429), (b'{"choices":[]}', 502)):
            result = await answer(service, backend, body, content_type="application/json", whole=True)
            assert result.error is not None
            assert result.error.status == status

    async def test_a_redirect_is_not_followed(self, service: ChatService, backend: ChatCompletionsBackend) -> None:
        """It would take the key somewhere else."""
        result = await answer(service, backend, status=307, headers=(("location", f"{service.url}/x"),))

        assert result.error is not None
        assert result.error.status == 502
        assert len(service.requests) == 1

    async def test_an_endless_error_is_not_read(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        backend = make(limits=HttpLimits(max_answer_bytes=1000))
        result = await answer(service, backend, b"x" * 2000, HOLD, status=500)

        assert result.error is not None
        assert result.error.status == 500
        await service.wait_until(lambda: service.running == 0)

    @given(
        st.lists(
            st.sampled_from([b": x\n\n", CHUNK, CHUNK[:-1] + b"id: 1\n\n", b"data:\n\n", b"event: y\n"]), max_size=6
        ),
        st.integers(1, 40),
    )
    @settings(max_examples=30)
    async def test_any_cut_gives_the_same(self, events: list[bytes], size: int) -> None:
        """The plain way past the decoder must not change what comes."""
        async with ChatService() as service:
            backend = ChatCompletionsBackend(service.base_url)
            body = b"".join(events) + STOP + DONE
            whole = await answer(service, backend, body)
            cut = await answer(service, backend, *recut([body], size), apart=True)
            await backend.aclose()

        assert cut.deltas == whole.deltas
        assert whole.text == "x" * body.count(b'"x"')


class TestConnections:
    async def test_a_cancelled_generation_closes_its_connection(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        """Else the service goes on, and the pool would hand out a connection with an old answer in it."""
        service.will_answer([Delta(text="a"), Delta(finish="stop")], hold_after=1)
        with anyio.CancelScope() as scope:
            async for _ in backend.generate(PROMPT, PARAMS):
                scope.cancel()
        await service.wait_until(lambda: service.open == 0, 0.5)
        assert service.hung_up == 1

    async def test_a_connection_whose_end_never_comes_is_given_up(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        backend = make(limits=HttpLimits(trailing_s=0.05))
        result = await answer(service, backend, STOP, DONE, HOLD)

        assert result.finish == "stop"
        await service.wait_until(lambda: service.open == 0)

    async def test_a_body_that_goes_on_behind_its_end_is_given_up(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        backend = make(limits=HttpLimits(trailing_s=60.0))
        result = await answer(service, backend, STOP, DONE, b"x" * 200_000, HOLD)

        assert result.finish == "stop"
        await service.wait_until(lambda: service.open == 0)

    async def test_closing_ends_what_is_read_in_the_background(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        await answer(service, backend, STOP, DONE, HOLD)
        assert service.open == 1

        await backend.aclose()
        await service.wait_until(lambda: service.open == 0)

    async def test_a_connection_that_died_while_idle_is_no_failure(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        """llama.cpp closes its connections after each stream, though it has promised to keep them."""
        await generated(backend.generate(PROMPT, PARAMS))
        service.script(HttpAnswer(dropped=True))
        result = await generated(backend.generate(PROMPT, PARAMS))

        assert (result.text, result.error) == ("Hello", None)
        assert [request.connection for request in service.requests] == [1, 1, 2]
        assert service.requests[1].body == service.requests[2].body

    async def test_a_new_connection_that_dies_is_one(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        """A request that makes a server crash must not be sent for ever."""
        service.script(HttpAnswer(dropped=True))
        result = await generated(backend.generate(PROMPT, PARAMS))

        assert result.error is not None
        assert result.error.code == "upstream_unreachable"
        assert len(service.requests) == 1

    async def test_one_event_in_several_lines_and_reads(
        self, service: ChatService, backend: ChatCompletionsBackend
    ) -> None:
        """The plain way must not take a line of an event that has begun for an event."""
        lines = [b'data: {"choices":\n', b'data: [{"delta":{"content":"x"}}]}\n\n']
        assert (await answer(service, backend, *lines, STOP, DONE, apart=True)).text == "x"

    async def test_the_bound_of_an_event_holds_for_one_that_comes_whole(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        backend = make(limits=HttpLimits(max_event_bytes=200))
        result = await answer(service, backend, CHUNK, chunk(content="x" * 200), STOP, DONE, apart=True)

        assert result.text == "x"
        assert result.error is not None
        assert result.error.code == "upstream_event_too_large"

    async def test_a_slow_consumer_is_no_slow_service(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        """Without this a client that reads slowly would lose its answer."""
        backend = make(limits=HttpLimits(event_s=0.2))
        service.script(HttpAnswer(body=[CHUNK, CHUNK, HOLD, CHUNK, STOP, DONE], apart=True))

        deltas = backend.generate(PROMPT, PARAMS)
        text = (await anext(deltas)).text + (await anext(deltas)).text
        service.release()
        looked = anyio.Event()
        asyncio.get_running_loop().call_later(0.5, looked.set)
        await looked.wait()  # the timer of the answer has looked, and found nobody waiting
        async for delta in deltas:
            text += delta.text
        assert text == "xxx"

    async def test_comments_are_signs_of_life(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        """OpenRouter sends them while a model is thinking."""
        backend = make(limits=HttpLimits(first_event_s=1.0, event_s=1.0))
        result = await answer(service, backend, *[b": PROCESSING\n\n"] * 10, CHUNK, STOP, DONE, rate=8)

        assert result.text == "x"

    async def test_limits_may_be_off(self, service: ChatService, make: Callable[..., ChatCompletionsBackend]) -> None:
        backend = make(limits=HttpLimits(first_event_s=None, event_s=None))
        assert (await answer(service, backend, chunk(content="x"), STOP, DONE)).text == "x"

    async def test_too_many_generations_wait_for_a_connection(
        self, service: ChatService, make: Callable[..., ChatCompletionsBackend]
    ) -> None:
        backend = make(limits=HttpLimits(max_connections=1, connect_s=0.5))
        service.will_answer([Delta(text="a"), Delta(finish="stop")], hold_after=0)
        first = asyncio.create_task(generated(backend.generate(PROMPT, PARAMS)))
        await service.wait_until(lambda: service.running == 1)
        late = await generated(backend.generate(PROMPT, PARAMS))
        service.release()
        await first

        assert late.error is not None
        assert late.error.code == "upstream_unreachable"

    async def test_what_is_no_http_is_nonsense(self) -> None:
        async def babble(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"}")
            writer.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(babble, "127.0.0.1", 0)
        backend = ChatCompletionsBackend(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        result = await generated(backend.generate(PROMPT, PARAMS))
        await backend.aclose()
        server.close()
        await server.wait_closed()

        assert result.error is not None
        assert (result.error.status, result.error.code) == (502, "upstream_error")


def test_one_backend_may_serve_several_event_loops() -> None:
    """A test client of Starlette runs each request in a loop of its own."""

    shared = ChatCompletionsBackend("http://127.0.0.1:1/v1")

    async def one() -> str:
        async with ChatService() as service:
            shared._http._base_url = service.base_url
            text = (await generated(shared.generate(PROMPT, PARAMS))).text
            await shared.aclose()
            return text

    assert [asyncio.run(one()), asyncio.run(one())] == ["Hello", "Hello"]


def test_the_key_is_shown_nowhere() -> None:
    backend: Backend = ChatCompletionsBackend("http://127.0.0.1:1/v1", api_key="sk-secret")
    assert "sk-secret" not in repr(backend)


def test_a_missing_package_is_named_with_its_extra() -> None:
    code = "import sys; sys.modules['aiohttp'] = None; import ws_responses.adapters.chat_completions"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert run.returncode == 1
    assert "pip install 'ws-responses[http]'" in run.stderr
