"""Items: what the conversation is made of, and which of them are calls that the client must answer.

An item stays the bytes that came in. Only the head of each is decoded, once, by the validator and the collector.
The pairing table is the API reference's list of client-executed tools.
"""

from typing import Final

import msgspec
from msgspec import Raw, Struct

from ws_responses.protocol.withheld import withheld


class ItemHead(Struct, frozen=True, gc=False):
    """The members of an item that decide how it pairs; everything else is skipped unread."""

    type: str | None = None
    role: str | None = None
    id: str | None = None
    call_id: str | None = None
    approval_request_id: str | None = None
    status: str | None = None
    execution: str | None = None

    __repr__ = withheld


class Pairing(Struct, frozen=True):
    """How one kind of client-executed call is answered.

    Attributes:
        output: Item type of the answer.
        key: Member of the call that names it.
        answer_key: Member of the answer that names its call.
        words: The call kind in error texts.
        client_only: The call is the client's only if it says ``execution: "client"``.
    """

    output: str
    words: str
    key: str = "call_id"
    answer_key: str = "call_id"
    client_only: bool = False


CALLS: Final[dict[str, Pairing]] = {
    "function_call": Pairing("function_call_output", "function call"),
    "custom_tool_call": Pairing("custom_tool_call_output", "custom tool call"),
    "computer_call": Pairing("computer_call_output", "computer call"),
    "shell_call": Pairing("shell_call_output", "shell call"),
    "local_shell_call": Pairing("local_shell_call_output", "local shell call"),
    "apply_patch_call": Pairing("apply_patch_call_output", "apply patch call"),
    "tool_search_call": Pairing("tool_search_output", "tool search call", client_only=True),
    "mcp_approval_request": Pairing(
        "mcp_approval_response", "MCP approval request", key="id", answer_key="approval_request_id"
    ),
}
"""Client-executed calls by item type (API reference, input items)."""

OUTPUTS: Final[dict[str, str]] = {pairing.output: call for call, pairing in CALLS.items()}
"""Call type by the type of its answer."""

COMPACTION: Final = "compaction"
"""Starts a new base: nothing older is joined."""

ITEM_REFERENCE: Final = "item_reference"
"""Points at an item that we may not hold."""

decode_head = msgspec.json.Decoder(ItemHead).decode


def call_key(head: ItemHead) -> str | None:
    """Name of the call that ``head`` makes, or None if it is no call that the client must answer."""
    pairing = CALLS.get(head.type or "")
    if pairing is None or (pairing.client_only and head.execution != "client"):
        return None
    return head.id if pairing.key == "id" else head.call_id or head.id


def answered_key(head: ItemHead) -> str | None:
    """Name of the call that ``head`` answers; only for heads whose type is in :data:`OUTPUTS`."""
    pairing = CALLS[OUTPUTS[head.type or ""]]
    if pairing.answer_key == "approval_request_id":
        return head.approval_request_id
    # The reference's local_shell_call_output names its call by ``id``; Codex and the SDKs use ``call_id``.
    return head.call_id or (head.id if head.type == "local_shell_call_output" else None)


def user_message(text: Raw | bytes) -> bytes:
    """Return the message item that an ``input`` string (given as encoded JSON) stands for."""
    return b'{"type":"message","role":"user","content":' + bytes(text) + b"}"


_items = msgspec.json.Decoder(list[Raw])


def split_items(joined: bytes) -> list[bytes]:
    """Return the single items of a joined piece of history, byte-exact."""
    return [bytes(item) for item in _items.decode(b"[" + joined + b"]")] if joined else []
