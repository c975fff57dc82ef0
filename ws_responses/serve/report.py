"""What a server says when it begins: what it serves, to whom, and how to try it."""

import shlex
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from ws_responses import __version__
from ws_responses.serve.access import is_loopback
from ws_responses.serve.arguments import API_KEYS, TENANT_KEY
from ws_responses.serve.chains import describe
from ws_responses.serve.options import ServeOptions

if TYPE_CHECKING:
    from ws_responses.serve.served import Served

_UNSPECIFIED: Final = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - a name for it, not a use


def report(options: ServeOptions, served: "Served", address: str, port: int) -> str:
    """Return the lines to be shown.

    Args:
        options: As given; no key of them is shown.
        served: What is served.
        address: Where it listens.
        port: Likewise, as it turned out.
    """
    secure = "s" if options.listen.certificate else ""
    host = _UNSPECIFIED.get(address) or (f"[{address}]" if ":" in address else address)
    shown = f"[{address}]" if ":" in address else address
    path = options.mode.paths[0]
    rows = [
        ("socket", " ".join(f"ws{secure}://{shown}:{port}{each}" for each in options.mode.paths)),
        ("HTTP", f"http{secure}://{shown}:{port}/v1: {served.forwards}"),
        ("clients", _clients(options, address)),
        ("behind it", served.credentials and f"is shown {served.credentials}"),
        ("workers", options.workers > 1 and f"{options.workers} processes"),
        ("chains", describe(options.chains, options.workers)),
        *(("note", note) for note in _notes(options, address)),
        ("try it", _chat(options, served, f"ws{secure}://{host}:{port}{path}")),
        ("", _curl(options, served, f"http{secure}://{host}:{port}{path}")),
        ("", _websocat(options, served, f"ws{secure}://{host}:{port}{path}")),
    ]
    lines = [f"  {name:<10} {text}" for name, text in rows if text]
    return "\n".join([f"ws_responses {__version__}: {served.what}", *lines, ""])


def _clients(options: ServeOptions, address: str) -> str:
    count = len(options.listen.keys)
    if count:
        return f"those who show {'the key' if count == 1 else f'one of {count} keys'} (Authorization: Bearer ...)"
    if options.listen.open:
        return "everybody who can reach it (--open)"
    assert is_loopback(address)
    return "everybody on this machine"


def _chat(options: ServeOptions, served: "Served", url: str) -> str:
    key = f"{API_KEYS}=... " if options.listen.keys else ""
    return f"{key}python -m ws_responses chat {url} --model {_model(served)}"


def _curl(options: ServeOptions, served: "Served", url: str) -> str:
    body = f'{{"model": "{_model(served)}", "input": "Hello"}}'
    return f"curl {url} {_authorization(options)}-H 'Content-Type: application/json' -d {shlex.quote(body)}"


def _websocat(options: ServeOptions, served: "Served", url: str) -> str:
    frame = f'{{"type": "response.create", "model": "{_model(served)}", "input": "Hello"}}'
    return f"echo {shlex.quote(frame)} | websocat -n {_authorization(options)}{url}"


def _authorization(options: ServeOptions) -> str:
    return f'-H "Authorization: Bearer ${API_KEYS}" ' if options.listen.keys else ""


def _model(served: "Served") -> str:
    return served.model or "MODEL"


def _notes(options: ServeOptions, address: str) -> list[str]:
    notes: list[str] = []
    if options.listen.keys and not options.listen.certificate and not is_loopback(address):
        notes.append("keys travel in clear text: put TLS in front, or give --ssl-certfile")
    upstream = options.source.upstream
    if upstream is not None and not urlsplit(upstream).path.strip("/"):
        notes.append(f"most servers have their API below /v1; the URL given is {upstream}")
    if options.chains.store is not None and not options.chains.key_is_given:
        notes.append(
            f"chains are found by this run only; a {TENANT_KEY} of yours lets later runs and other hosts find them"
        )
    return notes
