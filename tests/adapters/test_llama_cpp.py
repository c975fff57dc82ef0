"""The llama.cpp adapter against the real server and model: ids in and out, what came from the cache, ends, failures."""

from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import anyio
import msgspec
import pytest
from anyio import to_thread

from tests.adapters.llama_server import LlamaServer
from tests.conftest import require
from ws_responses import ConfigurationError, WireError
from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
from ws_responses.adapters.llama_cpp import LlamaCppBackend
from ws_responses.adapters.local_model import LocalModel
from ws_responses.backends import ChatPrompt, Delta, GenerateParams, PromptNotAccepted, TokenPrompt, Usage
from ws_responses.rendering.rendered import Rendered

pytestmark = pytest.mark.timeout(300)  # a busy machine reads a prompt slowly

START, END = 1, 2
WORDS = "the server keeps rendered tokens of each conversation and appends only what is new in this turn "


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def tokenizer(local_model: LocalModel) -> GgufTokenizer:
    require("tiktoken")
    return GgufTokenizer(local_model.path)


@pytest.fixture
async def backend(local_model: LocalModel) -> AsyncIterator[LlamaCppBackend]:
    backend = LlamaCppBackend(local_model.base_url, api_key=local_model.api_key)
    yield backend
    await backend.aclose()


@pytest.fixture
def server(local_model: LocalModel) -> Iterator[LlamaServer]:
    server = LlamaServer(local_model)
    yield server
    server.close()


class Conversation:
    """ChatML by hand: a state that grows as a renderer's does."""

    def __init__(self, tokenizer: GgufTokenizer, text: str) -> None:
        self._encode = tokenizer.encode
        self.state = Rendered.of_tokens(self._message("user", text), "json")

    def _message(self, role: str, text: str) -> list[int]:
        return [START, *self._encode(f"{role}\n{text}"), END, *self._encode("\n")]

    def prompt(self, *, stop_ids: tuple[int, ...] = (), schema: Any = None) -> TokenPrompt:
        state = self.state.with_tokens([START, *self._encode("assistant\n")])
        encoded = None if schema is None else msgspec.json.encode(schema)
        return TokenPrompt(rendered=state, stop_ids=stop_ids, schema=encoded)

    def go_on(self, sampled: list[int], text: str) -> None:
        end = () if sampled[-1] == END else (END,)
        answer = [START, *self._encode("assistant\n"), *sampled, *end, *self._encode("\n")]
        self.state = self.state.with_tokens(answer).with_tokens(self._message("user", text))


def greedily(max_tokens: int | None = None, session: str | None = None) -> GenerateParams:
    return GenerateParams(model="local", max_tokens=max_tokens, temperature=0, session=session)


async def sample(backend: LlamaCppBackend, prompt: TokenPrompt, params: GenerateParams) -> list[Delta]:
    async with aclosing(backend.generate(prompt, params)) as deltas:
        return [delta async for delta in deltas]


def ids_of(deltas: list[Delta]) -> list[int]:
    return [token for delta in deltas for token in delta.token_ids]


def text_of(deltas: list[Delta]) -> str:
    return "".join(delta.text for delta in deltas)


def usage_of(deltas: list[Delta]) -> Usage:
    usage = deltas[-1].usage
    assert usage is not None
    return usage


def cached(usage: Usage | None) -> int:
    assert usage is not None
    assert usage.cached_tokens is not None
    return usage.cached_tokens


async def test_ids_go_in_and_come_out(backend: LlamaCppBackend, tokenizer: GgufTokenizer, server: LlamaServer) -> None:
    """Without this nothing could be kept of an answer but its text, which may be encoded otherwise than it was sampled."""
    prompt = Conversation(tokenizer, "Say hi to the crew.").prompt()

    deltas = await sample(backend, prompt, greedily(12))

    body = {"prompt": prompt.rendered.ids().tolist(), "n_predict": 12, "temperature": 0, "return_tokens": True}
    whole = server.ask("/completion", body)
    assert (ids_of(deltas), text_of(deltas)) == (whole["tokens"], whole["content"])
    assert tokenizer.decode(ids_of(deltas)).decode() == text_of(deltas)
    assert (deltas[-1].finish, usage_of(deltas).input_tokens, usage_of(deltas).output_tokens) == (
        "length",
        prompt.rendered.end,
        12,
    )
    assert not any(delta.ids_lost for delta in deltas)


