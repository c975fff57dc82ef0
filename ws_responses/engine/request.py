"""A create request as the engine reads it: typed, within the API's bounds, every fault named by its path.

What the engine cannot do is refused by name; members that it does not know are ignored. Bounds are those of the API reference.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from ws_responses.errors import InvalidRequest, excerpt
from ws_responses.protocol.withheld import withheld
from ws_responses.upstreams.base import CurrentTurn

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
SummaryKind = Literal["auto", "concise", "detailed"]
ServiceTier = Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"]

ENCRYPTED_REASONING: Final = "reasoning.encrypted_content"
"""Of ``include``; taken, and answered by null: there is no key here to encrypt with."""

LOGPROBS: Final = "message.output_text.logprobs"
"""Of ``include``; refused."""

Include = Literal[
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
]


class Reasoning(Struct, frozen=True, kw_only=True):
    """``reasoning``."""

    effort: Effort | None = None
    summary: SummaryKind | None = None
    generate_summary: SummaryKind | None = None
    context: Literal["auto", "current_turn", "all_turns"] | None = None
    mode: Literal["standard"] | None = None


class Text(Struct, frozen=True, kw_only=True):
    """``text``."""

    format: Raw = Raw(b"null")
    verbosity: Literal["low", "medium", "high"] | None = None


class PlainText(Struct, frozen=True, tag_field="type", tag="text"):
    """Any text."""


class JsonObject(Struct, frozen=True, tag_field="type", tag="json_object"):
    """Some JSON object."""


class JsonSchema(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    """JSON that follows a schema."""

    name: Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}$")]
    schema: dict[str, Raw]
    strict: bool | None = None
    description: str | None = None


class Compaction(Struct, frozen=True, kw_only=True, tag_field="type", tag="compaction"):
    """An entry of ``context_management``."""

    compact_threshold: Annotated[int, Meta(ge=1000)] | None = None


class Request(Struct, frozen=True, kw_only=True):
    """A create request without its input and tools.

    Attributes:
        model: As named; None if none was.
        instructions: None for none.
        reasoning_effort: None leaves it to the model.
        response_format: Encoded ``text.format`` that is not plain text; None for text.
        tool_choice: Encoded; None if absent.
        parallel_tool_calls: Whether one answer may hold several calls.
        max_output_tokens: Reasoning included; None for no bound.
        temperature: 0..2, None leaves it to the service.
        top_p: 0..1, likewise.
        truncates: What does not fit into the context window is to be left out, oldest first.
        compaction: What of a long conversation is to be compacted; None for nothing.
        encrypted_reasoning: Reasoning items are to have ``encrypted_content``.
        service_tier: As asked; None if absent.
        prompt_cache_key: As given.
        user: ``safety_identifier``, else ``user``.
        echo: Members that response objects repeat, encoded, in the order in which they are written.
    """

    model: str | None
    instructions: str | None
    reasoning_effort: str | None
    response_format: bytes | None
    tool_choice: bytes | None
    parallel_tool_calls: bool
    max_output_tokens: int | None
    temperature: float | None
    top_p: float | None
    truncates: bool
    compaction: Compaction | None
    encrypted_reasoning: bool
    service_tier: str | None
    prompt_cache_key: str | None
    user: str | None
    echo: Mapping[str, bytes]

    __repr__ = withheld


class _Members(Struct, kw_only=True):
    """Members that are read here; null is the same as absent."""

    model: str | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    context_management: Annotated[list[Compaction], Meta(max_length=1)] | None = None
    include: list[Include] | None = None
    metadata: (
        Annotated[dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]], Meta(max_length=16)]
        | None
    ) = None
    reasoning: Reasoning | None = None
    text: Text | None = None
    service_tier: ServiceTier | None = None
    prompt_cache_key: str | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: str | None = None


_FIELDS: Final[dict[str, Any]] = {
    field.name: msgspec.json.Decoder(field.type).decode for field in msgspec.structs.fields(_Members)
}
_decode_format: Final[Any] = msgspec.json.Decoder(PlainText | JsonObject | JsonSchema).decode

_UNSUPPORTED: Final = {
    "conversation": "This service keeps no conversations: send the items, or a 'previous_response_id'.",
    "prompt": "This service keeps no prompts: send 'instructions' and 'input'.",
    "moderation": "This service does not moderate on request.",
    "multi_agent": "This service runs no agents but the one, which takes tool outputs by 'response.inject' on a WebSocket that was "
    "opened with 'OpenAI-Beta: responses_multi_agent=v1'.",
}
"""Members that ask for what the engine has not: ignoring them would answer another request than the one made."""

_EMPTY: Final = frozenset({b"null", b"[]", b"{}"})

_ECHO_DEFAULTS: Final[dict[str, bytes]] = {
    "instructions": b"null",
    "max_output_tokens": b"null",
    "max_tool_calls": b"null",
    "metadata": b"{}",
    "model": b"null",
    "parallel_tool_calls": b"true",
    "presence_penalty": b"0.0",
    "frequency_penalty": b"0.0",
    "prompt_cache_key": b"null",
    "reasoning": b'{"effort":null,"summary":null}',
    "safety_identifier": b"null",
    "temperature": b"1.0",
    "text": b'{"format":{"type":"text"}}',
    "tool_choice": b'"auto"',
    "top_logprobs": b"0",
    "top_p": b"1.0",
    "truncation": b'"disabled"',
    "user": b"null",
}
"""What response objects say of members that the request did not name: the defaults of the API reference."""

_ECHOED_AS_GIVEN: Final = frozenset(_ECHO_DEFAULTS) - {"presence_penalty", "frequency_penalty", "reasoning", "text"}


def parse_request(turn: CurrentTurn) -> Request:
    """Return the request of a turn.

    Raises:
        InvalidRequest: A member is wrong, or asks for what the engine has not; ``param`` is its path.
    """
    body = turn.create.body
    for name, reason in _UNSUPPORTED.items():
        if name in body and bytes(body[name]) not in _EMPTY and not (name == "multi_agent" and turn.injects):
            raise InvalidRequest(reason, param=name, code="unsupported_parameter")
    given = _Members(
        **{name: decode_member(name, decode, body[name]) for name, decode in _FIELDS.items() if name in body}
    )
    _refuse_logprobs(given)
    reasoning, text = given.reasoning or Reasoning(), given.text or Text()
    response_format = _response_format(text)
    return Request(
        model=given.model,
        instructions=_instructions(turn),
        reasoning_effort=reasoning.effort,
        response_format=response_format,
        tool_choice=bytes(body["tool_choice"]) if "tool_choice" in body else None,
        parallel_tool_calls=given.parallel_tool_calls is not False,
        max_output_tokens=given.max_output_tokens,
        temperature=given.temperature,
        top_p=given.top_p,
        truncates=given.truncation == "auto",
        compaction=given.context_management[0] if given.context_management else None,
        # In Open Responses the member is a text, or absent.
        encrypted_reasoning=ENCRYPTED_REASONING in (given.include or ()) and turn.profile == "openai",
        service_tier=given.service_tier,
        prompt_cache_key=given.prompt_cache_key,
        user=given.safety_identifier or given.user,
        echo=_echo(body, reasoning, text, response_format),
    )


def decode_member(path: str, decode: Any, raw: Raw | bytes) -> Any:
    """Decode a member of the request.

    Args:
        path: Where it is.
        decode: Decodes it into its type.
        raw: Encoded.

    Raises:
        InvalidRequest: It is not of its type; ``param`` is the path of what is wrong.
    """
    try:
        return decode(raw)
    except msgspec.ValidationError as error:
        reason, _, where = str(error).partition(" - at `")
        full = path + where.rpartition("$")[2].rstrip("`")
        raise InvalidRequest(f"The field '{excerpt(full)}' is wrong: {excerpt(reason)}.", param=full) from None
    except RecursionError:
        raise InvalidRequest(f"The field '{path}' is nested too deeply.", param=path) from None


def _refuse_logprobs(given: _Members) -> None:
    include = given.include or []
    if given.top_logprobs:
        param = "top_logprobs"
    elif LOGPROBS in include:
        param = f"include[{include.index(LOGPROBS)}]"
    else:
        return
    raise InvalidRequest("This service gives no log probabilities.", param=param, code="unsupported_parameter")


def _response_format(text: Text) -> bytes | None:
    raw = bytes(text.format)
    if raw == b"null" or isinstance(decode_member("text.format", _decode_format, raw), PlainText):
        return None
    return raw


def _instructions(turn: CurrentTurn) -> str | None:
    raw = turn.create.body.get("instructions")
    if raw is None:
        return None
    interned = turn.interned_instructions
    value = msgspec.json.decode(raw) if interned is None else interned.value
    if value is not None and not isinstance(value, str):
        raise InvalidRequest("The field 'instructions' must be a string or null.", param="instructions")
    return value or None


def _echo(
    body: Mapping[str, Raw], reasoning: Reasoning, text: Text, response_format: bytes | None
) -> Mapping[str, bytes]:
    echo = dict(_ECHO_DEFAULTS)
    for name in _ECHOED_AS_GIVEN.intersection(body):
        given = bytes(body[name])
        if given != b"null":
            echo[name] = given
    summary = reasoning.summary or reasoning.generate_summary
    if reasoning.effort or summary:
        echo["reasoning"] = msgspec.json.encode({"effort": reasoning.effort, "summary": summary})
    if response_format or text.verbosity:
        echo["text"] = b'{"format":' + (response_format or b'{"type":"text"}') + b"}"
        if text.verbosity:
            echo["text"] = echo["text"][:-1] + b',"verbosity":"' + text.verbosity.encode() + b'"}'
    return echo
