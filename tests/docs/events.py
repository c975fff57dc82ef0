"""The reference page of events, made from what the code knows of them (``tests.docs.generate`` writes it)."""

from collections.abc import Iterable
from typing import Final

from ws_responses.engine.compacting import COMPACTING
from ws_responses.protocol import cancelling, events, injecting, items, rollout, steering
from ws_responses.protocol.creates import IGNORED_FIELDS, MAX_MEMBERS
from ws_responses.protocol.frames import MAX_ID_CHARS
from ws_responses.protocol.profiles import RENAMED, is_served

CLIENT: Final[dict[str, str]] = {
    events.CREATE: "a turn",
    steering.STEER: "[steers](../how-to/steering.md) a response that runs",
    injecting.INJECT: "[tool outputs](../how-to/inject.md) for a response that runs and takes them; else given back",
    cancelling.CANCEL: "with `accept_cancel=True` only: [stops](../how-to/cancel.md) a response, or all of a lane",
    rollout.APPEND: "with `prototype=True` only: brings tool outputs to a [rollout](../how-to/prototype.md) that waits",
    events.PROCESSED: "taken, not answered",
}
"""What becomes of a client's events."""

_PARTS: Final = ("response.content_part.added", "response.reasoning_summary_part.added")
_DONE: Final = ("response.content_part.done", "response.reasoning_summary_part.done")
_TEXTS_DONE: Final = tuple(kind.removesuffix("delta") + "done" for kind in events.DELTAS)

SERVER: Final[dict[tuple[str, ...], str]] = {
    (events.CREATED,): "the app; made here if it is missing, and for warm-ups and JSON answers",
    (events.IN_PROGRESS,): "the app; made here for warm-ups and JSON answers",
    ("response.queued",): "the app only",
    (events.ITEM_ADDED, events.ITEM_DONE): "the app; made here if missing, and for JSON answers",
    _PARTS: "the app; made here if the first delta of a text comes without, and for JSON answers",
    _DONE: "the app; made here for JSON answers",
    events.DELTAS: "the app; made here for JSON answers",
    _TEXTS_DONE: "the app; made here for JSON answers",
    ("response.output_text.annotation.added",): "the app",
    (COMPACTING,): "the engine, when it [compacts](../how-to/compaction.md) in a turn; or the app",
    (
        events.COMPLETED,
        events.INCOMPLETE,
    ): "the app: a turn's end; the second is made here for a response that is steered, cancelled or blocked",
    (
        steering.ACCEPTED,
        steering.PENDING,
        steering.FAILED,
    ): "made here: what becomes of a [steer](../how-to/steering.md)",
    (injecting.CREATED, injecting.FAILED): "made here: what becomes of an [injection](../how-to/inject.md)",
    (rollout.DONE,): "made here, with `prototype=True` only: the response waits for tool outputs "
    "([rollouts](../how-to/prototype.md))",
    (events.FAILED,): "the app, or made here after `response.created`: a turn's end",
    (events.ERROR,): "made here, from the app's own or ours: a turn's end, or the answer to a frame that became none",
    ("ws_responses:keepalive",): "made here, with `keepalive_s=` only",
}
"""Where the events that are treated in some special way come from."""

_PAIRED: Final = {
    "local_shell_call": "`call_id` (or the answer's `id`)",
    "mcp_approval_request": "`id` and `approval_request_id`",
}


