"""Writes the tables of ``docs/reference/servers.md``: ``python -m tests.servers.page``."""

from importlib.metadata import version
from typing import Final

from tests.matrix import REPO, VERSIONS, Page, table
from tests.servers.matrix import SERVERS, TABLES

PACKAGES: Final = ("uvicorn", "websockets", "wsproto", "hypercorn", "granian", "daphne")
TITLES: Final = {server: server.replace("-", " ") for server in SERVERS}


def _part(name: str) -> str:
    if name == VERSIONS:
        return "Last held against " + ", ".join(f"{package} {version(package)}" for package in PACKAGES) + ".\n"
    return table(TITLES, TABLES[name])


PAGE: Final = Page(REPO / "docs" / "reference" / "servers.md", _part)

if __name__ == "__main__":
    PAGE.write()
