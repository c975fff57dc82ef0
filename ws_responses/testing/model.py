"""A deterministic "model": same request, same answer. It calls tools, then says something.

`ScriptedModel.events(body)` is a plain iterator, so that an app in any framework can serve it:

    model = ScriptedModel()
    try:
        events = model.events(body)
    except ModelError as exc:
        return JSONResponse(exc.body, exc.status)
"""

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import anyio

from ws_responses.testing._json import is_array, is_object
from ws_responses.testing.builder import Event, IdFactory, ResponseBuilder, numbered, random_ids

__all__ = ["ARGUMENTS", "ModelError", "ScriptedModel", "arguments_for"]

ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "exec_command": {"cmd": "echo ws-probe-$((40+2))"},
    "shell_command": {"command": "echo ws-probe-$((40+2))"},
    "shell": {"command": ["bash", "-lc", "echo ws-probe-$((40+2))"]},
    "bash": {"command": "echo ws-probe-$((40+2))"},
    "get_weather": {"city": "Paris"},
}
"""Function tools of well-known clients, with arguments that suit them; the first one offered is called."""

_MAX_SCHEMA_DEPTH = 16
_MAX_SIZE = 1000

# Items after which a call may be known though it is not in the input.
_BASES = frozenset({"compaction", "item_reference"})


_CLIENT_OUTPUTS = frozenset(
    {
        "function_call_output",
        "custom_tool_call_output",
        "computer_call_output",
        "shell_call_output",
        "local_shell_call_output",
        "apply_patch_call_output",
        "mcp_approval_response",
    }
)


