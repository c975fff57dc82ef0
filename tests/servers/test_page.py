"""The support page says what the tests here have seen."""

from pathlib import Path

import pytest

from tests.matrix import VERSIONS, parts
from tests.servers.matrix import ROWS, SERVERS, TABLES
from tests.servers.page import PAGE
from tests.servers.process import COMMANDS

pytestmark = pytest.mark.servers

TEXT = PAGE.path.read_text(encoding="utf-8")


def test_every_table_is_on_the_page_and_current() -> None:
    """Else: ``python -m tests.servers.page``. The versions are those of the day on which it was written."""
    current = parts(PAGE.current(TEXT))

    assert set(current) == {VERSIONS, *TABLES}
    assert {**parts(TEXT), VERSIONS: ""} == {**current, VERSIONS: ""}


def test_every_row_is_shown_by_a_test() -> None:
    """Without this the page could say what nobody has seen."""
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))

    assert [row.name for row in ROWS if f'shows("{row.name}"' not in tests and f'"{row.name}")' not in tests] == []


def test_columns_are_the_servers_that_are_started() -> None:
    """Without this a server could have a column and no process, or the other way round."""
    assert list(SERVERS) == list(COMMANDS)


def test_cells_name_servers_that_there_are() -> None:
    """Without this a misspelt name would give a server the usual cell."""
    known = {*SERVERS, *(server.partition("-")[0] for server in SERVERS)}

    assert {name for row in ROWS for name in row.cells} <= known
