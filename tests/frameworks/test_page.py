"""The support page says what the tests of frameworks and of third-party apps have seen."""

from pathlib import Path

import pytest

from tests.frameworks.matrix import FRAMEWORKS, ROWS
from tests.frameworks.page import PAGE
from tests.matrix import VERSIONS, parts

pytestmark = pytest.mark.servers

TEXT = PAGE.path.read_text(encoding="utf-8")


def test_every_table_is_on_the_page_and_current() -> None:
    """Else: ``python -m tests.frameworks.page``. The versions are those of the day on which it was written."""
    current = parts(PAGE.current(TEXT))

    assert set(current) == {VERSIONS, "frameworks", "host-apps"}
    assert {**parts(TEXT), VERSIONS: ""} == {**current, VERSIONS: ""}


def test_every_row_is_shown_by_a_test() -> None:
    """Without this the page could say what nobody has seen."""
    tests = "\n".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    shown = {row.name for row in ROWS if f'shows("{row.name}"' in tests or f'("{row.name}", "' in tests}

    assert {row.name for row in ROWS} - shown - {f"body-{size}" for size in (3, 11, 18)} == set()
    assert 'shows(f"body-{size}"' in tests


def test_cells_name_frameworks_that_there_are() -> None:
    """Without this a misspelt name would give a framework the usual cell."""
    assert {name for row in ROWS for name in row.cells} <= set(FRAMEWORKS)
