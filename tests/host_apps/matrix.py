"""What third-party apps do when they are wrapped: the table of the support page, which the tests here hold against the apps."""

from dataclasses import dataclass, field
from typing import Any, Final

STRICT: Final[dict[str, dict[str, Any]]] = {
    "/strict": {"profile": "open-responses"},
    "/complete": {"complete_response": True},
}
"""How apps are wrapped for strict clients, by the paths below which they are served so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """One line of the table.

    Attributes:
        name: Of its module, its environment and its file of requirements.
        package: On PyPI.
        replay: What a loop of tool calls does by `history="replay"`.
        forward: The same by `history="forward"`.
        raises: How a turn ends whose handler raises.
        breaks: How a turn ends whose handler raises in the midst of its text.
        gone: What the handler does when its client leaves.
        path: Of its route.
        refuses: Members of a request that it does not take.
        strict: It gives strict clients what Open Responses wants of a socket.
        fails: What it does not give them, and why.
        mind: What its users should know.
    """

    name: str
    package: str
    replay: str
    forward: str
    raises: str
    breaks: str = "`response.failed`"
    gone: str = "ends"
    path: str = "/v1/responses"
    refuses: dict[str, Any] = field(default_factory=lambda: {"temperature": "hot"})
    strict: bool = False
    fails: dict[str, str] = field(default_factory=dict)
    mind: str


APPS: Final = (
    App(
        name="azure_agentserver",
        package="azure-ai-agentserver-responses",
        replay="works",
        forward="works",
        raises="`error` 500",
        strict=True,
        mind="It tells handlers of a client that has gone by `cancellation_signal`, and cancels none. Its response objects lack what "
        "strict clients demand: `complete_response=True`, or the profile, fills them; then all that Open Responses says of "
        "sockets holds.",
    ),
    App(
        name="fastapi_openai_compat",
        package="fastapi-openai-compat",
        replay="works",
        forward="loses the history",
        raises="`error` 500",
        mind="It keeps nothing, and numbers no events: we do.",
    ),
    App(
        name="fastresponses",
        package="fastresponses",
        replay="works",
        forward="works",
        raises="`response.failed`",
        strict=True,
        mind="Its own WebSocket route, on the same path, is hidden by ours. All that Open Responses says of sockets holds.",
    ),
    App(
        name="graphserve",
        package="graphserve",
        replay="has no calls",
        forward="has no calls",
        raises="`response.failed`",
        gone="goes on, as over HTTP",
        refuses={"model": "nope"},
        mind="It reads messages only: chains of messages work in both modes, tools of the client do not exist there.",
    ),
    App(
        name="litellm",
        package="litellm",
        replay="works",
        forward="loses the question",
        raises="`error` 500",
        refuses={"model": "nope"},
        strict=True,
        fails={"compaction": "/responses/compact is answered by 500"},
        mind="Its proxy, in front of a chat completions server, with its key on each turn; its own WebSocket route, on the same path, is "
        "hidden by ours. Without its database it knows of earlier responses no more than their calls. All that Open Responses says of "
        "sockets holds, but for compaction, which it has for some providers only. It takes members of wrong types.",
    ),
    App(
        name="ogx",
        package="ogx",
        replay="works",
        forward="works",
        raises="`response.failed`",
        strict=True,
        mind="It needs Python 3.12. It was tried in front of a chat completions server, with SQLite; its own WebSocket route, on the "
        "same path, is hidden by ours. Its errors may be an `error` event under status 200 whose `code` is the status: that of an "
        "unknown model, 404, is told as `not_found`. All that Open Responses says of sockets holds.",
    ),
    App(
        name="open_responses_server",
        package="open-responses-server",
        replay="loses the call",
        forward="works",
        raises="`error` 500",
        breaks="`response.completed`",
        path="/responses",
        refuses={},
        mind='It drops `function_call` items of the input: take `history="forward"`, and `inner_path="/responses"`. A broken chat '
        "completions server ends its turns as completed, with an `error` inside.",
    ),
)