def page(made: str) -> list[str]:
    """Return the lines of the page.

    Args:
        made: Says that it is made.
    """
    return [
        "# Events",
        "",
        made,
        "",
        "Frames are JSON objects, one per text frame, with a `type`. Names and fields are those of OpenAI's Responses API.",
        "",
        "## From the client",
        "",
        *_table(("type", "what happens"), ((_code(kind), text) for kind, text in CLIENT.items())),
        'Anything else, or none, is a 400 `unknown_event_type`; the socket stays open. With `profile="open-responses"` so are',
        f"`{steering.STEER}` and `{injecting.INJECT}`.",
        "",
        f"A `{events.CREATE}` is the body of the HTTP request with these besides:",
        "",
        *_table(
            ("member", "meaning"),
            (
                ("`type`", f"`{events.CREATE}`"),
                (
                    "`stream_id`",
                    "the lane: 1 to 256 of letters, digits, `_`, `-` and `.`; absent for the default lane; null is not a name",
                ),
                ("`generate`", "false: a [warm-up](../how-to/warm-up.md)"),
            ),
        ),
        "Read here, and passed on where the [history mode](../how-to/history-modes.md) says so: `input` (a string, an array of",
        f"items, null or absent), `previous_response_id` (at most {MAX_ID_CHARS} characters; null and an empty string count as",
        "absent; not together with `conversation`), `store`, `model`, `tools`, `instructions`, `conversation`, `prompt`,",
        "`prompt_cache_options`. What names something kept: [who looks it up](references.md). Dropped: "
        + ", ".join(map(_code, sorted(IGNORED_FIELDS - {"background"})))
        + ",",
        "`background: false`. `background: true` is refused. Everything else goes to the app as it came. A top-level number",
        f"beyond all ranges (`1e999`) is refused, and so are more than {MAX_MEMBERS} members.",
        "",
        "## To the client",
        "",
        "Whatever the app streams, in its order. On a named lane each event has `stream_id`, errors too; on the default lane none",
        "has the member. `sequence_number` begins at 0 for each response (unless the app counts from elsewhere), and rises.",
        "",
        *_table(
            ("type", "from", 'profile `"open-responses"`'),
            ((", ".join(map(_code, kinds)), text, _strictly(kinds)) for kinds, text in SERVER.items()),
        ),
        "Any other `response.*` event, or an extension's (`slug:name`), is the app's. Open Responses has no other `response.*`",
        "event: with that profile they are left out, and extensions pass.",
        "",
        "Exactly one of "
        + _listed(sorted(events.TERMINAL))
        + f" and `{events.ERROR}` ends a turn. What is changed in an app's event,",
        "and what is never passed on: [what is mended](../explanation/how-a-turn-flows.md#what-is-mended).",
        "",
        "A client that reads lanes should sort events by `stream_id`: those of several lanes interleave. A frame that is refused",
        "before its lane is known is answered without one. What errors look like: [errors](errors.md); what ends a socket:",
        "[close codes](errors.md#close-codes); how much of anything: [limits](limits.md).",
        "",
        "## Tool calls",
        "",
        "These calls are the client's to execute; a turn that generates must answer all of them that are open, once each",
        "(`tool_output_missing`, `tool_call_not_found`):",
        "",
        *_table(("call", "its answer", "paired by"), _calls()),
        'A call with `status: "incomplete"` may be left unanswered.',
    ]


def _calls() -> Iterable[tuple[str, ...]]:
    for call, pairing in items.CALLS.items():
        told = _code(call) + (' with `execution: "client"`' if pairing.client_only else "")
        yield told, _code(pairing.output), _PAIRED.get(call, _code(pairing.key))


def _strictly(kinds: Iterable[str]) -> str:
    known = [kind for kind in kinds if kind in events.LIFECYCLE or kind == events.ERROR or is_served(kind)]
    renamed = [f"`{kind}` as `{RENAMED[kind]}`" for kind in known if kind in RENAMED]
    missing = [kind for kind in kinds if kind not in known]
    if "ws_responses:keepalive" in kinds:
        return "cannot be switched on"
    if not known:
        return "none"
    told = ["the same", *renamed, *(f"no `{kind}`" for kind in missing)]
    return "; ".join(told)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    names = list(head)
    lines = ["| " + " | ".join(names) + " |", "|" + " --- |" * len(names)]
    return [*lines, *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows), ""]


def _listed(kinds: Iterable[str]) -> str:
    return ", ".join(map(_code, kinds))


def _code(text: str) -> str:
    return f"`{text}`"
