"""What stands before a harmony conversation: the system message and the developer message.

Sources: the harmony guide (docs/format.md of openai/harmony), sections "System message format", "Developer message format" and
"Structured output", and openai-harmony's own writing of them.
"""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.errors import excerpt
from ws_responses.rendering.harmony_tools import tools_section
from ws_responses.rendering.renderer import CannotRender, RenderSettings

IDENTITY: Final = "You are ChatGPT, a large language model trained by OpenAI."
"""The guide: it "should always stay as" this; another identity is told in the instructions."""

EFFORTS: Final = {
    None: "medium",
    "none": "low",
    "minimal": "low",
    "low": "low",
    "medium": "medium",
    "high": "high",
    "xhigh": "high",
    "max": "high",
}
"""Levels that the model knows, by ``reasoning.effort``: it cannot do without reasoning, nor do more than "high"."""

_CHANNELS: Final = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_TOOL_CHANNEL: Final = "Calls to these tools must go to the commentary channel: 'functions'."


class _Schema(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    name: str
    schema: Raw
    description: str | None = None


class _Object(Struct, frozen=True, tag_field="type", tag="json_object"):
    pass


_decode_format: Final = msgspec.json.Decoder(_Schema | _Object).decode


def system_text(settings: RenderSettings, *, knowledge_cutoff: str, current_date: str | None) -> str:
    """Return the text of the system message.

    Raises:
        CannotRender: The reasoning effort is none that is known.
    """
    effort: Any = settings.reasoning_effort
    if effort not in EFFORTS:
        raise CannotRender(f"The reasoning effort '{excerpt(effort)}' is not known here.", param="reasoning.effort")
    about = [IDENTITY, f"Knowledge cutoff: {knowledge_cutoff}"]
    if current_date is not None:
        about.append(f"Current date: {current_date}")
    channels = f"{_CHANNELS}\n{_TOOL_CHANNEL}" if has_tools(settings) else _CHANNELS
    return "\n\n".join(["\n".join(about), f"Reasoning: {EFFORTS[effort]}", channels])


def developer_text(settings: RenderSettings) -> str:
    """Return the text of the developer message; empty if there is nothing to say.

    Raises:
        CannotRender: A tool or the response format has no form here.
    """
    sections = [instructions_text(settings.instructions)] if settings.instructions else []
    if settings.tools is not None and settings.tools.tools:
        sections.append(tools_section(settings.tools))
    if settings.response_format is not None:
        sections.append(_format_section(settings.response_format))
    return "\n\n".join(sections)


def instructions_text(instructions: str) -> str:
    """Return instructions as a developer message has them."""
    return f"# Instructions\n\n{instructions}"


def has_tools(settings: RenderSettings) -> bool:
    """Return whether the model is offered tools."""
    return settings.tools is not None and bool(settings.tools.tools)


def _format_section(encoded: bytes) -> str:
    try:
        form = _decode_format(encoded)
    except msgspec.MsgspecError as error:
        raise CannotRender("The response format is not known here.", param="text.format") from error
    if isinstance(form, _Object):
        return '# Response Formats\n\n## json_object\n\n// Any JSON object.\n{"type":"object"}'
    comments = "".join(f"// {line}\n" for line in (form.description or "").splitlines())
    schema = msgspec.json.format(bytes(form.schema), indent=-1).decode()
    return f"# Response Formats\n\n## {form.name}\n\n{comments}{schema}"
