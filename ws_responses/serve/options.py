"""The options of ``serve``: what a command line and the environment say together, and what must not go together."""

import argparse
import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, Literal

from msgspec import Struct

from ws_responses.command_line import UsageError
from ws_responses.engine.tools import HostedTools
from ws_responses.errors import ConfigurationError
from ws_responses.limits import Limits
from ws_responses.protocol.profiles import Profile
from ws_responses.serve.arguments import API_KEYS, UPSTREAM_KEY, parser
from ws_responses.serve.chains import ChainOptions, chain_options

BackendName = Literal["cerebras", "chat", "completions", "llama-cpp", "scripted"]
RendererName = Literal["chat", "chatml", "harmony", "template"]
CompletionsServer = Literal["vllm", "sglang", "tensorrt-llm", "fireworks", "openai"]


class SourceOptions(Struct, frozen=True, kw_only=True):
    """What is served: an upstream, or a backend.

    Attributes:
        upstream: Base URL of a Responses server.
        backend: Name of a kind of inference service.
        backend_url: Its base URL, None for its own default.
        models: Names that are served; by each the backend's own. None lets every name through.
        renderer: Makes its prompts; None for its usual one.
        template: File with a chat template, for the renderer "template".
        hosted_tools: What becomes of tools that the service would have to run.
        gguf: File with a vocabulary, and a model.
        completions_server: Whose completions they are.
        api_key: Key for the upstream or the backend.
        headers: Further headers for the upstream.
        ca_file: File with the authorities of the upstream.
        timeout_s: Longest silence of the upstream or backend.
        forwarded: Tell the upstream who the client is.
        max_requests: Requests at the upstream at once.
    """

    upstream: str | None
    backend: BackendName | None
    backend_url: str | None
    models: Mapping[str, str] | None
    renderer: RendererName | None
    hosted_tools: HostedTools
    template: str | None
    gguf: str | None
    completions_server: CompletionsServer
    api_key: str | None
    headers: Mapping[str, str]
    ca_file: str | None
    timeout_s: float
    forwarded: bool
    max_requests: int


class ModeOptions(Struct, frozen=True, kw_only=True):
    """How sockets are served; the middleware's own words."""

    paths: tuple[str, ...]
    profile: Profile
    history: Literal["replay", "forward"]
    app_store: Literal["keep", "never"]
    drop_fields: tuple[str, ...]
    complete_response: bool
    open_calls: Literal["check", "app"]
    anonymous_tenant: Literal["connection", "shared"]
    allowed_origins: tuple[str, ...] | None
    on_disconnect: Literal["cancel"] | float
    probe: bool
    keepalive_s: float | None
    accept_wrapped: bool
    accept_cancel: bool
    steering: Literal["interrupt"] | None
    prototype: bool
    limits: Limits


class ListenOptions(Struct, frozen=True, kw_only=True):
    """Where and how it listens.

    Attributes:
        keys: Keys of clients; none for everybody.
        open: Everybody is let in, also from elsewhere: said explicitly.
        grace_s: Time that running turns get after a signal to stop.
    """

    host: str
    port: int
    keys: tuple[str, ...]
    open: bool
    root_path: str
    trusted_proxies: str | None
    certificate: str | None
    private_key: str | None
    private_key_password: str | None
    log_level: str
    access_log: bool
    grace_s: float


class ServeOptions(Struct, frozen=True, kw_only=True):
    """All of the command line.

    Attributes:
        workers: Processes that serve.
        worker_timeout_s: How long one of them may do nothing before it is replaced; None for ever.
    """

    source: SourceOptions
    mode: ModeOptions
    listen: ListenOptions
    chains: ChainOptions
    workers: int
    worker_timeout_s: float | None


