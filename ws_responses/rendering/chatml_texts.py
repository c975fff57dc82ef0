"""The words of ChatML conversations with tools, as models of the Hermes and Qwen kind have learnt them.

Sources: the model cards of Hermes 2 Pro (tools, calls, JSON mode) and the chat templates of Qwen 2.5 and 3.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from ws_responses.rendering.formats import read_format
from ws_responses.rendering.items import CustomCall, FunctionCall, ToolCall
from ws_responses.rendering.json_text import arguments_with
from ws_responses.rendering.renderer import CannotRender, Tool
from ws_responses.rendering.tagged_calls import CALL_CLOSE, CALL_OPEN
from ws_responses.rendering.tagged_text import THINK_CLOSE, THINK_OPEN
from ws_responses.rendering.tool_schemas import function_of, within_levels

RESPONSE_OPEN: Final = "<tool_response>"
RESPONSE_CLOSE: Final = "</tool_response>"

TAGS: Final = (
    THINK_OPEN,
    THINK_CLOSE,
    CALL_OPEN,
    CALL_CLOSE,
    RESPONSE_OPEN,
    RESPONSE_CLOSE,
    "<tools>",
    "</tools>",
)
"""Tags that vocabularies may have as tokens of their own."""

TOOLS_BEGIN: Final = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
"""

TOOLS_END: Final = """
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""

JSON_BEGIN: Final = "Answer in JSON only. Here's the json schema you must adhere to:\n<schema>\n"
JSON_END: Final = "\n</schema>"

CALL_BEGIN: Final = f"{CALL_OPEN}\n"
CALL_END: Final = f"\n{CALL_CLOSE}"
THINK_BEGIN: Final = f"{THINK_OPEN}\n"
THINK_END: Final = f"\n{THINK_CLOSE}\n\n"
NO_THOUGHT: Final = f"{THINK_BEGIN}{THINK_END}"
RESPONSE_BEGIN: Final = f"\n{RESPONSE_OPEN}\n"
RESPONSE_END: Final = f"\n{RESPONSE_CLOSE}"


def tools_text(tools: Iterable[Tool]) -> str:
    """Return the signatures of tools, one a line."""
    return "\n".join(_dumped({"type": "function", "function": function_of(tool)}) for tool in tools)


def schema_text(text_format: bytes) -> str | None:
    """Return the JSON Schema that answers must follow; None for text.

    Raises:
        CannotRender: The format is of another kind, or nested too deeply.
    """
    schema = read_format(text_format).json_schema
    if schema is None:
        return None
    decoded = msgspec.json.decode(schema)
    if not within_levels(decoded):
        raise CannotRender("The schema of the answer is nested too deeply.", param="text.format.schema")
    return _dumped(decoded)


def call_text(call: ToolCall) -> str:
    """Return the JSON of a call, with the arguments as the model wrote them."""
    name = _dumped(call.wire_name)
    return f'{{"name": {name}, "arguments": {_arguments(call)}}}'


def _arguments(call: ToolCall) -> str:
    if isinstance(call, CustomCall):
        return arguments_with(call.input)
    assert isinstance(call, FunctionCall)
    written = call.arguments.strip() or "{}"
    try:
        msgspec.json.decode(written)
    except (msgspec.MsgspecError, UnicodeEncodeError, RecursionError):
        return _dumped(call.arguments)
    return written


def _dumped(value: Any) -> str:
    """Return JSON as templates write it (``tojson`` of transformers): blanks behind commas and colons, nothing escaped."""
    return json.dumps(value, ensure_ascii=False)
