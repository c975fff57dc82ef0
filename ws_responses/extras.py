"""Optional packages: the one way to import them, which says what to install where one is missing.

A block ``with Extra("http"):`` holds the imports of what the extra ``http`` brings.
"""

from types import TracebackType

from ws_responses.errors import MissingExtra

__all__ = ["Extra"]


class Extra:
    """Names the extra of ``ws-responses`` that brings what is imported within a ``with`` block.

    Args:
        name: As in ``pip install 'ws-responses[name]'``.
        how: The command that installs it, where that is another one.

    Raises:
        MissingExtra: By the ``with`` block, in place of the ``ImportError`` of a package that is missing or broken.
    """

    __slots__ = ("_how",)

    def __init__(self, name: str, *, how: str | None = None) -> None:
        self._how = how or f"pip install 'ws-responses[{name}]'"

    def __enter__(self) -> None:
        """Begin to import."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Say what to install."""
        if not isinstance(error, ImportError) or isinstance(error, MissingExtra):
            return
        package = (error.name or "").partition(".")[0]
        if package == "ws_responses":
            return  # a fault of ours, which nothing that can be installed mends
        raise MissingExtra(f"the package {package or 'for this'} is missing: {self._how}", name=package) from error
