"""Reads the vocabulary in the metadata of a GGUF file (llama.cpp's format of models)."""

import mmap
import struct
from pathlib import Path
from typing import Any, Final

import msgspec

from ws_responses import ConfigurationError

_HEAD: Final = struct.Struct("<4sIQQ")
_SCALARS: Final = {
    kind: struct.Struct(f"<{code}")
    for kind, code in {
        0: "B",
        1: "b",
        2: "H",
        3: "h",
        4: "I",
        5: "i",
        6: "f",
        7: "?",
        10: "Q",
        11: "q",
        12: "d",
    }.items()
}
"""Number of a type in the file to its layout (GGUF specification, ``gguf_metadata_value_type``)."""

_STRING: Final = 8
_ARRAY: Final = 9
_U32: Final = _SCALARS[4]
_U64: Final = _SCALARS[10]


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """What a GGUF file says of its tokens.

    Attributes:
        model: Kind of tokenizer: "gpt2" for byte-level BPE.
        pre: Name of the rule that cuts text into words before they are encoded.
        tokens: Text of each token, in the order of their ids; bytes are written as GPT-2 does.
        kinds: Kind of each token, in the same order.
        merges: Pairs that BPE joins, the most urgent first, each as two texts and a space.
        end_id: End of sequence; None if the file names none.
    """

    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    end_id: int | None


def read_vocabulary(path: Path | str) -> Vocabulary:
    """Read the vocabulary of a GGUF file.

    Raises:
        ConfigurationError: It cannot be read, or holds none.
    """
    try:
        with Path(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            metadata = _Metadata(view).read()
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except (struct.error, KeyError, ValueError) as error:
        raise ConfigurationError(f"{path} is no GGUF file that can be read: {error}") from None
    known = {name: metadata.get(f"tokenizer.ggml.{key}") for name, key in _KEYS.items()}
    known["pre"] = known["pre"] or "default"
    try:
        return msgspec.convert(known, Vocabulary)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{path} holds no vocabulary that can be read: {error}") from None


_KEYS: Final = {
    "model": "model",
    "pre": "pre",
    "tokens": "tokens",
    "kinds": "token_type",
    "merges": "merges",
    "end_id": "eos_token_id",
}


class _Metadata:
    """Reads the metadata at the beginning of a file."""

    def __init__(self, view: mmap.mmap) -> None:
        self._view = view
        self._at = _HEAD.size

    def read(self) -> dict[str, Any]:
        magic, version, _, count = _HEAD.unpack_from(self._view, 0)
        if magic != b"GGUF" or version not in {2, 3}:
            raise ValueError("it does not begin as one of version 2 or 3 does")
        return {self._text(): self._value(self._number(_U32)) for _ in range(count)}

    def _number(self, layout: struct.Struct) -> Any:
        (value,) = layout.unpack_from(self._view, self._at)
        self._at += layout.size
        return value

    def _text(self) -> str:
        end = self._number(_U64) + self._at
        if end > len(self._view):
            raise ValueError("a text goes beyond its end")
        text = self._view[self._at : end]
        self._at = end
        return text.decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind == _ARRAY:
            return self._array(self._number(_U32), self._number(_U64))
        return self._number(_SCALARS[kind])

    def _array(self, kind: int, count: int) -> list[Any]:
        return [self._value(kind) for _ in range(count)]