class ModelError(Exception):
    """The request cannot be answered.

    Attributes:
        status: the HTTP status.
        body: the error body in OpenAI's form.
    """

    def __init__(self, status: int, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        kind = "invalid_request_error" if status < 500 else "server_error"
        self.body: dict[str, Any] = {"error": {"message": message, "type": kind, "param": param, "code": code}}


class ScriptedModel:
    """Calls a function tool `tool_calls` times after each user message, then answers with text.

    The calls are counted by their outputs, over the whole input given. The tool called is the one
    forced by `tool_choice`, else the first of `arguments` that is offered, else the first function
    tool at all, with arguments made from its schema.

    Args:
        tool_calls: number of calls per user message, if a function tool is offered.
        text: the answer, or a function of the request; by default it names the number of input
            items and of tool outputs, so that a lost item shows.
        deltas: number of pieces of the text.
        arguments: arguments by tool name.
        reasoning: text of a reasoning item before each answer; None for none.
        id_factory: gives ids; by default ones that nobody can guess.
        clock: gives the seconds for `created_at`.
    """

    def __init__(
        self,
        *,
        tool_calls: int = 1,
        text: str | Callable[[Mapping[str, Any]], str] | None = None,
        deltas: int = 4,
        arguments: Mapping[str, Mapping[str, Any]] = ARGUMENTS,
        reasoning: str | None = None,
        id_factory: IdFactory = random_ids,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tool_calls = tool_calls
        self._text = text
        self._deltas = deltas
        self._arguments = arguments
        self._reasoning = reasoning
        self._id_factory = id_factory
        self._clock = clock

    def events(
        self, body: Mapping[str, Any], *, response_id: str | None = None, whole_input: bool | None = None
    ) -> Iterator[Event]:
        """Answer one create request.

        The request is judged at the call, before the first event is asked for.

        Args:
            body: the request.
            response_id: the id of the response; by default a new one.
            whole_input: whether `input` is the whole conversation; by default the request tells
                (`previous_response_id`, `conversation`, `prompt`, a compaction item, ...: no).

        Raises:
            ModelError: a tool output names a call that is not in the whole input.
        """
        if _is_whole(body) if whole_input is None else whole_input:
            _check_calls(input_items(body))
        return numbered(self._answer(body, self.builder(body, response_id)))

    async def stream(self, body: Mapping[str, Any], rate: float | None = None) -> AsyncIterator[Event]:
        """Answer one create request, with at most `rate` tokens (deltas) per second."""
        start = anyio.current_time()
        tokens = 0
        for event in self.events(body):
            if rate is not None and event["type"].endswith(".delta"):
                await anyio.sleep_until(start + tokens / rate)
                tokens += 1
            yield event

    def compact(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Answer `POST /responses/compact`: the user messages and one compaction item.

        Raises:
            ModelError: the request names no model.
        """
        if not body.get("model"):
            raise ModelError(
                400, "Missing required parameter: 'model'.", param="model", code="missing_required_parameter"
            )
        items = input_items(body)
        kept = [item for item in items if _is_user_message(item)]
        compaction = {
            "type": "compaction",
            "id": self._id_factory("cmp"),
            "encrypted_content": f"scripted-compaction-of-{len(items)}-items",
        }
        return {
            "id": self._id_factory("resp"),
            "object": "response.compaction",
            "created_at": int(self._clock()),
            "output": [*kept, compaction],
            "usage": self.builder(body).usage(),
        }

    def builder(self, body: Mapping[str, Any], response_id: str | None = None) -> ResponseBuilder:
        """Return a builder for a response with this model's ids and clock."""
        return ResponseBuilder(
            body, response_id=response_id, id_factory=self._id_factory, created_at=int(self._clock())
        )

    def _answer(self, body: Mapping[str, Any], builder: ResponseBuilder) -> Iterator[Event]:
        yield from builder.start()
        if self._reasoning is not None:
            yield from builder.reasoning(self._reasoning)
        call = self._pick_call(body)
        if call is None:
            yield from builder.message(self._final_text(body), deltas=self._deltas)
        else:
            yield from builder.tool_call(*call)
        yield from builder.complete()

    def _final_text(self, body: Mapping[str, Any]) -> str:
        if isinstance(self._text, str):
            return self._text
        if self._text is not None:
            return self._text(body)
        items = input_items(body)
        outputs = sum(1 for item in items if _is_output(item))
        return f"This answers {len(items)} input items, {outputs} of them tool outputs."

    def _pick_call(self, body: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]] | None:
        choice = body.get("tool_choice")
        if choice == "none" or _outputs_since_user(input_items(body)) >= self._tool_calls:
            return None
        tools = {tool["name"]: tool for tool in _function_tools(body)}
        name = choice.get("name") if is_object(choice) else None
        if not (isinstance(name, str) and name in tools):
            name = next((known for known in self._arguments if known in tools), next(iter(tools), None))
        if name is None:
            return None
        if name in self._arguments:
            return name, self._arguments[name]
        return name, arguments_for(tools[name].get("parameters") or {})


def input_items(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the input as a list of items; a text is one user message."""
    given = body.get("input")
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if is_array(given):
        return [item for item in given if is_object(item)]
    return []


def arguments_for(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Make arguments that fit a JSON schema: the required properties, each with a plain value."""
    value = _value_for(schema, schema, 0)
    return dict(value) if is_object(value) else {}


def _value_for(schema: Any, root: Mapping[str, Any], depth: int) -> Any:
    if not is_object(schema) or depth > _MAX_SCHEMA_DEPTH:
        return None
    if isinstance(schema.get("$ref"), str):
        return _value_for(_resolve(schema["$ref"], root), root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if choices := _list(schema, "enum"):
        return choices[0]
    if union := _list(schema, "anyOf") or _list(schema, "oneOf"):
        return _value_for(union[0], root, depth + 1)
    if parts := _list(schema, "allOf"):
        return _merged(parts, root, depth)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if is_array(kind):
        kind = next((each for each in kind if each != "null"), "null")
    return _value_of_kind(kind, schema, root, depth)


def _value_of_kind(kind: Any, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    if kind == "object":
        properties: Any = schema.get("properties")
        known: Mapping[str, Any] = properties if is_object(properties) else {}
        names = [name for name in _list(schema, "required") if isinstance(name, str)]
        return {name: _value_for(known.get(name), root, depth + 1) for name in names}
    if kind == "array":
        return [_value_for(schema.get("items"), root, depth + 1)] * _size(schema, "minItems", 0)
    if kind in ("number", "integer"):
        least: Any = schema.get("minimum")
        return max(1, least) if isinstance(least, int | float) else 1
    if kind == "boolean":
        return True
    if kind == "null":
        return None
    return "x" * _size(schema, "minLength", 1)


def _list(schema: Mapping[str, Any], key: str) -> list[Any]:
    """Return the array at the key; a broken schema is the client's affair, and no reason to fail."""
    value: Any = schema.get(key)
    return value if is_array(value) else []


def _size(schema: Mapping[str, Any], key: str, default: int) -> int:
    value: Any = schema.get(key)
    return min(max(value, default), _MAX_SIZE) if isinstance(value, int) else default


def _merged(schemas: Sequence[Any], root: Mapping[str, Any], depth: int) -> Any:
    values = [_value_for(schema, root, depth + 1) for schema in schemas]
    merged: dict[str, Any] = {}
    for value in values:
        if not is_object(value):
            return value
        merged |= value
    return merged


def _resolve(ref: str, root: Mapping[str, Any]) -> Any:
    node: Any = root
    for name in ref.removeprefix("#/").split("/"):
        node = node.get(name) if is_object(node) else None
    return node


def _function_tools(body: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tools = body.get("tools")
    if not is_array(tools):
        return []
    return [
        tool
        for tool in tools
        if is_object(tool) and tool.get("type") == "function" and isinstance(tool.get("name"), str)
    ]


def _kind(item: Mapping[str, Any]) -> str:
    return str(item.get("type", "message"))


def _is_user_message(item: Mapping[str, Any]) -> bool:
    return _kind(item) == "message" and item.get("role") == "user"


def _is_output(item: Mapping[str, Any]) -> bool:
    """Whether it is the client's answer to a call; what ran on the server is none."""
    kind = _kind(item)
    return kind in _CLIENT_OUTPUTS or (kind == "tool_search_output" and item.get("execution") != "server")


def _outputs_since_user(items: Sequence[Mapping[str, Any]]) -> int:
    count = 0
    for item in items:
        if _is_user_message(item):
            count = 0
        elif _is_output(item):
            count += 1
    return count


def _is_whole(body: Mapping[str, Any]) -> bool:
    if body.get("previous_response_id") or body.get("conversation") or body.get("prompt"):
        return False
    return not any(_kind(item) in _BASES for item in input_items(body))


def _check_calls(items: Sequence[Mapping[str, Any]]) -> None:
    # Names in JSON form: from the wire they may be anything, also what cannot be hashed.
    known: set[str] = set()
    for item in items:
        kind = _kind(item)
        if _is_output(item):
            name = item.get("approval_request_id" if kind == "mcp_approval_response" else "call_id")
            if name is not None and json.dumps(name) not in known:
                message = f"No tool call found for function call output with call_id {name}."
                raise ModelError(400, message, param="input")
        elif not kind.endswith("_output"):
            known.add(json.dumps(item.get("id" if kind == "mcp_approval_request" else "call_id")))
