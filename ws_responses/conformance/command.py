"""The command ``conformance``: its arguments, its table, its exit code."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

import msgspec

from ws_responses.command_line import CommandParser, UsageError, seconds
from ws_responses.conformance.check import BOTH, Result, Target

PROGRAM: Final = "python -m ws_responses conformance"
API_KEY: Final = "WS_RESPONSES_API_KEY"
"""Environment variable with the key; ``serve`` and ``chat`` read the same."""

_MARKS: Final = {"pass": "ok", "fail": "FAIL", "skip": "skip"}


def main(arguments: Sequence[str]) -> int:
    """Run the checks; return 0 if none failed, 1 if one did, 2 for a wrong command line."""
    if find_spec("websockets") is None:
        return _refuse("needs the package websockets: pip install 'ws-responses[serve]'")
    try:
        given = conformance_parser().parse_args(arguments)
        if given.list:
            return _list()
        return _check(given)
    except UsageError as error:
        return _refuse(str(error))


def _refuse(reason: str) -> int:
    sys.stderr.write(f"conformance: {reason}\nconformance: {PROGRAM} --help shows all options\n")
    return 2


def conformance_parser() -> argparse.ArgumentParser:
    """Return the parser; ``--help`` shows all that it takes."""
    parser = CommandParser(
        prog=PROGRAM,
        allow_abbrev=False,
        description="Check a server's WebSocket mode from outside. Asks its model some sixty short questions.",
    )
    parser.add_argument("url", metavar="URL", nargs="?", help="of the socket, or base URL: ws://host:8080/v1/responses")
    parser.add_argument("--model", metavar="NAME", help="model of each create; left out if it is not said")
    parser.add_argument("--api-key", metavar="KEY", help=f"shown as Authorization: Bearer; better: {API_KEY}")
    parser.add_argument(
        "--profile", choices=("openai", "open-responses"), default="openai", help="specification (default openai)"
    )
    parser.add_argument(
        "--field", action="append", default=[], metavar="NAME=JSON", help="further member of each create; repeat it"
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="run this check; repeat it")
    parser.add_argument("--timeout", type=seconds, default=30.0, metavar="S", help="longest silence (default 30)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    parser.add_argument("--list", action="store_true", help="print all checks and what they state, and run none")
    return parser


def _check(given: argparse.Namespace) -> int:
    from ws_responses.conformance.running import all_checks, run_checks  # noqa: PLC0415 - needs websockets

    if given.url is None:
        raise UsageError("needs the URL of a socket")
    unknown = sorted(set(given.only) - {each.name for each in all_checks()})
    if unknown:
        raise UsageError(f"there is no check {unknown[0]!r}; --list shows all")
    target = target_of(given)
    told = _nothing if given.json else _tell
    results = asyncio.run(run_checks(target, only=given.only or None, told=told))
    if not results:
        raise UsageError(f"no check named is one of the profile {given.profile!r}")
    counts = {outcome: sum(result.outcome == outcome for result in results) for outcome in _MARKS}
    if given.json:
        told_all = {"url": target.url, "profile": target.profile, "counts": counts, "checks": results}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told_all)).decode() + "\n")
    else:
        sys.stdout.write(f"{counts['pass']} passed, {counts['fail']} failed, {counts['skip']} skipped\n")
    return 1 if counts["fail"] else 0


def target_of(given: argparse.Namespace) -> Target:
    """Return what is to be checked.

    Raises:
        UsageError: An argument is wrong.
    """
    from ws_responses.chat.command import fields_of, socket_url  # noqa: PLC0415 - the same arguments

    fields: dict[str, Any] = dict(fields_of(given.field, model=given.model))
    return Target(
        url=socket_url(given.url),
        api_key=given.api_key or os.environ.get(API_KEY) or None,
        profile=given.profile,
        fields=fields,
        timeout_s=given.timeout,
    )


def _list() -> int:
    from ws_responses.conformance.running import all_checks  # noqa: PLC0415 - needs websockets

    for each in all_checks():
        where = "" if each.profiles == BOTH else f" ({', '.join(each.profiles)} only)"
        sys.stdout.write(f"{each.name:<24}{each.statement}{where}\n")
    return 0


def _tell(result: Result) -> None:
    reason = "" if result.reason is None else f"\n{'':<30}{result.reason}"
    sys.stdout.write(f"{_MARKS[result.outcome]:<6}{result.name:<24}{result.statement}{reason}\n")
    sys.stdout.flush()


def _nothing(_: Result) -> None:
    """Tell nothing before the end."""
