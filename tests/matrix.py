"""Tables of what others do, one column each: the tests hold their cells against what they see, and the pages show them."""

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).parent.parent
VERSIONS: Final = "versions"
"""The made part of a page that says what was tried; it is that of the day on which the page was written."""

_MADE: Final = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table.

    Attributes:
        name: What the tests call it.
        what: What the reader calls it.
        usual: The cell of all columns that have none of their own; alternatives are joined by " or ".
        cells: Cells by column, or by family of columns (what comes before a hyphen).
        helps: What to do about it.
    """

    name: str
    what: str
    usual: str
    cells: Mapping[str, str] = field(default_factory=dict[str, str])
    helps: str = ""

    def cell(self, column: str) -> str:
        """Return what stands in a column."""
        family = column.partition("-")[0]
        return self.cells.get(column, self.cells.get(family, self.usual))


def row(name: str, what: str, usual: str, *, helps: str = "", **cells: str) -> Row:
    """Return a line; a column's name has underscores for its hyphens here."""
    by_column = {key.replace("_", "-"): cell for key, cell in cells.items()}
    return Row(name=name, what=what, usual=usual, cells=by_column, helps=helps)


def cell(rows: Iterable[Row], name: str, column: str) -> str:
    """Return a cell of the line of that name."""
    return next(each for each in rows if each.name == name).cell(column)


def lines_of(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table, line by line."""
    return ["| " + " | ".join(cells) + " |" for cells in (head, ("---",) * len(head), *rows)]


def table(titles: Mapping[str, str], rows: Sequence[Row]) -> str:
    """Return a table, and below it what helps.

    Args:
        titles: Of the columns, by their names.
        rows: The lines.
    """
    lines = lines_of(("", *titles.values()), [(each.what, *map(each.cell, titles)) for each in rows])
    advice = [f"- *{each.what.removeprefix('... ')}*: {each.helps}" for each in rows if each.helps]
    return "\n".join([*lines, *([""] if advice else []), *advice]) + "\n"


@dataclass(frozen=True, slots=True)
class Page:
    """A page of which parts are made.

    Attributes:
        path: Of its file.
        part: Makes a part, by its name.
    """

    path: Path
    part: Callable[[str], str]

    def current(self, text: str) -> str:
        """Return the page with its made parts as they should be."""
        return _MADE.sub(lambda made: made[1] + self.part(made[2]) + made[3], text)

    def write(self) -> None:
        """Write the file."""
        text = self.path.read_text(encoding="utf-8")
        current = self.current(text)
        self.path.write_text(current, encoding="utf-8")
        sys.stdout.write(f"{self.path.relative_to(REPO)}: {'unchanged' if current == text else 'written'}\n")


def parts(text: str) -> dict[str, str]:
    """Return the made parts of a page as they are."""
    return {made[2]: made[0] for made in _MADE.finditer(text)}
