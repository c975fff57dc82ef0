"""Writes the reference pages that the code can write itself: ``python -m tests.docs.generate``."""

import enum
import inspect
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from types import UnionType
from typing import Any, Final, get_args

import ws_responses
from ws_responses import (
    CurrentTurn,
    Handshake,
    Limits,
    Principal,
    ResponsesApp,
    ResponsesEngine,
    ResponsesWebSocketMiddleware,
    Safety,
    Settlement,
    WireError,
    errors,
    limits,
    settings,
    validation,
)
from ws_responses.counters import TenantCounters
from ws_responses.instrumentation import Fact, facts
from ws_responses.protocol.events import encode_error
from ws_responses.protocol.phases import SESSION_TABLE, TURN_TABLE, SessionPhase, TurnPhase
from ws_responses.state.store import ResponseStore
from ws_responses.upstreams import answers, bodies

from . import events
from .source import (
    REPO,
    assigned,
    attribute_docs,
    class_body,
    parameters,
    section,
    summary,
    tree_of,
    wire_errors,
)
from .source import fields as field_types

REFERENCE: Final = REPO / "docs" / "reference"
MADE: Final = "This page is made from the code by `python -m tests.docs.generate`; a test fails when it is not current."


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """The lines of a Markdown table."""
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    return [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]


def code(text: object) -> str:
    """Text as a code span."""
    return f"`{text}`"


# -- options ---------------------------------------------------------------------------------------------------------

_ALIASES: Final[dict[str, Any]] = {
    "Authorize": settings,
    "TenantOf": settings,
    "Prepare": bodies,
    "HandshakeHeaders": settings,
    "OnClose": settings,
    "Hook": facts,
}
_CHOICES: Final[dict[str, Any]] = {"History": bodies, "AppStore": bodies, "OpenCalls": validation}


def options() -> str:
    """The page about the options of the middleware, and what they need."""
    given = section(ResponsesWebSocketMiddleware, "Args")
    rows = [
        (code(name), code(_choice(kind)), code(default), given[name])
        for name, kind, default in parameters(ResponsesWebSocketMiddleware.__init__)
    ]
    lines = [
        "# Options",
        "",
        MADE,
        "",
        "`ResponsesWebSocketMiddleware(app, *, ...)`: the app comes first, all options are named. A wrong one raises",
        "`ConfigurationError` at once. What a number in `limits=` bounds: [limits](limits.md).",
        "",
        *table(("option", "type", "default", "meaning"), rows),
        *_options_of(ResponsesApp, "ResponsesApp(engine, *, ...)"),
        *_options_of(ResponsesEngine, "ResponsesEngine(backend, *, ...)"),
        *_options_of(Safety, "Safety(*classifiers, ...)"),
        *_options_of(Settlement, "Settlement(hook, *, ...)"),
        "## Functions that you may give",
        "",
        *table(("name", "type", "meaning"), map(_alias, _ALIASES)),
        "## What they are given",
        "",
        *_described(Handshake, "from ws_responses import Handshake"),
        *_described(Principal, "from ws_responses import Principal"),
        *_described(CurrentTurn, "from ws_responses import CurrentTurn, current_turn"),
        "## A store of your own",
        "",
        f"{summary(ResponseStore)} `from ws_responses.state.store import ResponseStore`.",
        "",
        *table(("method", "meaning"), _members(ResponseStore)),
        "## Counters of your own",
        "",
        f"{summary(TenantCounters)} `from ws_responses.counters import TenantCounters`.",
        "",
        *table(("method", "meaning"), _members(TenantCounters)),
        "## For operators",
        "",
        "Methods and properties of the middleware.",
        "",
        *table(("name", "meaning"), _members(ResponsesWebSocketMiddleware)),
        "`async with middleware:` in your own lifespan drains and closes at its end; nothing needs to be opened. The",
        "app's lifespan passes through untouched.",
        "",
        "## Public names",
        "",
        "All that `ws_responses` exports.",
        "",
        *table(("name", "what it is"), ((code(name), _first_sentence(name)) for name in ws_responses.__all__)),
    ]
    return _page(lines)


def _options_of(kind: type, call: str) -> list[str]:
    given = section(kind, "Args")
    rows = [
        (code(name), code(_choice(type_name)), code(default), given[name])
        for name, type_name, default in parameters(vars(kind)["__init__"])
    ]
    return [f"## `{call}`", "", summary(kind), "", *table(("option", "type", "default", "meaning"), rows)]


def _choice(kind: str) -> str:
    for name, module in _CHOICES.items():
        if kind == name:
            return assigned(module, name)
    return kind


