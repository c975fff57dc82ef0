"""What third-party apps do when they are wrapped: the table of the support page, which the tests here hold against the apps."""

from dataclasses import dataclass
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
        strict: It gives strict clients all that Open Responses wants of a socket.
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
    strict: bool = False
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
        mind="It reads messages only: chains of messages work in both modes, tools of the client do not exist there.",
    ),
    App(
        name="open_responses_server",
        package="open-responses-server",
        replay="loses the call",
        forward="works",
        raises="`error` 500",
        breaks="`response.completed`",
        path="/responses",
        mind='It drops `function_call` items of the input: take `history="forward"`, and `inner_path="/responses"`. A broken chat '
        "completions server ends its turns as completed, with an `error` inside.",
    ),
)
