"""Builds the events of one response: usual order, full objects, every field that strict clients demand."""

import itertools
import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Literal, TypeAlias

from ws_responses.testing._json import is_array, is_object

__all__ = ["CALL_KINDS", "CallKind", "Event", "IdFactory", "ResponseBuilder", "counting_ids", "numbered", "random_ids"]

Event: TypeAlias = dict[str, Any]
IdFactory: TypeAlias = Callable[[str], str]
"""Gives a new id that starts with this prefix and an underscore."""

CallKind: TypeAlias = Literal[
    "function", "custom", "shell", "local_shell", "apply_patch", "computer", "tool_search", "mcp_approval"
]
CALL_KINDS: Final[tuple[CallKind, ...]] = (
    "function",
    "custom",
    "shell",
    "local_shell",
    "apply_patch",
    "computer",
    "tool_search",
    "mcp_approval",
)

_ID_PREFIXES: Final = {
    "function": "fc",
    "custom": "ctc",
    "shell": "sh",
    "local_shell": "lsh",
    "apply_patch": "apc",
    "computer": "cu",
    "tool_search": "ts",
    "mcp_approval": "mcpr",
}


def random_ids(prefix: str) -> str:
    """Give an id that nobody can guess: the prefix, an underscore and 32 hex digits."""
    return f"{prefix}_{secrets.token_hex(16)}"


def counting_ids() -> IdFactory:
    """Return a factory of `resp_1`, `msg_2`, ...: readable, and the same in each run."""
    last = 0

    def new_id(prefix: str) -> str:
        nonlocal last
        last += 1
        return f"{prefix}_{last}"

    return new_id


def numbered(events: Iterable[Event]) -> Iterator[Event]:
    """Put a `sequence_number`, from 0 on, behind the `type` of each event."""
    for number, event in enumerate(events):
        yield {"type": event["type"], "sequence_number": number} | event