def _alias(name: str) -> tuple[str, str, str]:
    module = _ALIASES[name]
    return code(name), code(assigned(module, name)), attribute_docs(tree_of(module).body)[name]


def _described(kind: type, how: str) -> list[str]:
    rows = [(code(name), text) for name, text in section(kind, "Attributes").items()]
    return [
        f"### {kind.__name__}",
        "",
        f"{summary(kind)} `{how}`.",
        "",
        *table(("member", "meaning"), [*rows, *_members(kind)]),
    ]


_INTERNAL: Final = frozenset({"app", "keep", "share", "bytes_since", "forget_answer"})
"""What users know as an argument, and what is public by its name only: for the steps of a turn."""


def _members(kind: type) -> Iterable[tuple[str, str]]:
    for name, member in vars(kind).items():
        if name.startswith("_") or name in _INTERNAL:
            continue
        if isinstance(member, property):
            yield code(name), summary(member.fget)
        elif inspect.isfunction(member):
            yield code(f"{name}{_arguments(member)}"), summary(member)


def _arguments(function: Callable[..., Any]) -> str:
    names = [
        name if parameter.default is parameter.empty else f"{name}={parameter.default!r}"
        for name, parameter in inspect.signature(function).parameters.items()
        if name != "self"
    ]
    return f"({', '.join(names)})"


def _first_sentence(name: str) -> str:
    return summary(getattr(ws_responses, name)).partition(". ")[0].rstrip(".") + "."


# -- limits ----------------------------------------------------------------------------------------------------------

_UPGRADE_429: Final = "The upgrade is answered 429 `websocket_connections_exhausted`, with `retry-after`."
_SILENT: Final = "The turn ends by 504 `upstream_timeout`."
_ROOM: Final = (
    "The least recently used leaves go; their ids answer `previous_response_not_found`. If nothing more can go, the new "
    "response is not kept (`NodeDropped`)."
)

REACHED: Final[dict[str, str]] = {
    "max_frame_bytes": "Close 1009; all other turns are told 413 `websocket_message_too_big` before. Over HTTP: 413 `request_too_large`.",
    "max_request_bytes": (
        "The turn ends by 413 `request_too_large`; it also bounds the output items of one response: beyond it 502 "
        "`upstream_error`."
    ),
    "max_queued_creates": "The create is answered 429 `websocket_queue_full`.",
    "max_queued_bytes": "The create is answered 429 `websocket_queue_full`.",
    "max_lanes": "The create is answered 400 `websocket_stream_limit_reached`; 0 allows the default lane only.",
    "max_running_turns": "Further creates wait.",
    "max_warmup_bytes": "The warm-up is answered 413 `warm_up_too_large`.",
    "max_pending_steers": "The steer is given back: `too_many_pending_steers`.",
    "max_pending_steer_bytes": (
        "The steer is given back: `too_many_pending_steers`; one that is larger by itself is answered 413 `request_too_large`."
    ),
    "max_rollout_appends": "The response ends by `response.completed` where it would wait once more, its calls open.",
    "max_event_bytes": "The turn ends by 502 `upstream_event_too_large`.",
    "max_answer_bytes": "The turn ends by 502 `upstream_error`.",
    "max_outgoing_bytes": "Close 1008.",
    "max_connections": _UPGRADE_429,
    "max_tenant_connections": _UPGRADE_429,
    "max_tenant_turns": "The turn is answered 429 `too_many_turns` with `retry-after`; its parent stays.",
    "max_connection_age_s": (
        "New creates are answered 400 `websocket_connection_limit_reached`; when the running turns are over, close 1001."
    ),
    "age_grace_s": "Turns that still run end by `websocket_connection_limit_reached`; close 1001.",
    "idle_timeout_s": "Close 1001.",
    "authorize_timeout_s": "503 `server_is_overloaded` with `retry-after`, at the upgrade or for the turn.",
    "body_timeout_s": "The POST is answered 408 `request_timeout`; nothing has run.",
    "probe_timeout_s": "The probe is given up and the socket accepted.",
    "first_event_timeout_s": _SILENT,
    "event_timeout_s": _SILENT,
    "blocked_timeout_s": (
        "The response ends by `response.completed`, its calls open; a later append is answered 400 `rollout_not_found`."
    ),
    "send_timeout_s": "Close 1008; the app's turn is aborted.",
    "store_timeout_s": "A read counts as a miss, a write as not made (`StoreFailed`); the turn goes on.",
    "disconnect_grace_s": "The call is cancelled.",
    "abort_timeout_s": "An error in the log; the connection's end waits no longer for the call.",
    "trailing_timeout_s": "The call is aborted as if the client had gone.",
    "background_timeout_s": "The tasks are cancelled.",
    "close_timeout_s": "The socket is given back to the server as it is.",
    "max_connection_bytes": _ROOM,
    "max_tenant_bytes": _ROOM,
    "max_process_bytes": _ROOM,
    "store_ttl_s": "The ids of the branch answer `previous_response_not_found`, on other connections than their own.",
}
"""What happens at each limit. A test proves that none is missing."""


