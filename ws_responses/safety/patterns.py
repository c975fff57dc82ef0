"""Regular expressions whose cost is known: many terms as one expression, and a bound on what an operator's own may take.

Python's ``re`` backtracks: a careless pattern takes time exponential in the length of a text that an attacker chooses. A pattern
is accepted only if the number of steps from each character on has a bound that we can compute.
"""

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

from ws_responses.errors import ConfigurationError, excerpt

MAX_STEPS: Final = 20_000
"""Most steps of a pattern from one character on, as computed: far above what useful ones need, and what they really take."""

MAX_WIDTH: Final = 512
"""Longest match of a pattern, in characters: more would not fit an overlap."""

# The parser that ``re`` itself uses (``re._parser`` since Python 3.11).
_parser: Final[Any] = import_module("re._parser")

_ATOMS: Final = frozenset({"LITERAL", "NOT_LITERAL", "ANY", "IN", "AT", "CATEGORY"})
_REPEATS: Final = frozenset({"MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"})


class Cost:
    """What a pattern may take.

    Attributes:
        width: Characters of its longest match.
        steps: Bound on the steps from one character on.
    """

    __slots__ = ("steps", "width")

    def __init__(self, width: int, paths: int) -> None:
        self.width = width
        self.steps = paths * max(width, 1)


def cost_of(pattern: str) -> Cost:
    """Return what a pattern may take.

    Raises:
        ConfigurationError: It is no pattern, or its cost has no bound: an open repetition (``*``, ``+``, ``{3,}``), or a reference
            to a group.
    """
    try:
        parsed = _parser.parse(f"(?:{pattern})")  # as it will be used: flags for all of it, for one, cannot be
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigurationError(f"{_named(pattern)} is no regular expression: {error}") from None
    if parsed.state.groupdict:
        raise ConfigurationError(f"{_named(pattern)} names a group; use (?:...)")
    paths = _paths(pattern, parsed)
    width = parsed.getwidth()[1]
    return Cost(width, paths)


def checked_cost(pattern: str) -> Cost:
    """Return what a pattern may take.

    Raises:
        ConfigurationError: It is too much, or has no bound.
    """
    cost = cost_of(pattern)
    if cost.width > MAX_WIDTH:
        raise ConfigurationError(
            f"{_named(pattern)} matches up to {cost.width} characters; at most {MAX_WIDTH} are allowed"
        )
    if cost.steps > MAX_STEPS:
        raise ConfigurationError(f"{_named(pattern)} may take {cost.steps} steps; at most {MAX_STEPS} are allowed")
    return cost


def _paths(pattern: str, items: Iterable[tuple[Any, Any]]) -> int:
    """Return a bound on the ways in which a sequence can match from one character on: each is tried at most once."""
    paths = 1
    for code, argument in items:
        paths *= _paths_of(pattern, str(code), argument)
        if paths > MAX_STEPS:
            return MAX_STEPS + 1
    return paths


def _paths_of(pattern: str, code: str, argument: Any) -> int:
    if code in _ATOMS:
        return 1
    if code in _REPEATS:
        least, most, inner = argument
        if most is _parser.MAXREPEAT:
            raise ConfigurationError(f"{_named(pattern)} repeats without a bound; write {{0,64}} or the like")
        return _repeated(_paths(pattern, inner), least, most)
    if code == "BRANCH":
        return sum(_paths(pattern, branch) for branch in argument[1])
    if code == "SUBPATTERN":
        return _paths(pattern, argument[3])
    if code == "ATOMIC_GROUP":
        return _paths(pattern, argument)
    if code in ("ASSERT", "ASSERT_NOT"):
        return _paths(pattern, argument[1])
    raise ConfigurationError(f"{_named(pattern)} refers to a group, which has no bound on its cost")


def _repeated(paths: int, least: int, most: int) -> int:
    total = 0
    for times in range(least, most + 1):
        total += min(paths**times if times < 64 or paths == 1 else MAX_STEPS + 1, MAX_STEPS + 1)
        if total > MAX_STEPS:
            return MAX_STEPS + 1
    return total


def _named(pattern: str) -> str:
    return f"the pattern {excerpt(pattern, 64)!r}"


class _Branch(dict[str, "_Branch"]):
    """A node of the tree of terms: what may follow, by character."""

    ends = False


def any_of(terms: Iterable[str]) -> str:
    """Return a pattern that matches each of the terms, the longest at a place, by looking at each character once.

    An alternation of a thousand terms would try each of them at each character; here the first characters decide.
    """
    root = _Branch()
    for term in terms:
        at = root
        for character in term:
            at = at.setdefault(character, _Branch())
        at.ends = True
    return _pattern_of(root)


def _pattern_of(branch: _Branch) -> str:
    choices: list[str] = []
    singles: list[str] = []
    for first, after in sorted(branch.items()):
        text, following = first, after
        # What has no choice in it is one piece, so that groups nest no deeper than terms begin each other.
        while len(following) == 1 and not following.ends:
            ((more, following),) = following.items()
            text += more
        if following:
            choices.append(re.escape(text) + _pattern_of(following))
        elif len(text) == 1:
            singles.append(re.escape(text))
        else:
            choices.append(re.escape(text))
    if len(singles) > 1:
        choices.append(f"[{''.join(singles)}]")
    else:
        choices += singles
    if not choices:
        return ""
    if len(choices) == 1 and not branch.ends:
        return choices[0]
    return f"(?:{'|'.join(choices)})" + ("?" if branch.ends else "")
