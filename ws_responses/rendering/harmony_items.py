"""Items of a conversation as harmony messages.

============================  ==========================================================================================
item                          message
============================  ==========================================================================================
user message                  ``user``
system, developer message     ``developer``, as instructions: the rank of ``system`` belongs to the server
assistant message             channel ``commentary`` if that is its phase, else ``final``; a refusal is its text
reasoning                     channel ``analysis``: the reasoning, else its summaries; none if neither is told
function_call                 channel ``commentary`` to ``functions.<wire name>``, JSON
custom_tool_call              the same, free text
outputs of both               from ``functions.<wire name>`` to ``assistant``; the call tells the name
additional_tools              none: they are part of the settings
============================  ==========================================================================================
"""

from ws_responses.errors import excerpt
from ws_responses.rendering.harmony_prompt import instructions_text
from ws_responses.rendering.harmony_state import Addition
from ws_responses.rendering.harmony_tokens import CALL, END, HarmonyTokens
from ws_responses.rendering.items import (
    AdditionalTools,
    CallOutput,
    CustomCall,
    FunctionCall,
    Item,
    Message,
    Reasoning,
    text_of,
)
from ws_responses.rendering.renderer import CannotRender


def add_item(addition: Addition, item: Item, index: int, tokens: HarmonyTokens) -> None:
    """Add an item's messages.

    Args:
        addition: Where to.
        item: The item.
        index: Which of those given, for the error.
        tokens: Writes them.

    Raises:
        CannotRender: It has no form here.
    """
    match item:
        case Message():
            _add_message(addition, item, index, tokens)
        case FunctionCall():
            _add_call(addition, item, tokens.call_header(item.wire_name, json=True), item.arguments, tokens)
        case CustomCall():
            _add_call(addition, item, tokens.call_header(item.wire_name, json=False), item.input, tokens)
        case CallOutput():
            _add_output(addition, item, index, tokens)
        case Reasoning():
            if item.content or item.summary:
                begin = addition.add(tokens.analysis, tokens.encode(item.text), END)
                addition.mark_assistant(begin, len(addition.ids), "analysis")
        case AdditionalTools():
            pass


def _add_message(addition: Addition, message: Message, index: int, tokens: HarmonyTokens) -> None:
    text = text_of(message.content, index)
    if message.role == "user":
        addition.add(tokens.user, tokens.encode(text), END)
    elif message.role == "assistant":
        channel = "commentary" if message.phase == "commentary" else "final"
        header = tokens.commentary if channel == "commentary" else tokens.final
        begin = addition.add(header, tokens.encode(text), END)
        addition.mark_assistant(begin, len(addition.ids), channel)
    else:
        addition.add(tokens.developer, tokens.encode(instructions_text(text)), END)


def _add_call(
    addition: Addition, call: FunctionCall | CustomCall, header: list[int], argument: str, tokens: HarmonyTokens
) -> None:
    begin = addition.add(header, tokens.encode(argument), CALL)
    addition.mark_assistant(begin, len(addition.ids), "commentary")
    addition.open_call(call.call_id, call.wire_name)


def _add_output(addition: Addition, output: CallOutput, index: int, tokens: HarmonyTokens) -> None:
    text = text_of(output.output, index, "output")
    name = addition.close_call(output.call_id)
    if name is None:
        raise CannotRender(
            f"The output of '{excerpt(output.call_id)}' needs its call before it: the call tells which tool it is of.",
            index=index,
            param="call_id",
        )
    addition.add(tokens.output_header(name), tokens.encode(text), END)