async def test_the_end_of_sequence_comes_as_an_id_and_stops(backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    deltas = await sample(backend, Conversation(tokenizer, "Say hi.").prompt(schema={"const": "hi"}), greedily(40))

    assert text_of(deltas) == '"hi"'
    assert ids_of(deltas)[-1] in {0, END}
    assert deltas[-1].finish == "stop"
    assert usage_of(deltas).output_tokens == len(ids_of(deltas))


async def test_the_next_turn_computes_what_is_new(backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    """The claim of the whole: the state as it was sent and sampled is a prefix of the next prompt, and is not read again."""
    conversation = Conversation(tokenizer, "What does a cache do? " + WORDS * 6)
    first = conversation.prompt()
    deltas = await sample(backend, first, greedily(16))
    conversation.go_on(ids_of(deltas), "And a socket?")
    second = conversation.prompt()
    prefix = first.rendered.end + len(ids_of(deltas))
    assert second.rendered.ids()[: prefix - 1] == (first.rendered.with_tokens(ids_of(deltas)).ids())[:-1]

    again = await sample(backend, second, greedily(4))

    # The last sampled id is in no cache: it was never given to the model.
    assert cached(usage_of(again)) >= prefix - 1
    assert usage_of(again).input_tokens == second.rendered.end


async def test_a_prefill_reads_the_prompt_for_the_next_turn(backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    """Without this a warm-up would prepare nothing."""
    conversation = Conversation(tokenizer, "A warm-up. " + WORDS * 6)

    usage = await backend.prefill(TokenPrompt(rendered=conversation.state), greedily())

    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens) == (conversation.state.end, 0)
    assert cached(usage) < conversation.state.end // 2
    assert cached(usage_of(await sample(backend, conversation.prompt(), greedily(2)))) >= conversation.state.end - 1


async def test_forks_share_what_they_have_in_common(backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    conversation = Conversation(tokenizer, "A trunk. " + WORDS * 6)
    trunk = conversation.state
    await sample(backend, conversation.prompt(), greedily(4))

    for text in ("left", "right", "left again"):
        branch = trunk.with_tokens(tokenizer.encode(f"{text} and on"))
        deltas = await sample(backend, TokenPrompt(rendered=branch), greedily(2))
        assert cached(usage_of(deltas)) >= trunk.end - 1


async def test_a_schema_is_held_to(backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    """Without this a small model could not be made to call a tool."""
    schema = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }

    deltas = await sample(backend, Conversation(tokenizer, "A trip?").prompt(schema=schema), greedily(200))

    answer = msgspec.json.decode(text_of(deltas))
    assert answer["city"] in {"Paris", "Rome"}
    assert 1 <= answer["days"] <= 9


async def test_a_stop_id_that_the_model_does_not_know_ends_the_answer(
    backend: LlamaCppBackend, tokenizer: GgufTokenizer, server: LlamaServer
) -> None:
    prompt = Conversation(tokenizer, "Count the steps of making tea.").prompt
    free = ids_of(await sample(backend, prompt(), greedily(60)))
    stop = free[20]
    until = free[: free.index(stop) + 1]

    before = server.sampled()
    deltas = await sample(backend, prompt(stop_ids=(stop,)), greedily(1_500))
    await until_idle(server)

    assert ids_of(deltas) == until
    assert (deltas[-1].finish, usage_of(deltas).output_tokens) == ("stop", len(until))
    # One more tells whether the model ends here by itself; a few more until the server sees the hang-up.
    assert len(until) <= server.sampled() - before < len(until) + 100


@pytest.mark.parametrize("text", ["🙂🎉 ok", "乛乜 done", "a🙂"])
async def test_lost_ids_are_told(text: str, backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    """The server tells only the last id of a character that took several: what is kept must not pass for the whole."""
    prompt = Conversation(tokenizer, "Repeat it.").prompt(schema={"const": text})

    deltas = await sample(backend, prompt, greedily(60))

    assert msgspec.json.decode(text_of(deltas)) == text
    assert any(delta.ids_lost for delta in deltas)
    assert usage_of(deltas).output_tokens is not None
    assert len(ids_of(deltas)) < (usage_of(deltas).output_tokens or 0)


async def test_a_character_that_is_never_finished_counts_as_lost(
    backend: LlamaCppBackend, tokenizer: GgufTokenizer
) -> None:
    prompt = Conversation(tokenizer, "Repeat it.").prompt(schema={"const": "🙂🎉"})

    # The quotation mark, and the beginning of the first character.
    deltas = await sample(backend, prompt, greedily(2))

    assert deltas[-1].finish == "length"
    assert any(delta.ids_lost for delta in deltas)


async def test_a_prompt_that_is_too_long_is_told_as_such(backend: LlamaCppBackend) -> None:
    prompt = TokenPrompt(rendered=Rendered.of_tokens([START] * 2_048, "json"))

    for attempt in (sample(backend, prompt, greedily(1)), backend.prefill(prompt, greedily())):
        with pytest.raises(WireError) as caught:
            await attempt
        assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")


async def test_running_into_the_end_of_the_context_is_an_answer_cut_short(local_model: LocalModel) -> None:
    with LocalModel(local_model.path, slots=1, context_tokens=256, threads=1) as small:
        backend = LlamaCppBackend(small.base_url, api_key=small.api_key)
        prompt = TokenPrompt(rendered=Rendered.of_tokens([START, *[504] * 245], "json"))

        deltas = await sample(backend, prompt, greedily(1_000))

        await backend.aclose()
    assert deltas[-1].finish == "length"
    assert 0 < len(ids_of(deltas)) <= 10


async def test_ids_that_the_model_does_not_have_are_refused(backend: LlamaCppBackend) -> None:
    with pytest.raises(WireError) as caught:
        await sample(backend, TokenPrompt(rendered=Rendered.of_tokens([1, 49_152], "json")), greedily(1))
    assert (caught.value.status, caught.value.type) == (400, "invalid_request_error")


async def test_chat_messages_are_not_taken(backend: LlamaCppBackend) -> None:
    chat = ChatPrompt(rendered=Rendered.of_messages([b'{"role":"user","content":"hi"}']))
    with pytest.raises(PromptNotAccepted):
        await anext(backend.generate(chat, greedily()))
    with pytest.raises(PromptNotAccepted):
        await backend.prefill(chat, greedily())


async def test_a_wrong_key_is_the_operators_affair(local_model: LocalModel) -> None:
    backend = LlamaCppBackend(local_model.base_url, api_key="wrong")
    with pytest.raises(WireError) as caught:
        await sample(backend, TokenPrompt(rendered=Rendered.of_tokens([1, 2], "json")), greedily(1))
    await backend.aclose()
    assert (caught.value.status, caught.value.code) == (502, "upstream_authentication_error")


async def test_a_server_that_is_not_there_is_told(local_model: LocalModel) -> None:
    with LocalModel(local_model.path, slots=1, context_tokens=256, threads=1) as gone:
        backend = LlamaCppBackend(gone.base_url)
    with pytest.raises(WireError) as caught:
        await sample(backend, TokenPrompt(rendered=Rendered.of_tokens([1, 2], "json")), greedily(1))
    await backend.aclose()
    assert (caught.value.status, caught.value.code) == (503, "upstream_unreachable")


@pytest.mark.parametrize("way", ["aclose", "cancel"])
async def test_nobody_listens_and_the_slot_is_free(
    way: str, backend: LlamaCppBackend, tokenizer: GgufTokenizer, server: LlamaServer
) -> None:
    """Without this the model would go on for those who have hung up, and others would wait."""
    # A schema that goes on for ever, so that no end of sequence comes before.
    prompt = Conversation(tokenizer, "Count.").prompt(
        schema={"type": "array", "items": {"type": "integer"}, "minItems": 900}
    )
    before = server.sampled()
    deltas = backend.generate(prompt, greedily(1_900))
    for _ in range(3):
        await anext(deltas)
    assert server.processing() == 1

    if way == "aclose":
        await deltas.aclose()
    else:
        with anyio.CancelScope() as scope:
            async for _ in deltas:
                scope.cancel()
    await until_idle(server)

    assert 3 <= server.sampled() - before < 1_000


async def until_idle(server: LlamaServer) -> None:
    """Return when no slot works."""
    while await to_thread.run_sync(server.processing):
        await anyio.lowlevel.checkpoint()


async def test_the_vocabulary_is_checked_against_the_server(backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    """Without this a tokenizer of another model would make prompts of nonsense, and nothing would fail."""

    class Other(GgufTokenizer):
        name = "other"

        def __init__(self) -> None:
            """Encode all the same, but without any merges."""

        def encode(self, text: str) -> list[int]:
            return [token for character in text for token in tokenizer.encode(character)]

    await backend.check(tokenizer)
    with pytest.raises(ConfigurationError, match="other"):
        await backend.check(Other())


@pytest.mark.slow
async def test_fifty_turns_are_read_once(backend: LlamaCppBackend, tokenizer: GgufTokenizer) -> None:
    """Without this the prefix could be lost somewhere in a long loop, and each turn after it would cost all of it."""
    conversation = Conversation(tokenizer, "We count.")
    prefix = 0
    for number in range(50):
        prompt = conversation.prompt()
        deltas = await sample(backend, prompt, greedily(8))
        usage = usage_of(deltas)
        assert usage.input_tokens == prompt.rendered.end
        assert cached(usage) >= prefix - 1
        prefix = prompt.rendered.end + len(ids_of(deltas))
        conversation.go_on(ids_of(deltas), f"Next is {number}.")
    assert prefix > 800
