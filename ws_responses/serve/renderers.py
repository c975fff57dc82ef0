"""The renderers that a command line can name."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ws_responses.command_line import UsageError
from ws_responses.rendering.chat import ChatRenderer
from ws_responses.rendering.renderer import Renderer
from ws_responses.rendering.tokenizer import UnknownToken, find_special
from ws_responses.serve.options import RendererName

if TYPE_CHECKING:
    from ws_responses.adapters.gguf_tokenizer import GgufTokenizer

_TAGS: Final = re.compile(r"<[^<>\s]{1,40}>|\[/?[A-Z_]{2,40}\]")
"""What control tokens look like in a chat template: ``<|im_start|>``, ``<s>``, ``[INST]``."""


def renderer(name: RendererName, gguf: str | None, template: str | None) -> Renderer:
    """Return the renderer of this name.

    Args:
        name: As the command line has it.
        gguf: File with the vocabulary.
        template: File with the chat template.

    Raises:
        ConfigurationError: A file is none of its kind, or a package is missing.
        UsageError: A file is missing, or does not fit.
    """
    if name == "chat":
        return ChatRenderer()
    if name == "harmony":
        from ws_responses.rendering.harmony import HarmonyRenderer  # noqa: PLC0415

        return HarmonyRenderer()
    if gguf is None:
        raise UsageError(f"--renderer {name} needs the vocabulary of the model: --gguf FILE")
    from ws_responses.adapters.gguf_tokenizer import GgufTokenizer  # noqa: PLC0415

    tokenizer = GgufTokenizer(gguf)
    try:
        return _chatml(tokenizer) if name == "chatml" else _template(tokenizer, template)
    except UnknownToken as error:
        raise UsageError(f"--renderer {name} does not fit to {gguf}: {error}") from None


def _chatml(tokenizer: "GgufTokenizer") -> Renderer:
    from ws_responses.rendering.chatml import ChatMLRenderer  # noqa: PLC0415

    return ChatMLRenderer(tokenizer)


def _template(tokenizer: "GgufTokenizer", file: str | None) -> Renderer:
    from ws_responses.rendering.template import TemplateRenderer  # noqa: PLC0415

    assert file is not None
    try:
        source = Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--template {file}: {getattr(error, 'strerror', None) or 'no text in UTF-8'}") from None
    if tokenizer.end_id is None:
        raise UsageError("--gguf names no token that ends an answer")
    end = tokenizer.decode([tokenizer.end_id]).decode()
    tags = dict.fromkeys([*_TAGS.findall(source), end])
    specials = [tag for tag in tags if find_special(tokenizer, tag) is not None]
    return TemplateRenderer(
        tokenizer, source, specials=specials, stops=[end], variables={"eos_token": end, "bos_token": ""}
    )
