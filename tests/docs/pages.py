"""The pages for users: their pieces of Python, their links, their headings.

A piece that begins by three backquotes and ``python`` is a module: it is imported, and its functions ``test_*`` are run. With
``python no-run`` it is only compiled and type-checked. A name that it uses but does not define comes from an earlier piece
of the same page, else from ``tests/docs/prelude.py``.
"""

import builtins
import re
import symtable
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .source import REPO

PAGES: Final = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])
PACKAGE: Final = "docs_blocks"

_FENCE: Final = re.compile(r"^```(\w*)(.*?)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A piece of Python in a page."""

    page: Path
    line: int
    text: str
    runs: bool

    @property
    def module(self) -> str:
        """The name of the module that it becomes."""
        page = self.page.relative_to(REPO).with_suffix("").as_posix()
        return re.sub(r"\W", "_", page.lower()) + f"_{self.line}"

    @property
    def place(self) -> str:
        """Page and line, for people."""
        return f"{self.page.relative_to(REPO)}:{self.line}"


def links(page: Path) -> list[str]:
    """The targets of a page's links."""
    return _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = _HEADING.findall(_FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def fences(page: Path) -> Iterator[tuple[str, str, int, str]]:
    """Language, the rest of its line, line number and text of each piece of code."""
    text = page.read_text(encoding="utf-8")
    for match in _FENCE.finditer(text):
        language, rest, code = match.groups()
        yield language, rest.strip(), text.count("\n", 0, match.start()) + 1, code


def blocks(page: Path) -> list[Block]:
    """The pieces of Python of a page, in order."""
    return [
        Block(page, line, code, runs=rest != "no-run")
        for language, rest, line, code in fences(page)
        if language == "python"
    ]


def all_blocks() -> list[Block]:
    """The pieces of Python of all pages."""
    return [block for page in PAGES for block in blocks(page)]


def write_modules(folder: Path) -> dict[str, Path]:
    """Write every piece as a module of a package ``docs_blocks``; return the files by module name."""
    package = folder / PACKAGE
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    files: dict[str, Path] = {}
    for page in PAGES:
        known: dict[str, str] = {}
        for block in blocks(page):
            defined, used = _names(block.text)
            lines = [f"from {known.get(name, 'tests.docs.prelude')} import {name}" for name in sorted(used - defined)]
            files[block.module] = package / f"{block.module}.py"
            files[block.module].write_text("\n".join([*lines, "", block.text]), encoding="utf-8")
            if block.runs:
                known.update(dict.fromkeys(defined, f"{PACKAGE}.{block.module}"))
    return files


def _names(text: str) -> tuple[set[str], set[str]]:
    """The names that a module defines, and the global ones that it uses."""
    top = symtable.symtable(text, "<page>", "exec")
    defined = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    defined |= {symbol.get_name() for symbol in top.get_symbols() if symbol.is_namespace()}
    used = {symbol.get_name() for symbol in top.get_symbols() if symbol.is_referenced()}
    tables = list(top.get_children())
    while tables:
        table = tables.pop()
        used |= {symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() and symbol.is_referenced()}
        tables += table.get_children()
    return defined, used - set(dir(builtins))