def parse(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> ServeOptions:
    """Read a command line.

    Raises:
        UsageError: It cannot be followed.
        SystemExit: It asks for help.
    """
    given = parser().parse_args(arguments)
    try:
        return ServeOptions(
            source=_source(given, environment),
            mode=_mode(given),
            listen=_listen(given, environment),
            chains=chain_options(given, environment),
            workers=given.workers,
            worker_timeout_s=_worker_timeout(given),
        )
    except ConfigurationError as error:
        raise UsageError(str(error)) from None


def _worker_timeout(given: argparse.Namespace) -> float | None:
    timeout: float | Literal["none"] | None = given.worker_timeout
    if timeout is None:
        return _WORKER_TIMEOUT_S
    if given.workers == 1:
        raise UsageError("--worker-timeout needs --workers 2 or more: a process alone has nobody who would replace it")
    return None if timeout == "none" else timeout


_WORKER_TIMEOUT_S: Final = 60.0
"""Far above what any work of ours holds up the loop for (a prompt of a million tokens takes seconds), and below the patience
of clients and of proxies in front."""


def _source(given: argparse.Namespace, environment: Mapping[str, str]) -> SourceOptions:
    for name in _FOREIGN["upstream" if given.upstream else "backend"]:
        if getattr(given, name) not in (None, [], False):
            other = "--backend" if given.upstream else "--upstream"
            raise UsageError(f"--{name.replace('_', '-')} goes with {other} only")
    if given.completions_server and given.backend != "completions":
        raise UsageError("--completions-server goes with --backend completions only")
    if (given.template is not None) != (given.renderer == "template"):
        raise UsageError("--renderer template and --template FILE go together")
    return SourceOptions(
        upstream=given.upstream,
        backend=given.backend,
        backend_url=given.backend_url,
        models=dict(map(_model, given.model)) or None,
        renderer=given.renderer,
        hosted_tools=given.hosted_tools or "drop",  # Codex offers a web search with every request
        template=given.template,
        gguf=given.gguf,
        completions_server=given.completions_server or "vllm",
        api_key=given.upstream_api_key or environment.get(UPSTREAM_KEY) or None,
        headers=dict(map(_header, given.upstream_header)),
        ca_file=given.upstream_ca,
        timeout_s=given.upstream_timeout,
        forwarded=given.forward_client,
        max_requests=given.max_upstream_requests or _MAX_REQUESTS,
    )


_MAX_REQUESTS: Final = 1024
"""Turns and requests at an upstream at once: each holds two file descriptors, of the 4,096 that a process may usually have."""

_FOREIGN: Final = {
    "upstream": ("backend_url", "model", "renderer", "hosted_tools", "template", "gguf", "completions_server"),
    "backend": (
        *("upstream_header", "upstream_ca", "forward_client", "max_upstream_requests"),
        *("history", "app_store", "no_probe", "drop_field", "steering"),
    ),
}
"""Options that mean nothing to the other kind of source: silence would let people believe that they do."""


def _mode(given: argparse.Namespace) -> ModeOptions:
    return ModeOptions(
        paths=tuple(given.path or ("/v1/responses",)),
        profile=given.profile,
        history=given.history or "replay",
        app_store=given.app_store or "keep",
        drop_fields=tuple(given.drop_field or ()),
        complete_response=given.complete_response,
        open_calls=given.open_calls,
        anonymous_tenant=given.anonymous_tenant,
        allowed_origins=None if given.allowed_origin is None else tuple(given.allowed_origin),
        on_disconnect=given.on_disconnect,
        probe=not given.no_probe,
        keepalive_s=given.keepalive,
        accept_wrapped=given.accept_wrapped,
        accept_cancel=given.accept_cancel,
        steering=given.steering,
        prototype=given.prototype,
        limits=_limits(given),
    )


def _listen(given: argparse.Namespace, environment: Mapping[str, str]) -> ListenOptions:
    named = given.api_key or (environment.get(API_KEYS) or "").split(",")
    keys = tuple(dict.fromkeys(key.strip() for key in named if key.strip()))
    if any(not key.isascii() or not key.isprintable() or " " in key for key in keys):
        raise UsageError("a key may hold printable ASCII without blanks only")  # and is not repeated here
    if given.open and keys:
        where = "--api-key" if given.api_key else API_KEYS
        raise UsageError(f"--open and {where} contradict each other")
    if given.ssl_keyfile and not given.ssl_certfile:
        raise UsageError("--ssl-keyfile needs --ssl-certfile")
    return ListenOptions(
        host=given.host,
        port=given.port,
        keys=keys,
        open=given.open,
        root_path=given.root_path,
        trusted_proxies=given.forwarded_allow_ips,
        certificate=given.ssl_certfile,
        private_key=given.ssl_keyfile,
        private_key_password=given.ssl_keyfile_password,
        log_level=given.log_level,
        access_log=given.access_log,
        grace_s=given.grace,
    )


# -- values ----------------------------------------------------------------------------------------------------------


def _limits(given: argparse.Namespace) -> Limits:
    values: dict[str, Any] = {
        # Turns that run when the process is told to stop get what they get when their connection is too old.
        "age_grace_s": given.grace,
        "first_event_timeout_s": given.upstream_timeout,
        "event_timeout_s": given.upstream_timeout,
    }
    if given.max_connections is not None:
        values["max_connections"] = given.max_connections
    names = [field.name for field in fields(Limits)]
    texts: list[str] = given.limit
    for each in texts:
        name, equals, text = each.partition("=")
        if not equals:
            raise UsageError(f"--limit takes NAME=VALUE, not {each!r}")
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            raise UsageError(f"there is no limit {name!r}" + (f"; did you mean {near[0]}?" if near else ""))
        values[name] = _number(name, text)
    return Limits(**values)


def _number(name: str, text: str) -> float | None:
    if text.lower() == "none":
        return None
    try:
        return float(text) if name.endswith("_s") else int(text)
    except ValueError:
        raise UsageError(f"the limit {name} must be a number or 'none', not {text!r}") from None


def _model(text: str) -> tuple[str, str]:
    name, equals, its_name = text.partition("=")
    if not name or (equals and not its_name):
        raise UsageError(f"--model takes NAME or NAME=NAME_AT_THE_BACKEND, not {text!r}")
    return name, its_name or name


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise UsageError("--upstream-header takes 'NAME: VALUE'")  # the rest may be a key
    return name.strip(), value.strip()
