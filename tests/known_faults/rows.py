"""Faults that WebSocket servers, gateways and clients of this kind have had, and what we do about each.

A row is proven by tests that carry ``@pytest.mark.fault("<id>")``, anywhere under ``tests/``. A row that no test of ours can
meet says why in ``reason``. ``covered_by`` names tests that cannot carry the marker (a state machine, a whole file).

The numbers are names, not a sequence: gaps mean nothing.
"""

from dataclasses import dataclass
from typing import Final

SECTIONS: Final = (
    ("B001", "Upgrade, refusal, authentication, tenants"),
    ("B025", "Frames, sizes, encodings, errors"),
    ("B050", "Liveness, time limits, disconnect, shutdown"),
    ("B073", "Order, lanes, back-pressure"),
    ("B091", "State, continuation, warm-up, compaction"),
    ("B120", "The app's event stream"),
    ("B135", "ASGI and the Python runtime"),
    ("B145", "Billing, limits, metrics"),
)
"""First row and title of each section of the page."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fault.

    Attributes:
        id: Its name.
        symptom: What was seen.
        answer: What we do.
        seen_in: Public issues (``owner/name#number``) where the symptom is described.
        reason: Why no test of ours meets it; None if one does.
        covered_by: Node ids, or their beginnings, of tests that cover it without carrying the marker.
    """

    id: str
    symptom: str
    answer: str
    seen_in: tuple[str, ...] = ()
    reason: str | None = None
    covered_by: tuple[str, ...] = ()


_UPGRADE = (
    Row(
        "B001",
        "A server without WebSocket mode answers 403 or 404, and the client spends its reconnects instead of using HTTP",
        "Switched off, the upgrade gets 426 and a JSON error; a plain GET stays the app's",
        ("QuantumNous/new-api#3027", "qxcnm/Codex-Manager#91", "diegosouzapw/OmniRoute#998"),
    ),
    Row(
        "B002",
        "A handshake that neither succeeds nor fails eats the client's whole time",
        "authorize has a deadline (503 with Retry-After); the probe of the app has one too (then the socket is accepted)",
        ("openai/codex#19821", "openai/codex#43353"),
    ),
    Row(
        "B003",
        "An upgrade on a route that only serves HTTP ends in a 500",
        "Only the configured paths are ours, below root_path; other sockets reach the app untouched",
        ("litestar-org/litestar#4938",),
    ),
    Row(
        "B004",
        "The app's key check sees HTTP requests only, so a socket works without a key",
        "Every turn is an HTTP request through the whole app, with the headers of the handshake",
        ("headroomlabs-ai/headroom#3281", "sgl-project/sglang#40299"),
    ),
    Row(
        "B005",
        "A test client hides what a refusal looks like on the wire",
        "Refusals are tested over real sockets on each server",
        ("headroomlabs-ai/headroom#3305",),
    ),
    Row(
        "B006",
        "A bad key is accepted by 101 first and closed then, so the client believes in the link and reconnects",
        "All checks are made before accept",
    ),
    Row(
        "B007",
        "A response made by one key is continued under another",
        "Ids belong to a tenant; a foreign one gets the same answer as one that never was",
        ("BerriAI/litellm#39559",),
    ),
    Row(
        "B008",
        "A turn with store: false was persisted, a warm-up too",
        "What is not to be stored stays in its connection and goes with it",
        ("vllm-project/agentic-api#238",),
    ),
    Row(
        "B010",
        "A revoked key goes on working on an open socket",
        "Each turn is judged when it starts: by the app, and by authorize; disconnect(tenant) ends the sockets",
        ("vstorm-co/agenticos#1437", "pingdotgg/t3code#8418"),
    ),
    Row(
        "B011",
        "A later frame names a model that the key may not use, and is served",
        "authorize is asked with each turn's model; the model is never rewritten",
        ("BerriAI/litellm#40010",),
    ),
    Row(
        "B012",
        "Raw frames are relayed under the operator's credential without a look at them",
        "Only known events reach the app, each as a rebuilt POST with the client's own headers",
        ("BerriAI/litellm#39841",),
    ),
    Row(
        "B013",
        "A web page drives a local server with its user's credentials",
        "Pages of other hosts get 403; allowed_origins names exceptions",
        ("headroomlabs-ai/headroom#1481",),
    ),
    Row(
        "B015",
        "Any offered subprotocol is taken as a credential and overrides Authorization",
        "A subprotocol is never a credential",
        ("QuantumNous/new-api#5062",),
    ),
    Row(
        "B016",
        "The first offered subprotocol is echoed although it holds the key",
        "No subprotocol is ever selected, none is logged",
    ),
    Row(
        "B017",
        "A good key is let in for a resource that it may not use",
        "authorize and the probe judge the very request, and may answer 403",
    ),
    Row(
        "B018",
        "Unlimited sockets for one key, floods of handshakes",
        "Bounds per tenant and process, looked at before any costly check; 429 with Retry-After",
    ),
    Row(
        "B020",
        "The lease of a turn is not given back when the turn is orphaned, until the account is dead",
        "Every way out of a turn frees its lane and its counters, once",
        ("Soju06/codex-lb#1281",),
    ),
    Row(
        "B021",
        "An error text shows file paths and addresses",
        "A fixed text for what we did not expect; the detail goes to the log",
    ),
    Row(
        "B022",
        "The turn-state header is missing from the 101, or incoming headers are lost, and sticky routing breaks",
        "handshake_headers adds to the 101; the handshake's headers reach each turn",
        ("openai/codex#30536",),
    ),
    Row(
        "B023",
        "A client library gives up because its subprotocol was not echoed",
        "Still no echo (RFC 6455 allows that); the documentation names the header to use instead",
        ("OpenDCAI/Mycel#1356",),
    ),
)

