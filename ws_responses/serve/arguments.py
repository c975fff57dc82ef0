"""The arguments of ``serve``, and the help on them."""

import argparse
from typing import Final, Literal

from ws_responses.command_line import CommandParser, count, port, seconds

PROGRAM: Final = "python -m ws_responses serve"
API_KEYS: Final = "WS_RESPONSES_API_KEY"
"""Environment variable: keys of clients, separated by commas. A key on the command line is seen by all who see processes."""
UPSTREAM_KEY: Final = "WS_RESPONSES_UPSTREAM_API_KEY"
"""Environment variable: the key for the upstream or the backend."""
STORE: Final = "WS_RESPONSES_STORE"
"""Environment variable: the shared store; its address may hold a password."""
TENANT_KEY: Final = "WS_RESPONSES_TENANT_KEY"
"""Environment variable: what several hosts, or several runs, that share a store must agree on."""

BACKENDS: Final = ("cerebras", "chat", "completions", "llama-cpp", "scripted")
HOSTED_TOOLS: Final = ("drop", "refuse")
RENDERERS: Final = ("chat", "chatml", "harmony", "template")
COMPLETIONS_SERVERS: Final = ("vllm", "sglang", "tensorrt-llm", "fireworks", "openai")


def parser() -> argparse.ArgumentParser:
    """Return the parser; ``--help`` shows all that it takes."""
    made = CommandParser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="WebSocket mode for a Responses server elsewhere (--upstream), or a Responses server with WebSocket mode "
        "on top of an inference backend (--backend).",
        epilog=f"Keys may stand in {API_KEYS} (clients) and {UPSTREAM_KEY} (upstream or backend) instead: other users of "
        f"the machine can read a command line. Hosts that share a store need the same {TENANT_KEY}.",
    )
    _add_source(made)
    _add_listen(made)
    _add_mode(made)
    _add_extensions(made)
    _add_workers(made)
    return made


def _add_source(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("what is served")
    what = group.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--upstream", metavar="URL", help="base URL of a Responses server, such as http://localhost:8000/v1"
    )
    what.add_argument("--backend", choices=BACKENDS, help="kind of inference service that the engine asks")
    group.add_argument("--backend-url", metavar="URL", help="base URL of the backend")
    group.add_argument(
        "--model",
        action="append",
        default=[],
        metavar="NAME[=ITS]",
        help="model to serve, and the backend's name of it; repeat it (default: whatever clients name)",
    )
    group.add_argument("--renderer", choices=RENDERERS, help="makes the prompts of the backend")
    group.add_argument(
        "--hosted-tools",
        choices=HOSTED_TOOLS,
        help="tools that a service runs itself, such as web_search: leave them out (drop, the default), or answer 400 (refuse)",
    )
    group.add_argument("--template", metavar="FILE", help="chat template (Jinja), for --renderer template")
    group.add_argument(
        "--gguf", metavar="FILE", help="model file of llama.cpp: its vocabulary, for chatml and template"
    )
    group.add_argument(
        "--completions-server", choices=COMPLETIONS_SERVERS, help="whose completions they are (default vllm)"
    )
    group.add_argument("--upstream-api-key", metavar="KEY", help=f"key for what is behind; better: {UPSTREAM_KEY}")
    group.add_argument(
        "--upstream-header",
        action="append",
        default=[],
        metavar="'NAME: VALUE'",
        help="further header for the upstream",
    )
    group.add_argument("--upstream-ca", metavar="FILE", help="certificates of the authorities of the upstream (PEM)")
    group.add_argument(
        "--upstream-timeout", type=seconds, default=300.0, metavar="S", help="longest silence of it (default 300)"
    )
    group.add_argument("--max-upstream-requests", type=count, metavar="N", help="requests at it at once (default 1024)")
    group.add_argument("--forward-client", action="store_true", help="tell it who the client is (X-Forwarded-*)")


