"""openai-harmony as the judge of what our own writer and parser do: the same conversation, rendered and read by the library."""

import functools
import importlib
import json
import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tests.conftest import require
from tests.rendering.conversations import Item
from ws_responses.rendering.harmony_prompt import EFFORTS, developer_text
from ws_responses.rendering.harmony_state import AnalysisRule
from ws_responses.rendering.harmony_tools import tool_description, tool_parameters
from ws_responses.rendering.renderer import RenderSettings, ToolSet
from ws_responses.rendering.vocabulary import rank_file

require("openai_harmony")
library: Any = importlib.import_module("openai_harmony")


@functools.cache
def encoding() -> Any:
    """Return the library's encoding; it wants its ranks from a folder that an environment variable names."""
    variable = "TIKTOKEN_ENCODINGS_BASE"
    before = os.environ.get(variable)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "o200k_base.tiktoken").write_bytes(rank_file("o200k_base"))
        os.environ[variable] = folder
        try:
            return library.load_harmony_encoding("HarmonyGptOss")
        finally:
            if before is None:
                del os.environ[variable]
            else:
                os.environ[variable] = before


def spelled(text: str) -> list[int]:
    """Return the ids of text in which control tokens are spelled out."""
    ids: list[int] = encoding().encode(text, allowed_special="all")
    return ids


# -- conversations -------------------------------------------------------------------------------------------------------


def system(settings: RenderSettings, *, current_date: str | None = None) -> Any:
    effort = getattr(library.ReasoningEffort, EFFORTS[settings.reasoning_effort].upper())
    content = library.SystemContent.new().with_reasoning_effort(effort)
    if current_date is not None:
        content = content.with_conversation_start_date(current_date)
    return library.Message.from_role_and_content(library.Role.SYSTEM, content)


def descriptions(tools: ToolSet) -> list[Any]:
    return [
        library.ToolDescription.new(tool.wire_name, tool_description(tool), tool_parameters(tool))
        for tool in tools.tools
    ]


def developer(settings: RenderSettings) -> list[Any]:
    """Return the developer message, if there is one. Response formats are unknown to the library: it is given our text then."""
    if settings.response_format is not None:
        return [library.Message.from_role_and_content(library.Role.DEVELOPER, developer_text(settings))]
    content = library.DeveloperContent.new()
    if settings.instructions:
        content = content.with_instructions(settings.instructions)
    if settings.tools is not None and settings.tools.tools:
        content = content.with_function_tools(descriptions(settings.tools))
    if content == library.DeveloperContent.new():
        return []
    return [library.Message.from_role_and_content(library.Role.DEVELOPER, content)]


def _content(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in content or ())


def _wire_name(item: Item) -> str:
    return f"{item['namespace']}__{item['name']}" if item.get("namespace") else item["name"]


def messages(items: Iterable[Item]) -> list[Any]:
    """Return items as the library's messages; written apart from ours, from the table of the pages."""
    names: dict[str, str] = {}
    found: list[Any] = []
    for item in items:
        kind = item.get("type", "message")
        if kind == "message":
            found.append(_message(item))
        elif kind == "reasoning":
            parts = item.get("content") or item["summary"]
            if parts:
                text = "\n".join(part["text"] for part in parts)
                found.append(
                    library.Message.from_role_and_content(library.Role.ASSISTANT, text).with_channel("analysis")
                )
        elif kind.endswith("_output"):
            author = library.Author.new(library.Role.TOOL, f"functions.{names.pop(item['call_id'])}")
            message = library.Message.from_author_and_content(author, _content(item["output"]))
            found.append(message.with_channel("commentary").with_recipient("assistant"))
        else:
            names[item["call_id"]] = _wire_name(item)
            argument = item["arguments"] if kind == "function_call" else item["input"]
            message = library.Message.from_role_and_content(library.Role.ASSISTANT, argument)
            message = message.with_channel("commentary").with_recipient(f"functions.{_wire_name(item)}")
            found.append(message.with_content_type("<|constrain|>json") if kind == "function_call" else message)
    return found


def _message(item: Item) -> Any:
    text = _content(item["content"])
    if item["role"] == "user":
        return library.Message.from_role_and_content(library.Role.USER, text)
    if item["role"] == "assistant":
        channel = "commentary" if item.get("phase") == "commentary" else "final"
        return library.Message.from_role_and_content(library.Role.ASSISTANT, text).with_channel(channel)
    instructions = library.DeveloperContent.new().with_instructions(text)
    return library.Message.from_role_and_content(library.Role.DEVELOPER, instructions)


def rendered(
    settings: RenderSettings,
    items: Iterable[Item],
    *,
    current_date: str | None = None,
    analysis: AnalysisRule = "library",
) -> list[int]:
    """Return the prompt for the next answer, as the library writes it.

    Args:
        settings: What stands before the conversation.
        items: The conversation.
        current_date: For the system message.
        analysis: The rule; "until_final" is not the library's own, so it is given the messages that remain.
    """
    said = messages(items)
    finals = [at for at, message in enumerate(said) if message.channel == "final"]
    if analysis == "until_final" and finals:
        said = [message for at, message in enumerate(said) if at > finals[-1] or message.channel != "analysis"]
    conversation = [system(settings, current_date=current_date), *developer(settings), *said]
    drop = analysis == "library"
    if settings.response_format is not None and settings.tools is not None and settings.tools.tools:
        # Our text hides the tools from it, and the system message must know of them.
        options = library.RenderOptions(conversation_has_function_tools=True)
        head = encoding().render(conversation[0], options)
        rest = _render(conversation[1:], drop=drop)
        return [*head, *rest]
    return _render(conversation, drop=drop)


def _render(conversation: Sequence[Any], *, drop: bool) -> list[int]:
    ids: list[int] = encoding().render_conversation_for_completion(
        library.Conversation.from_messages(list(conversation)),
        library.Role.ASSISTANT,
        library.RenderConversationConfig(auto_drop_analysis=drop),
    )
    return ids


# -- answers -------------------------------------------------------------------------------------------------------------


class Sampled(NamedTuple):
    """A message as the library reads it.

    Attributes:
        channel: Its channel.
        recipient: Whom it is for.
        text: Its content.
    """

    channel: str | None
    recipient: str | None
    text: str


def parsed(ids: Sequence[int]) -> list[Sampled]:
    """Return the messages of an answer, as ``StreamableParser`` reads them."""
    parser = library.StreamableParser(encoding(), library.Role.ASSISTANT)
    for token in ids:
        parser.process(token)
    parser.process_eos()
    return [
        Sampled(
            message.channel,
            message.recipient,
            "".join(json.loads(part.model_dump_json())["text"] for part in message.content),
        )
        for message in parser.messages
    ]