_FRAMES = (
    Row(
        "B025",
        "A frame above the server's own limit ends in a reset without a close frame",
        "Our limit is below the server's; a frame above ours is closed with 1009 by a whole closing handshake",
        ("ding113/claude-code-hub#1150", "ding113/claude-code-hub#1153"),
    ),
    Row(
        "B026",
        "A limit of 1 MiB, which usual agent turns exceed",
        "16 MiB by default, a named setting",
    ),
    Row(
        "B027",
        "A message that is too big for the app crashes the proxy",
        "The app's 413 becomes an error frame; everything else goes on",
        ("headroomlabs-ai/headroom#531",),
    ),
    Row(
        "B028",
        "The delta fits, the rebuilt request does not",
        "The rebuilt request has a limit and an error of its own",
        ("Soju06/codex-lb#390",),
    ),
    Row(
        "B030",
        "One message in very many fragments costs quadratic time and memory",
        "The server joins them, before an app sees anything of the frame",
        ("Kludex/uvicorn#2917", "python-websockets/websockets#1602"),
    ),
    Row(
        "B031",
        "The state of permessage-deflate costs hundreds of kilobytes for each socket",
        "Switch it off, or its context takeover; our own part of an idle socket is some kilobytes",
        ("Kludex/uvicorn#1862", "python-websockets/websockets#896", "websockets/ws#497", "websockets/ws#804"),
        covered_by=("tests/servers/test_memory.py",),
    ),
    Row(
        "B032",
        "A small compressed frame inflates to many times the limit",
        "The limit counts the inflated frame",
        ("python-websockets/websockets#1720",),
    ),
    Row(
        "B033",
        "A binary frame kills the reader, and the handler waits for ever",
        "UTF-8 JSON is taken from binary frames as well; anything else is a 400, and the socket lives",
    ),
    Row(
        "B035",
        "NaN, huge numbers, deep nesting, a byte order mark or an empty frame crash the handler",
        "A 400 for each, the socket lives; of duplicate keys the last one wins, for us and for the app",
    ),
    Row(
        "B036",
        "A frame with an unknown type, or none, is swallowed in silence",
        "An error frame that names the type",
    ),
    Row(
        "B037",
        "The acknowledgement response.processed is answered by an error that ends the session",
        "Accepted in silence",
        ("openai/codex#21284",),
    ),
    Row(
        "B038",
        "Legacy frames: the request wrapped in a response member, response.append",
        "accept_wrapped=True takes the first; else both are typed errors; a frame of both shapes is refused",
    ),
    Row(
        "B040",
        "code: null in an error slips past the client's retry rule",
        "The code of an error frame is always a string",
        ("openai/openai-agents-python#3990",),
    ),
    Row(
        "B041",
        "Flat and nested error envelopes are mixed, and the client reads undefined",
        "One nested envelope with status, for every error",
        ("openclaw/openclaw#122727",),
    ),
    Row(
        "B042",
        "response.failed is turned into a bare text, and its code is lost",
        "Forwarded as it is",
        ("pipecat-ai/pipecat#5575",),
    ),
    Row(
        "B043",
        "A missing parent is told by a private code or a 502, so no client recovers",
        "Exactly previous_response_not_found, 400, param previous_response_id",
        ("Soju06/codex-lb#1529", "Soju06/codex-lb#1550"),
    ),
    Row(
        "B045",
        "Reserved close codes (1005, 1006, 1015) are sent",
        "A code that may not be on the wire becomes 1011",
        ("Kludex/uvicorn#1738", "Kludex/uvicorn#1344"),
    ),
    Row(
        "B046",
        "A line end inside an event's JSON makes two events of one",
        "Events are split at line ends of the stream only; a JSON escape is no line end",
        ("ding113/claude-code-hub#882", "ding113/claude-code-hub#1435"),
    ),
    Row(
        "B047",
        "Unmasked client frames or wrong continuations are accepted",
        "The server closes with 1002; we clean up once",
        ("ding113/claude-code-hub#1100", "ding113/claude-code-hub#1432"),
    ),
    Row(
        "B048",
        "An error without status, or with 2xx, is ignored by Codex",
        "Every error frame has a status of 400 or more",
    ),
)

