"""Writes the tables of ``docs/reference/support-matrix.md``: ``python -m tests.frameworks.page``."""

import platform
import re
import sys
from importlib.metadata import version
from typing import Final

from tests.frameworks.matrix import FRAMEWORKS, ROWS, TITLES
from tests.host_apps.page import table as host_apps
from tests.host_apps.venvs import version_of
from tests.servers.process import ROOT

PAGE: Final = ROOT / "docs" / "reference" / "support-matrix.md"
PACKAGES: Final = (
    "uvicorn",
    "starlette",
    "fastapi",
    "sse-starlette",
    "litestar",
    "quart",
    "django",
    "blacksheep",
    "falcon",
)
VERSIONS: Final = "versions"
_MADE: Final = re.compile(r"(<!-- made: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def page(text: str) -> str:
    """Return the page with its made parts as they should be."""
    return _MADE.sub(lambda part: part[1] + _PARTS[part[2]]() + part[3], text)


def parts(text: str) -> dict[str, str]:
    """Return the made parts of a page as they are."""
    return {part[2]: part[0] for part in _MADE.finditer(text)}


def _versions() -> str:
    each = [f"{package} {version(package)}" for package in PACKAGES] + [f"sanic {version_of('sanic', 'sanic')}"]
    return f"Last held against Python {platform.python_version()}, " + ", ".join(each) + ".\n"


def _frameworks() -> str:
    lines = [_line(("", *(TITLES[each] for each in FRAMEWORKS))), _line(("---",) * (len(FRAMEWORKS) + 1))]
    lines += [_line((row.what, *(row.cell(each) for each in FRAMEWORKS))) for row in ROWS]
    advice = [f"- *{row.what.removeprefix('... ')}*: {row.helps}" for row in ROWS if row.helps]
    return "\n".join([*lines, "", *advice]) + "\n"


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cells) + " |"


_PARTS: Final = {VERSIONS: _versions, "frameworks": _frameworks, "host-apps": host_apps}


def main() -> None:
    """Write the page."""
    text = PAGE.read_text(encoding="utf-8")
    current = page(text)
    PAGE.write_text(current, encoding="utf-8")
    sys.stdout.write(f"{PAGE.relative_to(ROOT)}: {'unchanged' if current == text else 'written'}\n")


if __name__ == "__main__":
    main()
