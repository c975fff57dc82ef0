"""The command ``chat``: its arguments, and what it needs."""

import argparse
import importlib
import io
import os
import ssl
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import msgspec

from ws_responses.chat.display import Display
from ws_responses.command_line import CommandParser, UsageError, seconds

PROGRAM: Final = "python -m ws_responses chat"
API_KEY: Final = "WS_RESPONSES_API_KEY"
"""Environment variable with the key; ``serve`` reads the same."""

_SCHEMES: Final = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}


def main(arguments: Sequence[str]) -> int:
    """Talk until the input ends; return the exit code: 1 if a turn failed and nobody was there to see it."""
    if find_spec("websockets") is None:
        return _refuse("needs the package websockets: pip install 'ws-responses[serve]'")
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        return _chat(chat_parser().parse_args(arguments))
    except UsageError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        # Who read our output has left. Python would complain once more when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _refuse(reason: str) -> int:
    sys.stderr.write(f"chat: {reason}\nchat: {PROGRAM} --help shows all options\n")
    return 2


def _chat(given: argparse.Namespace) -> int:
    from ws_responses.chat.conversation import Conversation  # noqa: PLC0415 - needs websockets, as told above
    from ws_responses.chat.loop import Chat, read_line  # noqa: PLC0415

    display = Display(sys.stdout, sys.stderr)
    conversation = Conversation(
        socket_url(given.url),
        display,
        fields=fields_of(given.field, model=given.model, instructions=given.instructions),
        api_key=given.api_key or os.environ.get(API_KEY) or None,
        tls=_authorities(given.ca),
        silence_s=given.timeout,
    )
    interactive = sys.stdin.isatty()
    if interactive:
        with suppress(ImportError):
            importlib.import_module("readline")  # to be imported is all that it needs
    return Chat(conversation, display, read_line, interactive=interactive).run()


def chat_parser() -> argparse.ArgumentParser:
    """Return the parser; ``--help`` shows all that it takes."""
    parser = CommandParser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Talk to an endpoint over its socket. Answers go to standard output, all else to standard error.",
        epilog="Each line is a turn that continues the one before. /new begins a new conversation, /quit ends.",
    )
    parser.add_argument("url", metavar="URL", help="base URL or URL of the socket: http://host:8080/v1, wss://...")
    parser.add_argument("--model", metavar="NAME", help="model; left to the server if it is not said")
    parser.add_argument("--instructions", metavar="TEXT", help="instructions of each turn")
    parser.add_argument(
        "--field",
        action="append",
        default=[],
        metavar="NAME=JSON",
        help="""further member of each turn, such as 'reasoning={"effort":"low"}' or store=false""",
    )
    parser.add_argument("--api-key", metavar="KEY", help=f"shown as Authorization: Bearer; better: {API_KEY}")
    parser.add_argument("--ca", metavar="FILE", help="certificate of the authority of the server (PEM)")
    parser.add_argument("--timeout", type=seconds, default=600.0, metavar="S", help="longest silence (default 600)")
    return parser


def socket_url(url: str) -> str:
    """Return the URL of the socket that a base URL, or the URL of the resource itself, stands for.

    Raises:
        UsageError: It is neither.
    """
    wrong = UsageError(f"the URL must be like http://host:8080/v1 or ws://host:8080/v1/responses, not {url!r}")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise wrong from None
    scheme = _SCHEMES.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise wrong
    path = parts.path.rstrip("/")
    if not path.endswith("/responses"):
        path += "/responses"
    return urlunsplit((scheme, parts.netloc, path, parts.query, ""))


def fields_of(texts: Iterable[str], **named: str | None) -> Mapping[str, Any]:
    """Return members of creates.

    Args:
        texts: Each NAME=JSON.
        named: Further ones; None for those that are left out.

    Raises:
        UsageError: A text is none of that form.
    """
    fields: dict[str, Any] = {}
    for each in texts:
        name, equals, text = each.partition("=")
        try:
            fields[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            equals = ""
        if not equals or not name:
            raise UsageError(f"--field takes NAME=JSON (a text in quotation marks), not {each!r}")
    return fields | {name: value for name, value in named.items() if value is not None}


def _authorities(file: str | None) -> ssl.SSLContext | None:
    if file is None:
        return None
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:
        raise UsageError(f"--ca {file}: {error.strerror or error}") from None