_LIVENESS = (
    Row(
        "B050",
        "JSON pings keep the socket alive, but break strict validators",
        "None by default (the server pings); keepalive_s switches on an extension event",
        ("Menci/Floway#57", "Menci/Floway#309", "Menci/Floway#321", "Menci/Floway#324"),
    ),
    Row(
        "B051",
        "A keepalive with an invented id makes a phantom response",
        "A keepalive bears no response id, and none comes before response.created",
        ("Soju06/codex-lb#586",),
    ),
    Row(
        "B052",
        "A proxy drops sockets that are silent between turns",
        "The server's pings keep it open (uvicorn pings every 20 s by default)",
        ("Menci/Floway#57",),
        reason="The server's own: an ASGI app cannot send pings",
    ),
    Row(
        "B053",
        "A ping times out while a large frame is still uploading",
        "The server's ping time-out must be longer than an upload takes",
        reason="The server's own: no ASGI message tells of a frame before it is whole",
    ),
    Row(
        "B055",
        "A server that does not receive while it streams misses pongs and hang-ups",
        "One reader always waits in receive; excess frames get errors, never a stop",
    ),
    Row(
        "B056",
        "The handler is not told of a disconnect, and its task lives on",
        "The app gets http.disconnect, a grace, then is cancelled; nothing runs on",
        ("Kludex/starlette#759", "Kludex/starlette#1793"),
        covered_by=("tests/servers/test_gone.py",),
    ),
    Row(
        "B057",
        "A disconnect is noticed only when a send fails, so a silent turn runs to its end",
        "The reader notices it, without any send",
    ),
    Row(
        "B058",
        "The app goes on generating after the client has left",
        "An app that listens hears of it at once; any other is cancelled, in the task that owns it",
        ("sgl-project/sglang#39461", "vllm-project/vllm#32439"),
    ),
    Row(
        "B060",
        "An app that is silent for ever blocks the lane",
        "Limits for the first event and between events: 504, and the next turn starts",
        ("maximhq/bifrost#2998",),
    ),
    Row(
        "B061",
        "A pooled upstream connection that died while idle fails the turn",
        "A wrapped app is never retried",
        ("maximhq/bifrost#2994", "maximhq/bifrost#2999", "maximhq/bifrost#3002"),
        reason="A wrapped app is called in the process; connections behind it are its own",
    ),
    Row(
        "B062",
        "The age limit's error, pushed on an idle socket, crashes a client without a listener",
        "The error, then close 1001; age_notice=False leaves the error out on idle sockets",
        ("LionSR/TeXRA#9013", "LionSR/TeXRA#9017"),
    ),
    Row(
        "B063",
        "The write deadline equals the connection's life, so the limit error is never sent",
        "A running turn has a grace after the age limit; then it is told, and then the socket is closed",
    ),
    Row(
        "B065",
        "No limit for idle sockets, or live peers declared dead by a guess",
        "Idle between turns: close 1001; we never guess a peer dead, the server's ping does that",
    ),
    Row(
        "B066",
        "A shutdown hangs on open sockets, or cuts them with 1006",
        "drain(): 503 for new ones, idle ones close with 1012, running turns end or are told",
        ("Kludex/uvicorn#596", "Kludex/uvicorn#326", "Kludex/uvicorn#1140", "Kludex/uvicorn#1816"),
        covered_by=("tests/servers/test_ends.py",),
    ),
    Row(
        "B067",
        "The socket is closed after each turn, or ends without a close frame",
        "It stays open after a turn; each end that we start has a close frame",
        ("ding113/claude-code-hub#1153",),
    ),
    Row(
        "B068",
        "Close code and reason are lost or changed by the server",
        "Nothing depends on the code seen",
        ("emmett-framework/granian#645", "pgjones/hypercorn#127", "django/daphne#374"),
        covered_by=("tests/servers/test_gone.py",),
    ),
    Row(
        "B070",
        "The server closes before the terminal event, and the client cannot tell whether the turn ran",
        "Running turns are told before any close of ours",
        ("openai/codex#20739", "openai/codex#22156", "openai/codex#28115", "openai/codex#28579"),
    ),
    Row(
        "B071",
        "An optional stage that times out fails closed over HTTP, but open over the socket",
        "authorize fails closed: late or raising, the turn is refused",
        ("headroomlabs-ai/headroom#1054",),
    ),
    Row(
        "B072",
        "The upstream is blamed for a client that does not read, or the other way round",
        "Two clocks: the upstream's stands still while a write waits for the client",
        ("openclaw/openclaw#140335",),
    ),
)

