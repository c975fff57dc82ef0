"""What a scripted backend sees in a prompt: the calls made so far, the tools, and what it has read before."""

import json
from array import array
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from ws_responses.backends import ChatPrompt, PromptKind, TokenPrompt
from ws_responses.rendering.rendered import Rendered
from ws_responses.rendering.tokenizer import Tokenizer, decode_text
from ws_responses.testing._json import is_object
from ws_responses.testing.model import arguments_for
from ws_responses.testing.speech import Call, Markup

__all__ = ["BYTES_PER_TOKEN", "PrefixMemory", "calls_made", "offered_call"]

BYTES_PER_TOKEN: Final = 4
"""Of chat messages: there is no tokenizer that they are counted by."""

_HEAD_TOKENS: Final = 16
"""Ids behind the beginning of a message that tell whose it is."""


# --- calls ------------------------------------------------------------------------------------------------------------


def calls_made(prompt: TokenPrompt | ChatPrompt, markup: Markup, tokenizer: Tokenizer | None) -> int:
    """Return how many tool outputs stand behind the last user message; 0 where the format does not show it."""
    if isinstance(prompt, ChatPrompt):
        return _outputs_of_messages(prompt.rendered)
    if markup.start is None or tokenizer is None:
        return 0
    return _outputs_of_tokens(prompt.rendered.ids(), markup, tokenizer, tokenizer.special(markup.start))


def _outputs_of_messages(rendered: Rendered) -> int:
    count = 0
    for link in rendered.links():  # newest first: only what is new is decoded
        for message in reversed(msgspec.json.decode(b"[%s]" % link.encoded)):
            role = message.get("role")
            if role == "user":
                return count
            count += role == "tool"
    return count


def _outputs_of_tokens(ids: "array[int]", markup: Markup, tokenizer: Tokenizer, start: int) -> int:
    count = 0
    for at in range(len(ids) - 1, -1, -1):
        if ids[at] != start:
            continue
        head = decode_text(tokenizer, ids[at + 1 : at + 1 + _HEAD_TOKENS])
        if head.startswith(markup.outputs):
            count += 1
        elif head.startswith(markup.user):
            break
    return count


def offered_call(prompt: ChatPrompt, arguments: Mapping[str, Mapping[str, Any]]) -> Call | None:
    """Return a call of the forced tool, else of the first that ``arguments`` knows, else of the first; None without tools."""
    if prompt.tools is None:
        return None
    choice: Any = None if prompt.tool_choice is None else msgspec.json.decode(prompt.tool_choice)
    tools = {name: tool for tool in msgspec.json.decode(prompt.tools) if (name := _name(tool)) is not None}
    name = _name(choice) or next((known for known in arguments if known in tools), next(iter(tools), None))
    if choice == "none" or name not in tools:
        return None
    tool = tools[name]
    if tool.get("type") == "custom":
        return Call(name, "x")
    made = arguments[name] if name in arguments else arguments_for(tool["function"].get("parameters") or {})
    return Call(name, json.dumps(made))


def _name(tool: Any) -> str | None:
    """Return the name in a tool or a choice of one; None for a choice that is a word."""
    if not is_object(tool):
        return None
    named: Mapping[str, Any] = tool.get("function") or tool.get("custom") or {}
    return named.get("name")


# --- what was read before -----------------------------------------------------------------------------------------------


class PrefixMemory:
    """Knows the newest prompts of one kind and what was sampled after them, as the cache of a service does.

    Args:
        kind: Of its prompts.
        keep: Prompts that it knows; 0 for a service without a cache.
    """

    def __init__(self, kind: PromptKind, keep: int) -> None:
        self._bytes_per_token = BYTES_PER_TOKEN if kind == "chat" else array("I").itemsize
        self._own_bytes = _message_bytes if kind == "chat" else _id_bytes
        self._known: deque[tuple[Rendered, bytes]] = deque(maxlen=keep)

    def tokens(self, rendered: Rendered) -> int:
        """Return the tokens of a prompt; of chat messages, a fourth of their bytes."""
        return sum(len(self._own_bytes(link)) for link in rendered.links()) // self._bytes_per_token

    def cached(self, rendered: Rendered) -> int | None:
        """Return how many tokens of a prompt are the beginning of something known; None without a cache."""
        if not self._known.maxlen:
            return None
        return max((self._shared(rendered, known, sampled) for known, sampled in self._known), default=0)

    def keep(self, rendered: Rendered, sampled: Sequence[int] = ()) -> None:
        """Take a prompt, and the ids that were sampled after it."""
        self._known.append((rendered, array("I", sampled).tobytes()))

    def _shared(self, prompt: Rendered, known: Rendered, sampled: bytes) -> int:
        # What both are made of is equal without a look at it.
        common = _common_link(prompt, known)
        shared = 0 if common is None else sum(len(self._own_bytes(link)) for link in common.links())
        behind = _equal_bytes(self._behind(prompt, common), self._behind(known, common) + sampled)
        return (shared + behind) // self._bytes_per_token

    def _behind(self, rendered: Rendered, link: Rendered | None) -> bytes:
        newer = takewhile(lambda each: each is not link, rendered.links())
        return b"".join(reversed([self._own_bytes(each) for each in newer]))


def _id_bytes(link: Rendered) -> bytes:
    return link.own_ids.tobytes()


def _message_bytes(link: Rendered) -> bytes:
    return link.encoded


def _common_link(one: Rendered, other: Rendered) -> Rendered | None:
    """Return a link that both are made of; the newest, unless links without tokens stand beside it."""
    a: Rendered | None = one
    b: Rendered | None = other
    while a is not None and b is not None and a is not b:
        end_a, end_b = a.end, b.end
        if end_a >= end_b:
            a = a.before
        if end_b >= end_a:
            b = b.before
    return a if a is b else None


def _equal_bytes(one: bytes, other: bytes) -> int:
    """Return the length of the common beginning, by a few comparisons of long pieces."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