def limits_page() -> str:
    """The page about `Limits`."""
    reasons = attribute_docs(class_body(Limits))
    types = field_types(Limits)
    rows = [
        (
            code(field.name),
            _quantity(field.name, field.default) + (" (or `None`)" if "None" in types[field.name] else ""),
            reasons[field.name],
            REACHED[field.name],
        )
        for field in fields(Limits)
    ]
    may_be_zero = ", ".join(code(field.name) for field in fields(Limits) if field.name in limits._MAY_BE_ZERO)
    lines = [
        "# Limits",
        "",
        MADE,
        "",
        "`ResponsesWebSocketMiddleware(app, limits=Limits(...))`. Bytes unless the name ends in `_s` (seconds) or counts",
        "something. How to choose them: [how to set limits](../how-to/limits.md).",
        "",
        *table(("limit", "default", "reason", "when it is reached"), rows),
        "`None` switches a limit off, where its type allows that. Then nothing but the server and the operating system",
        f"stands in its place. 0 is allowed for {may_be_zero}; everything else must be positive.",
        "",
        "A limit on time is looked at by one watchdog per connection. The limits on an app's silence are found up to a",
        "quarter of their span late.",
    ]
    return _page(lines)


def _quantity(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value // limits.MIB} MiB" if value >= limits.MIB else f"{value // 1024} KiB"
    return f"{value:g} s" if name.endswith("_s") else str(value)


# -- errors ----------------------------------------------------------------------------------------------------------

FURTHER_CODES: Final[dict[str, tuple[int, str]]] = {
    "invalid_request": (
        400,
        "A member of the frame has a wrong type, or members contradict each other. Evicts nothing.",
    ),
    "response_not_found": (
        400,
        "A steer or an injection for a response that is not on this connection, or takes none: it is given back with the code.",
    ),
    "response_already_completed": (
        409,
        "`response.cancel`: the response had completed by then. (Steers are given back with the same code.)",
    ),
    "response_not_active": (
        409,
        "`response.cancel`: the response had ended, or nothing runs or waits on the lane. (Steers are given back with it, too.)",
    ),
    "warm_up_too_large": (
        413,
        "Warm-ups of a connection hold more than `max_warmup_bytes` before the app has accepted a first call.",
    ),
    "invalid_api_key": (401, "HTTP of `serve`: the key is missing or not valid."),
    "method_not_allowed": (405, "HTTP of the sidecar."),
    "not_found": (404, "HTTP of the sidecar: a path that the upstream does not serve."),
    "missing_required_parameter": (400, "HTTP, `/compact`: `model` is missing."),
    "unknown_parameter": (
        400,
        "HTTP: `stream_id` and `generate` are for sockets only. `response.append`: it takes `stream_id` and `input` only.",
    ),
    "unsupported_parameter": (400, "Engine: the request asks for what is not served here; `param` names it."),
    "unsupported_tool": (400, "Engine: a tool of this type cannot be offered here."),
    "unsupported_input": (400, "Engine: an item, image or file that the model cannot be given."),
    "invalid_image_url": (400, "Engine: the URL of an image or a file is none that may be fetched."),
    "failed_to_download_image": (400, "Engine: the resolver could not fetch an image."),
    "failed_to_download_file": (400, "Engine: the resolver could not fetch a file."),
    "image_too_large": (400, "Engine: an image is larger than the resolver takes."),
    "file_too_large": (400, "Engine: a file is larger than the resolver takes."),
    "insufficient_quota": (402, "Backend: the service wants to be paid."),
    "conflict": (409, "Backend: the service says so."),
    "upstream_authentication_error": (
        502,
        "Backend: the service refuses *our* key; nothing that the client could mend.",
    ),
    "upstream_unreachable": (503, "Backend or sidecar: nobody answers there."),
    "upstream_invalid_output": (502, "Backend: what it says makes no sense."),
    "upstream_output_too_large": (502, "Backend: one answer exceeds all bounds."),
    "upgrade_required": (426, "Upgrade only: `enabled=False`."),
    "origin_not_allowed": (403, "Upgrade only: a page of another origin."),
    "app_refused": (401, "Hooks only: the app refused the upgrade by 401 or 403; its own answer was passed on."),
    "server_error": (
        500,
        "The app raised before it answered (the message has the turn's id, the log has the traceback), or a fault of ours.",
    ),
}
"""Codes that no class has of its own, or that a class shares. A test proves that none is missing."""

_BASES: Final = (WireError, errors.InvalidRequest, errors.Refused)
_WHEN: Final[dict[type, str]] = {
    errors.MalformedFrame: "The frame is not JSON, not UTF-8, or nested too deeply.",
    errors.UpstreamError: "The app answered with what is no response, or ended without an answer.",
}
"""Where a class's own summary says less, or more, than the page needs."""

_CLOSES: Final = (
    (1001, "Idle, or too old."),
    (1008, "The client does not read (`max_outgoing_bytes`, `send_timeout_s`), or `disconnect(tenant)` was called."),
    (1009, "A frame above `max_frame_bytes`."),
    (1012, "`drain()`: the process shuts down; connect again."),
)
CLOSE_CODES: Final = frozenset(number for number, _ in _CLOSES)


def errors_page() -> str:
    """The page about errors."""
    kinds = [kind for kind in wire_errors() if kind not in _BASES]
    raised = [kind for kind in vars(errors).values() if _is_other_error(kind)]
    example = encode_error(errors.PreviousResponseNotFound("resp_abc"), stream_id="main")
    lines = [
        "# Errors",
        "",
        MADE,
        "",
        "A failure is told by one frame of this shape. The socket stays open, and other lanes go on.",
        "",
        "```json",
        json.dumps(json.loads(example), indent=2),
        "```",
        "",
        "`status` and a string `code` are always there; `stream_id` only on a named lane. Headers worth keeping",
        "(`retry-after`, rate limits) stand in a member `headers`, at the top and inside `error`. A turn that fails after its",
        "`response.created` ends by `response.failed` instead, with `response.error` holding `code` and `message` (one that its",
        "client has cancelled by `response.incomplete`): one closing event per turn, never two. Messages hold no content and no keys.",
        "",
        "## Codes of the middleware",
        "",
        "*evicts*: the turn had begun to run, so that its parent, if it is of the same lane, is evicted.",
        "",
        *_codes(kind for kind in kinds if kind.__module__ == WireError.__module__),
        "## Codes of the engine, its app, and of quota, safety and settlement",
        "",
        *_codes(kind for kind in kinds if kind.__module__ != WireError.__module__),
        "Further:",
        "",
        *table(
            ("code", "status", "when"),
            ((code(name), str(status), text) for name, (status, text) in FURTHER_CODES.items()),
        ),
        "## Errors of the app",
        "",
        "An answer that is not 2xx, or an `error` event in the app's stream, becomes the same frame: the app's own `type`,",
        "`code`, `message`, `param` and further members, if it gives an OpenAI-style error; FastAPI's `detail`, other JSON and",
        "plain text give the message. HTML and tracebacks are never passed on. These fill what the app leaves out:",
        "",
        *table(
            ("status", "type", "code"),
            ((str(status), code(kind), code(name)) for status, (kind, name) in sorted(answers._BY_STATUS.items())),
        ),
        "Any other 4xx is `invalid_request_error` with `invalid_request`, any other 5xx `server_error` with `server_error`.",
        "Of the app's headers these are kept: "
        + ", ".join(code(name) for name in answers.KEPT_HEADERS)
        + ", and those that begin with "
        + ", ".join(code(prefix) for prefix in answers.KEPT_HEADER_PREFIXES)
        + ".",
        "",
        "An app's error counts as *ran*, 401, 403 and 429 too: the same-lane parent is evicted.",
        "",
        "## At the upgrade",
        "",
        "Refusals are HTTP answers with the same `error` object as their body: 401, 403, 426, 429, 503. A server without the",
        "ASGI extension `websocket.http.response` (daphne) can only answer 403.",
        "",
        "## Close codes",
        "",
        *table(("code", "when"), ((str(number), text) for number, text in _CLOSES)),
        "A server that writes no code below 3000 but 1000 (daphne) is given these with 3000 added: 4012 for 1012. A socket that",
        "cannot be closed in order, since its client does not read, is seen as 1006. A client's own close is answered by the server.",
        "",
        "## Exceptions in your own code",
        "",
        *table(("exception", "when"), ((code(kind.__name__), summary(kind)) for kind in raised)),
        "`authorize` and `tenant` may raise `Unauthorized`, `Forbidden` or another `Refused`: it is told the client as it is.",
        "Anything else that they raise is logged, and becomes 503.",
    ]
    return _page(lines)


def _codes(kinds: Iterable[type[WireError]]) -> list[str]:
    rows = (
        (code(kind.code), str(kind.status), code(kind.type), "yes" if kind.ran else "no", _when(kind)) for kind in kinds
    )
    return table(("code", "status", "type", "evicts", "when"), rows)


def _when(kind: type[WireError]) -> str:
    return _WHEN.get(kind) or summary(kind)


def _is_other_error(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, WireError)


# -- hooks -----------------------------------------------------------------------------------------------------------

_FIELDS: Final = {
    "connection_id": "Our id of the connection.",
    "turn_id": "Our id of the turn, unique over processes.",
    "lane": "`stream_id`; null for the default lane.",
    "model": "As the frame said.",
    "warm_up": "Nothing was to be generated.",
    "continues": "It continues a response that is known here.",
    "path": "Path of the upgrade.",
    "response_id": "The response.",
    "size": "Its bytes.",
    "error": "The kind of the exception, or `late`; never its text.",
    "code": "The error code.",
}


def hooks() -> str:
    """The page about facts."""
    lines = [
        "# Hooks",
        "",
        MADE,
        "",
        f"`hooks=` takes functions of one argument. Each {_lower(attribute_docs(tree_of(facts).body)['Hook'])}",
        "",
        "Facts are frozen objects without content and without keys; fields may be added in any version. A turn that ends",
        "before it runs (by `authorize`, for its parent, by validation) has a `TurnFinished` without a `TurnStarted`.",
        "How to use them: [hooks and logging](../how-to/hooks-and-logging.md).",
        "",
        "```python",
        "from ws_responses.instrumentation import Fact, TurnFinished",
        "```",
        "",
    ]
    for fact in fact_types():
        known = _FIELDS | section(fact, "Attributes")
        rows = [(code(name), code(kind), known.get(name, "")) for name, kind in field_types(fact).items()]
        lines += [f"## {fact.__name__}", "", summary(fact), "", *table(("field", "type", "meaning"), rows)]
    return _page(lines)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def fact_types() -> tuple[type, ...]:
    """The kinds of facts, in order."""
    assert isinstance(Fact, UnionType)
    return get_args(Fact)


# -- states ----------------------------------------------------------------------------------------------------------


def states() -> str:
    """The page with the two tables of the session, drawn."""
    lines = [
        "# Session states",
        "",
        MADE,
        "",
        "These are the two tables of `ws_responses/protocol/phases.py`, and nothing else is legal: a move that is not drawn",
        "here is a fault of the code around the session and raises `LocalProtocolError`. A bad client moves nothing.",
        "",
        "## A connection",
        "",
        *_diagram(SESSION_TABLE, start=SessionPhase.OPEN),
        *_phases(SessionPhase),
        "## A turn",
        "",
        *_diagram(TURN_TABLE, start=TurnPhase.QUEUED),
        *_phases(TurnPhase),
    ]
    return _page(lines)


def _diagram(moves: Mapping[Any, Mapping[Any, Any]], start: enum.Enum) -> list[str]:
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {start.value}"]
    for phase, targets in moves.items():
        lines += [f"    {phase.value} --> {target.value}: {stimulus.value}" for stimulus, target in targets.items()]
        if not targets:
            lines.append(f"    {phase.value} --> [*]")
    return [*lines, "```", ""]


def _phases(kind: type[enum.Enum]) -> list[str]:
    docs = {"OPEN": "Serves turns.", "CLOSED": "The socket is gone.", "ENDED": "Its closing event is written."}
    docs |= attribute_docs(class_body(kind))
    return table(("state", "meaning"), ((code(phase.value), docs.get(phase.name, "")) for phase in kind))


# -- all -------------------------------------------------------------------------------------------------------------

PAGES: Final[dict[str, Callable[[], str]]] = {
    "options.md": options,
    "limits.md": limits_page,
    "errors.md": errors_page,
    "hooks.md": hooks,
    "session-states.md": states,
    "events.md": lambda: _page(events.page(MADE)),
}


def _page(lines: Iterable[str]) -> str:
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    """Write the pages."""
    REFERENCE.mkdir(parents=True, exist_ok=True)
    for name, page in PAGES.items():
        (REFERENCE / name).write_text(page(), encoding="utf-8")
        print(f"wrote docs/reference/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