_LANES = (
    Row(
        "B073",
        "stream_id is accepted, but events are not labelled, so lanes blend",
        "Each event of a named lane bears its name",
        ("vllm-project/agentic-api#239",),
    ),
    Row(
        "B075",
        "The lane's name is lost in errors",
        "An error bears the name of its lane; other lanes go on",
        ("openai/openai-node#2314",),
    ),
    Row(
        "B076",
        "A create during a running turn is refused",
        "It waits; beyond the bound that one frame gets a 429",
    ),
    Row(
        "B077",
        "A client that answers the terminal event at once is told that the lane is busy",
        "The lane is free, and the response committed, before the terminal event is written",
    ),
    Row(
        "B078",
        "A burst of creates closes the socket",
        "Excess creates get errors, the socket stays",
    ),
    Row(
        "B080",
        "A fork that fails evicts the other lane's parent",
        "Only a parent of the same lane is evicted",
    ),
    Row(
        "B081",
        "Bad lane names, too many names, too many running turns",
        "invalid_stream_id; the 33rd name is refused for life; the 17th turn waits",
    ),
    Row(
        "B082",
        "A replay after a failure starts the sequence numbers again",
        "Numbers rise strictly within a response; a wrapped app is never retried",
        ("Soju06/codex-lb#1222", "Soju06/codex-lb#1223"),
    ),
    Row(
        "B083",
        "A transparent replay doubles tool calls or text",
        "A failure is told, never replayed",
        ("Soju06/codex-lb#2082", "anomalyco/opencode#29646", "anomalyco/opencode#29673"),
    ),
    Row(
        "B085",
        "A receive that is cancelled loses a message",
        "A receive in flight is never cancelled",
        ("python-websockets/websockets#470", "python-websockets/websockets#486", "python-websockets/websockets#506"),
    ),
    Row(
        "B086",
        "Late events of an aborted turn are read as the next turn's",
        "After its closing event nothing of a turn is written",
        ("pipecat-ai/pipecat#4141", "openclaw/openclaw#78147", "digitallyinduced/haskell-agent#134"),
    ),
    Row(
        "B087",
        "A cancel with nothing running is fatal",
        "A typed error (the mode has no cancel event); the lane is fine",
        ("pipecat-ai/pipecat#3755",),
    ),
    Row(
        "B088",
        "A client that reads slowly makes memory grow without bound",
        "The app waits in its send; after the send limit the socket is closed with 1008",
        ("python-websockets/websockets#105", "aio-libs/aiohttp#1367"),
        covered_by=("tests/servers/test_slow_readers.py",),
    ),
    Row(
        "B090",
        "One huge lane starves the small ones",
        "Frames of all lanes are written in the order in which they are ready, one at a time",
    ),
)

