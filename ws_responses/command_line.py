"""What the command lines of this package share."""

import argparse
from typing import NoReturn


class UsageError(Exception):
    """A command line says what cannot be done; the text tells a person what to change."""


class CommandParser(argparse.ArgumentParser):
    """A parser that leaves it to the command to say what is wrong."""

    def error(self, message: str) -> NoReturn:
        """Raise what the command tells.

        Raises:
            UsageError: Always.
        """
        raise UsageError(message)


def port(text: str) -> int:
    """Read a port of TCP."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"must be 0 to 65535, not {text!r}")
    return int(text)


def count(text: str) -> int:
    """Read a whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number above 0, not {text!r}")
    return int(text)


def seconds(text: str) -> float:
    """Read a time above 0."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0, not {text!r}")
    return number
