"""What each server does: the tables of the support page, which the tests here hold against the servers.

A test sees something, and `Server.shows` compares it with the cell. So the page is true when the tests pass, and a server
that changes fails the test that names the row.
"""

from typing import Final

from tests import matrix
from tests.matrix import Row, row

SERVERS: Final = (
    "uvicorn-sansio",
    "uvicorn-wsproto",
    "uvicorn-websockets",
    "hypercorn-asyncio",
    "hypercorn-trio",
    "granian",
    "daphne",
)


TABLES: Final[dict[str, tuple[Row, ...]]] = {
    "upgrade": (
        row(
            "refusal",
            "A refused upgrade is answered by",
            "our status and JSON",
            daphne="403, empty",
            helps="Where daphne cannot say 426, 401, 429 or 503, clients cannot tell why they are refused, nor when to come "
            "back: refuse in a proxy before it, or take another server.",
        ),
        row(
            "refusal-headers",
            "... which carries the headers of a 101",
            "no",
            granian="yes",
            helps="Clients go by the status; a proxy that goes by the `upgrade` header would be misled.",
        ),
        row(
            "accept-headers",
            "`handshake_headers` on the 101",
            "sent",
            granian="dropped",
            daphne="dropped",
            helps="Let nothing depend on them.",
        ),
        row("fresh", "A first frame right after the 101", "served"),
        row(
            "early",
            "A first frame before the 101 (against RFC 6455, 4.1)",
            "lost",
            hypercorn="400",
            granian="served",
            helps="Clients must wait for the 101. hypercorn answers 400 and never tells the app, so that the connection stays "
            "in the books until `idle_timeout_s`: keep that limit on.",
        ),
        row(
            "deflate",
            "permessage-deflate",
            "yes",
            granian="no",
            daphne="no",
            helps="It costs memory and time: with uvicorn `--ws-per-message-deflate false` (the memory: see below); hypercorn "
            "has no switch.",
        ),
    ),
    "frames": (
        row(
            "big",
            "A frame of 1.5 MiB, by default",
            "served",
            daphne="1006",
            helps="`daphne --websocket-max-message-size 16777216 --websocket-max-frame-size 16777216`.",
        ),
        row("our-limit", "A frame above `max_frame_bytes`", "1009", daphne="4009"),
        row(
            "server-limit",
            "A frame above the server's own limit",
            "1009",
            granian="1005",
            daphne="1006",
            helps="Keep `max_frame_bytes` below it, so that clients get our 1009 and running turns are told: uvicorn "
            "`--ws-max-size` (16 MiB); hypercorn `websocket_max_message_size` in its configuration file (16 MiB); granian 16 "
            "MiB, fixed; daphne see above (1 MiB).",
        ),
        row("bomb", "64 MiB in a small compressed frame", "1009", granian="no deflate", daphne="no deflate"),
        row("fragments", "A frame in 65,536 fragments", "served"),
        row(
            "bad-frame",
            "A frame that breaks the protocol",
            "1006",
            uvicorn_sansio="1002",
            uvicorn_websockets="1002",
            granian="1005",
        ),
        row(
            "bad-text",
            "A text that is no UTF-8",
            "1006",
            uvicorn_sansio="1007",
            uvicorn_websockets="1007",
            granian="1005",
        ),
    ),
    "liveness": (
        row(
            "pings",
            "Pings, while a long turn runs and frames wait",
            "answered",
            granian="none sent",
            helps="Proxies cut silent sockets. uvicorn pings every 20 s, daphne too; hypercorn only with "
            "`--websocket-ping-interval 20`; granian never: raise the proxy's time-out, or set `keepalive_s` for clients that "
            "bear it.",
        ),
        row(
            "half-open",
            "A client that answers no ping",
            "never noticed",
            uvicorn="1011",
            daphne="1006",
            helps="uvicorn `--ws-ping-timeout`, daphne `--ping-timeout`. Elsewhere `first_event_timeout_s`, `event_timeout_s` and "
            "`idle_timeout_s` end what nobody notices.",
        ),
        row("gone", "A client that closes, hangs up or crashes", "app is told at once"),
        row(
            "code-close",
            "... the code that hooks see: it closed with 4001",
            "4001",
            hypercorn="1006",
            helps="Let nothing depend on codes; here nothing does.",
        ),
        row(
            "code-abort",
            "... the code that hooks see: it reset the TCP connection",
            "1006",
            uvicorn_sansio="1005",
            uvicorn_wsproto="1005",
            granian="1005",
        ),
    ),
    "slow": (
        row(
            "slow",
            "A client that does not read",
            "app waits",
            daphne="all is buffered",
            helps="daphne has no back-pressure: one stalled client can fill its memory. Take another server.",
        ),
        row(
            "stopped",
            "... and answers no pings: the server",
            "never notices",
            daphne="1006",
            helps="A ping time-out does not end a write that blocks. Leave `send_timeout_s` on.",
        ),
        row(
            "send-timeout",
            "... when `send_timeout_s` is over, the client gets",
            "1006",
            uvicorn_websockets="1008",
            hypercorn_asyncio="1006 or 1008",
            hypercorn_trio="nothing",
            daphne="nothing",
            helps="hypercorn's trio worker shields its writes from being cancelled: there a client that stays and does not read "
            "holds its turn. Take its asyncio worker, or a proxy with a write time-out.",
        ),
    ),
    "engine": (
        row("engine-loop", "A chained loop of tool calls over the socket", "works"),
        row("engine-http", "... over HTTP, as JSON and as events, and on over the socket", "works"),
        row("engine-gone", "A client leaves its HTTP request: the service's work", "ends at once"),
        row(
            "engine-slow",
            "A client that does not read its HTTP answer",
            "service waits",
            daphne="all is buffered",
        ),
    ),
    "end": (
        row("close", "Our close as the client sees it", "code and reason", daphne="4xxx, no reason"),
        row(
            "drain",
            "`drain()`, and SIGTERM when it has returned",
            "1012 after the turn",
            daphne="4012 after the turn",
            helps="Call `drain()` before the signal: [shutdown](../how-to/disconnects-and-shutdown.md#shutdown).",
        ),
        row(
            "sigterm",
            "SIGTERM without it: clients get",
            "1006",
            uvicorn="1012",
            hypercorn_asyncio="1011",
            helps="uvicorn, granian and daphne close at once, hypercorn after `graceful_timeout` (3 s).",
        ),
        row(
            "sigterm-app",
            "SIGTERM without it: the app's call is",
            "told",
            granian="told or cut",
            daphne="told or cut",
            helps="granian and daphne do not wait: what a handler does in `finally` may not happen.",
        ),
    ),
}

ROWS: Final = tuple(each for rows in TABLES.values() for each in rows)


def cell(name: str, server: str) -> str:
    """Return what the page says of a server."""
    return matrix.cell(ROWS, name, server)
