"""Writes the tables of ``docs/reference/support-matrix.md``: ``python -m tests.frameworks.page``."""

import platform
from importlib.metadata import version
from typing import Final

from tests.frameworks.matrix import ROWS, TITLES
from tests.host_apps.page import table as host_apps
from tests.host_apps.venvs import version_of
from tests.matrix import REPO, VERSIONS, Page, table

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


def _versions() -> str:
    each = [f"{package} {version(package)}" for package in PACKAGES] + [f"sanic {version_of('sanic', 'sanic')}"]
    return f"Last held against Python {platform.python_version()}, " + ", ".join(each) + ".\n"


_PARTS: Final = {VERSIONS: _versions, "frameworks": lambda: table(TITLES, ROWS), "host-apps": host_apps}
PAGE: Final = Page(REPO / "docs" / "reference" / "support-matrix.md", lambda name: _PARTS[name]())

if __name__ == "__main__":
    PAGE.write()