class ResponseBuilder:
    """One response in the making. Each method yields events, without `sequence_number`.

    Args:
        body: the create request that the response answers; its settings are echoed.
        response_id: the id; by default a new one.
        id_factory: gives ids of response, items and calls.
        created_at: seconds since the epoch; by default now.
        default_model: the model where the request names none.

    Attributes:
        id: the response id.
        output: finished items, in order of `output_index`.
        output_tokens: one per delta so far.
        created: whether `start` was called.
    """

    def __init__(
        self,
        body: Mapping[str, Any],
        *,
        response_id: str | None = None,
        id_factory: IdFactory = random_ids,
        created_at: int | None = None,
        default_model: str = "scripted-model",
    ) -> None:
        self._new_id = id_factory
        self.id = id_factory("resp") if response_id is None else response_id
        self.output: list[dict[str, Any]] = []
        self.output_tokens = 0
        self.created = False
        self._reasoning_tokens = 0
        self._input = body.get("input")
        self._next_index = 0
        self._unfinished: list[dict[str, Any]] = []
        self._fields = _echoed_fields(body)
        self._fields["model"] = body.get("model") or default_model
        self._fields["created_at"] = int(time.time()) if created_at is None else created_at

    def snapshot(self, status: str, **changes: Any) -> dict[str, Any]:
        """Return the full response object as of now."""
        fields = {"id": self.id, "object": "response", "status": status, **self._fields, **changes}
        fields.setdefault("output", list(self.output))
        return fields

    def start(self) -> Iterator[Event]:
        """`response.created`, `response.in_progress`."""
        self.created = True
        yield {"type": "response.created", "response": self.snapshot("in_progress")}
        yield {"type": "response.in_progress", "response": self.snapshot("in_progress")}

    def message(self, text: str, *, deltas: int = 1, finish: bool = True, phase: str | None = None) -> Iterator[Event]:
        """Build one assistant message.

        Args:
            text: the whole text.
            deltas: number of pieces; not more than characters.
            finish: False leaves the item open: no `done` events.
            phase: `commentary` or `final_answer`; left out if None.
        """
        item: dict[str, Any] = {"type": "message", "id": self._new_id("msg"), "status": "in_progress"}
        item |= {"role": "assistant", "content": []}
        if phase is not None:
            item["phase"] = phase
        index = self._open(item)
        place = {"item_id": item["id"], "output_index": index, "content_index": 0}
        part: dict[str, Any] = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        yield {"type": "response.output_item.added", "output_index": index, "item": dict(item)}
        yield {"type": "response.content_part.added", **place, "part": {**part, "text": ""}}
        for piece in split(text, deltas):
            self.output_tokens += 1
            yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
        item["content"] = [part]
        if not finish:
            return
        yield {"type": "response.output_text.done", **place, "text": text, "logprobs": []}
        yield {"type": "response.content_part.done", **place, "part": part}
        yield self._finish(item, index)

    def reasoning(self, text: str, *, deltas: int = 1, encrypted_content: str | None = None) -> Iterator[Event]:
        """Build one reasoning item with a summary."""
        item: dict[str, Any] = {"type": "reasoning", "id": self._new_id("rs"), "summary": []}
        if encrypted_content is not None:
            item["encrypted_content"] = encrypted_content
        index = self._open(item)
        place = {"item_id": item["id"], "output_index": index, "summary_index": 0}
        part = {"type": "summary_text", "text": text}
        yield {"type": "response.output_item.added", "output_index": index, "item": dict(item)}
        yield {"type": "response.reasoning_summary_part.added", **place, "part": {**part, "text": ""}}
        for piece in split(text, deltas):
            self.output_tokens += 1
            self._reasoning_tokens += 1
            yield {"type": "response.reasoning_summary_text.delta", **place, "delta": piece}
        yield {"type": "response.reasoning_summary_text.done", **place, "text": text}
        yield {"type": "response.reasoning_summary_part.done", **place, "part": part}
        item["summary"] = [part]
        yield self._finish(item, index)

    def tool_call(
        self,
        name: str,
        arguments: Any = None,
        *,
        call_id: str | None = None,
        kind: CallKind = "function",
        deltas: int = 1,
    ) -> Iterator[Event]:
        """Build one call that the client has to answer.

        Args:
            name: the tool; used by kinds that have a name.
            arguments: what the kind calls so: arguments (text or an object), input, action,
                operation; None for a plain example.
            call_id: its id (for `mcp_approval`: the item id); by default a new one.
            kind: the kind of call.
            deltas: number of pieces, for kinds that stream their arguments.
        """
        item_id = self._new_id(_ID_PREFIXES[kind])
        call_id = (item_id if kind == "mcp_approval" else self._new_id("call")) if call_id is None else call_id
        item, streamed = _call_item(kind, name, arguments, call_id)
        item = {"type": item.pop("type"), "id": call_id if kind == "mcp_approval" else item_id, **item}
        if streamed is None:
            yield from self.item(item)
            return
        field, prefix = streamed
        text: str = item[field]
        index = self._open(item)
        place = {"item_id": item["id"], "output_index": index}
        yield {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**item, field: "", "status": "in_progress"},
        }
        for piece in split(text, deltas):
            self.output_tokens += 1
            yield {"type": f"{prefix}.delta", **place, "delta": piece}
        done: Event = {"type": f"{prefix}.done", **place, field: text}
        if kind == "function":
            done["name"] = name
        yield done
        yield self._finish(item, index)

    def item(self, item: Mapping[str, Any]) -> Iterator[Event]:
        """Any item as it is: `output_item.added` and `.done`."""
        whole = dict(item)
        index = self._open(whole)
        added = {**whole, "status": "in_progress"} if "status" in whole else dict(whole)
        yield {"type": "response.output_item.added", "output_index": index, "item": added}
        yield self._finish(whole, index)

    def complete(self) -> Iterator[Event]:
        """`response.completed`."""
        yield self._terminal("completed")

    def incomplete(self, reason: str = "max_output_tokens") -> Iterator[Event]:
        """`response.incomplete`."""
        yield self._terminal("incomplete", incomplete_details={"reason": reason})

    def fail(self, code: str = "server_error", message: str = "The model failed.") -> Iterator[Event]:
        """`response.failed`."""
        yield self._terminal("failed", error={"code": code, "message": message})

    def usage(self) -> dict[str, Any]:
        """Count tokens: a quarter of the input's JSON characters, and one per delta."""
        input_tokens = math.ceil(len(json.dumps(self._input)) / 4) if self._input else 0
        return {
            "input_tokens": input_tokens,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": input_tokens + self.output_tokens,
        }

    def _open(self, item: dict[str, Any]) -> int:
        self._unfinished.append(item)
        self._next_index += 1
        return self._next_index - 1

    def _finish(self, item: dict[str, Any], index: int) -> Event:
        self._unfinished.remove(item)
        if item.get("status") == "in_progress":
            item["status"] = "completed"
        self.output.append(item)
        return {"type": "response.output_item.done", "output_index": index, "item": item}

    def _terminal(self, status: str, **changes: Any) -> Event:
        left = [] if status == "failed" else [{**item, "status": status} for item in self._unfinished]
        response = self.snapshot(status, output=[*self.output, *left], usage=self.usage(), **changes)
        if status == "completed":
            response["completed_at"] = self._fields["created_at"]
        return {"type": f"response.{status}", "response": response}


