"""Writes ``docs/reference/known-faults.md``: ``python -m tests.known_faults.page``."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.known_faults.rows import ROWS, SECTIONS, Row
from tests.known_faults.scan import REPO, Test, find_tests

PAGE: Final = REPO / "docs" / "reference" / "known-faults.md"

_HEAD: Final = """\
# Known faults

What has gone wrong in WebSocket servers, gateways and clients of this kind, and what this package does about it. Each row
is met by a test that carries `@pytest.mark.fault("<row>")`, or says why no test can meet it:

    python -m pytest -m fault

This page is made by `python -m tests.known_faults.page`, from `tests/known_faults/rows.py` and the tests' marks; a test
fails when it is not current. The numbers are names: gaps mean nothing.
"""


def page(rows: Sequence[Row], tests: Iterable[Test]) -> str:
    """Return the page."""
    proofs: dict[str, list[str]] = defaultdict(list)
    for test in tests:
        for name in test.rows:
            proofs[name].append(test.node)
    titles = dict(SECTIONS)
    lines = [_HEAD]
    for row in rows:
        if row.id in titles:
            lines += [
                f"\n## {titles[row.id]}\n",
                "| row | seen elsewhere | here | test, or why there is none |",
                "|---|---|---|---|",
            ]
        cells = (row.id, _symptom(row), row.answer, _proof(row, proofs[row.id]))
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines).replace("\n\n\n", "\n\n") + "\n"


def _symptom(row: Row) -> str:
    return row.symptom + (f" ({', '.join(row.seen_in)})" if row.seen_in else "")


def _proof(row: Row, marked: Sequence[str]) -> str:
    parts = [_link(node) for node in (*marked, *row.covered_by)]
    if row.reason is not None:
        parts.insert(0, row.reason)
    return "<br>".join(parts)


def _link(node: str) -> str:
    file, _, name = node.partition("::")
    return f"[{(name or file).replace('::', '.')}](../../{file})"


def main() -> int:
    """Write the page."""
    PAGE.parent.mkdir(parents=True, exist_ok=True)
    PAGE.write_text(page(tuple(ROWS.values()), find_tests()), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(Path.cwd()) if PAGE.is_relative_to(Path.cwd()) else PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