_STATE = (
    Row(
        "B091",
        "The parent is lost after a reconnect, and the client loops",
        "previous_response_not_found, and the full input then works on the same socket",
        ("Soju06/codex-lb#395", "Soju06/codex-lb#464", "Soju06/codex-lb#782", "earendil-works/pi#6955"),
    ),
    Row(
        "B092",
        "A failed continuation leaves its parent usable",
        "A turn that ran and failed evicts its lane's parent",
        ("Menci/Floway#310", "Menci/Floway#322"),
    ),
    Row(
        "B093",
        "A refusal by a full queue evicts the parent",
        "A turn that never ran evicts nothing",
        ("vllm-project/agentic-api#257",),
    ),
    Row(
        "B095",
        "store: true on top of unstored history persists what was not to be kept",
        "400 invalid_store_transition",
    ),
    Row("B096", "store is forced to true on the way to the app", "store reaches the app as the client sent it"),
    Row(
        "B097",
        "The terminal event's output is empty, and the next tool output is an orphan",
        "Streamed finished items win over an empty or poorer snapshot, on the wire too",
        ("anomalyco/opencode#44893", "anomalyco/opencode#48249", "sgl-project/sglang#12656"),
    ),
    Row(
        "B098",
        "An app that answers with JSON instead of a stream looks like an empty success",
        "The events are made from the response object; a failure stays one",
        ("duolahypercho/codex-router#546",),
    ),
    Row(
        "B100",
        "Only function_call_output is known; other outputs are orphans, or items are doubled",
        "Each kind is paired; a wrong or second answer is a 400 that names the call",
        ("Soju06/codex-lb#1042",),
    ),
    Row(
        "B101",
        "A continuation drops tool calls from the stored context",
        "The app gets user, calls and outputs in their order",
        ("vllm-project/vllm#43244",),
    ),
    Row(
        "B102", "Reasoning, custom calls and images vanish from the chain", "Items are kept byte by byte, whatever type"
    ),
    Row(
        "B103",
        "Encrypted reasoning is sent to another route than the one that made it",
        "Items are untouched; routing is the app's",
        ("BerriAI/litellm#41253",),
    ),
    Row(
        "B105",
        "A warm-up is acknowledged, and its input is lost",
        "Its items are in the chain; its id can be continued",
        ("BerriAI/litellm#24959",),
    ),
    Row("B106", "generate reaches the app, which does not know it", "Fields of the socket never reach the app"),
    Row(
        "B107",
        "A warm-up in the middle of a connection runs and is billed",
        "Answered here at any position: no output tokens, one terminal event",
    ),
    Row(
        "B108",
        "A warm-up looks like a blank reply or an empty failure",
        "created and completed, empty output, usage with no output tokens",
        ("ding113/claude-code-hub#1437",),
    ),
    Row(
        "B110",
        "A warm-up brings nothing, because nothing was prepared",
        "Validated and kept at warm-up; the next turn reads its delta only",
        ("openclaw/openclaw#122542",),
    ),
    Row(
        "B111",
        "After a compaction the old history comes back",
        "A compaction item starts a new base: nothing older is joined",
    ),
    Row(
        "B112",
        "Each stored entry copies the whole history, without bound",
        "Items are kept once; budgets in bytes; what is evicted is not found",
        ("vllm-project/vllm#34738", "vllm-project/vllm#48275", "vllm-project/vllm#48454"),
    ),
    Row("B113", "A session dictionary grows with the square of the turns", "The same: linear, and freed at close"),
    Row(
        "B115",
        "Unstored state outlives its connection",
        "Freed at close; on_close tells the ids",
        ("pipecat-ai/pipecat#4900",),
    ),
    Row(
        "B116",
        "A continuation fails unclearly where no store is configured",
        "previous_response_not_found; a warm-up says whether it was stored",
        ("vllm-project/vllm#22137",),
    ),
    Row(
        "B117",
        "Cached work is reused although tools, instructions or model have changed",
        "Equal to a cold request with the full history",
    ),
    Row(
        "B118",
        "Tokens appended differ from tokens of the joined text",
        "No tokens are made for a wrapped app",
        reason="Needs the renderer of the engine, which is not built yet",
    ),
)