def split(text: str, pieces: int) -> list[str]:
    """Cut a text into at most so many pieces of nearly equal length, none empty."""
    pieces = max(1, min(pieces, len(text)))
    borders = [len(text) * number // pieces for number in range(pieces + 1)]
    return [text[begin:end] for begin, end in itertools.pairwise(borders) if begin < end]


def _echoed_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rest of the response object: each required field, with the request's setting or its default."""
    defaults: dict[str, Any] = {
        "background": False,
        "completed_at": None,
        "error": None,
        "frequency_penalty": 0.0,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": None,
        "max_tool_calls": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "presence_penalty": 0.0,
        "previous_response_id": None,
        "prompt_cache_key": None,
        "reasoning": {"effort": None, "summary": None},
        "safety_identifier": None,
        "service_tier": "default",
        "store": True,
        "temperature": 1.0,
        "text": {"format": {"type": "text"}},
        "tool_choice": "auto",
        "tools": [],
        "top_logprobs": 0,
        "top_p": 1.0,
        "truncation": "disabled",
        "usage": None,
        "user": None,
    }
    fixed = {"background", "completed_at", "error", "incomplete_details", "usage"}
    fields = {key: _first(None if key in fixed else body.get(key), default) for key, default in defaults.items()}
    fields["reasoning"] = {**defaults["reasoning"], **fields["reasoning"]}
    fields["text"] = {**defaults["text"], **fields["text"]}
    fields["tools"] = [_whole_tool(tool) for tool in fields["tools"]]
    return fields


def _first(value: Any, default: Any) -> Any:
    # A value of another kind than the default is not echoed: whoever validates the request has let it pass.
    if is_object(default):
        return value if is_object(value) else default
    if is_array(default):
        return value if is_array(value) else default
    return default if value is None else value


def _whole_tool(tool: Any) -> Any:
    if is_object(tool) and tool.get("type") == "function":
        return {"type": "function", "name": None, "description": None, "parameters": None, "strict": None, **tool}
    return tool


def _call_item(
    kind: CallKind, name: str, arguments: Any, call_id: str
) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """Return the item without its id and, for kinds that stream, the field and the prefix of its events."""
    call: dict[str, Any] = {"call_id": call_id, "status": "completed"}
    if kind == "function":
        text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
        item = {"type": "function_call", **call, "name": name, "arguments": text}
        return item, ("arguments", "response.function_call_arguments")
    if kind == "custom":
        item = {"type": "custom_tool_call", **call, "name": name, "input": arguments or ""}
        return item, ("input", "response.custom_tool_call_input")
    action: dict[str, Any]
    if kind == "shell":
        action = arguments or {"commands": ["true"], "timeout_ms": None, "max_output_length": None}
        return {"type": "shell_call", **call, "action": action}, None
    if kind == "local_shell":
        action = arguments or {"type": "exec", "command": ["true"], "env": {}}
        return {"type": "local_shell_call", **call, "action": action}, None
    if kind == "apply_patch":
        operation = arguments or {"type": "delete_file", "path": "a.txt"}
        return {"type": "apply_patch_call", **call, "operation": operation}, None
    if kind == "computer":
        action = arguments or {"type": "screenshot"}
        return {"type": "computer_call", **call, "action": action, "pending_safety_checks": []}, None
    if kind == "tool_search":
        return {"type": "tool_search_call", **call, "execution": "client", "arguments": arguments or {}}, None
    text = arguments if isinstance(arguments, str) else json.dumps({} if arguments is None else arguments)
    return {"type": "mcp_approval_request", "server_label": "mcp", "name": name, "arguments": text}, None
