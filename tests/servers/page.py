"""Writes the tables of ``docs/reference/servers.md``: ``python -m tests.servers.page``."""

import re
import sys
from importlib.metadata import version
from typing import Final

from tests.servers.matrix import SERVERS, TABLES, Row
from tests.servers.process import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "servers.md"
PACKAGES: Final = ("uvicorn", "websockets", "wsproto", "hypercorn", "granian", "daphne")
VERSIONS: Final = "versions"
_MADE: Final = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with its made parts as they should be."""
    return _MADE.sub(lambda part: part[1] + _part(part[2]) + part[3], text)


def parts(text: str) -> dict[str, str]:
    """Return the made parts of a page as they are."""
    return {part[2]: part[0] for part in _MADE.finditer(text)}


def _part(name: str) -> str:
    if name == VERSIONS:
        return "Last held against " + ", ".join(f"{package} {version(package)}" for package in PACKAGES) + ".\n"
    return table(TABLES[name])


def table(rows: tuple[Row, ...]) -> str:
    """Return a table, and below it what helps."""
    head = ("", *(server.replace("-", " ") for server in SERVERS))
    lines = [_line(head), _line(("---",) * len(head))]
    lines += [_line((row.what, *(row.cell(server) for server in SERVERS))) for row in rows]
    advice = [f"- *{row.what.removeprefix('... ')}*: {row.helps}" for row in rows if row.helps]
    return "\n".join([*lines, *([""] if advice else []), *advice]) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Write the page."""
    text = PAGE.read_text(encoding="utf-8")
    current = page(text)
    PAGE.write_text(current, encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {'unchanged' if current == text else 'written'}\n")


if __name__ == "__main__":
    main()
