"""The backends that a command line can name. Each imports what it needs only when it is named."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from ws_responses.backends import Backend
from ws_responses.command_line import UsageError
from ws_responses.serve.options import BackendName, RendererName, SourceOptions

if TYPE_CHECKING:
    from ws_responses.adapters._event_stream import HttpLimits


class Built(Struct, frozen=True, kw_only=True):
    """A backend, and what goes with it.

    Attributes:
        backend: The backend.
        what: What it is, for people.
        models: Names that are served, and by each the backend's own; None lets every name through.
        renderer: What makes its prompts, unless the command line says otherwise.
        gguf: File with its vocabulary, if that is known.
        close: Ends what was started for it.
    """

    backend: Backend
    what: str
    models: Mapping[str, str] | None
    renderer: RendererName = "chat"
    gguf: str | None = None
    close: Callable[[], None] | None = None


def build(source: SourceOptions) -> Built:
    """Return the backend that a command line names.

    Raises:
        ConfigurationError: An option is wrong, or a package is missing.
        ImportError: A package is missing.
        UsageError: The command line lacks something.
    """
    assert source.backend is not None
    return _BUILDERS[source.backend](source)


def _cerebras(source: SourceOptions) -> Built:
    from ws_responses.adapters.cerebras import CerebrasBackend  # noqa: PLC0415

    backend = CerebrasBackend(api_key=source.api_key, base_url=source.backend_url, timeout_s=source.timeout_s)
    return Built(backend=backend, what="Cerebras", models=source.models)


def _chat(source: SourceOptions) -> Built:
    from ws_responses.adapters.chat_completions import ChatCompletionsBackend  # noqa: PLC0415

    url = _url(source)
    backend = ChatCompletionsBackend(url, api_key=source.api_key, limits=_limits(source))
    return Built(backend=backend, what=f"chat completions at {url}", models=source.models)


def _completions(source: SourceOptions) -> Built:
    from ws_responses.adapters.completions import CompletionsBackend  # noqa: PLC0415

    url = _url(source)
    if source.renderer in (None, "chat"):
        raise UsageError("--backend completions takes token ids: choose --renderer harmony, chatml or template")
    backend = CompletionsBackend(url, server=source.completions_server, api_key=source.api_key, limits=_limits(source))
    return Built(backend=backend, what=f"completions at {url}", models=source.models, gguf=source.gguf)


def _llama_cpp(source: SourceOptions) -> Built:
    from ws_responses.adapters.llama_cpp import LlamaCppBackend  # noqa: PLC0415

    if source.backend_url is not None:
        backend = LlamaCppBackend(source.backend_url, api_key=source.api_key, limits=_limits(source))
        return Built(
            backend=backend,
            what=f"llama.cpp at {source.backend_url}",
            models=source.models,
            renderer="chatml",
            gguf=source.gguf,
        )
    from ws_responses.adapters.local_model import LocalModel  # noqa: PLC0415

    model = LocalModel(source.gguf)
    return Built(
        backend=LlamaCppBackend(model.base_url, api_key=model.api_key, slots=model.slots, limits=_limits(source)),
        what=f"the model {model.name} in this process",
        models=source.models or {model.name: model.name},
        renderer="chatml",
        gguf=str(model.path),
        close=model.close,
    )


def _scripted(source: SourceOptions) -> Built:
    from ws_responses.testing.backends import ScriptedBackend  # noqa: PLC0415

    return Built(backend=ScriptedBackend(), what="a script", models=source.models or {"scripted": "scripted"})


_BUILDERS: Final[Mapping[BackendName, Callable[[SourceOptions], Built]]] = {
    "cerebras": _cerebras,
    "chat": _chat,
    "completions": _completions,
    "llama-cpp": _llama_cpp,
    "scripted": _scripted,
}


def _url(source: SourceOptions) -> str:
    if source.backend_url is None:
        raise UsageError(f"--backend {source.backend} needs --backend-url, such as http://localhost:8000/v1")
    return source.backend_url


def _limits(source: SourceOptions) -> "HttpLimits":
    from ws_responses.adapters._event_stream import HttpLimits  # noqa: PLC0415

    return HttpLimits(first_event_s=source.timeout_s, event_s=source.timeout_s)
