"""What a check is, and how it ends."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, Literal

from msgspec import Struct

from ws_responses.protocol.profiles import Profile

BOTH: Final[tuple[Profile, ...]] = ("openai", "open-responses")
OPENAI: Final[tuple[Profile, ...]] = ("openai",)

Outcome = Literal["pass", "fail", "skip"]


class Target(Struct, frozen=True, kw_only=True):
    """What is checked.

    Attributes:
        url: Of the socket.
        api_key: Shown as ``Authorization: Bearer``; None for none.
        profile: Which specification it is to follow.
        fields: Members of each create: ``model``, for one.
        timeout_s: Longest silence.
    """

    url: str
    api_key: str | None = None
    profile: Profile = "openai"
    fields: Mapping[str, Any] = {}
    timeout_s: float = 30.0


class Failed(Exception):
    """The server does otherwise than the statement says; the text tells what."""


class Skipped(Exception):
    """The statement does not bind this server, or could not be looked at; the text tells why."""


class Check(Struct, frozen=True, kw_only=True):
    """One statement and the code that looks whether it holds.

    Attributes:
        name: Names it.
        statement: What a server does.
        profiles: Which specifications say so.
        run: Raises :class:`Failed` or :class:`Skipped`, or it holds.
    """

    name: str
    statement: str
    profiles: tuple[Profile, ...]
    run: Callable[[Target], Awaitable[None]]


class Result(Struct, frozen=True, kw_only=True):
    """What became of a check.

    Attributes:
        name: Its name.
        statement: Likewise.
        outcome: How it ended.
        reason: Why it failed or was skipped.
        seconds: What it took.
    """

    name: str
    statement: str
    outcome: Outcome
    reason: str | None
    seconds: float


CHECKS: Final[list[Check]] = []
"""All checks, in the order in which they run."""

_Run = Callable[[Target], Awaitable[None]]


def check(name: str, statement: str, profiles: tuple[Profile, ...] = BOTH) -> Callable[[_Run], _Run]:
    """Return a decorator that adds a function to the checks."""

    def add(run: _Run) -> _Run:
        CHECKS.append(Check(name=name, statement=statement, profiles=profiles, run=run))
        return run

    return add


def expect(holds: object, reason: str) -> None:
    """Go on only if something holds.

    Raises:
        Failed: It does not.
    """
    if not holds:
        raise Failed(reason)