_STREAM = (
    Row(
        "B120",
        "CR and LF in two chunks are read as two line ends",
        "One event",
        ("rexxars/eventsource-parser#17",),
    ),
    Row("B121", "A character cut in two by chunks becomes U+FFFD", "Exact text"),
    Row("B122", "Lines are split at U+2028 and its like inside JSON", "Lines end at CR, LF and CRLF only"),
    Row("B123", "Of several data lines only the last is kept", "They are joined by LF"),
    Row(
        "B125",
        "data: [DONE] is forwarded, or taken as the end",
        "Never forwarded; without a terminal event the stream is cut",
    ),
    Row("B126", "[DONE] after an error hides the error", "The error ends the turn"),
    Row(
        "B127",
        "A stream without a terminal event passes for success",
        "response.failed with the real id; not to be continued",
        ("diegosouzapw/OmniRoute#12737",),
    ),
    Row(
        "B128",
        "The body stays open after the terminal event and blocks the lane",
        "The lane is free at the terminal event",
    ),
    Row(
        "B130",
        "An HTTP error before the stream is garbled or leaks HTML",
        "An error frame with status and the inner error",
    ),
    Row("B131", "A compressed body, a wrong content type", "Identity is asked for; the body tells what it is"),
    Row("B132", "One endless event or line", "Bounded; an error ends the turn"),
    Row("B133", "The terminal event lacks id or usage, ids change, created is missing", "Repaired by rule, or failed"),
)

_RUNTIME = (
    Row(
        "B135",
        "Context variables are lost in the streaming task, or leak from turn to turn",
        "Each turn has its own copy of the upgrade's context",
        ("Kludex/starlette#2620",),
    ),
    Row("B136", "A generator is closed from another task", "A turn is run and cancelled in one task"),
    Row("B137", "A generator is closed while it runs", "Cancelled and awaited"),
    Row(
        "B138",
        "An app that never waits starves the loop",
        "Our send lets others run now and then, whatever it is given",
    ),
    Row(
        "B140",
        "Tasks are collected before they have finished",
        "The connection holds all its tasks, and waits for them",
    ),
    Row("B141", "One endless trace span for the socket, or one for each message", "Facts are told for each turn"),
    Row("B142", "Primitives of asyncio fail on trio", "All tests run on both"),
    Row("B143", "Mounted in another app, no lifespan comes", "Nothing needs it"),
)

_BILLING = (
    Row("B145", "Only completed turns are counted", "Each turn is reported once, however it ends"),
    Row("B146", "Usage is noted when the socket closes, and lost in a crash", "Reported at the end of each turn"),
    Row("B147", "A budget is looked at when the socket opens only", "Each turn is judged", ("BerriAI/litellm#39647",)),
    Row("B148", "Frames of other kinds bypass the limiter", "All frames are reported; their answers are bounded"),
    Row(
        "B150",
        "An early return drops rewritten later frames",
        "prepare= edits each turn's body",
        ("headroomlabs-ai/headroom#2823",),
    ),
    Row("B151", "The first turn fails now and then", "A create on the heels of the handshake is served"),
    Row(
        "B152",
        "A revoked key must lose its sockets on every node",
        "disconnect(tenant), to be called on each",
        ("QuantumNous/new-api#6914",),
    ),
    Row("B153", "Usage is zero because it was read too early", "Taken from the terminal event; unknown is null"),
    Row(
        "B155",
        "A turn reads state that the one before has not written yet",
        "The same socket reads memory; others get not-found until the write has landed",
    ),
)

ROWS: Final[dict[str, Row]] = {
    row.id: row
    for section in (_UPGRADE, _FRAMES, _LIVENESS, _LANES, _STATE, _STREAM, _RUNTIME, _BILLING)
    for row in section
}
