"""What each framework does: the table of the support page, which the tests here hold against the frameworks.

A test sees something, and `Server.shows` compares it with the cell. So the page is true when the tests pass, and a framework that
changes fails the test that names the row.
"""

from typing import Final

from tests import matrix
from tests.matrix import row

TITLES: Final = {
    "plain": "plain ASGI",
    "starlette": "Starlette",
    "fastapi": "FastAPI",
    "litestar": "Litestar",
    "quart": "Quart",
    "django": "Django",
    "blacksheep": "BlackSheep",
    "falcon": "Falcon",
    "sanic": "Sanic",
}

FRAMEWORKS: Final = tuple(TITLES)


ROWS: Final = (
    row("loop", "A loop of chained tool calls, event by event", "yes"),
    row("http", "HTTP on the same path", "as before"),
    row(
        "helper",
        "Its own helper for server-sent events",
        "yes",
        plain="has none",
        quart="has none",
        django="has none",
        sanic="has none",
        helps="`EventSourceResponse` of FastAPI and of `sse-starlette`, Litestar's `ServerSentEvent`, BlackSheep's "
        "`ServerSentEventsResponse`, Falcon's `resp.sse`.",
    ),
    row(
        "sync",
        "A generator without `async`",
        "streams",
        plain="your own loop",
        django="all at once",
        blacksheep="refused",
        falcon="refused",
        sanic="your own loop",
        helps="Django runs such a generator to its end before it sends anything, over HTTP as well: make it `async`.",
    ),
    row("turn", "`current_turn()` in the handler and its generator", "yes"),
    row("slow", "A client that does not read", "the generator waits"),
    row(
        "gone",
        "A client that leaves: the generator is ended by",
        "`http.disconnect`",
        plain="cancellation",
        blacksheep="cancellation",
        falcon="cancellation",
        sanic="cancellation",
        helps="Cancellation comes `disconnect_grace_s` (0.25 s) later, for those that do not listen. Either way the generator's "
        "`finally` runs.",
    ),
    row(
        "log",
        "... in the midst of a stream: what it logs",
        "nothing",
    ),
    row("error", "Its JSON errors: status, code, `Retry-After`", "kept"),
    row(
        "raise",
        "A handler that raises: the client is told",
        "500, its text",
        plain="500, ours",
        quart="500",
        django="500",
        helps="Pages in HTML are never passed on; ours names an id that stands in the log.",
    ),
    row(
        "break",
        "A generator that raises: the turn fails by",
        "`server_error`",
        sanic="`upstream_stream_truncated`",
        helps="Sanic keeps the exception to itself and ends the stream, and so does Starlette's `BaseHTTPMiddleware`.",
    ),
    row(
        "compression",
        "Its compression",
        "leaves turns alone",
        sanic="has none",
        helps="Quart, Falcon and plain ASGI were tried with Starlette's `GZipMiddleware` around them.",
    ),
    row(
        "layer",
        "A key that its middleware demands is asked for at",
        "the upgrade",
        litestar="each turn",
        helps="Litestar runs its middleware for routes only, and none takes the GET of the upgrade: give "
        "[`authorize=`](../how-to/auth-and-tenants.md) for a refusal before the socket is open.",
    ),
    row("route", "A key that the route demands is asked for at", "each turn", django="the upgrade"),
    row(
        "mounted",
        'Below a prefix: Starlette\'s `Mount("/api", ...)`',
        "served",
        falcon="404",
        sanic="404",
        helps="Falcon and Sanic do not know `root_path`, over HTTP as well: give their routes the whole path; `path=` stays the one below the prefix.",
    ),
    row("body-3", "A conversation of 3 MiB, by default", "taken", django="400"),
    row("body-11", "... of 11 MiB", "taken", django="400", litestar="413"),
    row(
        "body-18",
        "... of 18 MiB",
        "taken",
        django="400",
        litestar="413",
        quart="413",
        helps="The app's limit holds for the whole conversation, since that is what it gets. Django: "
        "`DATA_UPLOAD_MAX_MEMORY_SIZE`; Litestar: `request_max_body_size`; Quart: `MAX_CONTENT_LENGTH`. Or "
        '`history="turn"`.',
    ),
)


def cell(name: str, framework: str) -> str:
    """Return what the page says of a framework."""
    return matrix.cell(ROWS, name, framework)