def _add_listen(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("where, and for whom")
    group.add_argument(
        "--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine only)"
    )
    group.add_argument("--port", type=port, default=8080, help="port; 0 for any free one (default 8080)")
    group.add_argument(
        "--api-key",
        action="append",
        default=[],
        metavar="KEY",
        help=f"key that clients must show; repeat it; better: {API_KEYS}",
    )
    group.add_argument("--open", action="store_true", help="let everybody in who reaches it, from other machines too")
    group.add_argument(
        "--allowed-origin",
        action="append",
        metavar="ORIGIN",
        help="web pages let in (default: pages of this host; * for all)",
    )
    group.add_argument("--ssl-certfile", metavar="FILE", help="certificate chain: serve https and wss")
    group.add_argument("--ssl-keyfile", metavar="FILE", help="its private key")
    group.add_argument("--ssl-keyfile-password", metavar="TEXT", help="password of the private key")
    group.add_argument(
        "--forwarded-allow-ips", metavar="IPS", help="proxies in front whose X-Forwarded-* count (* for all)"
    )
    group.add_argument("--root-path", default="", metavar="PATH", help="path that a proxy in front has removed")
    group.add_argument("--log-level", choices=("critical", "error", "warning", "info", "debug"), default="info")
    group.add_argument("--access-log", action="store_true", help="log each HTTP request")
    group.add_argument(
        "--grace", type=seconds, default=30.0, metavar="S", help="what running turns get after SIGTERM (default 30)"
    )


def _add_mode(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("how")
    group.add_argument(
        "--path", action="append", metavar="PATH", help="path of the socket; repeat it (default /v1/responses)"
    )
    group.add_argument(
        "--history",
        choices=("replay", "forward"),
        help="what the upstream is sent: all of the conversation, or its own id and the rest",
    )
    group.add_argument("--app-store", choices=("keep", "never"), help="never: the upstream stores nothing")
    group.add_argument("--complete-response", action="store_true", help="fill what strict clients demand of a response")
    group.add_argument(
        "--profile",
        choices=("openai", "open-responses"),
        default="openai",
        help="open-responses: no lanes, and events by the schema of that specification",
    )
    group.add_argument(
        "--drop-field",
        action="append",
        metavar="NAME",
        help="member of requests that the upstream never gets; repeat it",
    )
    group.add_argument(
        "--open-calls", choices=("check", "app"), default="check", help="who judges unanswered tool calls"
    )
    group.add_argument(
        "--anonymous-tenant",
        choices=("connection", "shared"),
        default="connection",
        help="shared: clients without a key are one, and find their chains on a new socket",
    )
    group.add_argument(
        "--on-disconnect",
        type=_on_disconnect,
        default="cancel",
        metavar="S",
        help="let turns of clients that left run for so long",
    )
    group.add_argument(
        "--no-probe", action="store_true", help="do not ask the upstream at the upgrade whether it refuses"
    )
    group.add_argument("--keepalive", type=seconds, metavar="S", help="send an extension event after so much silence")
    group.add_argument(
        "--accept-wrapped", action="store_true", help="take creates whose body stands in a member 'response', too"
    )
    group.add_argument("--max-connections", type=count, metavar="N", help="open sockets (--limit max_connections=N)")
    group.add_argument(
        "--limit", action="append", default=[], metavar="NAME=VALUE", help="any bound, such as max_frame_bytes=1000000"
    )


def _add_extensions(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("what clients may do besides")
    group.add_argument(
        "--accept-cancel", action="store_true", help="stop a response, or all of a lane (response.cancel)"
    )
    group.add_argument(
        "--steering",
        choices=("interrupt",),
        help="steer a running response of the upstream: its call is ended for that (an engine is steered anyway)",
    )
    group.add_argument(
        "--prototype",
        action="store_true",
        help="run a whole rollout as one response (response.done, response.append); not for clients that do not know it",
    )


def _add_workers(made: argparse.ArgumentParser) -> None:
    group = made.add_argument_group("several processes")
    group.add_argument(
        "--workers",
        type=count,
        default=1,
        metavar="N",
        help="processes that serve; more than one need --store (default 1)",
    )
    group.add_argument(
        "--worker-timeout",
        type=_worker_timeout,
        metavar="S",
        help="replace a worker that lives, but has done nothing for so long (default 60; none: never)",
    )
    group.add_argument(
        "--store",
        metavar="WHERE",
        help="keeps chains beyond their process: sqlite:FILE, redis://HOST:PORT/DB or memory (default memory); "
        f"better, with a password: {STORE}",
    )
    group.add_argument(
        "--store-fails",
        choices=("closed", "miss"),
        help="while the store is down: answer that there is no such response (miss, the default), or 503 (closed)",
    )
    group.add_argument(
        "--shared-limits",
        action="store_true",
        help="count what a tenant has open and running over all workers and hosts, in Redis",
    )
    group.add_argument(
        "--durable", action="store_true", help="end a turn that is to be stored only when the store has it"
    )


def _worker_timeout(text: str) -> Literal["none"] | float:
    return "none" if text == "none" else seconds(text)


def _on_disconnect(text: str) -> Literal["cancel"] | float:
    return "cancel" if text == "cancel" else seconds(text)
